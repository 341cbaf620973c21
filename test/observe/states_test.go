package observe

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// fleeting is a namespace without a log: what limits it is the fan-out.
func fleeting() map[string]any { return judge.Namespace(map[string]any{"durability": "none"}) }

// A light load is steady, a loop that is full is an alert, and when many publishers are
// in front of it latency runs away: an inflection, of which there is evidence. Without
// the load it is steady again.
func TestLoadReachesEachState(t *testing.T) {
	config := fleeting()
	config["eventloop"] = map[string]any{"loops": 1}
	// The readers and the publishers, whom the race detector slows down, and the tests of other packages
	// have the same processors: the loop waits for them a good part of the time, however many there are.
	// What their being busy does to everything else is not a cause.
	const busy, full = 0.4, 0.5
	config["governor"] = governed(map[string]any{"min_samples": 10, "loop_busy": busy, "loop_full": full,
		"sched_latency": 10, "netpoll": 10, "loop_tick": 10, "lock_wait": 1000, "run_queue": 1000, "run_queue_full": 1000})
	config["governor"].(map[string]any)["evidence"] = map[string]any{"dir": filepath.Join(t.TempDir(), "evidence"), "profile": "300ms"}
	w := newWatch(t, judge.Options{Build: judge.Plain, Memory: true, Config: config}, false)
	w.audience(400, "a")

	var s snapshot
	defer func() {
		if t.Failed() {
			t.Logf("last: %+v, host %+v, loops %+v", s.Governor.State, s.Governor.Host, s.Governor.Loops)
		}
	}()
	light := w.publishers(2, "a", 100, 50*time.Millisecond)
	judge.Eventually(t, patience, "it is steady under a light load, and knows its latency", func() bool {
		s = w.snapshot()
		return s.Governor.State.Now == "steady" && s.Governor.State.Windows >= 8 && s.Governor.State.Baseline.P99 > 0
	})
	t.Logf("steady: baseline %.2f ms, loop busy %.2f", s.Governor.State.Baseline.P99*1e3, s.Governor.Loops[0].Busy)
	light()

	some := w.publishers(4, "a", 100, 0)
	judge.Eventually(t, patience, "it is past steady with the loop nearly full", func() bool { s = w.snapshot(); return s.Governor.State.Now != "steady" })
	t.Logf("%s: %v", s.Governor.State.Now, s.Governor.State.Causes)
	judge.Eventually(t, patience, "the flight recorder is armed", func() bool { return w.snapshot().Governor.Evidence.Armed })
	judge.Eventually(t, patience, "the metric follows", func() bool { return w.value(`weir_governor_state{state=~"alert|inflection"}`) == 1 })
	some()

	many := w.broadcasters(192, "a", 10)
	judge.Eventually(t, patience, "it is an inflection", func() bool { s = w.snapshot(); return s.Governor.State.Now == "inflection" })
	t.Logf("inflection: %v", s.Governor.State.Causes)
	judge.Eventually(t, patience, "the metric follows", func() bool { return w.value(`weir_governor_state{state="inflection"}`) == 1 })
	judge.Eventually(t, patience, "WeirInflection fires", func() bool { return w.alerting("WeirInflection") })
	judge.Eventually(t, patience, "the panel of loops follows", func() bool { return w.value("weir_loop_busy_most_ratio") >= full })
	judge.Eventually(t, patience, "a bundle is written", func() bool {
		s = w.snapshot()
		return s.Governor.Evidence.Writing == "" && len(s.Governor.Evidence.Bundles) > 0
	})
	many()

	judge.Eventually(t, patience, "it is steady again", func() bool { s = w.snapshot(); return s.Governor.State.Now == "steady" })
	states := []string{}
	witnessed := ""
	for _, step := range s.Governor.Timeline {
		states = append(states, step.From+" → "+step.To)
		if step.To == "inflection" {
			witnessed = step.Evidence
		}
	}
	t.Logf("timeline: %s", strings.Join(states, ", "))
	if !slices.ContainsFunc(states, func(s string) bool { return strings.HasSuffix(s, "→ alert") }) {
		t.Error("the timeline has no alert")
	}
	if i := slices.IndexFunc(s.Governor.Evidence.Bundles, func(b struct {
		ID, Reason string
		Bytes      int64
	}) bool {
		return b.ID == witnessed
	}); i < 0 {
		t.Errorf("the timeline's evidence %q is not among %v", witnessed, s.Governor.Evidence.Bundles)
	}
	if w.value("weir_evidence_bundles") < 1 {
		t.Error("no bundle is counted")
	}
	opens(t, w, s.Governor.Evidence.Bundles[0].ID)
}

// opens downloads a bundle and opens what is in it with Go's own tools.
func opens(t *testing.T, w *watch, id string) {
	t.Helper()
	resp, err := judge.HTTP.Get("http://" + w.Admin + "/api/bundles/" + id)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("bundle: %s", resp.Status)
	}
	unzipped, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[filepath.Base(h.Name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	dir, names := t.TempDir(), []string{}
	for name, content := range files {
		names = append(names, name)
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".pprof") {
			if out, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=3", file).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	}
	slices.Sort(names)
	t.Logf("the bundle has %v", names)
	for _, want := range []string{"cpu.pprof", "heap.pprof", "mutex.pprof", "goroutines.txt", "snapshot.json", "heatmaps.json", "consumers.json", "thresholds.json"} {
		if len(files[want]) == 0 {
			t.Errorf("there is no %s", want)
		}
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.Contains(n, "trace") }); i < 0 {
		t.Error("there is no trace")
	} else if !bytes.HasPrefix(files[names[i]], []byte("go 1.")) {
		t.Errorf("%s starts with %q", names[i], files[names[i]][:min(16, len(files[names[i]]))])
	} else if out, err := exec.Command("go", "tool", "trace", "-pprof=sched", filepath.Join(dir, names[i])).CombinedOutput(); err != nil {
		t.Errorf("go tool trace: %v\n%.300s", err, out)
	}
}
