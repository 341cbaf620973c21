package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/test/judge"
)

var (
	long   = flag.Bool("chaos", false, "every row in its long form, not a few in the short one")
	only   = flag.String("rows", "", "the `numbers` of the rows to run, separated by commas; empty: all")
	runs   = flag.Int("runs", 0, "how often a fault is injected where the row does not say less; 0: as the row says")
	spend  = flag.Duration("for", 0, "how long a row of killed nodes injects further faults; 0: until it has done so as often as it says")
	share  = flag.Float64("share", 1, "the share of the row's clients that there are")
	seed   = flag.Uint64("seed", 0, "seed of the random choices; 0: another one each time")
	output = flag.String("table", "", "the `file` whose table is written anew")
)

func TestMain(m *testing.M) {
	if config := os.Getenv(natsRole); config != "" {
		os.Exit(serveNATS(config))
	}
	flag.Parse()
	os.Exit(judge.Main(m))
}

// A row is one line of the table.
type row struct {
	number int
	fault  string
	short  bool // CI runs it
	root   bool // needs the rights of root
	run    func(c *trial)
}

// A trial is a row that runs, and what it found.
type trial struct {
	*testing.T
	row  row
	rng  *rand.Rand
	seed uint64

	began   time.Time // when the row began; for -for, when its load was served
	faults  int
	proof   string // that the faults happened
	reports []*history.Report
	outages []time.Duration // from a fault until publications are acknowledged again
	resumes []time.Duration // from a fault until a subscriber is served again
	rss     [2]int64        // before, and the most after
	notes   []string

	dir  string // see TempDir; empty until the first one
	dirs int
}

// TempDir is a directory of the row's own. It is removed at the row's end, unless the row fails: the logs of nodes and
// the data of NATS servers are what its cause is looked for in.
func (c *trial) TempDir() string {
	c.Helper()
	if c.dir == "" {
		dir, err := os.MkdirTemp("", fmt.Sprintf("weir-chaos-%d-", c.row.number))
		if err != nil {
			c.Fatal(err)
		}
		c.dir = dir
		c.Cleanup(func() {
			if c.Failed() {
				c.Logf("logs and data are kept in %s", dir)
				return
			}
			if err := os.RemoveAll(dir); err != nil {
				c.Error(err)
			}
		})
	}
	c.dirs++
	dir := filepath.Join(c.dir, strconv.Itoa(c.dirs))
	if err := os.Mkdir(dir, 0o700); err != nil {
		c.Fatal(err)
	}
	return dir
}

// times is how often the row injects its fault: n in the long form, few in the short one.
func (c *trial) times(n int) int {
	switch {
	case !*long:
		return 1
	case *runs > 0:
		return min(n, *runs)
	}
	return n
}

// over reports whether the row has spent its time on faults; at least one is injected.
func (c *trial) over() bool { return *spend > 0 && c.faults > 0 && time.Since(c.began) > *spend }

// size is how many clients there are: n in the long form.
func (c *trial) size(n int) int {
	if !*long {
		return 20
	}
	return max(int(float64(n)**share), 20)
}

// between is a random time.
func (c *trial) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.rng.Int64N(int64(most-least)))
}

// pause lets time pass: the length of a fault, or the random instant of one.
func (c *trial) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}

func (c *trial) note(format string, a ...any) { c.notes = append(c.notes, fmt.Sprintf(format, a...)) }

