package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// line is what the go command writes of a test of package p; without a name, of the package.
func line(action, test, output string) string {
	b, _ := json.Marshal(event{Action: action, Package: "p", Test: test, Output: output})
	return string(b) + "\n"
}

func TestWhatMayRunOnceMore(t *testing.T) {
	f := func(passed, failed int, again []string, final bool, events ...string) {
		t.Helper()
		y := newTally(&strings.Builder{}, false)
		if err := y.read(strings.NewReader(strings.Join(events, ""))); err != nil {
			t.Fatal(err)
		}
		if y.passed != passed || y.failed != failed || !slices.Equal(y.again, again) || y.final != final {
			t.Errorf("%d passed, %d failed, again %q, final %v; want %d, %d, %q, %v", y.passed, y.failed, y.again, y.final, passed, failed, again, final)
		}
	}
	passes, fails, end := line("pass", "TestA", ""), line("fail", "TestB", ""), line("fail", "", "")
	says := func(text string) string { return line("output", "TestB", text+"\n") }
	f(1, 1, []string{"p TestB"}, false, passes, says("b_test.go:1: no"), fails, end)
	f(1, 1, []string{"p TestB"}, true, passes, says("WARNING: DATA RACE"), fails, end)
	f(1, 1, []string{"p TestB"}, true, passes, says("panic: nil map"), fails, end)
	f(1, 1, []string{"p TestB"}, true, passes, line("skip", "TestB", ""), end)
	f(1, 1, nil, true, passes, line("output", "TestB", "fatal error: all goroutines are asleep"), end)
	f(0, 1, nil, true, end)
	// The package is lost: all that has not passed runs once more.
	const goexit = "panic: test executed panic(nil) or runtime.Goexit [recovered, repanicked]"
	f(1, 1, []string{"p . ^(TestA)$"}, false, passes, line("fail", "TestB/part", ""), says(goexit), fails, line("fail", "TestC", ""), end)
	f(1, 1, []string{"p . ^(TestA)$"}, false, passes, says("panic: test timed out after 10m0s"), end)
	f(0, 1, []string{"p . ^()$"}, false, says(goexit), end)
	f(1, 1, []string{"p . ^(TestA)$"}, true, passes, says(goexit), line("output", "TestC", "WARNING: DATA RACE\n"), end)
	// A process of a test's own may be lost without the package.
	f(1, 1, []string{"p TestB"}, false, passes, says("    "+goexit), fails, end)
}
