package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/lab/job"
	"github.com/weir-gateway/weir/internal/measure/lab/rung"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

var update = flag.Bool("update", false, "write testdata")

// TestMain is also the process of a rung or a job, as the program weir is.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && (os.Args[1] == "serve" || os.Args[1] == "job") {
		if err := child(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(what, name string, args []string) error {
	fs := flag.NewFlagSet(what, flag.ContinueOnError)
	listen, d := fs.String("listen", "", ""), fs.Duration("duration", 0, "")
	set := map[string]string{}
	fs.Func("set", "", func(kv string) error {
		k, v, _ := strings.Cut(kv, "=")
		set[k] = v
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	if what == "job" {
		return job.Run(context.Background(), name, job.Params{Duration: *d, Set: set}, os.Stdout)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return rung.Serve(ctx, name, *listen, set, os.Stdout)
}

// tiny is a ladder of two experiments, one of which cannot run.
func tiny() Ladder {
	return Ladder{
		Name: "tiny", Title: "T. A ladder for tests", Claim: "1 → 10", Built: "Nothing.",
		Experiments: []Experiment{{
			Name: "one", Title: "First", How: "Somehow.",
			Arms: []Arm{{Name: "slow", Title: "T0: slow", Server: "t/slow"}, {Name: "fast", Title: "T1: fast"}, {Name: "odd", Title: "Something odd"}},
			Metrics: []Metric{
				{Key: "cpu", Name: "CPU per event", Unit: report.Seconds}, {Key: "rate", Name: "Rate", Unit: report.PerSec, More: true}, {Key: "never", Name: "Never seen"},
			},
			Steps: []Step{
				{"fast", "slow", "cpu", 2, "twice as fast", "It does half."},
				{"fast", "slow", "rate", 10, "1 → 10", "It does half."},
				{"odd", "fast", "cpu", 0, "", "It is odd."},
			},
		}, {
			Name: "two", Title: "Second", How: "Not here.", Needs: func() string { return "it needs two machines" },
			Arms: []Arm{{Name: "a", Title: "A"}}, Metrics: []Metric{{Key: "cpu", Name: "CPU"}},
		}},
		Whole:  &Ref{"one", "fast", "slow", "rate"},
		Doubts: []Doubt{{"T1", "Ten times is too much.", settleClaim(Ref{"one", "fast", "slow", "rate"})}, {"T2", "Not tried.", nil}},
		NotRun: []NotRun{{"T3", "there is no such thing"}},
	}
}

// fakes measures by table: rounds of values per arm.
func fakes(_ context.Context, _ *Ladder, _ *Experiment, a Arm, round int) (Values, error) {
	noise := []float64{1, 1.02, 0.98, 1.01, 0.99}[round%5]
	switch a.Name {
	case "slow":
		return Values{"cpu": 20e-6 * noise, "rate": 1000}, nil
	case "fast":
		return Values{"cpu": 10e-6, "rate": 2000 * noise}, nil
	}
	if round == 1 {
		return nil, errors.New("it `broke`\nhere")
	}
	return Values{"cpu": 10e-6 * math.Pow(noise, 5)}, nil
}

// reading runs l with the fakes.
func reading(t *testing.T, l Ladder, o Options) *Reading {
	t.Helper()
	var got *Reading
	if err := Run(t.Context(), []Ladder{l}, o, func(r *Reading) error { got = r; return nil }); err != nil || got == nil {
		t.Fatalf("Run: %v, %v", got, err)
	}
	return got
}

func TestVerdictFollowsTheInterval(t *testing.T) {
	f := func(want Verdict, sentence, claim string, claimed float64, ratios ...float64) {
		t.Helper()
		v := stat.LogStudentInterval(ratios, 0.95)
		v.N = len(ratios)
		if got := Evaluate(v); got != want {
			t.Errorf("%v: %s, want %s", ratios, got, want)
		}
		if got := formatRatio(v); !strings.HasPrefix(got, sentence) {
			t.Errorf("%v: %q, want %q…", ratios, got, sentence)
		}
		if got := formatClaim(v, claimed); got != claim {
			t.Errorf("%v against %v: %q, want %q", ratios, claimed, got, claim)
		}
	}
	f(Worth, "worth 1.80× here (1.7", "as claimed", 1.8, 1.78, 1.8, 1.82, 1.79, 1.81)
	f(Worth, "worth 1.80× here (1.7", "less than claimed", 42.7, 1.78, 1.8, 1.82, 1.79, 1.81)
	f(Worth, "worth 1.80× here (1.7", "more than claimed", 1.1, 1.78, 1.8, 1.82, 1.79, 1.81)
	f(Worth, "worth 1.80× here (1.7", "", 0, 1.78, 1.8, 1.82, 1.79, 1.81)
	f(Worth, "worth next to nothing here: 1.01×", "less than claimed", 2, 1.009, 1.01, 1.011, 1.01, 1.01)
	f(Same, "no difference within noise (1.00×, 0.9", "too unsure to hold against it", 1, 0.98, 1, 1.02, 1.01, 0.99)
	f(Same, "no difference within noise", "too unsure to hold against it", 2, 0.3, 1.5, 4, 1, 2)
	f(Worse, "worse here: 0.50× (0.4", "less than claimed", 2, 0.5, 0.51, 0.49, 0.5, 0.5)
	f(Same, "no difference within noise (1.00×, 0.9", "less harm than claimed", 0.43, 0.98, 1, 1.02, 1.01, 0.99)
	f(Worse, "worse here: 0.20× (0.1", "more harm than claimed", 0.43, 0.2, 0.21, 0.19, 0.2, 0.2)
	f(Worth, "worth 2.00× here (1.9", "as claimed", 2, 1.99, 2, 2.01)
	f(Uncertain, "2.00× in the one round there was", "", 2, 2)
	f(Untold, "not measured", "", 2)
	v := stat.LogStudentInterval([]float64{1.99, 2, 2.01}, 0.95)
	if v.N = 3; !strings.Contains(formatRatio(v), "3 rounds, an indication only") {
		t.Errorf("three rounds are given as more than an indication: %s", formatRatio(v))
	}
}

func TestRatioPairsRoundsAndKnowsWhichWayIsBetter(t *testing.T) {
	r := reading(t, tiny(), Options{Measure: fakes})
	l := r.Ladder
	less := r.Ratio("one", l.Experiments[0].Steps[0])
	more := r.Ratio("one", l.Experiments[0].Steps[1])
	if less.N != 5 || math.Abs(less.Point-2) > 0.05 || math.Abs(more.Point-2) > 0.05 {
		t.Errorf("half the time is %v, twice the rate %v", less, more)
	}
	if odd := r.Ratio("one", l.Experiments[0].Steps[2]); odd.N != 4 {
		t.Errorf("a round that failed is counted: %v", odd)
	}
}

func TestArmsAreInterleavedAndEveryOtherRoundRunsBackwards(t *testing.T) {
	var order []string
	reading(t, tiny(), Options{Rounds: 3, Measure: func(_ context.Context, _ *Ladder, _ *Experiment, a Arm, _ int) (Values, error) {
		order = append(order, a.Name)
		return Values{"cpu": 1}, nil
	}})
	if want := strings.Fields("slow fast odd odd fast slow slow fast odd"); !slices.Equal(order, want) {
		t.Errorf("measured %v, want %v", order, want)
	}
}

// fixed makes what differs between runs the same.
func fixed(r *Reading) {
	r.Result.Started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.Result.Took, r.Result.ServerCPUs = 12, 2
	r.Result.Machine = loadgen.Machine{Weir: "devel", OS: "Some Linux", Kernel: "6.1", CPU: "A processor", CPUs: 4, MemoryMB: 1000, Go: "go1.26"}
	for i := range r.Result.Experiments {
		r.Result.Experiments[i].Steal, r.Result.Experiments[i].Pressure = 0.001, 0.25
	}
}

func TestPagesAreGolden(t *testing.T) {
	r := reading(t, tiny(), Options{Measure: fakes})
	fixed(r)
	golden(t, "tiny.md", r.Markdown())
	golden(t, "index.md", index([]Ladder{*r.Ladder, {Name: "other"}}, []*Reading{r, nil}))
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(name, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil || string(want) != got {
		t.Errorf("%s differs (%v); look at the difference, then run with -update:\n%s", name, err, got)
	}
}

func TestStoppedRunKeepsWhatItHas(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	measure := func(ctx context.Context, l *Ladder, e *Experiment, a Arm, round int) (Values, error) {
		if n++; n == 4 { // in the middle of the second round
			cancel()
			return nil, ctx.Err()
		}
		return fakes(ctx, l, e, a, round)
	}
	dir := t.TempDir()
	var got []*Reading
	err := Run(ctx, []Ladder{tiny(), tiny()}, Options{Measure: measure}, func(r *Reading) error {
		got = append(got, r)
		return r.Write(dir)
	})
	if !errors.Is(err, context.Canceled) || len(got) != 1 {
		t.Fatalf("%d results and %v", len(got), err)
	}
	r := got[0]
	if !r.Result.Partial || !strings.Contains(r.Markdown(), "ended early") || len(r.Result.Experiments[0].Arms[0].Rounds) != 1 {
		t.Errorf("result: %+v", r.Result)
	}
	again, err := Read(dir, r.Ladder)
	if err != nil || again.Markdown() != r.Markdown() {
		t.Errorf("what was written reads otherwise: %v", err)
	}
	for _, name := range []string{"tiny.md", "tiny.json", "tiny.svg"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || len(b) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

func TestFailedArmIsReportedWithItsError(t *testing.T) {
	var progress bytes.Buffer
	r := reading(t, tiny(), Options{Measure: fakes, Progress: &progress})
	if md := r.Markdown(); !strings.Contains(md, "1 of 5 rounds of something odd failed, the first with: `it 'broke' here`") {
		t.Error(md)
	}
	for _, want := range []string{"tiny/one 2/5 odd: it `broke`", "tiny/one 1/5 slow: CPU per event 20 µs", "tiny/two not run: it needs two machines"} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("progress without %q:\n%s", want, &progress)
		}
	}
}

// Definitions are data; a wrong name in them would be an empty cell in a page.
func TestLaddersNameOnlyWhatTheyHave(t *testing.T) {
	names := map[string]bool{}
	for _, l := range Ladders() {
		if names[l.Name] || l.Title == "" || l.Claim == "" || l.Built == "" || len(l.Experiments) == 0 {
			t.Errorf("ladder %q: twice, or incomplete", l.Name)
		}
		names[l.Name] = true
		if l.Whole != nil {
			if _, ok := (&Reading{Ladder: &l, Result: &Result{}}).step(*l.Whole); !ok {
				t.Errorf("%s: Whole %+v is no step", l.Name, *l.Whole)
			}
		}
		for _, e := range l.Experiments {
			checkExperiment(t, l.Name+"/"+e.Name, &e)
		}
		if _, ok := Find(strings.ToUpper(l.Name)); !ok {
			t.Errorf("%s is not found", l.Name)
		}
	}
	if _, ok := Find("nosuch"); ok {
		t.Error("a ladder nosuch is found")
	}
}

func checkExperiment(t *testing.T, where string, e *Experiment) {
	t.Helper()
	if e.Title == "" || e.How == "" || e.Measure == nil || len(e.Arms) == 0 || len(e.Metrics) == 0 {
		t.Errorf("%s is incomplete", where)
	}
	arms, keys := map[string]bool{}, map[string]bool{}
	for _, a := range e.Arms {
		known := a.Server == "weir" || a.Program != "" || slices.Contains(rung.Names(), a.Server) || slices.Contains(job.Names(), a.Job)
		if arms[a.Name] || a.Title == "" || !known {
			t.Errorf("%s: arm %q twice, without title, or of nothing there is", where, a.Name)
		}
		if s := a.Set["server"]; s != "" && !slices.Contains(rung.Names(), s) {
			t.Errorf("%s: arm %q serves %q, which there is not", where, a.Name, s)
		}
		arms[a.Name] = true
	}
	for _, m := range e.Metrics {
		keys[m.Key] = true
	}
	for _, s := range e.Steps {
		if !arms[s.Arm] || !arms[s.Base] || !keys[s.Metric] || s.Why == "" || (s.Claim > 0 && s.Claimed == "") {
			t.Errorf("%s: step %+v names what there is not, or says no reason", where, s)
		}
	}
}

func TestPagesOfEmptyResultsSayThatNothingWasMeasured(t *testing.T) {
	for _, l := range Ladders() {
		r := &Reading{Ladder: &l, Result: &Result{Version: 1, Ladder: l.Name}}
		md := r.Markdown()
		if !strings.Contains(md, "Not reached in this run.") || strings.Contains(md, "NaN") {
			t.Errorf("%s:\n%s", l.Name, md)
		}
		if measured, verdict := r.summary(); measured == "" || verdict == "" || strings.Contains(measured+verdict, "NaN") {
			t.Errorf("%s: %q, %q", l.Name, measured, verdict)
		}
	}
}

func TestDoubtsAreSettledByNumbers(t *testing.T) {
	// All arms alike: whatever claims a difference is less than claimed.
	even := func(_ context.Context, _ *Ladder, e *Experiment, _ Arm, _ int) (Values, error) {
		v := Values{"limited": 0}
		for _, m := range e.Metrics {
			v[m.Key] = 0.5
		}
		return v, nil
	}
	for _, l := range Ladders() {
		for i := range l.Experiments {
			l.Experiments[i].Needs = nil
		}
		r := reading(t, l, Options{Rounds: 4, Measure: even})
		for _, d := range l.Doubts {
			got := r.settle(d)
			if d.Settle != nil && !strings.HasPrefix(got, "upheld") && !strings.HasPrefix(got, "not upheld") && !strings.HasPrefix(got, "not settled") {
				t.Errorf("%s, %s: %q", l.Name, d.About, got)
			}
		}
		if strings.Contains(r.Markdown(), "NaN") {
			t.Errorf("%s:\n%s", l.Name, r.Markdown())
		}
	}
}

// Whatever the numbers are, no doubt says the same of all of them; and numbers that
// differ from round to round settle none.
func TestDoubtsFollowTheNumbers(t *testing.T) {
	for _, l := range Ladders() {
		for _, e := range l.Experiments {
			e.Needs = nil
		}
		for i, d := range l.Doubts {
			if d.Settle == nil {
				continue
			}
			said := map[string]bool{}
			for seed := uint64(0); seed < 150 && !(said["upheld"] && said["not upheld"]); seed++ {
				dice := rand.New(rand.NewPCG(seed, 1))
				arms := map[string]float64{} // the same in every round, so that verdicts are sure
				r := reading(t, ladderNamed(t, l.Name), Options{Rounds: 4, Measure: func(_ context.Context, _ *Ladder, e *Experiment, a Arm, _ int) (Values, error) {
					v := Values{"tw_recycle": float64(seed % 2)}
					for _, m := range e.Metrics {
						key := e.Name + " " + a.Name + " " + m.Key
						if arms[key] = cmp.Or(arms[key], 1); seed%10 > 0 && arms[key] == 1 { // every tenth: all alike
							arms[key] = math.Pow(10, dice.Float64()*8-4)
						}
						v[m.Key] = arms[key]
					}
					return v, nil
				}})
				outcome, _, _ := strings.Cut(r.settle(r.Ladder.Doubts[i]), ":")
				outcome, _, _ = strings.Cut(outcome, ",")
				said[outcome] = true
			}
			if !said["upheld"] || !said["not upheld"] {
				t.Errorf("%s, %s: 150 results are rated %v only", l.Name, d.About, slices.Sorted(maps.Keys(said)))
			}
			r := reading(t, ladderNamed(t, l.Name), Options{Rounds: 11, Measure: func(_ context.Context, _ *Ladder, e *Experiment, a Arm, round int) (Values, error) {
				v := Values{"tw_recycle": float64(round % 2)}
				arm := slices.IndexFunc(e.Arms, func(b Arm) bool { return b.Name == a.Name })
				for k, m := range e.Metrics { // between any two arms the ratio goes up and down, and by a lot
					v[m.Key] = math.Pow(10, float64((round+1)*(arm+1)*7%11+k%2)-5)
				}
				v["formula"] = 1 // is no measurement
				return v, nil
			}})
			if got := r.settle(r.Ladder.Doubts[i]); !strings.HasPrefix(got, "not settled") {
				t.Errorf("%s, %s: rounds that contradict each other settle it: %q", l.Name, d.About, got)
			}
		}
	}
}

// ladderNamed is a ladder whose experiments need nothing.
func ladderNamed(t *testing.T, name string) Ladder {
	t.Helper()
	l, ok := Find(name)
	if !ok {
		t.Fatalf("there is no ladder %q", name)
	}
	for i := range l.Experiments {
		l.Experiments[i].Needs = nil
	}
	return l
}

// The summary of a ladder, and what is compared with a claim, is the claim's own
// quantity: a rate is not evaluated by something else.
func TestClaimsAreCheckedByTheirQuantity(t *testing.T) {
	for _, l := range Ladders() {
		for _, e := range l.Experiments {
			for _, s := range e.Steps {
				m := e.metric(s.Metric)
				perSecond := strings.Contains(s.Claimed, "/s") && !strings.Contains(s.Claimed, "MB/s")
				if s.Claim > 0 && perSecond && m.Unit.Format(1) != report.PerSec.Format(1) {
					t.Errorf("%s/%s: the claim %q is tested by %q", l.Name, e.Name, s.Claimed, m.Name)
				}
			}
		}
	}
}

// A quick run's page speaks of the numbers of a quick run.
func TestQuickPagesHaveTheirOwnNumbers(t *testing.T) {
	l := ladderNamed(t, "a")
	some := func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error) { return Values{"cpu": 1e-6}, nil }
	for quick, want := range map[bool][]string{
		false: {"One event to 500 subscribers", "carries the same 20,000 deliveries"},
		true:  {"One event to 125 subscribers", "carries the same 5,000 deliveries"},
	} {
		md := reading(t, l, Options{Quick: quick, Measure: some}).Markdown()
		for _, w := range want {
			if !strings.Contains(md, w) {
				t.Errorf("quick %v: the page does not say %q", quick, w)
			}
		}
		if scaledNumber.MatchString(md) {
			t.Errorf("quick %v: the page has %q", quick, scaledNumber.FindString(md))
		}
	}
}

// A crowd that finds no room in the queue is seen in the overflows.
func TestACrowdOverflowsAShortQueue(t *testing.T) {
	if why := needsNamespace(); why != "" {
		t.Skip(why)
	}
	short := kernelArm("short", "", "c/stock", map[string]string{"net.core.somaxconn": "1", "crowd": "500"})
	r := reading(t, Ladder{Name: "short", Experiments: []Experiment{{
		Name: "short", Arms: []Arm{short}, Metrics: kernelTables, Measure: inNamespace,
	}}}, Options{Rounds: 1, Duration: time.Nanosecond}) // the crowd alone
	if v := r.Value("short", "short", "overflows"); !(v.Point > 0) {
		t.Errorf("500 clients at once at a queue of one: %v overflows; %+v", v.Point, r.Result.Experiments)
	}
	if v := r.Value("short", "short", "server_cpus"); int(v.Point) != runtime.NumCPU() {
		t.Errorf("the server had %v processors of %d", v.Point, runtime.NumCPU())
	}
}

// Between two namespaces packets take their time, and some are lost.
func TestPathDelaysLosesAndIsMeasured(t *testing.T) {
	if why := needsPath(); why != "" {
		t.Skip(why)
	}
	short := pathArm("short", "", "c/stock", map[string]string{"rtt": "0.05", "crowd": "20"})
	bulk := pathArm("bulk", "", "c/bulk", map[string]string{"mode": "bulk", "rtt": "0.01", "rate": "80000000", "loss": "0.05"})
	r := reading(t, Ladder{Name: "path", Experiments: []Experiment{{
		Name: "path", Arms: []Arm{short, bulk}, Metrics: []Metric{connectRate}, Measure: inNamespace,
	}}}, Options{Rounds: 1, Duration: 500 * time.Millisecond})
	// A connection and its request are two round trips.
	if p, e := r.Value("path", "short", "p50"), r.Value("path", "short", "errors"); !(p.Point >= 0.1) || e.Point != 0 {
		t.Errorf("50 ms there and back: P50 %v, errors %v; %+v", p.Point, e.Point, r.Result.Experiments)
	}
	if l, g := r.Value("path", "bulk", "lost_packets"), r.Value("path", "bulk", "goodput"); !(l.Point > 0) || !(g.Point > 0) || g.Point > 10e6 {
		t.Errorf("5 %% of loss on 10 MB/s: %v lost, %v B/s; %+v", l.Point, g.Point, r.Result.Experiments)
	}
}

// What a firewall's rule of states has tracked is in the table; the service is not with NOTRACK.
func TestNotrackKeepsTheServiceOutOfTheTable(t *testing.T) {
	if why := needsNamespace(); why != "" {
		t.Skip(why)
	}
	e := kernelTracking()
	r := reading(t, Ladder{Name: "tracking", Experiments: []Experiment{e}}, Options{Rounds: 1, Duration: 100 * time.Millisecond})
	if x := r.Result.Experiments[0].Arms; len(x[1].Errors) > 0 && strings.Contains(x[1].Errors[0], "nftables") {
		t.Skip(x[1].Errors[0]) // this kernel tracks no connections
	}
	for arm, want := range map[string]bool{"none": false, "tracked": true, "notrack": false} {
		if v := r.Value(e.Name, arm, "tracked"); v.N == 0 || (v.Point > 10) != want {
			t.Errorf("%s: %v entries; %+v", arm, v.Point, r.Result.Experiments)
		}
	}
}

// An arm of another program is run where that program is, and named where it is not.
func TestArmOfAnotherProgramIsRunWhereItIs(t *testing.T) {
	l := tiny()
	l.Experiments[0].Arms[2].Program = "other"
	if md := reading(t, l, Options{Measure: fakes}).Markdown(); !strings.Contains(md, "Something odd was not run: its program is a module of its own: go build -C bench/other") {
		t.Error(md)
	}
	r := reading(t, l, Options{Measure: fakes, Programs: map[string]string{"other": "/bin/other"}})
	if v := r.Value("one", "odd", "cpu"); v.N != 4 {
		t.Errorf("with its program: %v", v)
	}
}

// A page says what its servers said of themselves.
func TestProcessorsAreWhatServersHad(t *testing.T) {
	r := reading(t, ladderNamed(t, "e4"), Options{Rounds: 2, Measure: func(context.Context, *Ladder, *Experiment, Arm, int) (Values, error) {
		return Values{"connections_per_second": 1000, "server_cpus": 7}, nil
	}})
	r.Result.ServerCPUs = 1
	if md := r.Markdown(); !strings.Contains(md, "GOMAXPROCS=7") || strings.Contains(md, "GOMAXPROCS=1;") {
		t.Errorf("the page does not say that the servers had 7:\n%s", md)
	}
}

func TestNothingLeftIsReportedWithoutARatio(t *testing.T) {
	none := func(_ context.Context, _ *Ladder, _ *Experiment, a Arm, _ int) (Values, error) {
		if a.Name == "fast" {
			return Values{"cpu": 0}, nil
		}
		return Values{"cpu": 2e-6}, nil
	}
	l := tiny()
	r := reading(t, l, Options{Measure: none})
	if got := r.sentence(&l.Experiments[0], l.Experiments[0].Steps[0]); !strings.Contains(got, ": from 2 µs to 0 s here; claimed: twice as fast. ") {
		t.Error(got)
	}
}

func TestListNamesEveryLadder(t *testing.T) {
	var b bytes.Buffer
	if err := LadderTable().Text(&b, ""); err != nil {
		t.Fatal(err)
	}
	for _, l := range Ladders() {
		if !strings.Contains(b.String(), "\n"+l.Name+" ") || !strings.Contains(b.String(), l.Claim) {
			t.Errorf("%s is not in the list:\n%s", l.Name, &b)
		}
	}
}

func TestUnreadableResultIsNamed(t *testing.T) {
	dir, l := t.TempDir(), tiny()
	if r, err := Read(dir, &l); r != nil || err != nil {
		t.Errorf("nothing reads as %v, %v", r, err)
	}
	for _, text := range []string{"{", `{"version":2}`} {
		if err := os.WriteFile(filepath.Join(dir, "tiny.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir, &l); err == nil || !strings.Contains(err.Error(), "tiny.json") {
			t.Errorf("%s reads with %v", text, err)
		}
	}
}
