package downstream_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/sse"
)

// A teller is a backend that streams the events it is given, to every request alike.
type teller struct {
	calls, gone atomic.Int64
	say         chan string // a piece of the body; "" ends the reply
}

func newTeller() *teller { return &teller{say: make(chan string, 64)} }

func (l *teller) serve(w http.ResponseWriter, r *http.Request) {
	l.calls.Add(1)
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(200)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case s := <-l.say:
			switch s {
			case "":
				return
			case "cut":
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, s)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			l.gone.Add(1)
			return
		}
	}
}

// report sends n events beginning with number from.
func (l *teller) report(from, n int) {
	for i := range n {
		l.say <- fmt.Sprintf("event: token\ndata: %d\ndata: second line\n\n", from+i)
	}
}

func recorded() policy.RouteConfig {
	return policy.RouteConfig{Cluster: "main", Record: policy.Record{Namespace: "llm"}}
}

// A listener reads a recording.
type listener struct {
	t   *testing.T
	res *http.Response
	r   *sse.Reader
	cut context.CancelFunc
}

// request sends a request and returns its stream, or the answer if that is none.
func (g *gateway) request(method, path, body string, header ...string) *listener {
	g.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), trial.Patience)
	g.T.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, g.url(path), strings.NewReader(body))
	if err != nil {
		g.T.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { res.Body.Close() })
	return &listener{g.T, res, sse.NewReader(res.Body), cancel}
}

// next returns the next event as "type:data", and the position after it.
func (l *listener) next() (event, id string) {
	l.t.Helper()
	for {
		ev, err := l.r.Next()
		if err != nil {
			l.t.Fatalf("the next event: %v", err)
		}
		if ev.HasData {
			return string(ev.Type) + ":" + string(ev.Data), string(ev.ID)
		}
	}
}

// wants reads the events of the last call of tell.
func (l *listener) wants(from, n int) (id string) {
	l.t.Helper()
	for i := range n {
		var got string
		got, id = l.next()
		if want := fmt.Sprintf("token:%d\nsecond line", from+i); got != want {
			l.t.Fatalf("got %q, want %q", got, want)
		}
	}
	return id
}

// ends wants no further event.
func (l *listener) ends() (id string) {
	l.t.Helper()
	for {
		ev, err := l.r.Next()
		if err == io.EOF {
			return string(l.r.Parser.LastEventID())
		}
		if err != nil || ev.HasData {
			l.t.Fatalf("got %q, %v instead of the end", ev.Data, err)
		}
	}
}

func (l *listener) status(want int) {
	l.t.Helper()
	if l.res.StatusCode != want {
		b, _ := io.ReadAll(l.res.Body)
		l.t.Fatalf("status %d, want %d: %s", l.res.StatusCode, want, b)
	}
}

func (l *listener) leave() { l.cut(); l.res.Body.Close() }

func tellerAndGateway(t *testing.T, routes ...policy.RouteConfig) (*teller, *gateway) {
	l := newTeller()
	if len(routes) == 0 {
		routes = []policy.RouteConfig{recorded()}
	}
	return l, start(t, settings{routes: routes}, backend(t, l.serve))
}

func TestRecordedStreamIsTheUpstreamsWithOurIDs(t *testing.T) {
	l, g := tellerAndGateway(t)
	l.say <- ": a comment\nid: 7\nevent: a\nretry: 50\ndata: one\ndata:  two\ndata:\n\ndata"
	l.say <- ": three\r\n\r\nda"
	l.say <- "ta\n\n"
	l.say <- "data: left unfinished"
	l.say <- ""
	c := g.request("POST", "/chat", `{"q":1}`)
	c.status(200)
	if ct := c.res.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("Content-Type %q", ct)
	}
	f := func(want string) {
		t.Helper()
		if got, id := c.next(); got != want || id == "" || id == "7" {
			t.Errorf("got %q with id %q, want %q", got, id, want)
		}
	}
	f("a:one\n two\n")
	f(":three")
	f(":")
	last := c.ends()
	// The clients of one loop may be notified of the end before another loop is.
	trial.Eventually(t, "204 for anyone who has everything", func() bool {
		return g.request("POST", "/chat", `{"q":1}`, "Last-Event-ID", last).res.StatusCode == 204
	})
	if n := l.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestSecondIdenticalRequestAttaches(t *testing.T) {
	f := func(name string, same bool, method, path, body string, header ...string) {
		t.Helper()
		l, g := tellerAndGateway(t)
		a := g.request("POST", "/chat", "hello")
		a.status(200)
		l.report(0, 3)
		a.wants(0, 3)
		b := g.request(method, path, body, header...)
		b.status(200)
		if same {
			b.wants(0, 3)
			l.report(3, 2)
			a.wants(3, 2)
			b.wants(3, 2)
		}
		want := int64(1)
		if !same {
			want = 2
		}
		trial.Eventually(t, name, func() bool { return l.calls.Load() == want })
		a.leave()
		b.leave()
	}
	f("the same", true, "POST", "/chat", "hello")
	f("another body", false, "POST", "/chat", "hello!")
	f("another query", false, "POST", "/chat?x", "hello")
	f("another path", false, "POST", "/chat/", "hello")
	f("another method", false, "GET", "/chat", "")
	f("another user", false, "POST", "/chat", "hello", "Authorization", "Bearer x")
	f("another session", false, "POST", "/chat", "hello", "Cookie", "sid=1")
	f("a key", false, "POST", "/chat", "hello", "Idempotency-Key", "k")
}

