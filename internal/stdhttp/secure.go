package stdhttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/weir-gateway/weir/internal/upstream"
)

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
