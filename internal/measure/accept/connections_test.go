package accept

import (
	"strconv"
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
	f(10_000, 19_000, "eventloop: {max_conns: 12024}\n")
	f(19_000, 19_000, "eventloop: {max_conns: 21024}\n")
	f(40_000, 19_000, "eventloop: {engine: io_uring, loops: 3, max_conns: 42024}\n")
	f(80_000, 19_000, "eventloop: {engine: io_uring, loops: 5, max_conns: 82024}\n")
}

// Of many connections the gateway keeps 1,024 from subscribers: a bound of 1,000 beyond them refused 24 for ever.
func TestTheBoundLeavesRoomForAllSubscribers(t *testing.T) {
	for _, n := range []int{30, 10_000, 40_000, 80_000, 100_000} {
		config := eventloopFor(n, 19_000)
		_, bound, _ := strings.Cut(strings.Trim(config, "}\n"), "max_conns: ")
		got, err := strconv.Atoi(bound)
		if err != nil || got-min(got/16, 1024) < n {
			t.Errorf("%d subscribers: %q, %v", n, config, err)
		}
		if most := 19_000 + spareDescriptors - 256; n <= 19_000 && got > most { // what a limit of descriptors allows a gateway
			t.Errorf("%d subscribers: bound of %d, descriptors allow %d", n, got, most)
		}
	}
}

// The load has the same limit of descriptors as the gateway, and no tables of io_uring.
func TestClientsAreInAsManyProcessesAsTheyNeed(t *testing.T) {
	f := func(n, room, want int) {
		t.Helper()
		if got := processesFor(n, room); got != want {
			t.Errorf("%d clients with room for %d: %d processes, want %d", n, room, got, want)
		}
	}
	f(80_000, 17_600, 5)
	f(80_000, 20_000, 4)
	f(17_600, 17_600, 1)
	f(17_601, 17_600, 2)
}

// Three loads that connect at the same time share what the gateway can accept.
func TestMixedConnectionsAreMadeAtOneRate(t *testing.T) {
	sum := 0.0
	for _, s := range kindsOf("http://127.0.0.1:1", "ws://127.0.0.1:1", 80_000, 1000) {
		if s.ConnectRate <= 0 {
			t.Errorf("%s %s: no rate of its own", s.Kind, s.Target)
		}
		sum += s.ConnectRate
	}
	if sum > 3000 {
		t.Errorf("%.0f connections a second, want 3,000 at most", sum)
	}
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
		if got, pass := ind.evaluate(e).Verdict, want == ""; (got == capacity.Pass) != pass {
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
