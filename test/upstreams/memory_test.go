package upstreams

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

const (
	stuck     = 50
	stuckSize = 100 << 20
	// What all of them together may take: for each way the proxy's buffer, as much
	// again for what is on its way between reading and writing, and some for the rest.
	stuckBudget = 2*stuck*2*(256<<10) + 32<<20
)

// A reservoir is two backends: one gives 100 MB as fast as they are taken, the other
// takes none of what it is given until it is released.
type reservoir struct {
	source, sink string // addresses

	given         atomic.Int64 // bytes
	giving, quit  atomic.Int64 // requests of the source: started, and left by their clients
	taking, short atomic.Int64 // requests of the sink: started, and ended before they were complete
	take          chan struct{}
}

func newReservoir(t *testing.T) *reservoir {
	t.Helper()
	b := &reservoir{take: make(chan struct{})}
	piece := []byte(strings.Repeat("0123456789abcdef", 2048))
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.giving.Add(1)
		w.Header().Set("Content-Length", fmt.Sprint(stuckSize))
		for n := 0; n < stuckSize; n += len(piece) {
			if _, err := w.Write(piece); err != nil {
				b.quit.Add(1)
				return
			}
			b.given.Add(int64(len(piece)))
		}
	}))
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	b.source = strings.TrimPrefix(ts.URL, "http://")
	b.sink = stageScript(t, func(_ *net.TCPConn, r *bufio.Reader) {
		b.taking.Add(1)
		select {
		case <-b.take:
		case <-t.Context().Done():
			return
		}
		if n, _ := io.Copy(io.Discard, r); n < stuckSize {
			b.short.Add(1)
		}
	})
	return b
}

