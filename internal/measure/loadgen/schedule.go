package loadgen

import (
	"math"
	"math/rand/v2"
	"time"
)

// A slope is a piece of a load that changes linearly.
type slope struct {
	length   time.Duration
	from, to float64
}

// A curve is a load over time, from slopes one after the other.
type curve []slope

func (c curve) length() (d time.Duration) {
	for _, s := range c {
		d += s.length
	}
	return d
}

// at is the value at time t; after the end it is the last.
func (c curve) at(t time.Duration) float64 {
	for _, s := range c {
		if t < s.length {
			return s.from + (s.to-s.from)*float64(max(t, 0))/float64(s.length)
		}
		t -= s.length
	}
	if len(c) == 0 {
		return 0
	}
	return c[len(c)-1].to
}

// mean is the mean between two times.
func (c curve) mean(from, to time.Duration) float64 {
	if to <= from {
		return c.at(from)
	}
	return (c.integral(to) - c.integral(from)) / (to - from).Seconds()
}

// integral is the area from 0 to t: of a rate, how many arrivals.
func (c curve) integral(t time.Duration) (sum float64) {
	for _, s := range c {
		d := min(t, s.length)
		if d <= 0 {
			return sum
		}
		end := s.from + (s.to-s.from)*float64(d)/float64(s.length)
		sum += (s.from + end) / 2 * d.Seconds()
		t -= s.length
	}
	return sum
}

// A schedule hands out the intended instants of an open model. It is fixed
// beforehand: neither a late generator nor a slow server changes it.
//
// Arrivals are first placed on an axis on which one is due per unit (Poisson: gaps
// of an exponential distribution; uniform: 0, 1, 2 …; burst: n at each multiple of
// n), which is then bent to time by the inverse of the rate's integral. So a ramp
// needs no steps and the number of arrivals is exact.
type schedule struct {
	kind  Arrival
	burst int
	rng   *rand.Rand

	curve   curve
	piece   int
	started time.Duration // of piece
	area    float64       // before piece
	unit    float64       // of the next arrival
	left    int           // of this burst
}

func newSchedule(kind Arrival, burst int, c curve, rng *rand.Rand) *schedule {
	s := &schedule{kind: kind, burst: burst, curve: c, rng: rng, left: burst}
	if kind == Poisson {
		s.unit = rng.ExpFloat64()
	}
	return s
}

// next is the next intended instant from the beginning; not ok when there is none
// any more.
func (s *schedule) next() (at time.Duration, ok bool) {
	for s.piece < len(s.curve) {
		p := &s.curve[s.piece]
		total := (p.from + p.to) / 2 * p.length.Seconds()
		if x := s.unit - s.area; x < total {
			at := s.started + p.invert(x)
			s.step()
			return at, true
		}
		s.area += total
		s.started += p.length
		s.piece++
	}
	return 0, false
}

func (s *schedule) step() {
	switch s.kind {
	case Uniform:
		s.unit++
	case Burst:
		if s.left--; s.left == 0 {
			s.left = s.burst
			s.unit += float64(s.burst)
		}
	default:
		s.unit += s.rng.ExpFloat64()
	}
}

// invert is the time at which x arrivals of the slope are due: the solution of
// from·t + (to−from)/(2·length)·t² = x.
func (p *slope) invert(x float64) time.Duration {
	if x == 0 {
		return 0
	}
	a := (p.to - p.from) / (2 * p.length.Seconds())
	var t float64
	if d := p.from*p.from + 4*a*x; a == 0 {
		t = x / p.from
	} else {
		t = 2 * x / (p.from + math.Sqrt(max(d, 0)))
	}
	return min(time.Duration(t*1e9+0.5), p.length-1)
}

// curves are the rate and the connections of s, with the warm-up before them.
func (s *Spec) curves() (rate, conns curve) {
	r, n := s.Rate, float64(s.Conns)
	hold := func(d time.Duration) {
		rate = append(rate, slope{d, r, r})
		conns = append(conns, slope{d, n, n})
	}
	hold(s.Warmup)
	if len(s.Stages) == 0 {
		hold(s.Duration)
		return rate, conns
	}
	for _, st := range s.Stages {
		r1, n1 := st.Rate, float64(st.Conns)
		if r1 < 0 {
			r1 = r
		}
		if n1 == 0 {
			n1 = n
		}
		rate = append(rate, slope{st.Duration, r, r1})
		conns = append(conns, slope{st.Duration, n, n1})
		r, n = r1, n1
	}
	return rate, conns
}