func TestIdempotencyKeyWins(t *testing.T) {
	l, g := tellerAndGateway(t)
	a := g.request("POST", "/chat", "hello", "Idempotency-Key", "k1", "Authorization", "Bearer a")
	l.report(0, 2)
	a.wants(0, 2)
	g.request("POST", "/chat", "hello again", "Idempotency-Key", "k1", "Authorization", "Bearer a").wants(0, 2)
	if n := l.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	other := g.request("POST", "/chat", "hello", "Idempotency-Key", "k1", "Authorization", "Bearer b")
	other.status(200)
	if n := l.calls.Load(); n != 2 {
		t.Errorf("%d calls with another user's, want 2", n)
	}
}

// Two clients behind one address have nothing that distinguishes them: one's answer must
// not go to the other, who sent another body under the same key.
func TestIdempotencyKeysDoNotJoinClientsOfOneAddress(t *testing.T) {
	l, g := tellerAndGateway(t)
	a := g.request("POST", "/chat", "my secret", "Idempotency-Key", "k1")
	l.report(0, 2)
	a.wants(0, 2)
	b := g.request("POST", "/chat", "another question", "Idempotency-Key", "k1")
	b.status(200)
	if n := l.calls.Load(); n != 2 {
		t.Errorf("%d calls for two questions", n)
	}
	g.request("POST", "/chat", "my secret", "Idempotency-Key", "k1").wants(0, 2)
	if n := l.calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2: the same question was queried again", n)
	}
}

