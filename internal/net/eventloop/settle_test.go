package eventloop

import (
	"context"
	"testing"
)

func TestMemoryIsGivenBackAfterABurst(t *testing.T) {
	f := func(name string, want string, open int, total ...uint64) {
		t.Helper()
		var b burst
		got := ""
		for _, n := range total {
			if b.over(n, open) {
				got += "x"
			} else {
				got += "-"
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	f("nothing happens", "---", 0, 0, 0, 0)
	f("few", "---", 10, 10, 10, 10)
	f("a burst", "--x--", 5000, 3000, 5000, 5000, 5000, 5000)
	f("it continues", "----", 9000, 2000, 4000, 6000, 8000)
	f("another", "-x--x", 1000, 1000, 1000, 1500, 2000, 2000)
	f("few among many", "----x", 100_000, 5000, 5000, 12_000, 12_500, 12_500)
	f("by and by", "--------x", 500, 400, 400, 600, 600, 800, 800, 900, 1001, 1001)
}

func TestTheEndOfABurstIsSeen(t *testing.T) {
	t.Parallel()
	g, _ := serve(t, Config{Loops: 1}, echoing)
	l := g.Loops()[0]
	ctx, cancel := context.WithCancel(t.Context())
	released := 0
	l.Post(func() {
		l.n.accepted += settleAfter
	})
	settle(ctx, g, func() { released++; cancel() })
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}
