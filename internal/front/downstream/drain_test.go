package downstream_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestDrainEndsEventStreamsBehindAnEvent(t *testing.T) {
	t.Parallel()
	var streams sync.WaitGroup
	half := make(chan struct{})
	peer := wiretest.Peer(t, func(_ int, c *wiretest.Conn) {
		req, _, ok := c.Request()
		if !ok {
			return
		}
		c.TrySend("HTTP/1.1 200 OK\nContent-Type: text/event-stream; charset=utf-8\n\n")
		_, _ = io.WriteString(c, "data: 1\n\n")
		if req.URL.Path == "/half" {
			_, _ = io.WriteString(c, "data: ha")
			<-half
			_, _ = io.WriteString(c, "lf\n\n")
		}
		_, _ = io.Copy(io.Discard, c.R) // until the gateway goes
	})
	g := start(t, settings{}, peer)
	f := func(version, path, want string) {
		t.Helper()
		w := g.dial()
		w.Send("GET " + path + " " + version + "\r\nHost: a\r\n\r\n")
		res := w.Response()
		b := make([]byte, len("data: 1\n\n"))
		if _, err := io.ReadFull(res.Body, b); err != nil {
			t.Fatal(err)
		}
		streams.Go(func() {
			rest, err := io.ReadAll(res.Body)
			got := string(b) + string(rest)
			events, last, _ := strings.Cut(got, "retry: ")
			if err != nil || events != want || !strings.HasSuffix(last, "\n\n") {
				t.Errorf("%s %s: %q, %v, want %q", version, path, got, err, want)
			}
		})
	}
	for range 5 {
		f("HTTP/1.1", "/", "data: 1\n\n")
		f("HTTP/1.0", "/", "data: 1\n\n")
		f("HTTP/1.1", "/half", "data: 1\n\ndata: half\n\n")
	}
	g.front.Drain(g.loops.Loops(), wire.DrainPlan{Over: 3 * time.Second})
	trial.Eventually(t, "some have left", func() bool { return g.front.Waiting() < 12 })
	close(half)
	streams.Wait()
	trial.Eventually(t, "the backend's connections are gone", func() bool { return g.proxy.Stats().Open == 0 })
	// A new one is closed, too.
	f("HTTP/1.1", "/", "data: 1\n\n")
	streams.Wait()
}

// TestEventStreamsAreCountedUntilTheyEnd has event streams that end by their client, their backend or
// an error: a drain would wait for one that is still counted.
func TestEventStreamsAreCountedUntilTheyEnd(t *testing.T) {
	end := make(chan struct{})
	g := start(t, settings{}, wiretest.Peer(t, func(_ int, c *wiretest.Conn) {
		req, _, ok := c.Request()
		if !ok {
			return
		}
		c.TrySend("HTTP/1.1 200 OK\nContent-Type: text/event-stream\nTransfer-Encoding: chunked\n\n1\n:\n")
		<-end
		if req.URL.Path == "/complete" {
			c.TrySend("0\n\n")
		}
	}))
	f := func(path string) *wiretest.Conn {
		w := g.dial()
		w.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		if _, err := io.ReadFull(w.Response().Body, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return w
	}
	client := f("/")
	f("/complete")
	f("/cut")
	if n := g.front.Streams(); n != 3 {
		t.Fatalf("%d streams are counted, want 3", n)
	}
	client.Close()
	trial.Eventually(t, "the client's is over", func() bool { return g.front.Streams() == 2 })
	close(end)
	trial.Eventually(t, "all are over", func() bool { return g.front.Streams() == 0 })
}

func TestDrainLeavesOtherRepliesTheirEnd(t *testing.T) {
	more := make(chan struct{})
	g := start(t, settings{}, backend(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "a")
		w.(http.Flusher).Flush()
		<-more
		_, _ = io.WriteString(w, "b")
	}))
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	res := w.Response()
	one := make([]byte, 1)
	_, _ = io.ReadFull(res.Body, one)
	g.front.Drain(g.loops.Loops(), wire.DrainPlan{})
	done := make(chan struct{})
	for _, l := range g.loops.Loops() {
		l.Post(func() { done <- struct{}{} })
		<-done
	}
	close(more)
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "b" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestDrainClosesWebSocketsBetweenFrames(t *testing.T) {
	t.Parallel()
	reported := make(chan string, 20)
	half := make(chan struct{})
	peer := wiretest.Peer(t, func(_ int, c *wiretest.Conn) {
		req, err := http.ReadRequest(c.R)
		if err != nil {
			return
		}
		c.TrySend("HTTP/1.1 101 Switching Protocols\nUpgrade: " + req.Header.Get("Upgrade") + "\nConnection: Upgrade\n\n")
		b := websocket.AppendFrame(nil, websocket.OpText, []byte(strings.Repeat("x", 300)))
		if req.URL.Path == "/half" {
			_, _ = c.Write(b[:100])
			<-half
			_, _ = c.Write(b[100:])
		} else {
			_, _ = c.Write(b)
		}
		rest, _ := io.ReadAll(c.R)
		reported <- fmt.Sprintf("%x", rest[:min(2, len(rest))])
	})
	g := start(t, settings{}, peer)
	var all []*wiretest.Conn
	for i := range 12 {
		w := g.dial()
		path := "/"
		if i%3 == 0 {
			path = "/half"
		}
		w.Upgrade(path, "")
		all = append(all, w)
	}
	trial.Eventually(t, "the tunnels stand", func() bool { return g.proxy.Stats().Tunnels == 12 })
	all[1].Send("\x81\x85half") // a frame of the client's that is incomplete
	g.proxy.Drain(3 * time.Second)
	trial.Eventually(t, "some have left", func() bool { return g.proxy.Stats().Tunnels < 9 })
	close(half)
	for i, w := range all {
		if op, b := w.Frame(); op != websocket.OpText || len(b) != 300 {
			t.Errorf("%d: frame %v of %d bytes", i, op, len(b))
		}
		op, b := w.Frame()
		if op != websocket.OpClose || len(b) < 2 || int(b[0])<<8|int(b[1]) != 1012 {
			t.Errorf("%d: %v %q, want close 1012", i, op, b)
		}
		w.EOF()
		w.Close()
	}
	closed := 0
	for range all {
		if <-reported == "8882" {
			closed++
		}
	}
	if closed != 11 {
		t.Errorf("%d backends were notified with a frame, want 11", closed)
	}
	trial.Eventually(t, "nothing is left", func() bool { s := g.proxy.Stats(); return s.Open == 0 && s.Tunnels == 0 })
}

func TestDrainEndsAFrameThatNeverEnds(t *testing.T) {
	t.Parallel()
	peer := wiretest.Peer(t, func(_ int, c *wiretest.Conn) {
		if _, err := http.ReadRequest(c.R); err != nil {
			return
		}
		c.TrySend("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\n")
		_, _ = c.Write(websocket.AppendFrame(nil, websocket.OpText, make([]byte, 300))[:100])
		_, _ = io.Copy(io.Discard, c.R)
	})
	g := start(t, settings{}, peer)
	w := g.dial()
	w.Upgrade("/", "")
	trial.Eventually(t, "the tunnel is open", func() bool { return g.proxy.Stats().Tunnels == 1 })
	g.proxy.Drain(300 * time.Millisecond)
	if b, err := io.ReadAll(w.R); err != nil || len(b) != 100 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
