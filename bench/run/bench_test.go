package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// bin holds limit and load, built for the tests.
var bin string

func TestMain(m *testing.M) {
	beReference(os.Args)
	dir, err := os.MkdirTemp("", "weir-bench-test-")
	if err == nil {
		bin, err = dir, build(dir)
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir string) error {
	sources, err := filepath.Glob("../load/*.c")
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		append([]string{"gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, "load")}, sources...),
		{"gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, "limit"), "../limit/limit.c"},
	} {
		if err := compile(args...); err != nil {
			return err
		}
	}
	return nil
}

func compile(args ...string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// useWeir has the commands of t use program as Weir's, and that of limit for "": then no test starts it.
func useWeir(t *testing.T, program string) {
	t.Helper()
	t.Setenv("WEIR", cmp.Or(program, filepath.Join(bin, "limit")))
}

// run runs the whole command on a small load.
func run(t *testing.T, args ...string) (code int, stdout, said string) {
	t.Helper()
	var out, progress, complaint bytes.Buffer
	code, err := command(t.Context(), append([]string{"-bin", bin, "-dir", "..", "-write=false", "-n", "40", "-runs", "1", "-seconds", "0.1", "-peers", "none"}, args...), &out, &progress)
	if err != nil {
		complain(&complaint, err)
	}
	return code, out.String(), progress.String() + complaint.String()
}

func TestTheClientCountsTheSameHoweverTheStreamIsCut(t *testing.T) {
	if out, err := exec.Command(filepath.Join(bin, "load"), "--check").CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("load --check: %v: %s", err, out)
	}
}

func TestEveryScenarioRuns(t *testing.T) {
	trial.Long(t)
	weir := filepath.Join(t.TempDir(), "weir")
	if err := compile("env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", weir, "../../cmd/weir"); err != nil { // as the Makefile does
		t.Fatal(err)
	}
	useWeir(t, weir)
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.Name)
	}
	code, out, said := run(t, "-scenarios", strings.Join(names, ","))
	if code != 0 {
		t.Fatalf("exit %d:\n%s\n%s", code, said, out)
	}
	for _, s := range scenarios() {
		for _, m := range s.Metrics {
			if i := strings.Index(out, "| "+s.Name+" | "+m.Label+" | "); i < 0 {
				t.Errorf("%s has no row for %s", s.Name, m.Label)
			}
		}
	}
	if !strings.Contains(out, "internal/push.") || !strings.Contains(out, "resident, sum") {
		t.Errorf("no table of owners:\n%s", out)
	}
}

// with starts an adapter made of ours with a change.
func with(t *testing.T, name string, change func(*adapter)) *adapter {
	t.Helper()
	a, err := readAdapter("../peers", name, bin)
	if err != nil {
		t.Fatal(err)
	}
	change(a)
	return a
}

func newBench(t *testing.T) *bench {
	t.Helper()
	load, err := filepath.Abs(filepath.Join(bin, "load"))
	if err != nil {
		t.Fatal(err)
	}
	return &bench{load: load, scratch: t.TempDir(), runs: 1, seconds: 0.2, out: t.Output(), commands: map[string][]string{}}
}

func named(t *testing.T, name string) *scenario {
	t.Helper()
	chosen, err := choose(name, 40)
	if err != nil {
		t.Fatal(err)
	}
	return chosen[0]
}

func TestLostMessagesAreNoticed(t *testing.T) {
	f := func(name string, loseEvery int, want string) {
		t.Helper()
		a := with(t, "limit", func(a *adapter) { a.Args = append(a.Args, strconv.Itoa(loseEvery)) })
		sc := named(t, name)
		_, err := newBench(t).once(t.Context(), a, sc, 300, true, true)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s, nothing lost: %v", name, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s, every %dth lost: %v, want %q", name, loseEvery, err, want)
		}
	}
	f("fanout-1k", 0, "")
	f("half-1k", 1001, "messages were lost")
	f("half-1k-sse", 1001, "messages were lost")
	f("half-1k", 1, "messages were lost")
}

func TestAnUnknownReplayIsNoticed(t *testing.T) {
	forgets := with(t, "limit", func(a *adapter) { a.Args = []string{"{port}", "50"} })
	if _, err := newBench(t).once(t.Context(), forgets, named(t, "storm-replay"), 0, true, true); err == nil || !strings.Contains(err.Error(), "messages were lost") {
		t.Errorf("a server that keeps 50 of 100 missed messages: %v", err)
	}
}

func TestAMissingServerIsExplained(t *testing.T) {
	useWeir(t, filepath.Join(t.TempDir(), "nothing"))
	code, _, said := run(t, "-scenarios", "fanout-1k")
	if code != 1 || !strings.Contains(said, "hint: go build") {
		t.Errorf("exit %d: %s", code, said)
	}
}

