package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/auth"
)

// RevocationState is what a node knows of revoked subjects and tokens.
type RevocationState struct {
	auth.RevocationStats
	Closed uint64 // connections ended because of them
	Stores bool   // NATS stores them
	Shared bool   // the node follows those that NATS has stored
}

// newRevocationMetrics shows the subjects and tokens that are revoked.
func newRevocationMetrics(a *Node, c *catalog) *coreMetrics {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	one := func(f func(s *RevocationState) float64) func(func(float64, ...string)) {
		return func(emit func(float64, ...string)) {
			s := a.Revocations()
			emit(f(&s))
		}
	}
	when := c.when
	c.when = "With the NATS broker."
	stored := c.desc("weir_revocations_stored", "1 if this node follows the revocations that NATS has stored, 0 if it does not.")
	c.when = when
	return &coreMetrics{list: []metric{
		{c.desc("weir_revocations", "Revocations in force on this node, by kind: subject, token.", "kind"), gauge, func(emit func(float64, ...string)) {
			s := a.Revocations()
			emit(float64(s.Subjects), auth.RevokedSubject)
			emit(float64(s.Tokens), auth.RevokedToken)
		}},
		{stored, gauge, func(emit func(float64, ...string)) {
			switch s := a.Revocations(); {
			case s.Shared:
				emit(1)
			case s.Stores:
				emit(0)
			}
		}},
		{c.desc("weir_revocation_refusals_total", "Tokens and clients refused because they are revoked."), counter, one(func(s *RevocationState) float64 { return float64(s.Refused) })},
		{c.desc("weir_revocation_closed_total", "Connections and proxied requests ended because their client was revoked."), counter, one(func(s *RevocationState) float64 { return float64(s.Closed) })},
		{c.desc("weir_revocation_dropped_total", "Revocations of other nodes that are not in force here, because there are too many."), counter, one(func(s *RevocationState) float64 { return float64(s.Overflow) })},
	}}
}
