package app

import (
	"context"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

// trimmer gives memory back to the system when a burst is over. The collector
// alone would keep what a reconnect storm needed until the heap has doubled,
// which with idle subscribers may be never.
type trimmer struct {
	// activity counts everything that allocates; it stops when nothing happens.
	activity func() uint64
	free     func()

	samples []runtimemetrics.Sample
	seen    uint64
	quiet   int // ticks without activity
	done    bool
}

const (
	trimTick = 250 * time.Millisecond
	// trimQuiet is how many ticks without activity make a burst over.
	trimQuiet = 2
	// trimWorth is what must be to gain, in bytes, and one part in trimShare of the live heap.
	trimWorth = 1 << 20
	trimShare = 8
)

func newTrimmer(activity func() uint64) *trimmer {
	return &trimmer{activity: activity, free: debug.FreeOSMemory, samples: []runtimemetrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
	}}
}

func (t *trimmer) run(ctx context.Context) error {
	tick := time.NewTicker(trimTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			t.tick()
		}
	}
}

// tick trims once per burst, when it is over and there is something to gain.
func (t *trimmer) tick() {
	if now := t.activity(); now != t.seen {
		t.seen, t.quiet, t.done = now, 0, false
		return
	}
	if t.quiet++; t.quiet < trimQuiet || t.done {
		return
	}
	t.done = true
	runtimemetrics.Read(t.samples)
	live, objects := t.samples[0].Value.Uint64(), t.samples[1].Value.Uint64()
	gain := t.samples[2].Value.Uint64() + t.samples[3].Value.Uint64()
	if objects > live {
		gain += objects - live
	}
	if gain > max(trimWorth, live/trimShare) {
		t.free()
	}
}
