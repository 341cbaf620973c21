package lab

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// Markdown is the page of a ladder.
func (r *Reading) Markdown() string {
	var b strings.Builder
	l := r.Ladder
	fmt.Fprintf(&b, "# %s\n\n<!-- Written by weir-lab run %s. Do not edit. -->\n\n", l.Title, l.Name)
	fmt.Fprintf(&b, "**Claim:** %s.\n\n%s\n\n", l.Claim, l.Built)
	if r.Result.Partial {
		b.WriteString("**This run was ended early: what is below is not all of it.**\n\n")
	}
	if r.drawable() {
		fmt.Fprintf(&b, "![How many times better each rung is than the one it is compared with](%s.svg)\n\n", l.Name)
	}
	for i := range l.Experiments {
		r.experiment(&b, &l.Experiments[i])
	}
	r.doubts(&b)
	if len(l.NotRun) > 0 {
		b.WriteString("## Not run\n\n")
		for _, n := range l.NotRun {
			fmt.Fprintf(&b, "- **%s**: %s.\n", n.What, n.Why)
		}
		b.WriteString("\n")
	}
	r.conditions(&b)
	return b.String()
}

// experiment writes one experiment: how, the numbers, and the sentences.
func (r *Reading) experiment(b *strings.Builder, e *Experiment) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n", r.numbers(e.Title), r.numbers(e.How))
	x := r.experience(e.Name)
	switch {
	case x == nil:
		b.WriteString("Not reached in this run.\n\n")
		return
	case x.NotRun != "":
		fmt.Fprintf(b, "Not run: %s.\n\n", x.NotRun)
		return
	}
	_ = r.table(e).Markdown(b) // a Builder accepts everything
	b.WriteString("\n")
	for _, s := range e.Steps {
		fmt.Fprintf(b, "- %s\n", r.sentence(e, s))
	}
	if len(e.Steps) > 0 {
		b.WriteString("\n")
	}
	if n, all := limited(x); n > 0 {
		fmt.Fprintf(b, "In %d of %d measurements the load was itself the limit: what they would say of rates and the slowest is left out.\n\n", n, all)
	}
	for _, a := range x.Arms {
		if a.NotRun != "" {
			fmt.Fprintf(b, "%s was not run: %s.\n\n", e.arm(a.Name).Title, a.NotRun)
		}
		if len(a.Errors) > 0 {
			fmt.Fprintf(b, "%d of %d rounds of %s failed, the first with: %s\n\n", len(a.Errors), r.Result.Rounds, inline(e.arm(a.Name).Title), oneLine(a.Errors[0]))
		}
	}
}

var scaledNumber = regexp.MustCompile(`\{[0-9,]+\}`)

// numbers writes the numbers that a quick run divides, which stand in braces, as they
// were in this run.
func (r *Reading) numbers(text string) string {
	return scaledNumber.ReplaceAllStringFunc(text, func(s string) string {
		n, err := strconv.Atoi(strings.ReplaceAll(strings.Trim(s, "{}"), ",", ""))
		if err != nil {
			return s
		}
		return report.Grouped(uint64(scaled(n, r.Result.Quick)))
	})
}

// limited counts the measurements, and those in which the load was the limit.
func limited(x *Experience) (n, all int) {
	for _, a := range x.Arms {
		for _, v := range a.Rounds {
			if v != nil {
				all++
			}
			if v["limited"] > 0 {
				n++
			}
		}
	}
	return n, all
}

// oneLine keeps what a program said from being Markdown of its own.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return "`" + strings.ReplaceAll(s, "`", "'") + "`"
}

