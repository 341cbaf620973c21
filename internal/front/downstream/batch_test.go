package downstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/batch"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/sse"
)

// bothVersions runs f with clients that speak HTTP/1.1 and with such that speak HTTP/2. Both
// engines are covered by TestEverythingHoldsWithEpoll.
func bothVersions(t *testing.T, f func(t *testing.T, b *batched)) {
	for _, version := range []string{"http1", "http2"} {
		t.Run(version, func(t *testing.T) { f(t, &batched{t: t, http2: version == "http2"}) })
	}
}

// batched is a gateway whose only route batches.
type batched struct {
	*gateway
	t      *testing.T
	http2  bool
	client *http.Client
}

// patient waits for the last request of a call, for as long as the test does.
const patient = hub.Duration(time.Minute)

func (b *batched) start(cfg policy.Batch, peers ...string) {
	b.gateway = start(b.t, settings{routes: []policy.RouteConfig{{Name: "model", Cluster: "main", Batch: cfg}}}, peers...)
	tr := &http.Transport{Protocols: &http.Protocols{}, MaxConnsPerHost: 0}
	tr.Protocols.SetHTTP1(!b.http2)
	tr.Protocols.SetUnencryptedHTTP2(b.http2)
	b.client = &http.Client{Transport: tr}
	b.t.Cleanup(tr.CloseIdleConnections)
}

// An outcome is how a request ended.
type outcome struct {
	status int
	head   http.Header
	body   string
	err    error
}

// post makes a request on a goroutine of its own.
func (b *batched) post(ctx context.Context, body string, fields ...string) <-chan outcome {
	req, err := http.NewRequestWithContext(ctx, "POST", b.url("/v1/run?x=1"), strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	done := make(chan outcome, 1)
	go func() {
		res, err := b.client.Do(req)
		if err != nil {
			done <- outcome{err: err}
			return
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if res.ProtoMajor == 2 != b.http2 {
			err = fmt.Errorf("answered in %s", res.Proto)
		}
		done <- outcome{res.StatusCode, res.Header, string(text), err}
	}()
	return done
}

// wants reads an outcome.
func (b *batched) wants(from <-chan outcome, status int, body string) outcome {
	b.t.Helper()
	o := <-from
	if o.err != nil || o.status != status || !strings.Contains(o.body, body) {
		b.t.Errorf("%d %q, %v; want %d %q", o.status, o.body, o.err, status, body)
	}
	return o
}

// received waits for what the backend receives: one that receives nothing fails the test
// instead of blocking it.
func received[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(trial.Patience):
		t.Fatal("the backend received nothing")
		panic("not reached")
	}
}

func (b *batched) stats() batch.Stats { return downstream.Batches(b.front)[0] }

// waiting waits until n requests wait for their call.
func (b *batched) waiting(n int) {
	b.t.Helper()
	trial.Eventually(b.t, fmt.Sprintf("%d requests wait", n), func() bool { return b.stats().Waiting == n })
}

func (b *batched) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), trial.Patience)
	b.t.Cleanup(cancel)
	return ctx
}

// A model is a backend of KServe's protocol, which doubles numbers. Its calls are noted.
type model struct {
	calls chan *http.Request
	sizes chan int
}

func newModel() *model { return &model{make(chan *http.Request, 100), make(chan int, 100)} }

func (m *model) serve(w http.ResponseWriter, r *http.Request) {
	var in struct{ Instances []float64 }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for i := range in.Instances {
		in.Instances[i] *= 2
	}
	m.calls <- r
	m.sizes <- len(in.Instances)
	w.Header().Set("Content-Type", "application/json")
	http.SetCookie(w, &http.Cookie{Name: "session", Value: "of nobody"})
	_ = json.NewEncoder(w).Encode(map[string]any{"model_version": "7", "predictions": in.Instances})
}

