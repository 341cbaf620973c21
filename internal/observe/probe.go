package observe

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/observe/metrics"
	"github.com/weir-gateway/weir/internal/observe/telemetry"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Probe is a broker that follows some publications from the call to the sockets: one
// every few milliseconds, those that are traced, and no more than maxFlights at a time.
// The others cost a look at the clock. It is between the hub and the broker, so that
// neither knows of it.
//
// What a loop did with a message is known by its shard's count of deliveries and by the
// end of the tick in which that rose: the loop is posted a check before the message comes,
// and that it has come after. Streams over HTTP/2, which no loop writes, are not followed.
type Probe struct {
	offers

	// Fixed before Start.
	loops []*loopProbe
	base  time.Time

	// Any goroutine.
	due      atomic.Int64 // when the next may be followed, since base
	airborne atomic.Int32 // len(flights)
	lost     atomic.Uint64
	failed   atomic.Uint64
	delivery metrics.Shared
	store    metrics.Shared

	// telemetry gets the spans of those that are traced; nil: none are. Fixed before Start.
	telemetry *telemetry.Telemetry

	mu      sync.Mutex
	flights []*flight
	free    []*flight // that ended in order, for the next
	follows followRequests
}

const (
	maxFlights = 64
	// maxFollowRequests is how many publishes may be on their way here with a trace.
	maxFollowRequests = 64
	// sampleEvery is the least time between two publications that are followed.
	sampleEvery = 4 * time.Millisecond
	// unseenAfter is how long a message may take from its answer to its arrival here; one
	// without a subscriber here does not come at all.
	unseenAfter = 2 * time.Second
	// aloneAfter is the same for one with a waiter, or that is traced.
	aloneAfter = 100 * time.Millisecond
)

// offers is a broker with what the hub looks for besides in one.
type offers struct{ hub.Broker }

// Continues implements hub.Continuer.
func (o offers) Continues(ns *hub.Namespace, epoch string) []hub.Position {
	if c, ok := o.Broker.(hub.Continuer); ok {
		return c.Continues(ns, epoch)
	}
	return nil
}

// SubscribeSince implements hub.Resumer.
func (o offers) SubscribeSince(ctx context.Context, ns *hub.Namespace, channel string, tail int, since hub.Positions) (hub.Snapshot, error) {
	if r, ok := o.Broker.(hub.Resumer); ok {
		return r.SubscribeSince(ctx, ns, channel, tail, since)
	}
	return o.Broker.Subscribe(ctx, ns, channel, tail)
}

// Opened implements hub.Opener.
func (o offers) Opened() time.Time {
	if b, ok := o.Broker.(hub.Opener); ok {
		return b.Opened()
	}
	return time.Time{}
}

// archiveProbe is a probe over a broker with an archive: the hub looks for that.
type archiveProbe struct {
	*Probe
	hub.Archive
}

// NewProbe returns a Probe, and the broker that the hub is to have.
func NewProbe(b hub.Broker) (*Probe, hub.Broker) {
	p := &Probe{offers: offers{b}, base: time.Now()}
	if a, ok := b.(hub.Archive); ok {
		return p, archiveProbe{p, a}
	}
	return p, p
}

// Deliveries are the times from a publish to the sockets, of the publications that were
// followed, one for each loop that delivered.
func (p *Probe) Deliveries() (c metrics.Counts) {
	p.delivery.AddTo(&c)
	return c
}

// Stores are the times from a publish to the broker's answer.
func (p *Probe) Stores() (c metrics.Counts) {
	p.store.AddTo(&c)
	return c
}

// UnderWay is how many publications are followed, and how many are waited for.
func (p *Probe) UnderWay() (followed, wanted int) {
	return int(p.airborne.Load()), int(p.follows.n.Load())
}

// Add implements hub.Changer.
func (p *Probe) Add(ctx context.Context, n hub.Namespace) error {
	c, ok := p.Broker.(hub.Changer)
	if !ok {
		return errFixedNamespaces
	}
	return c.Add(ctx, n)
}

// Change implements hub.Changer.
func (p *Probe) Change(ctx context.Context, n hub.Namespace) error {
	c, ok := p.Broker.(hub.Changer)
	if !ok {
		return errFixedNamespaces
	}
	return c.Change(ctx, n)
}

var errFixedNamespaces = errors.New("the broker cannot change its namespaces while it runs")

