package capacity

import (
	"math"
)

// A tail is how a window's response times are distributed from the median up: the logarithm of
// the share that is beyond, straight between the quantiles that are known.
type tail struct {
	n      float64    // answers
	at     [4]float64 // P50, P95, P99, P99.9
	beyond [4]float64 // the logarithms of their shares
	least  float64    // all answers count as longer; 0: none do
}

// tailOf is a window's. One of overload has answers that are all beyond twice the limit: how
// long they took only says how long the window was.
func tailOf(w *Window, limit float64) tail {
	r := &w.Obs.Response
	t := tail{n: float64(r.P50.N)}
	for i, p := range []struct{ at, share float64 }{{r.P50.Point, 0.5}, {r.P95.Point, 0.05}, {r.P99.Point, 0.01}, {r.P999.Point, 0.001}} {
		t.at[i], t.beyond[i] = p.at, math.Log(math.Max(p.share, 1/(t.n+1)))
	}
	if backlogged(w) {
		t.least = 2 * limit
	}
	return t
}

// share is the part of the answers that took longer than x.
func (t *tail) share(x float64) float64 {
	if x <= t.least || !(t.at[0] > 0) {
		return 1
	}
	if x <= t.at[0] {
		return 1 - 0.5*x/t.at[0]
	}
	slope := math.Inf(-1)
	for i := 1; i < len(t.at); i++ {
		width := t.at[i] - t.at[i-1]
		if !(width > 0) {
			continue
		}
		slope = (t.beyond[i] - t.beyond[i-1]) / width
		if x <= t.at[i] {
			return math.Exp(t.beyond[i-1] + slope*(x-t.at[i-1]))
		}
	}
	last := len(t.at) - 1
	return math.Exp(t.beyond[last] + slope*(x-t.at[last])) // as it fell before
}

// pooledTail is the latency beyond which a share of the answers of several windows lies, taken
// as one: windows, by index, may repeat. The quantile of one window of a queue near saturation
// rests on the few busy periods that it holds, whatever its number of answers, and is too low
// in more than half of them; that of all together rests on all.
func pooledTail(tails []tail, windows []int, share float64) float64 {
	lo, hi, all := math.Inf(1), 0.0, 0.0
	for _, i := range windows {
		t := &tails[i]
		lo, hi, all = math.Min(lo, t.at[0]), math.Max(hi, math.Max(t.least, t.at[3])), all+t.n
	}
	for range 40 {
		mid, sum := math.Sqrt(lo*hi), 0.0
		for _, i := range windows {
			sum += tails[i].n * tails[i].share(mid)
		}
		if sum > share*all {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}
