package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/limit"
)

// newSharedLimitMetrics shows what the nodes of a cluster share of rate limits.
func newSharedLimitMetrics(a *Node, c *catalog) *coreMetrics {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	shared := func(f func(s *limit.ShareStats, emit func(float64, ...string))) func(func(float64, ...string)) {
		return func(emit func(float64, ...string)) {
			if s := a.SharedLimits(); s != nil {
				f(s, emit)
			}
		}
	}
	when := c.when
	c.when = "In a cluster."
	defer func() { c.when = when }()
	return &coreMetrics{list: []metric{
		{c.desc("weir_limit_share_nodes", "Nodes that share rate limits, this one included."), gauge, shared(func(s *limit.ShareStats, emit func(float64, ...string)) {
			emit(float64(s.Nodes))
		})},
		{c.desc("weir_limit_share_alone", "1 while the other nodes are out of reach and this one grants its part of each rate limit, 0 otherwise."), gauge, shared(func(s *limit.ShareStats, emit func(float64, ...string)) {
			if s.Alone {
				emit(1)
			} else {
				emit(0)
			}
		})},
		{c.desc("weir_limit_share_messages_total", "Messages about shared rate limits, by what happened: sent, received; missed: sent by another node and not received; malformed: dropped; foreign: dropped, because that node does not have the cluster's secret.", "outcome"), counter, shared(func(s *limit.ShareStats, emit func(float64, ...string)) {
			for outcome, n := range map[string]uint64{"sent": s.Sent, "received": s.Received, "missed": s.Missed, "malformed": s.Malformed, "foreign": s.Foreign} {
				emit(float64(n), outcome)
			}
		})},
		{c.desc("weir_limit_share_buckets_total", "Buckets whose use was shared in messages: sent, applied (of other nodes), deferred (because a message was full).", "outcome"), counter, shared(func(s *limit.ShareStats, emit func(float64, ...string)) {
			for outcome, n := range map[string]uint64{"sent": s.Buckets, "applied": s.Applied, "deferred": s.Deferred} {
				emit(float64(n), outcome)
			}
		})},
	}}
}
