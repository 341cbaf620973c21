package monitor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

var metricName = regexp.MustCompile(`\b(weir_[a-z0-9_]+|go_[a-z0-9_]+)\b`)

// metricsOf are the metrics that an expression reads, as they are written there.
func metricsOf(expr string) []string {
	names := metricName.FindAllString(expr, -1)
	slices.Sort(names)
	return slices.Compact(names)
}

// runbookFacts is the part of an alert's runbook page that is made of the code: what fires it
// and where it is seen.
func runbookFacts(a *Alert, t governor.Thresholds) string {
	var b strings.Builder
	line := func(k, format string, args ...any) { fmt.Fprintf(&b, "| %s | %s |\n", k, fmt.Sprintf(format, args...)) }
	b.WriteString("| | |\n|---|---|\n")
	line("level", "%s", a.Level)
	line("fires when", "`%s`", strings.ReplaceAll(a.Expr, "|", `\|`))
	if a.For > 0 {
		line("for", "%s", duration(a.For))
	} else {
		line("for", "at once")
	}
	if a.Key != "" {
		limit := ""
		if a.Limit > 0 {
			limit = fmt.Sprintf(", %v by default", a.Limit)
		}
		line("threshold", "`governor.thresholds.%s`%s; after a change, make the rules anew: `weir config alerts --config weir.yaml`", a.Key, limit)
	}
	if a.Cause != "" {
		line("cause", "`%s`: the chip on the page and in `weir top`", a.Cause)
	}
	if titles := seenOn(a, t); len(titles) > 0 {
		line("Grafana", "%s", strings.Join(titles, ", "))
	}
	line("silence", "`amtool silence add alertname=%s instance=NODE --duration=2h --comment=WHY`", a.Name)
	return b.String()
}

// seenOn are the panels that read what the alert reads.
func seenOn(a *Alert, t governor.Thresholds) (titles []string) {
	panels := panelExpressions(t, false)
	for _, title := range slices.Sorted(maps.Keys(panels)) {
		read := metricsOf(strings.Join(panels[title], " "))
		if slices.ContainsFunc(metricsOf(a.Expr), func(m string) bool { return slices.Contains(read, m) }) {
			titles = append(titles, title)
		}
	}
	return titles
}
