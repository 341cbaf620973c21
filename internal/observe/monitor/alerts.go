package monitor

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// An Alert is the governor's, with what a rule needs besides.
type Alert struct {
	governor.Alert
	// Key is the threshold in the configuration that it is evaluated by, empty when
	// the expression says it all.
	Key string
	// Limit is that threshold's value.
	Limit float64
	// Unit is how its value reads in a sentence: humanizePercentage, humanizeDuration, or
	// empty for a plain number.
	Unit string
}

// Alerts are all alerts under thresholds t: first those on the process's own state,
// then those on what it does for others.
func Alerts(t governor.Thresholds) []Alert {
	t = t.WithDefaults()
	var list []Alert
	for _, a := range governor.Alerts(t) {
		k := keys[a.Name]
		list = append(list, Alert{Alert: a, Key: k.key, Limit: k.limit(t), Unit: k.unit})
	}
	return append(list, services(t)...)
}

// Local are the alerts that a process can evaluate by itself, from the governor's numbers
// and its degraded modes: the governor's, and those whose only series is weir_degraded.
func Local(t governor.Thresholds) []governor.Alert {
	list := governor.Alerts(t)
	for _, a := range services(t.WithDefaults()) {
		if strings.HasPrefix(a.Expr, "weir_degraded{") {
			list = append(list, a.Alert)
		}
	}
	return list
}

// A key is what of the thresholds an alert is evaluated by, and the unit of its value.
type key struct {
	key, unit string
	of        func(t *governor.Thresholds) float64
}

func (k key) limit(t governor.Thresholds) float64 {
	if k.of == nil {
		return 0
	}
	return k.of(&t)
}

const (
	share   = "humanizePercentage"
	seconds = "humanizeDuration"
)

// keys are the thresholds of the governor's alerts, by the alert's name.
var keys = map[string]key{
	"WeirLoopStuck":       {"loop_stuck", seconds, func(t *governor.Thresholds) float64 { return t.LoopStuck }},
	"WeirLoopFull":        {"loop_full", share, func(t *governor.Thresholds) float64 { return t.LoopFull }},
	"WeirMemoryHard":      {"hard", share, func(t *governor.Thresholds) float64 { return t.Hard }},
	"WeirDescriptorsHard": {"hard", share, func(t *governor.Thresholds) float64 { return t.Hard }},
	"WeirDiskBlocked":     {"disk", seconds, func(t *governor.Thresholds) float64 { return t.Disk }},
	"WeirLatency":         {"latency_ratio", "", func(t *governor.Thresholds) float64 { return t.LatencyRatio }},
	"WeirRunQueue":        {"run_queue", "", func(t *governor.Thresholds) float64 { return t.RunQueue }},
	"WeirLoopBusy":        {"loop_busy", share, func(t *governor.Thresholds) float64 { return t.LoopBusy }},
	"WeirLoopTick":        {"loop_tick", seconds, func(t *governor.Thresholds) float64 { return t.LoopTick }},
	"WeirLoopInbox":       {"loop_inbox", "", func(t *governor.Thresholds) float64 { return float64(t.LoopInbox) }},
	"WeirGoroutineLeak":   {"leak", "", nil},
	"WeirDiskSlow":        {"disk", seconds, func(t *governor.Thresholds) float64 { return t.Disk }},
	"WeirMemorySoft":      {"soft", share, func(t *governor.Thresholds) float64 { return t.Soft }},
	"WeirDescriptorsSoft": {"soft", share, func(t *governor.Thresholds) float64 { return t.Soft }},
	"WeirCollector":       {"gc", share, func(t *governor.Thresholds) float64 { return t.Collector }},
	"WeirLocks":           {"lock_wait", "", func(t *governor.Thresholds) float64 { return t.LockWait }},
	"WeirStarved":         {"steal", share, func(t *governor.Thresholds) float64 { return t.Steal }},
	"WeirThrottled":       {"throttled", share, func(t *governor.Thresholds) float64 { return t.Throttled }},
	"WeirNearKnee":        {"knee", share, func(t *governor.Thresholds) float64 { return t.Knee }},
	"WeirSchedLatency":    {"sched_latency", seconds, func(t *governor.Thresholds) float64 { return t.SchedLatency }},
	"WeirGoroutines":      {"goroutine_ratio", "", func(t *governor.Thresholds) float64 { return t.GoroutineRatio }},
	"WeirStoppedReaders":  {"stopped", share, func(t *governor.Thresholds) float64 { return t.Stopped }},
	"WeirRetransmits":     {"retransmits", share, func(t *governor.Thresholds) float64 { return t.Retransmits }},
	"WeirNetpoll":         {"netpoll", seconds, func(t *governor.Thresholds) float64 { return t.Netpoll }},
	"WeirCollectorAssist": {"gc_assist", share, func(t *governor.Thresholds) float64 { return t.Assist }},
}

