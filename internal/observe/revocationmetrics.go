package observe

import "github.com/weir-gateway/weir/internal/front/auth"

// RevocationState is what a node knows of revoked subjects and tokens.
type RevocationState struct {
	auth.RevocationStats
	Closed uint64 // connections ended because of them
	Stores bool   // NATS stores them
	Shared bool   // the node follows those that NATS has stored
}

// newRevocationMetrics shows the subjects and tokens that are revoked.
func newRevocationMetrics(a *Node, c *catalog) *group {
	g := c.group("With the NATS broker.")
	stored := g.metric("weir_revocations_stored", "1 if this node follows the revocations that NATS has stored, 0 if it does not.")
	g.read(func(to scrape) {
		if s := a.Revocations(); s.Shared || s.Stores {
			put(to, stored, truth(s.Shared))
		}
	})
	g.when = ""
	by(g, "weir_revocations", "Revocations in force on this node, by kind: subject, token.", "kind", func() map[string]int {
		s := a.Revocations()
		return map[string]int{auth.RevokedSubject: s.Subjects, auth.RevokedToken: s.Tokens}
	})
	one(g, "weir_revocation_refusals_total", "Tokens and clients refused because they are revoked.", func() uint64 { return a.Revocations().Refused })
	one(g, "weir_revocation_closed_total", "Connections and proxied requests ended because their client was revoked.", func() uint64 { return a.Revocations().Closed })
	one(g, "weir_revocation_dropped_total", "Revocations of other nodes that are not in force here, because there are too many.", func() uint64 { return a.Revocations().Overflow })
	return g
}
