package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A report is what is printed and kept.
type report struct {
	Facts   facts             `json:"facts"`
	Runs    int               `json:"runs"`
	Seconds float64           `json:"seconds"`
	Shrunk  int               `json:"at_most_subscribers,omitempty"` // a try, whose numbers say nothing
	Absent  map[string]string `json:"peers_not_run,omitempty"`
	Results []outcome         `json:"results"`

	commands map[string][]string
}

// An outcome is a scenario's rows and what they were made from.
type outcome struct {
	Scenario string            `json:"scenario"`
	About    string            `json:"about"`
	Rate     float64           `json:"publishes_per_second,omitempty"`
	Rows     []row             `json:"rows,omitempty"`
	Peers    []peerRow         `json:"peers,omitempty"`
	Cannot   map[string]string `json:"peers_cannot,omitempty"`
	Owners   *ownership        `json:"owners,omitempty"`
	Error    string            `json:"error,omitempty"`
	Rounds   []round           `json:"rounds"`
}

// A row compares weir with a reference by one metric.
type row struct {
	Metric    string  `json:"metric"`
	Reference string  `json:"reference"`
	Weir      float64 `json:"weir"`
	Ref       float64 `json:"reference_value"`
	Ratio     *spread `json:"ratio,omitempty"` // nil: nothing to divide by
	Target    float64 `json:"target,omitempty"`
	Absolute  bool    `json:"absolute,omitempty"`
	Verdict   string  `json:"met"`
	Kept      int     `json:"rounds_kept"`
	Made      int     `json:"rounds_made"`
}

type peerRow struct {
	Metric  string  `json:"metric"`
	Peer    string  `json:"peer"`
	Value   float64 `json:"value"`
	ToLimit *spread `json:"ratio_to_limit,omitempty"`
	OfWeir  *spread `json:"weir_to_peer,omitempty"`
}

func (rep *report) add(r *result) {
	o := outcome{Scenario: r.scenario.Name, About: r.scenario.About, Rate: r.rate, Cannot: r.cannot, Owners: r.owners, Rounds: r.rounds}
	if r.err != nil {
		o.Error = r.err.Error()
	}
	if len(r.rounds) > 0 {
		o.compare(r)
	}
	rep.Results = append(rep.Results, o)
}

func (o *outcome) compare(r *result) {
	var peers []string
	for _, round := range r.rounds {
		for name := range round {
			if name != "weir" && name != r.scenario.reference() && !slices.Contains(peers, name) {
				peers = append(peers, name)
			}
		}
	}
	slices.Sort(peers)
	for _, m := range r.scenario.Metrics {
		ref := r.scenario.reference()
		if m.Against != "" {
			ref = m.Against
		}
		o.Rows = append(o.Rows, compareRow(m, ref, r))
		for _, p := range peers {
			if m.Against == "" {
				o.Peers = append(o.Peers, comparePeer(m, p, r))
			}
		}
	}
}

// pairs returns the values of two servers in the rounds that have both and were
// quiet for both; if no round was, those of all rounds.
func pairs(rounds []round, key, a, b string) (x, y []float64, kept int) {
	for _, anyway := range []bool{false, true} {
		for _, r := range rounds {
			if r[a] == nil || r[b] == nil || !anyway && (r[a].noisy() || r[b].noisy()) {
				continue
			}
			x, y = append(x, r[a][key]), append(y, r[b][key])
		}
		if len(x) > 0 {
			if !anyway {
				kept = len(x)
			}
			break
		}
	}
	return x, y, kept
}

func compareRow(m metric, ref string, r *result) row {
	x, y, kept := pairs(r.rounds, m.Key, "weir", ref)
	w := row{Metric: m.Label, Reference: ref, Target: m.Target, Absolute: m.Absolute, Kept: kept, Made: len(r.rounds)}
	if len(x) == 0 {
		w.Verdict = "not run"
		return w
	}
	w.Weir, w.Ref = median(x), median(y)
	if q := ratios(x, y); len(q) > 0 {
		s := spreadOf(q)
		w.Ratio = &s
	}
	w.Verdict = verdict(w)
	return w
}

