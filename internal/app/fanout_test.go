package app

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// subscribers opens n streams over each transport. The SSE ones take what query adds.
func (g *gateway) subscribers(t *testing.T, n int, query string) (streams, sockets []*wiretest.Conn) {
	t.Helper()
	for range n {
		s := g.dial(t)
		s.Send(wiretest.CRLF("GET /sse?channel=news" + query + " HTTP/1.1\nHost: a\n\n"))
		if res := s.Response(); res.StatusCode != 200 {
			t.Fatalf("GET /sse: %d", res.StatusCode)
		}
		s.Block()
		streams = append(streams, s)
		sockets = append(sockets, g.ws(t, "channel=news", ""))
	}
	return streams, sockets
}

// put publishes without a connection, so that nothing else is sent.
func (g *gateway) put(t *testing.T, channel, data string) {
	t.Helper()
	done := make(chan error, 1)
	g.hub.Publish(hub.Publication{Channel: channel, Data: []byte(data)}, func(_ hub.Position, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// total sums one counter of the loops, as of ticks that come after now.
func (g *gateway) total(v func(eventloop.Stats) uint64) (n uint64) {
	for range 2 { // counters are published at the end of a tick
		var ticked sync.WaitGroup
		for _, l := range g.loops.Loops() {
			ticked.Add(1)
			l.Post(ticked.Done)
		}
		ticked.Wait()
	}
	for _, l := range g.loops.Loops() {
		n += v(l.Stats())
	}
	return n
}

func sends(s eventloop.Stats) uint64 { return s.Sends }

func TestOnePublishIsEncodedOncePerFormatAndSentOncePerSubscriber(t *testing.T) {
	g := start(t, nil)
	const n = 40
	streams, sockets := g.subscribers(t, n, "")
	envelopes, _ := g.subscribers(t, n, "&envelope=1")
	for i := range 5 {
		sent, encoded := g.total(sends), g.hub.Stats().Encoded
		data := fmt.Sprintf(`{"n":%d}`, i)
		g.put(t, "news", data)
		for _, s := range slices.Concat(streams, envelopes) {
			if got := s.Block(); !strings.Contains(got, data) {
				t.Fatalf("SSE: %q", got)
			}
		}
		for _, w := range sockets {
			if _, b := w.Frame(); !bytes.Contains(b, []byte(data)) {
				t.Fatalf("WebSocket: %s", b)
			}
		}
		// The sockets of the second call of subscribers count too.
		if got := g.total(sends) - sent; got != 4*n {
			t.Errorf("publish %d: %d sends to %d subscribers", i, got, 4*n)
		}
		if got := g.hub.Stats().Encoded - encoded; got != 3 {
			t.Errorf("publish %d: encoded %d times in 3 formats", i, got)
		}
	}
}

func TestASubscriberThatKeepsUpCostsNoAllocation(t *testing.T) {
	const publishes = 40
	measure := func(n int) uint64 {
		g := start(t, nil)
		g.subscribers(t, n/2, "") // they do not read: the kernel holds what little this is
		least := ^uint64(0)
		for range 5 {
			delivered := g.hub.Stats().Delivered
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for i := range publishes {
				g.put(t, "news", `{"a":1}`)
				for g.hub.Stats().Delivered < delivered+uint64((i+1)*n) {
					runtime.Gosched()
				}
			}
			runtime.ReadMemStats(&after)
			least = min(least, after.Mallocs-before.Mallocs)
		}
		return least
	}
	few, many := measure(10), measure(410)
	t.Logf("%d publishes: %d allocations for 10 subscribers, %d for 410", publishes, few, many)
	// 16,000 more deliveries: one allocation each would show two hundred times over.
	if many > few+80 {
		t.Errorf("%d allocations for 10 subscribers, %d for 410", few, many)
	}
}

func TestPublishesOutstandingTogetherLeaveInOneSend(t *testing.T) {
	g := start(t, nil)
	const n, messages = 10, 32
	streams, sockets := g.subscribers(t, n, "")
	several := g.dial(t)
	several.Send(wiretest.CRLF("GET /sse?channel=news&channel=other HTTP/1.1\nHost: a\n\n"))
	several.Response()
	several.Block()
	sent := g.total(sends)
	hold := make(chan struct{})
	for _, l := range g.loops.Loops() { // the loops are busy while publishes come in
		l.Post(func() { <-hold })
	}
	for i := range messages {
		g.put(t, "news", fmt.Sprint(i))
	}
	close(hold)
	for i := range messages {
		for _, s := range streams {
			if got := s.Block(); !strings.HasSuffix(got, fmt.Sprintf("data: %d\n", i)) {
				t.Fatalf("SSE: %q, want %d", got, i)
			}
		}
		for _, w := range sockets {
			if _, b := w.Frame(); !bytes.HasSuffix(b, fmt.Appendf(nil, `"data":%d}`, i)) {
				t.Fatalf("WebSocket: %s, want %d", b, i)
			}
		}
		if got := several.Block(); !strings.Contains(got, fmt.Sprintf(`"data":%d}`, i)) {
			t.Fatalf("several channels: %q, want %d", got, i)
		}
	}
	if got := g.total(sends) - sent; got > 3*(2*n+1) {
		t.Errorf("%d sends of %d messages to %d subscribers: not merged", got, messages, 2*n+1)
	}
}

// small makes sockets and queues small, so that a slow reader is soon found.
func small(c *config.Config) {
	c.EventLoop.NotSentLowat = 4 << 10
	c.Namespaces[0].QueueMessages, c.Namespaces[0].QueueBytes, c.Namespaces[0].MaxMessageBytes = 64, 128<<10, 64<<10
}

// slowDial connects with a receive window that is soon full. Below the size of a
// segment, which on loopback is 64 KiB, it would also be slow to open again.
func (g *gateway) slowDial(t *testing.T, request string) *wiretest.Conn {
	t.Helper()
	w := g.dial(t)
	_ = w.Conn.(*net.TCPConn).SetReadBuffer(128 << 10)
	w.Send(wiretest.CRLF(request))
	return w
}

// hurry opens the window again.
func hurry(w *wiretest.Conn) { _ = w.Conn.(*net.TCPConn).SetReadBuffer(4 << 20) }

func TestASlowReaderIsClosedAfterAWholeFrameAndOthersAreNot(t *testing.T) {
	g := start(t, small)
	slowSSE := g.slowDial(t, "GET /sse?channel=news HTTP/1.1\nHost: a\n\n")
	slowWS := g.slowDial(t, "GET /ws?channel=news HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"\n")
	slowSSE.Response()
	slowSSE.Block()
	slowWS.Response()
	fast := g.dial(t)
	fast.Send(wiretest.CRLF("GET /sse?channel=news HTTP/1.1\nHost: a\n\n"))
	fast.Response()
	fast.Block()

	var held atomic.Int64
	payload := `"` + strings.Repeat("x", 3000) + `"`
	published := 0
	for ; g.push.Stats().TooSlow < 2; published++ {
		if published == 20_000 {
			t.Fatal("the slow readers are never closed")
		}
		g.put(t, "news", payload)
		if got := fast.Block(); !strings.Contains(got, payload) { // it paces the publisher
			t.Fatalf("the fast reader got %.80q", got)
		}
		held.Store(max(held.Load(), g.push.Stats().QueuedBytes))
	}
	if got := held.Load(); got == 0 || got > 2*128<<10 {
		t.Errorf("%d bytes were held for two readers of at most %d", got, 128<<10)
	}
	if st := g.push.Stats(); st.Queued != 0 || st.QueuedBytes != 0 {
		t.Errorf("%d messages of %d bytes are still held", st.Queued, st.QueuedBytes)
	}
	hurry(slowSSE)
	hurry(slowWS)
	blocks := 0
	for {
		b := slowSSE.Block()
		if strings.Contains(b, "event: end\n") {
			if !strings.Contains(b, `"code":4408`) || !strings.Contains(b, "retry: ") {
				t.Errorf("last words %q, want 4408", b)
			}
			break
		}
		if !strings.HasSuffix(b, "data: "+payload+"\n") || !strings.HasPrefix(b, "id: ") {
			t.Fatalf("block %d is torn: %.60q of %d bytes", blocks, b, len(b))
		}
		blocks++
	}
	if !slowSSE.Closed() || blocks == 0 || blocks >= published {
		t.Errorf("after %d of %d messages the stream continues", blocks, published)
	}
	if got := slowWS.CloseCode(); got != 4408 {
		t.Errorf("WebSocket: %d, want 4408", got)
	}
	g.put(t, "news", "1")
	if got := fast.Block(); !strings.HasSuffix(got, "data: 1\n") {
		t.Errorf("the fast reader got %q", got)
	}
	trial.Eventually(t, "the slow ones are gone", func() bool { st := g.push.Stats(); return st.SSE == 1 && st.WebSocket == 0 })
}

func TestAReaderThatPausesGetsEverythingInOrder(t *testing.T) {
	g := start(t, func(c *config.Config) {
		small(c)
		c.Namespaces[0].QueueMessages, c.Namespaces[0].QueueBytes = 100_000, 64<<20
	})
	s := g.slowDial(t, "GET /sse?channel=news HTTP/1.1\nHost: a\n\n")
	s.Response()
	s.Block()
	many := g.slowDial(t, "GET /sse?channel=news&channel=orders:a HTTP/1.1\nHost: a\n\n")
	many.Response()
	many.Block()
	payload := strings.Repeat("x", 2000)
	n := 0
	for ; g.push.Stats().Queued < 100; n++ {
		if n == 20_000 {
			t.Fatal("nothing is ever held")
		}
		g.put(t, "news", fmt.Sprintf(`"%d %s"`, n, payload))
	}
	hurry(s)
	hurry(many)
	for i := range n {
		if got := s.Block(); !strings.Contains(got, fmt.Sprintf(`data: "%d x`, i)) {
			t.Fatalf("block %.60q, want %d", got, i)
		}
		if got := many.Block(); !strings.Contains(got, fmt.Sprintf(`"data":"%d x`, i)) || !strings.Contains(got, "~") {
			t.Fatalf("several namespaces: block %.90q, want %d with the position in both", got, i)
		}
	}
	if st := g.push.Stats(); st.Queued != 0 || st.QueuedBytes != 0 || st.TooSlow != 0 {
		t.Errorf("after catching up: %+v", st)
	}
}

func TestAClientThatOnlySendsPingsIsThrottled(t *testing.T) {
	g := start(t, small)
	w := g.slowDial(t, "GET /ws?channel=news HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+"\n")
	w.Response()
	_ = w.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	frame := websocket.AppendMaskedFrame(nil, websocket.OpPing, bytes.Repeat([]byte("x"), 125), [4]byte{1})
	frames := bytes.Repeat(frame, 500)
	for {
		if _, err := w.Write(frames); err != nil {
			break // it does not read on
		}
	}
	if got := g.total(func(s eventloop.Stats) uint64 { return s.QueueFull }); got != 0 {
		t.Error("the answers filled the write queue")
	}
	if st := g.push.Stats(); st.WebSocket != 1 {
		t.Errorf("%d WebSockets, want 1", st.WebSocket)
	}
	hurry(w)
	for range 2000 { // as soon as it takes the answers, it is read again
		if op, _ := w.Frame(); op != websocket.OpPong {
			t.Fatalf("%v, want pongs", op)
		}
	}
}
