package capacity

import (
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// sumLevel is a row of the level table.
func (s *fit) sumLevel(rate float64) Level {
	index := s.levels[rate]
	ws := s.used(index)
	l := Level{Rate: rate, Windows: len(ws), Discarded: len(index) - len(ws), Latency: s.latency(ws)}
	med := func(f func(*Observation) float64) float64 {
		if v := stat.MedianOf(ws, func(w *Window) float64 { return f(&w.Obs) }); v == v {
			return v
		}
		return 0
	}
	for _, w := range ws {
		l.Dropped += w.Obs.Dropped
		l.Errors += w.Obs.errors()
	}
	l.Offered = med((*Observation).offeredRate)
	l.Completed = med((*Observation).completedRate)
	l.Sent = med(func(o *Observation) float64 { return perSecond(o.Sent, o.Length) })
	l.Response = summary(med, func(o *Observation) *Quantiles { return &o.Response })
	l.Service = summary(med, func(o *Observation) *Quantiles { return &o.Service })
	l.InFlight = med(func(o *Observation) float64 { return o.InFlight })
	l.GeneratorCPU = med(func(o *Observation) float64 { return o.Generator.CPU })
	l.Runtime = s.sumRuntime(ws)
	if r := l.Runtime; r != nil {
		l.TargetCPU = med(func(o *Observation) float64 {
			if o.Runtime == nil {
				return 0
			}
			return o.Runtime.CPUSeconds / o.seconds()
		})
		if r.Goroutines > 0 {
			conns := med(func(o *Observation) float64 { return o.Conns })
			l.Excess = stat.ExcessGoroutines(r.Goroutines, s.rep.Base.G0, s.rep.Base.G1, conns)
		}
	}
	l.Knee, l.Fault = s.decide(ws, s.threshold(), false)
	if s.opt.SLO > 0 {
		l.SLO = s.bySLO(ws)
	}
	if r, ok := s.readings[rate]; ok {
		l.Reading = &r
	}
	return l
}

func summary(med func(func(*Observation) float64) float64, of func(*Observation) *Quantiles) Summary {
	return Summary{
		Mean: med(func(o *Observation) float64 { return of(o).Mean }),
		P50:  med(func(o *Observation) float64 { return of(o).P50.Point }),
		P95:  med(func(o *Observation) float64 { return of(o).P95.Point }),
		P99:  med(func(o *Observation) float64 { return of(o).P99.Point }),
		P999: med(func(o *Observation) float64 { return of(o).P999.Point }),
		N:    int(med(func(o *Observation) float64 { return float64(of(o).P50.N) })),
	}
}

// sumRuntime is the median of the target's inside over the windows that show it.
func (s *fit) sumRuntime(ws []*Window) *Runtime {
	var rs []*Runtime
	for _, w := range ws {
		if w.Obs.Runtime != nil {
			rs = append(rs, w.Obs.Runtime)
		}
	}
	if len(rs) == 0 {
		return nil
	}
	med := func(f func(*Runtime) float64) float64 { return stat.MedianOf(rs, f) }
	return &Runtime{
		Goroutines: med(func(r *Runtime) float64 { return r.Goroutines }),
		Runnable:   med(func(r *Runtime) float64 { return r.Runnable }),
		Threads:    med(func(r *Runtime) float64 { return r.Threads }),
		GOMAXPROCS: rs[0].GOMAXPROCS,
		SchedP99:   med(func(r *Runtime) float64 { return r.SchedP99 }),
		GCFraction: med(func(r *Runtime) float64 { return r.GCFraction }),
		RSS:        uint64(med(func(r *Runtime) float64 { return float64(r.RSS) })),
		CPUSeconds: med(func(r *Runtime) float64 { return r.CPUSeconds }),
	}
}
