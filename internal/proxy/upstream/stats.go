package upstream

import (
	"cmp"
	"slices"
	"time"
)

// ClusterStats is a cluster at one instant; counts are since its start.
type ClusterStats struct {
	Name    string      `json:"name"`
	Balance string      `json:"balance"`
	Peers   []PeerStats `json:"peers"` // those that drain too
	Pending int         `json:"pending"`
	// Panicking reports that health and ejection are ignored now, Panicked counts the
	// requests for which they were: see HealthConfig.PanicBelow.
	Panicking bool   `json:"panicking"`
	Panicked  uint64 `json:"panicked"`
	// Refused counts what Pick and EnterPending refused, by reason.
	Refused        RefusedStats  `json:"refused"`
	Retries        uint64        `json:"retries"`
	RetriesRefused uint64        `json:"retries_refused"` // for want of budget
	Hedges         uint64        `json:"hedges"`
	HedgeAfter     time.Duration `json:"hedge_after"`
	// Handshakes are TLS handshakes for requests, by how they ended: full, resumed, or
	// what went wrong. Empty: there were none.
	Handshakes map[string]uint64 `json:"tls_handshakes,omitempty"`
}

// RefusedStats are the requests without a peer.
type RefusedStats struct {
	NoPeers     uint64 `json:"no_peers"`
	Unhealthy   uint64 `json:"unhealthy"`
	BreakerOpen uint64 `json:"breaker_open"`
	Overloaded  uint64 `json:"overloaded"`
	Tried       uint64 `json:"tried"`
	Pending     uint64 `json:"pending"`
}

// PeerStats is a peer at one instant; counts are since it is known.
type PeerStats struct {
	Address string `json:"address"`
	Name    string `json:"name"`
	// State is one word for all: "up", "slow start", "half-open", "open",
	// "ejected", "down" or "draining".
	State       string        `json:"state"`
	Health      string        `json:"health"`
	Breaker     string        `json:"breaker"`
	EjectedFor  time.Duration `json:"ejected_for"` // still
	InFlight    int           `json:"in_flight"`
	Connections int           `json:"connections"`
	Attempts    uint64        `json:"attempts"`
	// Classes are replies by hundreds of the status; 0: no head came.
	Classes       [6]uint64     `json:"classes"`
	ConnectErrors uint64        `json:"connect_errors"`
	Resets        uint64        `json:"resets"`
	Timeouts      uint64        `json:"timeouts"`
	Canceled      uint64        `json:"canceled"`
	Stale         uint64        `json:"stale"`
	Bytes         uint64        `json:"bytes"`
	EWMA          time.Duration `json:"ewma"` // of the time to the first byte; 0: none lately
	Ejections     uint64        `json:"ejections"`
	BreakerOpened uint64        `json:"breaker_opened"`
	Checks        uint64        `json:"checks"`
	ChecksFailed  uint64        `json:"checks_failed"`
	PoolFull      uint64        `json:"pool_full"` // connections refused by Reserve
	Leaked        uint64        `json:"leaked"`    // reported by Leases
	// TLSError is why the last TLS handshake failed; empty: it did not.
	TLSError string `json:"tls_error,omitempty"`
}

// SplitStats is a split at one instant.
type SplitStats struct {
	Name     string       `json:"name"`
	Arms     []ArmStats   `json:"arms"`
	Ruled    uint64       `json:"ruled"` // sent by a rule
	Mirrored uint64       `json:"mirrored"`
	Canary   *CanaryState `json:"canary,omitempty"`
}

// ArmStats is one arm.
type ArmStats struct {
	Cluster string  `json:"cluster"`
	Share   float64 `json:"share"`
	Chosen  uint64  `json:"chosen"`
}

