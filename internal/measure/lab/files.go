package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/measure/stat"
)

// Write puts a ladder's page, drawing and numbers into dir: NAME.md, NAME.svg and
// NAME.json.
func (r *Reading) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	numbers, err := json.MarshalIndent(r.Result, "", " ")
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	base := filepath.Join(dir, r.Ladder.Name)
	if err := replace(base+".json", append(numbers, '\n')); err != nil {
		return err
	}
	if err := replace(base+".md", []byte(r.Markdown())); err != nil {
		return err
	}
	if !r.drawable() {
		return nil
	}
	var drawing strings.Builder
	if err := r.bars().SVG(&drawing, report.Options{Theme: report.Light}); err != nil {
		return err
	}
	return replace(base+".svg", []byte(drawing.String()))
}

// replace writes a file beside the old one and puts it in its place, so that a
// run that is cut off leaves no half of one.
func replace(name string, b []byte) error {
	part := name + ".part"
	if err := os.WriteFile(part, b, 0o644); err != nil {
		return err
	}
	if err := os.Rename(part, name); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

// Read brings back what Write has put into dir for a ladder; nil if there is
// nothing.
func Read(dir string, l *Ladder) (*Reading, error) {
	name := filepath.Join(dir, l.Name+".json")
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r Result
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if r.Version != 1 {
		return nil, fmt.Errorf("%s: version %d, want 1; run the ladder again", name, r.Version)
	}
	return &Reading{Ladder: l, Result: &r}, nil
}

// WriteIndex writes dir's README.md from the results that are there.
func WriteIndex(dir string) error {
	ladders := Ladders()
	var found []*Reading
	for i := range ladders {
		r, err := Read(dir, &ladders[i])
		if err != nil {
			return err
		}
		found = append(found, r)
	}
	return replace(filepath.Join(dir, "README.md"), []byte(index(ladders, found)))
}

// index is the table of all ladders, then of all doubts.
func index(ladders []Ladder, found []*Reading) string {
	whole := &report.Table{Columns: []report.Column{{Name: "ladder", Left: true}, {Name: "claim", Left: true}, {Name: "measured", Left: true}, {Name: "verdict", Left: true}}}
	doubts := &report.Table{Columns: []report.Column{{Name: "ladder", Left: true}, {Name: "rung", Left: true}, {Name: "doubt", Left: true}, {Name: "settled", Left: true}}}
	var missing []string
	for i := range ladders {
		l, r := &ladders[i], found[i]
		if r == nil {
			missing = append(missing, "`"+l.Name+"`")
			continue
		}
		link := fmt.Sprintf("[%s](%s.md)", l.Title, l.Name)
		measured, verdict := r.summary()
		whole.Rows = append(whole.Rows, report.Cells(link, l.Claim, measured, verdict))
		for _, d := range l.Doubts {
			doubts.Rows = append(doubts.Rows, report.Cells(l.Name, d.About, d.Text, r.settle(d)))
		}
	}
	var b strings.Builder
	b.WriteString("# Tuning ladders\n\n<!-- Written by weir-lab run. Do not edit. -->\n\n" + indexLead)
	_ = whole.Markdown(&b) // a Builder accepts everything
	if s := where(found); s != "" {
		b.WriteString("\n" + s + "\n")
	}
	if len(missing) > 0 {
		fmt.Fprintf(&b, "\nNot run yet: %s.\n", strings.Join(missing, ", "))
	}
	if len(doubts.Rows) > 0 {
		b.WriteString("\n## The doubts\n\n")
		_ = doubts.Markdown(&b)
	}
	b.WriteString("\n" + indexRest)
	return b.String()
}

// where says on which machine the newest of the results was measured, and how.
func where(found []*Reading) string {
	var last *Result
	for _, r := range found {
		if r != nil && (last == nil || r.Result.Started.After(last.Started)) {
			last = r.Result
		}
	}
	if last == nil {
		return ""
	}
	m := last.Machine
	return fmt.Sprintf("Last measured on %s, with %s of %.3g s: %d CPUs (%s), Linux %s, %s, weir %s. Each page has its own conditions.",
		last.Started.Format("2006-01-02"), plural(last.Rounds, "round"), last.Seconds, m.CPUs, m.CPU, m.Kernel, m.Go, m.Weir)
}

const indexLead = `Write-ups about Go services claim a number for each of their optimisations. Here every rung of five such ladders is a small server of its
own (` + "`internal/measure/lab/rung`" + `), from the naive one to Weir, and is measured beside the others: interleaved, repeated, by the server's processor
time. The claims are others' and of other machines; a ratio that differs says what the rung is worth on this one, under this load.

    make lab                                 builds bin/weir-lab, and the bin/weir that it measures
    bin/weir-lab list                        the ladders, and what each claims
    bin/weir-lab run a e1                    some of them
    bin/weir-lab run all --out docs/lab      all of them, with pages like these
    bin/weir-lab verify                      a short repetition: does each page still hold?

`

const indexRest = `## What is measured elsewhere

Rungs that this machine cannot show, or that rest on a mistake, are on their ladder's page under "Not run", each with its reason. What the claims for
finance say of the gateway's behaviour is measured on the gateway itself, not on rungs:

| item | where it is measured |
| :-- | :-- |
| E7, an hour at a rate without an error | indicator ` + "`3`" + ` of [weir accept](../howto/accept.md); the rate is this machine's and not 80,000/s, which wants more than 2 CPUs |
| E9, partition and clock skew | indicator ` + "`9`" + ` of weir accept |
| E10, switching between live nodes | indicator ` + "`12`" + ` of weir accept; on one machine, so without the distance between sites |
| E11, national cryptography | indicator ` + "`17`" + ` of weir accept, and ` + "`bench/gm`" + ` beside another implementation; instructions for SM4 in hardware are missing here |
| E12, priorities below the socket | ` + "`bench/priority`" + `: orders alone, in a mix of 7:2:1 on a full link, with a queue for each class and without |
| E13, busy polling | not run: loopback, TUN and veth have no queue that can be polled; a network card with one is missing. The setting is there (` + "`eventloop.sockets.busy_poll`" + `) and is read back |
| E14, which system call blocks | [weir observe](../howto/observe.md), tested on a process with planted faults |
| E15, governance | not a matter of speed: tests of the gateway |
`

// summary is the entry of a ladder in the index.
func (r *Reading) summary() (measuredText, verdict string) {
	if r.Ladder.Whole == nil {
		for _, d := range r.Ladder.Doubts {
			if d.Settle != nil {
				return "see the page", r.settle(d)
			}
		}
		for _, e := range r.Ladder.Experiments {
			for _, s := range e.Steps {
				if v := r.Ratio(e.Name, s); v.N > 0 {
					return measured(v), fmt.Sprintf("%s against %s: %s", inline(e.arm(s.Arm).Title), inline(e.arm(s.Base).Title), word(v))
				}
			}
		}
		return "see the page", "–"
	}
	s, ok := r.step(*r.Ladder.Whole)
	if !ok {
		return "–", "–"
	}
	v := r.Ratio(r.Ladder.Whole.Experiment, s)
	if v.N == 0 {
		if x := r.experience(r.Ladder.Whole.Experiment); x != nil && x.NotRun != "" {
			return "not run", x.NotRun
		}
		return "–", "not measured"
	}
	e := r.Ladder.experiment(r.Ladder.Whole.Experiment)
	text := measured(v) + ", " + inline(e.metric(s.Metric).Name)
	if claim := formatClaim(v, s.Claim); claim != "" {
		return text, word(v) + "; " + claim
	}
	return text, word(v)
}

// word is the verdict in few words.
func word(v stat.Interval) string {
	switch Evaluate(v) {
	case Worth:
		if v.Point < slight {
			return "next to nothing"
		}
		return "worth it"
	case Same:
		return "no difference within noise"
	case Worse:
		return "worse"
	case Uncertain:
		return "one round only"
	default:
		return "not measured"
	}
}

// LadderTable is the table of `weir-lab list`.
func LadderTable() *report.Table {
	t := &report.Table{Columns: []report.Column{{Name: "name", Left: true}, {Name: "ladder", Left: true}, {Name: "rungs"}, {Name: "claim", Left: true}}}
	for _, l := range Ladders() {
		arms := 0
		for _, e := range l.Experiments {
			arms += len(e.Arms)
		}
		t.Rows = append(t.Rows, report.Cells(l.Name, l.Title, fmt.Sprint(arms), l.Claim))
	}
	return t
}