func verdict(w row) string {
	value := w.Weir
	if !w.Absolute && w.Ratio != nil {
		value = w.Ratio.Median
	}
	switch {
	case w.Target == 0:
		return "–"
	case !w.Absolute && w.Ratio == nil:
		return "not run"
	case value <= w.Target:
		return "yes"
	}
	return "no"
}

func comparePeer(m metric, peer string, r *result) peerRow {
	w := peerRow{Metric: m.Label, Peer: peer}
	x, y, _ := pairs(r.rounds, m.Key, peer, r.scenario.reference())
	w.Value = median(x)
	if q := ratios(x, y); len(q) > 0 {
		s := spreadOf(q)
		w.ToLimit = &s
	}
	x, y, _ = pairs(r.rounds, m.Key, "weir", peer)
	if q := ratios(x, y); len(q) > 0 {
		s := spreadOf(q)
		w.OfWeir = &s
	}
	return w
}

// figure writes v with three or four digits that count.
func figure(v float64) string {
	switch {
	case math.Abs(v) >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func (w row) cells(scenario string) []string {
	weir, ref, ratio, target := "", "", "", "–"
	if w.Verdict != "not run" || w.Weir != 0 {
		weir, ref, ratio = figure(w.Weir), figure(w.Ref), "–"
	}
	if w.Reference != "limit" {
		ref = strings.TrimSpace(ref + " (" + w.Reference + ")")
	}
	if w.Ratio != nil {
		ratio = fmt.Sprintf("%.2f / **%.2f** / %.2f", w.Ratio.Min, w.Ratio.Median, w.Ratio.Max)
	}
	if w.Target > 0 {
		target = "≤ " + strconv.FormatFloat(w.Target, 'f', -1, 64)
		if !w.Absolute {
			target += "×"
		}
	}
	return []string{scenario, w.Metric, weir, ref, ratio, target, w.Verdict, fmt.Sprintf("%d/%d", w.Kept, w.Made)}
}

func table(b *strings.Builder, head string, rows [][]string) {
	titles := strings.Split(head, "|")
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(titles, " | "), strings.Repeat("---|", len(titles)))
	for _, r := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(r, " | "))
	}
	b.WriteString("\n")
}

func (rep *report) markdown() string {
	var b strings.Builder
	f := rep.Facts
	fmt.Fprintf(&b, "# Measured %s\n\n", f.Date)
	if rep.Shrunk > 0 {
		fmt.Fprintf(&b, "**A try with at most %d subscribers: these numbers say nothing.**\n\n", rep.Shrunk)
	}
	fmt.Fprintf(&b, "Linux %s, %s, %d CPUs, %s memory, weir built by %s, gcc %s, commit %s. ", f.Kernel, f.CPU, f.CPUs, f.Memory, f.Go, f.C, f.Commit)
	fmt.Fprintf(&b, "Load average at the start %s. Server on CPU 0, load on CPU 1, up to %d rounds, %g s each. Medians; the ratios are pair by pair.\n\n", f.LoadAt, rep.Runs, rep.Seconds)
	var rows, peers [][]string
	for _, o := range rep.Results {
		for _, w := range o.Rows {
			rows = append(rows, w.cells(o.Scenario))
		}
		if o.Error != "" {
			rows = append(rows, []string{o.Scenario, "**not measured**: " + strings.ReplaceAll(o.Error, "\n", " "), "", "", "", "", "no", fmt.Sprintf("%d/%d", len(o.Rounds), rep.Runs)})
		}
		for _, p := range o.Peers {
			peers = append(peers, p.cells(o.Scenario))
		}
		for _, name := range slices.Sorted(maps.Keys(o.Cannot)) {
			peers = append(peers, []string{o.Scenario, "", name, "not run", "", "", strings.ReplaceAll(o.Cannot[name], "\n", " ")})
		}
	}
	table(&b, "scenario|metric|weir|limit|weir ÷ limit: min / median / max|target|met|rounds kept", rows)
	b.WriteString("A round is kept when others used less than 12 % of the server's CPU; 0 kept means that all were used because none was quiet.\n\n")
	rep.peerSection(&b, peers)
	rep.details(&b)
	return b.String()
}