// Stats is all clusters, by name. It takes the Set's lock for as long as the peers
// are walked; scrapes and the dashboard call it, loops do not.
func (s *Set) Stats() []ClusterStats {
	now := s.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []ClusterStats
	for _, c := range s.current.Load().clusters {
		all = append(all, c.stats(now))
	}
	slices.SortFunc(all, func(a, b ClusterStats) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// SplitStats is all splits, by name.
func (s *Set) SplitStats() []SplitStats {
	var all []SplitStats
	for _, sp := range s.current.Load().splits {
		all = append(all, sp.Stats())
	}
	slices.SortFunc(all, func(a, b SplitStats) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// DriftStats is all drift monitors, by name.
func (s *Set) DriftStats() []DriftState {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []DriftState
	for _, d := range s.drifts {
		all = append(all, d.State())
	}
	slices.SortFunc(all, func(a, b DriftState) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (c *Cluster) stats(now int64) ClusterStats {
	v := c.view.Load()
	st := ClusterStats{
		Name: c.name, Balance: v.config.Balance, Pending: int(c.pending.Load()),
		Panicking: v.panics(now), Panicked: c.panicked.Load(),
		Refused: RefusedStats{
			NoPeers: c.refused[barDraining].Load(), Unhealthy: c.refused[barUnhealthy].Load(), BreakerOpen: c.refused[barBreaker].Load(),
			Overloaded: c.refused[barFull].Load(), Tried: c.refused[barTried].Load(), Pending: c.waited.Load(),
		},
		Retries: c.retries.made.Load(), RetriesRefused: c.retries.refused.Load(),
		Hedges: c.hedges.made.Load(), HedgeAfter: c.HedgeAfter(),
	}
	for i := range c.shakes.results {
		if n := c.shakes.results[i].Load(); n > 0 {
			if st.Handshakes == nil {
				st.Handshakes = map[string]uint64{}
			}
			st.Handshakes[shakeNames[i]] = n
		}
	}
	for _, mb := range c.members.known {
		if mb.gone == 0 || !mb.drained {
			st.Peers = append(st.Peers, mb.peer.stats(now, &v.policy))
		}
	}
	slices.SortFunc(st.Peers, func(a, b PeerStats) int { return cmp.Compare(a.Address, b.Address) })
	return st
}

func (p *Peer) stats(now int64, pol *policy) PeerStats {
	n := &p.counts
	st := PeerStats{
		Address: p.address.String(), Name: p.Name(), State: p.state(now, pol),
		Health: Health(p.health.Load()).String(), Breaker: p.breaker.state().String(),
		EjectedFor: time.Duration(max(p.ejectedUntil.Load()-now, 0)),
		InFlight:   p.InFlight(), Connections: int(p.conns.Load()), Attempts: n.attempts.Load(),
		ConnectErrors: n.kinds[ConnectError].Load(), Resets: n.kinds[Reset].Load(), Timeouts: n.kinds[Timeout].Load(),
		Canceled: n.kinds[Canceled].Load(), Stale: n.kinds[Stale].Load(), Bytes: n.bytes.Load(),
		EWMA:      time.Duration(p.latency.value(now, pol.ewmaDecay)),
		Ejections: n.ejected.Load(), BreakerOpened: p.breaker.opens.Load(),
		Checks: n.checks.Load(), ChecksFailed: n.failed.Load(), PoolFull: n.full.Load(), Leaked: n.leaked.Load(),
	}
	if e := p.shakeErr.Load(); e != nil {
		st.TLSError = *e
	}
	for i := range st.Classes {
		st.Classes[i] = n.classes[i].Load()
	}
	return st
}

// state is one word for what p is.
func (p *Peer) state(now int64, pol *policy) string {
	switch b := p.breaker.state(); {
	case p.draining.Load():
		return "draining"
	case Health(p.health.Load()) == HealthDown:
		return "down"
	case p.ejectedUntil.Load() > now:
		return "ejected"
	case b != BreakerClosed:
		return b.String()
	case p.ramp(now, pol) < 1:
		return "slow start"
	}
	return "up"
}

// Stats is the split now. Any goroutine may call it.
func (s *Split) Stats() SplitStats {
	st := SplitStats{Name: s.config.Name, Ruled: s.ruled.Load(), Mirrored: s.mirrored.Load()}
	weights := *s.weights.Load()
	total := 0.0
	for _, w := range weights {
		total += w
	}
	for i, w := range weights {
		st.Arms = append(st.Arms, ArmStats{s.config.Arms[i].Cluster, w / total, s.chosen[i].Load()})
	}
	if s.canary != nil {
		k := s.canary.state()
		st.Canary = &k
	}
	return st
}
