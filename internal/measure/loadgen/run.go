package loadgen

import (
	"context"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// maxWindows bounds those of a result; beyond it neighbours are merged.
	maxWindows = 1024
	// longestPiece is how often the shards' counts are collected.
	longestPiece = time.Second
	// rampStep is how often a ramp of connections is looked at.
	rampStep = 20 * time.Millisecond
	// patience is how long a delivery is waited for when nothing comes any more, backPatience where subscribers
	// come back: one that has just done so has its history still to come.
	patience     = 500 * time.Millisecond
	backPatience = 3 * time.Second
	// gcPercent is the collector's while something is measured: it runs a quarter as
	// often.
	gcPercent = 400
)

// A session is one Run or Measure under way.
type session struct {
	g     *Generator
	begin int64 // on the generator's clock; of the schedule, warm-up included
	rate  curve
	conns curve
	load  Load // of a Measure: what was asked for
	open  bool // the open model
	ramp  bool // conns changes

	acc       *piece // of the window so far
	batches   []Batch
	from      int64 // the window's beginning; 0 during the warm-up
	lastBatch int64
	over      bool // the quota is used up
	ended     uint64
	endedAt   int64 // when ended last changed
	before    hostSample
	done      func(Window)
}

// Run carries out the Spec. A done ctx ends it early: what was measured so far is
// returned with Result.Partial set and no error.
func (g *Generator) Run(ctx context.Context) (*Result, error) {
	if !g.busy.TryLock() {
		return nil, errBusy
	}
	defer g.busy.Unlock()
	r := &Result{Version: Version, Spec: g.spec, Started: time.Now(), Machine: LocalMachine()}
	if err := g.connect(ctx); err != nil {
		if ctx.Err() != nil && !g.closing.Load() {
			r.Partial = true
			return r, nil
		}
		return nil, err
	}
	defer tuneRuntime(procs(&g.spec, len(g.shards)))()
	rate, conns := g.spec.curves()
	g.quota.reset(g.spec.Requests)
	s := &session{g: g, rate: rate, conns: conns, open: g.spec.exchanges() && !g.spec.Closed, ramp: len(g.spec.Stages) > 0}
	if g.spec.Closed {
		s.load.Concurrency = g.spec.Concurrency
	}
	keep := &keeper{r: r}
	s.done = keep.window
	r.Started = time.Now()
	r.Partial = !s.carryOut(ctx, g.spec.Warmup, g.spec.Window)
	keep.finish()
	g.view.set("done", time.Now(), 0)
	if err := g.broken.Load(); err != nil {
		return nil, *err
	}
	return r, nil
}

// Measure puts load on the target for d and returns what was seen. Connections
// stay open between calls; what is under way at the end is waited for. A done ctx
// ends it early: the window is shorter then.
func (g *Generator) Measure(ctx context.Context, load Load, d time.Duration) (*Window, error) {
	if !g.busy.TryLock() {
		return nil, errBusy
	}
	defer g.busy.Unlock()
	if err := g.checkLoad(load, d); err != nil {
		return nil, err
	}
	if err := g.connect(ctx); err != nil {
		return nil, err
	}
	if load.Conns > 0 && load.Conns != len(g.links) {
		if err := g.ramp(ctx, load.Conns); err != nil {
			return nil, err
		}
	}
	defer tuneRuntime(procs(&g.spec, len(g.shards)))()
	n := float64(len(g.links))
	g.quota.reset(0)
	s := &session{
		g: g, rate: curve{{d, load.Rate, load.Rate}}, conns: curve{{d, n, n}}, load: load,
		open: g.spec.exchanges() && load.Concurrency <= 0,
	}
	var w *Window
	s.done = func(one Window) { w = &one }
	s.carryOut(ctx, 0, d)
	if err := g.broken.Load(); err != nil {
		return nil, *err
	}
	return w, nil
}

// procs is how many Ps Go's runtime needs. A loop that waits, and a pacer that sleeps, in
// a system call keep their P until the runtime's monitor takes it away, up to 10 ms later:
// with fewer Ps than those a loop waits for that, and with no more than those a goroutine
// of HTTP/2 does.
func procs(s *Spec, loops int) int {
	n := loops + 1
	if s.Version == "2" {
		n++
	}
	return n
}