func TestRequestsShareACall(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		m := newModel()
		b.start(policy.Batch{Format: "kserve", MaxItems: 5, MaxWait: patient}, backend(t, m.serve))
		one := b.post(b.ctx(), `{"instances":[1]}`, "User-Agent", "first")
		b.waiting(1)
		two := b.post(b.ctx(), `{ "instances" : [2, 3] }`, "User-Agent", "second")
		b.waiting(2)
		other := b.post(b.ctx(), `{"instances":[9],"parameters":{}}`) // waits for ones like it
		b.waiting(3)
		three := b.post(b.ctx(), `{"instances":[4,5]}`)
		o := b.wants(one, 200, `"predictions":[2]`)
		b.wants(two, 200, `"predictions":[4,6]`)
		b.wants(three, 200, `"predictions":[8,10]`)
		if !strings.Contains(o.body, `"model_version":"7"`) || o.head.Get("Content-Type") != "application/json" || o.head.Get("Set-Cookie") != "" {
			t.Errorf("%q %v", o.body, o.head)
		}
		r := received(t, m.calls)
		if r.URL.String() != "/v1/run?x=1" || r.Header.Get("Content-Type") != "application/json" || len(r.Header["User-Agent"])+len(r.Header["X-Forwarded-For"])+len(r.Header["Traceparent"]) > 0 {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		for range 2 {
			b.post(b.ctx(), `{"instances":[1,1,1,1,1],"parameters":{}}`) // as many as a call may have: alone
		}
		trial.Eventually(t, "they were answered", func() bool { s := b.stats(); return s.Alone == 2 && s.Running == 0 })
		if s := b.stats(); s.Calls != 1 || s.Joined != 3 || s.Items != 5 || s.Waiting != 1 || s.Sizes[2] != 1 || s.Waited.Total() != 5 {
			t.Errorf("%+v", s)
		}
		b.client.CloseIdleConnections()
		_ = other
	})
}

func TestALoneRequestIsSentAsItIs(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		got := make(chan string, 10)
		b.start(policy.Batch{Format: "kserve", MaxWait: hub.Duration(time.Millisecond)}, backend(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- string(body) + r.Header.Get("User-Agent") + r.Header.Get("X-Forwarded-For")
			fmt.Fprint(w, "anything")
		}))
		f := func(body string) {
			t.Helper()
			b.wants(b.post(b.ctx(), body, "User-Agent", "me"), 200, "anything")
			if g := <-got; g != body+"me127.0.0.1" {
				t.Errorf("%q arrived as %q", body, g)
			}
		}
		f(`{ "instances": [1] }`)
		f(`{"instances":[1`)
		f("\x00\xff")
		if s := b.stats(); s.Alone != 3 || s.Calls != 0 || s.Running+s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
		res, err := b.client.Get(b.url("/metadata"))
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		res.Body.Close()
	})
}

func TestOnlyEqualRequestsShareACall(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		m := newModel()
		b.start(policy.Batch{Format: "kserve", MaxItems: 2, MaxWait: patient}, backend(t, m.serve))
		alice := b.post(b.ctx(), `{"instances":[1]}`, "Authorization", "Bearer alice")
		b.waiting(1)
		bob := b.post(b.ctx(), `{"instances":[2]}`, "Authorization", "Bearer bob")
		b.waiting(2)
		b.wants(b.post(b.ctx(), `{"instances":[3]}`, "Authorization", "Bearer bob"), 200, "[6]")
		b.wants(bob, 200, "[4]")
		if r := received(t, m.calls); r.Header.Get("Authorization") != "Bearer bob" {
			t.Errorf("%v", r.Header)
		}
		b.wants(b.post(b.ctx(), `{"instances":[4]}`, "Authorization", "Bearer alice"), 200, "[8]")
		b.wants(alice, 200, "[2]")
	})
}

// A writer is a backend of completions, which streams what the test says.
type writer struct {
	bodies chan string
	events chan string // "" ends the stream
	gone   atomic.Int64
}

func newWriter() *writer {
	return &writer{bodies: make(chan string, 10), events: make(chan string, 100)}
}

func (m *writer) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m.bodies <- string(body)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.(http.Flusher).Flush()
	for {
		select {
		case s := <-m.events:
			if s == "" {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", s)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			m.gone.Add(1)
			return
		}
	}
}

