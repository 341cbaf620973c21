package nats

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// NATS elects the leaders of the partitions by chance, and a server that was away leads
// none when it comes back. So that the work of leading is spread over the servers, every
// partition has a server that should lead it: the servers of its replicas by name, beginning
// at one that the namespace's name selects, one after another. A node that sees another
// one lead, with all replicas up to date, requests that it steps down for that server. Publishes
// meanwhile wait for the new leader, see bridge.

// spreadFirst and spreadEvery are how long a node waits before it looks, and as much again by
// chance, so that one node does it.
const (
	spreadFirst = time.Second
	spreadEvery = 30 * time.Second
)

// spreads reports whether the log has a server that should lead it.
func (s *logOptions) spreads() bool {
	opts := s.opts.Load()
	return opts.Partitions > 1 && s.bridged()
}

// A spread keeps a log with the server that should lead it.
type spread struct{ *stream }

// run looks who leads the log, until the broker is closed.
func (s spread) run() {
	after := func(d time.Duration) <-chan time.Time { return time.After(d + rand.N(d)) }
	for wait := after(spreadFirst); ; wait = after(spreadEvery) {
		select {
		case <-s.b.ctx.Done():
			return
		case <-wait:
		}
		if s.b.connected.Load() && s.verified() {
			s.move()
		}
	}
}

// move has the server lead the log that should, if all of its replicas are up to date.
func (s spread) move() {
	var a streamAnswer
	if err := s.request(s.b.ctx, "STREAM.INFO."+s.name(), nil, &a); err != nil || a.Cluster == nil {
		return
	}
	to := s.preferred(a.Cluster)
	if to == "" || to == a.Cluster.Leader {
		return
	}
	body := map[string]any{"placement": map[string]string{"preferred": to}}
	var done struct {
		Success bool `json:"success"`
	}
	if err := s.request(s.b.ctx, "STREAM.LEADER.STEPDOWN."+s.name(), body, &done); err != nil {
		s.b.log.Debug("partition keeps its leader", "namespace", s.opts.Load().LogName(), "leader", a.Cluster.Leader, "wanted", to, "err", err)
		return
	}
	s.b.log.Info("partition has another leader", "namespace", s.opts.Load().LogName(), "from", a.Cluster.Leader, "to", to)
}

// preferred returns the server that should lead the log; empty while a replica is not up to date.
func (s *logOptions) preferred(c *jetstream.ClusterInfo) string {
	opts := s.opts.Load()
	if c.Leader == "" || len(c.Replicas)+1 < opts.Replicas {
		return ""
	}
	servers := []string{c.Leader}
	for _, r := range c.Replicas {
		if !r.Current || r.Offline {
			return ""
		}
		servers = append(servers, r.Name)
	}
	slices.Sort(servers)
	h := fnv.New32a()
	_, _ = h.Write([]byte(opts.Name)) // never fails
	return servers[(int(h.Sum32()>>1)+opts.Partition)%len(servers)]
}
