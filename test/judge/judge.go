// Package judge runs the real binary for the tests of test/conformance and
// test/e2e: it builds it, writes its configuration, starts, kills and restarts
// it, and has small independent clients that share no code with what they judge.
//
// Its functions take the test and fail it: there is nobody to return an error to.
package judge

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Root returns the module's directory.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		panic("judge: build the tests without -trimpath: they read files of the source tree")
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

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
}

// A Build says which of the two binaries.
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

// Binary builds weir once per test process and returns its path. JUDGED_BINARY
// names another one to judge, for both kinds.
func Binary(t testing.TB, kind Build) string {
	t.Helper()
	if path := os.Getenv("JUDGED_BINARY"); path != "" {
		return path
	}
	b := &builds[kind]
	b.once.Do(func() {
		// One name per test process: two of them may build at the same time.
		b.path = Path(".cache", "bin", fmt.Sprintf("weir-%d-%d", kind, os.Getpid()))
		args, env := []string{"build", "-o", b.path}, os.Environ()
		if kind == Race {
			args = append(args, "-race")
		} else {
			env = append(env, "CGO_ENABLED=0")
		}
		args = append(args, "./cmd/weir")
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = Root(), env
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

// Descriptors raises this process's limit on open files to n at least. Processes
// that it starts inherit it.
func Descriptors(t testing.TB, n uint64) {
	t.Helper()
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

// Cleanup removes what Binary and Tool built. Call it at the end of TestMain.
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

// Eventually waits until ok holds and fails the test with what after the bound.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", within, what)
		case <-tick.C:
		}
	}
}
