package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

const patience = 30 * time.Second

func dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		err = raw.SetDeadline(time.Now().Add(patience))
	}
	return raw, err
}

// dialGM does a full handshake with a suite. The chain is not verified: that is the
// client's work.
func dialGM(ctx context.Context, addr string, suite *gm.Suite) (*gm.Stream, error) {
	raw, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c, err := gm.DialStream(raw, &gm.ClientConfig{
		Version: suite.Version, Suites: []uint16{suite.ID}, ServerName: "localhost", InsecureSkipVerify: true,
	})
	if err != nil {
		_ = raw.Close()
	}
	return c, err
}

// handshakesOf returns full handshakes per second of the server's processor time, and stops
// the server.
func (b *bench) handshakesOf(ctx context.Context, s *server, suite *gm.Suite) (float64, error) {
	defer s.Kill()
	many := func(n int) error {
		for range n {
			c, err := dialGM(ctx, s.addr, suite)
			if err != nil {
				return err
			}
			_ = c.Close()
		}
		return nil
	}
	if err := many(b.handshakes/10 + 1); err != nil { // warm up
		return 0, err
	}
	before, err := program.CPU(s.PID())
	if err != nil {
		return 0, err
	}
	if err := many(b.handshakes); err != nil {
		return 0, err
	}
	after, err := program.CPU(s.PID())
	return float64(b.handshakes) / (after - before).Seconds(), err
}

// subscriber opens a connection in one of the ways and subscribes it.
func subscriber(ctx context.Context, addr, way string) (c net.Conn, err error) {
	switch way {
	case "AES-128-GCM":
		c, err = dialAES(ctx, addr)
	case "TLCP":
		c, err = dialGM(ctx, addr, gm.SuiteOf(gm.VersionTLCP, gm.ECC_SM4_GCM_SM3))
	default:
		c, err = dialGM(ctx, addr, gm.SuiteOf(gm.VersionTLS13, gm.TLS_SM4_GCM_SM3))
	}
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, "GET /sse?channel=c HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		return nil, err
	}
	got := make([]byte, 4096)
	n, err := c.Read(got)
	if err == nil && !bytes.HasPrefix(got[:n], []byte("HTTP/1.1 200 ")) {
		err = fmt.Errorf("the gateway replies %.80q", got[:n])
	}
	return c, err
}

func dialAES(ctx context.Context, addr string) (*tls.Conn, error) {
	raw, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}) //nolint:gosec // verifying is the client's work
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if suite := c.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		return nil, fmt.Errorf("the suite is %s, want TLS_AES_128_GCM_SHA256: the processor has no AES instructions", tls.CipherSuiteName(suite))
	}
	return c, nil
}

// mark is in each message once, and nowhere else.
const mark = '^'

// fanout returns the microseconds of the server's processor time for one message to one
// subscriber. A message is published when all subscribers have received the one before.
func (b *bench) fanout(ctx context.Context, way string) (float64, error) {
	s, err := b.startWeir(ctx)
	if err != nil {
		return 0, err
	}
	defer s.Kill()
	d := &deliveries{each: int64(b.subscribers), all: make(chan struct{}, 1), failed: make(chan error, b.subscribers)}
	for range b.subscribers {
		c, err := subscriber(ctx, s.addr, way)
		if err != nil {
			return 0, err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Time{})
		go d.read(c)
	}
	p, err := dialAES(ctx, s.addr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.Close() }()
	_ = p.SetDeadline(time.Time{})
	replies := bufio.NewReader(p)
	many := func(n int) error {
		for range n {
			if err := d.publish(p, replies); err != nil {
				return err
			}
		}
		return nil
	}
	if err := many(b.messages/10 + 1); err != nil { // warm up
		return 0, err
	}
	before, err := program.CPU(s.PID())
	if err != nil {
		return 0, err
	}
	if err := many(b.messages); err != nil {
		return 0, err
	}
	after, err := program.CPU(s.PID())
	return (after - before).Seconds() * 1e6 / float64(b.messages*b.subscribers), err
}

// deliveries counts what subscribers receive.
type deliveries struct {
	each      int64
	want, got atomic.Int64
	all       chan struct{}
	failed    chan error
}

func (d *deliveries) read(c net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if k := int64(bytes.Count(buf[:n], []byte{mark})); k > 0 && d.got.Add(k) == d.want.Load() {
			d.all <- struct{}{}
		}
		if err != nil {
			d.failed <- err
			return
		}
	}
}

// publish sends a message and waits until all subscribers have it.
func (d *deliveries) publish(c net.Conn, replies *bufio.Reader) error {
	body := `{"channel":"c","data":"` + string(mark) + strings.Repeat("x", 127) + `"}`
	d.want.Add(d.each)
	if _, err := fmt.Fprintf(c, "POST /api/publish HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		apiKey, len(body), body); err != nil {
		return err
	}
	res, err := http.ReadResponse(replies, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return errors.New("publish: " + res.Status)
	}
	select {
	case <-d.all:
		return nil
	case err := <-d.failed:
		return fmt.Errorf("a subscriber's connection ended: %w", err)
	case <-time.After(patience):
		return fmt.Errorf("%d of %d deliveries within %s", d.got.Load(), d.want.Load(), patience)
	}
}
