package downstream_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestServerSentEventsPassAtOnce(t *testing.T) {
	more := make(chan string)
	g := start(t, settings{}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for s := range more {
			_, _ = io.WriteString(w, "data: "+s+"\n\n")
			w.(http.Flusher).Flush()
		}
	}))
	res, err := http.Get(g.url("/events"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	for i := range 50 {
		more <- fmt.Sprint(i) // the next is sent only when this one was read
		line, err := r.ReadString('\n')
		if _, e := r.ReadString('\n'); err != nil || e != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("event %d is %q, %v", i, line, err)
		}
	}
	close(more)
	if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
		t.Errorf("at the end: %q, %v", b, err)
	}
}

// wsPeer is a backend that switches protocols and then echoes bytes, in upper case.
func wsPeer(t *testing.T) string {
	return wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		req, err := http.ReadRequest(w.R)
		if err != nil {
			return
		}
		if req.Header.Get("Upgrade") != "websocket" || req.Header.Get("Connection") != "Upgrade" {
			w.TrySend("HTTP/1.1 426 Upgrade Required\nContent-Length: 0\n\n")
			return
		}
		w.TrySend("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Accept: " + req.Header.Get("Sec-WebSocket-Key") + "\n\nfirst")
		buf := make([]byte, 4096)
		for {
			n, err := w.R.Read(buf)
			if n > 0 {
				_, _ = w.Write(bytes.ToUpper(buf[:n]))
			}
			if err != nil {
				_, _ = io.WriteString(w, "bye")
				return
			}
		}
	})
}

const upgradeFields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n"

func TestUpgradesBecomeTunnels(t *testing.T) {
	g := start(t, settings{}, wsPeer(t))
	w := g.dial()
	w.Send("GET /chat HTTP/1.1\r\nHost: a\r\n" + upgradeFields + "\r\nearly ") // before the 101
	head := w.Head()
	for _, s := range []string{"HTTP/1.1 101 ", "\r\nConnection: Upgrade\r\n", "\r\nUpgrade: websocket\r\n", "\r\nSec-WebSocket-Accept: abc\r\n"} {
		if !strings.Contains(head, s) {
			t.Errorf("the head %q has no %q", head, s)
		}
	}
	want := func(s string) {
		t.Helper()
		got := make([]byte, len(s))
		if _, err := io.ReadFull(w.R, got); err != nil || string(got) != s {
			t.Fatalf("%q, %v, want %q", got, err, s)
		}
	}
	want("firstEARLY ")
	for i := range 20 {
		w.Send(fmt.Sprintf("frame %d ", i))
		want(fmt.Sprintf("FRAME %d ", i))
	}
	trial.Eventually(t, "the tunnel is counted", func() bool { return g.proxy.Stats().Tunnels == 1 })
	_ = w.Conn.(*net.TCPConn).CloseWrite() // half: the other side answers still
	want("bye")
	w.EOF()
	trial.Eventually(t, "the tunnel is gone", func() bool { s := g.proxy.Stats(); return s.Tunnels == 0 && s.Open == 0 })
}

func TestOnlyKnownUpgradesPass(t *testing.T) {
	g := start(t, settings{}, wsPeer(t))
	f := func(head string, status int) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send(head)
		if res, _ := w.Answer("GET"); res.StatusCode != status {
			t.Errorf("%q: %d, want %d", head, res.StatusCode, status)
		}
	}
	f("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 426)
	f("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 426)
	f("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", 426) // no Connection option
	f("GET / HTTP/1.0\r\nHost: a\r\n"+upgradeFields+"\r\n", 426)
}

func TestATunnelHoldsBoundedMemory(t *testing.T) {
	t.Parallel()
	took := make(chan int64, 1)
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, err := http.ReadRequest(w.R); err != nil {
			return
		}
		w.TrySend("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\n")
		<-took // and reads nothing until then
		n, _ := io.Copy(io.Discard, w.R)
		took <- n
	})
	g := start(t, settings{}, peer)
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n" + upgradeFields + "\r\n")
	w.Head()
	sent := fill(w)
	if sent > 32<<20 {
		t.Errorf("%d bytes went in, and nothing out", sent)
	}
	took <- 0
	_ = w.Conn.(*net.TCPConn).CloseWrite()
	if n := <-took; n != sent {
		t.Errorf("%d bytes arrived of %d", n, sent)
	}
}

