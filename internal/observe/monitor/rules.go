package monitor

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Runbooks is where the pages are that alerts point to.
const Runbooks = "https://github.com/weir-gateway/weir/blob/main/docs/runbooks/"

// A Record is an expression that Prometheus keeps under a name.
type Record struct {
	Name, Expr string
	// Why reports what it is good for.
	Why string
}

// Records are the recording rules: what dashboards show over weeks, and what capacity is
// planned by.
func Records() []Record {
	const by = "job, instance"
	quantile := func(q, metric string) string {
		return fmt.Sprintf("histogram_quantile(%s, sum by (%s, le) (rate(%s_bucket[5m]))) or histogram_quantile(%s, sum by (%s) (rate(%s[5m])))", q, by, metric, q, by, metric)
	}
	return []Record{
		{"weir:headroom:ratio", "1 - weir_knee_used_ratio and weir_knee_age_seconds > 0", "What is left to the knee of the last capacity report; nothing without a report."},
		{"weir:headroom_processors:ratio", "1 - weir_cpu_ratio", "What is left of the processors."},
		{"weir:headroom_loops:ratio", "1 - weir_loop_busy_most_ratio", "What the busiest event loop has left."},
		{"weir:headroom_memory:ratio", "1 - weir_memory_used_ratio and weir_memory_limit_bytes > 0", "What is left below the memory limit; nothing without a limit."},
		{"weir:headroom_connections:ratio", "1 - sum by (job, instance) (weir_connections) / on (job, instance) weir_connections_max", "What is left below the bound on connections."},
		{"weir:run_queue:avg5m", "avg_over_time(weir_sched_run_queue_ratio[5m])", "Runnable goroutines per processor."},
		{"weir:connections:sum", "sum by (" + by + ") (weir_connections)", "Open connections."},
		{"weir:published:rate5m", "sum by (" + by + `) (rate(weir_messages_published_total{outcome="ok"}[5m]))`, "Messages in, per second."},
		{"weir:delivered:rate5m", "sum by (" + by + ") (rate(weir_messages_delivered_total[5m]))", "Messages out, per second."},
		{"weir:fan_out:ratio5m", "weir:delivered:rate5m / (weir:published:rate5m > 0)", "Deliveries per message."},
		{"weir:publish_errors:ratio5m", "sum by (" + by + `) (rate(weir_messages_published_total{outcome="error"}[5m])) / sum by (` + by + ") (rate(weir_messages_published_total[5m]))", "Publications refused or failed, as a share."},
		{"weir:sends_per_delivery:ratio5m", "sum by (" + by + ") (rate(weir_sends_total[5m])) / (weir:delivered:rate5m > 0)", "System calls that a delivery takes."},
		{"weir:cpu_per_delivery:seconds5m", "sum by (" + by + ") (rate(weir_cpu_seconds_total[5m])) / (weir:delivered:rate5m > 0)", "Processor time that a delivery takes."},
		{"weir:delivery_seconds:p50_5m", quantile("0.5", "weir_delivery_seconds"), "From publish to sockets, from either form of the histogram."},
		{"weir:delivery_seconds:p99_5m", quantile("0.99", "weir_delivery_seconds"), "The same, 99th percentile."},
		{"weir:store_seconds:p99_5m", quantile("0.99", "weir_broker_store_seconds"), "From a publish to the broker's answer."},
	}
}

// Rules writes the rules file for Prometheus under thresholds t. head is put before it as
// a comment.
func Rules(w io.Writer, t governor.Thresholds, head string) error {
	var b strings.Builder
	for line := range strings.Lines(head) {
		b.WriteString(strings.TrimRight("# "+strings.TrimSuffix(line, "\n"), " ") + "\n")
	}
	b.WriteString("groups:\n  - name: weir.records\n    rules:\n")
	for _, r := range Records() {
		fmt.Fprintf(&b, "      # %s\n      - record: %s\n        expr: %s\n", r.Why, r.Name, quote(r.Expr))
	}
	alerts := Alerts(t)
	for _, level := range []governor.Level{governor.Page, governor.Ticket, governor.Information} {
		fmt.Fprintf(&b, "  - name: weir.%s\n    rules:\n", level)
		for _, a := range alerts {
			if a.Level == level {
				a.write(&b)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// write writes the alert as a rule.
func (a *Alert) write(b *strings.Builder) {
	fmt.Fprintf(b, "      - alert: %s\n        expr: %s\n", a.Name, quote(a.Expr))
	if a.For > 0 {
		fmt.Fprintf(b, "        for: %s\n", duration(a.For))
	}
	fmt.Fprintf(b, "        labels:\n          severity: %s\n", a.Level)
	if a.Cause != "" {
		fmt.Fprintf(b, "          cause: %s\n", a.Cause)
	}
	value := "{{ $value }}"
	if a.Unit != "" {
		value = "{{ $value | " + a.Unit + " }}"
	}
	limit := ""
	if a.Limit > 0 {
		limit = fmt.Sprintf(" (governor.thresholds.%s is %v)", a.Key, a.Limit)
	}
	fmt.Fprintf(b, "        annotations:\n          summary: %s\n", quote("{{ $labels.instance }}: "+a.Summary))
	fmt.Fprintf(b, "          description: %s\n", quote(value+limit))
	fmt.Fprintf(b, "          runbook_url: %s\n", Runbooks+a.Name+".md")
}

// quote writes a YAML scalar that nothing in it can end.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// duration is d as Prometheus writes it: "2m".
func duration(d hub.Duration) string {
	if v := time.Duration(d); v%time.Minute == 0 {
		return fmt.Sprintf("%dm", v/time.Minute)
	}
	return fmt.Sprintf("%ds", time.Duration(d)/time.Second)
}
