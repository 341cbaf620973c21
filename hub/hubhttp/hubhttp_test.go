package hubhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/hub/hubhttp"
	"github.com/weir-gateway/weir/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a Handler on a real server.
type site struct {
	t   *testing.T
	h   *hubhttp.Handler
	url string
	c   *http.Client
}

// newSite serves cfg on a server that start starts; nil means plaintext.
func newSite(t *testing.T, cfg hubhttp.Config, start func(*httptest.Server)) *site {
	t.Helper()
	h, err := hubhttp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	ts := httptest.NewUnstartedServer(http.StripPrefix("/e", h))
	if start == nil {
		start = (*httptest.Server).Start
	}
	start(ts)
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ts.CloseClientConnections()
		ts.Close()
	})
	for h.Hub().Ready() != nil {
		runtime.Gosched()
	}
	return &site{t: t, h: h, url: ts.URL + "/e", c: ts.Client()}
}

func (s *site) get(path string, fields ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := s.c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (s *site) publish(channel, data string) {
	s.t.Helper()
	if _, err := s.h.Publish(s.t.Context(), hub.Publication{Channel: channel, Data: []byte(data)}); err != nil {
		s.t.Fatal(err)
	}
}

func block(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", b.String(), err)
		}
		if line == "\n" {
			return b.String()
		}
		b.WriteString(line)
	}
}

// follow subscribes to channel a, sees a message, is cut, and resumes.
func (s *site) follow(onLoops, onGoroutines int64) {
	s.t.Helper()
	res := s.get("/sse?channel=a")
	r := bufio.NewReader(res.Body)
	if first := block(s.t, r); res.StatusCode != 200 || !strings.HasPrefix(first, "retry: ") {
		s.t.Fatalf("%d %q", res.StatusCode, first)
	}
	if st := s.h.Stats(); st.OnLoops != onLoops || st.OnGoroutines != onGoroutines {
		s.t.Errorf("%+v, want %d on loops, %d on goroutines", st, onLoops, onGoroutines)
	}
	s.publish("a", "1")
	one := block(s.t, r)
	if !strings.HasSuffix(one, "data: 1\n") {
		s.t.Fatalf("got %q", one)
	}
	_ = res.Body.Close()
	s.publish("a", "2")
	id := strings.TrimPrefix(strings.SplitN(one, "\n", 2)[0], "id: ")
	r = bufio.NewReader(s.get("/sse?channel=a", "Last-Event-ID", id).Body)
	block(s.t, r)
	if two := block(s.t, r); !strings.HasSuffix(two, "data: 2\n") {
		s.t.Errorf("resumed with %q", two)
	}
}

func TestPlaintextStreamsMoveToTheLoops(t *testing.T) {
	onLoops := int64(1)
	if runtime.GOOS != "linux" {
		onLoops = 0
	}
	newSite(t, hubhttp.Config{}, nil).follow(onLoops, 1-onLoops)
}

func TestWithoutLoopsEveryStreamIsAGoroutine(t *testing.T) {
	newSite(t, hubhttp.Config{Loops: -1}, nil).follow(0, 1)
}

func TestTLSAndHTTP2AreServedByGoroutines(t *testing.T) {
	f := func(h2 bool, proto string) {
		t.Helper()
		s := newSite(t, hubhttp.Config{}, func(ts *httptest.Server) {
			ts.EnableHTTP2 = h2
			ts.StartTLS()
		})
		if res := s.get("/sse"); res.Proto != proto || res.StatusCode != 400 {
			t.Fatalf("%s %d", res.Proto, res.StatusCode)
		}
		s.follow(0, 1)
	}
	f(false, "HTTP/1.1")
	f(true, "HTTP/2.0")
}

// wrapped is a listener whose connections are no sockets, as of a TLS or PROXY wrapper.
type wrapped struct{ net.Listener }

type notASocket struct{ net.Conn }

func (l wrapped) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return notASocket{c}, nil
}

func TestConnectionsThatAreNoSocketsStayWithGoroutines(t *testing.T) {
	s := newSite(t, hubhttp.Config{}, func(ts *httptest.Server) {
		ts.Listener = wrapped{ts.Listener}
		ts.Start()
	})
	s.follow(0, 1)
	if got := s.socket("/ws?channel=a&since=0"); !strings.Contains(got, `"data":1`) {
		t.Errorf("WebSocket got %q", got)
	}
}

