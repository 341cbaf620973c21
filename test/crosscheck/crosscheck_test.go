package crosscheck

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/test/judge"
)

const (
	// The server has places, each of which takes a request for serviceTime: it can
	// answer places/serviceTime per second, and half of the places are used. h2load
	// sends what is due on all its connections at one instant, which costs the last of
	// them more than the first: 0.5 ms for each on a slow machine. So there are few
	// connections, and serviceTime is long beside that.
	places      = 8
	serviceTime = 20 * time.Millisecond
	conns       = places / 2

	rounds    = 3    // of each tool, alternating; their medians are compared
	tolerance = 0.10 // of each number
	attempts  = 3    // a shared machine may disturb one
)

// median is of each number by itself.
func median(all []reading) (m reading) {
	mid := func(key func(reading) float64) float64 {
		return key(slices.SortedFunc(slices.Values(all), func(a, b reading) int { return cmp.Compare(key(a), key(b)) })[len(all)/2])
	}
	m.rate = mid(func(r reading) float64 { return r.rate })
	m.mean = time.Duration(mid(func(r reading) float64 { return float64(r.mean) }))
	m.p50 = time.Duration(mid(func(r reading) float64 { return float64(r.p50) }))
	return m
}

// agree says in which numbers ours is further from theirs than is tolerated.
func agree(ours, theirs reading) (bad []string) {
	check := func(name string, a, b float64) {
		if b > 0 && !(math.Abs(a-b) <= tolerance*b) {
			bad = append(bad, fmt.Sprintf("%s differs by %+.1f %%", name, 100*(a/b-1)))
		}
	}
	check("rate", ours.rate, theirs.rate)
	check("mean", float64(ours.mean), float64(theirs.mean))
	check("median", float64(ours.p50), float64(theirs.p50))
	return bad
}

// compare runs both alternately, and fails the test if they do not agree.
func compare(t *testing.T, spec loadgen.Spec, load loadgen.Load, their func() reading) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		g, err := loadgen.New(spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Connect(context.Background()); err != nil {
			t.Fatal(err)
		}
		var a, b []reading
		for range rounds {
			a = append(a, measure(t, g, load))
			b = append(b, their())
		}
		_ = g.Close()
		ours, theirs := median(a), median(b)
		t.Logf("attempt %d: %.0f/s, mean %v, median %v; theirs %.0f/s, mean %v, median %v",
			attempt, ours.rate, ours.mean, ours.p50, theirs.rate, theirs.mean, theirs.p50)
		bad := agree(ours, theirs)
		if len(bad) == 0 {
			return
		}
		if attempt == attempts {
			t.Errorf("ours and theirs do not agree: %v", bad)
			return
		}
	}
}

func TestAgreesWithWrk(t *testing.T) {
	judge.Need(t, "wrk")
	url := server(t)
	compare(t, loadgen.Spec{Kind: loadgen.HTTP, Target: url, Conns: conns}, loadgen.Load{Concurrency: conns}, func() reading {
		r, err := parseWrk(run(t, "wrk", "-t1", fmt.Sprintf("-c%d", conns), "-d2s", "--latency", url))
		if err != nil {
			t.Fatal(err)
		}
		return r
	})
}

func TestAgreesWithH2load(t *testing.T) {
	judge.Need(t, "h2load")
	f := func(name string, spec loadgen.Spec, args ...string) {
		t.Run(name, func(t *testing.T) {
			spec.Kind, spec.Target, spec.Arrival = loadgen.HTTP, server(t), loadgen.Uniform
			// Half of what the connections can do, as an open model.
			clients := spec.Conns
			rate := 0.5 * float64(clients) / serviceTime.Seconds()
			args = append(args, fmt.Sprintf("-c%d", clients), "-D2", fmt.Sprintf("--rps=%g", rate/float64(clients)), spec.Target)
			compare(t, spec, loadgen.Load{Rate: rate}, func() reading {
				log := filepath.Join(t.TempDir(), "requests")
				r, err := parseH2load(run(t, "h2load", append([]string{"--log-file=" + log}, args...)...))
				if err != nil {
					t.Fatal(err)
				}
				if r.p50, err = medianOfLog(log); err != nil {
					t.Fatal(err)
				}
				return r
			})
		})
	}
	f("http1", loadgen.Spec{Conns: conns}, "--h1")
	f("http2", loadgen.Spec{Conns: conns, Version: "2", Pipeline: 2}, "-m2")
}

// TestDisagreementIsNoticed holds the comparison itself to its tolerance.
func TestDisagreementIsNoticed(t *testing.T) {
	base := reading{1000, 4 * time.Millisecond, 4 * time.Millisecond}
	f := func(rate, mean, p50 float64, want int) {
		t.Helper()
		r := reading{base.rate * rate, time.Duration(float64(base.mean) * mean), time.Duration(float64(base.p50) * p50)}
		if got := agree(r, base); len(got) != want {
			t.Errorf("%+v beside %+v: %v, want %d", r, base, got, want)
		}
	}
	f(1, 1, 1, 0)
	f(1.09, 0.91, 1.09, 0)
	f(0.89, 1, 1, 1)
	f(1, 1.12, 1, 1)
	f(1, 1, 0.88, 1)
	f(1.5, 1.5, 1.5, 3)
	f(0, 0, 0, 3)
	if got := agree(reading{math.NaN(), base.mean, base.p50}, base); len(got) != 1 {
		t.Errorf("no number is treated as agreement: %v", got)
	}
	if m := median([]reading{{3, 1, 2}, {1, 2, 3}, {2, 3, 1}}); m != (reading{2, 2, 2}) {
		t.Errorf("median %+v", m)
	}
}
