package observe

import (
	"net"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/observe/alert"
	"github.com/weir-gateway/weir/internal/observe/monitor"
)

// alertSource is what alerts are made of: the governor's numbers and the degraded modes.
func (w *Watch) alertSource() alert.Source {
	return alert.Source{
		Alerts: monitor.Local(w.cfg.Governor.Thresholds), Numbers: w.alertNumbers, Runbooks: monitor.Runbooks,
		Node: func() string {
			host, err := os.Hostname()
			if err != nil {
				host = w.Addr().Addr().String()
			}
			return net.JoinHostPort(host, strconv.Itoa(int(w.Addr().Port())))
		},
	}
}

func (w *Watch) alertNumbers() alert.Numbers {
	numbers := alert.Numbers{}
	put := func(name, label, value string, v float64) {
		if label != "" {
			name += "{" + label + `="` + value + `"}`
		}
		numbers[name] = v
	}
	if s := w.Governor.Snapshot(); s.Enabled && s.Seq > 0 {
		for n := range s.Series() {
			put(n.Name, n.Label, n.Value, n.Number)
		}
	}
	for _, m := range w.degraded.list() {
		put("weir_degraded", "mode", m.Mode, 1)
	}
	return numbers
}

// newAlertMetrics shows what was posted to webhooks.
func newAlertMetrics(a *alert.Alerts, c *catalog) *coreMetrics {
	c.when = "With `alerts.webhooks`."
	deliveries := c.desc("weir_alert_webhook_deliveries_total", "Alerts for a webhook, by result: sent, failed (rejected, or given up), dropped (too many were queued).", "webhook", "result")
	retries := c.desc("weir_alert_webhook_retries_total", "Attempts to post an alert beyond the first.", "webhook")
	queued := c.desc("weir_alert_webhook_queue", "Alerts that wait for a webhook.", "webhook")
	c.when = ""
	each := func(desc *prometheus.Desc, kind prometheus.ValueType, read func(name string, s alert.Stats, emit func(float64, ...string))) metric {
		return metric{desc, kind, func(emit func(float64, ...string)) {
			for name, s := range a.Stats() {
				read(name, s, emit)
			}
		}}
	}
	return &coreMetrics{list: []metric{
		each(deliveries, prometheus.CounterValue, func(name string, s alert.Stats, emit func(float64, ...string)) {
			emit(float64(s.Sent), name, "sent")
			emit(float64(s.Failed), name, "failed")
			emit(float64(s.Dropped), name, "dropped")
		}),
		each(retries, prometheus.CounterValue, func(name string, s alert.Stats, emit func(float64, ...string)) { emit(float64(s.Retried), name) }),
		each(queued, prometheus.GaugeValue, func(name string, s alert.Stats, emit func(float64, ...string)) { emit(float64(s.Queued), name) }),
	}}
}
