// Package judge runs the real binary for the tests of test/conformance and
// test/e2e: it builds it, writes its configuration, starts, kills and restarts
// it, and has small independent clients that share no code with what they judge.
//
// Its functions take the test and fail it: no caller would handle an error.
package judge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Root returns the module's directory.
func Root() string { return root() }

// root looks for it from the test's own directory on: the program may be built without the names
// of its sources. Modules within it have a go.mod as well, but no settings of the linter.
var root = sync.OnceValue(func() string {
	dir, err := os.Getwd() // go test starts a test in its package's directory
	if err != nil {
		panic(err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, ".golangci.yml")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			panic("judge: " + dir + " is not in the source tree, of which the tests read files")
		}
	}
})

// Path returns the absolute path of a file of the module.
func Path(elem ...string) string { return filepath.Join(append([]string{Root()}, elem...)...) }

// Need installs the named parts of test/install.sh and fails the test with the
// script's words when one cannot be had. It never skips.
func Need(t testing.TB, parts ...string) {
	t.Helper()
	cmd := exec.Command("bash", append([]string{Path("test", "install.sh")}, parts...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("a judge is missing: %s", strings.TrimSpace(string(out)))
	}
	ownNode()
}

// ownNode puts the Node that test/install.sh may have installed first in PATH.
var ownNode = sync.OnceFunc(func() {
	dir := Path(".cache", "node", "bin")
	if _, err := os.Stat(dir); err == nil {
		_ = os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
})

// A Build reports which of the two binaries.
type Build int

const (
	// Race has the race detector: for correctness.
	Race Build = iota
	// Plain is what is shipped: for limits of time and memory.
	Plain
)

var builds [2]struct {
	once sync.Once
	path string
	err  error
}

// names of the builds' files.
var names = [2]string{Race: "weir-race", Plain: "weir-plain"}

// flags are those of the Makefile for what is shipped; DWARF only makes links longer.
var flags = [2][]string{
	Race:  {"-race", "-ldflags", "-w"},
	Plain: {"-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w"},
}

// cgo is what the race detector needs, and what is shipped does without. The tests may run without.
var cgo = [2]string{Race: "CGO_ENABLED=1", Plain: "CGO_ENABLED=0"}

// Binary builds weir once per test process and returns its path. JUDGED_BINARY
// names another one to judge, for both kinds.
func Binary(t testing.TB, kind Build) string {
	t.Helper()
	if path := os.Getenv("JUDGED_BINARY"); path != "" {
		return path
	}
	b := &builds[kind]
	b.once.Do(func() { b.path, b.err = build(kind) })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

// build brings the file that all test processes share up to date, one of them at a time: the
// go command links it only when its sources have changed. It returns another name of that
// file, which stays this process's when the next one builds something else.
func build(kind Build) (path string, err error) {
	shared := Path(".cache", "bin", names[kind])
	if err := os.MkdirAll(filepath.Dir(shared), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(shared+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	args := slices.Concat([]string{"build", "-o", shared}, flags[kind], []string{"./cmd/weir"})
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = Root(), append(os.Environ(), cgo[kind])
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	path = fmt.Sprintf("%s-%d", shared, os.Getpid())
	_ = os.Remove(path) // an earlier process of this number may have been killed
	return path, os.Link(shared, path)
}

var limits sync.Mutex

// Descriptors raises this process's limit on open files to n at least. Processes
// that it starts inherit it.
func Descriptors(t testing.TB, n uint64) {
	t.Helper()
	limits.Lock() // parallel tests read and raise it
	defer limits.Unlock()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	// Set in any case: the runtime gives children the limit from before its own
	// raising unless the program has set one.
	l.Cur, l.Max = max(l.Cur, n), max(l.Max, n)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatalf("%d descriptors are needed: ulimit -n %d: %v", n, n, err)
	}
}

// Cleanup removes this process's names of what Binary built, and what Tool built. Call it at the end of TestMain.
func Cleanup() {
	for i := range builds {
		if builds[i].path != "" {
			_ = os.Remove(builds[i].path)
		}
	}
	tools.Range(func(_, b any) bool {
		_ = os.Remove(b.(*tool).path)
		return true
	})
}

// errNotYet is the error of a condition that does not say why it does not hold.
var errNotYet = errors.New("it is not so")

// Eventually waits until ok holds and fails the test with what after the bound.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	Soon(t, within, what, func() error {
		if !ok() {
			return errNotYet
		}
		return nil
	})
}

// Soon is Eventually for a condition that can say why it does not hold yet: it holds when look
// returns nil. The last error is in what fails the test.
func Soon(t testing.TB, within time.Duration, what string, look func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for began := time.Now(); ; {
		err := look()
		if err == nil {
			return
		}
		// What takes long is looked at less often: many tests may wait on a busy machine.
		pause := min(max(time.Since(began)/50, 5*time.Millisecond), 100*time.Millisecond)
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s: %v", within, what, err)
		case <-time.After(pause):
		}
	}
}
