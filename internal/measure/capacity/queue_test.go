package capacity

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// queue is a server with a known knee, in virtual time: Poisson arrivals, an
// optional lock that serves one at a time, then cores first come first served
// (G/G/c). Nothing sleeps; the clock is a number.
type queue struct {
	// The server.
	cores   int
	service func(r *rand.Rand) float64 // seconds
	lock    func(r *rand.Rand) float64 // seconds under the lock; nil: none

	// What goes wrong.
	errorsAbove  float64 // arrivals above this rate are answered 503
	generatorMax float64 // the generator does not send more
	stallEvery   float64 // mean seconds between stalls of the machine; 0: none
	stallFor     float64 // mean seconds
	reported     bool    // stalls show as steal
	exposed      bool    // the runtime is shown
	sticky       float64 // service takes so many times longer once behind, until it has caught up; 0: never

	// State.
	r        *rand.Rand
	now      float64
	free     []float64
	lockFree float64
	pending  []job
	stallAt  float64
	stalls   []job
	slow     bool
	windows  int
}

type job struct{ from, to float64 }

func (q *queue) seeded(seed uint64) *queue {
	c := *q
	c.r = rand.New(rand.NewPCG(seed, 77))
	c.free = make([]float64, c.cores)
	if c.stallEvery > 0 {
		c.stallAt = c.stallEvery * c.r.ExpFloat64()
	}
	return &c
}

func (q *queue) clock() time.Time { return time.Unix(1e9, 0).Add(time.Duration(q.now * 1e9)) }

// serve is when a request that arrives at t is done.
func (q *queue) serve(t float64) float64 {
	for q.stallEvery > 0 && q.stallAt <= t {
		end := q.stallAt + q.stallFor*q.r.ExpFloat64()
		for i := range q.free {
			q.free[i] = math.Max(q.free[i], end)
		}
		q.stalls = append(q.stalls, job{q.stallAt, end})
		q.stallAt = end + q.stallEvery*q.r.ExpFloat64()
	}
	if q.lock != nil {
		q.lockFree = math.Max(q.lockFree, t) + q.lock(q.r)
		t = q.lockFree
	}
	first := 0
	for i, f := range q.free {
		if f < q.free[first] {
			first = i
		}
	}
	service := q.service(q.r)
	if q.sticky > 0 {
		if behind := q.free[first] - t; behind > 0.05 {
			q.slow = true
		} else if behind <= 0 {
			q.slow = false
		}
		if q.slow {
			service *= q.sticky
		}
	}
	q.free[first] = math.Max(q.free[first], t) + service
	return q.free[first]
}

func (q *queue) Measure(ctx context.Context, load Load, d time.Duration) (Observation, error) {
	if ctx.Err() != nil {
		return Observation{}, ctx.Err()
	}
	if load.Concurrency > 0 {
		return Observation{}, ErrUnsupported
	}
	q.windows++
	start, end := q.now, q.now+d.Seconds()
	o := Observation{Start: q.clock(), Length: d, Load: load, Conns: 10, Errors: map[string]uint64{}}
	rate := load.Rate
	if q.generatorMax > 0 && rate > q.generatorMax {
		rate = q.generatorMax
	}
	fail := 0.0
	if q.errorsAbove > 0 && rate > q.errorsAbove {
		fail = 1 - q.errorsAbove/rate
	}
	for t := start + q.r.ExpFloat64()/rate; t < end; t += q.r.ExpFloat64() / rate {
		o.Offered++
		if fail > 0 && q.r.Float64() < fail {
			o.Errors["status 503"]++
			continue
		}
		q.pending = append(q.pending, job{t, q.serve(t)})
	}
	o.Sent = o.Offered
	q.settle(&o, start, end)
	q.now = end
	return o, nil
}

// settle counts what was done and under way between start and end.
func (q *queue) settle(o *Observation, start, end float64) {
	n := max(1, int(math.Round(end-start)))
	batch := (end - start) / float64(n)
	o.BatchLength = time.Duration(batch * 1e9)
	o.Batches = make([]Batch, n)
	var times []float64
	keep := q.pending[:0]
	for _, j := range q.pending {
		from, to := math.Max(j.from, start), math.Min(j.to, end)
		for b := int((from - start) / batch); b < n && to > start+float64(b)*batch; b++ {
			lo, hi := start+float64(b)*batch, start+float64(b+1)*batch
			o.Batches[b].InFlight += math.Max(0, math.Min(to, hi)-math.Max(from, lo)) / batch
		}
		if j.to > end {
			keep = append(keep, j)
			continue
		}
		b := min(n-1, int((j.to-start)/batch))
		o.Batches[b].Completed++
		o.Batches[b].MeanResponse += j.to - j.from
		times = append(times, j.to-j.from)
	}
	q.pending = keep
	for i := range o.Batches {
		o.InFlight += o.Batches[i].InFlight / float64(n)
		if k := o.Batches[i].Completed; k > 0 {
			o.Batches[i].MeanResponse /= float64(k)
		}
	}
	o.Completed = uint64(len(times))
	o.Response = quantilesOf(times)
	o.Service = o.Response
	own := float64(len(times)) * q.meanService() / (end - start) / float64(q.cores)
	o.Host = Host{Busy: 0.05 + 0.9*own, Wait: 0.01, CPUs: q.cores}
	if q.reported {
		for _, st := range q.stalls {
			o.Host.Steal += math.Max(0, math.Min(st.to, end)-math.Max(st.from, start)) / (end - start)
		}
	}
	if q.exposed {
		o.Runtime = &Runtime{
			Goroutines: 20 + o.InFlight, GOMAXPROCS: q.cores, Runnable: math.Max(0, o.InFlight-float64(q.cores)),
			CPUSeconds: float64(len(times)) * q.meanService(), RSS: 50 << 20,
		}
	}
}