// open makes a request whose reply is a stream, and returns a reader of its events once the
// head is there.
func (b *batched) open(ctx context.Context, body string) <-chan *sse.Reader {
	req, err := http.NewRequestWithContext(ctx, "POST", b.url("/v1/completions"), strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	opened := make(chan *sse.Reader, 1)
	go func() {
		res, err := b.client.Do(req)
		if err != nil || res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			b.t.Errorf("%v, %v", res, err)
			close(opened)
			return
		}
		b.t.Cleanup(func() { res.Body.Close() })
		opened <- sse.NewReader(res.Body)
	}()
	return opened
}

func wantsEvent(t *testing.T, r *sse.Reader, want string) {
	t.Helper()
	if r == nil {
		t.Fatal("there is no stream")
	}
	ev, err := r.Next()
	if got := string(ev.Data); err != nil && want != "EOF" || err == nil && got != want {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
}

func TestStreamsAreDividedWhileTheyCome(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		m := newWriter()
		b.start(policy.Batch{Format: "openai_completions", MaxItems: 3, MaxWait: patient}, backend(t, m.serve))
		opened := b.open(b.ctx(), `{"model":"m","prompt":"a","stream":true}`)
		b.waiting(1)
		also := b.open(b.ctx(), `{"model":"m","prompt":["b","c"],"stream":true}`)
		if body := received(t, m.bodies); body != `{"model":"m","prompt":["a","b","c"],"stream":true}` {
			t.Errorf("%q", body)
		}
		m.events <- `{"id":"x","choices":[{"index":0,"text":"A1","finish_reason":null}]}`
		one := <-opened
		wantsEvent(t, one, `{"id":"x","choices":[{"index":0,"text":"A1","finish_reason":null}]}`) // nothing else has come yet
		m.events <- `{"id":"x","choices":[{"index":2,"text":"C1"},{"text":"B1","index":1}]}`
		two := <-also
		wantsEvent(t, two, `{"id":"x","choices":[{"index":1,"text":"C1"},{"text":"B1","index":0}]}`)
		m.events <- `{"choices":[{"index":9,"text":"of nobody"}]}`
		m.events <- `{"choices":[{"index":0,"text":"secret"}],"Choices":[{"index":1,"text":"secret"}]}` // not known whose
		m.events <- `{"choices":[{"index":0,"text":"secret"`
		m.events <- `{"choices":[{"index":0,"text":"A2","finish_reason":"stop"}]}`
		wantsEvent(t, one, `{"choices":[{"index":0,"text":"A2","finish_reason":"stop"}]}`)
		wantsEvent(t, one, `[DONE]`) // the others are not waited for
		wantsEvent(t, one, "EOF")
		m.events <- `{"error":{"message":"a warning"}}` // it is for all
		wantsEvent(t, two, `{"error":{"message":"a warning"}}`)
		m.events <- `{"choices":[],"usage":{"total_tokens":3}}` // of all together, so for none
		m.events <- `{"choices":[{"index":1,"finish_reason":"length"},{"index":2,"text":"C2"}]}`
		wantsEvent(t, two, `{"choices":[{"index":0,"finish_reason":"length"},{"index":1,"text":"C2"}]}`)
		m.events <- "[DONE]"
		wantsEvent(t, two, "[DONE]")
		m.events <- ""
		wantsEvent(t, two, "EOF")
		trial.Eventually(t, "the call is over", func() bool { return b.stats().Running == 0 })
		if s := b.stats(); s.Strays != 3 || s.Left+s.Slow+s.Malformed != 0 || s.Joined != 2 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAClientThatLeavesDoesNotDisturbTheOthers(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		m := newWriter()
		b.start(policy.Batch{Format: "openai_completions", MaxItems: 3, MaxWait: patient}, backend(t, m.serve))
		gone, leave := context.WithCancel(b.ctx())
		left := b.post(gone, `{"prompt":"never sent","stream":true}`)
		b.waiting(1)
		leave()
		<-left
		b.waiting(0)
		var readers [3]<-chan *sse.Reader
		var leaves [3]context.CancelFunc
		for i := range readers {
			var ctx context.Context
			ctx, leaves[i] = context.WithCancel(b.ctx())
			readers[i] = b.open(ctx, fmt.Sprintf(`{"prompt":"%d","stream":true}`, i))
			if i < 2 {
				b.waiting(i + 1)
			}
		}
		if body := received(t, m.bodies); body != `{"prompt":["0","1","2"],"stream":true}` {
			t.Errorf("%q", body)
		}
		m.events <- `{"choices":[{"index":0},{"index":1},{"index":2}]}`
		var streams [3]*sse.Reader
		for i := range streams {
			streams[i] = <-readers[i]
			wantsEvent(t, streams[i], `{"choices":[{"index":0}]}`)
		}
		leaves[1]()
		trial.Eventually(t, "its part is dropped", func() bool { return b.stats().Left == 2 })
		m.events <- `{"choices":[{"index":0,"text":"x"},{"index":1,"text":"y"},{"index":2,"text":"z"}]}`
		wantsEvent(t, streams[0], `{"choices":[{"index":0,"text":"x"}]}`)
		wantsEvent(t, streams[2], `{"choices":[{"index":0,"text":"z"}]}`)
		leaves[0]()
		leaves[2]()
		trial.Eventually(t, "the call is cancelled", func() bool { return m.gone.Load() == 1 && b.stats().Running == 0 })
		if s := b.stats(); s.Left != 4 || s.Slow+s.Malformed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAnErrorOfTheBackendGoesToEachClient(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		b.start(policy.Batch{Format: "kserve", MaxItems: 2, MaxWait: patient}, backend(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, "not now")
		}))
		one := b.post(b.ctx(), `{"instances":[1]}`)
		b.waiting(1)
		for _, o := range []outcome{b.wants(b.post(b.ctx(), `{"instances":[2]}`), 429, "not now"), b.wants(one, 429, "not now")} {
			if o.head.Get("Retry-After") != "7" || o.head.Get("Content-Type") != "text/plain" {
				t.Errorf("%v", o.head)
			}
		}
	})
}

