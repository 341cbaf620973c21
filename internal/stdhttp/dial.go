package stdhttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/weir-gateway/weir/internal/limit"
	"github.com/weir-gateway/weir/internal/upstream"
)

// A destination is what a connection is made for.
type destination struct {
	peer *upstream.Peer
	// proxy is the version of the PROXY header that tells the peer client and local,
	// 0: none. Such a connection carries no one else's requests.
	proxy         int
	client, local netip.AddrPort
	cluster       *upstream.Cluster
	front         *Front
}

func (a *attempts) destination(peer *upstream.Peer) destination {
	x := a.x
	d := destination{peer: peer, proxy: a.choice.Cluster.Config().ProxyProtocol, cluster: a.choice.Cluster, front: x.f}
	if d.proxy != 0 {
		d.client = netip.AddrPortFrom(x.Client, x.Peer.Port())
		if l, ok := x.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			d.local, _ = netip.ParseAddrPort(l.String()) // a Unix socket has none
		}
	}
	return d
}

// label is a host name that stands for d, so that connections to different peers,
// or for different clients, are never mixed up.
func (d destination) label() string {
	name := "p" + strconv.FormatUint(upstream.HashString(d.peer.Address().String()), 36)
	if d.proxy != 0 {
		name += ".c" + strconv.FormatUint(upstream.HashString(d.client.String()+d.local.String()), 36)
	}
	return name + ".invalid"
}

// dial connects to d.
func (d destination) dial(ctx context.Context, by *net.Dialer) (net.Conn, error) {
	at := d.peer.Address()
	network, address := "tcp", at.IP.String()
	if at.IsUnix() {
		network, address = "unix", at.Unix
	}
	ctx, cancel := context.WithTimeout(ctx, by.Timeout)
	defer cancel()
	nc, err := by.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	var head []byte
	switch d.proxy {
	case 1:
		head = limit.AppendProxyV1(nil, d.client, d.local)
	case 2:
		head = limit.AppendProxyV2(nil, d.client, d.local)
	default:
		return d.secure(ctx, nc)
	}
	if _, err := nc.Write(head); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return d.secure(ctx, nc)
}

// errInsecure says that a connection to a peer did not become secure: nothing was
// asked of the peer.
var errInsecure = errors.New("the upstream cannot be reached securely")

// secure ends the TLS handshake on nc, which is connected to d, if the peer is spoken
// to over TLS. What fails counts as a failure to connect.
func (d destination) secure(ctx context.Context, nc net.Conn) (net.Conn, error) {
	if !d.peer.Address().TLS {
		return nc, nil
	}
	cfg := d.peer.TLS().Config(d.peer.Address())
	if cfg.ClientSessionCache != nil {
		cfg.ClientSessionCache = placed{cfg.ClientSessionCache, "net/http " + d.peer.Address().String()}
	}
	c := tls.Client(whole{nc}, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, d.failed(err)
	}
	d.cluster.Shook(d.peer, c.ConnectionState().DidResume)
	return c, nil
}

func (d destination) failed(err error) error {
	d.cluster.ShakeFailed(d.peer, err, d.front.deps.Now())
	return fmt.Errorf("%w: %w", errInsecure, err)
}

// refused returns err, or that the handshake failed if err is the peer's late word on
// it: a TLS 1.3 client is done before its certificate was looked at.
func (d destination) refused(err error) error {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" {
		return err
	}
	for alert := range uint8(255) {
		if upstream.ClientAlert(alert) && op.Err.Error() == tls.AlertError(alert).Error() {
			return d.failed(err)
		}
	}
	return err
}

// whole is a socket under TLS whose end is an error: crypto/tls takes it for the end
// of the stream when it comes between two records, and who cuts a connection there
// would cut a reply that ends with it (RFC 8446 §6.1, RFC 9112 §9.8).
type whole struct{ net.Conn }

var errTruncated = errors.New("the stream ended without close_notify")

// Read implements net.Conn.
func (c whole) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) {
		err = errTruncated
	}
	return n, err
}

// placed keeps the sessions of one peer apart from those of others behind its name,
// and from those of the loops, which have more to them.
type placed struct {
	tls.ClientSessionCache
	key string
}

// Get implements tls.ClientSessionCache.
func (p placed) Get(string) (*tls.ClientSessionState, bool) { return p.ClientSessionCache.Get(p.key) }

// Put implements tls.ClientSessionCache.
func (p placed) Put(_ string, s *tls.ClientSessionState) { p.ClientSessionCache.Put(p.key, s) }
