package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Options of a Recorder.
type Options struct {
	Hub *hub.Hub
	// Prefix precedes Path, as in downstream.Config.
	Prefix string
	// Alone reports that no other node writes into the log: then a recording without an
	// end that is not ours has ended with the process that wrote it. Otherwise that is
	// known when it has given no sign of life for a while.
	Alone bool
	// Log gets what goes wrong; nil discards.
	Log *slog.Logger
}

const (
	heartbeatEvery = 10 * time.Second // a recording's sign of life, where there are other nodes
	heartbeatsLost = 35 * time.Second // without one for so long it is over
	lookTime       = 10 * time.Second // bounds how long the log is waited for
	noteTime       = time.Minute      // bounds how long a note is tried to be written
	turnEvery      = 250 * time.Millisecond
	maxEntries     = 20_000 // index channels followed at a time
	stopTime       = 3 * time.Second
)

// A Recorder is the recordings of a process.
type Recorder struct {
	// Fixed at New.
	hub      *hub.Hub
	prefix   string
	alone    bool
	log      *slog.Logger
	instance string

	// Any goroutine.
	wake    chan struct{}
	mu      sync.Mutex // guards calls
	calls   []func()
	ctx     context.Context
	cancel  context.CancelFunc
	clerk   sync.WaitGroup
	writers sync.WaitGroup // of tapes
	tapes   sync.Map       // *Tape that is running → true
	started sync.Once
	closing atomic.Bool
	counters

	// The clerk's goroutine.
	shard   *hub.Shard
	entries map[string]*entry
	changed map[*entry]bool
	running map[string]int // by route
	idle    bool           // nothing is followed: no tick is needed
}

