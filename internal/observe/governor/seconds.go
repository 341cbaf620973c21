package governor

import (
	"runtime"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/metrics"
)

// endSecond turns what rose since the last second into the view.
func (s *sampler) endSecond(now time.Time) {
	a, b := &s.second, &s.cur
	d := b.at.Sub(a.at)
	v := &s.view
	v.Sched.Created = rate(float64(b.created-a.created), d)
	if s.sec.n > 0 {
		v.Sched.RunQueue, v.Sched.RunQueueMax = s.sec.run/float64(s.sec.n), s.sec.runMax
		v.Self.Sample = s.sec.cost.Seconds() / float64(s.sec.n)
	}
	sched := b.sched.Since(&a.sched)
	v.Sched.Latency = quantiles(&sched)
	v.Self.Slow, v.Self.Late = b.slow.took.Seconds(), s.sec.late
	v.Self.Share = rate(s.sec.cost.Seconds()+b.slow.took.Seconds(), d)
	v.Locks = Locks{Wait: rate(b.lockWait-a.lockWait, d), Total: b.lockWait}
	s.view.processor(a, b, d, &sched)
	s.collectorSecond(now, a, b, d)
	s.memorySecond()
	s.traffic(a, b, d)
	s.ringSecond(a, b, d)
	s.census()
	s.distance(now)
	waiting := v.Stalls.Waiting
	v.Stalls = s.stalls.latest(now)
	v.Stalls.Waiting = waiting
	v.Evidence = s.g.evidence.view()
	s.heat(now, a, b, &sched)
	if s.g.src.Activity != nil {
		s.pacer.second(s.rt, s.g.src.Activity(), true)
	} else {
		s.pacer.second(s.rt, 0, false)
	}
	s.acc.second(v)
	s.g.evidence.tire(now)
	s.seconds++
	s.sec = secondAccumulator{}
	s.second.copyFrom(b)
	s.startReaders()
}

// processor attributes the waiting for processors.
func (s *Snapshot) processor(a, b *totals, d time.Duration, sched *metrics.Counts) {
	h := &s.Host
	procs := float64(max(s.Sched.Procs, 1))
	s.CPU.Used = rate((b.cpu - a.cpu).Seconds(), d)
	s.CPU.Share = min(s.CPU.Used/procs, 1)
	s.CPU.Total = b.cpu.Seconds()
	h.CPUs, h.Pressure = s.Sched.Procs, b.slow.pressure
	gap := b.slow.at.Sub(a.slow.at)
	if gap <= 0 || a.slow.at.IsZero() {
		return
	}
	if b.slow.wait >= a.slow.wait {
		h.Wait = rate(float64(b.slow.wait-a.slow.wait)/1e9, gap) / procs
	}
	h.Throttled = 0
	if b.slow.throttled > a.slow.throttled {
		h.Throttled = min(rate(float64(b.slow.throttled-a.slow.throttled)/1e9, gap)/procs, 1)
	}
	h.Ratio = 0
	if inGo := 8 * sched.Sum.Seconds(); inGo > 0 { // the runtime samples one transition in eight
		h.Ratio = h.Wait * procs * d.Seconds() / inGo
	}
	if total := b.slow.machine.total - a.slow.machine.total; b.slow.machine.total > a.slow.machine.total {
		h.Busy = float64(b.slow.machine.busy-min(a.slow.machine.busy, b.slow.machine.busy)) / float64(total)
		h.Steal = float64(b.slow.machine.steal-min(a.slow.machine.steal, b.slow.machine.steal)) / float64(total)
	}
}

// A collectorWatch sees cycles end. The runtime's account of processor time moves only
// then, so shares are taken from cycle to cycle.
type collectorWatch struct {
	cycles                                    uint64
	at                                        time.Time
	gc, assist, idleMark, scav, total, unused float64
}

