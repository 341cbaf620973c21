package record

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRequestsOfOneKeyAreAlike(t *testing.T) {
	ann, err := auth.Granted("ann", nil, nil, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	here, there := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	type who struct {
		id   *auth.Identity
		by   []string
		head http.Header
		from netip.Addr
	}
	anon := who{auth.Anonymous, nil, http.Header{}, here}
	base := Request{Route: "r", Method: "POST", Path: "/p", Query: "q", Body: []byte("b")}
	change := func(f func(*Request)) Request { q := base; f(&q); return q }
	f := func(same bool, a who, qa Request, b who, qb Request) {
		t.Helper()
		ka, kb := qa.Key(OwnerOf(a.id, a.by, a.head, a.from)), qb.Key(OwnerOf(b.id, b.by, b.head, b.from))
		if (ka == kb) != same {
			t.Errorf("%v", ka == kb)
		}
	}
	bearer := func(v string) http.Header { return http.Header{"Authorization": {v}} }
	f(true, anon, base, anon, base)
	f(false, anon, base, who{auth.Anonymous, nil, nil, there}, base)
	f(false, anon, base, anon, change(func(q *Request) { q.Route = "s" }))
	f(false, anon, base, anon, change(func(q *Request) { q.Path, q.Query = "/pq", "" }))
	f(false, anon, base, anon, change(func(q *Request) { q.Body = []byte("c") }))
	f(false, anon, base, anon, change(func(q *Request) { q.Idempotency = "b" }))
	idem := change(func(q *Request) { q.Idempotency = "k" })
	f(true, anon, idem, anon, idem)
	f(false, anon, idem, anon, change(func(q *Request) { q.Idempotency, q.Body = "k", nil })) // others are behind the address
	session := who{auth.Anonymous, nil, bearer("x"), here}
	f(true, session, idem, session, change(func(q *Request) { q.Idempotency, q.Body = "k", nil }))
	f(false, anon, idem, anon, change(func(q *Request) { q.Idempotency, q.Query = "k", "token=x" }))
	f(false, who{auth.Anonymous, nil, bearer("x"), here}, idem, who{auth.Anonymous, nil, bearer("y"), here}, idem)
	f(true, who{auth.Anonymous, nil, bearer("x"), here}, idem, who{auth.Anonymous, nil, bearer("x"), there}, idem)
	f(true, who{ann, nil, bearer("x"), here}, base, who{ann, nil, bearer("y"), there}, base)
	f(false, who{ann, nil, nil, here}, base, anon, base)
	sid := []string{"cookie:sid"}
	cookie := func(v string) http.Header { return http.Header{"Cookie": {v}} }
	f(true, who{auth.Anonymous, sid, cookie("sid=1; a=b"), here}, base, who{auth.Anonymous, sid, cookie("c=d; sid=1"), there}, base)
	f(false, who{ann, sid, cookie("sid=1"), here}, base, who{ann, sid, cookie("sid=2"), here}, base)
	// Fields do not run into each other.
	two := []string{"A", "B"}
	f(false, who{auth.Anonymous, two, http.Header{"A": {"xy"}, "B": {"z"}}, here}, base, who{auth.Anonymous, two, http.Header{"A": {"x"}, "B": {"yz"}}, here}, base)
}

func FuzzParseID(f *testing.F) {
	f.Add("llm.abc.iXYZ")
	f.Add("default.a-b_c.a0")
	f.Add("..")
	f.Add("llm.x:y.c1")
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := ParseID(s)
		if !ok {
			return
		}
		if id.String() != s {
			t.Errorf("%q reads as %q", s, id.String())
		}
		if err := hub.CheckChannel(id.channel()); err != nil || hub.NamespaceOf(id.channel()) != id.namespace {
			t.Errorf("%q: channel %q: %v", s, id.channel(), err)
		}
	})
}

// A place is a log, and loops for those who ask.
type place struct {
	t    *testing.T
	hub  *hub.Hub
	loop *eventloop.Loop
	cfg  policy.Record
}

func newPlace(t *testing.T) *place {
	t.Helper()
	broker, err := memory.New(memory.Config{})
	must(t, err)
	formats, err := wire.NewFormats(nil)
	must(t, err)
	p := &place{t: t, cfg: policy.Record{Namespace: "llm"}}
	p.hub, err = hub.New(hub.Config{Encoders: formats.Encoders(), Namespaces: []hub.Namespace{{Name: "llm"}}}, broker)
	must(t, err)
	loops, err := eventloop.New(eventloop.Config{Loops: 1, Engine: os.Getenv("WEIR_TEST_ENGINE")}, func(*eventloop.Conn) eventloop.Handler { return nil }, nil)
	must(t, err)
	p.loop = loops.Loops()[0]
	ctx, cancel := context.WithCancel(context.Background())
	must(t, p.hub.Start(ctx))
	ended := make(chan error, 1)
	go func() { ended <- loops.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = p.hub.Close()
	})
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a Recorder as another process would have it.
func (p *place) node(alone bool) *Recorder {
	r := New(Options{Hub: p.hub, Alone: alone})
	var err error
	if p.cfg, err = r.Check(p.cfg); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(r.Close)
	return r
}

type requested struct {
	*Viewer
	tape *Tape
	got  chan Answer
}

func (p *place) query(r *Recorder, since string) *requested {
	a := &requested{tape: &Tape{}, got: make(chan Answer, 1)}
	q := Request{Route: "r", Method: "POST", Path: "/"}
	o := OwnerOf(auth.Anonymous, nil, http.Header{}, netip.MustParseAddr("10.0.0.1"))
	a.Viewer = r.Query(Query{Record: &p.cfg, Route: "r", Key: q.Key(o), Owner: o, Since: since, Tape: a.tape, Loop: p.loop, Then: func(x Answer) { a.got <- x }})
	return a
}

