// Package trial is what the tests of every floor share: waiting for what must come true,
// running all tests of a package again under another setting, and a log that is seen
// with -v. Only tests import it.
package trial

import (
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Patience is for what must happen: long, for a machine under load.
const Patience = 20 * time.Second

// tick is how often a condition is looked at.
const tick = 2 * time.Millisecond

// Eventually waits until ok, which the test's own goroutine calls, and fails the test
// when it is not so within Patience.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, Patience, what, ok)
}

// Within is Eventually with a patience of the caller's.
func Within(t testing.TB, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	looks := time.NewTicker(tick)
	defer looks.Stop()
	for !ok() {
		select {
		case <-looks.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Long skips t with -short, which make test-go sets and make test does not: it takes many seconds.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: make test runs it")
	}
}

// Again runs all tests of the package in a process of its own, in which the environment
// variable named setting has a value: every claim must hold there too. In that process
// it does nothing. args are for the test binary. With -short, which make test-go sets and
// make test does not, it is skipped: the second run takes as long as the first.
func Again(t testing.TB, setting, value string, args ...string) {
	t.Helper()
	if os.Getenv(setting) != "" {
		return
	}
	Long(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), setting+"="+value)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Engine is the setting that names the engine of the event loops; empty means the
// default.
const Engine = "WEIR_TEST_ENGINE"

// Log is where a test's parts log: to the test's output with -v, otherwise nowhere.
func Log(t testing.TB) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
