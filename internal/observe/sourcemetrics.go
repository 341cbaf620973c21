package observe

// newSourceMetrics shows the sources that are configured.
func newSourceMetrics(a *Node, c *catalog) *group {
	g := c.group("With sources.")
	phase := g.metric("weir_source_phase", "1 for what the source does on this node: connecting, reading, standby, paused or blocked.", "source", "phase")
	lag := g.metric("weir_source_lag_messages", "Messages that wait in the source; absent where that is not known.", "source")
	seconds := g.metric("weir_source_lag_seconds", "Age of the oldest message that was read and not published, or of the last published one while others wait.", "source")
	messages := g.metric("weir_source_messages_total", "Messages of the source, by outcome: read, published, dead_lettered, dropped at a full queue or as malformed, conflated.", "source", "outcome")
	gaps := g.metric("weir_source_gaps_total", "Gaps in the source's sequence numbers.", "source")
	missing := g.metric("weir_source_missing_messages_total", "Messages in those gaps.", "source")
	retries := g.metric("weir_source_retries_total", "Publications repeated because the broker was unavailable, overloaded or full.", "source")
	errs := g.metric("weir_source_errors_total", "Failures of the connection to the source.", "source")
	g.read(func(to scrape) {
		if a.Ingest == nil {
			return
		}
		for _, s := range a.Ingest() {
			put(to, phase, 1, s.Name, s.Phase)
			if s.Lag >= 0 {
				put(to, lag, s.Lag, s.Name)
			}
			put(to, seconds, s.LagSeconds, s.Name)
			putAll(to, messages, map[string]uint64{
				"read": s.Read, "published": s.Published, "dead_lettered": s.DeadLettered, "dropped": s.Dropped, "conflated": s.Conflated,
			}, s.Name)
			put(to, gaps, s.Gaps, s.Name)
			put(to, missing, s.Missing, s.Name)
			put(to, retries, s.Retries, s.Name)
			put(to, errs, s.Errors, s.Name)
		}
	})
	return g
}
