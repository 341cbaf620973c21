package observe

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-gateway/weir/internal/observe/governor"
	"github.com/weir-gateway/weir/internal/observe/monitor"
	"github.com/weir-gateway/weir/test/judge"
)

// tool runs a program of the Prometheus package.
func tool(t *testing.T, name string, arg ...string) {
	t.Helper()
	judge.Need(t, "prometheus")
	out, err := exec.Command(judge.Path(".cache", "prometheus", "usr", "bin", name), arg...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arg, " "), err, out)
	}
	t.Logf("%s", out)
}

const deployed = "deploy/prometheus/weir.rules.yaml"

func TestPromtoolTakesTheRules(t *testing.T) {
	tool(t, "promtool", "check", "rules", "--lint-fatal", judge.Path(deployed), judge.Path("deploy/prometheus/rollback.rules.yaml"))
}

// Alertmanager's own tool accepts its example, and routes each level to its webhook, and what rolls a
// release back to a person too.
func TestAlertmanagerRoutesByLevel(t *testing.T) {
	judge.Need(t, "prometheus")
	file := judge.Path("deploy/prometheus/alertmanager.yaml")
	tool(t, "amtool", "check-config", file)
	f := func(receivers string, labels ...string) {
		t.Helper()
		arg := append([]string{"config", "routes", "test", "--config.file", file, "--verify.receivers", receivers}, labels...)
		tool(t, "amtool", arg...)
	}
	f("oncall", "severity=page")
	f("tickets", "severity=ticket")
	f("channel", "severity=information")
	f("roll-back-shop,oncall", "severity=page", "action=roll-back", "split=shop")
	f("oncall", "severity=page", "action=roll-back", "split=other")
}