func (s *sampler) collectorSecond(now time.Time, a, b *totals, d time.Duration) {
	r, c, v := s.rt, &s.collector, &s.view.Collector
	v.Allocated = rate(float64(b.allocs-a.allocs), d)
	v.Live, v.Goal, v.Percent = r.u(rtLive), r.u(rtGoal), r.percent()
	if v.Limit = r.u(rtMemLimit); v.Limit > 1<<60 {
		v.Limit = 0 // none is said as the greatest number
	}
	slot := &s.minute[s.seconds/10%len(s.minute)]
	if s.seconds%10 == 0 {
		*slot = pauses{b.pause, b.stop}
	}
	oldest := &s.minute[(s.seconds/10+1)%len(s.minute)]
	if s.seconds < 10*len(s.minute) {
		oldest = &s.minute[0]
	}
	pause, stop := b.pause.Since(&oldest.pause), b.stop.Since(&oldest.stop)
	v.Pause, v.Stop = quantiles(&pause), quantiles(&stop)
	cycles := r.u(rtCycles)
	if v.LimiterAt = r.u(rtLimiter); cycles == c.cycles {
		return
	}
	now1 := collectorWatch{
		cycles: cycles, at: now, gc: r.f(rtCPUGC), assist: r.f(rtCPUAssist), idleMark: r.f(rtCPUMarkIdle), scav: r.f(rtCPUScavenge),
		total: r.f(rtCPUTotal), unused: r.f(rtCPUIdle),
	}
	// The runtime counts the time of all Ps, of which there may be more than processors.
	perP := float64(runtime.GOMAXPROCS(0)) / float64(sys.Processors())
	if total := (now1.total - c.total) / perP; !c.at.IsZero() && total > 0 {
		v.Period = now.Sub(c.at).Seconds() / float64(cycles-c.cycles)
		v.Share = max(now1.gc-c.gc-(now1.idleMark-c.idleMark), 0) / total
		v.Assist, v.Scavenge = max(now1.assist-c.assist, 0)/total, max(now1.scav-c.scav, 0)/total
	}
	v.Cycles, v.LastAt = cycles, now
	v.Limiting = v.LimiterAt > 0 && v.LimiterAt > c.cycles && !c.at.IsZero()
	*c = now1
}

// A slopeWatch learns what another connection costs.
type slopeWatch struct {
	conns, bytes [64]float64
	n            int
}

func (w *slopeWatch) add(conns int, bytes uint64) {
	w.conns[w.n%len(w.conns)], w.bytes[w.n%len(w.bytes)] = float64(conns), float64(bytes)
	w.n++
}

// slope is bytes per connection; 0 while connections hardly changed.
func (w *slopeWatch) slope() float64 {
	n := min(w.n, len(w.conns))
	if n < 5 {
		return 0
	}
	lo, hi := w.conns[0], w.conns[0]
	for _, c := range w.conns[:n] {
		lo, hi = min(lo, c), max(hi, c)
	}
	if hi-lo < 100 {
		return 0
	}
	return max(stat.TheilSen(w.conns[:n], w.bytes[:n], 0.95).Slope, 0)
}

func (s *sampler) memorySecond() {
	r, m, slow := s.rt, &s.view.Memory, &s.cur.slow
	m.RSS, m.Kernel, m.Heap, m.Stacks = slow.rss, slow.kernel, r.u(rtObjects), r.u(rtStacks)
	m.PerConnection = 0
	if f := s.g.src.Owners; f != nil {
		m.Owners = f()
	}
	o := &m.Owners
	o.Other = m.RSS - min(m.RSS, o.Connections+o.Backlogs+o.WireForms+o.Rings+o.LogCache)
	if conns := float64(s.view.Traffic.Connections); conns > 0 {
		m.PerConnection = float64(o.Connections) / conns
	}
}

func (s *sampler) traffic(a, b *totals, d time.Duration) {
	t := &s.view.Traffic
	t.Published, t.Delivered = rate(float64(b.published-a.published), d), rate(float64(b.delivered-a.delivered), d)
	t.BytesIn, t.BytesOut, t.Sends = 0, 0, 0
	sum, squares := 0.0, 0.0
	for i := range b.loops {
		v, now := &s.view.Loops[i], &b.loops[i]
		was := before(a.loops, i, now)
		tick := now.Tick.Since(&was.Tick)
		v.Tick = quantiles(&tick)
		v.Busy = busy(now, was, d)
		v.Ticks, v.Sends = rate(float64(now.Ticks-was.Ticks), d), rate(float64(now.Sends-was.Sends), d)
		v.BytesIn, v.BytesOut = rate(float64(now.BytesIn-was.BytesIn), d), rate(float64(now.BytesOut-was.BytesOut), d)
		v.Stalls = rate(float64(now.Stalls-was.Stalls), d)
		t.BytesIn, t.BytesOut, t.Sends = t.BytesIn+v.BytesIn, t.BytesOut+v.BytesOut, t.Sends+v.Sends
		sum, squares = sum+v.BytesOut, squares+v.BytesOut*v.BytesOut
	}
	t.Balance, t.BytesPerSend, t.Amplification, t.SendsPerMessage = 1, 0, 0, 0
	if squares > 0 { // Jain's index, see stat.Jain
		t.Balance = sum * sum / (float64(len(b.loops)) * squares)
	}
	if t.Sends > 0 {
		t.BytesPerSend = t.BytesOut / t.Sends
	}
	if t.Published > 0 {
		t.Amplification = t.Delivered / t.Published
	}
	if t.Delivered > 0 {
		t.SendsPerMessage = t.Sends / t.Delivered
	}
	second := b.delivery.Since(&a.delivery)
	s.view.Delivery.Second = quantiles(&second)
}

