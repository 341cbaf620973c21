package observe

import "github.com/prometheus/client_golang/prometheus"

// protocolMetrics shows the protocols of other servers, those that are spoken, and
// what they share.
type protocolMetrics struct {
	protocols                                           *Protocols
	events, waiting, nodes, cluster, members, presences *prometheus.Desc
}

func newProtocolMetrics(a *Node, c *catalog) *protocolMetrics {
	c.when = "With Mercure, Centrifuge or Pusher enabled."
	defer func() { c.when = "" }()
	return &protocolMetrics{
		protocols: a.Protocols,
		events:    c.desc("weir_protocol_events_total", "What clients and publishers of a protocol did, and what became of them.", "protocol", "event"),
		waiting:   c.desc("weir_protocol_waiting_messages", "Messages that wait for slow clients of a protocol.", "protocol"),
		nodes:     c.desc("weir_cluster_nodes", "Nodes that live, this one included."),
		cluster:   c.desc("weir_cluster_events_total", "What happened between nodes.", "event"),
		members:   c.desc("weir_presence_members", "Members of channels: of this node, or of all.", "of"),
		presences: c.desc("weir_presence_events_total", "What happened to the presence of nodes and members.", "event"),
	}
}

// Describe implements prometheus.Collector.
func (m *protocolMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.events, m.waiting, m.nodes, m.cluster, m.members, m.presences} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *protocolMetrics) Collect(ch chan<- prometheus.Metric) {
	p := m.protocols
	if !p.Started.Load() {
		return
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	event := func(protocol, name string, n uint64) { count(m.events, n, protocol, name) }
	if s := p.Mercure.Load(); s != nil {
		t := s.Stats()
		event("mercure", "subscribed", t.Subscribed)
		event("mercure", "resumed", t.Resumed)
		event("mercure", "unknown_id", t.UnknownIDs)
		event("mercure", "denied", t.Denied)
		event("mercure", "published", t.Published)
		event("mercure", "refused", t.Refused)
		event("mercure", "event_lost", t.EventsLost)
		event("mercure", "unlisted", t.Unlisted)
	}
	if p.Centrifuge != nil {
		t := p.Centrifuge.Stats()
		event("centrifuge", "command", t.Commands)
		event("centrifuge", "failed", t.Failed)
		event("centrifuge", "recovered", t.Recovered)
		event("centrifuge", "unrecovered", t.Unrecovered)
		event("centrifuge", "insufficient", t.Insufficient)
		event("centrifuge", "disconnected", t.Disconnects)
		event("centrifuge", "too_slow", t.Slow)
		event("centrifuge", "dropped", t.Dropped)
		event("centrifuge", "backend_error", t.BackendErrors)
		event("centrifuge", "event_lost", t.EventsLost)
		event("centrifuge", "api_call", t.APICalls)
		gauge(m.waiting, t.Queued, "centrifuge")
	}
	if p.Pusher != nil {
		t := p.Pusher.Stats()
		event("pusher", "connected", t.Connected)
		event("pusher", "turned_away", t.Rejected)
		event("pusher", "too_slow", t.Slow)
		event("pusher", "flooded", t.Flooded)
		event("pusher", "unanswered", t.Unanswered)
		event("pusher", "subscribed", t.Subscribed)
		event("pusher", "denied", t.Denied)
		event("pusher", "client_event", t.ClientEvents)
		event("pusher", "limited", t.Limited)
		event("pusher", "triggered", t.Triggers)
		event("pusher", "refused", t.Refused)
		event("pusher", "terminated", t.Terminated)
		event("pusher", "notice_lost", t.NoticesLost)
		event("pusher", "webhook", t.Webhooks)
		event("pusher", "webhook_retried", t.WebhooksRetried)
		event("pusher", "webhook_failed", t.WebhooksFailed)
		event("pusher", "webhook_dropped", t.WebhooksDropped)
		event("pusher", "dropped", t.Dropped)
		event("pusher", "conflated", t.Conflated)
		gauge(m.waiting, t.Waiting, "pusher")
	}
	c, s := p.Cluster.Stats(), p.Presence.Stats()
	gauge(m.nodes, int64(c.Nodes))
	count(m.cluster, c.Joined, "joined")
	count(m.cluster, c.Gone, "gone")
	count(m.cluster, c.Expired, "expired")
	count(m.cluster, c.Dropped, "dropped")
	count(m.cluster, c.Refused, "refused")
	count(m.cluster, c.Malformed, "malformed")
	gauge(m.members, s.Local, "this")
	gauge(m.members, s.Members, "all")
	count(m.presences, s.Refused, "refused")
	count(m.presences, s.Events, "told")
	count(m.presences, s.Holes, "hole")
	count(m.presences, s.Syncs, "sync")
	count(m.presences, s.Malformed, "malformed")
}
