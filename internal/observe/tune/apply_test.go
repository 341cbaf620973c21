package tune

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func asExit(err error, exit **exec.ExitError) bool { return errors.As(err, exit) }

// A guarded store changes what belongs to a network namespace or lies below root, nothing
// else: a fault of a test must not change the machine. It kills its process instead of
// the change number killAt, from 1.
type guarded struct {
	System
	killAt, n int
}

func (g *guarded) Save(target, value string) error {
	if g.Root == "" && target != NotrackTarget && target != QdiscTarget+"lo" && !strings.HasPrefix(target, "/proc/sys/net/") {
		panic(target + " belongs to the machine")
	}
	if g.n++; g.n == g.killAt {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return g.System.Save(target, value)
}

// A jobSpec is what a child that may be killed does.
type jobSpec struct {
	Root, Journal string
	Undo          bool
	KillAt        int
	Steps         []Step
}

func runJob(text string) int {
	var job jobSpec
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	s := &guarded{System: System{Root: job.Root, Rules: NotrackRule{}, Queues: ClassQueue{}}, killAt: job.KillAt}
	var err error
	if job.Undo {
		_, err = Undo(s, OpenJournal(job.Journal), false)
	} else {
		_, err = Apply(s, OpenJournal(job.Journal), job.Steps)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killed runs the job in a process that kills itself before one change, or lets it end
// if there are fewer. It reports whether it was killed.
func killed(t *testing.T, job jobSpec) bool {
	t.Helper()
	b, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TUNE_TEST_JOB="+string(b), "GORACE=atexit_sleep_ms=0") // or every process ends a second late
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
			return true
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// sysctls is every readable file below dir, as `sysctl -a` sees it, without counters.
func sysctls(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(name, "nf_conntrack_count") {
			return err
		}
		if b, err := os.ReadFile(name); err == nil {
			all[name] = string(b)
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d settings in %s: %v", len(all), dir, err)
	}
	return all
}

func compareSysctls(t *testing.T, when string, before, after map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if before[name] != after[name] {
			t.Errorf("%s: %s was %q and is %q", when, name, before[name], after[name])
		}
	}
	if len(before) != len(after) {
		t.Errorf("%s: %d settings were there and %d are", when, len(before), len(after))
	}
}

// namespaceSteps changes whatever a profile would, and some more, in a network namespace.
func namespaceSteps(t *testing.T) []Step {
	t.Helper()
	m := Local("/")
	m.Listen = []int{8000, 45000}
	r, err := Run(m, Bench)
	if err != nil {
		t.Fatal(err)
	}
	steps := slices.DeleteFunc(r.Steps(), func(s Step) bool { return !strings.HasPrefix(s.Target, "/proc/sys/net/") })
	for name, value := range map[string]string{
		"net.ipv4.tcp_rmem": "4096 87380 16777216", "net.ipv4.tcp_wmem": "8192 65536 8388608",
		"net.ipv4.tcp_fin_timeout": "30", "net.ipv4.tcp_syncookies": "2", "net.ipv4.tcp_notsent_lowat": "131072",
	} {
		steps = append(steps, Step{Target: sysctlPath(name), Value: value})
	}
	// The one that a namespace may always use.
	steps = append(steps, Step{Target: sysctlPath("net.ipv4.tcp_congestion_control"), Value: "reno", Also: []string{sysctlPath(allowedCongestion)}})
	return append(steps, Step{Target: NotrackTarget, Value: "8000,45000"}, Step{Target: QdiscTarget + "lo", Value: testShape})
}

func TestApplyAndUndoLeaveANamespaceAsItWas(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s := &guarded{System: System{Rules: NotrackRule{}, Queues: ClassQueue{}}}
	steps, before := namespaceSteps(t), sysctls(t, "/proc/sys/net")
	j := OpenJournal(filepath.Join(t.TempDir(), "journal.json"))
	changed, err := Apply(s, j, steps)
	if err != nil || len(changed) < 6 {
		t.Fatalf("%d changes: %v %+v", len(changed), err, changed)
	}
	for _, step := range steps {
		if now, err := s.Load(step.Target); err != nil || !same(now, step.Value) {
			t.Errorf("%s is %q after apply, want %q (%v)", step.Target, now, step.Value, err)
		}
	}
	// Once more, with another value: the first one is what counts.
	if _, err := Apply(s, j, []Step{{Target: "/proc/sys/net/ipv4/tcp_fin_timeout", Value: "20"}}); err != nil {
		t.Fatal(err)
	}
	if again, err := Apply(s, j, []Step{{Target: "/proc/sys/net/ipv4/tcp_fin_timeout", Value: "20"}}); err != nil || again != nil {
		t.Errorf("nothing was left to change: %v, %v", again, err)
	}
	if _, err := Undo(s, j, false); err != nil {
		t.Fatal(err)
	}
	compareSysctls(t, "after undo", before, sysctls(t, "/proc/sys/net"))
	if ports, err := (NotrackRule{}).Load(NotrackTarget); err != nil || ports != "" {
		t.Errorf("the rule is still there: %q %v", ports, err)
	}
	if q, err := (ClassQueue{}).Load(QdiscTarget + "lo"); err != nil || q != "" {
		t.Errorf("the queue is still there: %q %v", q, err)
	}
	if j.Has() {
		t.Error("the journal is still there")
	}
	if changed, err := Undo(s, j, false); err != nil || changed != nil {
		t.Errorf("there was nothing to undo: %v %v", changed, err)
	}
}

func TestUndoAfterKill9AtEveryStep(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	s := &guarded{System: System{Rules: NotrackRule{}, Queues: ClassQueue{}}}
	steps, before := namespaceSteps(t), sysctls(t, "/proc/sys/net")
	path := filepath.Join(t.TempDir(), "journal.json")
	kills := 0
	for n := 1; killed(t, jobSpec{Journal: path, Steps: steps, KillAt: n}); n++ {
		kills++
		if !OpenJournal(path).Has() {
			t.Fatalf("killed before change %d, and there is no journal", n)
		}
		// Undo is killed as well, half-way, and run again.
		killed(t, jobSpec{Journal: path, Undo: true, KillAt: (n + 1) / 2})
		if _, err := Undo(s, OpenJournal(path), false); err != nil {
			t.Fatalf("undo after a kill before change %d: %v", n, err)
		}
		compareSysctls(t, "killed before change "+strconv.Itoa(n), before, sysctls(t, "/proc/sys/net"))
	}
	if kills < 6 {
		t.Errorf("killed %d times for %d steps", kills, len(steps))
	}
	if _, err := Undo(s, OpenJournal(path), false); err != nil {
		t.Fatal(err)
	}
	compareSysctls(t, "after all", before, sysctls(t, "/proc/sys/net"))
}

// newRoot is a machine of files in a directory.
func newRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestSettingsOfTheMachineAreRestoredToo(t *testing.T) {
	root := newRoot(t, map[string]string{"proc/sys/vm/swappiness": "60\n", "proc/sys/fs/nr_open": "65536\n", "sys/devices/rps_cpus": "0\n"})
	steps := []Step{{Target: "/proc/sys/vm/swappiness", Value: "10"}, {Target: "/proc/sys/fs/nr_open", Value: "1048576"}, {Target: "/sys/devices/rps_cpus", Value: "3"}}
	before := sysctls(t, root)
	path := filepath.Join(t.TempDir(), "deep/er/journal.json")
	for n := 1; killed(t, jobSpec{Root: root, Journal: path, Steps: steps, KillAt: n}); n++ {
		if _, err := Undo(System{Root: root}, OpenJournal(path), false); err != nil {
			t.Fatal(err)
		}
		compareSysctls(t, "killed before "+strconv.Itoa(n), before, sysctls(t, root))
	}
}

func TestAValueChangedByOthersIsLeft(t *testing.T) {
	root := newRoot(t, map[string]string{"a": "1\n", "b": "1\n"})
	s, j := System{Root: root}, OpenJournal(filepath.Join(t.TempDir(), "j"))
	if _, err := Apply(s, j, []Step{{Target: "/a", Value: "2"}, {Target: "/b", Value: "2"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Save("/a", "3"); err != nil {
		t.Fatal(err)
	}
	changed, err := Undo(s, j, false)
	if !errors.Is(err, ErrIncomplete) || len(changed) != 2 || changed[1].Err == "" || changed[0].Err != "" {
		t.Fatalf("%v %+v", err, changed)
	}
	f := func(target, want string) {
		t.Helper()
		if got, _ := s.Load(target); got != want {
			t.Errorf("%s is %q, want %q", target, got, want)
		}
	}
	f("/a", "3")
	f("/b", "1")
	if !j.Has() {
		t.Fatal("what was left is forgotten")
	}
	if _, err := Undo(s, j, true); err != nil {
		t.Fatal(err)
	}
	f("/a", "1")
}

func TestNothingIsChangedWithoutAJournal(t *testing.T) {
	root := newRoot(t, map[string]string{"a": "1\n"})
	s := System{Root: root}
	step := []Step{{Target: "/a", Value: "2"}}
	f := func(j *Journal, says string) {
		t.Helper()
		_, err := Apply(s, j, step)
		if got, _ := s.Load("/a"); err == nil || !strings.Contains(err.Error(), says) || got != "1" {
			t.Errorf("%v, want %q; /a is %s", err, says, got)
		}
	}
	dir := t.TempDir()
	f(OpenJournal(filepath.Join("/proc/none", "j")), "journal")
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f(OpenJournal(bad), "is not a journal")
	if err := os.WriteFile(bad, []byte(`{"version":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f(OpenJournal(bad), "version 2")
	if err := os.WriteFile(bad, bytes.Repeat([]byte(" "), maxJournal+1), 0o600); err != nil {
		t.Fatal(err)
	}
	f(OpenJournal(bad), "at most")
	ns, boot := whereabouts()
	if err := os.WriteFile(bad, fmt.Appendf(nil, `{"version":1,"network_namespace":"%s0","boot_id":%q,"entries":[]}`, ns, boot), 0o600); err != nil {
		t.Fatal(err)
	}
	f(OpenJournal(bad), "another network namespace")

	held := OpenJournal(filepath.Join(dir, "held"))
	if err := held.lock(); err != nil {
		t.Fatal(err)
	}
	f(OpenJournal(filepath.Join(dir, "held")), "another weir tune")
	held.unlock()
}

// A boot ends what was applied: values from before it are not written into this one.
func TestAJournalOfAnEarlierBootIsOver(t *testing.T) {
	root := newRoot(t, map[string]string{"a": "1\n"})
	s, path := System{Root: root}, filepath.Join(t.TempDir(), "j")
	old := []byte(`{"version":1,"network_namespace":"net:[1]","boot_id":"another","entries":[{"target":"/a","before":"7","after":"1","done":true}]}`)
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := Undo(s, OpenJournal(path), false); err != nil || changed != nil {
		t.Errorf("%+v %v", changed, err)
	}
	if OpenJournal(path).Has() {
		t.Error("the journal is still there")
	}
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(s, OpenJournal(path), []Step{{Target: "/a", Value: "2"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(s, OpenJournal(path), false); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Load("/a"); got != "1" {
		t.Errorf("/a is %s, want 1 as before this apply", got)
	}
}

func TestAStepThatFailsDoesNotStopTheOthers(t *testing.T) {
	root := newRoot(t, map[string]string{"a": "1\n", "b": "1\n"})
	s := refusing{System{Root: root}}
	j := OpenJournal(filepath.Join(t.TempDir(), "j"))
	changed, err := Apply(s, j, []Step{{Target: "/a", Value: "2"}, {Target: "/b", Value: "2"}})
	if !errors.Is(err, ErrIncomplete) || len(changed) != 2 || changed[0].Err == "" || changed[1].Err != "" {
		t.Fatalf("%v %+v", err, changed)
	}
	if _, err := Undo(s.System, j, false); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Load("/b"); got != "1" {
		t.Errorf("/b is %s", got)
	}
}

// refusing refuses to change /a.
type refusing struct{ System }

func (r refusing) Save(target, value string) error {
	if target == "/a" {
		return fs.ErrPermission
	}
	return r.System.Save(target, value)
}
