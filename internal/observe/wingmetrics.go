package observe

import (
	"fmt"
	"strconv"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/proxy/batch"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// maxPeerSeries bounds the peers of a cluster that have series of their own; more are summed
// as "others".
const maxPeerSeries = 8

// newUpstreamMetrics shows what was sent to clusters. Series grow with clusters and peers, not
// with clients: code classes and causes are few.
func newUpstreamMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	requests := g.metric("weir_upstream_requests_total", "Replies of clusters to clients on the loops, by class of status.", "cluster", "code")
	failed := g.metric("weir_upstream_failed_total", "Exchanges without a whole reply, by cause.", "cluster", "cause")
	retries := g.metric("weir_upstream_retries_total", "Attempts after the first.", "cluster")
	canceled := g.metric("weir_upstream_canceled_total", "Exchanges whose client left.", "cluster")
	pool := g.metric("weir_upstream_pool_total", "Attempts by how they came to a connection.", "cluster", "from")
	connections := g.metric("weir_upstream_connections", "Connections to upstreams, by what they do.", "state")
	http2 := http2Metrics(g)
	g.read(func(to scrape) {
		stats := a.Proxy.Stats()
		for name, c := range stats.Clusters {
			putAll(to, requests, c.Requests, name)
			putAll(to, failed, c.Failed, name)
			put(to, retries, c.Retries, name)
			put(to, canceled, c.Canceled, name)
			putAll(to, pool, map[string]uint64{"pool": c.PoolHits, "dialed": c.PoolMiss, "waited": c.Waited}, name)
			http2(to, name, &c.HTTP2)
		}
		if stats.Open > 0 || len(stats.Clusters) > 0 {
			putAll(to, connections, map[string]int64{"busy": stats.Open - stats.Idle - stats.Tunnels, "idle": stats.Idle, "tunnel": stats.Tunnels})
		}
	})
	return g
}

// newPeerMetrics shows the peers of clusters, and splits.
func newPeerMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	attempts := g.metric("weir_upstream_attempts_total", "Replies of peers, those tried again included, by class of status.", "cluster", "code")
	peers := g.metric("weir_upstream_peers", "Peers by state.", "cluster", "state")
	inFlight := g.metric("weir_upstream_in_flight_requests", "Requests under way at a peer.", "cluster", "peer")
	ejected := g.metric("weir_upstream_ejections_total", "Times peers were ejected for failures.", "cluster")
	opened := g.metric("weir_upstream_breaker_opened_total", "Times breakers of peers opened.", "cluster")
	panicking := g.metric("weir_upstream_panic", "1 while so few peers of the cluster are usable that health checks and ejection are ignored (health.panic_below), otherwise 0.", "cluster")
	panicked := g.metric("weir_upstream_panic_requests_total", "Attempts for which health checks and ejection were ignored.", "cluster")
	handshakes := g.metric("weir_upstream_tls_handshakes_total", "TLS handshakes with peers for requests, by how they ended.", "cluster", "result")
	arms := g.metric("weir_split_chosen_total", "Requests that a split sent to a cluster.", "split", "cluster")
	cluster := func(to scrape, c *upstream.ClusterStats) {
		states := map[string]int{}
		var ejections, openings uint64
		var classes [6]uint64
		others := 0
		for i := range c.Peers {
			p := &c.Peers[i]
			states[p.State]++
			for class, n := range p.Classes {
				classes[class] += n
			}
			ejections += p.Ejections
			openings += p.BreakerOpened
			if i < maxPeerSeries {
				put(to, inFlight, p.InFlight, c.Name, p.Address)
			} else {
				others += p.InFlight
			}
		}
		if len(c.Peers) > maxPeerSeries {
			put(to, inFlight, others, c.Name, "others")
		}
		for class, n := range classes {
			if n > 0 && class > 0 { // 0: no head came
				put(to, attempts, n, c.Name, strconv.Itoa(class)+"xx")
			}
		}
		putAll(to, peers, states, c.Name)
		putAll(to, handshakes, c.Handshakes, c.Name)
		put(to, ejected, ejections, c.Name)
		put(to, opened, openings, c.Name)
		put(to, panicking, truth(c.Panicking), c.Name)
		put(to, panicked, c.Panicked, c.Name)
	}
	g.read(func(to scrape) {
		for _, c := range a.Upstreams.Stats() {
			cluster(to, &c)
		}
		for _, s := range a.Upstreams.SplitStats() {
			for _, arm := range s.Arms {
				put(to, arms, arm.Chosen, s.Name, arm.Cluster)
			}
		}
	})
	return g
}