func (q *queue) meanService() float64 {
	r, sum := rand.New(rand.NewPCG(5, 5)), 0.0
	for range 2000 {
		sum += q.service(r)
	}
	return sum / 2000
}

func quantilesOf(times []float64) Quantiles {
	slices.Sort(times)
	return Quantiles{
		Mean: stat.MomentsOf(times).Mean,
		P50:  quantileBounds(times, 0.5, 0.95),
		P95:  quantileBounds(times, 0.95, 0.95),
		P99:  quantileBounds(times, 0.99, 0.95),
		P999: quantileBounds(times, 0.999, 0.95),
	}
}

// quantileBounds is the q-quantile of an ascending sample with the bounds of
// stat.QuantileRanks.
func quantileBounds(sorted []float64, q, confidence float64) stat.Interval {
	n := len(sorted)
	v := stat.Interval{Point: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1), N: n}
	if n == 0 {
		return v
	}
	lo, hi := stat.QuantileRanks(n, q, confidence)
	v.Point = sorted[min(max(int(math.Ceil(float64(n)*q))-1, 0), n-1)]
	if lo >= 1 {
		v.Lo = sorted[lo-1]
	}
	if hi <= n {
		v.Hi = sorted[hi-1]
	}
	return v
}

// capacity is the completed rate at saturation.
func (q *queue) capacity() float64 {
	c := float64(q.cores) / q.meanService()
	if q.lock != nil {
		r, sum := rand.New(rand.NewPCG(6, 6)), 0.0
		for range 2000 {
			sum += q.lock(r)
		}
		c = math.Min(c, 2000/sum)
	}
	return c
}

// curve is the true quantile of the response time as a function of the rate, from
// long runs of the same server without what goes wrong.
type curve struct {
	q     queue
	p     float64
	known map[float64]float64
	runs  int // requests
}

const truthRun = 200_000

func newCurve(q queue, p float64) *curve {
	q.stallEvery, q.errorsAbove, q.generatorMax = 0, 0, 0
	return &curve{q: q, p: p, known: map[float64]float64{}, runs: truthRun}
}

// at runs the server at one rate.
func (c *curve) at(rate float64) float64 {
	if v, ok := c.known[rate]; ok {
		return v
	}
	q := c.q.seeded(4242)
	times := make([]float64, 0, c.runs)
	t := 0.0
	for i := range c.runs + 5000 {
		t += q.r.ExpFloat64() / rate
		if v := q.serve(t) - t; i >= 5000 {
			times = append(times, v)
		}
	}
	slices.Sort(times)
	c.known[rate] = times[int(c.p*float64(len(times)))]
	return c.known[rate]
}

// knee is the rate at which the quantile is kappa times that at base: between two
// neighbours of a grid of hundredths of capacity.
func (c *curve) knee(base, kappa float64) float64 {
	want, unit := kappa*c.at(base), c.q.capacity()/100
	i := 10 + sort.Search(89, func(i int) bool { return c.at(float64(i+10)*unit) >= want })
	lo, hi := float64(i-1)*unit, float64(i)*unit
	a, b := math.Log(c.at(lo)), math.Log(c.at(hi))
	return lo + (hi-lo)*(math.Log(want)-a)/(b-a)
}

// Service times with a given mean.
func exponential(mean float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return mean * r.ExpFloat64() }
}

func fixed(mean float64) func(*rand.Rand) float64 {
	return func(*rand.Rand) float64 { return mean }
}

func lognormal(mean, sigma float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return mean * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2) }
}

// The queue is itself compared with theory, or the truth would be none.
func TestQueueAgreesWithTheorySimulated(t *testing.T) {
	near := func(what string, got, want, rel float64) {
		t.Helper()
		if math.Abs(got/want-1) > rel {
			t.Errorf("%s = %v, theory says %v", what, got, want)
		}
	}
	q := queue{cores: 1, service: exponential(0.001)}
	c := newCurve(q, 0.99)
	near("P99 of M/M/1 at 0.5", c.at(500), math.Log(100)/(1000-500), 0.05)
	near("P99 of M/M/1 at 0.8", c.at(800), math.Log(100)/(1000-800), 0.10)
	near("knee of M/M/1", c.knee(50, 2.5), 1000-(1000-50)/2.5, 0.02)
	// M/D/1: mean wait is half of M/M/1's (Pollaczek–Khinchine).
	o, _ := (&queue{cores: 1, service: fixed(0.001)}).seeded(1).Measure(context.Background(), Load{Rate: 700}, 200*time.Second)
	near("mean of M/D/1 at 0.7", o.Response.Mean, 0.001*(1+0.7/(2*0.3)), 0.03)
	near("Little's law", o.InFlight, o.completedRate()*o.Response.Mean, 0.01)
	// M/M/2 at 0.6: Erlang C 0.45, mean wait 0.45/(2·1000·0.4).
	o, _ = (&queue{cores: 2, service: exponential(0.001)}).seeded(1).Measure(context.Background(), Load{Rate: 1200}, 200*time.Second)
	near("mean of M/M/2 at 0.6", o.Response.Mean, 0.001+0.45/(2000*0.4), 0.03)
}
