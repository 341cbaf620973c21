package accept

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

func recovery() Indicator {
	return Indicator{
		Name: "recovery", Title: "Recovery from faults",
		Definition: "The rows of the chaos suite: each fault is injected many times, is proved to have happened, and the history of all publications and subscribers decides.",
		Target:     "every row holds; unavailability P99 ≤ 15 s in each; nothing lost, repeated or reordered",
		Method:     "The table that `make chaos` writes, named with --chaos. Faults such as power loss and full disks need root and hours, so they are not injected by this run.",
		criteria: []criterion{
			{name: "rows", what: "rows that do not hold", kind: none},
			{name: "wrong", what: "messages lost, repeated, reordered or otherwise wrong", kind: none},
			{name: "outage", what: "publish outage, the longest P99 of a row", kind: atMost, limit: 15, unit: seconds},
			{name: "resume", what: "resume of a subscriber, the longest P99 of a row", kind: atMost, limit: 15, unit: seconds},
			{name: "faults", what: "faults injected", kind: some},
		},
		measure: measureRecovery,
	}
}

// A chaosRow is a line of the suite's table.
type chaosRow struct {
	Number, Fault  string
	Faults         uint64
	Received       uint64
	Wrong          uint64
	Outage, Resume float64 // P99 in seconds; 0: none
	Holds          bool
}

func measureRecovery(_ context.Context, w *world) error {
	if w.opt.Chaos == "" {
		return &notRunError{"the chaos suite's table is not given: run make chaos, and name its file with --chaos"}
	}
	b, err := os.ReadFile(w.opt.Chaos)
	if err != nil {
		return err
	}
	rows, err := chaosRows(string(b))
	if err != nil {
		return fmt.Errorf("%s: %w", w.opt.Chaos, err)
	}
	if err := w.keep("chaos.json", rows); err != nil {
		return err
	}
	var outage, resume float64
	for _, r := range rows {
		failed := uint64(1)
		if r.Holds {
			failed = 0
		}
		w.ev.count("rows", failed, 1)
		if failed > 0 {
			w.ev.count("rows", 0, 0, "row "+r.Number+", "+r.Fault)
		}
		w.ev.count("wrong", r.Wrong, r.Received)
		w.ev.count("faults", r.Faults, r.Faults)
		outage, resume = max(outage, r.Outage), max(resume, r.Resume)
	}
	w.ev.value("outage", outage)
	w.ev.value("resume", resume)
	return nil
}

// chaosRows reads the table of docs/chaos.md.
func chaosRows(text string) ([]chaosRow, error) {
	const columns = 13
	var rows []chaosRow
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != columns {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if _, err := strconv.Atoi(cells[0]); err != nil {
			continue // the head, the rule
		}
		r := chaosRow{Number: cells[0], Fault: cells[1], Holds: cells[11] == "holds"}
		r.Faults, _ = strconv.ParseUint(cells[2], 10, 64)
		if _, received, ok := strings.Cut(cells[4], "/"); ok {
			r.Received, _ = strconv.ParseUint(strings.TrimSpace(received), 10, 64)
		}
		for part := range strings.SplitSeq(cells[5], ",") {
			n, _ := strconv.ParseUint(strings.TrimSpace(part), 10, 64) // "–": messages do not concern it
			r.Wrong += n
		}
		r.Outage, r.Resume = second(cells[7]), second(cells[8])
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("there is no table of the chaos suite in it")
	}
	return rows, nil
}

// second is the second number of "p50, p99"; 0 where there is none.
func second(cell string) float64 {
	_, text, _ := strings.Cut(cell, ",")
	v, _ := strconv.ParseFloat(strings.TrimSpace(text), 64)
	return v
}