// fill writes until nothing more is treated as a while, and returns how much was.
func fill(w *wiretest.Conn) (sent int64) {
	w.T.Helper()
	b := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
	for {
		_ = w.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := w.Write(b)
		sent += int64(n)
		if err != nil {
			break
		}
		if sent > 256<<20 {
			w.T.Fatal("there is no end to what is taken")
		}
	}
	_ = w.SetWriteDeadline(time.Now().Add(trial.Patience))
	return sent
}

func TestASlowBackendHoldsTheClientBack(t *testing.T) {
	read := make(chan struct{})
	got := make(chan int64, 1)
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		req, err := http.ReadRequest(w.R)
		if err != nil {
			return
		}
		<-read
		n, _ := io.Copy(io.Discard, req.Body)
		got <- n
		w.TrySend("HTTP/1.1 200 OK\nContent-Length: 0\n\n")
	})
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", Limits: policy.Limits{MaxBody: -1}}}}, peer)
	const total = 1 << 30
	w := g.dial()
	w.Send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", total))
	sent := fill(w)
	if sent > 32<<20 {
		t.Errorf("%d bytes went in, and nothing out", sent)
	}
	if n := heap(); n > 32<<20 {
		t.Errorf("%d bytes on the heap", n)
	}
	close(read)
	_ = w.Close() // the rest never comes
	if n := <-got; n > sent {
		t.Errorf("%d bytes arrived of %d", n, sent)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestASlowClientHoldsTheBackendBack(t *testing.T) {
	t.Parallel()
	var wrote atomic.Int64
	gone := make(chan struct{})
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, _, ok := w.Request(); !ok {
			return
		}
		defer close(gone)
		w.TrySend("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n")
		piece := []byte("10000\r\n" + strings.Repeat("x", 1<<16) + "\r\n")
		for {
			n, err := w.Write(piece)
			wrote.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	g := start(t, settings{}, peer)
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	w.Head()
	settled := func() bool {
		n := wrote.Load()
		time.Sleep(200 * time.Millisecond) // a rate is measured, nothing is waited for
		return wrote.Load() == n
	}
	trial.Eventually(t, "the backend is throttled", settled)
	if n := wrote.Load(); n > 32<<20 {
		t.Errorf("the backend could write %d bytes", n)
	}
	before := wrote.Load()
	if _, err := io.CopyN(io.Discard, w.R, before+1<<20); err != nil {
		t.Fatal(err)
	}
	if wrote.Load() <= before {
		t.Error("a client that reads again gets nothing more")
	}
	_ = w.Close()
	<-gone // vanishing ends the upstream's connection too
}

func TestAClientThatVanishesCancels(t *testing.T) {
	requested, gone := make(chan struct{}), make(chan struct{})
	g := start(t, settings{}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		close(requested)
		<-r.Context().Done()
		close(gone)
	}))
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-requested
	_ = w.Close()
	<-gone
	trial.Eventually(t, "it is counted", func() bool { return g.proxy.Stats().Clusters["main"].Canceled == 1 })
}

func TestAHalfClosedClientIsAnsweredIfConfigured(t *testing.T) {
	g := start(t, settings{front: downstream.Config{HalfClose: true}}, echoServer(t))
	w := g.dial()
	w.Send("GET /length HTTP/1.1\r\nHost: a\r\n\r\n")
	_ = w.Conn.(*net.TCPConn).CloseWrite()
	if res, body := w.Answer("GET"); res.StatusCode != 200 || len(body) != 30 {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	w.EOF()
}

func TestPipelinedAnswersComeInOrder(t *testing.T) {
	release := make(chan struct{})
	g := start(t, settings{routes: []policy.RouteConfig{
		{Path: "/static", Reply: policy.Reply{Status: 200, Body: "static"}}, {Cluster: "main"},
	}}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-release
		}
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	paths := []string{"/static", "/slow", "/static", "/healthz", "/a", "/static", "/b", "/missing", "/static"}
	var all strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&all, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", p)
	}
	w := g.dial()
	w.Send(all.String())
	for i, p := range paths {
		want := p
		switch p {
		case "/static":
			want = "static"
		case "/healthz":
			want = "ok\n"
		}
		if i == 1 {
			close(release)
		}
		if _, body := w.Answer("GET"); body != want {
			t.Errorf("answer %d is %q, want %q", i, body, want)
		}
	}
}

