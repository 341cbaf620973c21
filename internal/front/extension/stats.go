package extension

import "github.com/weir-gateway/weir/internal/observe/metrics"

// Stats are counters of one extension since it was opened, and what is the case now.
type Stats struct {
	// Events counts events by kind and outcome: allowed, refused, cached_allowed,
	// cached_refused, failed, timeout, overloaded, canceled.
	Events  map[string]map[string]uint64
	Dropped uint64 // disconnect events at queue
	Pending int64  // calls under way
	Queued  int    // disconnect events that wait
	Seconds metrics.Counts
}

// Stats returns the counters of each extension by its name.
func (x *Extensions) Stats() map[string]Stats {
	all := map[string]Stats{}
	if x == nil {
		return all
	}
	for _, e := range x.set.Load().all() {
		s := Stats{Events: map[string]map[string]uint64{}, Dropped: e.dropped.Load(), Pending: e.pending.Load(), Queued: len(e.queue)}
		for _, name := range e.cfg.Events {
			for k := range kinds {
				if k == 0 || names[k] != name {
					continue
				}
				s.Events[name] = map[string]uint64{}
				for o := range e.counts[k] {
					s.Events[name][outcomeNames[o]] = e.counts[k][o].Load()
				}
			}
		}
		e.seconds.AddTo(&s.Seconds)
		all[e.cfg.Name] = s
	}
	return all
}
