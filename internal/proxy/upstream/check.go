package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// The values of HealthConfig.Check.
const (
	CheckNone = "none"
	CheckHTTP = "http"
	CheckTCP  = "tcp"
	CheckGRPC = "grpc"
)

// Checker is the default of Options.Check. Its zero value is ready.
type Checker struct{}

// Check makes one check of the peer at a, on a connection of its own, and returns
// nil if it passes. Redirects are evaluated by their status and not followed.
func (Checker) Check(ctx context.Context, a Address, h HealthConfig) error {
	network, address := "tcp", a.IP.String()
	if a.IsUnix() {
		network, address = "unix", a.Unix
	}
	var d net.Dialer
	plain, err := d.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer plain.Close()
	// A check that is called off must not wait for its peer.
	defer context.AfterFunc(ctx, func() { _ = plain.SetDeadline(time.Unix(1, 0)) })()
	conn := plain
	if err := greet(conn, h.ProxyProtocol); err != nil {
		return err
	}
	if a.TLS {
		secure, err := h.secure(ctx, conn, a)
		if err != nil {
			return fmt.Errorf("TLS handshake: %w", err)
		}
		defer func() { _ = secure.Close() }() // sends close_notify, if it may
		conn = secure
	}
	if h.Check == CheckTCP {
		return nil
	}
	if h.Check == CheckGRPC {
		return checkGRPC(ctx, conn, a, h)
	}
	return get(conn, a, h)
}

// secure is the handshake of a check on conn.
func (h *HealthConfig) secure(ctx context.Context, conn net.Conn, a Address) (net.Conn, error) {
	protocol := "http/1.1"
	if h.Check == CheckGRPC {
		protocol = "h2"
	}
	if h.TLS != nil && h.TLS.gm != nil {
		return h.TLS.checkGM(conn, a, protocol)
	}
	cfg := h.tls(a)
	cfg.NextProtos = []string{protocol}
	secure := tls.Client(conn, cfg)
	return secure, secure.HandshakeContext(ctx)
}

// tls is what the handshake of a check goes by: always a full one, so that a
// certificate that has become bad shows.
func (h *HealthConfig) tls(a Address) *tls.Config {
	if h.TLS == nil {
		return &tls.Config{ServerName: a.Server, MinVersion: tls.VersionTLS12}
	}
	cfg := h.TLS.Config(a)
	cfg.ClientSessionCache = nil
	return cfg
}

// greet sends the PROXY header of who speaks for itself: UNKNOWN in version 1 and
// LOCAL in version 2 (PROXY protocol §2.1, §2.2).
func greet(conn net.Conn, version int) error {
	var hello string
	switch version {
	case 1:
		hello = "PROXY UNKNOWN\r\n"
	case 2:
		hello = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	default:
		return nil
	}
	if _, err := conn.Write([]byte(hello)); err != nil {
		return fmt.Errorf("send PROXY header: %w", err)
	}
	return nil
}

func get(conn net.Conn, a Address, h HealthConfig) error {
	host := h.Host
	if host == "" {
		host = a.host()

	}
	request := "GET " + h.Path + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: weir-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
	if _, err := conn.Write([]byte(request)); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	ranges, err := parseStatusRanges(h.Status)
	if err != nil {
		return err
	}
	r := bufio.NewReader(io.LimitReader(conn, 64<<10))
	for range 10 { // interim replies
		resp, err := http.ReadResponse(r, nil) //nolint:bodyclose // it would read a stream to its end; the connection is closed instead
		if err != nil {
			return fmt.Errorf("read reply: %w", err)
		}
		if resp.StatusCode >= 200 {
			if !ranges.has(resp.StatusCode) {
				return fmt.Errorf("status %d is not in %s", resp.StatusCode, h.Status)
			}
			return nil
		}
	}
	return fmt.Errorf("read reply: only interim ones")
}
