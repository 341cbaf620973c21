package observe

import (
	"net"
	"os"
	"strconv"

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
func newAlertMetrics(a *alert.Alerts, c *catalog) *group {
	g := c.group("With `alerts.webhooks`.")
	deliveries := g.metric("weir_alert_webhook_deliveries_total", "Alerts for a webhook, by result: sent, failed (rejected, or given up), dropped (too many were queued).", "webhook", "result")
	retries := g.metric("weir_alert_webhook_retries_total", "Attempts to post an alert beyond the first.", "webhook")
	queued := g.metric("weir_alert_webhook_queue", "Alerts that wait for a webhook.", "webhook")
	g.read(func(to scrape) {
		for name, s := range a.Stats() {
			putAll(to, deliveries, map[string]uint64{"sent": s.Sent, "failed": s.Failed, "dropped": s.Dropped}, name)
			put(to, retries, s.Retried, name)
			put(to, queued, s.Queued, name)
		}
	})
	return g
}
