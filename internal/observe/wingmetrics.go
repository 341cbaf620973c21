package observe

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/proxy/batch"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// wingMetrics shows the second wing. Series grow with clusters and peers, not with
// clients: code classes and causes are few, and peers beyond maxPeerSeries of a
// cluster are summed as "others".
type wingMetrics struct {
	node                                         *Node
	requests, failed, retries, connections, pool *prometheus.Desc
	attempts, handshakes                         *prometheus.Desc
	peers, inFlight, ejections, opened, arms     *prometheus.Desc
	panicking, panicked                          *prometheus.Desc
	limited, buckets, accessLog, canceled        *prometheus.Desc
	reloads, restart                             *prometheus.Desc
	authorized, authorizing, authorizeWait       *prometheus.Desc
	http2                                        http2Descs
}

const maxPeerSeries = 8

func newWingMetrics(a *Node, c *catalog) *wingMetrics {
	d := c.desc
	return &wingMetrics{
		node:          a,
		requests:      d("weir_upstream_requests_total", "Replies of clusters to clients on the loops, by class of status.", "cluster", "code"),
		attempts:      d("weir_upstream_attempts_total", "Replies of peers, those tried again included, by class of status.", "cluster", "code"),
		failed:        d("weir_upstream_failed_total", "Exchanges without a whole reply, by cause.", "cluster", "cause"),
		retries:       d("weir_upstream_retries_total", "Attempts after the first.", "cluster"),
		canceled:      d("weir_upstream_canceled_total", "Exchanges whose client left.", "cluster"),
		pool:          d("weir_upstream_pool_total", "Attempts by how they came to a connection.", "cluster", "from"),
		connections:   d("weir_upstream_connections", "Connections to upstreams, by what they do.", "state"),
		peers:         d("weir_upstream_peers", "Peers by state.", "cluster", "state"),
		inFlight:      d("weir_upstream_in_flight_requests", "Requests under way at a peer.", "cluster", "peer"),
		ejections:     d("weir_upstream_ejections_total", "Times peers were ejected for failures.", "cluster"),
		opened:        d("weir_upstream_breaker_opened_total", "Times breakers of peers opened.", "cluster"),
		panicking:     d("weir_upstream_panic", "1 while so few peers of the cluster are usable that health checks and ejection are ignored (health.panic_below), otherwise 0.", "cluster"),
		panicked:      d("weir_upstream_panic_requests_total", "Attempts for which health checks and ejection were ignored.", "cluster"),
		handshakes:    d("weir_upstream_tls_handshakes_total", "TLS handshakes with peers for requests, by how they ended.", "cluster", "result"),
		arms:          d("weir_split_chosen_total", "Requests that a split sent to a cluster.", "split", "cluster"),
		limited:       d("weir_requests_limited_total", "Requests that found no token, by whose bucket.", "scope"),
		buckets:       d("weir_limit_buckets", "Token buckets that are not full.", "scope"),
		accessLog:     d("weir_access_log_lines_total", "Lines of the access log, by what became of them.", "outcome"),
		authorized:    d("weir_forward_auth_requests_total", "Requests of routes with forward_auth, by outcome: admitted or refused by the authorization server or from the cache, failed without a decision, overloaded at max_pending.", "route", "outcome"),
		authorizing:   d("weir_forward_auth_pending_requests", "Subrequests to authorization servers under way.", "route"),
		authorizeWait: d("weir_forward_auth_wait_seconds_total", "Time that subrequests to authorization servers took, all together.", "route"),
		reloads:       d("weir_reloads_total", "Configurations applied while running."),
		http2:         newHTTP2Descs(d),
		restart:       d("weir_config_restart_needed", "Configuration keys whose newest value waits for a restart: see restart_needed of /api/info."),
	}
}

// Describe implements prometheus.Collector.
func (m *wingMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.attempts, m.failed, m.retries, m.canceled, m.pool, m.connections, m.peers, m.inFlight, m.ejections,
		m.opened, m.panicking, m.panicked, m.handshakes, m.arms, m.limited, m.buckets, m.accessLog, m.reloads, m.restart, m.authorized, m.authorizing, m.authorizeWait} {
		ch <- d
	}
	m.http2.describe(ch)
}