// Attach makes the loops report, and traces go to t. Before they run, once.
func (p *Probe) Attach(loops []*eventloop.Loop, shards []*hub.Shard, t *telemetry.Telemetry) {
	p.telemetry = t
	for i, l := range loops {
		lp := &loopProbe{probe: p, loop: l, shard: shards[i]}
		l.OnTickEnd(lp.tickEnded)
		p.loops = append(p.loops, lp)
	}
}

// A flight is one publication that is followed. What is sampled takes one that was used
// before, with its functions: watching is not to make work for the collector.
type flight struct {
	// Fixed when it is made.
	probe       *Probe
	landed      func(hub.Position, error)
	arms, comes []func() // by loop
	accepted    time.Time
	channel     string
	data        []byte
	then        func(hub.Position, error) // the publisher's
	trace       *policy.Trace             // nil: no span is made of it
	done        func(*flight)             // called once, when it is over; nil for samples
	// bases are where the loops were before they were given the message. Written before
	// arms are posted, each read by its loop.
	bases []base

	// Guarded by probe.mu.
	matched  bool // deliver has brought it
	answered bool
	over     bool
	err      error
	at       hub.Position // the broker's answer
	came     hub.Position // what was delivered
	stored   time.Duration
	arrived  time.Duration
	queued   time.Duration
	left     int // who has not reported: the loops, and deliver
	wrote    []written
}

// base is the values of a loop's counters.
type base struct {
	delivered uint64
	stats     eventloop.Stats
}

// written is a loop's part of a flight.
type written struct {
	loop             int
	woken, done      time.Duration
	delivered, sends uint64
	bytes            uint64
}

// A followRequest is a request to follow a publication: of any data on a channel, or of data
// that is known by where it is.
type followRequest struct {
	channel string
	data    *byte // nil: any
	began   func(*flight)
	done    func(*flight) // nil: it has no waiter
	trace   *policy.Trace // of the publish, on whatever channel; nil: none
}

// Publish implements hub.Broker.
func (p *Probe) Publish(ns *hub.Namespace, pub hub.Publication, done func(hub.Position, error)) {
	f := p.takeoff(&pub)
	if f == nil {
		p.Broker.Publish(ns, pub, done)
		return
	}
	f.then = done
	p.Broker.Publish(ns, pub, f.landed)
}

// Start implements hub.Broker.
func (p *Probe) Start(ctx context.Context, namespaces []hub.Namespace, deliver func(*hub.Message)) error {
	return p.Broker.Start(ctx, namespaces, func(m *hub.Message) {
		if p.airborne.Load() == 0 {
			deliver(m)
			return
		}
		p.deliver(m, deliver)
	})
}

// takeoff starts to follow pub, if it is time to, or it is requested.
func (p *Probe) takeoff(pub *hub.Publication) *flight {
	now := pub.Time()
	since, due := now.Sub(p.base), p.due.Load()
	sample := int64(since) >= due && p.due.CompareAndSwap(due, int64(since+sampleEvery))
	var tr *policy.Trace
	if part := p.telemetry.Sample(); part > 0 && rand.Float64() < part {
		tr = &policy.Trace{Flags: policy.FlagSampled | policy.FlagRandom}
	}
	if !sample && tr == nil && p.follows.n.Load() == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.follows.match(pub)
	if w != nil && w.trace != nil {
		tr = w.trace
	}
	if w == nil && tr == nil && !sample {
		return nil
	}
	p.dropUnseen(now)
	if len(p.flights) >= maxFlights && (w == nil || w.done == nil) {
		p.lost.Add(1)
		if tr != nil {
			p.telemetry.Drop()
		}
		return nil
	}
	f := p.flight()
	f.channel, f.data, f.accepted, f.left = pub.Channel, pub.Data, now, len(p.loops)+1
	f.trace = tr
	if w != nil && w.done != nil {
		f.done = w.done
		w.began(f)
	}
	p.flights = append(p.flights, f)
	p.airborne.Store(int32(len(p.flights)))
	return f
}

// flight returns one to be used. p.mu is held.
func (p *Probe) flight() *flight {
	if n := len(p.free); n > 0 {
		f := p.free[n-1]
		p.free = p.free[:n-1]
		return f
	}
	f := &flight{probe: p}
	f.landed = f.land
	f.bases = make([]base, len(p.loops))
	for i, l := range p.loops {
		f.arms = append(f.arms, func() { l.arm(f, f.bases[i]) })
		f.comes = append(f.comes, func() { l.came(f) })
	}
	f.wrote = make([]written, 0, len(p.loops))
	return f
}

