package monitor

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-gateway/weir/internal/observe/governor"
)

var update = flag.Bool("update", false, "write what is made of the code instead of comparing it")

var defaults = governor.DefaultThresholds()

// current compares a file with what the code makes of it.
func current(t *testing.T, name string, want []byte) {
	t.Helper()
	name = filepath.Join("..", "..", "..", filepath.FromSlash(name))
	if *update {
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not current (%v); run: go test ./internal/observe/monitor -update", name, err)
	}
}

func written(t *testing.T, write func(io.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const head = "Made of the default thresholds: go test ./internal/observe/monitor -update\nFor others: weir config alerts --config weir.yaml"

func TestDeployedFilesAreCurrent(t *testing.T) {
	current(t, "deploy/prometheus/weir.rules.yaml", written(t, func(w io.Writer) error { return Rules(w, defaults, head) }))
	current(t, "deploy/grafana/weir.json", written(t, func(w io.Writer) error { return writeDashboard(w, defaults, false) }))
	current(t, "deploy/grafana/weir-native.json", written(t, func(w io.Writer) error { return writeDashboard(w, defaults, true) }))
}

// known are the metrics of the reference, and the series that histograms have besides.
func known(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{"go_goroutines": true}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (\\w+) \\|").FindAllSubmatch(text, -1) {
		name := string(m[1])
		all[name] = true
		if string(m[2]) == "histogram" {
			all[name+"_bucket"], all[name+"_sum"], all[name+"_count"] = true, true, true
		}
	}
	if len(all) < 100 {
		t.Fatalf("%d metrics in the reference", len(all))
	}
	return all
}

func TestEveryMetricThatIsReadExists(t *testing.T) {
	all := known(t)
	f := func(where, expr string) {
		t.Helper()
		for _, name := range metricsOf(expr) {
			if !all[name] {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
		if len(metricsOf(expr)) == 0 && !strings.Contains(expr, "weir:") && !strings.Contains(expr, "up{") {
			t.Errorf("%s reads no metric: %s", where, expr)
		}
	}
	for _, a := range Alerts(defaults) {
		f(a.Name, a.Expr)
	}
	for _, r := range Records() {
		f(r.Name, r.Expr)
	}
	for _, native := range []bool{false, true} {
		for title, exprs := range panelExpressions(defaults, native) {
			for _, e := range exprs {
				f(title, e)
			}
		}
	}
}

func TestEveryAlertOfTheGovernorHasItsThreshold(t *testing.T) {
	fields := map[string]bool{}
	b, err := json.Marshal(defaults)
	if err == nil {
		err = json.Unmarshal(b, &map[string]any{})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"(\w+)":`).FindAllSubmatch(b, -1) {
		fields[string(m[1])] = true
	}
	// Those that say it all by themselves: states and flags that the process has evaluated.
	checked := []string{"WeirInflection", "WeirAlert", "WeirCollectorLimited", "WeirEvidenceBlocked", "WeirInconclusive"}
	names := map[string]bool{}
	for _, a := range Alerts(defaults) {
		if names[a.Name] {
			t.Errorf("%s is listed twice", a.Name)
		}
		names[a.Name] = true
		if a.Key != "" && !fields[a.Key] {
			t.Errorf("%s: there is no threshold %s", a.Name, a.Key)
		}
		if a.Cause != "" && !slices.Contains(governor.CauseNames(), a.Cause) {
			t.Errorf("%s: there is no cause %s", a.Name, a.Cause)
		}
	}
	for _, a := range governor.Alerts(defaults) {
		if keys[a.Name].key == "" && !slices.Contains(checked, a.Name) {
			t.Errorf("%s has no threshold", a.Name)
		}
	}
	for name := range keys {
		if !names[name] {
			t.Errorf("there is no alert %s", name)
		}
	}
}

// Another threshold changes the rules and the dashboard at the same time.
func TestRulesFollowTheThresholds(t *testing.T) {
	other := governor.Thresholds{LoopBusy: 0.5, Disk: 3, Stopped: 0.5, LoopInbox: 123456, Leak: 7}
	for key, f := range map[string]func(*Alert) bool{
		"loop_busy":  func(a *Alert) bool { return strings.HasSuffix(a.Expr, ">= 0.5") && a.Limit == 0.5 },
		"disk":       func(a *Alert) bool { return strings.HasSuffix(a.Expr, ">= 3") && a.Limit == 3 },
		"stopped":    func(a *Alert) bool { return strings.HasSuffix(a.Expr, ">= 0.5") && a.Limit == 0.5 },
		"loop_inbox": func(a *Alert) bool { return strings.HasSuffix(a.Expr, ">= 123456") && a.Limit == 123456 },
		"soft":       func(a *Alert) bool { return strings.HasSuffix(a.Expr, ">= 0.85") && a.Limit == 0.85 },
	} {
		n := 0
		for _, a := range Alerts(other) {
			if a.Key == key {
				n++
				if !f(&a) {
					t.Errorf("%s: %s with limit %v", a.Name, a.Expr, a.Limit)
				}
			}
		}
		if n == 0 {
			t.Errorf("no alert uses %s", key)
		}
	}
	d := written(t, func(w io.Writer) error { return writeDashboard(w, other, false) })
	if bytes.Equal(d, written(t, func(w io.Writer) error { return writeDashboard(w, defaults, false) })) {
		t.Error("the dashboard has the default thresholds")
	}
}

func TestRulesAreYAMLWithThreeLevels(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Record, Expr, For string
				Labels, Annotations      map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(written(t, func(w io.Writer) error { return Rules(w, defaults, head) }), &file); err != nil {
		t.Fatal(err)
	}
	exprs, levels := map[string]string{}, map[string]int{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			exprs[r.Alert+r.Record] = r.Expr
			if r.Alert == "" {
				continue
			}
			levels[r.Labels["severity"]]++
			if g.Name != "weir."+r.Labels["severity"] || r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !strings.HasSuffix(r.Annotations["runbook_url"], "/"+r.Alert+".md") {
				t.Errorf("%s in %s: %v %v", r.Alert, g.Name, r.Labels, r.Annotations)
			}
		}
	}
	for _, a := range Alerts(defaults) {
		if exprs[a.Name] != a.Expr {
			t.Errorf("%s is %q in the file, want %q", a.Name, exprs[a.Name], a.Expr)
		}
	}
	for _, r := range Records() {
		if exprs[r.Name] != r.Expr {
			t.Errorf("%s is %q in the file, want %q", r.Name, exprs[r.Name], r.Expr)
		}
	}
	if len(levels) != 3 || levels["page"] == 0 || levels["ticket"] == 0 || levels["information"] == 0 {
		t.Errorf("levels: %v", levels)
	}
}

// The units of Grafana's that the dashboard uses.
var units = []string{"s", "percentunit", "short", "bytes", "Bps", "cps", "none"}

func TestDashboardHangsTogether(t *testing.T) {
	for _, native := range []bool{false, true} {
		var d dashboardJSON
		if err := json.Unmarshal(written(t, func(w io.Writer) error { return writeDashboard(w, defaults, native) }), &d); err != nil {
			t.Fatal(err)
		}
		var variables []string
		for _, v := range d.Templating["list"].([]any) {
			variables = append(variables, v.(map[string]any)["name"].(string))
		}
		if !slices.Equal(variables, []string{"datasource", "job", "instance"}) {
			t.Errorf("variables: %v", variables)
		}
		ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if p.ID <= 0 || ids[p.ID] || p.Title == "" || titles[p.Title] {
				t.Errorf("panel %d %q: its id or title is not its own", p.ID, p.Title)
			}
			ids[p.ID], titles[p.Title] = true, true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
						t.Fatalf("%s lies over %q at %d, %d", p.Title, other, x, y)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if unit := p.FieldConfig["defaults"].(map[string]any)["unit"]; !slices.Contains(units, unit.(string)) {
				t.Errorf("%s: unit %v", p.Title, unit)
			}
			if p.Description == "" || len(p.Targets) == 0 || p.Datasource["uid"] != "${datasource}" {
				t.Errorf("%s: %q, %d queries, data source %v", p.Title, p.Description, len(p.Targets), p.Datasource)
			}
			for _, q := range p.Targets {
				used := regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q["expr"].(string), -1)
				for _, v := range used {
					if v[1] != "__rate_interval" && !slices.Contains(variables, v[1]) {
						t.Errorf("%s: there is no variable %s", p.Title, v[1])
					}
				}
				if len(used) == 0 {
					t.Errorf("%s takes no choice of nodes: %s", p.Title, q["expr"])
				}
			}
		}
	}
}

func TestEveryPanelHasBothForms(t *testing.T) {
	classic, native := panelExpressions(defaults, false), panelExpressions(defaults, true)
	if len(classic) != len(native) || len(classic) < 30 {
		t.Errorf("%d panels, %d with native histograms", len(classic), len(native))
	}
	differ := 0
	for title, exprs := range classic {
		if !slices.Equal(exprs, native[title]) {
			differ++
			if !strings.Contains(exprs[0], "_bucket{") || strings.Contains(native[title][0], "_bucket") {
				t.Errorf("%s: %s and %s", title, exprs[0], native[title][0])
			}
		}
	}
	if differ != 6 {
		t.Errorf("%d panels differ, want those of three histograms", differ)
	}
}

var facts = regexp.MustCompile(`(?s)(<!-- facts: go test ./internal/observe/monitor -update -->\n).*?(<!-- end of facts -->)`)

// What a page answers, in this order.
var sections = []string{"What it means", "What users notice", "Look", "Do", "When it fires wrongly"}

func TestEveryAlertHasItsRunbookPage(t *testing.T) {
	pages := map[string]bool{}
	files, err := filepath.Glob("../../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		pages[strings.TrimSuffix(filepath.Base(f), ".md")] = true
	}
	delete(pages, "README")
	for _, a := range Alerts(defaults) {
		if !pages[a.Name] {
			t.Errorf("%s has no page in docs/runbooks", a.Name)
			continue
		}
		delete(pages, a.Name)
		name := "docs/runbooks/" + a.Name + ".md"
		text, err := os.ReadFile("../../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !facts.Match(text) || !bytes.HasPrefix(text, []byte("# "+a.Name+"\n")) {
			t.Errorf("%s has no heading, or no place for its facts", name)
			continue
		}
		current(t, name, facts.ReplaceAllFunc(text, func(old []byte) []byte {
			m := facts.FindSubmatch(old)
			return slices.Concat(m[1], []byte(runbookFacts(&a, defaults)), m[2])
		}))
		at := 0
		for _, s := range sections {
			i := bytes.Index(text[at:], []byte("\n## "+s+"\n\n"))
			if i < 0 {
				t.Errorf("%s does not say: %s", name, s)
				break
			}
			at += i + len(s)
		}
		if len(text) < 800 {
			t.Errorf("%s says little", name)
		}
	}
	for name := range pages {
		t.Errorf("docs/runbooks/%s.md is of no alert", name)
	}
}

func TestRunbooksAreListed(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Runbooks\n\n<!-- go test ./internal/observe/monitor -update -->\n\nOne page per alert of `deploy/prometheus/weir.rules.yaml`. What the levels mean, and where alerts go: [operate](../howto/operate.md).\n")
	for _, level := range []governor.Level{governor.Page, governor.Ticket, governor.Information} {
		b.WriteString("\n## " + string(level) + "\n\n| alert | |\n|---|---|\n")
		for _, a := range Alerts(defaults) {
			if a.Level == level {
				b.WriteString("| [" + a.Name + "](" + a.Name + ".md) | " + a.Summary + " |\n")
			}
		}
	}
	current(t, "docs/runbooks/README.md", []byte(b.String()))
}
