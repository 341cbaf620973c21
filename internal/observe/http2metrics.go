package observe

import "github.com/weir-gateway/weir/internal/front/h2"

// http2Metrics adds the metrics of HTTP/2 towards backends, and returns what puts those of a
// cluster that has spoken it.
func http2Metrics(g *group) func(to scrape, cluster string, s *h2.CallStats) {
	open := g.metric("weir_upstream_http2_connections", "Open connections to peers that speak HTTP/2.", "cluster")
	openStreams := g.metric("weir_upstream_http2_streams", "Open streams on connections to peers.", "cluster")
	connections := g.metric("weir_upstream_http2_connections_total", "Connections to peers over HTTP/2.", "cluster")
	streams := g.metric("weir_upstream_http2_streams_total", "Requests sent to peers over HTTP/2.", "cluster")
	resets := g.metric("weir_upstream_http2_resets_total", "Streams to peers that did not end in order, by reason: reset by the peer, said to be unprocessed (REFUSED_STREAM, GOAWAY), "+
		"canceled by Weir, or malformed replies.", "cluster", "reason")
	goaways := g.metric("weir_upstream_http2_goaways_total", "Connections that peers announced to end (GOAWAY).", "cluster")
	floods := g.metric("weir_upstream_http2_floods_total", "Connections closed because the peer sent too much of something, by kind.", "cluster", "kind")
	return func(to scrape, cluster string, s *h2.CallStats) {
		if s.Sessions == 0 {
			return
		}
		put(to, open, s.Open, cluster)
		put(to, openStreams, s.OpenCalls, cluster)
		put(to, connections, s.Sessions, cluster)
		put(to, streams, s.Calls, cluster)
		putAll(to, resets, map[string]uint64{"reset": s.Resets, "unprocessed": s.Unprocessed, "canceled": s.Canceled, "malformed": s.Malformed}, cluster)
		put(to, goaways, s.GoAways, cluster)
		putAll(to, floods, s.Floods, cluster)
	}
}
