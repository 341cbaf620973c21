package lab

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// An Outcome is what a repetition says of a page, or of one of its comparisons.
type Outcome string

// The outcomes.
const (
	// Holds: measured again, it is the same within the drift that is allowed.
	Holds Outcome = "holds"
	// Changed: it differs by more than that, beyond what noise explains.
	Changed Outcome = "changed"
	// Inconclusive: the intervals allow both, or one of the two was not measured.
	Inconclusive Outcome = "inconclusive"
)

// drift is the factor within which a ratio that is measured again still is the page's:
// another processor or another release shifts what parts of the work cost by a third.
const drift = 1.5

// A Check compares one comparison, or the outcome of one doubt, of a page with its repetition.
type Check struct {
	Experiment string `json:"experiment,omitempty"`
	Arm        string `json:"arm,omitempty"`
	Base       string `json:"base,omitempty"`
	Metric     string `json:"metric,omitempty"`
	// Doubt is what is checked instead of a comparison; "" for a comparison.
	Doubt string `json:"doubt,omitempty"`
	// Then and Now are how many times better Arm is than Base, on the page and now.
	Then    stat.Interval `json:"then"`
	Now     stat.Interval `json:"now"`
	Outcome Outcome       `json:"outcome"`
	// Why is the reason in words.
	Why string `json:"why"`
}

// A Verification is what a repetition says of a page.
type Verification struct {
	Ladder  string  `json:"ladder"`
	Title   string  `json:"title"`
	Outcome Outcome `json:"outcome"`
	// Why is the reason in words.
	Why string `json:"why"`
	// Page and Here are where it was measured then and now: build, processor, kernel. Page is
	// "" without a page.
	Page   string  `json:"page,omitempty"`
	Here   string  `json:"here"`
	Checks []Check `json:"checks"`
}

// Verify measures the ladders again and compares each with its page in dir. It hands the
// verifications to done one by one, and returns ctx's error when it ends early: what was not
// finished is not verified. A ladder without a page is not measured.
func Verify(ctx context.Context, ladders []Ladder, dir string, o Options, done func(*Verification) error) error {
	var again []Ladder
	pages := map[string]*Reading{}
	for i := range ladders {
		page, err := Read(dir, &ladders[i])
		if err != nil {
			return err
		}
		if page == nil {
			v := &Verification{Ladder: ladders[i].Name, Title: ladders[i].Title, Outcome: Inconclusive, Why: fmt.Sprintf("%s has no page of it", dir)}
			if err := done(v); err != nil {
				return err
			}
			continue
		}
		pages[ladders[i].Name] = page
		again = append(again, ladders[i])
	}
	if len(again) == 0 {
		return nil
	}
	return Run(ctx, again, o, func(now *Reading) error {
		if now.Result.Partial {
			return ctx.Err()
		}
		return done(compare(pages[now.Ladder.Name], now))
	})
}

// compare reports whether the page holds by what was measured again.
func compare(page, now *Reading) *Verification {
	l := now.Ladder
	v := &Verification{Ladder: l.Name, Title: l.Title, Page: place(page), Here: place(now)}
	whole := Holds
	for i := range l.Experiments {
		e := &l.Experiments[i]
		for _, s := range e.Steps {
			c := checkStep(page, now, e, s)
			if l.Whole != nil && *l.Whole == (Ref{e.Name, s.Arm, s.Base, s.Metric}) {
				whole = c.Outcome
			}
			v.Checks = append(v.Checks, c)
		}
	}
	for _, d := range l.Doubts {
		if d.Settle != nil {
			v.Checks = append(v.Checks, checkDoubt(d, page, now))
		}
	}
	n := map[Outcome]int{}
	for _, c := range v.Checks {
		n[c.Outcome]++
	}
	v.Why = fmt.Sprintf("%d of %d hold", n[Holds], len(v.Checks))
	if k := n[Inconclusive]; k > 0 {
		v.Why += fmt.Sprintf(", %d inconclusive", k)
	}
	switch {
	case n[Changed] > 0:
		v.Outcome, v.Why = Changed, v.Why+fmt.Sprintf(", %d changed", n[Changed])
	case whole == Inconclusive:
		v.Outcome, v.Why = Inconclusive, v.Why+", and the comparison that sums it up is one of these"
	case 2*n[Holds] < len(v.Checks):
		v.Outcome = Inconclusive
	default:
		v.Outcome = Holds
	}
	return v
}