func TestAReplyThatIsNotWholeIsA502(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		replies := make(chan string, 1)
		b.start(policy.Batch{Format: "openai_completions", MaxItems: 2, MaxWait: patient, MaxReply: 1024}, wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
			for {
				if _, _, ok := w.Request(); !ok {
					return
				}
				w.TrySend(<-replies)
			}
		}))
		f := func(reply string, first, second int) {
			t.Helper()
			replies <- reply
			one := b.post(b.ctx(), `{"prompt":"a"}`)
			b.waiting(1)
			two := b.post(b.ctx(), `{"prompt":"b"}`)
			b.wants(one, first, "")
			b.wants(two, second, "")
		}
		whole := func(fields, body string) string {
			return fmt.Sprintf("HTTP/1.1 200 OK\nContent-Length: %d\n%s\n%s", len(body), fields, body)
		}
		f(whole("", `{"choices":[{"index":0},{"index":1}]}`), 200, 200)
		f(whole("", `{"choices":[{"index":1}]}`), 502, 200)
		f(whole("", `{"choices":[{"index":0},{"index":5}]}`), 200, 502)
		f(whole("", `{"choices":[{"index":0},`), 502, 502)
		f(whole("", `no JSON`), 502, 502)
		f(whole("Content-Encoding: gzip\n", `{"choices":[{"index":0},{"index":1}]}`), 502, 502)
		f(whole("", `{"choices":[{"index":0},{"index":1}],"x":"`+strings.Repeat("x", 1024)+`"}`), 502, 502)
		f(whole("Content-Type: text/event-stream\n", "data: {\"choices\":[{\"index\":1}]}\n\ndata: [DONE]\n\n"), 502, 200)
		f("HTTP/1.1 204 No Content\n\n", 204, 204)
		f("no HTTP\n\n", 502, 502)
		if s := b.stats(); s.Malformed != 11 || s.Strays != 1 || s.Running+s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTheQueueIsBounded(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		m := newModel()
		b.start(policy.Batch{Format: "kserve", MaxItems: 3, MaxWait: patient, MaxQueue: 2}, backend(t, m.serve))
		one, two := b.post(b.ctx(), `{"instances":[1]}`), b.post(b.ctx(), `{"instances":[2],"other":true}`)
		b.waiting(2)
		if o := b.wants(b.post(b.ctx(), `{"instances":[3]}`), 503, "too many requests wait"); o.head.Get("Retry-After") == "" {
			t.Errorf("%v", o.head)
		}
		if s := b.stats(); s.Refused != 1 || s.Waiting != 2 {
			t.Errorf("%+v", s)
		}
		_, _ = one, two
	})
}