// New returns a Recorder. It does nothing before the first Query.
func New(o Options) *Recorder {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	r := &Recorder{hub: o.Hub, prefix: o.Prefix, alone: o.Alone, log: o.Log, instance: newNonce(), wake: make(chan struct{}, 1),
		entries: map[string]*entry{}, changed: map[*entry]bool{}, running: map[string]int{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Check checks a route's configuration, and returns it with what its zeros mean in
// the namespace.
func (r *Recorder) Check(cfg policy.Record) (policy.Record, error) {
	cfg = cfg.WithDefaults()
	ns, err := r.hub.Namespace(index(cfg.Namespace, "x"))
	switch {
	case err != nil:
		return cfg, fmt.Errorf("record.namespace: %w; add it to namespaces", err)
	case ns.Durability == hub.None:
		return cfg, fmt.Errorf("record.namespace: %q keeps no log; give it durability stored or synced", cfg.Namespace)
	case ns.Partitions > 1:
		return cfg, fmt.Errorf("record.namespace: %q has %d partitions, and a recording and its index must be in one log; use a namespace with partitions: 1",
			cfg.Namespace, ns.Partitions)
	case ns.Anonymous:
		return cfg, fmt.Errorf("record.namespace: %q is open to anonymous subscribers, who could follow any recording; use another", cfg.Namespace)
	case ns.HistorySize < 16:
		return cfg, fmt.Errorf("record.namespace: history_size of %q must be at least 16", cfg.Namespace)
	}
	if cfg.MaxEvents == 0 {
		cfg.MaxEvents = ns.HistorySize - 1
	}
	if cfg.MaxEvents >= ns.HistorySize { // with the last record
		return cfg, fmt.Errorf("record.max_events: %d and a last record are more than history_size of namespace %q holds (%d)",
			cfg.MaxEvents, cfg.Namespace, ns.HistorySize)
	}
	return cfg, nil
}

// A Query is what a client wants.
type Query struct {
	// Record is the route's configuration, as Check returned it; unused with ID.
	Record *policy.Record
	Route  string
	// Key is Request.Key.
	Key   string
	Owner Owner
	// ID requests that recording instead; nothing is started. Attach reports whether the
	// client may.
	ID     *ID
	Attach func(Owner) bool
	// Since is the client's Last-Event-ID. With one nothing is started either.
	Since string
	// Tape gets the recording if there is none yet.
	Tape *Tape
	Loop *eventloop.Loop
	// Then gets the answer on Loop.
	Then func(Answer)
}

func (a *Query) channel() string {
	if a.ID != nil {
		return index(a.ID.namespace, a.ID.key)
	}
	return index(a.Record.Namespace, a.Key)
}

// An Answer reports what comes of a Query. Exactly one field is set.
type Answer struct {
	Start  bool        // the Tape is to be given the exchange, by Tape.Begin or Tape.Void
	Follow *Follow     // the recording is there
	Over   bool        // the client has all of it
	Err    *wire.Error // there is no answer
}

// Follow is where a recording is.
type Follow struct {
	Channel string
	Since   string // the position to subscribe after
	URL     string // where it can be read again
}

// A Viewer is a client that asked. It must leave once.
type Viewer struct {
	r    *Recorder
	gone atomic.Bool

	// The clerk's goroutine.
	query    Query
	entry    *entry // nil: left
	attached bool   // counted in entry.viewers
	since    time.Time
}

// Query starts v. Any goroutine may call it; it does not wait.
func (r *Recorder) Query(a Query) *Viewer {
	v := &Viewer{r: r, query: a, since: time.Now()}
	r.started.Do(func() { r.clerk.Go(r.run) })
	if !r.post(func() { r.look(v) }) {
		a.Loop.Post(func() { a.Then(Answer{Err: wire.ErrorOf(hub.ErrClosed)}) })
	}
	return v
}

// Leave ends v. A recording without viewers continues for as long as it may outlive
// them. Any goroutine may call it; it is idempotent.
func (v *Viewer) Leave() {
	if v != nil && !v.gone.Swap(true) {
		v.r.post(v.leave)
	}
}

// post runs f on the clerk's goroutine. It returns false when there is none any more.
func (r *Recorder) post(f func()) bool {
	r.mu.Lock()
	ok := r.ctx.Err() == nil
	if ok {
		r.calls = append(r.calls, f)
	}
	r.mu.Unlock()
	if ok {
		r.rouse()
	}
	return ok
}

func (r *Recorder) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run is the clerk.
func (r *Recorder) run() {
	r.shard = r.hub.NewShard(r.rouse)
	tick := time.NewTicker(turnEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.wake:
			r.turn()
			if r.idle && len(r.entries) > 0 {
				r.idle = false
				tick.Reset(turnEvery)
			}
		case <-tick.C:
			r.tick(time.Now())
			if len(r.entries) == 0 {
				r.idle = true
				tick.Stop()
			}
		}
	}
}

// turn does what is there to do.
func (r *Recorder) turn() {
	for {
		r.mu.Lock()
		calls := r.calls
		r.calls = nil
		r.mu.Unlock()
		for _, f := range calls {
			f()
		}
		r.shard.Run()
		for e := range r.changed {
			delete(r.changed, e)
			e.decide(time.Now())
		}
		if len(calls) == 0 {
			return
		}
	}
}

func (r *Recorder) tick(now time.Time) {
	for _, e := range r.entries {
		e.tick(now)
	}
	r.turn()
}

// look starts to answer v.
func (r *Recorder) look(v *Viewer) {
	if v.gone.Load() {
		return
	}
	name := v.query.channel()
	e := r.entries[name]
	if e == nil {
		if len(r.entries) >= maxEntries {
			r.refused.Add(1)
			v.answer(Answer{Err: wire.ErrorOf(hub.ErrOverloaded)})
			return
		}
		e = &entry{r: r, index: name}
		r.entries[name] = e
		if err := r.shard.Subscribe(&e.sub, e, hub.SubscribeOptions{Channels: []string{name}, All: true}); err != nil {
			delete(r.entries, name)
			v.answer(Answer{Err: wire.ErrorOf(err)})
			return
		}
	}
	v.entry = e
	e.waiting = append(e.waiting, v)
	r.changed[e] = true
}

func (v *Viewer) answer(a Answer) {
	v.query.Loop.Post(func() { v.query.Then(a) })
}

// leave is Leave on the clerk's goroutine.
func (v *Viewer) leave() {
	e := v.entry
	if e == nil {
		return
	}
	v.entry = nil
	v.detach(e)
	e.r.changed[e] = true
}

// Close ends every recording that is under way here, as broken, and stops the clerk.
// The loops must have ended, and the hub must not. It is idempotent.
func (r *Recorder) Close() {
	if r.closing.Swap(true) {
		return
	}
	running := func() (n int) {
		r.tapes.Range(func(any, any) bool { n++; return true })
		return n
	}
	r.tapes.Range(func(t, _ any) bool {
		t.(*Tape).abort(http.StatusServiceUnavailable, "stopped", "the gateway is stopping")
		return true
	})
	for deadline := time.Now().Add(stopTime); running() > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	r.clerk.Wait()
	r.writers.Wait()
}

// publisher is in whose name the recorder's idempotency keys count: no client's.
const publisher = "weir:recordings"

// firstCame takes another note under the same key for ours, with its position: anyone who comes
// first has the key, and everyone reads in the log what that was.
func firstCame(at hub.Position, err error) (hub.Position, error) {
	if reused, ok := errors.AsType[*hub.KeyReusedError](err); ok {
		return reused.At, nil
	}
	return at, err
}

// publish hands p to the hub and waits for the answer, again and again if the broker
// cannot be had, until ctx ends.
func (r *Recorder) publish(ctx context.Context, p hub.Publication) (hub.Position, error) {
	type answer struct {
		at  hub.Position
		err error
	}
	p.Publisher = publisher
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		got := make(chan answer, 1)
		r.hub.Publish(p, func(at hub.Position, err error) { got <- answer{at, err} })
		var a answer
		select {
		case a = <-got:
		case <-ctx.Done():
			return hub.Position{}, ctx.Err()
		}
		if a.at, a.err = firstCame(a.at, a.err); a.err == nil || !errors.Is(a.err, hub.ErrOverloaded) && !errors.Is(a.err, hub.ErrUnavailable) {
			return a.at, a.err
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return hub.Position{}, a.err
		}
	}
}