func TestPipelinedRepliesLeaveInOneWrite(t *testing.T) {
	g := start(t, settings{loops: eventloop.Config{Loops: 1}, routes: []policy.RouteConfig{{Reply: policy.Reply{Status: 200, Body: "x"}}}})
	w := g.dial()
	one := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	w.Send(one)
	w.Answer("GET")
	before := g.loops.Loops()[0].Stats()
	w.Send(strings.Repeat(one, 16))
	for range 16 {
		w.Answer("GET")
	}
	var after eventloop.Stats
	trial.Eventually(t, "the loop has counted", func() bool { after = g.loops.Loops()[0].Stats(); return after.Reads > before.Reads })
	if reads, sends := after.Reads-before.Reads, after.Sends-before.Sends; sends > reads {
		t.Errorf("%d reads were answered in %d writes", reads, sends)
	}
}

func TestBodiesAreCountedWhileTheyStream(t *testing.T) {
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", Limits: policy.Limits{MaxBody: 1000}}}}, echoServer(t))
	f := func(head, body string, status int) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send("POST /length HTTP/1.1\r\nHost: a\r\n" + head + "\r\n" + body)
		if res, _ := w.Answer("POST"); res.StatusCode != status {
			t.Errorf("%q: %d, want %d", head, res.StatusCode, status)
		}
	}
	chunk := "3e8\r\n" + strings.Repeat("x", 1000) + "\r\n"
	f("Content-Length: 1000\r\n", strings.Repeat("x", 1000), 200)
	f("Content-Length: 1001\r\n", "", 413)
	f("Transfer-Encoding: chunked\r\n", chunk+"0\r\n\r\n", 200)
	f("Transfer-Encoding: chunked\r\n", chunk+"5\r\nx", 413)
	f("Transfer-Encoding: chunked\r\n", chunk+"1\r\nx\r\n0\r\n\r\n", 413)
	f("Transfer-Encoding: chunked\r\n", "zz\r\n", 400)
}

func TestAnEarlyReplyComesWhileTheBodyIsSent(t *testing.T) {
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, err := http.ReadRequest(w.R); err != nil {
			return
		}
		w.TrySend("HTTP/1.1 401 Unauthorized\nContent-Length: 3\n\nno!")
		_, _ = io.Copy(io.Discard, w.R)
	})
	g := start(t, settings{}, peer)
	w := g.dial()
	w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome of it")
	res, body := w.Answer("POST")
	if res.StatusCode != 401 || body != "no!" || !res.Close {
		t.Errorf("%d %q, close %v", res.StatusCode, body, res.Close)
	}
	w.EOF()
}

