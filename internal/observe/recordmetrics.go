package observe

// newRecordMetrics shows recordings and held connections.
func newRecordMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	one(g, "weir_recordings", "Replies that are being recorded.", func() int { return a.Recorder.Stats().Running })
	one(g, "weir_recordings_begun_total", "Times a backend was asked for a reply to be recorded.", func() uint64 { return a.Recorder.Stats().Started })
	one(g, "weir_recordings_attached_total", "Clients that joined a recording, under way or ended.", func() uint64 { return a.Recorder.Stats().Attached })
	ended := g.metric("weir_recordings_ended_total", "Recordings by how they ended: whole, or why they are not.", "how")
	g.read(func(to scrape) {
		s := a.Recorder.Stats()
		put(to, ended, s.Whole, "whole")
		put(to, ended, s.Lost, "gateway_lost")
		for cause, n := range s.Broken {
			if cause != "gateway_lost" {
				put(to, ended, n, cause)
			}
		}
	})
	one(g, "weir_recordings_refused_total", "Requests refused because too many replies were being recorded.", func() uint64 { return a.Recorder.Stats().Refused })
	one(g, "weir_recordings_passed_total", "Replies of recorded routes that were no event streams.", func() uint64 { return a.Recorder.Stats().Passed })
	one(g, "weir_recordings_events_total", "Events stored.", func() uint64 { return a.Recorder.Stats().Events })
	by(g, "weir_holds_total", "Connections that backends turned into subscriptions, and asked to where they may not.", "result", func() map[string]uint64 {
		f := a.Front.Stats()
		return map[string]uint64{"held": f.Held, "refused": f.HoldsRefused}
	})
	return g
}
