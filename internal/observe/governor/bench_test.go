package governor

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// BenchmarkSample is what one look costs, nine in ten; ends of seconds and windows are
// in BenchmarkSecond.
func BenchmarkSample(b *testing.B) {
	sc := &script{loops: make([]LoopSample, 8)}
	g, err := New(Config{Probes: setting.Off}, sc.sources(), nil)
	if err != nil {
		b.Fatal(err)
	}
	s := newSampler(g)
	defer s.stop()
	now := time.Now()
	for range 30 {
		now = now.Add(100 * time.Millisecond)
		s.sample(now)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.sample(now)
	}
}

// BenchmarkSecond is a sample that ends a second.
func BenchmarkSecond(b *testing.B) {
	sc := &script{loops: make([]LoopSample, 8)}
	g, err := New(Config{Probes: setting.Off}, sc.sources(), nil)
	if err != nil {
		b.Fatal(err)
	}
	s := newSampler(g)
	defer s.stop()
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		s.window.at = now
		s.sample(now)
	}
}

// BenchmarkSlow is one reading of the kernel's files.
func BenchmarkSlow(b *testing.B) {
	s := newSlowReader("", findCgroup(""))
	defer s.close()
	s.read(1)
	b.ReportAllocs()
	for b.Loop() {
		s.read(1)
	}
}

// BenchmarkBudget is what admission pays.
func BenchmarkBudget(b *testing.B) {
	g, err := New(Config{}, Sources{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if g.MemoryBudget().Level != BudgetOK {
			b.Fatal("refused")
		}
	}
}

// pingPong is work that the scheduler and the runtime's counters are in the way of: as
// many pairs of goroutines as processors hand a value to and fro. It returns trips per
// second.
func pingPong(d time.Duration) float64 {
	var trips atomic.Uint64
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range runtime.GOMAXPROCS(0) {
		to, fro := make(chan struct{}), make(chan struct{})
		wg.Go(func() {
			for range to {
				fro <- struct{}{}
			}
		})
		wg.Go(func() {
			defer close(to)
			for n := uint64(0); ; n++ {
				if n%256 == 0 && time.Now().After(end) {
					trips.Add(n)
					return
				}
				to <- struct{}{}
				<-fro
			}
		})
	}
	begin := time.Now()
	wg.Wait()
	return float64(trips.Load()) / time.Since(begin).Seconds()
}

// BenchmarkOnOff runs the same work with and without a governor, in turns (off, on, on,
// off), and reports the median ratio of neighbours: below 1 is what watching costs. The
// work does nothing but block and wake, the worst there is for what records that.
func BenchmarkOnOff(b *testing.B) {
	const turn = 300 * time.Millisecond
	b.Run("nothing", func(b *testing.B) { onOff(b, turn, func() func() { return func() {} }) }) // what the machine itself does
	b.Run("sampler", func(b *testing.B) { onOff(b, turn, func() func() { return governed(b, Config{}) }) })
	b.Run("no-canaries", func(b *testing.B) { onOff(b, turn, func() func() { return governed(b, Config{Probes: setting.Off}) }) })
	b.Run("profiles", func(b *testing.B) {
		onOff(b, turn, func() func() { return armed(EvidenceConfig{FlightRecorder: setting.Off}) })
	})
	b.Run("recorder-and-profiles", func(b *testing.B) { onOff(b, turn, func() func() { return armed(EvidenceConfig{}) }) })
}

// onOff measures what start, and what it returns, frame.
func onOff(b *testing.B, turn time.Duration, begin func() (end func())) {
	var ratios []float64
	with := func() float64 {
		defer begin()()
		return pingPong(turn)
	}
	for b.Loop() {
		off1, on1 := pingPong(turn), with()
		on2, off2 := with(), pingPong(turn)
		ratios = append(ratios, on1/off1, on2/off2)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ratios), "on/off")
	lo, hi := ratios[0], ratios[0]
	for _, r := range ratios {
		lo, hi = min(lo, r), max(hi, r)
	}
	b.ReportMetric(lo, "least")
	b.ReportMetric(hi, "most")
}

func governed(b *testing.B, cfg Config) (end func()) {
	g, err := New(cfg, Sources{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func armed(cfg EvidenceConfig) (end func()) {
	r := newRecorder(cfg, slog.New(slog.DiscardHandler), func() []part { return nil })
	r.arm()
	return r.disarm
}

func median(xs []float64) float64 { s := append([]float64(nil), xs...); return spread(s).P50 }