// TestStuckTransfersHoldBoundedMemoryAndAbandonedOnesEnd has 50 clients that do not
// read and 50 backends that do not, with 100 MB each to move, and then lets the
// clients vanish.
func TestStuckTransfersHoldBoundedMemoryAndAbandonedOnesEnd(t *testing.T) {
	b := newReservoir(t)
	g := judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Config: map[string]any{
		"routes": []any{
			map[string]any{"path": "/down", "cluster": "source"},
			map[string]any{"path": "/up", "cluster": "sink", "limits": map[string]any{"max_body": -1}},
		},
		"clusters": []any{
			map[string]any{"name": "source", "peers": []any{map[string]any{"address": b.source}}},
			map[string]any{"name": "sink", "peers": []any{map[string]any{"address": b.sink}}},
		},
	}})
	before := g.Memory()
	var clients []net.Conn
	var pushed atomic.Int64
	dial := func(head string) net.Conn {
		c, err := net.Dial("tcp", g.Public)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
		if _, err := io.WriteString(c, head); err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Cleanup(func() {
		for _, c := range clients {
			_ = c.Close()
		}
	})
	for range stuck {
		dial("GET /down HTTP/1.1\r\nHost: a\r\n\r\n")
		c := dial(fmt.Sprintf("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", stuckSize))
		go func() { // ends when c is closed
			piece := make([]byte, 32<<10)
			for {
				n, err := c.Write(piece)
				pushed.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
	judge.Eventually(t, 30*time.Second, "all are under way", func() bool { return b.giving.Load() == stuck && b.taking.Load() == stuck })
	var last int64
	judge.Eventually(t, 30*time.Second, "nothing moves any more", func() bool {
		now := b.given.Load() + pushed.Load()
		still := now == last
		last = now
		<-time.After(300 * time.Millisecond)
		return still
	})
	took := g.Memory() - before
	t.Logf("%d transfers each way: %.1f MB given, %.1f MB pushed, %.1f MB held by the gateway (budget %.0f MB)",
		stuck, float64(b.given.Load())/1e6, float64(pushed.Load())/1e6, float64(took)/1e6, float64(stuckBudget)/1e6)
	if took > stuckBudget {
		t.Errorf("%d MB are held", took>>20)
	}
	if n := b.quit.Load() + b.short.Load(); n != 0 {
		t.Errorf("%d transfers have ended already", n)
	}
	for _, c := range clients {
		// A reset: an orderly end would appear behind the bytes that are not read.
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	vanished := time.Now()
	judge.Eventually(t, 20*time.Second, "the source sees all of them leave", func() bool { return b.quit.Load() == stuck })
	t.Logf("the source saw all leave after %s", time.Since(vanished).Round(time.Millisecond))
	for name, address := range map[string]string{"source": b.source, "sink": b.sink} {
		judge.Eventually(t, 10*time.Second, "nothing is in flight at the "+name, func() bool { return peers(t, g, name)[address].InFlight == 0 })
		if n := g.Series("weir_upstream_canceled_total", fmt.Sprintf("cluster=%q", name)); n != stuck {
			t.Errorf("%s: weir_upstream_canceled_total is %v", name, n)
		}
	}
	close(b.take)
	judge.Eventually(t, 20*time.Second, "the sink gets no more than was sent", func() bool { return b.short.Load() == stuck })
}

// TestAVanishedClientCancelsItsRequest is about requests that wait: before the
// reply's head, within a stream, and with a body under way.
func TestAVanishedClientCancelsItsRequest(t *testing.T) {
	t.Parallel()
	var began, ended atomic.Int64
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		began.Add(1)
		if r.URL.Path == "/upload" {
			_, _ = io.Copy(io.Discard, r.Body)
		} else {
			<-r.Context().Done()
		}
		ended.Add(1)
	}))
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	address := strings.TrimPrefix(ts.URL, "http://")
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{
		"routes":   []any{map[string]any{"path": "/*", "cluster": "b"}},
		"clusters": []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": address}}}},
	}})
	f := func(request string, reset bool) {
		t.Helper()
		c, err := net.Dial("tcp", g.Public)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		n := began.Load()
		judge.Eventually(t, 10*time.Second, "it began", func() bool { return began.Load() > ended.Load() })
		if reset {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		_ = c.Close()
		judge.Eventually(t, 10*time.Second, fmt.Sprintf("request %d (%.20q) is cancelled", n, request), func() bool { return ended.Load() == began.Load() })
	}
	for _, reset := range []bool{false, true} {
		f("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n", reset)
		f("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", reset)
		f("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhello", reset)
		f("POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", reset)
	}
	judge.Eventually(t, 10*time.Second, "nothing is in flight", func() bool { return peers(t, g, "b")[address].InFlight == 0 })
}

// TestAnUploadThatIsNotReadEnds has a client leave in order behind bytes that the
// backend does not take: the gateway, which does not read them, cannot see it. What
// bounds the wait is timeouts.write.
func TestAnUploadThatIsNotReadEnds(t *testing.T) {
	t.Parallel()
	b := newReservoir(t)
	g := judge.New(t, judge.Options{Memory: true, Config: map[string]any{
		"routes":   []any{map[string]any{"path": "/up", "cluster": "sink", "limits": map[string]any{"max_body": -1}}},
		"clusters": []any{map[string]any{"name": "sink", "peers": []any{map[string]any{"address": b.sink}}, "timeouts": map[string]any{"write": "2s"}}},
	}})
	c, err := net.Dial("tcp", g.Public)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // by then nothing more is read
	if _, err := fmt.Fprintf(c, "POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", stuckSize); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Write(make([]byte, stuckSize)); err == nil {
		t.Fatalf("all %d bytes were taken", n)
	}
	if n := peers(t, g, "sink")[b.sink].InFlight; n != 1 {
		t.Errorf("%d are in flight, want 1", n)
	}
	_ = c.Close()
	judge.Eventually(t, 30*time.Second, "it is given up", func() bool { return peers(t, g, "sink")[b.sink].InFlight == 0 })
	if n := g.Series("weir_upstream_failed_total", `cause="write_timeout"`) + g.Series("weir_upstream_canceled_total"); n != 1 {
		t.Errorf("it is counted %v times", n)
	}
}
