package hubhttp_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/hub/hubhttp"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A Hook decides on clients and messages, whatever carries them.
func TestHookDecides(t *testing.T) {
	for name, cfg := range map[string]struct {
		loops int
		start func(*httptest.Server)
	}{
		"loops":      {0, nil},
		"goroutines": {-1, nil},
		"HTTP/2":     {0, func(ts *httptest.Server) { ts.EnableHTTP2 = true; ts.StartTLS() }},
	} {
		t.Run(name, func(t *testing.T) { hookDecides(t, cfg.loops, cfg.start) })
	}
}

func hookDecides(t *testing.T, loops int, start func(*httptest.Server)) {
	t.Helper()
	var mu sync.Mutex
	left := map[string]int{}
	s := newSite(t, hubhttp.Config{
		Loops:      loops,
		Namespaces: []hub.Namespace{{Name: "default"}},
		Hook: func(_ context.Context, e *hubhttp.Event) (*hubhttp.Verdict, error) {
			switch {
			case e.Kind == hubhttp.EventConnect && strings.Contains(e.Path, "user=eve"):
				return &hubhttp.Verdict{Refuse: &hubhttp.Refusal{Status: 402, Reason: "pay first"}}, nil
			case e.Kind == hubhttp.EventConnect:
				return &hubhttp.Verdict{Identity: &hubhttp.Identity{User: "ann", Subscribe: []string{"*"}}}, nil
			case e.Kind == hubhttp.EventSubscribe && e.User == "ann" && e.Channels[0] == "forbidden":
				return &hubhttp.Verdict{Refuse: &hubhttp.Refusal{Reason: "not that channel"}}, nil
			case e.Kind == hubhttp.EventPublish && len(e.Data) > 10:
				return &hubhttp.Verdict{Refuse: &hubhttp.Refusal{Status: 413, Reason: "too long", Body: []byte("long")}}, nil
			case e.Kind == hubhttp.EventPublish:
				return &hubhttp.Verdict{Data: []byte(strings.ToUpper(string(e.Data)))}, nil
			case e.Kind == hubhttp.EventDisconnect:
				mu.Lock()
				left[e.User]++
				mu.Unlock()
			}
			return nil, nil
		},
		Authorize: func(*http.Request) (*hubhttp.Grants, error) { return &hubhttp.Grants{Publish: []string{"*"}}, nil },
	}, start)
	f := func(path string, status int, want string) {
		t.Helper()
		res := s.get(path)
		if b, _ := io.ReadAll(res.Body); res.StatusCode != status || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d %s, want %d %s", path, res.StatusCode, b, status, want)
		}
	}
	f("/sse?channel=a&user=eve", 402, "pay first")
	f("/sse?channel=forbidden", 403, "not that channel")
	res := s.get("/sse?channel=a")
	r := bufio.NewReader(res.Body)
	block(t, r)
	publish := func(data string) int {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/publish", strings.NewReader(`{"channel":"a","data":`+data+`}`))
		res, err := s.c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	if got := publish(`"this is too long"`); got != 413 {
		t.Errorf("a long message: %d", got)
	}
	if got := publish(`"hello"`); got != 200 {
		t.Errorf("a message: %d", got)
	}
	if got := block(t, r); !strings.Contains(got, `"HELLO"`) {
		t.Errorf("got %q", got)
	}
	_ = res.Body.Close()
	trial.Eventually(t, "the client has left", func() bool { mu.Lock(); defer mu.Unlock(); return left["ann"] == 1 })
}
