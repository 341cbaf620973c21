package observe

// newExtensionMetrics shows the extensions. Series grow with those that are configured.
func newExtensionMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	events := g.metric("weir_extension_events_total", "Events on which an extension was to decide, by outcome: allowed or refused by a call or from the cache, failed, timeout, overloaded at max_pending, "+
		"canceled because the client left.", "extension", "event", "outcome")
	pending := g.metric("weir_extension_pending_calls", "Calls of an extension under way.", "extension")
	queued := g.metric("weir_extension_queued_events", "Disconnect events that wait for their call.", "extension")
	dropped := g.metric("weir_extension_events_dropped_total", "Disconnect events dropped because as many waited as queue allows.", "extension")
	seconds := g.histogram("weir_extension_call_seconds", "How long the calls of an extension took.", "extension")
	g.read(func(to scrape) {
		for name, s := range a.Extensions.Stats() {
			for event, outcomes := range s.Events {
				putAll(to, events, outcomes, name, event)
			}
			put(to, pending, s.Pending, name)
			put(to, queued, s.Queued, name)
			put(to, dropped, s.Dropped, name)
			to <- a.histogram(seconds, &s.Seconds, latencyBounds, name)
		}
	})
	return g
}