// socket opens a WebSocket and returns its first message.
func (s *site) socket(path string) string {
	s.t.Helper()
	c, _, err := websocket.Dial(s.t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+path, websocket.DialOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.CloseNow)
	_, b, err := c.Read(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

func TestWebSocketReplays(t *testing.T) {
	for _, loops := range []int{0, -1} {
		s := newSite(t, hubhttp.Config{Loops: loops}, nil)
		s.publish("a", `"x"`)
		if got := s.socket("/ws?channel=a&since=0"); !strings.Contains(got, `"data":"x"`) {
			t.Errorf("loops %d: %q", loops, got)
		}
	}
}

func TestForeignPagesMayNotOpenWebSockets(t *testing.T) {
	s := newSite(t, hubhttp.Config{}, nil)
	res := s.get("/ws?channel=a", "Origin", "https://evil.example", "Connection", "Upgrade", "Upgrade", "websocket",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("status %d", res.StatusCode)
	}
}

func TestGrantsAreKept(t *testing.T) {
	s := newSite(t, hubhttp.Config{
		Namespaces: []hub.Namespace{{Name: "default"}},
		Authorize: func(r *http.Request) (*hubhttp.Grants, error) {
			switch r.Header.Get("Authorization") {
			case "":
				return nil, nil
			case "reader":
				return &hubhttp.Grants{Subscribe: []string{"a.*"}}, nil
			case "writer":
				return &hubhttp.Grants{Publish: []string{"a.*"}}, nil
			}
			return nil, errors.New("who is this?")
		},
	}, nil)
	f := func(who, channel string, want int) {
		t.Helper()
		fields := []string{}
		if who != "" {
			fields = []string{"Authorization", who}
		}
		if res := s.get("/sse?channel="+channel, fields...); res.StatusCode != want {
			t.Errorf("%q reads %s: %d, want %d", who, channel, res.StatusCode, want)
		}
	}
	f("", "a.b", 401)
	f("unknown", "a.b", 401)
	f("writer", "a.b", 403)
	f("reader", "b.b", 403)
	f("reader", "a.b", 200)

	g := func(who, path, body string, want int) string {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
		req.Header.Set("Authorization", who)
		res, err := s.c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		b, _ := io.ReadAll(res.Body)
		if res.StatusCode != want {
			t.Errorf("%s posts %s: %d, want %d", who, body, res.StatusCode, want)
		}
		return string(b)
	}
	g("reader", "/api/publish", `{"channel":"a.b","data":1}`, 403)
	g("writer", "/api/publish", `{"channel":"a.b","data":`, 400)
	g("writer", "/api/publish", `{"channel":"a.b","data":1}`, 200)
	var out struct {
		Result struct{ Responses []map[string]json.RawMessage }
	}
	if err := json.Unmarshal([]byte(g("writer", "/api/broadcast", `{"channels":["a.b","b.b"],"data":1}`, 200)), &out); err != nil ||
		len(out.Result.Responses) != 2 || out.Result.Responses[1]["error"] == nil {
		t.Errorf("broadcast: %+v %v", out, err)
	}
	g("writer", "/sse", "", 405)
	g("writer", "/nowhere", "", 404)
}

func TestHeaderFieldsOfTheProgramAreKept(t *testing.T) {
	h, err := hubhttp.New(hubhttp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://page.example")
		w.Header().Set("Content-Type", "text/plain")
		h.ServeSSE(w, r)
	}))
	defer func() { cancel(); <-ended; ts.Close() }()
	res, err := http.Get(ts.URL + "/?channel=a") //nolint:noctx // ended by the server
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if got := res.Header.Get("Access-Control-Allow-Origin"); got != "https://page.example" {
		t.Errorf("the program's field is %q", got)
	}
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type %q", got)
	}
}

func TestDrainAndEnd(t *testing.T) {
	s := newSite(t, hubhttp.Config{}, nil)
	r := bufio.NewReader(s.get("/sse?channel=a").Body)
	block(t, r)
	s.h.Drain(10 * time.Millisecond)
	if got := block(t, r); !strings.Contains(got, "event: end\n") {
		t.Errorf("got %q", got)
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q %v", rest, err)
	}
}