// recycle keeps f for the next, if there is no other reference to it. p.mu is held.
func (p *Probe) recycle(f *flight) {
	if f.done != nil || !f.matched || len(p.free) == maxFlights {
		return
	}
	*f = flight{probe: p, landed: f.landed, arms: f.arms, comes: f.comes, bases: f.bases, wrote: f.wrote[:0]}
	p.free = append(p.free, f)
}

// followRequests are what the next publications are to be followed for. Guarded by Probe.mu, but
// for n.
type followRequests struct {
	list []*followRequest
	n    atomic.Int32 // len(list); any goroutine
}

// match returns the request that pub meets, once.
func (ws *followRequests) match(pub *hub.Publication) *followRequest {
	for i, w := range ws.list {
		if (w.channel == pub.Channel || w.trace != nil) && (w.data == nil || len(pub.Data) > 0 && w.data == &pub.Data[0]) {
			ws.remove(i)
			return w
		}
	}
	return nil
}

func (ws *followRequests) remove(i int) {
	ws.list = slices.Delete(ws.list, i, i+1)
	ws.n.Store(int32(len(ws.list)))
}

// follow adds a request; drop removes it.
func (p *Probe) follow(w *followRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ws := &p.follows; w.trace != nil && len(ws.list) >= maxFollowRequests { // those whose publish was refused are left
		if i := slices.IndexFunc(ws.list, func(w *followRequest) bool { return w.trace != nil }); i >= 0 {
			ws.remove(i)
		}
	}
	p.follows.list = append(p.follows.list, w)
	p.follows.n.Store(int32(len(p.follows.list)))
}

func (p *Probe) drop(w *followRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.follows.list, w); i >= 0 {
		p.follows.remove(i)
	}
}

// dropUnseen ends the flights that were stored and did not come, since there is no subscriber here
// or since another of the same bytes was treated as them. p.mu is held.
func (p *Probe) dropUnseen(now time.Time) {
	for i := len(p.flights) - 1; i >= 0; i-- {
		if f := p.flights[i]; f.answered && !f.matched && now.Sub(f.accepted)-f.stored > unseenAfter {
			p.remove(f)
		}
	}
}

// remove takes f from the list. p.mu is held.
func (p *Probe) remove(f *flight) {
	f.over = true
	for i := range p.flights {
		if p.flights[i] == f {
			p.flights = append(p.flights[:i], p.flights[i+1:]...)
			break
		}
	}
	p.airborne.Store(int32(len(p.flights)))
}

// land is the broker's answer.
func (f *flight) land(at hub.Position, err error) {
	p, then, took := f.probe, f.then, time.Since(f.accepted)
	p.mu.Lock()
	f.answered, f.at, f.err, f.stored = true, at, err, took
	end := !f.over && (err != nil && !f.matched || f.ended())
	if end {
		p.remove(f)
	}
	alone := !end && (f.done != nil || f.trace != nil) && !f.matched && !f.over
	p.mu.Unlock()
	if alone {
		time.AfterFunc(aloneAfter, func() { p.unseen(f) })
	}
	if err == nil {
		p.store.Observe(took)
	}
	if end {
		f.finish()
	}
	then(at, err)
}

// unseen ends f if it was stored and has not come: there is no subscriber here.
func (p *Probe) unseen(f *flight) {
	p.mu.Lock()
	end := !f.over && !f.matched
	if end {
		p.remove(f)
	}
	p.mu.Unlock()
	if end {
		f.finish()
	}
}

// deliver passes m on, and follows it if it is a flight's.
func (p *Probe) deliver(m *hub.Message, deliver func(*hub.Message)) {
	f := p.match(m)
	if f == nil {
		deliver(m)
		return
	}
	ended := 0
	for i, l := range p.loops {
		f.bases[i] = base{l.shard.Delivered(), l.loop.Stats()}
	}
	for i, l := range p.loops {
		if !l.loop.Post(f.arms[i]) {
			ended++
		}
	}
	deliver(m)
	queued := time.Since(f.accepted)
	p.mu.Lock()
	f.queued = queued
	f.left -= ended
	p.mu.Unlock()
	for i, l := range p.loops {
		l.loop.Post(f.comes[i]) // one that has ended has no arm either, or is ending
	}
	f.report(nil)
}

