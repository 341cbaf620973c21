package downstream_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// publish publishes data on channel and returns its position.
func (g *gateway) publish(channel, data string) string {
	g.T.Helper()
	type answer struct {
		at  hub.Position
		err error
	}
	got := make(chan answer, 1)
	g.Hub.Publish(hub.Publication{Channel: channel, Data: []byte(data)}, func(at hub.Position, err error) { got <- answer{at, err} })
	a := <-got
	if a.err != nil {
		g.T.Fatal(a.err)
	}
	return a.at.String()
}

func holding(channels ...string) policy.RouteConfig {
	return policy.RouteConfig{Cluster: "main", Hold: policy.Hold{Channels: channels}}
}

// answers is a backend that answers with fields and a body.
func answers(t *testing.T, body string, fields ...string) string {
	return backend(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Add(fields[i], fields[i+1])
		}
		_, _ = io.WriteString(w, body)
	})
}

func TestUpstreamHoldsAConnection(t *testing.T) {
	f := func(name string, fields ...string) {
		t.Helper()
		g := start(t, settings{routes: []policy.RouteConfig{holding("orders.*")}},
			answers(t, "event: hello\ndata: first\n\n", append(fields, "X-Kept", "yes")...))
		c := g.request("GET", "/stream", "")
		c.status(200)
		if got, _ := c.next(); got != "hello:first" {
			t.Fatalf("%s: got %q", name, got)
		}
		trial.Eventually(t, name+": the client is a subscriber", func() bool { return g.Hub.Stats().Channels > 0 && g.proxy.Stats().Idle == 1 })
		if ev, err := c.r.Next(); err != nil || ev.HasData || !ev.HasID {
			t.Errorf("%s: %+v, %v instead of the stream's position", name, ev, err)
		}
		at := g.publish("orders.1", `{"n":1}`)
		if got, id := c.next(); got != `:{"n":1}` || id != at {
			t.Errorf("%s: got %q with id %q, want id %q", name, got, id, at)
		}
		for k := range c.res.Header {
			if strings.HasPrefix(k, "Grip-") || strings.HasPrefix(k, "Weir-") {
				t.Errorf("%s: the client got %s", name, k)
			}
		}
		if h := c.res.Header; h.Get("X-Kept") != "yes" || !strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), "text/event-stream") || h.Get("Cache-Control") == "" {
			t.Errorf("%s: %v", name, h)
		}
		if n := g.proxy.Stats().Open; n != 1 {
			t.Errorf("%s: %d connections to the upstream", name, n)
		}
	}
	f("weir", "Weir-Hold", "stream", "Weir-Channel", "orders.1", "Content-Type", "text/event-stream")
	f("grip", "Grip-Hold", "stream", "Grip-Channel", "orders.1", "Content-Type", "text/event-stream; charset=utf-8")
	f("case", "grip-hold", "Stream", "grip-channel", " orders.1 ", "Content-Type", "TEXT/event-stream")
}

func TestHoldOnSeveralChannelsStartsAtPrevID(t *testing.T) {
	var first, second atomic.Pointer[string]
	g := start(t, settings{routes: []policy.RouteConfig{holding("**")}}, backend(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Grip-Hold", "stream")
		w.Header().Add("Grip-Channel", fmt.Sprintf("a; prev-id=%s, b; prev-id=%q", *second.Load(), *first.Load()))
		w.Header().Add("Grip-Channel", "c")
	}))
	set := func(p *atomic.Pointer[string], s string) { p.Store(&s) }
	set(&first, g.publish("a", "1"))
	set(&second, g.publish("b", "2"))
	last := g.publish("c", "3")
	c := g.request("GET", "/", "")
	for _, want := range []string{`"channel":"b"`, `"channel":"c"`} {
		if got, _ := c.next(); !strings.Contains(got, want) {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	g.publish("a", "4")
	if got, _ := c.next(); !strings.Contains(got, `"data":4`) {
		t.Errorf("got %q", got)
	}
	_ = last
}

func TestHeldClientResumes(t *testing.T) {
	var requested atomic.Pointer[string]
	g := start(t, settings{routes: []policy.RouteConfig{holding("news")}}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("Last-Event-ID")
		requested.Store(&id)
		w.Header().Add("Weir-Hold", "stream")
		w.Header().Add("Weir-Channel", "news")
	}))
	at := g.publish("news", "1")
	g.publish("news", "2")
	c := g.request("GET", "/", "", "Last-Event-ID", at)
	if got, _ := c.next(); got != ":2" {
		t.Errorf("got %q", got)
	}
	if got := *requested.Load(); got != at {
		t.Errorf("the backend received %q, want %q", got, at)
	}
	// An id of the backend's own is the backend's matter.
	d := g.request("GET", "/", "", "Last-Event-ID", "theirs")
	if ev, err := d.r.Next(); err != nil || ev.HasData {
		t.Errorf("%+v, %v", ev, err)
	}
	g.publish("news", "3")
	if got, _ := d.next(); got != ":3" {
		t.Errorf("got %q", got)
	}
}

