package governor

import "github.com/weir-gateway/weir/internal/observe/metrics"

// Quantiles are of N durations, in seconds, each the top of a bucket.
type Quantiles struct {
	N   uint64  `json:"n"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// quantiles sums c up.
func quantiles(c *metrics.Counts) Quantiles {
	return Quantiles{
		N: c.Total(), P50: c.Top(0.5).Seconds(), P90: c.Top(0.9).Seconds(),
		P99: c.Top(0.99).Seconds(), Max: c.Top(1).Seconds(),
	}
}
