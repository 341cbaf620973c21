package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// autobahn runs cases of the Autobahn suite against the echo endpoint and
// returns how many ended with each verdict, and those that failed.
func autobahn(t *testing.T, build judge.Build, cases []string) (verdicts map[string]int, failed []string) {
	t.Helper()
	t.Parallel() // the suite has one thread, and often waits
	judge.Need(t, "autobahn")
	s := judge.New(t, judge.Options{Build: build, Memory: true, Config: judge.Echo()})
	dir := t.TempDir()
	spec, err := json.Marshal(map[string]any{
		"options":       map[string]any{"failByDrop": false},
		"outdir":        dir,
		"servers":       []any{map[string]any{"agent": "weir", "url": "ws://" + s.Public + "/echo"}},
		"cases":         cases,
		"exclude-cases": []string{}, "exclude-agent-cases": map[string]any{},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "spec.json")
	if err := os.WriteFile(file, spec, 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	cmd := exec.CommandContext(t.Context(), judge.Path(".cache", "python2.7", "python"), judge.Path("test", "conformance", "autobahn", "run.py"),
		judge.Path(".cache", "autobahn", "site"), "-m", "fuzzingclient", "-s", file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("wstest: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatalf("wstest wrote no report: %v", err)
	}
	var report map[string]map[string]struct{ Behavior, BehaviorClose, Reportfile string }
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	verdicts = map[string]int{}
	fine := []string{"OK", "NON-STRICT", "INFORMATIONAL"}
	for name, c := range report["weir"] {
		verdicts[c.Behavior]++
		if !slices.Contains(fine, c.Behavior) || !slices.Contains(fine, c.BehaviorClose) {
			failed = append(failed, fmt.Sprintf("%s: %s, close %s%s", name, c.Behavior, c.BehaviorClose, details(filepath.Join(dir, c.Reportfile))))
		}
	}
	slices.Sort(failed)
	t.Logf("Autobahn: %d cases in %s: %v", len(report["weir"]), time.Since(begin).Round(time.Second), verdicts)
	return verdicts, failed
}

// details reports what a case expected and what came.
func details(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var c struct {
		Expectation, Result, ResultClose string
	}
	if json.Unmarshal(text, &c) != nil {
		return ""
	}
	return fmt.Sprintf(" (%s; %s; expected: %.200s)", c.Result, c.ResultClose, c.Expectation)
}

func TestAutobahnCore(t *testing.T) {
	verdicts, failed := autobahn(t, judge.Race, []string{"1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*"})
	if len(failed) > 0 {
		t.Errorf("%d cases failed:\n%s", len(failed), strings.Join(failed, "\n"))
	}
	// The suite has 301: 4 that a server may also answer less strictly (6.4.*,
	// failing late on bad UTF-8) and 3 without a verdict.
	if verdicts["OK"] < 294 {
		t.Errorf("%d cases are OK, want at least 294: %v", verdicts["OK"], verdicts)
	}
}

// The whole of 12 and 13 takes ten minutes; its first six sizes of each kind
// take half of one.
func TestAutobahnCompression(t *testing.T) {
	var cases []string
	for _, group := range []string{"12.1", "12.2", "12.3", "12.4", "12.5", "13.1", "13.2", "13.3", "13.4", "13.5", "13.6", "13.7"} {
		for i := range 6 {
			cases = append(cases, fmt.Sprintf("%s.%d", group, i+1))
		}
	}
	verdicts, failed := autobahn(t, judge.Plain, cases)
	if len(failed) > 0 {
		t.Errorf("%d cases failed:\n%s", len(failed), strings.Join(failed, "\n"))
	}
	if n := verdicts["OK"]; n != len(cases) {
		t.Errorf("%d of %d cases are OK: %v", n, len(cases), verdicts)
	}
}
