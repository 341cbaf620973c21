package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/observe/observer"
)

// observePage is a report as a page.
func observePage(r *observer.Report) *draw.Page {
	pg := &draw.Page{
		Title:  fmt.Sprintf("%s, process %d", r.Command, r.PID),
		Lead:   fmt.Sprintf("Observed from the kernel for %s on %s, Linux %s.", draw.Seconds.Format(r.Seconds), r.Started.Format("2006-01-02 15:04:05 MST"), r.Kernel),
		Footer: "Made by weir observe. The numbers are in this file as JSON.",
	}
	pg.Data = r
	v := draw.Verdict{State: draw.Good, Word: "NO FINDINGS", Text: "Nothing passed a threshold in this window."}
	if n := len(r.Findings); n > 0 {
		v = draw.Verdict{State: draw.Bad, Word: strings.ToUpper(plural(n, "finding")), Text: r.Findings[0].Text}
	}
	pg.Blocks = append(pg.Blocks, v)
	for _, f := range r.Findings {
		pg.Blocks = append(pg.Blocks, draw.Heading(f.Name), draw.Text(f.Text+"."), draw.Text("What to do: "+f.Do+"."))
	}
	pg.Blocks = append(pg.Blocks, observeFacts(r))
	pg.Blocks = append(pg.Blocks, observeHeats(r)...)
	if t := callsTable(r, 40); len(t.Rows) > 0 {
		pg.Blocks = append(pg.Blocks, draw.Heading("System calls"), t)
	}
	if t := locksTable(r); len(t.Rows) > 0 {
		pg.Blocks = append(pg.Blocks, draw.Heading("Locks that several threads waited for"), t)
	}
	pg.Blocks = append(pg.Blocks, draw.Heading("Connections"), draw.Text(fmt.Sprintf("%d open, %d sampled, %d ended in the window. State changes: %s.",
		r.TCP.Open, r.TCP.Sampled, r.TCP.Ended.Count, cmp.Or(statesText(&r.TCP), "none"))))
	if t := connectionsTable(&r.TCP); len(t.Rows) > 0 {
		pg.Blocks = append(pg.Blocks, t)
	}
	if r.Go != nil {
		pg.Blocks = append(pg.Blocks, goBlocks(r)...)
	}
	pg.Blocks = append(pg.Blocks, draw.Heading("Probes, and what they cost"), probesTable(r),
		draw.Text("Cost is the time in the programs, of all processes that ran them, as the kernel measures it; calling them costs about as much again, and only while the window is open."))
	return pg
}

func observeFacts(r *observer.Report) draw.Facts {
	secs := max(r.Seconds, 1e-9)
	f := draw.Facts{{Name: "processor", Value: draw.Share.Format(r.CPU / secs), Note: "of one"},
		{Name: "page faults", Value: draw.PerSec.Format(float64(r.Faults.Minor+r.Faults.Major) / secs), Note: fmt.Sprintf("%d from a disk", r.Faults.Major)}}
	switch {
	case r.RunQueue.Count > 0:
		f = append(f, draw.Fact{Name: "run queue P99", Value: draw.Seconds.Format(r.RunQueue.P99), Note: "n " + draw.Grouped(r.RunQueue.Count)})
	case r.RunDelay >= 0:
		f = append(f, draw.Fact{Name: "on the run queue", Value: draw.Seconds.Format(r.RunDelay), Note: "all threads"})
	}
	if r.Go != nil {
		f = append(f, draw.Fact{Name: "G/P", Value: fmt.Sprintf("%.2f", r.Go.GPerP)}, draw.Fact{Name: "M/P", Value: fmt.Sprintf("%.1f", r.Go.MPerP)})
	}
	return f
}

