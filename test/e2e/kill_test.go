package e2e

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/test/judge"
)

var channels = []string{"c0", "c1", "c2", "c3", "c4"}

// publishing runs p until the returned function is called, which waits until
// everything started is acknowledged.
func publishing(t *testing.T, p *judge.Publisher, perSecond int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, "m", channels, perSecond, 30*time.Second) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestTwentyKillsLoseNothing(t *testing.T) {
	s := judge.New(t, judge.Options{Build: judge.Race})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, seed))
	f := judge.NewFleet(t, everything)
	f.Sail(s.Public, 200, channels)
	p := &judge.Publisher{Addr: s.Public}
	stop := publishing(t, p, 100)
	pause := time.NewTimer(0)
	defer pause.Stop()
	var down []time.Duration
	before := make([]int64, len(f.Members))
	for i := range 20 {
		if i%2 == 0 {
			// Every other time in the middle of live delivery, else while they resume.
			judge.Eventually(t, 60*time.Second, "every subscriber is connected", func() bool {
				return f.Connected(before) == len(f.Members)
			})
		}
		pause.Reset(time.Duration(rng.Int64N(int64(700 * time.Millisecond))))
		<-pause.C
		s.Kill()
		before = f.Sessions()
		begin := time.Now()
		s.Start()
		down = append(down, time.Since(begin))
	}
	stop()
	acked := p.Acked()
	f.CaughtUp(acked, 60*time.Second)
	f.Land()
	slices.Sort(down)
	t.Logf("20 kills; ready again after %s in the median, %s at worst", down[10].Round(time.Millisecond), down[19].Round(time.Millisecond))
	f.Judge(acked)
}

func TestConnectionsCutAnywhereLoseNothing(t *testing.T) {
	s := judge.New(t, judge.Options{Build: judge.Race})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	relay := judge.NewRelay(t, s.Public, 3000, seed)
	f := judge.NewFleet(t, everything)
	f.Sail(relay.Addr, 200, channels)
	p := &judge.Publisher{Addr: s.Public}
	stop := publishing(t, p, 100)
	judge.Eventually(t, 120*time.Second, "4,000 connections are cut and 1,500 messages published", func() bool {
		return relay.Cuts.Load() >= 4000 && len(p.Acked()) >= 1500
	})
	stop()
	relay.Calm()
	acked := p.Acked()
	f.CaughtUp(acked, 60*time.Second)
	f.Land()
	t.Logf("%d connections cut", relay.Cuts.Load())
	f.Judge(acked)
}

// everything is what a history must be whose log is wide enough to keep all.
var everything = history.Options{ExactlyOnce: true, NoGaps: true}