// What comes while a call is under way waits, and is one call then.
func TestCallsAreBounded(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		m := newModel()
		proceed := make(chan struct{})
		var under, most atomic.Int64
		b.start(policy.Batch{Format: "kserve", MaxWait: -1, MaxCalls: 1}, backend(t, func(w http.ResponseWriter, r *http.Request) {
			if n := under.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer under.Add(-1)
			proceed <- struct{}{}
			m.serve(w, r)
		}))
		one := b.post(b.ctx(), `{"instances":[1]}`)
		trial.Eventually(t, "it is sent at once", func() bool { return under.Load() == 1 })
		gone, leave := context.WithCancel(b.ctx())
		left := b.post(gone, `{"instances":[7]}`)
		b.waiting(1)
		var more []<-chan outcome
		for i := range 3 {
			more = append(more, b.post(b.ctx(), fmt.Sprintf(`{"instances":[%d]}`, 2+i)))
			b.waiting(2 + i)
		}
		leave()
		<-left
		b.waiting(3)
		<-proceed
		b.wants(one, 200, "[2]")
		<-proceed
		for i, o := range more {
			b.wants(o, 200, fmt.Sprintf("[%d]", 4+2*i))
		}
		if a, c := received(t, m.sizes), received(t, m.sizes); a != 1 || c != 3 || most.Load() != 1 {
			t.Errorf("calls of %d and %d, %d at a time", a, c, most.Load())
		}
		trial.Eventually(t, "all is over", func() bool { s := b.stats(); return s.Running+s.Waiting == 0 })
	})
}

func TestACallIsRetriedElsewhere(t *testing.T) {
	bothVersions(t, func(t *testing.T, b *batched) {
		m := newModel()
		b.start(policy.Batch{Format: "kserve", MaxItems: 2, MaxWait: patient}, refused(t), backend(t, m.serve), refused(t))
		for range 5 {
			one := b.post(b.ctx(), `{"instances":[1]}`)
			b.waiting(1)
			b.wants(b.post(b.ctx(), `{"instances":[2]}`), 200, "[4]")
			b.wants(one, 200, "[2]")
		}
		if s := b.proxy.Stats().Clusters["main"]; s.Retries == 0 || s.Requests["2xx"] != 5 {
			t.Errorf("%+v", s)
		}
	})
}

// A client that does not read is cut when too much waits for it; the others have all.
func TestAClientThatDoesNotReadIsCut(t *testing.T) {
	t.Parallel()
	const events = 400
	b := &batched{t: t}
	big := strings.Repeat("x", 32<<10)
	b.start(policy.Batch{Format: "openai_completions", MaxItems: 2, MaxWait: patient, MaxReply: 64 << 10}, backend(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range events {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":\"%s\"},{\"index\":1}]}\n\n", big)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	body := `{"prompt":"a","stream":true}`
	stuck := b.dial()
	stuck.Send(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", b.Addr, len(body), body))
	b.waiting(1)
	r := <-b.open(b.ctx(), body)
	for range events {
		wantsEvent(t, r, `{"choices":[{"index":0}]}`)
	}
	wantsEvent(t, r, "[DONE]")
	wantsEvent(t, r, "EOF")
	trial.Eventually(t, "the other one is cut", func() bool { s := b.stats(); return s.Slow == 1 && s.Left == 0 && s.Running == 0 })
}