func (p peerRow) cells(scenario string) []string {
	ratio := func(s *spread) string {
		if s == nil {
			return "–"
		}
		return fmt.Sprintf("%.2f", s.Median)
	}
	return []string{scenario, p.Metric, p.Peer, figure(p.Value), ratio(p.ToLimit), ratio(p.OfWeir), ""}
}

func (rep *report) peerSection(b *strings.Builder, rows [][]string) {
	if len(rows) > 0 {
		b.WriteString("## Peers\n\n")
		table(b, "scenario|metric|peer|median|peer ÷ limit|weir ÷ peer|", rows)
	}
	for _, name := range slices.Sorted(maps.Keys(rep.Absent)) {
		fmt.Fprintf(b, "- %s: not run, %s\n", name, rep.Absent[name])
	}
	if len(rep.Absent) > 0 {
		b.WriteString("\n")
	}
}

func (rep *report) details(b *strings.Builder) {
	for _, o := range rep.Results {
		if o.Owners == nil {
			continue
		}
		fmt.Fprintf(b, "## Who holds the memory of %s\n\nBytes per connection, %d connections, after a collection, in a run of its own that records every allocation.\n\n", o.Scenario, o.Owners.Connections)
		var rows [][]string
		for _, h := range o.Owners.Heap {
			rows = append(rows, []string{"`" + h.Owner + "`", fmt.Sprintf("%.1f", h.Bytes)})
		}
		table(b, "live heap by what allocated it|bytes", rows)
		rows = nil
		for _, h := range o.Owners.Classes {
			rows = append(rows, []string{h.Owner, fmt.Sprintf("%.1f", h.Bytes)})
		}
		table(b, "the process|bytes", rows)
	}
	b.WriteString("## Scenarios\n\n")
	for _, o := range rep.Results {
		fmt.Fprintf(b, "- %s: %s", o.Scenario, o.About)
		if o.Rate > 0 {
			fmt.Fprintf(b, " (%.1f publishes a second)", o.Rate)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n## Commands\n\nThe last of each; every run has processes and a directory of its own.\n\n")
	for _, what := range slices.Sorted(maps.Keys(rep.commands)) {
		fmt.Fprintf(b, "    # %s\n    %s\n", what, commandLine(rep.commands[what]))
	}
}

// commandLine quotes args for a shell, with paths as their last part: where a
// program was on the measuring machine is of no use to others.
func commandLine(args []string) string {
	var out []string
	for _, a := range args {
		if filepath.IsAbs(a) && strings.Count(a, "/") > 1 && !strings.Contains(a, "%c") && exists(a) {
			a = filepath.Base(a)
		} else if i := strings.Index(a, "weir-bench-"); i >= 0 {
			a = filepath.Base(a)
		}
		if a == "" || strings.ContainsAny(a, " \"'&?{}\\$*%;|<>()") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out = append(out, a)
	}
	return strings.Join(out, " ")
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// write keeps the report as DATE-LABEL.md and .json and returns the path without
// ending. It never replaces an earlier report.
func (rep *report) write(dir, label string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	base := filepath.Join(dir, rep.Facts.Date[:len("2006-01-02")]+"-"+label)
	path := base
	for i := 2; ; i++ {
		f, err := os.OpenFile(path+".md", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, fs.ErrExist) {
			path = fmt.Sprintf("%s-%d", base, i)
			continue
		}
		if err != nil {
			return "", err
		}
		if _, err := f.WriteString(rep.markdown()); err != nil {
			return "", err
		}
		if err := f.Close(); err != nil {
			return "", err
		}
		break
	}
	commands := map[string]string{}
	for what, args := range rep.commands {
		commands[what] = commandLine(args)
	}
	text, err := json.MarshalIndent(struct {
		*report
		Commands map[string]string `json:"commands"`
	}{rep, commands}, "", " ")
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path+".json", append(text, '\n'), 0o644)
}
