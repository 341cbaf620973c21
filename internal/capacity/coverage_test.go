package capacity

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/stat"
)

// A known queue is one whose numbers are known without measuring.
type known struct {
	name string
	q    queue
	// at is the true quantile p of the response time at a rate.
	at func(rate, p float64) float64
	// objective for the P99.
	slo time.Duration
	// most is the rate that it completes under overload.
	most float64
}

// erlangC is the probability of having to wait in M/M/c with a offered erlangs.
func erlangC(c int, a float64) float64 {
	b := 1.0 // Erlang B by recursion
	for k := 1; k <= c; k++ {
		b = a * b / (float64(k) + a*b)
	}
	rho := a / float64(c)
	return b / (1 - rho + rho*b)
}

// mmc is the quantile p of the response time in M/M/c, service rate mu per server.
func mmc(c int, mu float64) func(rate, p float64) float64 {
	return func(rate, p float64) float64 {
		wait, theta := erlangC(c, rate/mu), float64(c)*mu-rate
		beyond := func(t float64) float64 { // P(T > t)
			if d := mu - theta; math.Abs(d) > 1e-9*mu {
				return math.Exp(-mu*t) + wait*mu/d*(math.Exp(-theta*t)-math.Exp(-mu*t))
			}
			return math.Exp(-mu*t) * (1 + wait*mu*t)
		}
		lo, hi := 0.0, 1.0
		for beyond(hi) > 1-p {
			hi *= 2
		}
		for range 80 {
			if mid := (lo + hi) / 2; beyond(mid) > 1-p {
				lo = mid
			} else {
				hi = mid
			}
		}
		return hi
	}
}

// simulated is the quantile by runs of the queue that are much longer than a search, at
// hundredths of its capacity.
func simulated(q queue) func(rate, p float64) float64 {
	curves := map[float64]*curve{}
	var mu sync.Mutex
	unit := q.capacity() / 100
	return func(rate, p float64) float64 {
		mu.Lock()
		defer mu.Unlock()
		c := curves[p]
		if c == nil {
			c = newCurve(q, p)
			curves[p] = c
		}
		i := max(1, math.Floor(rate/unit))
		lo, hi := math.Log(c.at(i*unit)), math.Log(c.at((i+1)*unit))
		return math.Exp(lo + (rate/unit-i)*(hi-lo))
	}
}

// rateFor is the rate at which the quantile is limit.
func (k *known) rateFor(limit, p float64) float64 {
	lo, hi := 0.02*k.most, 0.985*k.most
	for range 24 {
		if mid := (lo + hi) / 2; k.at(mid, p) < limit {
			lo = mid
		} else {
			hi = mid
		}
	}
	return (lo + hi) / 2
}

func knownQueues() []known {
	const c = 2000.0 // per second
	ms := func(services float64) time.Duration { return time.Duration(services / c * 1e9) }
	md1 := queue{cores: 1, service: fixed(1 / c)}
	return []known{
		{"M/M/1", queue{cores: 1, service: exponential(1 / c)}, mmc(1, c), ms(20), c},
		{"M/D/1", md1, simulated(md1), ms(8), c},
		{"M/M/4", queue{cores: 4, service: exponential(4 / c)}, mmc(4, c/4), ms(30), c},
	}
}

// A tally is how often an interval held the truth, and how wide it was.
type tally struct {
	held, known, above, below int
	widths                    []float64
}

func (c *tally) add(l Limit, truth float64) {
	if !l.Known {
		return
	}
	c.known++
	c.widths = append(c.widths, l.Rate.Ratio())
	switch {
	case l.Rate.Lo > truth:
		c.above++
	case l.Rate.Hi < truth:
		c.below++
	default:
		c.held++
	}
}

// The 95 % intervals of the three numbers hold the truth in at least 93 of 100
// searches of queues of known answer, and are not made so by being useless.
func TestIntervalsHoldTheTruth(t *testing.T) {
	const searches = 100
	for _, k := range knownQueues() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			var knee, slo, most tally
			objective := k.rateFor(k.slo.Seconds(), 0.99)
			for seed := range uint64(searches) {
				q := k.q.seeded(1000 + seed)
				r, err := Find(context.Background(), q, Options{Mode: Quick, SLO: k.slo, Seed: seed, Now: q.clock, FixedWork: evenWork})
				if err != nil {
					t.Fatal(err)
				}
				truth := k.rateFor(2.5*k.at(r.Base.Rate, r.Quantile), r.Quantile)
				knee.add(r.Knee, truth)
				slo.add(r.SLO, objective)
				most.add(r.Max, k.most)
			}
			for name, c := range map[string]*tally{"λ_knee": &knee, "λ_slo": &slo, "λ_max": &most} {
				width := stat.Median(c.widths)
				t.Logf("%s %s: held %d, below it %d, above it %d, not known %d; width ×%.2f", k.name, name, c.held, c.below, c.above, searches-c.known, width)
				if name != "λ_max" && width > 1.5 {
					t.Errorf("%s: an interval of ×%.2f says little", name, width)
				}
				if c.held < 93 {
					t.Errorf("%s: the interval held the truth in %d of %d", name, c.held, searches)
				}
			}
		})
	}
}
