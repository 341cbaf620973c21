package nats

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// copies are three replicas of a log. What was published meanwhile is counted by those that
// have applied it.
type copies struct {
	r       *rand.Rand
	at      [3]int // messages after the stretch
	stretch [3]int // in it, as each copy counts
	// burst is how many messages come at once, which one copy after the other applies, each
	// time with one of so many answers; 0 means that nothing is published.
	burst, every int
	silent       int // the copy that is suspended; 3 for none
}

// answer is a count by whichever copy gets the request: of what follows the beginning of the
// stretch, or its end.
func (c *copies) answer(first bool) *page {
	if c.burst > 0 && c.r.IntN(c.every) == 0 {
		least := c.at[0]
		for _, n := range c.at {
			least = min(least, n)
		}
		if i := c.r.IntN(3); c.at[i] <= least+c.burst {
			c.at[i] += c.burst
		}
	}
	i := c.r.IntN(3)
	if i == c.silent {
		return nil
	}
	n := c.at[i]
	if first {
		n += c.stretch[i]
	}
	return &page{pending: uint64(n)}
}

// compare is what reader.compare does.
func (c *copies) compare() comparison {
	got, pairs := comparison{}, pairsAtFirst
	for range maxRounds {
		var pages []*page
		for i := range pairs + 1 {
			pages = append(pages, c.answer(i%2 == 0))
		}
		got.add(pages)
		if _, known := got.most(); known {
			break
		}
		pairs = pairsMore
	}
	return got
}

// Whatever copies answer and however much is published meanwhile, a stretch that lacks a
// message is not taken for one that is whole.
func TestCopiesAreCompared(t *testing.T) {
	const runs = 300
	f := func(name string, burst, every, silent int, stretch [3]int, read int, exceeds bool, permille int) {
		t.Helper()
		wrong, pairs := 0, 0
		for seed := range uint64(runs) {
			c := &copies{r: rand.New(rand.NewPCG(seed, 1)), burst: burst, every: every, silent: silent, stretch: stretch, at: [3]int{400, 400, 400}}
			got := c.compare()
			for _, n := range got {
				pairs += n
			}
			if got.exceeds(read) != exceeds {
				wrong++
			}
		}
		if wrong*1000 > permille*runs {
			t.Errorf("%s, %d messages each %d. answer: %d of %d comparisons are wrong", name, burst, every, wrong, runs)
		}
		t.Logf("%s, %d messages each %d. answer: %d pairs, %d wrong", name, burst, every, pairs/runs, wrong)
	}
	all := [3]int{100, 100, 100}
	for _, load := range []struct{ burst, every int }{{0, 1}, {8, 20}, {1, 5}, {8, 5}} {
		f("whole", load.burst, load.every, 3, all, 100, false, 20) // then it is read again
		f("a message is left out, but counted", load.burst, load.every, 3, all, 99, true, 1)
		f("the copy that was read does not count it", load.burst, load.every, 3, [3]int{100, 99, 100}, 99, true, 60)
		f("another copy does not count it", load.burst, load.every, 3, [3]int{100, 99, 100}, 100, false, 300) // the same
		f("whole, one is suspended", load.burst, load.every, 2, all, 100, false, 20)
		f("left out, one is suspended", load.burst, load.every, 2, all, 99, true, 1)
	}
}

func TestMergeKeepsOrder(t *testing.T) {
	seqs := func(ms []stored) (out []uint64) {
		for _, m := range ms {
			out = append(out, m.seq)
		}
		return out
	}
	of := func(seqs ...uint64) (ms []stored) {
		for _, s := range seqs {
			ms = append(ms, stored{seq: s})
		}
		return ms
	}
	f := func(a, b []stored, want ...uint64) {
		t.Helper()
		if got := seqs(merge(a, b)); !slices.Equal(got, want) {
			t.Errorf("merged %v and %v to %v", seqs(a), seqs(b), got)
		}
	}
	f(of(1, 3, 9), of(1, 2, 3, 9), 1, 2, 3, 9)
	f(of(2), of(1, 3), 1, 2, 3)
	f(nil, of(4), 4)
	f(of(4), nil, 4)
}
