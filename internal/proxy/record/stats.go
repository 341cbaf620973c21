package record

import (
	"sync"
	"sync/atomic"
)

type counters struct {
	startedCount, attached, whole, passed, refused, lost, events atomic.Uint64

	brokenMu sync.Mutex // guards broken
	broken   map[string]uint64
}

func (c *counters) countBroken(cause string) {
	c.brokenMu.Lock()
	defer c.brokenMu.Unlock()
	if c.broken == nil {
		c.broken = map[string]uint64{}
	}
	c.broken[cause]++
}

// Stats are counters since New, and what is there now.
type Stats struct {
	Running  int               // recordings under way here
	Started  uint64            // times a backend was about to be asked
	Attached uint64            // clients that joined a recording, under way or ended
	Whole    uint64            // recordings of whole streams
	Broken   map[string]uint64 // of others, by cause
	Lost     uint64            // recordings of gateways that died, which were ended here
	Passed   uint64            // replies that were no event streams
	Refused  uint64            // requests refused because too much is recorded
	Events   uint64            // events stored
}

// Stats may be called from any goroutine.
func (r *Recorder) Stats() Stats {
	s := Stats{Started: r.startedCount.Load(), Attached: r.attached.Load(), Whole: r.whole.Load(), Lost: r.lost.Load(), Passed: r.passed.Load(),
		Refused: r.refused.Load(), Events: r.events.Load(),
		Broken: map[string]uint64{}}
	r.tapes.Range(func(any, any) bool { s.Running++; return true })
	r.brokenMu.Lock()
	defer r.brokenMu.Unlock()
	for cause, n := range r.broken {
		s.Broken[cause] = n
	}
	return s
}