func TestHeldClientIsKeptAliveAsTheBackendSays(t *testing.T) {
	t.Parallel()
	f := func(field, want string) {
		t.Helper()
		g := start(t, settings{routes: []policy.RouteConfig{holding("news")}},
			answers(t, "", "Grip-Hold", "stream", "Grip-Channel", "news", "Grip-Keep-Alive", field))
		c := g.request("GET", "/", "")
		if got, _ := c.next(); got != want {
			t.Errorf("%q: got %q, want %q", field, got, want)
		}
	}
	f(`event: alive\ndata: {"a"\;1}\n\n; format=cstring; timeout=1`, `alive:{"a";1}`)
	f(`ZGF0YTogeAoK; format=base64; timeout=1`, ":x")
}

func TestHoldThatIsNotAllowedIsRefused(t *testing.T) {
	t.Parallel()
	f := func(want int, fields ...string) {
		t.Helper()
		g := start(t, settings{routes: []policy.RouteConfig{holding("orders.*", "nope:**")}}, answers(t, "secret", fields...))
		w := g.dial()
		w.Send(wiretest.CRLF("GET / HTTP/1.1\nHost: x\n\n"))
		res, body := w.Answer("GET")
		if res.StatusCode != want || strings.Contains(body, "secret") != (want == 200) {
			t.Errorf("%q: %d %q", fields, res.StatusCode, body)
		}
		w.Send(wiretest.CRLF("GET / HTTP/1.1\nHost: x\n\n")) // the connection continues
		if res, _ := w.Answer("GET"); res.StatusCode != want {
			t.Errorf("%q: %d", fields, res.StatusCode)
		}
	}
	f(502, "Grip-Hold", "stream", "Grip-Channel", "other")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "orders.1, other")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "nope:x")
	f(502, "Grip-Hold", "stream")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "orders.1; filter=skip-self")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "orders.1; prev-id=what")
	f(502, "Grip-Hold", "response", "Grip-Channel", "orders.1")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "orders.1", "Content-Type", "text/plain")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "orders.1", "Grip-Status", "204")
	f(502, "Grip-Hold", "stream", "Grip-Channel", "orders.1", "Grip-Keep-Alive", "x; format=yaml")
	f(200, "X-Hold", "stream")
}

func TestHoldFieldsAreTakenOutOnEveryRoute(t *testing.T) {
	var got atomic.Pointer[http.Header]
	g := start(t, settings{}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		got.Store(&r.Header)
		w.Header().Set("Grip-Hold", "stream")
		w.Header().Set("Weir-Channel", "x")
		w.Header().Set("Weir-Recording", "/elsewhere")
		_, _ = io.WriteString(w, "plain")
	}))
	c := g.request("GET", "/", "", "Grip-Sig", "forged", "Weir-Hold", "x")
	if b, _ := io.ReadAll(c.res.Body); string(b) != "plain" {
		t.Errorf("%q", b)
	}
	for _, h := range []http.Header{c.res.Header, *got.Load()} {
		for k := range h {
			if strings.HasPrefix(k, "Grip-") || strings.HasPrefix(k, "Weir-") {
				t.Errorf("%s came through", k)
			}
		}
	}
}

func TestBeginningOfAHeldStreamIsBounded(t *testing.T) {
	route := holding("news")
	route.Hold.MaxBody = 1000
	g := start(t, settings{routes: []policy.RouteConfig{route}},
		answers(t, ":"+strings.Repeat("x", 100<<10)+"\n", "Grip-Hold", "stream", "Grip-Channel", "news", "Content-Type", "text/event-stream"))
	w := g.dial()
	w.Send(wiretest.CRLF("GET / HTTP/1.1\nHost: x\n\n"))
	res, err := http.ReadResponse(w.R, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the stream looks whole")
	}
	if n := g.front.Stats().HoldsRefused; n != 1 {
		t.Errorf("%d refused", n)
	}
}

func TestUnfinishedBeginningDoesNotSwallowAnEvent(t *testing.T) {
	g := start(t, settings{routes: []policy.RouteConfig{holding("news")}},
		answers(t, "data: no end", "Grip-Hold", "stream", "Grip-Channel", "news", "Grip-Status", "200 OK", "Content-Type", "text/event-stream"))
	c := g.request("POST", "/", "body")
	if got, _ := c.next(); got != ":no end" {
		t.Errorf("got %q", got)
	}
	if ev, err := c.r.Next(); err != nil || ev.HasData {
		t.Errorf("%+v, %v", ev, err)
	}
	g.publish("news", "1")
	if got, _ := c.next(); got != ":1" {
		t.Errorf("got %q", got)
	}
}
