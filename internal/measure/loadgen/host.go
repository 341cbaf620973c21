package loadgen

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/procfs"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A hostSample is what the machine and this process had used at an instant; what is
// reported is the difference of two.
type hostSample struct {
	at        time.Time
	cpu       time.Duration // of this process
	pauses    time.Duration // of its collector
	wait      time.Duration // of its threads, ready and without a processor
	pressure  time.Duration // PSI cpu some
	total     float64       // seconds of all processors
	idle      float64
	steal     float64
	in, out   uint64
	schedules bool // wait is known
}

// StartHostSample samples the machine. What it returns says what the machine did since, and
// what this process used of it.
func StartHostSample() (since func() (Host, GeneratorState)) {
	before := sampleMachine()
	return func() (Host, GeneratorState) {
		var w Window
		now := sampleMachine()
		now.since(&before, &w)
		return w.Host, w.Generator
	}
}

func (g *Generator) sampleHost() hostSample {
	s := sampleMachine()
	s.in, s.out = g.bytes.in.Load(), g.bytes.out.Load()
	for _, sh := range g.shards {
		st := sh.loop.Stats()
		s.in += st.BytesIn
		s.out += st.BytesOut
	}
	return s
}

// sampleMachine is a sample without what a generator transferred.
func sampleMachine() hostSample {
	s := hostSample{at: time.Now(), cpu: sys.CPUTime()}
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	s.pauses = gc.PauseTotal
	if fs, err := procfs.NewDefaultFS(); err == nil {
		s.machine(fs)
	}
	return s
}

// machine adds what /proc says; what it does not say stays 0.
func (s *hostSample) machine(fs procfs.FS) {
	if st, err := fs.Stat(); err == nil {
		c := st.CPUTotal // guests are in user already
		s.idle, s.steal = c.Idle+c.Iowait, c.Steal
		s.total = c.User + c.Nice + c.System + s.idle + c.IRQ + c.SoftIRQ + s.steal
	}
	if psi, err := fs.PSIStatsForResource("cpu"); err == nil && psi.Some != nil {
		s.pressure = time.Duration(psi.Some.Total) * time.Microsecond
	}
	threads, _ := fs.AllThreads(os.Getpid())
	for _, t := range threads {
		if st, err := t.Schedstat(); err == nil { // it has not ended
			s.wait += time.Duration(st.WaitingNanoseconds)
			s.schedules = true
		}
	}
}

// since fills in what w says of the machine and the generator, from the sample
// before to this one.
func (s *hostSample) since(before *hostSample, w *Window) {
	d := s.at.Sub(before.at)
	if d <= 0 {
		return
	}
	share := func(a, b time.Duration) float64 { return max(0, float64(a-b)/float64(d)) }
	w.Generator.CPU = share(s.cpu, before.cpu)
	w.Generator.GCPauses = max(0, s.pauses-before.pauses)
	w.Host.Pressure = min(1, share(s.pressure, before.pressure))
	if s.schedules && before.schedules {
		w.Host.Wait = share(s.wait, before.wait)
	}
	if total := s.total - before.total; total > 0 {
		w.Host.Steal = max(0, s.steal-before.steal) / total
		w.Host.Busy = max(0, 1-max(0, s.idle-before.idle)/total)
	}
	w.BytesIn, w.BytesOut = s.in-min(before.in, s.in), s.out-min(before.out, s.out)
}

// evaluate reports whether the generator, with that many loops, was the limit of w: its own lag was not small
// beside what was measured, or in a closed loop it had no time left. Of fewer than
// a hundred arrivals one alone proves nothing, so the second latest counts. Where
// other programs kept the processors from it, Why names the machine.
func (w *Window) evaluate(loops int) {
	if w.Lag != nil && w.Lag.TotalCount() > 1 && w.Response != nil {
		n := float64(w.Lag.TotalCount())
		lag := time.Duration(w.Lag.ValueAtPercentile(min(99, 100*(n-1)/n))) * time.Microsecond
		response := time.Duration(w.Response.ValueAtPercentile(99)) * time.Microsecond
		if lag > max(time.Millisecond, response/10) {
			w.Generator.Limited = true
			w.Generator.Why = fmt.Sprintf("its lag P99 of %v is more than 1ms and a tenth of the response P99 of %v", lag, response)
			w.Generator.crowded(w.Host, runtime.NumCPU())
		}
	}
	cores := float64(min(loops, runtime.NumCPU()))
	if w.Load.Concurrency > 0 && w.Generator.CPU > 0.95*cores {
		w.Generator.Limited = true
		w.Generator.Why = fmt.Sprintf("it used %.2f of the %.0f cores its loops can use", w.Generator.CPU, cores)
	}
}

// crowded adds to Why that the machine was busy with other programs, where that is
// what delayed a generator: they used more of its n processors than the generator
// did, and less than a quarter of a processor was idle.
func (s *GeneratorState) crowded(h Host, n int) {
	used := h.Busy * float64(n)
	others := used - s.CPU
	if float64(n)-used > 0.25 || others <= s.CPU {
		return
	}
	s.Crowded = true
	s.Why = fmt.Sprintf("this machine was busy: other programs (the server too, if it runs here) used %.1f of its %d processors, "+
		"the generator %.1f, and %s; run it on another machine, or with less load", others, n, s.CPU, s.Why)
}