// adapterQueries are the expressions of prometheus-adapter's example, filled in as it would.
func adapterQueries(t *testing.T) (exprs []string) {
	t.Helper()
	text, err := os.ReadFile(judge.Path("deploy/prometheus/adapter.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var adapter struct {
		Rules struct {
			Custom []struct {
				SeriesQuery  string `yaml:"seriesQuery"`
				MetricsQuery string `yaml:"metricsQuery"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &adapter); err != nil {
		t.Fatal(err)
	}
	for _, r := range adapter.Rules.Custom {
		series, _, _ := strings.Cut(r.SeriesQuery, "{")
		exprs = append(exprs, strings.NewReplacer("<<.Series>>", series, "<<.LabelMatchers>>", `instance=~".+"`, "<<.GroupBy>>", "instance").Replace(r.MetricsQuery))
	}
	if len(exprs) != 2 {
		t.Errorf("%d queries, want those of connections and lag", len(exprs))
	}
	return exprs
}

// dashboardExpressions returns the queries of the deployed dashboard for classic or native
// histograms, by the title of their panel. Grafana's variables are left in them.
func dashboardExpressions(t *testing.T, native bool) map[string][]string {
	t.Helper()
	name := "deploy/grafana/weir.json"
	if native {
		name = "deploy/grafana/weir-native.json"
	}
	text, err := os.ReadFile(judge.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			all[p.Title] = append(all[p.Title], q.Expr)
		}
	}
	if len(all) < 30 {
		t.Fatalf("%s has %d panels with queries", name, len(all))
	}
	return all
}

// standing are Grafana's variables, filled in as it would.
var standing = strings.NewReplacer("$__rate_interval", "1m", "$job", "weir", "$instance", ".+")

// Each of the dashboards' expressions is made a recording rule: promtool parses those.
func TestPromtoolTakesTheDashboardsExpressions(t *testing.T) {
	var b strings.Builder
	b.WriteString("groups:\n  - name: panels\n    rules:\n")
	n := 0
	for _, native := range []bool{false, true} {
		for _, exprs := range dashboardExpressions(t, native) {
			for _, e := range exprs {
				n++
				fmt.Fprintf(&b, "      - record: panel:%d\n        expr: '%s'\n", n, standing.Replace(e))
			}
		}
	}
	file := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "promtool", "check", "rules", file)
}

// A trial is what an alert's rule is shown: series with which it fires once they have
// lasted, and series with which it does not.
type trial struct{ fires, quiet []string }

const node = `{job="weir", instance="a"}`

// labelled is node with another label.
func labelled(label string) string { return `{job="weir", instance="a", ` + label + `}` }

// trials are those of the rules that are more than a metric and its threshold.
var trials = map[string]trial{
	"WeirInflection": {
		[]string{`weir_governor_state` + labelled(`state="inflection"`) + ` 1x200`},
		[]string{`weir_governor_state` + labelled(`state="inflection"`) + ` 0x200`, `weir_governor_state` + labelled(`state="alert"`) + ` 1x200`},
	},
	"WeirAlert": {
		[]string{`weir_governor_state` + labelled(`state="alert"`) + ` 1x200`, `weir_governor_inconclusive` + node + ` 0x200`},
		[]string{`weir_governor_state` + labelled(`state="alert"`) + ` 1x200`, `weir_governor_inconclusive` + node + ` 1x200`},
	},
	"WeirGoroutineLeak": {
		[]string{`weir_governor_cause` + labelled(`cause="goroutine-leak"`) + ` 1x200`},
		[]string{`weir_governor_cause` + labelled(`cause="goroutine-leak"`) + ` 0x200`, `weir_governor_cause` + labelled(`cause="goroutines"`) + ` 1x200`},
	},
	"WeirCollectorLimited": {[]string{`weir_gc_limiting` + node + ` 1x200`}, []string{`weir_gc_limiting` + node + ` 0x200`}},
	"WeirEvidenceBlocked":  {[]string{`weir_evidence_blocked` + node + ` 1x200`}, []string{`weir_evidence_blocked` + node + ` 0x200`}},
	"WeirInconclusive":     {[]string{`weir_governor_inconclusive` + node + ` 1x200`}, []string{`weir_governor_inconclusive` + node + ` 0x200`}},
	// Every 10 s a second more is 0.1 s/s.
	"WeirLocks": {[]string{`weir_lock_wait_seconds_total` + node + ` 0+1.1x200`}, []string{`weir_lock_wait_seconds_total` + node + ` 0+0.9x200`}},
	"WeirDown":  {[]string{`up` + node + ` 0x200`}, []string{`up` + node + ` 1x200`, `up{job="other", instance="a"} 0x200`}},
	"WeirPublishFailing": {
		[]string{`weir_messages_published_total` + labelled(`outcome="ok"`) + ` 0+94x200`, `weir_messages_published_total` + labelled(`outcome="error"`) + ` 0+6x200`},
		[]string{`weir_messages_published_total` + labelled(`outcome="ok"`) + ` 0+96x200`, `weir_messages_published_total` + labelled(`outcome="error"`) + ` 0+4x200`},
	},
	"WeirBrokerAway": mode("broker-away", "disk-full"),
	"WeirSiteLost": {
		[]string{`weir_site_up` + labelled(`namespace="n", partition="0", site="a"`) + ` 0x200`, `weir_site_up` + labelled(`namespace="n", partition="0", site="b"`) + ` 1x200`},
		[]string{`weir_site_up` + labelled(`namespace="n", partition="0", site="a"`) + ` 1x200`, `weir_site_up` + labelled(`namespace="n", partition="0", site="b"`) + ` 1x200`},
	},
	"WeirDiskFull":     mode("disk-full", "broker-away"),
	"WeirDiskReadOnly": mode("disk-read-only", "disk-full"),
	"WeirNoPeers": {
		[]string{`weir_upstream_peers` + labelled(`cluster="c", state="down"`) + ` 2x200`, `weir_upstream_peers` + labelled(`cluster="d", state="up"`) + ` 2x200`},
		[]string{`weir_upstream_peers` + labelled(`cluster="c", state="down"`) + ` 1x200`, `weir_upstream_peers` + labelled(`cluster="c", state="slow start"`) + ` 1x200`},
	},
	"WeirUpstreamErrors": {
		[]string{`weir_upstream_requests_total` + labelled(`cluster="c", code="2xx"`) + ` 0+90x200`, `weir_upstream_requests_total` + labelled(`cluster="c", code="5xx"`) + ` 0+10x200`},
		[]string{`weir_upstream_requests_total` + labelled(`cluster="c", code="2xx"`) + ` 0+90x200`, `weir_upstream_requests_total` + labelled(`cluster="c", code="4xx"`) + ` 0+90x200`},
	},
	"WeirConnectionsFull": {
		[]string{`weir_connections` + labelled(`transport="sse"`) + ` 500x200`, `weir_connections` + labelled(`transport="websocket"`) + ` 350x200`, `weir_connections_max` + node + ` 1000x200`},
		[]string{`weir_connections` + labelled(`transport="sse"`) + ` 500x200`, `weir_connections` + labelled(`transport="websocket"`) + ` 349x200`, `weir_connections_max` + node + ` 1000x200`},
	},
	"WeirConntrackFull": {
		[]string{`weir_conntrack_entries` + node + ` 850x200`, `weir_conntrack_max` + node + ` 1000x200`},
		[]string{`weir_conntrack_entries` + node + ` 849x200`, `weir_conntrack_max` + node + ` 1000x200`},
	},
	"WeirAcceptErrors": counted("weir_accept_errors_total", ""),
	"WeirPanics":       counted("weir_panics_total", ""),
	"WeirCertificates": counted("weir_tls_reloads_total", `outcome="error"`),
	"WeirCertificateExpiry": {
		[]string{`weir_tls_certificate_lifetime_left_ratio` + labelled(`name="a.example"`) + ` 0.14x200`, `weir_tls_certificate_expires_seconds` + labelled(`name="a.example"`) + ` 1000000x200`},
		[]string{`weir_tls_certificate_lifetime_left_ratio` + labelled(`name="a.example"`) + ` 0.16x200`, `weir_tls_certificate_expires_seconds` + labelled(`name="a.example"`) + ` 1000000x200`},
	},
	"WeirCertificateOrders": counted("weir_acme_orders_total", `outcome="error"`),
	"WeirKeys":              counted("weir_jwks_fetches_total", `outcome="error"`),
	"WeirRevocations":       {[]string{`weir_revocations_stored` + node + ` 0x200`}, []string{`weir_revocations_stored` + node + ` 1x200`}},
	"WeirAccessLog":         counted("weir_access_log_lines_total", `outcome="dropped"`),
	"WeirTooSlow":           counted("weir_subscribers_closed_total", `reason="too_slow"`),
	"WeirGaps":              counted("weir_gaps_total", ""),
	"WeirRestarted":         {[]string{`weir_governor_windows_total` + node + ` 100 101 102x50 0 1 2 3 4x100`}, []string{`weir_governor_windows_total` + node + ` 0+2x200`}},
}

// mode is the trial of a degraded mode: the node is in it, or in another one.
func mode(name, other string) trial {
	in := func(mode string) string { return "weir_degraded" + labelled(`mode="`+mode+`"`) + " 1x200" }
	return trial{[]string{in(name)}, []string{in(other), strings.Replace(in(name), " 1x", " 0x", 1)}}
}

// counted is the trial of a counter that is to pause.
func counted(name, label string) trial {
	labels := node
	if label != "" {
		labels = labelled(label)
	}
	return trial{[]string{name + labels + " 0+3x200"}, []string{name + labels + " 7x200"}}
}

var threshold = regexp.MustCompile(`^(weir_\w+) >= ([0-9.]+)$`)

// trialOf is the trial of an alert: of a plain threshold, the value itself and one below.
func trialOf(t *testing.T, a *monitor.Alert) trial {
	t.Helper()
	if m := threshold.FindStringSubmatch(a.Expr); m != nil {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		return trial{[]string{m[1] + node + fmt.Sprintf(" %vx200", v)}, []string{m[1] + node + fmt.Sprintf(" %vx200", v*0.99)}}
	}
	c, ok := trials[a.Name]
	if !ok {
		t.Fatalf("%s has no trial: %s", a.Name, a.Expr)
	}
	return c
}

// Every alert fires when what it waits for has lasted, not earlier, and not at
// all just below its threshold.
func TestPromtoolFiresEveryAlert(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: ['%s']\nevaluation_interval: 10s\ntests:\n", judge.Path(deployed))
	write := func(series []string, ask func()) {
		b.WriteString("  - interval: 10s\n    input_series:\n")
		for _, s := range series {
			at := strings.LastIndex(s, "}") + 1
			if at == 0 {
				t.Fatalf("series %s", s)
			}
			fmt.Fprintf(&b, "      - {series: '%s', values: '%s'}\n", s[:at], strings.TrimSpace(s[at:]))
		}
		b.WriteString("    promql_expr_test:\n")
		ask()
	}
	ask := func(name string, at time.Duration, fires bool) {
		samples := "[]"
		if fires {
			samples = "[{labels: '{}', value: 1}]"
		}
		fmt.Fprintf(&b, "      - {expr: 'count(ALERTS{alertname=\"%s\", alertstate=\"firing\"})', eval_time: %s, exp_samples: %s}\n", name, at, samples)
	}
	n := 0
	for _, a := range monitor.Alerts(governor.DefaultThresholds()) {
		c, wait := trialOf(t, &a), time.Duration(a.For)
		write(c.fires, func() {
			if wait > 0 {
				ask(a.Name, wait-10*time.Second, false)
			}
			ask(a.Name, wait+9*time.Minute, true) // rates and resets need samples first
		})
		write(c.quiet, func() { ask(a.Name, 30*time.Minute, false) })
		n++
	}
	for name := range trials {
		if !strings.Contains(b.String(), `"`+name+`"`) {
			t.Errorf("there is no alert %s", name)
		}
	}
	file := filepath.Join(t.TempDir(), "trials.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "promtool", "test", "rules", file)
	t.Logf("%d alerts", n)
}