func TestChaos(t *testing.T) {
	chosen := map[string]bool{}
	for n := range strings.SplitSeq(*only, ",") {
		if n != "" {
			chosen[n] = true
		}
	}
	var lines []string
	for _, r := range rows {
		if !*long && !r.short || len(chosen) > 0 && !chosen[strconv.Itoa(r.number)] {
			continue
		}
		c := &trial{row: r, seed: *seed, began: time.Now()}
		if c.seed == 0 {
			c.seed = uint64(time.Now().UnixNano())
		}
		c.rng = rand.New(rand.NewPCG(c.seed, uint64(r.number)))
		t.Run(fmt.Sprintf("%d %s", r.number, r.fault), func(t *testing.T) {
			c.T = t
			if r.root && os.Geteuid() != 0 {
				t.Skip("only root can inject this fault")
			}
			t.Logf("repeat it with: go test ./test/chaos -chaos=%v -rows %d -seed %d", *long, r.number, c.seed)
			defer func() { lines = append(lines, c.line()) }()
			r.run(c)
			if c.faults == 0 || c.proof == "" {
				t.Error("the row does not prove that its fault happened")
			}
		})
	}
	if *output != "" {
		write(t, *output, lines)
	}
}

// line is the row's line of the table.
func (c *trial) line() string {
	sum := func(k history.Kind) (n int) {
		for _, r := range c.reports {
			n += r.Count(k)
		}
		return n
	}
	published, received, gaps, excused, wrong := 0, 0, 0, 0, 0
	for _, r := range c.reports {
		published, received, gaps, excused = published+r.Published, received+r.Received, gaps+r.Gaps, excused+r.Excused
		for _, f := range r.Faults {
			wrong += f.Count
		}
	}
	verdict := "holds"
	if c.Failed() {
		verdict = "**fails**"
	}
	messages, memory := "– | – | –", "–"
	if len(c.reports) > 0 {
		others := wrong - sum(history.Lost) - sum(history.Hole) - sum(history.Repeated) - sum(history.Reordered)
		messages = fmt.Sprintf("%d / %d | %d, %d, %d, %d | %d (%d)", published, received, sum(history.Lost), sum(history.Repeated), sum(history.Reordered), others, gaps, excused)
	}
	if c.rss[0] > 0 {
		memory = fmt.Sprintf("%d → %d", c.rss[0]>>20, c.rss[1]>>20)
	}
	notes := strings.Join(c.notes, "; ")
	c.Logf("proof: %s; %s; outages %s, resumes %s", c.proof, notes, spread(c.outages), spread(c.resumes))
	return fmt.Sprintf("| %d | %s | %d | %s | %s | %s | %s | %s | %s | %s | %d |",
		c.row.number, c.row.fault, c.faults, c.proof, messages, spread(c.outages), spread(c.resumes), memory, notes, verdict, c.seed)
}

// spread is the median and the 99th percentile, in seconds.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "–"
	}
	all = slices.Sorted(slices.Values(all))
	at := func(q float64) float64 { return all[min(int(q*float64(len(all))), len(all)-1)].Seconds() }
	return fmt.Sprintf("%.2f, %.2f", at(0.5), at(0.99))
}

const (
	tableBegin = "<!-- chaos: make chaos -->\n"
	tableEnd   = "<!-- end of chaos -->"
	tableHead  = "| # | fault | faults | proof | published / received | lost, repeated, reordered, other | gaps (messages) | publish outage p50, p99 (s) | resume p50, p99 (s) | RSS MiB | besides | verdict | seed |\n|---:|---|---:|---|---|---|---|---|---|---|---|---|---|\n"
)

// write puts the lines into the table of a page, in place of those of the same rows.
func write(t *testing.T, file string, lines []string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), tableBegin)
	old, tail, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	number := func(line string) int {
		n, _ := strconv.Atoi(strings.TrimSpace(strings.Split(line+"||", "|")[1]))
		return n
	}
	all := map[int]string{}
	for line := range strings.SplitSeq(old+"\n"+strings.Join(lines, "\n"), "\n") {
		if n := number(line); n > 0 {
			all[n] = line
		}
	}
	var b strings.Builder
	b.WriteString(head + tableBegin + tableHead)
	for _, n := range slices.Sorted(func(yield func(int) bool) {
		for n := range all {
			if !yield(n) {
				return
			}
		}
	}) {
		b.WriteString(all[n] + "\n")
	}
	b.WriteString(tableEnd + tail)
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
