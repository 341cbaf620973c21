package websocket

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// maxResponse bounds what a server may answer to a handshake, body included.
const maxResponse = 64 << 10

// DialOptions is what the client side of a handshake can choose. The zero value
// works.
type DialOptions struct {
	Config

	// Header is sent along: Authorization, Cookie, Origin and so on. Host sets the
	// host of the request; the fields of the handshake itself are ours.
	Header http.Header

	// Subprotocols are offered in this order of preference.
	Subprotocols []string

	// TLS is for wss URLs. nil means the defaults.
	TLS *tls.Config

	// DialContext opens the connection below. nil means net.Dialer.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Dial opens a WebSocket to a ws or wss URL. ctx bounds the handshake only. The
// response is not nil if the server answered at all, also when it refused; its
// body is then the first bytes of what it said. Redirects are not followed.
func Dial(ctx context.Context, rawURL string, o DialOptions) (*Conn, *http.Response, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, nil, fmt.Errorf("websocket: dial: %w", err)
	}
	nc, err := o.connect(ctx, u)
	if err != nil {
		return nil, nil, fmt.Errorf("websocket: dial %s: %w", u.Host, err)
	}
	done := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		_ = nc.SetDeadline(time.Unix(1, 0))
		close(done)
	})
	c, resp, err := o.handshake(nc, u)
	if !cancel() {
		<-done
		c, err = nil, ctx.Err()
	}
	if err != nil {
		_ = nc.Close()
		return nil, resp, fmt.Errorf("websocket: dial %s: %w", u.Host, err)
	}
	return c, resp, nil
}

// connect opens the TCP or TLS connection of a URL.
func (o *DialOptions) connect(ctx context.Context, u *url.URL) (net.Conn, error) {
	port := u.Port()
	switch {
	case u.Hostname() == "":
		return nil, errors.New("no host in the URL")
	case u.Scheme == "ws" && port == "":
		port = "80"
	case u.Scheme == "wss" && port == "":
		port = "443"
	case u.Scheme != "ws" && u.Scheme != "wss":
		return nil, fmt.Errorf("scheme %q is not ws or wss", u.Scheme)
	}
	dial := o.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	nc, err := dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil || u.Scheme == "ws" {
		return nc, err
	}
	cfg := o.TLS.Clone()
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if cfg.ServerName == "" {
		cfg.ServerName = u.Hostname()
	}
	cfg.NextProtos = []string{"http/1.1"}
	tc := tls.Client(nc, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return tc, nil
}

// handshake is the client's part of RFC 6455 §4.1.
func (o *DialOptions) handshake(nc net.Conn, u *url.URL) (*Conn, *http.Response, error) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	req := o.request(u, key)
	if err := req.Write(nc); err != nil {
		return nil, nil, err
	}
	limited := &io.LimitedReader{R: nc, N: maxResponse}
	br := bufio.NewReader(limited)
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		if limited.N == 0 {
			err = errors.New("the answer is too long")
		}
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, resp, refusedBy(nc, resp)
	}
	resp.Body = http.NoBody
	co, err := o.checkResponse(resp, key)
	if err != nil {
		return nil, resp, err
	}
	co.Early, _ = br.Peek(br.Buffered())
	return NewConn(nc, co), resp, nil
}

// request is the opening handshake.
func (o *DialOptions) request(u *url.URL, key string) *http.Request {
	at := *u
	at.Fragment, at.RawFragment = "", "" // RFC 6455 §3
	req := &http.Request{
		Method: http.MethodGet, URL: &at, Host: u.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: o.Header.Clone(),
	}
	if req.Header == nil {
		req.Header = make(http.Header)
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	if u.User != nil && req.Header.Get("Authorization") == "" {
		password, _ := u.User.Password()
		req.SetBasicAuth(u.User.Username(), password)
	}
	req.Header.Set("Upgrade", "websocket")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Sec-WebSocket-Version", "13")
	req.Header.Set("Sec-WebSocket-Key", key)
	req.Header.Del("Sec-WebSocket-Extensions")
	req.Header.Del("Sec-WebSocket-Protocol")
	if o.Deflate {
		req.Header.Set("Sec-WebSocket-Extensions", Deflate{}.String())
	}
	if len(o.Subprotocols) > 0 {
		req.Header.Set("Sec-WebSocket-Protocol", strings.Join(o.Subprotocols, ", "))
	}
	return req
}

// refusedBy keeps the start of what the server said and makes an error of it. It
// waits for that text a second at most.
func refusedBy(nc net.Conn, resp *http.Response) error {
	_ = nc.SetReadDeadline(time.Now().Add(time.Second))
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // as much as there is
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return fmt.Errorf("the server answered %s", resp.Status)
}

// checkResponse checks a 101 (RFC 6455 §4.1, second list).
func (o *DialOptions) checkResponse(resp *http.Response, key string) (ConnOptions, error) {
	header := func(name string) []byte { return []byte(strings.Join(resp.Header.Values(name), ",")) }
	co := ConnOptions{Config: o.Config, Client: true}
	accept := AcceptKey([]byte(key))
	if !IsUpgrade(header) || string(trim(header("Sec-WebSocket-Accept"))) != string(accept[:]) {
		return co, errors.New("the server's 101 is not an answer to this handshake")
	}
	co.Subprotocol = string(header("Sec-WebSocket-Protocol"))
	if co.Subprotocol != "" && !slices.Contains(o.Subprotocols, co.Subprotocol) {
		return co, fmt.Errorf("the server chose the subprotocol %q, which was not offered", co.Subprotocol)
	}
	agreed, used, ok := acceptDeflate(header("Sec-WebSocket-Extensions"))
	if !ok || used && !o.Deflate {
		return co, fmt.Errorf("the server chose extensions that were not offered: %q", header("Sec-WebSocket-Extensions"))
	}
	co.Deflate, co.Agreed = used, agreed
	return co, nil
}
