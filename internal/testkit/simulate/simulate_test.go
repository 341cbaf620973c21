package simulate

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	scheduleCount = flag.Int("schedules", shortForm, "how many schedules TestSchedulesHoldTheirPromises runs")
	oneSeed       = flag.Uint64("seed", 0, "the one seed to run, with its trace; 0: those from -first on")
	firstSeed     = flag.Uint64("first", 1, "the first seed")
	onePlant      = flag.Int("plant", 0, "a number of the table in plant_test.go: build that bug in; 0: none")
)

// repeats is how often one seed is run: the order of goroutines may differ.
const repeats = 10

// A schedule is what a run does. Each operation has a seed of its own, so that the others mean
// the same when some are left out.
type schedule struct {
	seed uint64
	ops  []op
}

type op struct {
	kind kind
	seed uint64
}

func newSchedule(seed uint64) schedule {
	r := rand.New(rand.NewPCG(seed, 1))
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	s := schedule{seed: seed}
	for range 40 + r.IntN(110) {
		n, k := r.IntN(sum), kind(0)
		for n >= kinds[k].weight {
			n -= kinds[k].weight
			k++
		}
		s.ops = append(s.ops, op{k, r.Uint64()})
	}
	return s
}

// run plays s in a bubble of fake time.
func run(t *testing.T, sh *shared, s schedule, p plant, trace bool) *world {
	t.Helper()
	var w *world
	synctest.Test(t, func(*testing.T) {
		w = newWorld(s.seed, p, sh)
		w.tracing = trace
		w.play(s)
	})
	return w
}

// shrink leaves out operations as long as a violation is left.
func shrink(t *testing.T, sh *shared, s schedule, p plant) schedule {
	t.Helper()
	budget := 400
	for size := max(len(s.ops)/2, 1); budget > 0; {
		smaller := false
		for from := 0; from < len(s.ops) && budget > 0; {
			try := schedule{s.seed, slices.Concat(s.ops[:from], s.ops[min(from+size, len(s.ops)):])}
			budget--
			if run(t, sh, try, p, false).failed() {
				s, smaller = try, true
			} else {
				from += size
			}
		}
		if size == 1 && !smaller {
			break
		}
		size = max(size/2, 1)
	}
	return s
}

// report describes a violation: the seed, the shortest schedule found, and its trace.
func report(t *testing.T, sh *shared, s schedule, p plant) {
	t.Helper()
	short := shrink(t, sh, s, p)
	w := run(t, sh, short, p, true)
	for n := 1; n < repeats && !w.failed(); n++ {
		w = run(t, sh, short, p, true)
	}
	var b strings.Builder
	for i, o := range short.ops {
		fmt.Fprintf(&b, "%3d %s\n", i, kinds[o.kind].name)
	}
	t.Errorf("seed %d: %s\n%d of %d operations are left:\n%s\ntrace, on %+v:\n%s\n\nmake simulate SIMULATE=\"-seed %d\"",
		s.seed, w.violation, len(short.ops), len(s.ops), b.String(), w.setup, strings.Join(w.trace, "\n"), s.seed)
}

// A tally sums what the runs did.
type tally struct {
	mu        sync.Mutex
	next      uint64
	last      uint64
	runs      int
	acked     int
	read      int
	done      [numKinds]int
	gaps      map[string]int
	failed    []uint64
	began     time.Time
	announced time.Time
}

// nextSeed returns the next seed.
func (c *tally) nextSeed() (seed uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next > c.last || len(c.failed) > 0 {
		return 0, false
	}
	c.next++
	return c.next - 1, true
}

// add counts a run. It returns a line about the progress every few seconds.
func (c *tally) add(seed uint64, w *world) (progress string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs++
	c.acked += w.acked
	for _, x := range w.clients {
		c.read += x.messages
	}
	for i, n := range w.done {
		c.done[i] += n
	}
	for reason, n := range w.gaps {
		c.gaps[reason] += n
	}
	if w.failed() {
		c.failed = append(c.failed, seed)
	}
	if time.Since(c.announced) < 5*time.Second {
		return ""
	}
	c.announced = time.Now()
	return c.String()
}

