package pushhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/pushhttp"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a hub with a Server on a real net/http server.
type world struct {
	t   *testing.T
	hub *hub.Hub
	srv *pushhttp.Server
	url string
}

func newWorld(t *testing.T, cfg pushhttp.Config, namespaces ...hub.Namespace) *world {
	t.Helper()
	b, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := wire.NewFormats(namespaces)
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{Namespaces: namespaces, Encoders: f.Encoders()}, b)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := pushhttp.New(cfg, pushhttp.Deps{Formats: f, Hub: h})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, hub: h, srv: srv}
	ctx, cancel := context.WithCancel(t.Context())
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.srv.Run(ctx) }()
	ts := httptest.NewServer(http.HandlerFunc(w.serve))
	w.url = ts.URL
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		ts.CloseClientConnections()
		ts.Close()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	sub, bad := wire.ParseSubscription(w.hub, []byte(r.URL.RawQuery), 32)
	if bad != nil {
		pushhttp.Fail(rw, bad)
		return
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		sub.Since = id
	}
	if r.URL.Path == "/sse" {
		w.srv.ServeSSE(rw, r, sub, auth.Anonymous)
		return
	}
	w.srv.ServeWebSocket(rw, r, nil, sub, auth.Anonymous)
}

func (w *world) publish(channel, data string) {
	w.t.Helper()
	done := make(chan error, 1)
	w.hub.Publish(hub.Publication{Channel: channel, Data: []byte(data)}, func(_ hub.Position, err error) { done <- err })
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
}

// sse opens a stream and reads its first block.
func (w *world) sse(query, since string) (*bufio.Reader, string, func()) {
	w.t.Helper()
	req, _ := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+"/sse?"+query, nil)
	if since != "" {
		req.Header.Set("Last-Event-ID", since)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	r := bufio.NewReader(res.Body)
	return r, w.block(r), func() { _ = res.Body.Close() }
}

func (w *world) block(r *bufio.Reader) string {
	w.t.Helper()
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			w.t.Fatalf("after %q: %v", b.String(), err)
		}
		if line == "\n" {
			return b.String()
		}
		b.WriteString(line)
	}
}

