package lab

import (
	"fmt"
	"math"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/stat"
)

// A Verdict is what an interval of ratios says.
type Verdict string

// The verdicts.
const (
	Worth     Verdict = "worth"      // better, beyond noise
	Same      Verdict = "no better"  // the interval holds 1
	Worse     Verdict = "worse"      // worse, beyond noise
	Untold    Verdict = "no result"  // no numbers
	Uncertain Verdict = "indication" // one round: a ratio without an interval
)

// slight is the ratio below which a difference that is beyond noise is still
// nothing one would build anything for.
const slight = 1.03

// Evaluate returns what the interval of ratios says.
func Evaluate(v stat.Interval) Verdict {
	switch {
	case v.N == 0 || math.IsNaN(v.Point):
		return Untold
	case v.N < 2:
		return Uncertain
	case v.Lo > 1:
		return Worth
	case v.Hi < 1:
		return Worse
	default:
		return Same
	}
}

// times writes a ratio with as many digits as mean something.
func times(x float64) string {
	switch {
	case math.IsInf(x, 0) || math.IsNaN(x):
		return "–"
	case x >= 99.5:
		return fmt.Sprintf("%.0f×", x)
	case x >= 9.95:
		return fmt.Sprintf("%.1f×", x)
	case x >= 0.095:
		return fmt.Sprintf("%.2f×", x)
	default:
		return fmt.Sprintf("%.2g×", x)
	}
}

// span writes an interval of ratios.
func span(v stat.Interval) string { return times(v.Lo) + " to " + times(v.Hi) }

// formatRatio is the verdict as the beginning of a sentence.
func formatRatio(v stat.Interval) string {
	rounds := plural(v.N, "round")
	if v.N < 4 {
		rounds += ", an indication only"
	}
	switch Evaluate(v) {
	case Untold:
		return "not measured"
	case Uncertain:
		return fmt.Sprintf("%s in the one round there was, which says little", times(v.Point))
	case Worth:
		if v.Point < slight {
			return fmt.Sprintf("worth next to nothing here: %s (%s, %s)", times(v.Point), span(v), rounds)
		}
		return fmt.Sprintf("worth %s here (%s, %s)", times(v.Point), span(v), rounds)
	case Worse:
		return fmt.Sprintf("worse here: %s (%s, %s)", times(v.Point), span(v), rounds)
	default:
		return fmt.Sprintf("no difference within noise (%s, %s; %s)", times(v.Point), span(v), rounds)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// tolerance is how far from the claim a ratio may lie and still be what was
// claimed: other machines are other machines.
const tolerance = 1.15

// formatClaim holds the ratio against the claim; "" where there is none to hold.
func formatClaim(v stat.Interval, claim float64) string {
	if claim <= 0 {
		return ""
	}
	switch Evaluate(v) {
	case Untold, Uncertain:
		return ""
	}
	switch {
	case claim < 1 && v.Hi*tolerance < claim:
		return "more harm than claimed"
	case claim < 1 && v.Lo/tolerance > claim:
		return "less harm than claimed"
	case v.Hi*tolerance < claim:
		return "less than claimed"
	case v.Lo/tolerance > claim:
		return "more than claimed"
	case Evaluate(v) == Same, v.Hi > 3*v.Lo:
		return "too unsure to hold against it"
	default:
		return "as claimed"
	}
}

// sentence is a step in words: the verdict from the numbers, then the reason.
func (r *Reading) sentence(e *Experiment, s Step) string {
	v := r.Ratio(e.Name, s)
	verdict := formatRatio(v)
	if from, to := r.Value(e.Name, s.Base, s.Metric), r.Value(e.Name, s.Arm, s.Metric); v.N == 0 && from.N > 0 && to.N > 0 {
		u := e.metric(s.Metric).Unit // one of them is 0, of which there is no ratio
		verdict = fmt.Sprintf("from %s to %s here", u.Format(from.Point), u.Format(to.Point))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**, by %s against *%s*: %s", e.arm(s.Arm).Title, inline(e.metric(s.Metric).Name), e.arm(s.Base).Title, verdict)
	switch claim := formatClaim(v, s.Claim); {
	case s.Claimed == "":
		b.WriteString(".")
	case claim == "":
		fmt.Fprintf(&b, "; claimed: %s.", s.Claimed)
	default:
		fmt.Fprintf(&b, "; claimed: %s, so %s.", s.Claimed, claim)
	}
	if s.Why != "" {
		b.WriteString(" " + s.Why)
	}
	return b.String()
}

// inline lowers the first letter of a title inside a sentence, unless it begins
// with an abbreviation or a name.
func inline(title string) string {
	if strings.HasPrefix(title, "A ") {
		return "a" + title[1:]
	}
	if len(title) > 1 && title[0] >= 'A' && title[0] <= 'Z' && title[1] >= 'a' && title[1] <= 'z' && !strings.HasPrefix(title, "Weir") {
		return strings.ToLower(title[:1]) + title[1:]
	}
	return title
}

// settleClaim answers a doubt by the claim of a step: whether it was reached.
func settleClaim(ref Ref) func(*Reading) string {
	return func(r *Reading) string {
		s, ok := r.step(ref)
		if !ok {
			return ""
		}
		v := r.Ratio(ref.Experiment, s)
		switch formatClaim(v, s.Claim) {
		case "less than claimed":
			return fmt.Sprintf("upheld: %s, claimed %s", measured(v), times(s.Claim))
		case "more than claimed":
			return fmt.Sprintf("not upheld: %s, claimed only %s", measured(v), times(s.Claim))
		case "as claimed":
			return fmt.Sprintf("not upheld: %s, claimed %s", measured(v), times(s.Claim))
		case "too unsure to hold against it":
			return fmt.Sprintf("not settled: %s is too unsure to hold against %s", measured(v), times(s.Claim))
		default:
			return ""
		}
	}
}

// settleWorth answers a doubt whether a step is worth anything.
func settleWorth(ref Ref) func(*Reading) string {
	return func(r *Reading) string {
		s, ok := r.step(ref)
		if !ok {
			return ""
		}
		v := r.Ratio(ref.Experiment, s)
		switch Evaluate(v) {
		case Worth:
			if v.Point < slight {
				return "upheld: next to nothing, " + measured(v)
			}
			return "not upheld: " + measured(v)
		case Same:
			if v.Hi > tolerance || v.Lo < 1/tolerance {
				return "not settled: " + measured(v) + " is too unsure"
			}
			return "upheld: no difference within noise, " + measured(v)
		case Worse:
			return "upheld: worse, " + measured(v)
		default:
			return ""
		}
	}
}

// outcome is a doubt's verdict: upheld, not upheld, or not settled where the numbers
// allow both.
func outcome(upheld, denied bool) string {
	switch {
	case upheld && !denied:
		return "upheld"
	case denied && !upheld:
		return "not upheld"
	default:
		return "not settled, the rounds disagree"
	}
}

// away is how far x is from the range of v; 0 inside it.
func away(v stat.Interval, x float64) float64 { return max(v.Lo-x, x-v.Hi, 0) }

// farthest is how far x is from the end of v's range that is farthest from it.
func farthest(v stat.Interval, x float64) float64 { return max(math.Abs(v.Lo-x), math.Abs(v.Hi-x)) }

func measured(v stat.Interval) string { return fmt.Sprintf("%s (%s)", times(v.Point), span(v)) }
