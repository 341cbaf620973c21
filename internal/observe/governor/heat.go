package governor

import (
	"sync"

	"github.com/weir-gateway/weir/internal/observe/metrics"
)

const (
	heatColumns = 120
	// heatFold is how many buckets of a histogram make a row.
	heatFold = 2
	heatRows = (metrics.Buckets + heatFold - 1) / heatFold
)

// A HeatMap shows how a duration was distributed over time.
type HeatMap struct {
	Name string `json:"name"`
	// Tops are the rows' upper ends in seconds.
	Tops    []float64 `json:"tops"`
	Columns []Column  `json:"columns"`
}

// A Column is one second of a heat map.
type Column struct {
	// Time is when the second ended, in seconds since 1970.
	Time   int64    `json:"time"`
	Counts []uint32 `json:"counts"`
}

// heat keeps the columns of one map in fixed memory.
type heat struct {
	name string

	mu   sync.Mutex
	cols [heatColumns]struct {
		time   int64
		counts [heatRows]uint32
	}
	n int // columns written so far
}

// add writes the next column. It does not allocate.
func (h *heat) add(second int64, d *metrics.Counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &h.cols[h.n%heatColumns]
	h.n++
	c.time = second
	c.counts = [heatRows]uint32{}
	for i, n := range d.N {
		row := &c.counts[i/heatFold]
		*row = uint32(min(uint64(*row)+n, 1<<32-1))
	}
}

// read copies the newest columns, at most so many; 0 is all.
func (h *heat) read(columns int) HeatMap {
	out := HeatMap{Name: h.name, Tops: make([]float64, heatRows), Columns: []Column{}}
	for i := range out.Tops {
		out.Tops[i] = metrics.BucketTop(min(i*heatFold+heatFold-1, metrics.Buckets-1)).Seconds()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	have := min(h.n, heatColumns)
	if columns > 0 {
		have = min(have, columns)
	}
	for i := h.n - have; i < h.n; i++ {
		c := &h.cols[i%heatColumns]
		out.Columns = append(out.Columns, Column{Time: c.time, Counts: append([]uint32(nil), c.counts[:]...)})
	}
	return out
}
