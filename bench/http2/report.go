package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// noisePercent is how much of the gateway's CPU others may use in a run that counts.
const noisePercent = 12

type report struct {
	head   string
	tables []string
	kept   []kept
}

// kept is a scenario as it is written to the file with all samples.
type kept struct {
	Scenario, What string
	Ways           []keptWay
}

type keptWay struct {
	Way     string
	Samples []sample // by round
}

func newReport(ctx context.Context, o options) *report {
	out := func(name string, args ...string) string {
		text, err := exec.CommandContext(ctx, name, args...).Output()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(text))
	}
	commit := out("git", "rev-parse", "--short=12", "HEAD")
	if out("git", "status", "--porcelain", "--untracked-files=no") != "" {
		commit += ", with changes"
	}
	version := strings.Fields(out("go", "version", o.weir) + " unknown")
	return &report{head: fmt.Sprintf("# HTTP/2 and HTTP/3 beside HTTP/1.1, measured %s\n\nLinux %s, weir built by %s, engine %s, commit %s. Load average at the start %s. "+
		"Gateway on CPU 0, clients and backend on CPU 1; %d rounds on fresh processes.\nMedians; the ratios are taken within a round.\n",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), out("uname", "-r"), version[min(1, len(version)-1)], o.engine, commit, out("cut", "-d ", "-f1-3", "/proc/loadavg"), o.rounds)}
}

// add makes the table of a scenario that was measured.
func (r *report) add(s *scenario) {
	var t strings.Builder
	fmt.Fprintf(&t, "\n## %s\n\n%s.\n\n| way | ", s.name, strings.ToUpper(s.what[:1])+s.what[1:])
	rule := "|---|"
	for _, m := range s.metrics {
		t.WriteString(m.title + " | ")
		rule += "---:|"
		if m.ratio {
			t.WriteString("÷ HTTP/1.1: min / median / max | ")
			rule += "---|"
		}
		if len(m.targets) > 0 {
			t.WriteString("target | met | ")
			rule += "---|---|"
		}
	}
	t.WriteString("rounds kept |\n" + rule + "---|\n")
	k := kept{Scenario: s.name, What: s.what}
	for i, w := range s.ways {
		base := s.got[slices.Index(s.ways, w.base())]
		t.WriteString("| " + w.String() + " | ")
		rounds := s.quiet(i)
		for _, m := range s.metrics {
			t.WriteString(m.cells(w, s.got[i], base, rounds))
		}
		fmt.Fprintf(&t, "%d/%d |\n", s.quietCount(i), len(s.got[i]))
		k.Ways = append(k.Ways, keptWay{w.String(), s.got[i]})
	}
	r.tables, r.kept = append(r.tables, t.String()), append(r.kept, k)
}

// quiet returns the rounds that count: those in which others used little of the CPU
// while this way and its base were measured, or all if there is none.
func (s *scenario) quiet(way int) (rounds []int) {
	base := slices.Index(s.ways, s.ways[way].base())
	for i := range s.got[way] {
		if s.got[way][i]["others"] < noisePercent && s.got[base][i]["others"] < noisePercent {
			rounds = append(rounds, i)
		}
	}
	if rounds == nil {
		for i := range s.got[way] {
			rounds = append(rounds, i)
		}
	}
	return rounds
}

func (s *scenario) quietCount(way int) (n int) {
	base := slices.Index(s.ways, s.ways[way].base())
	for i := range s.got[way] {
		if s.got[way][i]["others"] < noisePercent && s.got[base][i]["others"] < noisePercent {
			n++
		}
	}
	return n
}

// cells are those of one way and metric.
func (m metric) cells(w way, got, base []sample, rounds []int) string {
	var values, ratios []float64
	for _, i := range rounds {
		values = append(values, got[i][m.key])
		ratios = append(ratios, got[i][m.key]/base[i][m.key])
	}
	slices.Sort(values)
	slices.Sort(ratios)
	value := values[len(values)/2]
	cells := fmt.Sprintf("%.*f | ", m.decimals, value)
	if m.ratio {
		value = ratios[len(ratios)/2]
		cells += fmt.Sprintf("%.2f / **%.2f** / %.2f | ", ratios[0], value, ratios[len(ratios)-1])
	}
	if len(m.targets) == 0 {
		return cells
	}
	most, ok := m.targets[w]
	switch {
	case !ok:
		return cells + "– | – | "
	case value <= most:
		return cells + fmt.Sprintf("≤ %v | yes | ", most)
	}
	return cells + fmt.Sprintf("≤ %v | no | ", most)
}

func (r *report) markdown() string {
	return r.head + strings.Join(r.tables, "") + fmt.Sprintf("\nA round is kept when others used less than %d %% of the gateway's CPU, for a way and for what it is divided by; "+
		"0 kept means that all were used because none was quiet.\n", noisePercent)
}

// write keeps the report as FILE.md and all samples as FILE.json.
func (r *report) write(file string) error {
	if file == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r.kept, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".json", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(file+".md", []byte(r.markdown()), 0o644)
}
