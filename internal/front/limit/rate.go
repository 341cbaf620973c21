package limit

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
)

// Rate is what a bucket lets through, as in the config file. The zero
// value means no limit, except where a field of this type says otherwise.
type Rate struct {
	// PerSecond is how many requests a second pass in the long run; 0 means no
	// limit. Fractions are fine: 0.5 is one every two seconds.
	PerSecond float64 `json:"per_second"`
	// Burst is how many may come at once after a pause; 0 means one second's
	// worth, at least 1.
	Burst int `json:"burst"`
	// Shared applies it to all nodes of a cluster together; false: to each node by itself.
	Shared setting.Switch `json:"shared"`
}

// Validate returns what is wrong with r.
func (r Rate) Validate() error {
	switch {
	case math.IsNaN(r.PerSecond) || r.PerSecond < 0 || r.PerSecond > 1e9:
		return fmt.Errorf("per_second: %v is not within 0..1e9", r.PerSecond)
	case r.PerSecond > 0 && r.PerSecond < 1.0/86400:
		return fmt.Errorf("per_second: %v is less than one a day", r.PerSecond)
	case r.Burst < 0 || r.Burst > 1e9:
		return fmt.Errorf("burst: %d is not within 0..1e9", r.Burst)
	case r.PerSecond == 0 && r.Burst > 0:
		return fmt.Errorf("burst: %d has no meaning without per_second", r.Burst)
	}
	if q := r.Quota(); q.burst < 0 {
		return fmt.Errorf("burst: %d at %v per second takes over a year to come back", r.Burst, r.PerSecond)
	}
	return nil
}

// Quota compiles r.
func (r Rate) Quota() Quota {
	if r.PerSecond <= 0 {
		return Quota{}
	}
	local := !r.Shared.On()
	burst := r.Burst
	burst = cmp.Or(burst, max(1, int(r.PerSecond)))
	step := max(1, int64(math.Round(1e9/r.PerSecond)))
	if span := float64(step) * float64(burst); span > float64(366*24*time.Hour) {
		return Quota{step: step, burst: -1, local: local}
	}
	return Quota{step: step, burst: step * int64(burst-1), local: local}
}

// A Quota is a compiled Rate. The zero value lets everything through.
type Quota struct {
	step  int64 // nanoseconds between two requests at the rate
	burst int64 // how far ahead of the clock a bucket may be, in nanoseconds
	local bool  // other nodes do not share it
}

// Limited reports whether q limits anything.
func (q Quota) Limited() bool { return q.step > 0 }

// RetryAfter returns wait as the value of a Retry-After field: the whole seconds
// after which the request would pass, never 0 (RFC 9110 §10.2.3).
func RetryAfter(wait time.Duration) int64 {
	return int64((max(1, wait)-1)/time.Second) + 1
}
