package observe

// newSharedLimitMetrics shows what the nodes of a cluster share of rate limits.
func newSharedLimitMetrics(a *Node, c *catalog) *group {
	g := c.group("In a cluster.")
	nodes := g.metric("weir_limit_share_nodes", "Nodes that share rate limits, this one included.")
	alone := g.metric("weir_limit_share_alone", "1 while the other nodes are out of reach and this one grants its part of each rate limit, 0 otherwise.")
	messages := g.metric("weir_limit_share_messages_total", "Messages about shared rate limits, by what happened: sent, received; missed: sent by another node and not received; malformed: dropped; foreign: dropped, because that node does not have the cluster's secret.", "outcome")
	buckets := g.metric("weir_limit_share_buckets_total", "Buckets whose use was shared in messages: sent, applied (of other nodes), deferred (because a message was full).", "outcome")
	g.read(func(to scrape) {
		s := a.SharedLimits()
		if s == nil {
			return
		}
		put(to, nodes, s.Nodes)
		put(to, alone, truth(s.Alone))
		putAll(to, messages, map[string]uint64{"sent": s.Sent, "received": s.Received, "missed": s.Missed, "malformed": s.Malformed, "foreign": s.Foreign})
		putAll(to, buckets, map[string]uint64{"sent": s.Buckets, "applied": s.Applied, "deferred": s.Deferred})
	})
	return g
}
