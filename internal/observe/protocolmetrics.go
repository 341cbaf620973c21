package observe

// newProtocolMetrics shows the protocols of other servers, those that are spoken, and what
// they share.
func newProtocolMetrics(a *Node, c *catalog) *group {
	g := c.group("With Mercure, Centrifuge or Pusher enabled.")
	events := g.metric("weir_protocol_events_total", "What clients and publishers of a protocol did, and what became of them.", "protocol", "event")
	waiting := g.metric("weir_protocol_waiting_messages", "Messages that wait for slow clients of a protocol.", "protocol")
	nodes := g.metric("weir_cluster_nodes", "Nodes that live, this one included.")
	cluster := g.metric("weir_cluster_events_total", "What happened between nodes.", "event")
	members := g.metric("weir_presence_members", "Members of channels: of this node, or of all.", "of")
	presences := g.metric("weir_presence_events_total", "What happened to the presence of nodes and members.", "event")
	g.read(func(to scrape) {
		p := a.Protocols
		if !p.Started.Load() {
			return
		}
		for protocol, counts := range p.events() {
			putAll(to, events, counts, protocol)
		}
		if p.Centrifuge != nil {
			put(to, waiting, p.Centrifuge.Stats().Queued, "centrifuge")
		}
		if p.Pusher != nil {
			put(to, waiting, p.Pusher.Stats().Waiting, "pusher")
		}
		c, s := p.Cluster.Stats(), p.Presence.Stats()
		put(to, nodes, c.Nodes)
		putAll(to, cluster, map[string]uint64{
			"joined": c.Joined, "gone": c.Gone, "expired": c.Expired, "dropped": c.Dropped, "refused": c.Refused, "malformed": c.Malformed,
		})
		putAll(to, members, map[string]int64{"this": s.Local, "all": s.Members})
		putAll(to, presences, map[string]uint64{"refused": s.Refused, "told": s.Events, "hole": s.Holes, "sync": s.Syncs, "malformed": s.Malformed})
	})
	return g
}

// events counts what happened, by protocol and event.
func (p *Protocols) events() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	if s := p.Mercure.Load(); s != nil {
		t := s.Stats()
		all["mercure"] = map[string]uint64{
			"subscribed": t.Subscribed,
			"resumed":    t.Resumed,
			"unknown_id": t.UnknownIDs,
			"denied":     t.Denied,
			"published":  t.Published,
			"refused":    t.Refused,
			"event_lost": t.EventsLost,
			"unlisted":   t.Unlisted,
		}
	}
	if p.Centrifuge != nil {
		t := p.Centrifuge.Stats()
		all["centrifuge"] = map[string]uint64{
			"command":       t.Commands,
			"failed":        t.Failed,
			"recovered":     t.Recovered,
			"unrecovered":   t.Unrecovered,
			"insufficient":  t.Insufficient,
			"disconnected":  t.Disconnects,
			"too_slow":      t.Slow,
			"dropped":       t.Dropped,
			"backend_error": t.BackendErrors,
			"event_lost":    t.EventsLost,
			"api_call":      t.APICalls,
		}
	}
	if p.Pusher != nil {
		t := p.Pusher.Stats()
		all["pusher"] = map[string]uint64{
			"connected":       t.Connected,
			"turned_away":     t.Rejected,
			"too_slow":        t.Slow,
			"flooded":         t.Flooded,
			"unanswered":      t.Unanswered,
			"subscribed":      t.Subscribed,
			"denied":          t.Denied,
			"client_event":    t.ClientEvents,
			"limited":         t.Limited,
			"triggered":       t.Triggers,
			"refused":         t.Refused,
			"terminated":      t.Terminated,
			"notice_lost":     t.NoticesLost,
			"webhook":         t.Webhooks,
			"webhook_retried": t.WebhooksRetried,
			"webhook_failed":  t.WebhooksFailed,
			"webhook_dropped": t.WebhooksDropped,
			"dropped":         t.Dropped,
			"conflated":       t.Conflated,
		}
	}
	return all
}
