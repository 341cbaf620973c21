package sys

import (
	"runtime"
	"strconv"
	"testing"
)

func TestLoopsLeaveAPToOthers(t *testing.T) {
	n := Processors()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	f := func(environment string, ps, loops, want int) {
		t.Helper()
		t.Setenv("GOMAXPROCS", environment)
		runtime.GOMAXPROCS(ps)
		if SpareP(loops); runtime.GOMAXPROCS(0) != want {
			t.Errorf("GOMAXPROCS=%q, %d Ps, %d processors, %d loops: %d Ps, want %d", environment, ps, n, loops, runtime.GOMAXPROCS(0), want)
		}
		if Processors() != n {
			t.Errorf("%d processors, started with %d", Processors(), n)
		}
	}
	f("", n, n, n+1)
	f("", n, n+3, n+1)
	f("", n, n-1, n)
	f("", n+1, n, n+1)
	f("", n+4, n, n+4)
	f(strconv.Itoa(n), n, n, n)
}
