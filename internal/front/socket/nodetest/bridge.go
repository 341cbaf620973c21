package nodetest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// bridge has what comes over HTTP/1.1 continue to n over HTTP/2.
func (n *Node) bridge() string {
	n.T.Helper()
	b := &Bridge{To: n.Addr}
	b.Start(n.T, n.OnStop)
	return b.Addr
}

// A Bridge has what comes over HTTP/1.1 continue over HTTP/2, WebSockets by RFC 8441: so all that a
// test sends is carried by streams.
type Bridge struct {
	// To is where requests continue. TLS is how; nil: in the clear.
	To  string
	TLS *tls.Config
	// Addr is where it listens, from Start on.
	Addr string

	dialed atomic.Int64
}

// Dialed is how many connections it has made.
func (b *Bridge) Dialed() int64 { return b.dialed.Load() }

func (b *Bridge) dial(ctx context.Context, network, _ string, _ *tls.Config) (net.Conn, error) {
	b.dialed.Add(1)
	if b.TLS == nil {
		return (&net.Dialer{}).DialContext(ctx, network, b.To)
	}
	cfg := b.TLS.Clone()
	cfg.NextProtos = []string{"h2"}
	return (&tls.Dialer{Config: cfg}).DialContext(ctx, network, b.To)
}

// Start listens. onStop is called with what ends it.
func (b *Bridge) Start(t testing.TB, onStop func(func())) {
	t.Helper()
	to := b.To
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.Addr = l.Addr().String()
	streams := &http2.Transport{AllowHTTP: true, DisableCompression: true, DialTLSContext: b.dial} //nolint:staticcheck // net/http's own opens no WebSocket (RFC 8441)
	proxy := &httputil.ReverseProxy{
		Transport: streams, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", to, r.In.Host
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { panic(http.ErrAbortHandler) },
	}
	server := &http.Server{ReadHeaderTimeout: trial.Patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			bridgeSocket(streams, to, w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	onStop(func() {
		streams.CloseIdleConnections() //nolint:staticcheck // as above
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("bridge: %v", err)
		}
	})
}

// bridgeSocket bridges a WebSocket.
func bridgeSocket(streams http.RoundTripper, to string, w http.ResponseWriter, r *http.Request) {
	in, out := io.Pipe()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodConnect, "http://"+to+r.URL.RequestURI(), in)
	if err != nil {
		panic(err)
	}
	req.Host = r.Host
	for name, values := range r.Header {
		switch name {
		case "Connection", "Upgrade", "Sec-Websocket-Key":
		default:
			req.Header[name] = values
		}
	}
	req.Header[":protocol"] = []string{"websocket"}
	res, err := streams.RoundTrip(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		for name, values := range res.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close() }()
	head := res.Header.Clone()
	head.Set("Connection", "Upgrade")
	head.Set("Upgrade", "websocket")
	accept := websocket.AcceptKey([]byte(r.Header.Get("Sec-WebSocket-Key")))
	head.Set("Sec-WebSocket-Accept", string(accept[:]))
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = head.Write(rw)
	_, _ = rw.WriteString("\r\n")
	_ = rw.Flush()
	var reading sync.WaitGroup
	reading.Go(func() {
		_, err := io.Copy(out, rw.Reader)
		_ = out.CloseWithError(err)
		_, _ = io.Copy(io.Discard, rw.Reader)
	})
	_, _ = io.Copy(flushing{rw.Writer}, res.Body)
	// The stream has ended. With unread bytes a close would reset the connection, and the client would
	// lose what came last, such as a close frame.
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	reading.Wait()
}

// flushing writes through.
type flushing struct{ w *bufio.Writer }

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	return n, errors.Join(err, f.w.Flush())
}