// Collect implements prometheus.Collector.
func (m *wingMetrics) Collect(ch chan<- prometheus.Metric) {
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	emit(m.restart, prometheus.GaugeValue, float64(len(m.node.RestartNeeded())))
	emit(m.reloads, counter, float64(m.node.Reloads()))
	stats := m.node.Proxy.Stats()
	for name, c := range stats.Clusters {
		for class, n := range c.Requests {
			emit(m.requests, counter, float64(n), name, class)
		}
		for cause, n := range c.Failed {
			emit(m.failed, counter, float64(n), name, cause)
		}
		emit(m.retries, counter, float64(c.Retries), name)
		emit(m.canceled, counter, float64(c.Canceled), name)
		emit(m.pool, counter, float64(c.PoolHits), name, "pool")
		emit(m.pool, counter, float64(c.PoolMiss), name, "dialed")
		emit(m.pool, counter, float64(c.Waited), name, "waited")
		m.http2.collect(emit, name, &c.HTTP2)
	}
	if stats.Open > 0 || len(stats.Clusters) > 0 {
		emit(m.connections, gauge, float64(stats.Open-stats.Idle-stats.Tunnels), "busy")
		emit(m.connections, gauge, float64(stats.Idle), "idle")
		emit(m.connections, gauge, float64(stats.Tunnels), "tunnel")
	}
	for _, c := range m.node.Upstreams.Stats() {
		m.cluster(emit, &c)
	}
	for _, s := range m.node.Upstreams.SplitStats() {
		for _, arm := range s.Arms {
			emit(m.arms, counter, float64(arm.Chosen), s.Name, arm.Cluster)
		}
	}
	now := m.node.Clock()
	for scope, t := range map[string]*limit.Table{"tenant": m.node.State.Tenants, "address": m.node.State.Addresses} {
		s := t.Stats(now)
		emit(m.limited, counter, float64(s.Refused), scope)
		emit(m.buckets, gauge, float64(s.Used), scope)
	}
	for name, s := range m.node.State.Forwarding() {
		for outcome, n := range map[string]uint64{"admitted": s.Admitted, "refused": s.Refused, "cached_admitted": s.CachedAdmitted, "cached_refused": s.CachedRefused, "failed": s.Failed, "overloaded": s.Overloaded} {
			emit(m.authorized, counter, float64(n), name, outcome)
		}
		emit(m.authorizing, gauge, float64(s.Pending), name)
		emit(m.authorizeWait, counter, s.WaitSeconds, name)
	}
	if m.node.LogsAccess() {
		s := m.node.AccessLog.Stats()
		emit(m.accessLog, counter, float64(s.Lines), "written")
		emit(m.accessLog, counter, float64(s.Dropped), "dropped")
		emit(m.accessLog, counter, float64(s.Failed), "failed")
	}
}

// cluster shows one cluster's peers.
func (m *wingMetrics) cluster(emit func(*prometheus.Desc, prometheus.ValueType, float64, ...string), c *upstream.ClusterStats) {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	panicking := 0.0
	if c.Panicking {
		panicking = 1
	}
	emit(m.panicking, gauge, panicking, c.Name)
	emit(m.panicked, counter, float64(c.Panicked), c.Name)
	states := map[string]int{}
	var ejections, opened uint64
	var classes [6]uint64
	others := 0
	for i := range c.Peers {
		p := &c.Peers[i]
		states[p.State]++
		for class, n := range p.Classes {
			classes[class] += n
		}
		ejections += p.Ejections
		opened += p.BreakerOpened
		if i < maxPeerSeries {
			emit(m.inFlight, gauge, float64(p.InFlight), c.Name, p.Address)
		} else {
			others += p.InFlight
		}
	}
	if len(c.Peers) > maxPeerSeries {
		emit(m.inFlight, gauge, float64(others), c.Name, "others")
	}
	for class, n := range classes {
		if n > 0 && class > 0 { // 0: no head came
			emit(m.attempts, counter, float64(n), c.Name, strconv.Itoa(class)+"xx")
		}
	}
	for state, n := range states {
		emit(m.peers, gauge, float64(n), c.Name, state)
	}
	for result, n := range c.Handshakes {
		emit(m.handshakes, counter, float64(n), c.Name, result)
	}
	emit(m.ejections, counter, float64(ejections), c.Name)
	emit(m.opened, counter, float64(opened), c.Name)
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
