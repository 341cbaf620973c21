package tune_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/weir-gateway/weir/internal/measure/lab"
	"github.com/weir-gateway/weir/internal/observe/tune"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

// golden compares a generated file, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not current (%v); run: go test ./internal/observe/tune -run %s -update", name, err, t.Name())
	}
}

// What a finding says it is worth is what docs/lab has, in today's numbers.
func TestWorthIsCurrent(t *testing.T) {
	results := map[string]string{}
	for _, c := range tune.Checks() {
		w := c.Worth
		if w.Page == "" {
			continue
		}
		ladder, ok := lab.Find(w.Page)
		if !ok {
			t.Errorf("%s: there is no experiment %q", c.Name, w.Page)
			continue
		}
		r, err := lab.Read("../../../docs/lab", &ladder)
		if err != nil {
			t.Fatal(err)
		}
		v := r.Ratio(w.Experiment, lab.Step{Arm: w.Arm, Base: w.Against, Metric: w.Metric})
		if v.N == 0 {
			t.Errorf("%s: docs/lab/%s.json has no result for %s", c.Name, w.Page, w.Key())
			continue
		}
		verdict := map[lab.Verdict]string{
			lab.Worth: "better", lab.Worse: "worse", lab.Same: "no difference within noise", lab.Uncertain: "an indication only",
		}[lab.Evaluate(v)]
		text := fmt.Sprintf("%s: %.2f× (%.2f× to %.2f×, %d rounds)", verdict, v.Point, v.Lo, v.Hi, v.N)
		if s := w.Seen; s.Text != "" {
			seen := r.Value(w.Experiment, s.Arm, s.Metric)
			if seen.N == 0 {
				t.Errorf("%s: docs/lab/%s.json has no %s of %s", c.Name, w.Page, s.Metric, s.Arm)
			}
			text += "; " + fmt.Sprintf(s.Text, 100*seen.Point)
		}
		if old := results[w.Key()]; old == "" || len(text) > len(old) { // several knobs share an arm
			results[w.Key()] = text
		}
	}
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "worth.json", append(b, '\n'))
}

// baseline is the sysctl.d file of a profile for a machine of which nothing is known:
// deploy/sysctl.d has it. A leading - has settings ignored that a kernel does not have.
func baseline(p tune.Profile) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Kernel settings for a machine that serves Weir (profile %s).
# cp deploy/sysctl.d/90-weir.conf /etc/sysctl.d/ && sysctl --system
#
# Written from the checks of weir tune by: go test ./internal/observe/tune -run TestDeployAgrees -update
# What depends on the machine and its load is not here: weir tune check, weir tune plan.
`, p)
	for _, c := range tune.Checks() {
		if c.Base == nil || c.Base(p) == "" {
			continue
		}
		fmt.Fprintf(&b, "\n# %s\n# Risk: %s.\n-%s = %s\n", c.Threshold, c.Risk, c.Name, c.Base(p))
	}
	return b.String()
}

// What is installed by hand agrees with the checks.
func TestDeployAgrees(t *testing.T) {
	golden(t, "../../../deploy/sysctl.d/90-weir.conf", []byte(baseline(tune.Gateway)))

	// A process under the shipped unit has nothing to change.
	unit, err := os.ReadFile("../../../deploy/systemd/weir.service")
	if err != nil {
		t.Fatal(err)
	}
	limit := regexp.MustCompile(`(?m)^LimitNOFILE=(\d+)$`).FindSubmatch(unit)
	if limit == nil {
		t.Fatal("weir.service sets no LimitNOFILE")
	}
	m := &tune.Machine{FS: fstest.MapFS{"proc/self/limits": {Data: fmt.Appendf(nil, "Max open files 1024 %s files\n", limit[1])}}}
	r, err := tune.Run(m, tune.Gateway, "limit.nofile")
	if err != nil || r.Findings[0].State != tune.OK {
		t.Errorf("with LimitNOFILE=%s: %+v %v", limit[1], r, err)
	}
}
