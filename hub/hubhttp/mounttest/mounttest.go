// Package mounttest is one test for every router that a hub is mounted on. Only tests
// import it.
package mounttest

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/hub/hubhttp"
	"github.com/weir-gateway/weir/websocket"
)

// Run holds that subscribers pass a router's middleware and leave it for the loops.
// router mounts h at /events, behind a middleware that answers 401 without let=me in the
// query, and sets X-Program to name for the others.
func Run(t *testing.T, name string, router func(h *hubhttp.Handler) http.Handler) {
	h, err := hubhttp.New(hubhttp.Config{Authorize: func(*http.Request) (*hubhttp.Grants, error) {
		return &hubhttp.Grants{Subscribe: []string{"**"}, Publish: []string{"**"}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	ts := httptest.NewServer(router(h))
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ts.Close()
	}()
	ask := func(method, path, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, ts.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	if res := ask("GET", "/events/sse?channel=a", ""); res.StatusCode != http.StatusUnauthorized { //nolint:bodyclose // ask does
		t.Errorf("the middleware was passed: %d", res.StatusCode)
	}
	res := ask("GET", "/events/sse?channel=a&let=me", "") //nolint:bodyclose // ask does
	if res.Header.Get("X-Program") != name {
		t.Error("the middleware's field is lost")
	}
	lines := bufio.NewScanner(res.Body)
	until := func(prefix string) string {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("no %q: %v", prefix, lines.Err())
		return ""
	}
	until("retry: ")
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(ts.URL, "http")+"/events/ws?channel=a&let=me&hello=1", websocket.DialOptions{}) //nolint:bodyclose // a handshake has no body
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if _, _, err := ws.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := h.Stats(); st.OnLoops != 2 || st.OnGoroutines != 0 {
		t.Errorf("%+v, want both streams on loops", st)
	}
	if ans := ask("POST", "/events/publish?let=me", `{"channel":"a","data":{"n":1}}`); ans.StatusCode != http.StatusOK { //nolint:bodyclose // ask does
		t.Fatalf("publish: %d", ans.StatusCode)
	}
	if got := until("data: "); got != `data: {"n":1}` {
		t.Errorf("SSE got %q", got)
	}
	if _, b, err := ws.Read(t.Context()); err != nil || !strings.Contains(string(b), `"data":{"n":1}`) {
		t.Errorf("WebSocket got %q %v", b, err)
	}
}