// match returns the flight that m is the message of.
func (p *Probe) match(m *hub.Message) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropUnseen(time.Now())
	for _, f := range p.flights {
		if !f.matched && !f.over && f.channel == m.Channel && (!f.answered || f.at.Same(m.Position())) && bytes.Equal(f.data, m.Data) {
			f.matched, f.came, f.arrived = true, m.Position(), time.Since(f.accepted)
			return f
		}
	}
	return nil
}

// ended reports whether everybody has reported. probe.mu is held.
func (f *flight) ended() bool { return f.answered && f.matched && f.left <= 0 }

// report is a loop's, or deliver's; w is nil if it wrote nothing.
func (f *flight) report(w *written) {
	p := f.probe
	p.mu.Lock()
	if w != nil {
		f.wrote = append(f.wrote, *w)
	}
	f.left--
	end := !f.over && f.ended()
	if end {
		p.remove(f)
	}
	p.mu.Unlock()
	if end {
		f.finish()
	}
}

// finish counts what was seen, once and when there is no other reference to the flight.
func (f *flight) finish() {
	switch {
	case f.err != nil:
		f.probe.failed.Add(1)
	case f.matched && f.came != f.at:
		f.probe.lost.Add(1) // another one of the same bytes
	default:
		for _, w := range f.wrote {
			f.probe.delivery.Observe(w.done)
		}
	}
	if f.trace != nil {
		f.spans()
	}
	if f.done != nil {
		f.done(f)
	}
	f.probe.mu.Lock()
	f.probe.recycle(f)
	f.probe.mu.Unlock()
}

// waiting returns how many of those followed the broker has not answered, and how long
// the oldest has waited.
func (p *Probe) waiting(now time.Time) (n int, oldest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.flights {
		if !f.answered {
			n++
			oldest = max(oldest, now.Sub(f.accepted))
		}
	}
	return n, oldest
}

// loopProbe is the probe's part on a loop. It belongs to the loop's goroutine.
type loopProbe struct {
	probe *Probe
	loop  *eventloop.Loop
	shard *hub.Shard
	marks []mark
}

// mark is a flight that may come to the loop.
type mark struct {
	f         *flight
	delivered uint64
	stats     eventloop.Stats
	came      bool // it is in the shard's queue, or was
	wrote     bool
	w         written
}

// arm starts to look for f. The loop may have delivered it already: b is from before.
func (l *loopProbe) arm(f *flight, b base) {
	l.marks = append(l.marks, mark{f: f, delivered: b.delivered, stats: b.stats})
}

func (l *loopProbe) came(f *flight) {
	for i := range l.marks {
		if l.marks[i].f == f {
			l.marks[i].came = true
		}
	}
}

// tickEnded looks which flights the tick has written.
func (l *loopProbe) tickEnded(now int64) {
	for i := len(l.marks) - 1; i >= 0; i-- {
		m := &l.marks[i]
		if !m.wrote {
			l.look(m, now)
		}
		if !m.came {
			continue
		}
		f, wrote, w := m.f, m.wrote, m.w
		l.marks = append(l.marks[:i], l.marks[i+1:]...)
		if wrote {
			f.report(&w)
		} else {
			f.report(nil)
		}
	}
}

// look finds out whether the shard has delivered since the mark was made.
func (l *loopProbe) look(m *mark, now int64) {
	s := l.loop.Stats()
	n := l.shard.Delivered() - m.delivered
	if n == 0 {
		m.stats = s // of the tick that is over
		return
	}
	at := func(t int64) time.Duration { return max(l.loop.Time(t).Sub(m.f.accepted), 0) }
	m.wrote, m.w = true, written{
		loop: l.loop.ID(), woken: at(l.loop.Now()), done: at(now),
		delivered: n, sends: s.Sends - m.stats.Sends, bytes: s.BytesOut - m.stats.BytesOut,
	}
}

// abandon ends the flight that get returns, as it is; nil is none.
func (p *Probe) abandon(get func() *flight) {
	p.mu.Lock()
	if f := get(); f != nil && !f.over {
		p.remove(f)
	}
	p.mu.Unlock()
}