// String is the rate and what was covered.
func (c *tally) String() string {
	return fmt.Sprintf("%d schedules, %.0f/s: %d publications acknowledged, %d messages read, gap events %v",
		c.runs, float64(c.runs)/time.Since(c.began).Seconds(), c.acked, c.read, c.gaps)
}

// coverage is how often each operation did something.
func (c *tally) coverage() string {
	var b strings.Builder
	for i, k := range kinds {
		fmt.Fprintf(&b, "%22s %d\n", k.name, c.done[i])
	}
	return b.String()
}

func TestSchedulesHoldTheirPromises(t *testing.T) {
	sh, err := newShared()
	if err != nil {
		t.Fatal(err)
	}
	p := plant(*onePlant)
	if *oneSeed != 0 {
		s := newSchedule(*oneSeed)
		for range repeats {
			if run(t, sh, s, p, false).failed() {
				report(t, sh, s, p)
				return
			}
		}
		t.Logf("seed %d holds, %d times", *oneSeed, repeats)
		return
	}
	c := &tally{next: *firstSeed, last: *firstSeed + uint64(*scheduleCount) - 1, gaps: map[string]int{}, began: time.Now(), announced: time.Now()}
	t.Run("schedules", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for seed, ok := c.nextSeed(); ok; seed, ok = c.nextSeed() {
					if line := c.add(seed, run(t, sh, newSchedule(seed), p, false)); line != "" {
						t.Log(line)
					}
				}
			})
		}
	})
	t.Log(c.String())
	t.Log("operations that did something:\n" + c.coverage())
	for i, n := range c.done {
		if n == 0 && len(c.failed) == 0 && *scheduleCount >= 1000 {
			t.Errorf("no schedule has a %q that does something", kinds[i].name)
		}
	}
	if len(c.failed) > 0 {
		report(t, sh, newSchedule(slices.Min(c.failed)), p)
	}
}

// TestPlantedBugsAreFound builds each bug of the table in.
func TestPlantedBugsAreFound(t *testing.T) {
	const within = 1000
	sh, err := newShared()
	if err != nil {
		t.Fatal(err)
	}
	for p := none + 1; p < numPlants; p++ {
		t.Run(plants[p], func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= within; seed++ {
				if w := run(t, sh, newSchedule(seed), p, false); w.failed() {
					t.Logf("found with seed %d: %s", seed, w.violation)
					return
				}
			}
			t.Errorf("not found by %d schedules", within)
		})
	}
}

// TestAScheduleIsReplayable compares the traces of two runs of a seed. Which of two goroutines
// comes first is not in the hands of a schedule, so that a few may differ.
func TestAScheduleIsReplayable(t *testing.T) {
	sh, err := newShared()
	if err != nil {
		t.Fatal(err)
	}
	const seeds = 20
	same := 0
	for seed := uint64(1); seed <= seeds; seed++ {
		first, second := run(t, sh, newSchedule(seed), none, true), run(t, sh, newSchedule(seed), none, true)
		if len(first.trace) == 0 {
			t.Fatalf("seed %d has no trace", seed)
		}
		if slices.Equal(first.trace, second.trace) {
			same++
		}
	}
	if same < seeds/2 {
		t.Errorf("%d of %d seeds had the same trace twice", same, seeds)
	}
}

// TestAViolationIsShrunk needs a planted bug to be found again in a shorter schedule.
func TestAViolationIsShrunk(t *testing.T) {
	sh, err := newShared()
	if err != nil {
		t.Fatal(err)
	}
	for seed := uint64(1); ; seed++ {
		s := newSchedule(seed)
		if !run(t, sh, s, hideGap, false).failed() {
			continue
		}
		short := shrink(t, sh, s, hideGap)
		if len(short.ops) >= len(s.ops)/2 || !run(t, sh, short, hideGap, false).failed() {
			t.Errorf("seed %d: %d of %d operations are left", seed, len(short.ops), len(s.ops))
		}
		return
	}
}
