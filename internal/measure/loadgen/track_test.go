package loadgen

import (
	"math/rand/v2"
	"testing"
)

// follow feeds seqs to a track that expects everything after base, settles, and
// returns the counts.
type followed struct{ fresh, reordered, found, repeated, early, lost int }

func follow(base uint64, seqs ...uint64) (n followed) {
	var t track
	t.start(base)
	lost := func(lo, hi uint64) { n.lost += int(hi - lo + 1) }
	for _, s := range seqs {
		switch t.came(s, lost) {
		case fresh:
			n.fresh++
		case reordered:
			n.reordered++
		case found:
			n.found++
			n.lost--
		case repeated:
			n.repeated++
		case early:
			n.early++
		}
	}
	t.abandon(0, lost)
	return n
}

func TestTrackCounts(t *testing.T) {
	f := func(want followed, base uint64, seqs ...uint64) {
		t.Helper()
		if got := follow(base, seqs...); got != want {
			t.Errorf("after %d, %v: %+v, want %+v", base, seqs, got, want)
		}
	}
	f(followed{fresh: 3}, 0, 1, 2, 3)
	f(followed{fresh: 2, lost: 1}, 0, 1, 3)
	f(followed{fresh: 1, lost: 1}, 0, 2)
	f(followed{fresh: 3, repeated: 2}, 0, 1, 2, 2, 3, 1)
	f(followed{fresh: 2, reordered: 1}, 0, 1, 3, 2)
	f(followed{fresh: 2, early: 2}, 10, 9, 11, 10, 12)
	f(followed{fresh: 2, lost: 998}, 0, 1, 1000)
	f(followed{fresh: 2, lost: 63}, 0, 1, 65)
	f(followed{fresh: 2, lost: 64}, 0, 1, 66)
	f(followed{fresh: 3, lost: 997, found: 1}, 0, 1, 1000, 1001, 5)
	f(followed{fresh: 3, lost: 98, reordered: 1}, 0, 1, 101, 100, 102)
	f(followed{fresh: 1, lost: 1<<40 - 2}, 0, 1<<40-1)
}

func TestTrackAgreesWithASet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		// Within the window a set can say everything.
		var want followed
		seen := map[uint64]bool{}
		high := uint64(0)
		var seqs []uint64
		for range 200 {
			s := high + 1 + uint64(r.IntN(4))
			if r.IntN(3) == 0 && high > 0 {
				s = high - uint64(r.IntN(int(min(high, 60))))
			}
			seqs = append(seqs, s)
			switch {
			case seen[s]:
				want.repeated++
			case s > high:
				want.fresh++
			default:
				want.reordered++
			}
			seen[s] = true
			high = max(high, s)
		}
		want.lost = int(high) - len(seen)
		if got := follow(0, seqs...); got != want {
			t.Fatalf("%v: %+v, want %+v", seqs, got, want)
		}
	}
}

func TestUnacknowledgedIsNotLost(t *testing.T) {
	f := newFlows(2, 1)
	for _, s := range []uint64{5, 6, 8, 7, 20, 5} {
		f.fail(1, s)
	}
	check := func(flow int, lo, hi, want uint64) {
		t.Helper()
		if got := f.acknowledged(flow, lo, hi); got != want {
			t.Errorf("flow %d, %d to %d: %d acknowledged, want %d", flow, lo, hi, got, want)
		}
	}
	check(1, 1, 10, 6)
	check(1, 6, 7, 0)
	check(1, 19, 21, 2)
	check(0, 1, 10, 10)
}

// TestRefusalsWithoutEndAreNotLost refuses every other one of many, and compares ranges with
// a count of each.
func TestRefusalsWithoutEndAreNotLost(t *testing.T) {
	const many = 1_000_000
	f := newFlows(1, 2)
	refused := func(seq uint64) bool { return seq%2 == 0 || seq%4099 == 0 }
	for seq := uint64(1); seq <= many; seq++ {
		if refused(seq) {
			f.fail(1, seq)
		}
	}
	r := rand.New(rand.NewPCG(3, 1))
	for range 300 {
		lo := 1 + r.Uint64N(many)
		hi := lo + r.Uint64N(min(20_000, many-lo+1))
		want := uint64(0)
		for seq := lo; seq <= hi; seq++ {
			if !refused(seq) {
				want++
			}
		}
		if got := f.acknowledged(1, lo, hi); got != want {
			t.Fatalf("%d to %d: %d acknowledged, want %d", lo, hi, got, want)
		}
	}
	if got := f.acknowledged(0, 1, many); got != many {
		t.Errorf("of another flow: %d acknowledged, want %d", got, many)
	}
}

func TestWorstFindsTheMessageMostMissed(t *testing.T) {
	got := worst([]miss{{1, 1, 10}, {1, 5, 6}, {1, 6, 20}, {1, 11, 12}, {2, 1, 1}, {2, 2, 2}})
	if got[1] != 3 || got[2] != 1 || len(got) != 2 {
		t.Errorf("%v, want 3 for flow 1 and 1 for flow 2", got)
	}
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	var q queue[int]
	next, want := 0, 0
	r := rand.New(rand.NewPCG(5, 5))
	for range 10_000 {
		if r.IntN(5) < 3 {
			q.push(next)
			next++
		} else if v, ok := q.pop(); ok {
			if v != want {
				t.Fatalf("got %d, want %d", v, want)
			}
			want++
		} else if q.len() != 0 {
			t.Fatal("an empty queue has a length")
		}
	}
	if q.len() != next-want {
		t.Errorf("length %d, want %d", q.len(), next-want)
	}
}