// place says with what and where the reading was measured.
func place(r *Reading) string {
	m := r.Result.Machine
	return fmt.Sprintf("weir %s, %d CPUs (%s), Linux %s, %s", m.Weir, m.CPUs, m.CPU, m.Kernel, m.Go)
}

// checkStep compares a step of the page with the same step now.
func checkStep(page, now *Reading, e *Experiment, s Step) Check {
	c := Check{
		Experiment: e.Name, Arm: s.Arm, Base: s.Base, Metric: s.Metric,
		Then: page.Ratio(e.Name, s), Now: now.Ratio(e.Name, s), Outcome: Inconclusive,
	}
	c.Outcome, c.Why = again(c.Then, c.Now)
	switch then, is := nothing(page, e, s), nothing(now, e, s); {
	case then != "" && then == is: // there is no ratio to nothing
		c.Outcome, c.Why = Holds, then+" then and now"
		return c
	case then != "" && is != "":
		c.Outcome, c.Why = Changed, then+" then, "+is+" now"
		return c
	}
	if c.Now.N < 2 {
		if x := now.experience(e.Name); x != nil && x.NotRun != "" {
			c.Why = "not run now: " + x.NotRun
		}
	}
	return c
}

// nothing reports which side of a step was 0 in all rounds, "" where neither was.
func nothing(r *Reading, e *Experiment, s Step) string {
	zero := func(arm string) bool { v := r.Value(e.Name, arm, s.Metric); return v.N > 0 && v.Lo == 0 && v.Hi == 0 }
	switch arm, base := zero(s.Arm), zero(s.Base); {
	case arm && base:
		return "0 on both sides"
	case arm:
		return "0 with it"
	case base:
		return "0 without it"
	}
	return ""
}

// again checks two intervals of the same ratio.
func again(then, now stat.Interval) (Outcome, string) {
	text := fmt.Sprintf("%s then, %s now", measured(then), measured(now))
	switch {
	case then.N < 2:
		return Inconclusive, "the page has no ratio for it"
	case now.N < 2:
		return Inconclusive, "not measured now"
	}
	was, is := Evaluate(then), Evaluate(now)
	if was == Worth && is == Worse || was == Worse && is == Worth {
		return Changed, text + ": the opposite"
	}
	lo, hi := change(then, now)
	switch {
	case lo > drift || hi < 1/drift:
		return Changed, text + fmt.Sprintf(": a change of %s at least", times(nearest(lo, hi)))
	case lo >= 1/drift && hi <= drift:
		return Holds, text
	case then.Ratio() > now.Ratio():
		return Inconclusive, text + ": the page is too unsure to be contradicted"
	default:
		return Inconclusive, text + ": too noisy for a verdict"
	}
}

// change is the 95 % interval of now over then. The two were measured apart, so the half-widths
// of their logarithms add up as squares do.
func change(then, now stat.Interval) (lo, hi float64) {
	middle := func(v stat.Interval) float64 { return (math.Log(v.Lo) + math.Log(v.Hi)) / 2 }
	half := func(v stat.Interval) float64 { return (math.Log(v.Hi) - math.Log(v.Lo)) / 2 }
	d, w := middle(now)-middle(then), math.Hypot(half(then), half(now))
	return math.Exp(d - w), math.Exp(d + w)
}

// nearest is the end of an interval beyond 1 that is nearest to 1.
func nearest(lo, hi float64) float64 {
	if hi < 1 {
		return hi
	}
	return lo
}

// checkDoubt compares what has come of a doubt: only upheld and not upheld contradict each other.
func checkDoubt(d Doubt, page, now *Reading) Check {
	settled := func(r *Reading) string {
		verdict, _, _ := strings.Cut(r.settle(d), ":")
		verdict, _, _ = strings.Cut(verdict, ",")
		return verdict
	}
	then, is := settled(page), settled(now)
	c := Check{Doubt: d.About + ": " + d.Text, Why: then + " then, " + is + " now", Outcome: Inconclusive}
	switch firm := func(s string) bool { return s == "upheld" || s == "not upheld" }; {
	case then == is && firm(then):
		c.Outcome = Holds
	case firm(then) && firm(is):
		c.Outcome = Changed
	}
	return c
}