// noLoop is what a loop that was not there before is compared with.
var noLoop LoopSample

// before is loop i's earlier sample; one whose counters fell began anew.
func before(was []LoopSample, i int, now *LoopSample) *LoopSample {
	if i < len(was) && was[i].ID == now.ID && was[i].Ticks <= now.Ticks {
		return &was[i]
	}
	return &noLoop
}

// busy is the share of d that the loop worked.
func busy(now, was *LoopSample, d time.Duration) float64 { return share(now.Busy-was.Busy, d) }

// ringSecond sums up the canaries and the broker over ten seconds.
func (s *sampler) ringSecond(a, b *totals, d time.Duration) {
	slot := &s.ring[s.seconds%len(s.ring)]
	old := ringSlot{}
	if s.seconds >= len(s.ring) {
		old = *slot
	} else if s.seconds > 0 {
		old = s.ring[0]
	} else {
		old.store = b.broker.Store
	}
	c := &s.view.Canaries
	for i, q := range [...]*Quantiles{&c.Goroutine, &c.Socket, &c.Timer} {
		h := b.canary[i].Since(&old.canary[i])
		*q = quantiles(&h)
	}
	c.NetpollP50, c.NetpollP90 = max(c.Socket.P50-c.Goroutine.P50, 0), max(c.Socket.P90-c.Goroutine.P90, 0)
	c.NetpollP99 = max(c.Socket.P99-c.Goroutine.P99, 0)
	if s.canaries != nil {
		c.Lost = s.canaries.lost
	}
	store := b.broker.Store.Since(&old.store)
	s.view.Broker = BrokerView{
		Store: quantiles(&store), Waiting: b.broker.Waiting, Oldest: b.broker.Oldest.Seconds(),
		Failed: rate(float64(b.broker.Failed-min(a.broker.Failed, b.broker.Failed)), d),
	}
	*slot = ringSlot{canary: b.canary, store: b.broker.Store}
}

// census counts the goroutines by role. Those of the governor are one.
func (s *sampler) census() {
	v := &s.view.Goroutines
	v.Roles = v.Roles[:0]
	if s.g.src.Roles != nil {
		v.Roles = s.g.src.Roles(v.Roles)
	}
	own := 2 + s.g.evidence.goroutines()
	if s.canaries != nil {
		own += 3
	}
	if s.stalls.ask != nil {
		own++
	}
	v.Roles = append(v.Roles, RoleCount{Role: "governor", N: own})
	v.Total = s.view.Sched.Goroutines
	v.Other = v.Total
	for _, r := range v.Roles {
		v.Other -= r.N
	}
	v.Other = max(v.Other, 0)
	v.Excess = s.machine.excess(v.Total, s.view.Traffic.Connections)
	s.acc.other = min(s.acc.other, v.Other)
}

// distance holds the load against the last capacity report.
func (s *sampler) distance(now time.Time) {
	v := &s.view.Knee
	*v = Distance{Load: s.view.Traffic.Delivered}
	// Less than a twentieth of the processors says nothing of what a message costs.
	if share := s.view.CPU.Share; share >= 0.05 && v.Load > 0 {
		v.Projected = v.Load / share
	}
	if s.g.src.Knee == nil {
		return
	}
	v.Report, v.Known = s.g.src.Knee()
	if !v.Known {
		return
	}
	knee := v.Report.Knee
	if v.Report.Connections > 0 {
		v.Load, knee = float64(s.view.Traffic.Connections), v.Report.Connections
	}
	if !v.Report.Time.IsZero() {
		v.Age = max(now.Sub(v.Report.Time).Seconds(), 0)
	}
	if knee > 0 {
		v.Fraction = v.Load / knee
		v.Headroom = max(1-v.Fraction, 0)
	}
}

// heat writes the second's columns.
func (s *sampler) heat(now time.Time, a, b *totals, sched *metrics.Counts) {
	second := now.Unix()
	h := &s.g.heats
	h[heatSched].add(second, sched)
	delivery, pause := b.delivery.Since(&a.delivery), b.pause.Since(&a.pause)
	h[heatDelivery].add(second, &delivery)
	h[heatPause].add(second, &pause)
	var ticks metrics.Counts
	for i := range b.loops {
		tick := b.loops[i].Tick.Since(&before(a.loops, i, &b.loops[i]).Tick)
		ticks.Add(&tick)
	}
	h[heatTick].add(second, &ticks)
}