// answer waits for the answer.
func (a *requested) answer(t *testing.T) Answer {
	t.Helper()
	select {
	case x := <-a.got:
		return x
	case <-time.After(20 * time.Second):
		t.Fatal("no answer")
		return Answer{}
	}
}

func (p *place) onLoop(f func()) {
	done := make(chan struct{})
	p.loop.Post(func() { f(); close(done) })
	<-done
}

func events() *http1.Response {
	return &http1.Response{Status: 200, Fields: []http1.Field{{Name: []byte("Content-Type"), Value: []byte("text/event-stream")}}}
}

func TestTwoNodesThatStartAtOnceMakeOneRecording(t *testing.T) {
	for range 20 {
		p := newPlace(t)
		nodes := []*Recorder{p.node(false), p.node(false)}
		all := []*requested{p.query(nodes[0], ""), p.query(nodes[1], ""), p.query(nodes[0], ""), p.query(nodes[1], "")}
		var starter *requested
		started := make(chan *requested, len(all))
		var follows atomic.Int64
		for _, a := range all {
			go func() {
				if x := <-a.got; x.Start {
					started <- a
				} else if x.Follow != nil {
					follows.Add(1)
				}
			}()
		}
		starter = <-started
		p.onLoop(func() { starter.tape.Head(nil, events()) })
		trial.Eventually(t, "three follow", func() bool { return follows.Load() == 3 })
		p.onLoop(func() { starter.tape.End(nil, nil) })
		trial.Eventually(t, "the recording is complete", func() bool { return nodes[0].Stats().Whole+nodes[1].Stats().Whole == 1 })
		for _, a := range all {
			a.Leave()
			a.Leave()
		}
	}
}

func TestVoidLetsTheNextStart(t *testing.T) {
	p := newPlace(t)
	r := p.node(true)
	first := p.query(r, "")
	if x := first.answer(t); !x.Start {
		t.Fatalf("%+v", x)
	}
	second := p.query(r, "")
	p.onLoop(first.tape.Void)
	first.Leave()
	if x := second.answer(t); !x.Start {
		t.Fatalf("%+v", x)
	}
	p.onLoop(second.tape.Void)
	second.Leave()
	trial.Eventually(t, "nothing is being recorded", func() bool { return r.Stats().Running == 0 })
}

func TestClaimOfALeavingClientPassesToTheNext(t *testing.T) {
	p := newPlace(t)
	r := p.node(true)
	for range 50 {
		a, b := p.query(r, ""), p.query(r, "")
		a.Leave()
		var x Answer
		select {
		case <-a.got: // it had been answered already: who is gone returns it
			p.onLoop(a.tape.Void)
			x = b.answer(t)
		case x = <-b.got:
		}
		if !x.Start {
			t.Fatalf("%+v", x)
		}
		p.onLoop(b.tape.Void)
		b.Leave()
		trial.Eventually(t, "nothing is being recorded", func() bool { return r.Stats().Running == 0 })
	}
}

func TestRecordingOfADeadNodeIsEnded(t *testing.T) {
	p := newPlace(t)
	dead := New(Options{Hub: p.hub, Alone: true})
	a := p.query(func() *Recorder { var err error; p.cfg, err = dead.Check(p.cfg); must(t, err); return dead }(), "")
	if x := a.answer(t); !x.Start {
		t.Fatalf("%+v", x)
	}
	p.onLoop(func() {
		a.tape.Head(nil, events())
		a.tape.Body(nil, []byte("data: 1\n\n"))
	})
	trial.Eventually(t, "the event is recorded", func() bool { return dead.Stats().Events == 1 })
	dead.cancel() // as if the process were gone: nothing is ended
	dead.clerk.Wait()
	dead.writers.Wait()
	r := p.node(true)
	at := hub.Position{Epoch: a.tape.start.Epoch, Offset: a.tape.start.Offset}
	b := p.query(r, at.String())
	x := b.answer(t)
	if x.Follow == nil || x.Follow.Since != at.String() || x.Follow.Channel != a.tape.channel {
		t.Fatalf("%+v", x)
	}
	if n := r.Stats().Lost; n != 1 {
		t.Errorf("%d lost", n)
	}
	if c := p.query(r, ""); !c.answer(t).Start {
		t.Error("a request without a position does not start anew")
	} else {
		p.onLoop(c.tape.Void)
		c.Leave()
	}
	b.Leave()
}

func TestTapeReadsAtTheLogsPace(t *testing.T) {
	p := newPlace(t)
	r := p.node(true)
	a := p.query(r, "")
	if x := a.answer(t); !x.Start {
		t.Fatalf("%+v", x)
	}
	full := false
	p.onLoop(func() {
		a.tape.mu.Lock() // the writer cannot take anything off the queue meanwhile
		a.tape.state = tapeOpen
		for range maxQueueEvents + 1 {
			a.tape.queue.push(queued{data: []byte("{}")})
		}
		full = a.tape.queue.full()
		a.tape.mu.Unlock()
		a.tape.r.writers.Go(a.tape.write)
	})
	if !full {
		t.Error("a queue at its bound takes more")
	}
	trial.Eventually(t, "the queue is written", func() bool { return r.Stats().Events == maxQueueEvents+1 })
	p.onLoop(func() { a.tape.End(nil, nil) })
	trial.Eventually(t, "the recording is complete", func() bool { return r.Stats().Running == 0 && r.Stats().Whole == 1 })
	a.Leave()
}