// newPolicyMetrics shows what routes ask for, and the configuration.
func newPolicyMetrics(a *Node, c *catalog) *group {
	g := c.group("")
	limited := g.metric("weir_requests_limited_total", "Requests that found no token, by whose bucket.", "scope")
	buckets := g.metric("weir_limit_buckets", "Token buckets that are not full.", "scope")
	accessLog := g.metric("weir_access_log_lines_total", "Lines of the access log, by what became of them.", "outcome")
	authorized := g.metric("weir_forward_auth_requests_total", "Requests of routes with forward_auth, by outcome: admitted or refused by the authorization server or from the cache, failed without a decision, overloaded at max_pending.", "route", "outcome")
	authorizing := g.metric("weir_forward_auth_pending_requests", "Subrequests to authorization servers under way.", "route")
	authorizeWait := g.metric("weir_forward_auth_wait_seconds_total", "Time that subrequests to authorization servers took, all together.", "route")
	one(g, "weir_reloads_total", "Configurations applied while running.", func() uint64 { return a.Reloads() })
	one(g, "weir_config_restart_needed", "Configuration keys whose newest value waits for a restart: see restart_needed of /api/info.", func() int { return len(a.RestartNeeded()) })
	g.read(func(to scrape) {
		now := a.Clock()
		for scope, t := range map[string]*limit.Table{"tenant": a.State.Tenants, "address": a.State.Addresses} {
			s := t.Stats(now)
			put(to, limited, s.Refused, scope)
			put(to, buckets, s.Used, scope)
		}
		for name, s := range a.State.Forwarding() {
			putAll(to, authorized, map[string]uint64{
				"admitted": s.Admitted, "refused": s.Refused, "cached_admitted": s.CachedAdmitted, "cached_refused": s.CachedRefused, "failed": s.Failed, "overloaded": s.Overloaded,
			}, name)
			put(to, authorizing, s.Pending, name)
			put(to, authorizeWait, s.WaitSeconds, name)
		}
		if a.LogsAccess() {
			s := a.AccessLog.Stats()
			putAll(to, accessLog, map[string]uint64{"written": s.Lines, "dropped": s.Dropped, "failed": s.Failed})
		}
	})
	return g
}

// upstreamsView is what /api/upstreams answers.
type upstreamsView struct {
	Clusters []upstream.ClusterStats `json:"clusters"`
	Splits   []upstream.SplitStats   `json:"splits"`
	Drift    []upstream.DriftState   `json:"drift"`
	Batches  []batch.Stats           `json:"batches"`
}

func (a *Node) upstreamsView() any {
	u := a.Upstreams
	return upstreamsView{Clusters: u.Stats(), Splits: u.SplitStats(), Drift: u.DriftStats(), Batches: downstream.Batches(a.Front)}
}

// steerCanary takes the share from a canary, or starts it anew.
func (a *Node) steerCanary(split, action string) error {
	switch action {
	case "roll-back":
		return a.Upstreams.RollBackCanary(split, "requested on the admin listener")
	case "restart":
		return a.Upstreams.RestartCanary(split)
	}
	return fmt.Errorf("action: %q is neither roll-back nor restart", action)
}
