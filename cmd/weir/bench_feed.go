package main

import (
	"context"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// A benchFeed is the newest snapshot of a run, from this process's generator or
// from its workers. Any goroutine.
type benchFeed struct {
	mu     sync.Mutex
	last   loadgen.Snapshot
	source func() loadgen.Snapshot // nil: what set was given last
}

func (f *benchFeed) set(s loadgen.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = s
}

func (f *benchFeed) follow(source func() loadgen.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.source = source
}

// snapshot is the newest; the zero Snapshot before there is one.
func (f *benchFeed) snapshot() loadgen.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.source != nil {
		f.last = f.source()
	}
	return f.last
}

const (
	// useEvery is the length of a piece of loadgen.Result.Uses.
	useEvery = time.Second
	// maxUses bounds them; from then on pieces are twice as long.
	maxUses = 1024
)

// watchTarget samples a target's processor time, collector and memory while the run
// is in its measured phase. What it returns ends that and gives the pieces. A nil source gives none.
func (f *benchFeed) watchTarget(ctx context.Context, source capacity.Source) (uses func() []loadgen.Use) {
	if source == nil {
		return func() []loadgen.Use { return nil }
	}
	var u useLog
	stop := repeat(ctx, useEvery/4, func(ctx context.Context, now time.Time) {
		if f.snapshot().Phase != "measuring" {
			u.known = false
		} else if u.due(now) {
			if s, err := source.Sample(ctx); err == nil {
				u.add(now, s)
			}
		}
	})
	return func() []loadgen.Use {
		stop()
		return u.pieces
	}
}

// A useLog makes pieces of samples.
type useLog struct {
	known  bool // last and at are set
	at     time.Time
	last   capacity.Sample
	every  time.Duration // 0 means useEvery
	pieces []loadgen.Use
}

func (u *useLog) due(now time.Time) bool {
	return !u.known || now.Sub(u.at) >= max(u.every, useEvery)-useEvery/8
}

func (u *useLog) add(now time.Time, s capacity.Sample) {
	if u.known {
		one := loadgen.Use{
			Seconds: now.Sub(u.at).Seconds(), CPU: max(s.CPU-u.last.CPU, 0), RSS: s.RSS,
			GC: max(s.GC-u.last.GC, 0), GCOf: max(s.GCOf-u.last.GCOf, 0),
		}
		if s.GCOf == 0 && s.GCFraction > 0 { // the target states only the share
			one.GC, one.GCOf = s.GCFraction*one.Seconds, one.Seconds
		}
		u.pieces = append(u.pieces, one)
	}
	u.known, u.at, u.last = true, now, s
	if len(u.pieces) < maxUses {
		return
	}
	half := u.pieces[:0]
	for i := 0; i+1 < len(u.pieces); i += 2 {
		a, b := u.pieces[i], u.pieces[i+1]
		half = append(half, loadgen.Use{Seconds: a.Seconds + b.Seconds, CPU: a.CPU + b.CPU, GC: a.GC + b.GC, GCOf: a.GCOf + b.GCOf, RSS: b.RSS})
	}
	u.pieces = half
	u.every = 2 * max(u.every, useEvery)
}

// A benchUse is what the target used over a whole run.
type benchUse struct {
	seconds, cpu, gc, gcOf float64
	rss                    []float64 // of each piece
}

func totalUse(uses []loadgen.Use) benchUse {
	var t benchUse
	for _, u := range uses {
		t.seconds += u.Seconds
		t.cpu += u.CPU
		t.gc += u.GC
		t.gcOf += u.GCOf
		if u.RSS > 0 {
			t.rss = append(t.rss, float64(u.RSS))
		}
	}
	return t
}