// services are the alerts on what Weir does for others, which no state of the process
// shows: whether it is up, whether requests are served.
func services(t governor.Thresholds) []Alert {
	const now, shortly, minutes = hub.Duration(0), hub.Duration(30 * time.Second), hub.Duration(2 * time.Minute)
	plain := func(name string, level governor.Level, expr string, wait hub.Duration, summary string) Alert {
		return Alert{Alert: governor.Alert{Name: name, Level: level, Expr: expr, For: wait, Summary: summary}}
	}
	ratio := func(a Alert) Alert { a.Unit = share; return a }
	full := plain("WeirConnectionsFull", governor.Ticket,
		fmt.Sprintf("sum by (job, instance) (weir_connections) / on (job, instance) weir_connections_max >= %v", t.Soft), minutes, "the bound on connections is near")
	full.Key, full.Limit, full.Unit = "soft", t.Soft, share
	tracked := plain("WeirConntrackFull", governor.Ticket, fmt.Sprintf("weir_conntrack_entries / weir_conntrack_max >= %v", t.Soft), minutes,
		"the kernel's table of tracked connections is nearly full; it drops packets of new connections when it is")
	tracked.Key, tracked.Limit, tracked.Unit = "soft", t.Soft, share
	return []Alert{
		plain("WeirDown", governor.Page, `up{job="weir"} == 0`, shortly, "a node does not answer its scrape"),
		ratio(plain("WeirPublishFailing", governor.Page,
			`sum by (job, instance) (rate(weir_messages_published_total{outcome="error"}[2m])) / sum by (job, instance) (rate(weir_messages_published_total[2m])) > 0.05`,
			minutes, "publications are refused or fail")),
		plain("WeirBrokerAway", governor.Page, `weir_degraded{mode="broker-away"} == 1`, shortly, "the broker is not available; nothing can be stored"),
		plain("WeirSiteLost", governor.Page, `min by (job, instance, namespace, partition, site) (weir_site_up) == 0`, now, "a site does not answer"),
		plain("WeirDiskFull", governor.Page, `weir_degraded{mode="disk-full"} == 1`, now, "the broker's disk is full; publishing is refused"),
		plain("WeirDiskReadOnly", governor.Page, `weir_degraded{mode="disk-read-only"} == 1`, now, "the broker's disk is read-only; publishing is refused"),
		plain("WeirNoPeers", governor.Page,
			`sum by (job, instance, cluster) (weir_upstream_peers) > 0 unless sum by (job, instance, cluster) (weir_upstream_peers{state=~"up|slow start|half-open"}) > 0`,
			shortly, "a cluster has no healthy peer"),
		ratio(plain("WeirUpstreamErrors", governor.Ticket,
			`sum by (job, instance, cluster) (rate(weir_upstream_requests_total{code="5xx"}[5m])) / sum by (job, instance, cluster) (rate(weir_upstream_requests_total[5m])) > 0.05`,
			minutes, "a cluster answers with errors")),
		full, tracked,
		plain("WeirAcceptErrors", governor.Ticket, `increase(weir_accept_errors_total[5m]) > 0`, now, "connections could not be accepted"),
		plain("WeirPanics", governor.Ticket, `increase(weir_panics_total[15m]) > 0`, now, "a handler panicked; its connection was ended"),
		plain("WeirCertificates", governor.Ticket, `increase(weir_tls_reloads_total{outcome="error"}[30m]) > 0`, now, "certificates could not be read again; the old ones are used"),
		ratio(plain("WeirCertificateExpiry", governor.Ticket, `weir_tls_certificate_lifetime_left_ratio < 0.15 and on (job, instance, name) weir_tls_certificate_expires_seconds - time() < 1814400`,
			minutes, "a certificate has less than 15 % of its lifetime left, and less than three weeks")),
		plain("WeirCertificateOrders", governor.Ticket, `increase(weir_acme_orders_total{outcome="error"}[1d]) > 2`, now, "orders of certificates fail"),
		plain("WeirKeys", governor.Ticket, `increase(weir_jwks_fetches_total{outcome="error"}[15m]) > 2`, now, "the issuer's keys cannot be fetched"),
		plain("WeirRevocations", governor.Ticket, `weir_revocations_stored == 0`, minutes, "revocations made at other nodes are not in force here"),
		plain("WeirAccessLog", governor.Ticket, `increase(weir_access_log_lines_total{outcome!="written"}[5m]) > 0`, now, "lines of the access log are lost"),
		plain("WeirTooSlow", governor.Information, `rate(weir_subscribers_closed_total{reason="too_slow"}[5m]) > 0.1`, minutes, "subscribers are disconnected because they are slow"),
		plain("WeirGaps", governor.Information, `rate(weir_gaps_total[5m]) > 0.1`, minutes, "subscribers receive gap events"),
		plain("WeirRestarted", governor.Information, `resets(weir_governor_windows_total[10m]) > 0`, now, "a node has restarted"),
	}
}