// observeHeats are heat maps of the calls with most time, those that are idle last, and
// of the run queue.
func observeHeats(r *observer.Report) []draw.Block {
	calls := slices.Clone(r.Syscalls)
	slices.SortStableFunc(calls, func(a, b observer.Syscall) int {
		if idleCalls[a.Name] != idleCalls[b.Name] {
			if idleCalls[b.Name] {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.Total, a.Total)
	})
	var blocks []draw.Block
	for _, s := range calls[:min(len(calls), 4)] {
		blocks = append(blocks, draw.Figure{Drawing: observeHeat(s.Name, s.Series, r)})
	}
	if r.RunQueue.Count > 0 {
		blocks = append(blocks, draw.Figure{Drawing: observeHeat("waiting for a processor", r.RunQueue, r)})
	}
	if blocks != nil {
		blocks = append([]draw.Block{draw.Heading("Over time")}, blocks...)
	}
	return blocks
}

func observeHeat(name string, s observer.Series, r *observer.Report) *draw.Heat {
	h := &draw.Heat{
		Title: name, Note: fmt.Sprintf("%s calls, P50 %s, P99 %s", draw.Grouped(s.Count), draw.Seconds.Format(s.P50), draw.Seconds.Format(s.P99)),
		X: draw.Axis{Label: "time", Unit: draw.Seconds}, Y: draw.Axis{Unit: draw.Seconds, Scale: draw.Log},
		YEdges: append([]float64{0.5e-9}, r.Bounds...),
	}
	for i := range len(s.Slices) + 1 {
		h.XEdges = append(h.XEdges, float64(i)*r.Slice)
	}
	for _, column := range s.Slices {
		h.Values = append(h.Values, floats(column))
	}
	return h
}

func goBlocks(r *observer.Report) []draw.Block {
	g := r.Go
	p := &draw.Plot{Title: "Goroutines by state", X: draw.Axis{Label: "time", Unit: draw.Seconds}, Y: draw.Axis{Label: "goroutines"}}
	for state, name := range []string{"running", "runnable", "in system calls"} {
		s := draw.Series{Name: name}
		for i, v := range g.States {
			s.Points = append(s.Points, draw.Point{X: float64(i) * g.Seconds / float64(len(g.States)), Y: v[state]})
		}
		p.Series = append(p.Series, s)
	}
	t := &draw.Table{Columns: []draw.Column{{Name: "waiting for", Left: true}, {Name: "times"}, {Name: "time, all goroutines"}}}
	for _, x := range g.Reasons {
		t.Add(x.Reason, draw.Grouped(x.Count), draw.Seconds.Format(x.Seconds))
	}
	return []draw.Block{draw.Heading("Scheduler of Go"),
		draw.Text(fmt.Sprintf("%d goroutines on %d threads and %d processors: G/P %.2f, M/P %.1f. After their network was ready, %d goroutines ran within 50 µs, %d within 500 µs, %d later.",
			g.Goroutines, g.Threads, g.Procs, g.GPerP, g.MPerP, g.Netpoll[0], g.Netpoll[1], g.Netpoll[2])),
		draw.Figure{Drawing: stateHeat(g)}, draw.Figure{Drawing: p}, t}
}

// stateHeat is the map of states: each row in parts of the most that it has, so that a few threads
// are seen beside many goroutines.
func stateHeat(g *observer.GoReport) *draw.Heat {
	columns := g.StateMap()
	most := make([]float64, len(observer.StateNames))
	for _, c := range columns {
		for row, v := range c {
			most[row] = max(most[row], v)
		}
	}
	h := &draw.Heat{
		Title: "States of goroutines (G), processors (P) and threads (M)", Note: "each row in parts of its most",
		X: draw.Axis{Label: "time", Unit: draw.Seconds}, Y: draw.Axis{Min: -0.5, Max: float64(len(most)) - 0.5},
	}
	for i := range len(columns) + 1 {
		h.XEdges = append(h.XEdges, float64(i)*g.Seconds/float64(max(len(columns), 1)))
	}
	for row, name := range observer.StateNames {
		h.YEdges = append(h.YEdges, float64(row)-0.5)
		h.Y.Names = append(h.Y.Names, fmt.Sprintf("%s (%.1f)", name, most[row]))
	}
	h.YEdges = append(h.YEdges, float64(len(most))-0.5)
	for _, c := range columns {
		parts := make([]float64, len(c))
		for row, v := range c {
			if most[row] > 0 {
				parts[row] = v / most[row]
			}
		}
		h.Values = append(h.Values, parts)
	}
	return h
}

// callsTable has the n system calls with most time.
func callsTable(r *observer.Report, n int) *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "call", Left: true}, {Name: "count"}, {Name: "P50"}, {Name: "P99"}, {Name: "most"}, {Name: "in all"}, {Name: "under way"}}}
	calls := slices.Clone(r.Syscalls)
	slices.SortStableFunc(calls, func(a, b observer.Syscall) int { return cmp.Compare(b.Total, a.Total) })
	for _, s := range calls[:min(len(calls), n)] {
		name := s.Name
		if idleCalls[name] {
			name += " (idle)"
		}
		t.Add(name, draw.Grouped(s.Count), draw.Seconds.Format(s.P50), draw.Seconds.Format(s.P99), draw.Seconds.Format(s.Most), draw.Seconds.Format(s.Total), underWay(s))
	}
	return t
}

// underWay are the calls that had not returned.
func underWay(s observer.Syscall) string {
	if s.UnderWay == 0 {
		return "–"
	}
	return fmt.Sprintf("%d, %s", s.UnderWay, draw.Seconds.Format(s.Oldest))
}

func locksTable(r *observer.Report) *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "address", Left: true}, {Name: "threads"}, {Name: "waits"}, {Name: "waiting, all threads"}}}
	for _, l := range r.Locks {
		if l.Threads > 1 {
			t.Add(l.Address, fmt.Sprint(l.Threads), draw.Grouped(l.Waits), draw.Seconds.Format(l.Seconds))
		}
	}
	return t
}

func connectionsTable(c *observer.TCP) *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "peer", Left: true}, {Name: "local", Left: true}, {Name: "sent"}, {Name: "received"}, {Name: "busy"}, {Name: "reader"}, {Name: "buffer"}, {Name: "unsent"}, {Name: "round trip"}, {Name: "again"}}}
	for _, x := range c.Connections {
		t.Add(x.Peer, x.Local, draw.Bytes.Format(float64(x.Sent)), draw.Bytes.Format(float64(x.Received)), draw.Seconds.Format(x.Busy), draw.Seconds.Format(x.Reader),
			draw.Seconds.Format(x.Buffer), draw.Bytes.Format(float64(x.Unsent)), draw.Seconds.Format(x.RTT), fmt.Sprint(x.Repeated))
	}
	return t
}

func probesTable(r *observer.Report) *draw.Table {
	t := &draw.Table{Columns: []draw.Column{{Name: "probe", Left: true}, {Name: "events"}, {Name: "time in it"}, {Name: "of a processor"}, {Name: "", Left: true}}}
	for _, p := range r.Probes {
		switch {
		case !p.On:
			t.Add(p.Name, "–", "–", "–", "off: "+p.Why)
		case p.Events == 0:
			t.Add(p.Name, "–", draw.Seconds.Format(p.Seconds), draw.Share.Format(p.Share), "")
		default:
			t.Add(p.Name, draw.Grouped(p.Events), draw.Seconds.Format(p.Seconds), draw.Share.Format(p.Share),
				fmt.Sprintf("%.0f ns each", 1e9*p.Seconds/float64(p.Events)))
		}
	}
	return t
}