// table has the arms' medians, with the least and the greatest.
func (r *Reading) table(e *Experiment) *report.Table {
	t := &report.Table{Columns: []report.Column{{Name: "", Left: true}}}
	var shown []Metric
	for _, m := range e.Metrics {
		if slices.ContainsFunc(e.Arms, func(a Arm) bool { return r.Value(e.Name, a.Name, m.Key).N > 0 }) {
			shown = append(shown, m)
			t.Columns = append(t.Columns, report.Column{Name: m.Name})
		}
	}
	for _, a := range e.Arms {
		row := report.Cells(a.Title)
		for _, m := range shown {
			row = append(row, report.Cell{Text: cell(m.Unit, r.Value(e.Name, a.Name, m.Key))})
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// cell is a median with its range, which is left out where there is none.
func cell(u report.Unit, v stat.Interval) string {
	if v.N == 0 {
		return "–"
	}
	point, lo, hi := u.Format(v.Point), u.Format(v.Lo), u.Format(v.Hi)
	if lo == point && hi == point {
		return point
	}
	return fmt.Sprintf("%s (%s to %s)", point, lo, hi)
}

// doubts writes what has come of each doubt.
func (r *Reading) doubts(b *strings.Builder) {
	if len(r.Ladder.Doubts) == 0 {
		return
	}
	t := &report.Table{Columns: []report.Column{{Name: "rung", Left: true}, {Name: "doubt", Left: true}, {Name: "settled", Left: true}}}
	for _, d := range r.Ladder.Doubts {
		t.Rows = append(t.Rows, report.Cells(d.About, d.Text, r.settle(d)))
	}
	b.WriteString("## The doubts\n\n")
	_ = t.Markdown(b)
	b.WriteString("\n")
}

// settle is a doubt's outcome in words.
func (r *Reading) settle(d Doubt) string {
	if d.Settle == nil {
		return "not settled here: see what was not run"
	}
	if s := d.Settle(r); s != "" {
		return s
	}
	return "not settled: this run has no numbers for it"
}

// conditions writes where and how it was measured.
func (r *Reading) conditions(b *strings.Builder) {
	res := r.Result
	m := res.Machine
	fmt.Fprintf(b, "## Conditions\n\n%s of %.3g s each, every arm in a process of its own, all arms in every round; the table has medians with least and "+
		"greatest, a sentence the median ratio within a round with its 95 %% interval. %sload and server shared the machine, so rates are "+
		"those of both together, and server CPU is the number to go by.", plural(res.Rounds, "round"), res.Seconds, r.processors())
	if res.Quick {
		b.WriteString(" This was a quick run, with fewer rounds and a quarter of the connections: for trying out, not for quoting.")
	}
	fmt.Fprintf(b, "\n\n%s, Linux %s, %d CPUs (%s), %d MB, %s, weir %s, %s, took %.0f s.", m.OS, m.Kernel, m.CPUs, m.CPU, m.MemoryMB, m.Go, m.Weir,
		res.Started.Format("2006-01-02 15:04 MST"), res.Took)
	if steal, pressure := r.noise(); true {
		fmt.Fprintf(b, " Meanwhile the hypervisor took %.1f %% of the processors' time, and in %.0f %% of the time something waited for one.", 100*steal, 100*pressure)
	}
	b.WriteString("\n")
}

// processors says with how many the servers ran: what they said themselves, or what
// they were started with.
func (r *Reading) processors() string {
	by := map[int][]string{}
	for i := range r.Ladder.Experiments {
		e := &r.Ladder.Experiments[i]
		n := 0
		for _, a := range e.Arms {
			if v := r.Value(e.Name, a.Name, "server_cpus"); v.N > 0 {
				n = int(v.Point)
			} else if a.Server != "" && !strings.Contains(strings.Join(a.Env, " "), "GOMAXPROCS=") { // those say their own
				n = r.Result.ServerCPUs
			}
		}
		if n > 0 {
			by[n] = append(by[n], "\""+r.numbers(e.Title)+"\"")
		}
	}
	switch counts := slices.Sorted(maps.Keys(by)); len(counts) {
	case 0:
		return "No server ran, or it was part of what was measured; where there was one, "
	case 1:
		return fmt.Sprintf("Servers ran with GOMAXPROCS=%d; ", counts[0])
	default:
		var parts []string
		for _, n := range counts {
			parts = append(parts, fmt.Sprintf("GOMAXPROCS=%d in %s", n, strings.Join(by[n], ", ")))
		}
		return "Servers ran with " + strings.Join(parts, " and with ") + "; "
	}
}

// noise is the greatest of what the experiments saw of others.
func (r *Reading) noise() (steal, pressure float64) {
	for _, x := range r.Result.Experiments {
		steal, pressure = max(steal, x.Steal), max(pressure, x.Pressure)
	}
	return steal, pressure
}

// bars are the ratios of all steps, with what is claimed of each.
func (r *Reading) bars() *report.Bars {
	d := &report.Bars{
		Title: r.Ladder.Title, Note: "times better than what it is compared with; the tick is the claim", Series: []string{""},
		X: report.Axis{Unit: report.Times}, Reference: 1, ReferenceLabel: "no difference",
	}
	far := false
	for i := range r.Ladder.Experiments {
		e := &r.Ladder.Experiments[i]
		for _, s := range e.Steps {
			v := r.Ratio(e.Name, s)
			if v.N == 0 {
				continue
			}
			p := report.Point{Y: v.Point}
			if !math.IsInf(v.Lo, 0) && !math.IsInf(v.Hi, 0) && v.N > 1 {
				p.Lo, p.Hi = v.Lo, v.Hi
			}
			far = far || v.Point > 8 || v.Point < 0.25 || s.Claim > 8 || (s.Claim > 0 && s.Claim < 0.25)
			d.Groups = append(d.Groups, report.Group{
				Name: e.arm(s.Arm).Title + ", " + inline(e.metric(s.Metric).Name), Bars: []report.Point{p}, Claim: s.Claim,
			})
		}
	}
	if far {
		d.X.Scale = report.Log
	}
	return d
}

func (r *Reading) drawable() bool { return len(r.bars().Groups) > 0 }
