package loadgen_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

func TestStreamsAreHeldAndTheirMessagesCounted(t *testing.T) {
	for _, kind := range []loadgen.Kind{loadgen.SSE, loadgen.WebSocket} {
		w := newWorld(t, nil)
		g := generator(t, loadgen.Spec{Kind: kind, Target: w.URL + "/sub/room", Conns: 20})
		if err := g.Connect(context.Background()); err != nil {
			t.Fatal(err)
		}
		trial.Eventually(t, "20 streams", func() bool { return w.connected() == 20 })
		go func() {
			for range 10 {
				w.mu.Lock()
				w.publish("room", []byte("tick"))
				w.mu.Unlock()
			}
		}()
		win, err := g.Measure(context.Background(), loadgen.Load{}, 300*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		// What came between Connect and Measure belongs to no window.
		if n := win.Delivery.Received + win.Delivery.Carried; n > 200 || win.Conns < 19 || win.Connect.TotalCount() != 20 || len(win.Errors) > 0 {
			t.Errorf("%s: %d messages on %.1f streams, %d connects, errors %v", kind, n, win.Conns, win.Connect.TotalCount(), win.Errors)
		}
		_ = g.Close()
		trial.Eventually(t, "the streams to end", func() bool { return w.connected() == 0 })
	}
}

func TestReceivedMessagesOfHeldStreams(t *testing.T) {
	w := newWorld(t, nil)
	g := generator(t, loadgen.Spec{Kind: loadgen.SSE, Target: w.URL + "/sub/room", Conns: 10, Warmup: time.Millisecond, Duration: 500 * time.Millisecond})
	if err := g.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(150*time.Millisecond, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for range 7 {
			w.publish("room", []byte("tick"))
		}
	})
	r, err := g.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Total.Delivery.Received; n != 70 {
		t.Errorf("%d messages were received, want 70", n)
	}
}

func TestEndsOfStreamsAreCountedByCode(t *testing.T) {
	f := func(kind loadgen.Kind, want string) {
		t.Helper()
		w := newWorld(t, nil)
		g := generator(t, loadgen.Spec{Kind: kind, Target: w.URL + "/sub/room", Conns: 6, Duration: 300 * time.Millisecond})
		if err := g.Connect(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(100*time.Millisecond, w.kick)
		r, err := g.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if r.Total.Delivery.Closes[want] != 6 || r.Total.Errors["disconnect "+want] != 6 {
			t.Errorf("%s: closes %v, errors %v; want 6 of %q", kind, r.Total.Delivery.Closes, r.Total.Errors, want)
		}
	}
	f(loadgen.WebSocket, "1012")
	f(loadgen.SSE, "end")
}

func TestStreamsResumeWithTheirLastEventID(t *testing.T) {
	w := newWorld(t, func(w *world) { w.head = "retry: 30\n\n" })
	g := generator(t, loadgen.Spec{Kind: loadgen.SSE, Target: w.URL + "/sub/room", Conns: 5, Reconnect: true, Duration: 600 * time.Millisecond})
	if err := g.Connect(context.Background()); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() {
		w.mu.Lock()
		w.publish("room", []byte("one"))
		w.publish("room", []byte("two"))
		w.mu.Unlock()
		w.kick()
	})
	r, err := g.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	d := r.Total.Delivery
	if d.Reconnects != 5 || d.Resumed != 5 || d.Received != 10 || d.Closes["end"] != 5 || len(r.Total.Errors) > 0 {
		t.Errorf("%+v, errors %v; want 5 reconnects, all resumed", d, r.Total.Errors)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := strings.Join(w.last, ","); got != ",,,,,e-2,e-2,e-2,e-2,e-2" {
		t.Errorf("Last-Event-ID by stream: %s", got)
	}
}

// TestRetryIsHonoured looks at when streams come back.
func TestRetryIsHonoured(t *testing.T) {
	var mu sync.Mutex
	var came []time.Time
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		came = append(came, time.Now())
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "retry: 300\n\n")
	}))
	t.Cleanup(s.Close)
	g := generator(t, loadgen.Spec{Kind: loadgen.SSE, Target: s.URL, Reconnect: true, Duration: 800 * time.Millisecond})
	if _, err := g.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	_ = g.Close()
	mu.Lock()
	defer mu.Unlock()
	if len(came) < 2 || len(came) > 4 {
		t.Errorf("%d streams in 800 ms with retry: 300", len(came))
	}
	for i := 1; i < len(came); i++ {
		if d := came[i].Sub(came[i-1]); d < 295*time.Millisecond {
			t.Errorf("came back after %v, want 300ms or more", d)
		}
	}
}