func TestAServerThatEndsIsExplained(t *testing.T) {
	a := with(t, "limit", func(a *adapter) { a.Args = nil })
	_, err := newBench(t).start(t.Context(), a, named(t, "fanout-1k"))
	if err == nil || !strings.Contains(err.Error(), "usage: limit PORT") {
		t.Errorf("start: %v, want its last words", err)
	}
}

func TestAPortInUseIsExplained(t *testing.T) {
	useWeir(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, _, said := run(t, "-scenarios", "fanout-1k", "-port", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	if code != 1 || !strings.Contains(said, "is not free") || !strings.Contains(said, "hint: end the server that uses it") {
		t.Errorf("exit %d: %s", code, said)
	}
}

func TestTooFewDescriptorsAreExplained(t *testing.T) {
	s := &scenario{Name: "x", n: 10000}
	if err := filesFit([]*scenario{s}, 10300); err != nil {
		t.Errorf("just enough: %v", err)
	}
	err := filesFit([]*scenario{s}, 1024)
	if h, ok := errors.AsType[hint](err); !ok || !strings.Contains(h.text, "N=724") {
		t.Errorf("1,024 files: %v", err)
	}
	out, err := exec.Command("bash", "-c", `ulimit -n 100; exec "$0" --port 1 --n 200`, filepath.Join(bin, "load")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "200 subscribers need 218 descriptors, the limit is 100\nhint: raise") {
		t.Errorf("load with 100 files: %v: %s", err, out)
	}
}

func TestTheClientReportsThatNoServerListens(t *testing.T) {
	port, err := freePort(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(bin, "load"), "--port", strconv.Itoa(port), "--n", "1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Connection refused\nhint: is the server running") {
		t.Errorf("load: %v: %s", err, out)
	}
}

func TestUsageIsChecked(t *testing.T) {
	useWeir(t, "")
	f := func(want string, args ...string) {
		t.Helper()
		if code, _, said := run(t, args...); code != 2 || !strings.Contains(said, want) {
			t.Errorf("%v: exit %d: %s; want 2 and %q", args, code, said, want)
		}
	}
	f(`no scenario "fanuot"`, "-scenarios", "fanuot")
	f("-runs is from 1", "-runs", "0")
	f("not defined", "-nonsense")
}

func TestAnAbsentPeerIsSaid(t *testing.T) {
	useWeir(t, "")
	b := newBench(t)
	folder := t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, "peers"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"weir": "", "limit": "",
		"ghost": `{"name":"ghost","program":"no-such-program","install":"apt-get install ghost","ws":["--path","/"]}`,
	} {
		if text == "" {
			got, err := os.ReadFile("../peers/" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			text = string(got)
		}
		if err := os.WriteFile(filepath.Join(folder, "peers", name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	absent, err := b.find(flags{dir: folder, bin: bin, peers: "ghost"})
	if err != nil || absent["ghost"] != "not installed: apt-get install ghost" {
		t.Errorf("absent = %v, %v", absent, err)
	}
}

func TestEveryAdapterFitsTheScenarios(t *testing.T) {
	paths, err := filepath.Glob("../peers/*.json")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		a, err := parseAdapter(text)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		names = append(names, a.Name)
		a.folder = "../peers"
		if a.Name+".json" != filepath.Base(path) || a.Install == "" {
			t.Errorf("%s: name %q, install %q", path, a.Name, a.Install)
		}
		for _, sc := range scenarios() {
			options, err := a.load(sc, place{}, true)
			if err != nil && !errors.Is(err, errCannot) {
				t.Errorf("%s, %s: %v", path, sc.Name, err)
			}
			if i := slices.IndexFunc(options, func(o string) bool { return strings.Contains(o, "{batch}") || strings.Contains(o, "{port}") }); i >= 0 {
				t.Errorf("%s, %s: %s is not filled in", path, sc.Name, options[i])
			}
		}
		if err := a.write(place{dir: t.TempDir()}, scenarios()[0]); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if !slices.Contains(names, "weir") || !slices.Contains(names, "limit") {
		t.Errorf("adapters: %v", names)
	}
	if _, err := parseAdapter([]byte(`{"name":"a","program":"b","ws":["x"],"porgram":"c"}`)); err == nil {
		t.Error("a misspelt field was accepted")
	}
}

func TestUnsoundRunsAreRefused(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		m, err := parseMeasure([]byte(text))
		if err == nil {
			err = m.unsound()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	f(`{"subscribers":1,"missing":0}`, "")
	f(`{"subscribers":1,"missing":2}`, "2 messages were lost")
	f(`{"subscribers":1,"duplicated":1}`, "came twice")
	f(`{"subscribers":1,"wrong":1}`, "other messages")
	f(`{"subscribers":1,"ended":1}`, "disconnected")
	f(`{"subscribers":1,"refused":1}`, "refused")
	f(`{"subscribers":1,"reordered":5}`, "")
	f(`{}`, "no subscribers")
	f(``, "report")
}

func TestACancelledRunEndsItsServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := newBench(t)
	s, err := b.start(ctx, with(t, "limit", func(*adapter) {}), named(t, "fanout-1k"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-s.done
}
