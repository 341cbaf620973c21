package echo_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/weir-gateway/weir/hub/hubhttp"
	weirecho "github.com/weir-gateway/weir/integrations/echo"
	"github.com/weir-gateway/weir/websocket"
)

func TestSubscribersLeaveEchoForTheLoops(t *testing.T) {
	h, err := hubhttp.New(hubhttp.Config{Authorize: func(*http.Request) (*hubhttp.Grants, error) {
		return &hubhttp.Grants{Subscribe: []string{"**"}, Publish: []string{"**"}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	r := echo.New()
	weirecho.Mount(r.Group("/events", func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if c.QueryParam("let") != "me" {
				return echo.ErrUnauthorized
			}
			c.Response().Header().Set("X-Program", "echo")
			return next(c)
		}
	}), h)
	ts := httptest.NewServer(r)
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ts.Close()
	}()

	get := func(path string) *http.Response {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL+path, nil)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	if res := get("/events/sse?channel=a"); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("the middleware was passed: %d", res.StatusCode)
	}
	res := get("/events/sse?channel=a&let=me")
	if res.Header.Get("X-Program") != "echo" {
		t.Error("the middleware's field is lost")
	}
	lines := bufio.NewScanner(res.Body)
	until := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("no %q: %v", prefix, lines.Err())
		return ""
	}
	until("retry: ")
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(ts.URL, "http")+"/events/ws?channel=a&let=me&hello=1", websocket.DialOptions{})
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
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+"/events/publish?let=me", strings.NewReader(`{"channel":"a","data":{"n":1}}`))
	ans, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || ans.StatusCode != http.StatusOK {
		t.Fatalf("publish: %v %v", ans, err)
	}
	_ = ans.Body.Close()
	if got := until("data: "); got != `data: {"n":1}` {
		t.Errorf("SSE got %q", got)
	}
	if _, b, err := ws.Read(t.Context()); err != nil || !strings.Contains(string(b), `"data":{"n":1}`) {
		t.Errorf("WebSocket got %q %v", b, err)
	}
}
