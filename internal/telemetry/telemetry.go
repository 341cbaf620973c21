package telemetry

import "sync/atomic"

// A Telemetry sends spans. A nil one does nothing.
type Telemetry struct {
	exported, dropped atomic.Uint64
}

// Stats are running totals.
type Stats struct {
	// Exported spans arrived at the collector, Dropped ones found no room, or no
	// collector that took them.
	Exported, Dropped uint64
}

// Stats may be called from any goroutine.
func (t *Telemetry) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	return Stats{Exported: t.exported.Load(), Dropped: t.dropped.Load()}
}
