package observer

import "math"

// slots of a histogram are half-octaves of nanoseconds, as in bpf/common.h.
const slots = 72

// bounds are the upper ends of the slots in seconds.
func bounds() []float64 {
	b := make([]float64, slots)
	for i := range b {
		// The next slot starts at 2^l or 1.5·2^l.
		next := i + 1
		b[i] = math.Ldexp(1+0.5*float64(next%2), next/2) / 1e9
	}
	return b
}

// A tally is a count and the sum of its times.
type tally struct{ count, ns uint64 }

// A history is a histogram that only grows, read at the end of each slice.
type history struct {
	last   [slots]tally
	slices [][]uint64
}

// add records what was read at the end of slice i.
func (h *history) add(i int, now [slots]tally) {
	for len(h.slices) <= i {
		h.slices = append(h.slices, nil)
	}
	row := make([]uint64, slots)
	for s := range now {
		row[s] = now[s].count - min(h.last[s].count, now[s].count)
	}
	h.slices[i] = row
	h.last = now
}

// series sums the slices up; n is how many there are.
func (h *history) series(n int) Series {
	var s Series
	for i := range h.last {
		s.Count += h.last[i].count
		s.Total += float64(h.last[i].ns) / 1e9
	}
	b := bounds()
	s.P50, s.P99, s.Most = quantile(b, h.last, 0.5), quantile(b, h.last, 0.99), quantile(b, h.last, 1)
	s.Slices = make([][]uint64, n)
	for i := range s.Slices {
		if i < len(h.slices) && h.slices[i] != nil {
			s.Slices[i] = h.slices[i]
		} else {
			s.Slices[i] = make([]uint64, slots)
		}
	}
	return s
}

// quantile is the upper end of the slot that has it, 0 of nothing.
func quantile(b []float64, h [slots]tally, q float64) float64 {
	var all, seen uint64
	for _, t := range h {
		all += t.count
	}
	if all == 0 {
		return 0
	}
	want := uint64(math.Ceil(q * float64(all)))
	for i, t := range h {
		if seen += t.count; seen >= max(want, 1) {
			return b[i]
		}
	}
	return b[slots-1]
}