// tuneRuntime fits Go's runtime to measuring, with at least want Ps, and returns what
// undoes it.
func tuneRuntime(want int) (undo func()) {
	gc := debug.SetGCPercent(gcPercent)
	had := runtime.GOMAXPROCS(0)
	if had < want {
		runtime.GOMAXPROCS(want)
	}
	return func() {
		debug.SetGCPercent(gc)
		if had < want {
			runtime.GOMAXPROCS(had)
		}
	}
}

// ramp changes the connections before a Measure, and waits for the new ones.
func (g *Generator) ramp(ctx context.Context, n int) error {
	if err := g.roomFor(n); err != nil {
		return err
	}
	var done <-chan error
	if more := n - len(g.links); more > 0 {
		done = g.waiter.expect(more)
	}
	g.setConns(n)
	if done == nil {
		return nil
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// carryOut makes the load of s: first the warm-up, of which nothing is kept, then
// windows of the given length. It reports whether it came to the end.
func (s *session) carryOut(ctx context.Context, warmup, window time.Duration) (whole bool) {
	g := s.g
	s.begin = g.now()
	if s.open {
		s.begin += int64(time.Millisecond) // to have everything ready
	}
	counts := s.begin + int64(warmup)
	end := s.begin + int64(s.rate.length())
	s.setUp(counts)
	if warmup == 0 {
		s.start(counts)
	}
	var stop atomic.Bool
	var paced <-chan struct{}
	if s.open {
		sch := newSchedule(g.spec.Arrival, g.spec.Burst, s.rate, rand.New(rand.NewPCG(g.rng.Uint64(), g.rng.Uint64())))
		paced = g.startPacer(sch, s.begin, &stop)
	}
	if warmup > 0 {
		g.view.set("warm-up", time.Now(), s.rate.length())
	}
	whole = s.wait(ctx, counts)
	if whole {
		if warmup > 0 {
			s.start(counts)
		}
		g.view.set("measuring", time.Now(), s.expected()-warmup)
		whole = s.windows(ctx, counts, end, window)
	}
	stop.Store(!whole)
	if paced != nil {
		<-paced
	}
	g.view.set("draining", time.Now(), 0)
	s.wind(ctx, whole)
	return whole
}

// expected is how long the load lasts, warm-up included; 0 means unknown.
func (s *session) expected() time.Duration {
	n := float64(s.g.spec.Requests)
	switch d := s.rate.length(); {
	case n == 0:
		return d
	case s.open && s.rate.integral(d) > n && len(s.g.spec.Stages) == 0:
		return time.Duration(n / s.rate.at(0) * float64(time.Second))
	case s.open, d < 24*time.Hour:
		return d
	}
	return 0
}

// setUp prepares the shards: arrivals from counts on are counted, and in a closed
// loop they start.
func (s *session) setUp(counts int64) {
	g := s.g
	for i, sh := range g.shards {
		quota := 0
		if c := s.load.Concurrency; c > 0 {
			quota = c*(i+1)/len(g.shards) - c*i/len(g.shards)
		}
		sh.do(func() {
			sh.since = counts
			sh.draining = false
			sh.closed = quota
			sh.touch()
			sh.serve()
		})
	}
	s.load.Conns = len(g.links)
	g.view.setLoad(Load{Rate: s.rate.at(0), Concurrency: s.load.Concurrency, Conns: len(g.links)})
}

// start starts the first window. What counts of it has started already may have been
// counted: arrivals are distinguished by their intended instants.
func (s *session) start(counts int64) {
	g := s.g
	for _, sh := range g.shards {
		sh.do(func() {
			sh.account(sh.touch())
			sh.rec.forget()
			d := float64(sh.now-counts) / 1e9 // slightly early or late
			sh.rec.busy, sh.rec.open = d*float64(sh.inFlight), d*float64(sh.open)
		})
	}
	s.before = g.sampleHost()
	s.from, s.lastBatch = counts, counts
}

// wait sleeps until the clock shows at, and changes connections meanwhile where
// there is a ramp. It is false when ctx is done.
func (s *session) wait(ctx context.Context, at int64) bool {
	g := s.g
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := g.now()
		if now >= at || s.over {
			return ctx.Err() == nil
		}
		d := time.Duration(at - now)
		if s.ramp {
			d = min(d, rampStep)
			t := time.Duration(now - s.begin)
			if n := int(s.conns.at(t) + 0.5); n != len(g.links) {
				g.setConns(n)
			}
			g.view.setLoad(Load{Rate: s.rate.at(t), Concurrency: s.load.Concurrency, Conns: len(g.links)})
		}
		timer.Reset(d)
		select {
		case <-ctx.Done():
			return false
		case <-g.quota.done:
			s.over = true
		case <-timer.C:
		}
	}
}

// windows collects pieces and makes windows of them until end, but for the last
// window, which wind ends.
func (s *session) windows(ctx context.Context, from, end int64, window time.Duration) bool {
	pieces := int64(max(1, (window+longestPiece-1)/longestPiece))
	k := int64(0)
	for at := from; at < end; {
		k++
		at = min(from+int64(window)*(k/pieces)+int64(window)*(k%pieces)/pieces, end)
		if !s.wait(ctx, at) {
			return false
		}
		if at == end || s.over {
			return true
		}
		if s.stuck() {
			return false
		}
		s.piece()
		if k%pieces == 0 {
			s.window()
		}
	}
	return true
}

// stuck reports that a run of a number of requests will not come to its end: in the
// closed loop nothing has ended for twice the time that an exchange may take, as when
// the target does not accept connections any more.
func (s *session) stuck() bool {
	q := &s.g.quota
	if q.limit.Load() == 0 || s.open {
		return false
	}
	now := s.g.now()
	if n := q.ended.Load(); n != s.ended || s.endedAt == 0 {
		s.ended, s.endedAt = n, now
	}
	return now-s.endedAt > 2*int64(s.g.spec.Timeout)
}

// piece collects what the shards have counted.
func (s *session) piece() {
	if s.acc == nil {
		s.acc = &piece{delivery: Delivery{Reach: 1}}
	}
	before := *s.acc
	s.g.collect(s.acc)
	s.batch(&before)
}

// batch notes the difference to what was before.
func (s *session) batch(before *piece) {
	a := s.acc
	b := Batch{Completed: a.Answered() - before.Answered()}
	if n := a.responses - before.responses; n > 0 {
		b.MeanResponse = (a.responseSum - before.responseSum) / float64(n)
	}
	now := s.g.now()
	if d := float64(now-s.lastBatch) / 1e9; d > 0 {
		b.InFlight = (a.busy - before.busy) / d
	}
	s.lastBatch = now
	s.batches = append(s.batches, b)
}

// window ends the window so far and starts the next.
func (s *session) window() {
	s.finish(s.lastBatch, s.g.sampleHost())
}

// finish makes a window of what was collected, up to now.
func (s *session) finish(now int64, host hostSample) {
	g := s.g
	a := s.acc
	from, to := time.Duration(s.from-s.begin), time.Duration(now-s.begin)
	w := Window{
		Start: g.start.Add(time.Duration(s.from)).Round(0), Length: time.Duration(now - s.from), Batches: s.batches,
		Load: Load{Concurrency: s.load.Concurrency, Conns: len(g.links)},
	}
	if s.open {
		w.Load.Rate = s.rate.mean(max(from, 0), min(to, s.rate.length()))
	}
	a.into(&w)
	if g.spec.streams() {
		d := a.delivery
		d.Lost = uint64(max(a.lost, 0))
		d.Reach = g.flows.reach(a)
		w.Delivery = &d
	}
	host.since(&s.before, &w)
	w.evaluate(len(g.shards))
	g.view.finished(&w)
	s.done(w)
	s.acc, s.batches, s.before, s.from = nil, nil, host, now
}

// reach is the least share of its subscribers that a message got to.
func (f *flows) reach(a *piece) float64 {
	if f == nil {
		return 1
	}
	least := 1.0
	for flow, n := range worst(a.misses) {
		if subs := f.standing[int(flow)/f.publishers].Load(); subs > 0 {
			least = min(least, max(0, 1-float64(n)/float64(subs)))
		} else {
			least = 0
		}
	}
	if a.missed && a.delivery.Expected > 0 { // more than could be remembered
		least = min(least, float64(a.delivery.Received)/float64(a.delivery.Expected))
	}
	return least
}

// wind ends the load: it waits for what is under way, and makes the last window.
func (s *session) wind(ctx context.Context, whole bool) {
	g := s.g
	for _, sh := range g.shards {
		sh.do(func() { sh.closed = 0 })
	}
	if s.from == 0 { // still in the warm-up
		for _, sh := range g.shards {
			sh.do(sh.abandon)
		}
		return
	}
	s.piece()
	end, host := s.lastBatch, g.sampleHost()
	for _, sh := range g.shards {
		sh.do(func() { sh.draining = true })
	}
	if whole {
		s.drain(ctx)
	}
	for _, sh := range g.shards {
		sh.do(func() {
			sh.touch()
			sh.abandon()
		})
	}
	if g.flows != nil {
		s.settle()
	}
	busy, open := s.acc.busy, s.acc.open
	g.collect(s.acc)
	s.acc.busy, s.acc.open = busy, open // of the window, not of what came after
	s.finish(end, host)
}

// drain waits until nothing is under way, and until what was published has come,
// for as long as anything still comes.
func (s *session) drain(ctx context.Context) {
	g := s.g
	giveUp, quiet := g.now()+int64(g.spec.Timeout)+int64(time.Second), int64(patience)
	if g.spec.Reconnect {
		quiet = int64(backPatience)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	last, changed := ^uint64(0), g.now()
	for ctx.Err() == nil {
		inFlight, missing, away := 0, uint64(0), false
		for _, sh := range g.shards {
			sh.do(func() {
				sh.touch()
				sh.serve()
				inFlight += sh.inFlight
			})
		}
		if inFlight == 0 && g.flows != nil {
			missing, away = s.missing()
			if len(g.links) > 1000 {
				tick.Reset(20 * time.Millisecond)
			}
		}
		now := g.now()
		if missing != last {
			last, changed = missing, now
		}
		switch {
		case inFlight == 0 && missing == 0, now > giveUp, inFlight == 0 && !away && now-changed > quiet:
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// eachStream calls f with every subscriber, on its loop.
func (s *session) eachStream(f func(*stream)) {
	for _, sh := range s.g.shards {
		sh.do(func() {
			for _, h := range s.g.links {
				if st, ok := h.(*stream); ok && st.s == sh {
					f(st)
				}
			}
		})
	}
}

// missing is how many messages have not come yet. away says that subscribers which
// lack some are about to come back.
func (s *session) missing() (n uint64, away bool) {
	s.eachStream(func(h *stream) {
		m := h.missing()
		n += m
		away = away || m > 0 && !h.ready
	})
	return n, away
}

func (s *session) settle() {
	s.eachStream(func(h *stream) { h.settle() })
}

// collect adds what all shards have counted to p.
func (g *Generator) collect(p *piece) {
	now := &piece{delivery: Delivery{Reach: 1}}
	for i, sh := range g.shards {
		var old *piece
		empty := g.spare[i]
		if !sh.do(func() { old = sh.exchangePiece(empty) }) {
			continue
		}
		now.add(old)
		old.reset()
		g.spare[i] = old
	}
	g.view.saw(now)
	p.add(now)
}

// A keeper keeps the windows of a result within bounds.
type keeper struct {
	r      *Result
	merged int // how many make one
	open   int // how many are in the last one
}

func (k *keeper) window(w Window) {
	r := k.r
	r.Total.Merge(&w)
	for _, h := range w.Times.all() {
		*h = coarse(*h)
	}
	k.merged = max(k.merged, 1)
	if k.open > 0 && k.open < k.merged {
		r.Windows[len(r.Windows)-1].Merge(&w)
		k.open++
		return
	}
	if len(r.Windows) == maxWindows {
		for i := range maxWindows / 2 {
			r.Windows[2*i].Merge(&r.Windows[2*i+1])
			r.Windows[i] = r.Windows[2*i]
		}
		clear(r.Windows[maxWindows/2:])
		r.Windows = r.Windows[:maxWindows/2]
		k.merged *= 2
	}
	r.Windows = append(r.Windows, w)
	k.open = 1
}

// finish gives up memory that nothing needs.
func (k *keeper) finish() { k.r.Windows = slices.Clip(k.r.Windows) }