func TestPingsAreAnswered(t *testing.T) {
	pongs := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, websocket.AcceptOptions{Config: websocket.Config{OnPong: func(b []byte) { pongs <- string(b) }}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		_ = c.Ping([]byte("are you there"))
		_, _, _ = c.Read(context.Background())
	}))
	t.Cleanup(s.Close)
	g := generator(t, loadgen.Spec{Kind: loadgen.WebSocket, Target: s.URL, Duration: 200 * time.Millisecond})
	r, err := g.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got := <-pongs; got != "are you there" {
		t.Errorf("the pong carries %q", got)
	}
	_ = g.Close()
	_ = r
}

func TestARefusedStreamIsAnError(t *testing.T) {
	f := func(kind loadgen.Kind, want string, h http.HandlerFunc) {
		t.Helper()
		err := generator(t, loadgen.Spec{Kind: kind, Target: serve(t, h), Timeout: time.Second}).Connect(context.Background())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", kind, err, want)
		}
	}
	f(loadgen.SSE, "status 503", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	f(loadgen.WebSocket, "status 401", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) })
	f(loadgen.SSE, "not an event stream", hello)
	f(loadgen.WebSocket, "status 200", hello)
	f(loadgen.WebSocket, "not to this request", func(w http.ResponseWriter, r *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: AAAA\r\n\r\n")
	})
	f(loadgen.SSE, "timeout", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
}

func TestEchoBringsEveryMessageBack(t *testing.T) {
	f := func(change func(*loadgen.Spec)) {
		t.Helper()
		w := newWorld(t, nil)
		spec := loadgen.Spec{Kind: loadgen.Echo, Target: w.ws() + "/echo?channel=x", Conns: 5, Pipeline: 4}
		change(&spec)
		win := measure(t, spec, loadgen.Load{Rate: 500}, 400*time.Millisecond)
		addsUp(t, win)
		if len(win.Errors) > 0 || win.Completed+win.Drained != win.Offered || win.Offered < 100 {
			t.Errorf("%+v", win)
		}
	}
	f(func(*loadgen.Spec) {})
	f(func(s *loadgen.Spec) { s.Payload, s.Deflate = 3000, true })
	f(func(s *loadgen.Spec) { s.Payload, s.Loops = 64, 2 })
}

func TestAnEchoThatIsNotOneIsCaught(t *testing.T) {
	f := func(spoil func(n int, b []byte) []byte) {
		t.Helper()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, websocket.AcceptOptions{})
			if err != nil {
				return
			}
			defer c.CloseNow()
			for n := 1; ; n++ {
				_, b, err := c.Read(context.Background())
				if err != nil {
					return
				}
				if out := spoil(n, b); out != nil {
					_ = c.Write(websocket.OpText, out)
				}
			}
		}))
		t.Cleanup(s.Close)
		win := measure(t, loadgen.Spec{Kind: loadgen.Echo, Target: s.URL, Arrival: loadgen.Uniform, Pipeline: 10, Timeout: 500 * time.Millisecond},
			loadgen.Load{Rate: 100}, 200*time.Millisecond)
		addsUp(t, win)
		if failures(win) == 0 {
			t.Errorf("nothing was noticed: %+v", win)
		}
	}
	f(func(n int, b []byte) []byte { // cut short
		if n == 5 {
			return b[:len(b)-1]
		}
		return b
	})
	f(func(n int, b []byte) []byte { // one is swallowed
		if n == 5 {
			return nil
		}
		return b
	})
}
