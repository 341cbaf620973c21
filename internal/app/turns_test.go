package app

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
)

func TestRequestsOfARouteWaitForTheirTurn(t *testing.T) {
	b := backend(t, "b")
	g := start(t, func(c *config.Config) {
		c.EventLoop.Loops, c.Admission.Slice = 1, 1
		c.Clusters = []upstream.Config{b}
		c.Routes = []policy.RouteConfig{{Path: "/trade/*", Cluster: "b", Class: "order"}, {Path: "/*", Cluster: "b"}}
	})
	const n = 12
	var clients []*wiretest.Conn
	for range n {
		w := g.dial(t)
		ask(w, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		clients = append(clients, w)
	}
	release := g.blocked(t)
	for i, w := range clients {
		if i%2 == 0 {
			w.Send(fmt.Sprintf("GET /trade/%d?x=1 HTTP/1.1\r\nHost: a\r\n\r\nGET /other/%d HTTP/1.1\r\nHost: a\r\n\r\n", i, i))
		} else {
			w.Send(fmt.Sprintf("POST /trade/%d HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbodyGET /other/%d HTTP/1.1\r\nHost: a\r\n\r\n", i, i))
		}
	}
	release()
	for i, w := range clients {
		method, want := "GET", fmt.Sprintf("b GET /trade/%d?x=1 ", i)
		if i%2 == 1 {
			method, want = "POST", fmt.Sprintf("b POST /trade/%d body", i)
		}
		if res, body := w.Answer(method); res.StatusCode != http.StatusOK || body != want {
			t.Errorf("%d: %d %q, want %q", i, res.StatusCode, body, want)
		}
		if res, body := w.Answer("GET"); res.StatusCode != http.StatusOK || body != fmt.Sprintf("b GET /other/%d ", i) {
			t.Errorf("%d, what follows: %d %q", i, res.StatusCode, body)
		}
	}
	if s := g.class(limit.Order); s.Offered != n || s.Admitted != n || s.Queued != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRequestsOfARouteAreRefusedBeyondTheQueue(t *testing.T) {
	b := backend(t, "b")
	g := start(t, func(c *config.Config) {
		c.EventLoop.Loops, c.Admission.Slice, c.Admission.MaxQueued = 1, 1, 2
		c.Clusters = []upstream.Config{b}
		c.Routes = []policy.RouteConfig{{Path: "/*", Cluster: "b", Class: "account"}}
	})
	var clients []*wiretest.Conn
	for range 20 {
		w := g.dial(t)
		ask(w, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		clients = append(clients, w)
	}
	release := g.blocked(t)
	for _, w := range clients {
		w.Send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbodyGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	release()
	refused := 0
	for i, w := range clients {
		switch res, body := w.Answer("POST"); {
		case res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "":
			refused++
		case res.StatusCode != http.StatusOK || body != "b POST /x body":
			t.Errorf("%d: %d %q", i, res.StatusCode, body)
		}
		if res, _ := w.Answer("GET"); res.StatusCode != http.StatusOK {
			t.Errorf("%d, what follows: %d", i, res.StatusCode)
		}
	}
	if s := g.class(limit.Account); refused == 0 || int(s.Refused) != refused || s.Offered != 20 || s.Admitted+s.Refused != 20 {
		t.Errorf("%d were refused: %+v", refused, s)
	}
}

func TestPublishingOverHTTP2IsQueuedByClass(t *testing.T) {
	g := start(t, withClasses)
	c := overHTTP2(t, nil)
	publish := func(channel string) int {
		req, _ := http.NewRequest(http.MethodPost, g.url+"/api/publish", strings.NewReader(`{"channel":"`+channel+`","data":1}`))
		req.Header.Set("X-API-Key", testKey)
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body) // its status is what counts
		if res.ProtoMajor != 2 {
			t.Fatalf("over %s", res.Proto)
		}
		return res.StatusCode
	}
	for range 3 {
		if status := publish("orders:a"); status != http.StatusOK {
			t.Errorf("an order: %d", status)
		}
	}
	publish("a")
	if s := g.class(limit.Order); s.Offered != 3 || s.Admitted != 3 {
		t.Errorf("%+v", s)
	}
}
