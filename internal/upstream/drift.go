package upstream

import "github.com/weir-gateway/weir/hub"

// DriftConfig is the drift alarm of a route: are requests still what they were?
type DriftConfig struct {
	// Window is how long a sample is collected. 0 means 1m.
	Window hub.Duration `json:"window"`
	// Samples bounds what is kept of a window, by reservoir. 0 means 512.
	Samples int `json:"samples"`
	// Alpha is the level of each test (Kolmogorov–Smirnov). 0 means 0.001.
	Alpha float64 `json:"alpha"`
	// Distance is how far the distributions must be apart, 0 to 1. 0 means 0.15.
	Distance float64 `json:"distance"`
}

// Drift watches one route.
type Drift struct{}

// Observe records a request's body size in bytes and its time to the first byte in
// nanoseconds. Any goroutine may call it. It allocates nothing.
func (d *Drift) Observe(size, latency int64) {}
