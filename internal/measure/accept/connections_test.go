package accept

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/capacity"
)

func TestConnectionsBeyondTheDescriptorsAreInTablesOfLoops(t *testing.T) {
	f := func(n, room int, want string) {
		t.Helper()
		if got := eventloopFor(n, room); got != want {
			t.Errorf("%d connections with room for %d: %q, want %q", n, room, got, want)
		}
	}
	f(10_000, 19_000, "eventloop: {max_conns: 11000}\n")
	f(19_000, 19_000, "eventloop: {max_conns: 20000}\n")
	f(40_000, 19_000, "eventloop: {engine: io_uring, loops: 3, max_conns: 41000}\n")
	f(80_000, 19_000, "eventloop: {engine: io_uring, loops: 5, max_conns: 81000}\n")
}

// Fewer or shorter than the target can fail, and cannot pass.
func TestFewerMixedConnectionsDecideLess(t *testing.T) {
	f := func(conns int, length time.Duration, want string) {
		t.Helper()
		p := quickPlan()
		if err := p.set(conns, length); err != nil || p.less != want {
			t.Errorf("%d for %v: %q, %v; want %q", conns, length, p.less, err, want)
		}
		ind := connections()
		e := good(&ind)
		e.Reduced = p.less
		if got, pass := ind.judge(e).Verdict, want == ""; (got == capacity.Pass) != pass {
			t.Errorf("%d for %v: %s", conns, length, got)
		}
	}
	f(0, 0, "")
	f(40_000, 0, "")
	f(0, time.Hour, "")
	f(3000, 0, "3000 connections for 5m0s, not 10000 for 5m0s")
	f(40_000, 2*time.Minute, "40000 connections for 2m0s, not 10000 for 5m0s")
	p := quickPlan()
	if err := p.again(-1); err == nil || !strings.Contains(err.Error(), "want 1 to 100") {
		t.Errorf("%v", err)
	}
	if err := p.again(2); err != nil || p.attempts != 2 {
		t.Errorf("%d attempts: %v", p.attempts, err)
	}
	for _, err := range []error{p.set(-1, 0), p.set(1, 0), p.set(0, time.Millisecond)} {
		if err == nil || !strings.Contains(err.Error(), "want 30 or more") {
			t.Errorf("%v", err)
		}
	}
}
