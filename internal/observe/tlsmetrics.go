package observe

import (
	"time"

	"github.com/weir-gateway/weir/internal/net/tlsterm"
)

// newTLSMetrics shows what the end of TLS counts.
func newTLSMetrics(a *Node, c *catalog) *group {
	g := c.group("With TLS.")
	stats := a.TLS.Stats
	by(g, "weir_tls_handshakes_total", "TLS handshakes, by outcome.", "outcome", func() map[string]uint64 {
		s := stats()
		return map[string]uint64{
			"full":      s.Full,
			"resumed":   s.Resumed,
			"failed":    s.Failed,
			"revoked":   s.Revoked,
			"too_slow":  s.Timeouts,
			"shed":      s.Shed,
			"not_tls":   s.NotTLS,
			"validated": s.Validated,
		}
	})
	suites := g.metric("weir_tls_suites_total", "TLS handshakes finished, by protocol and cipher suite.", "protocol", "suite")
	groups := g.metric("weir_tls_key_exchanges_total", "TLS handshakes finished with a key exchange, by its group.", "group")
	g.read(func(to scrape) {
		s := stats()
		for _, c := range s.Suites {
			put(to, suites, c.Count, c.Protocol, c.Suite)
		}
		for _, c := range s.Groups {
			put(to, groups, c.Count, c.Group)
		}
	})
	one(g, "weir_tls_handshakes_running", "TLS handshakes under way.", func() int { return stats().Running })
	one(g, "weir_tls_handshakes_waiting", "Connections that wait for their TLS handshake.", func() int { return stats().Waiting })
	by(g, "weir_tls_reloads_total", "Times certificates were read again, by outcome.", "outcome", func() map[string]uint64 {
		s := stats()
		return map[string]uint64{"ok": s.Reloads, "error": s.ReloadFailures}
	})
	by(g, "weir_tls_ocsp_fetches_total", "OCSP answers requested, by outcome.", "outcome", func() map[string]uint64 {
		s := stats()
		return map[string]uint64{"ok": s.OCSPFetches, "error": s.OCSPFailures}
	})
	one(g, "weir_tls_revoked_closes_total", "Established connections closed because a reloaded list revokes their client's certificate.", func() uint64 { return stats().RevokedOpen })
	one(g, "weir_tls_unstapled_total", "Handshakes with a must-staple certificate and no staple.", func() uint64 { return stats().Unstapled })
	certificate := func(value func(tlsterm.CertificateInfo, time.Time) float64) func() map[string]float64 {
		return func() map[string]float64 {
			now, seen := time.Now(), map[string]float64{}
			for _, c := range a.TLS.Certificates() { // of several for a name the one that ends first
				v := value(c, now)
				if was, ok := seen[c.Name()]; !ok || v < was {
					seen[c.Name()] = v
				}
			}
			return seen
		}
	}
	by(g, "weir_tls_certificate_expires_seconds", "When a certificate in service expires, in Unix time, by its first name.", "name",
		certificate(func(c tlsterm.CertificateInfo, _ time.Time) float64 { return float64(c.Leaf.NotAfter.Unix()) }))
	by(g, "weir_tls_certificate_lifetime_left_ratio", "Part of a certificate's lifetime that is left, 0 to 1, by its first name.", "name",
		certificate(func(c tlsterm.CertificateInfo, now time.Time) float64 { return c.LifetimeLeft(now) }))
	return g
}

// newACMEMetrics shows the orders of certificates.
func newACMEMetrics(a *Node, c *catalog) *group {
	g := c.group("With tls.acme.")
	by(g, "weir_acme_orders_total", "Orders of certificates by this node, by outcome.", "outcome", func() map[string]uint64 {
		s := a.ACME.Stats()
		return map[string]uint64{"ok": s.Ordered, "error": s.Failed}
	})
	return g
}

// newHTTP3Metrics shows HTTP/3.
func newHTTP3Metrics(a *Node, c *catalog) *group {
	g := c.group("With HTTP/3.")
	by(g, "weir_http3_streams_total", "Requests over HTTP/3, by outcome of their beginning.", "outcome", func() map[string]uint64 {
		s := a.HTTP3.Stats()
		return streamOutcomes(s.Streams, s.Refused, s.Malformed)
	})
	by(g, "weir_http3_connections_total", "Connections of QUIC, by what became of them: established, refused before the handshake, failed in it.", "outcome", func() map[string]uint64 {
		s := a.HTTP3.Stats()
		return map[string]uint64{"established": s.Connections, "refused": s.Shed, "failed": s.Failed}
	})
	one(g, "weir_http3_retries_total", "Clients of QUIC that had to prove their address before the handshake.", func() uint64 { return a.HTTP3.Stats().Retries })
	one(g, "weir_http3_moves_total", "Changes of address of clients of QUIC, noticed at their next request or at their end.", func() uint64 { return a.HTTP3.Stats().Moved })
	one(g, "weir_http3_connections", "Open connections that speak HTTP/3.", func() int64 { return a.HTTP3.Stats().Open })
	one(g, "weir_http3_streams", "Open streams of HTTP/3.", func() int64 { return a.HTTP3.Stats().OpenStreams })
	floods := g.metric("weir_http3_floods_total", "Connections closed for too much of something, and streams for taking too little, by kind.", "kind")
	g.read(func(to scrape) {
		s := a.HTTP3.Stats()
		putAll(to, floods, s.Floods)
		put(to, floods, s.Stalled, "stalled")
	})
	return g
}
