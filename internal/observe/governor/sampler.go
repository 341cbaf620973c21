package governor

import (
	"context"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// totals is everything that only rises, at an instant; what lies between two of them is
// a second or a window.
type totals struct {
	at                           time.Time
	created, allocs              uint64
	lockWait                     float64
	cpu                          time.Duration
	sched, pause, stop, delivery metrics.Counts
	delivered, published         uint64
	broker                       BrokerSample
	slow                         slowReading
	canary                       [3]metrics.Counts
	loops                        []LoopSample
}

func (t *totals) copyFrom(o *totals) {
	loops := append(t.loops[:0], o.loops...)
	*t = *o
	t.loops = loops
}

// A sampler is what a running governor consists of. sample is for one goroutine; the
// rest is started and stopped with it.
type sampler struct {
	// Fixed at newSampler.
	g        *Governor
	t        *Thresholds
	canaries *canaries // nil when there are none
	slow     *slowReader
	stalls   stallSampler
	limit    uint64 // of memory
	files    uint64
	undo     []func()

	// Owned by the sampler's goroutine.
	rt                  *runtimeReader
	machine             *machine
	pacer               *pacer
	view                Snapshot // what the next snapshot is copied from
	cur, second, window totals
	lastSched           metrics.Counts
	collector           collectorWatch
	slope               slopeWatch
	minute              [6]pauses // the minute's pauses, in steps of ten seconds
	ring                [10]ringSlot
	seconds             int
	acc                 accumulator
	sec                 secondAccumulator
	due                 time.Time
	lateUntil           time.Time
	dog                 watchdog
	baseConn            int // when the slow reading was taken, as is the footprint
	baseFootprint       uint64

	kickSlow, kickStalls chan int
	wg                   sync.WaitGroup
}

type pauses struct{ pause, stop metrics.Counts }

// A ringSlot is what the canaries and the broker had counted, a second long; ten of
// them make "the last ten seconds".
type ringSlot struct {
	canary [3]metrics.Counts
	store  metrics.Counts
}

// secondAccumulator gathers what is averaged over a second.
type secondAccumulator struct {
	n                 int
	run, runMax, late float64
	cost              time.Duration
}

func newSampler(g *Governor) *sampler {
	cfg := g.cfg
	c := findCgroup(g.root)
	s := &sampler{
		g: g, t: &g.cfg.Thresholds, slow: newSlowReader(g.root, c), stalls: stallSampler{ask: g.src.Sockets},
		rt: newRuntimeReader(), kickSlow: make(chan int, 1), kickStalls: make(chan int, 1), files: descriptorLimit(),
	}
	s.rt.read()
	s.machine = newMachine(cfg.Thresholds, sys.Processors())
	limit, from := memoryLimit(cfg.Memory, c, g.root)
	s.limit = limit
	s.undo = append(s.undo, applyLimit(limit, from))
	s.pacer = newPacer(cfg.Memory, limit)
	s.undo = append(s.undo, s.pacer.start())
	now := time.Now()
	s.machine.state.Since = now
	s.slow.read(0) // budgets are asked from the first sample on
	s.view = g.Snapshot().fresh(now)
	s.view.Memory.From, s.view.Collector.Policy, s.view.Host.Quota = from, cfg.Memory.Policy, c.quota()
	return s
}

// start starts what runs beside the sampler.
func (s *sampler) start() {
	s.wg.Go(func() {
		for threads := range s.kickSlow {
			s.slow.read(threads)
		}
	})
	if s.stalls.ask != nil {
		s.wg.Go(func() {
			for conns := range s.kickStalls {
				s.stalls.sample(time.Now(), conns)
			}
		})
	}
	if s.g.cfg.Probes.On() {
		c, err := startCanaries()
		if err != nil {
			s.g.log.Warn("no canaries", "err", err)
			return
		}
		s.canaries = c
	}
}

// stop ends everything that start began and returns what was set.
func (s *sampler) stop() {
	close(s.kickSlow)
	close(s.kickStalls)
	if s.canaries != nil {
		s.canaries.stop()
	}
	s.wg.Wait()
	s.slow.close()
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
}

// sample is one look, ten times a second. In steady state it does not allocate,
// unless someone has kept the last snapshot.
func (s *sampler) sample(now time.Time) {
	every := time.Duration(s.g.cfg.Interval)
	begin := time.Now()
	s.lateness(now)
	s.rt.read()
	s.strip()
	s.loops()
	first := s.second.at.IsZero()
	if first {
		s.gather(now)
	}
	s.budgets()
	switch {
	case first:
		s.second.copyFrom(&s.cur)
		s.window.copyFrom(&s.cur)
		s.acc.reset(&s.cur)
		s.startReaders()
	case s.second.over(time.Second, now, every) || s.window.over(time.Duration(s.g.cfg.Window), now, every):
		s.gather(now)
		if s.second.over(time.Second, now, every) {
			s.endSecond(now)
		}
		if s.window.over(time.Duration(s.g.cfg.Window), now, every) {
			s.endWindow(now)
		}
	}
	s.watch(now)
	s.view.Seq++
	s.view.Time = now
	s.g.publish(&s.view)
	if s.canaries != nil { // after the run queue was read: they would appear in it
		s.canaries.send()
	}
	s.sec.cost += time.Since(begin)
}

// over reports whether d has passed since t, to the nearest of samples taken every interval.
func (t *totals) over(d time.Duration, now time.Time, interval time.Duration) bool {
	return now.Sub(t.at) >= d-interval/2
}

// lateness notes by how much this sample came too late. After a long gap nothing that
// compares with the clock is trusted briefly.
func (s *sampler) lateness(now time.Time) {
	if !s.due.IsZero() {
		late := now.Sub(s.due)
		s.sec.late = max(s.sec.late, late.Seconds())
		if late.Seconds() > s.t.LoopStuck/2 {
			s.lateUntil = now.Add(time.Second)
		}
	}
	s.due = now.Add(time.Duration(s.g.cfg.Interval))
}

// strip reads the scheduler's counts.
func (s *sampler) strip() {
	r, v := s.rt, &s.view.Sched
	v.Goroutines, v.Running, v.Runnable = int(r.u(rtGoroutines)), int(r.u(rtRunning)), int(r.u(rtRunnable))
	v.Waiting, v.NotInGo, v.Threads = int(r.u(rtWaiting)), int(r.u(rtNotInGo)), int(r.u(rtThreads))
	v.Procs = sys.Processors()
	queue := float64(v.Runnable) / float64(v.Procs)
	s.sec.n++
	s.sec.run += queue
	s.sec.runMax = max(s.sec.runMax, queue)
	s.acc.n++
	s.acc.run += queue
	s.acc.goroutines = min(s.acc.goroutines, v.Goroutines)
	recent := r.sched.now.Since(&s.lastSched)
	s.lastSched = r.sched.now
	p99 := time.Duration(0)
	if recent.Total() >= 50 {
		p99 = recent.Top(0.99)
	}
	s.g.schedP99.Store(int64(p99))
}

// loops reads the loops' current numbers.
func (s *sampler) loops() {
	if s.g.src.Loops != nil {
		s.cur.loops = s.g.src.Loops(s.cur.loops[:0])
	}
	for len(s.view.Loops) < len(s.cur.loops) {
		s.view.Loops = append(s.view.Loops, LoopView{})
	}
	s.view.Loops = s.view.Loops[:len(s.cur.loops)]
	conns, stalled := 0, 0
	for i := range s.cur.loops {
		l, v := &s.cur.loops[i], &s.view.Loops[i]
		v.ID, v.Inbox, v.Stalled, v.Conns = l.ID, l.Inbox, l.Stalled, l.Conns
		v.LastTick, v.Working = l.LastTick.Seconds(), l.Working.Seconds()
		conns, stalled = conns+l.Conns, stalled+l.Stalled
		s.acc.loop(i, l)
	}
	if s.g.src.Connections != nil {
		conns = s.g.src.Connections()
	}
	s.view.Traffic.Connections, s.view.Stalls.Waiting = conns, stalled
}

// budgets brings the slow readings up to date by what the runtime and the loops
// know at once, so that a burst between two of them does not slip through.
func (s *sampler) budgets() {
	slow := &s.view.Memory
	footprint := s.rt.footprint()
	used := s.cur.slow.used
	if used > 0 && footprint > s.baseFootprint {
		used += footprint - s.baseFootprint
	}
	s.g.memory.set(used, s.limit, s.t)
	slow.Budget = s.g.memory.read()
	open := s.cur.slow.files
	if open > 0 {
		open += max(s.view.Traffic.Connections-s.baseConn, 0)
	}
	s.g.files.set(uint64(open), s.files, s.t)
	s.view.Files.Open, s.view.Files.Budget = open, s.g.files.read()
}

// gather brings cur up to date; sample has done the runtime and the loops.
func (s *sampler) gather(now time.Time) {
	c, r, src := &s.cur, s.rt, &s.g.src
	c.at = now
	c.created, c.allocs, c.lockWait, c.cpu = r.u(rtCreated), r.u(rtAllocs), r.f(rtLockWait), sys.CPUTime()
	c.sched, c.pause, c.stop = r.sched.now, r.pause.now, r.stop.now
	if src.Delivery != nil {
		c.delivery = metrics.Counts{}
		src.Delivery(&c.delivery)
	}
	if src.Delivered != nil {
		c.delivered = src.Delivered()
	}
	if src.Published != nil {
		c.published = src.Published()
	}
	if src.Broker != nil {
		c.broker = src.Broker()
	}
	if s.canaries != nil {
		for i, h := range [...]*metrics.Shared{&s.canaries.goroutine, &s.canaries.socket, &s.canaries.timer} {
			c.canary[i] = metrics.Counts{}
			h.AddTo(&c.canary[i])
		}
	}
	if slow := s.slow.latest(); !slow.at.Equal(c.slow.at) {
		c.slow = slow
		s.baseFootprint, s.baseConn = r.footprint(), s.view.Traffic.Connections
	}
}

// startReaders sends the readers that may wait on their way, unless they still are.
func (s *sampler) startReaders() {
	select {
	case s.kickSlow <- s.view.Sched.Threads:
	default:
	}
	if s.stalls.ask != nil {
		select {
		case s.kickStalls <- s.view.Traffic.Connections:
		default:
		}
	}
}

// endWindow has the last seconds evaluated.
func (s *sampler) endWindow(now time.Time) {
	w := s.acc.window(s, now)
	s.view.Delivery.Window = w.delivery
	changed := s.machine.evaluate(now, w)
	s.applyState(now, changed)
	s.window.copyFrom(&s.cur)
	s.acc.reset(&s.cur)
}

// applyState shows what the machine has decided, and acts on it.
func (s *sampler) applyState(now time.Time, changed bool) {
	m := s.machine
	if changed {
		st := &m.state
		s.g.log.Log(context.Background(), levelOf(st.Now), "state", "state", st.Now.String(), "causes", texts(st.Causes), "inconclusive", st.Inconclusive)
		if id := s.g.evidence.follow(now, st.Now, st.Causes); id != "" {
			m.witness(id)
		}
	}
	s.view.State, s.view.Timeline = m.state, m.timeline
}

func texts(causes []Cause) []string {
	var out []string
	for _, c := range causes {
		out = append(out, c.Text)
	}
	return out
}

// excess are goroutines beyond what the connections explain, 0 until that is known.
func (m *machine) excess(goroutines, conns int) float64 {
	if !(m.g0 > 0) {
		return 0
	}
	return max(0, stat.ExcessGoroutines(float64(goroutines), m.g0, m.g1, float64(conns))-1)
}