func TestBothDirectionsStreamAtOnce(t *testing.T) {
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		req, err := http.ReadRequest(w.R)
		if err != nil {
			return
		}
		w.TrySend("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n")
		buf := make([]byte, 1024)
		for {
			n, err := req.Body.Read(buf)
			if n > 0 {
				fmt.Fprintf(w, "%x\r\n%s\r\n", n, buf[:n])
			}
			if err != nil {
				break
			}
		}
		w.TrySend("0\n\n")
	})
	g := start(t, settings{}, peer)
	w := g.dial()
	w.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	res, err := http.ReadResponse(w.R, nil)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 5)
	for _, s := range []string{"hello", "world", "again"} {
		if _, err := io.ReadFull(res.Body, buf); err != nil || string(buf) != s {
			t.Fatalf("%q, %v, want %q", buf, err, s)
		}
		switch s {
		case "hello":
			w.Send("5\r\nworld\r\n")
		case "world":
			w.Send("5\r\nagain\r\n")
		default:
			w.Send("0\r\n\r\n")
		}
	}
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	silent := wiretest.Peer(t, func(_ int, w *wiretest.Conn) { _, _ = io.Copy(io.Discard, w.R) })
	halting := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, _, ok := w.Request(); ok {
			w.TrySend("HTTP/1.1 200 OK\nContent-Length: 10\n\nhalf")
			_, _ = io.Copy(io.Discard, w.R)
		}
	})
	refusing := refused(t)
	once := upstream.RetryConfig{Attempts: 1}
	g := start(t, settings{
		more: []upstream.Config{
			{Name: "silent", Retry: once, Peers: []upstream.PeerConfig{{Address: silent}}},
			{Name: "halting", Retry: once, Peers: []upstream.PeerConfig{{Address: halting}}},
			{Name: "refusing", Retry: once, Peers: []upstream.PeerConfig{{Address: refusing}}},
		},
		routes: []policy.RouteConfig{
			{Path: "/first", Cluster: "silent", Timeouts: policy.Timeouts{FirstByte: 1e8}},
			{Path: "/total", Cluster: "silent", Timeouts: policy.Timeouts{Total: 1e8}},
			{Path: "/idle", Cluster: "halting", Timeouts: policy.Timeouts{Idle: 1e8}},
			{Path: "/refused", Cluster: "refusing"},
		},
	})
	f := func(path string, status int) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		res, err := http.ReadResponse(w.R, nil)
		if err != nil || res.StatusCode != status {
			t.Fatalf("%s: %v, %v, want %d", path, res, err, status)
		}
		if _, err := io.ReadAll(res.Body); (err != nil) != (status == 200) {
			t.Errorf("%s: the body ends with %v", path, err)
		}
	}
	f("/first", 504)
	f("/total", 504)
	f("/idle", 200)
	f("/refused", 502)
	failed := g.proxy.Stats().Clusters["silent"].Failed
	if failed[proxy.FirstByte.String()] != 1 || failed[proxy.TotalTimeout.String()] != 1 {
		t.Errorf("counted %v", failed)
	}
}

func TestASlowBodyEndsItsRequest(t *testing.T) {
	requested, gone := make(chan struct{}), make(chan struct{})
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		_ = w.Head()
		close(requested)
		_, _ = io.Copy(io.Discard, w.R)
		close(gone)
	})
	g := start(t, settings{front: downstream.Config{BodyTimeout: 2e8}}, peer)
	w := g.dial()
	w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nsome")
	<-requested
	if res, _ := w.Answer("POST"); res.StatusCode != 408 || !res.Close {
		t.Errorf("%d, close %v", res.StatusCode, res.Close)
	}
	<-gone
}

func TestAPeerThatTakesNothingIsGivenUp(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) { <-over })
	g := start(t, settings{
		cluster: upstream.Config{Retry: upstream.RetryConfig{Attempts: 1}, Timeouts: upstream.TimeoutConfig{Write: 3e8}},
		routes:  []policy.RouteConfig{{Cluster: "main", Limits: policy.Limits{MaxBody: -1}}}}, peer)
	w := g.dial()
	w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
	go func() { _, _ = io.CopyN(w.Conn, zeros{}, 100_000_000) }()
	if res, _ := w.Answer("POST"); res.StatusCode != 504 {
		t.Errorf("%d", res.StatusCode)
	}
	close(over)
	if n := g.proxy.Stats().Clusters["main"].Failed[proxy.WriteTimeout.String()]; n != 1 {
		t.Errorf("%d counted", n)
	}
	_ = w.Close()
}

// A client may take its time with a body, if it keeps to the front's bounds.
func TestAPauseInTheBodyIsNotThePeers(t *testing.T) {
	t.Parallel()
	g := start(t, settings{cluster: upstream.Config{Timeouts: upstream.TimeoutConfig{Write: 1e8, FirstByte: 1e8}}}, echoServer(t))
	w := g.dial()
	w.Send("POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello")
	time.Sleep(500 * time.Millisecond) // longer than both
	w.Send("world")
	if res, _ := w.Answer("POST"); res.StatusCode != 200 || res.Header.Get("X-Body") != "helloworld" {
		t.Errorf("%d %q", res.StatusCode, res.Header.Get("X-Body"))
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// refused is an address without a listener.
func refused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