func TestStreamDeliversAndResumes(t *testing.T) {
	w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default", Anonymous: true})
	r, first, end := w.sse("channel=a", "")
	if !strings.HasPrefix(first, "retry: ") || !strings.Contains(first, "\nid: ") {
		t.Fatalf("first block %q", first)
	}
	w.publish("a", `1`)
	one := w.block(r)
	if !strings.HasSuffix(one, "data: 1\n") {
		t.Fatalf("got %q", one)
	}
	end()
	w.publish("a", `2`)
	w.publish("b", `3`)
	w.publish("a", `4`)
	id := strings.TrimSuffix(strings.TrimPrefix(strings.SplitN(one, "\n", 2)[0], "id: "), "\r")
	r, _, end = w.sse("channel=a", id)
	defer end()
	for _, want := range []string{"data: 2\n", "data: 4\n"} {
		if got := w.block(r); !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSeveralNamespacesHaveAnIDOfTheirOwn(t *testing.T) {
	w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default"}, hub.Namespace{Name: "n"})
	r, first, end := w.sse("channel=a&channel=n:b", "")
	if !strings.Contains(first, "~") {
		t.Fatalf("first block %q", first)
	}
	w.publish("a", `1`)
	w.publish("n:b", `2`)
	_, second := w.block(r), w.block(r)
	end()
	w.publish("n:b", `3`)
	id := strings.TrimPrefix(strings.SplitN(second, "\n", 2)[0], "id: ")
	r, _, end = w.sse("channel=a&channel=n:b", id)
	defer end()
	if got := w.block(r); !strings.Contains(got, `"data":3}`) {
		t.Errorf("resumed with %q", got)
	}
}

func TestUnknownPositionIsReportedAsAGap(t *testing.T) {
	w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default"})
	r, _, end := w.sse("channel=a", "other-7")
	defer end()
	if got := w.block(r); !strings.HasPrefix(got, "event: gap\n") {
		t.Errorf("got %q", got)
	}
}

func TestReplayOfAllHistoryIsWhole(t *testing.T) {
	w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default", HistorySize: 5000})
	const n = 3000
	for i := range n {
		w.publish("a", fmt.Sprint(i))
	}
	r, _, end := w.sse("channel=a", "0")
	defer end()
	for i := range n {
		if got, want := w.block(r), fmt.Sprintf("data: %d\n", i); !strings.HasSuffix(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestWebSocketCarriesEnvelopes(t *testing.T) {
	w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default"})
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(w.url, "http")+"/ws?channel=a&hello=1", websocket.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	read := func() string {
		t.Helper()
		_, b, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := read(); !strings.HasPrefix(got, `{"type":"subscribed","id":"`) {
		t.Fatalf("hello %q", got)
	}
	for _, size := range []int{1, 125, 200, 70000 - 8000} {
		data := `"` + strings.Repeat("x", size) + `"`
		w.publish("a", data)
		var m struct{ Data json.RawMessage }
		if err := json.Unmarshal([]byte(read()), &m); err != nil || string(m.Data) != data {
			t.Fatalf("payload of %d bytes: %v", size, err)
		}
	}
	if err := c.Write(websocket.OpText, []byte(`{"type":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != `{"type":"pong"}` {
		t.Errorf("got %q", got)
	}
	if err := c.Write(websocket.OpBinary, []byte("x")); err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Read(t.Context())
	if e, ok := err.(*websocket.CloseError); !ok || e.Code != websocket.CloseUnsupported {
		t.Errorf("binary: %v", err)
	}
}

func TestSlowReaderMeetsItsPolicy(t *testing.T) {
	f := func(policy hub.Policy, want func(push.Stats) bool) {
		t.Helper()
		w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default", Policy: policy, QueueMessages: 8, QueueBytes: 1 << 20})
		_, _, end := w.sse("channel=a", "") // and is never read again
		defer end()
		big := `"` + strings.Repeat("x", 60<<10) + `"`
		deadline := time.Now().Add(20 * time.Second)
		for !want(w.srv.Stats()) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", policy, w.srv.Stats())
			}
			done := make(chan error, 1)
			w.hub.Publish(hub.Publication{Channel: "a", Key: "k", Data: []byte(big)}, func(_ hub.Position, err error) { done <- err })
			<-done
		}
		if st := w.srv.Stats(); st.QueuedBytes > 2<<20 {
			t.Errorf("%s: %d bytes held", policy, st.QueuedBytes)
		}
	}
	f(hub.Disconnect, func(s push.Stats) bool { return s.TooSlow == 1 })
	f(hub.DropOldest, func(s push.Stats) bool { return s.Dropped > 3 })
	f(hub.Conflate, func(s push.Stats) bool { return s.Conflated > 3 })
}

func TestDrainEndsStreams(t *testing.T) {
	w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default"})
	r, _, end := w.sse("channel=a", "")
	defer end()
	w.srv.Drain(wire.DrainPlan{})
	if got := w.block(r); !strings.Contains(got, "event: end\n") || !strings.Contains(got, `"code":1012`) {
		t.Errorf("got %q", got)
	}
	_, late, end2 := w.sse("channel=a", "")
	defer end2()
	if !strings.Contains(late, "event: end\n") {
		t.Errorf("a new one got %q", late)
	}
}

func TestBroadcastAnswersEachChannel(t *testing.T) {
	w := newWorld(t, pushhttp.Config{}, hub.Namespace{Name: "default"})
	call, bad := wire.ParseBroadcast([]byte(`{"channels":["a","x:b"],"data":1}`))
	if bad != nil {
		t.Fatal(bad)
	}
	status, body := w.srv.Publish(t.Context(), call, auth.Anonymous)
	var out struct {
		Result struct{ Responses []map[string]any }
	}
	if err := json.Unmarshal(body, &out); status != 200 || err != nil || len(out.Result.Responses) != 2 || out.Result.Responses[0]["error"] == nil {
		t.Errorf("%d %s %v", status, body, err)
	}
}

// The deadline of a write stayed behind, and ended the stream of HTTP/2 that rested.
func TestQuietStreamOverHTTP2IsNotEnded(t *testing.T) {
	const stall = 100 * time.Millisecond
	w := newWorld(t, pushhttp.Config{WriteStall: stall, Heartbeat: time.Minute}, hub.Namespace{Name: "default", Anonymous: true})
	ts := httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	ts.EnableHTTP2 = true
	ts.StartTLS()
	defer ts.Close()
	defer ts.CloseClientConnections()
	res, err := ts.Client().Get(ts.URL + "/sse?channel=a") //nolint:noctx // it ends with the server
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	r := bufio.NewReader(res.Body)
	w.block(r)
	<-time.After(3 * stall) // real time is what is evaluated
	w.publish("a", `{"n":1}`)
	if got := w.block(r); !strings.Contains(got, `{"n":1}`) {
		t.Errorf("got %q", got)
	}
}