func TestManyIdenticalRequestsMakeOneCall(t *testing.T) {
	l, g := tellerAndGateway(t)
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			c := g.request("POST", "/chat", "together")
			c.wants(0, 20)
			c.ends()
		})
	}
	l.report(0, 20)
	l.say <- ""
	wg.Wait()
	if n := l.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestClientCutAnywhereResumesExactly(t *testing.T) {
	l, g := tellerAndGateway(t)
	const total = 300
	go func() {
		l.report(0, total)
		l.say <- ""
	}()
	var seen int
	var last, url string
	for round := 0; seen < total; round++ {
		if round > 2000 {
			t.Fatalf("%d events after %d rounds", seen, round)
		}
		header := []string{}
		if last != "" {
			header = []string{"Last-Event-ID", last}
		}
		method, path, body := "POST", "/chat", "cut me"
		if url != "" && round%2 == 1 {
			method, path, body = "GET", url, ""
		}
		c := g.request(method, path, body, header...)
		if c.res.StatusCode == 204 {
			t.Fatalf("204 after %d events", seen)
		}
		c.status(200)
		url = c.res.Header.Get("Weir-Recording")
		r := sse.NewReader(io.LimitReader(c.res.Body, 40+rand.Int64N(3000)))
		for {
			ev, err := r.Next()
			if err != nil {
				break
			}
			if ev.HasID {
				last = string(ev.ID)
			}
			if ev.HasData {
				if want := fmt.Sprintf("%d\nsecond line", seen); string(ev.Data) != want || string(ev.Type) != "token" {
					t.Fatalf("got %s:%q, want %q", ev.Type, ev.Data, want)
				}
				seen++
			}
		}
		c.leave()
	}
	if n := l.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestEndedRecordingIsReplayedAndEnds(t *testing.T) {
	l, g := tellerAndGateway(t)
	go func() {
		l.report(0, 200)
		l.say <- ""
	}()
	a := g.request("GET", "/feed", "")
	a.wants(0, 200)
	a.ends()
	b := g.request("GET", "/feed", "")
	mid := b.wants(0, 100)
	b.wants(100, 100)
	b.ends()
	c := g.request("GET", a.res.Header.Get("Weir-Recording"), "", "Last-Event-ID", mid)
	c.wants(100, 100)
	c.ends()
	if n := l.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestTruncatedStreamEndsWithAnErrorForAll(t *testing.T) {
	l, g := tellerAndGateway(t)
	a := g.request("POST", "/chat", "x")
	l.report(0, 2)
	a.wants(0, 2)
	l.say <- "data: half an ev"
	l.say <- "cut"
	f := func(c *listener) (id string) {
		t.Helper()
		got, id := c.next()
		if !strings.HasPrefix(got, `error:{"truncated":true,"code":502,"cause":"truncated"`) {
			t.Errorf("got %q", got)
		}
		c.ends()
		return id
	}
	last := f(a)
	b := g.request("GET", a.res.Header.Get("Weir-Recording"), "")
	b.wants(0, 2)
	f(b)
	g.request("POST", "/chat", "x", "Last-Event-ID", last).status(204)
	if n := l.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	// Only a request without a position starts anew.
	c := g.request("POST", "/chat", "x")
	l.report(7, 1)
	c.wants(7, 1)
	if n := l.calls.Load(); n != 2 {
		t.Errorf("%d calls after a retry, want 2", n)
	}
}

func TestUpstreamOutlivesItsClientsForAWhile(t *testing.T) {
	t.Parallel()
	l, g := tellerAndGateway(t, policy.RouteConfig{Cluster: "main", Record: policy.Record{Namespace: "llm", Outlive: hub.Duration(400 * time.Millisecond)}})
	a := g.request("POST", "/chat", "x")
	l.report(0, 1)
	id := a.wants(0, 1)
	url := a.res.Header.Get("Weir-Recording")
	a.leave()
	l.report(1, 1) // no client follows, and it is kept
	b := g.request("POST", "/chat", "x", "Last-Event-ID", id)
	b.wants(1, 1)
	if l.gone.Load() != 0 {
		t.Fatal("the upstream was left at once")
	}
	b.leave()
	trial.Eventually(t, "the upstream's call is canceled", func() bool { return l.gone.Load() == 1 })
	c := g.request("GET", url, "")
	c.wants(0, 2)
	if got, _ := c.next(); !strings.Contains(got, `"cause":"abandoned"`) {
		t.Errorf("got %q", got)
	}
	c.ends()
}

func TestClientThatLeavesBeforeTheHeadLosesNothing(t *testing.T) {
	began, answer := make(chan struct{}, 2), make(chan struct{})
	var calls atomic.Int64
	g := start(t, settings{routes: []policy.RouteConfig{recorded()}}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		began <- struct{}{}
		<-answer
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: thought about\n\n")
	}))
	w := g.dial()
	w.Send(wiretest.CRLF("POST /chat HTTP/1.1\nHost: x\nContent-Length: 2\n\nhi"))
	<-began
	w.Close()
	done := make(chan *listener)
	go func() { done <- g.request("POST", "/chat", "hi") }()
	trial.Eventually(t, "the first client is gone", func() bool { return g.recorder.Stats().Running == 1 && g.front.Waiting() >= 1 })
	close(answer)
	b := <-done
	if got, _ := b.next(); got != ":thought about" {
		t.Errorf("got %q", got)
	}
	b.ends()
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestOtherRepliesPassUnrecorded(t *testing.T) {
	var calls atomic.Int64
	g := start(t, settings{routes: []policy.RouteConfig{recorded()}}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		b, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/json":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"n":%d,"got":%q}`, n, b)
		case "/error":
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(429)
			_, _ = io.WriteString(w, "slow down")
		case "/big":
			_, _ = w.Write(make([]byte, 1<<20))
		case "/gone":
			panic(http.ErrAbortHandler)
		}
	}))
	f := func(path string, status int, want string) {
		t.Helper()
		for range 2 { // each is sent to the backend
			c := g.request("POST", path, "body")
			c.status(status)
			b, err := io.ReadAll(c.res.Body)
			if err != nil || want != "" && !strings.Contains(string(b), want) || c.res.Header.Get("Weir-Recording") != "" {
				t.Errorf("%s: %.60q, %v, %v", path, b, err, c.res.Header)
			}
		}
	}
	f("/json", 200, `"got":"body"}`)
	f("/error", 429, "slow down")
	f("/big", 200, "")
	if n := calls.Load(); n != 6 {
		t.Errorf("%d calls, want 6", n)
	}
	f("/gone", 502, "")
	trial.Eventually(t, "nothing is being recorded", func() bool { return g.recorder.Stats().Running == 0 })
	// On one connection, one after the other.
	w := g.dial()
	for range 3 {
		w.Send(wiretest.CRLF("POST /json HTTP/1.1\nHost: x\nContent-Length: 2\n\nhi"))
		if res, body := w.Answer("POST"); res.StatusCode != 200 || !strings.Contains(body, `"hi"`) {
			t.Errorf("%d %q", res.StatusCode, body)
		}
	}
}
