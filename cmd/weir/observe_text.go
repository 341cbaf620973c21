package main

import (
	"fmt"
	"io"
	"strings"

	draw "github.com/weir-gateway/weir/internal/measure/report"
	"github.com/weir-gateway/weir/internal/observe/observer"
)

// shownCalls is how many system calls are printed.
const shownCalls = 12

// writeObserved prints a report for a terminal.
func writeObserved(w io.Writer, r *observer.Report) {
	fmt.Fprintf(w, "%s (process %d), Linux %s: %s from %s, %.0f %% of a processor\n", r.Command, r.PID, r.Kernel,
		draw.Seconds.Format(r.Seconds), r.Started.Format("15:04:05"), 100*r.CPU/max(r.Seconds, 1e-9))
	fmt.Fprintln(w)
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "no findings")
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%-16s %s\n", f.Name, f.Text)
		fmt.Fprintf(w, "%-16s do: %s\n", "", f.Do)
	}
	if t := callsTable(r, shownCalls); len(t.Rows) > 0 {
		fmt.Fprint(w, "\nsystem calls, those with most time first\n")
		_ = t.Text(w, "  ")
		heatText(w, longestCall(r), r)
	}
	if r.RunQueue.Count > 0 {
		fmt.Fprintf(w, "\nwaiting for a processor: %d times, P50 %s, P99 %s, %s in all\n", r.RunQueue.Count,
			draw.Seconds.Format(r.RunQueue.P50), draw.Seconds.Format(r.RunQueue.P99), draw.Seconds.Format(r.RunQueue.Total))
	} else if r.RunDelay >= 0 {
		fmt.Fprintf(w, "\nwaiting for a processor: %s in all\n", draw.Seconds.Format(r.RunDelay))
	}
	fmt.Fprintf(w, "page faults: %d, %d of them from a disk  %s\n", r.Faults.Minor+r.Faults.Major, r.Faults.Major, draw.Spark(floats(r.Faults.BySlice), 40))
	if t := locksTable(r); len(t.Rows) > 0 {
		fmt.Fprint(w, "\nlocks that several threads waited for\n")
		_ = t.Text(w, "  ")
	}
	writeTCP(w, &r.TCP)
	if r.Go != nil {
		writeGo(w, r.Go)
	}
	fmt.Fprint(w, "\nprobes, and what they cost while they ran\n")
	_ = probesTable(r).Text(w, "  ")
}

func writeTCP(w io.Writer, t *observer.TCP) {
	fmt.Fprintf(w, "\nconnections: %d open, %d sampled, %d ended", t.Open, t.Sampled, t.Ended.Count)
	if t.Ended.Count > 0 {
		fmt.Fprintf(w, " (life P50 %s, P99 %s; %s sent, %s received)", draw.Seconds.Format(t.Ended.LifeP50), draw.Seconds.Format(t.Ended.LifeP99),
			draw.Bytes.Format(float64(t.Ended.Sent)), draw.Bytes.Format(float64(t.Ended.Received)))
	}
	fmt.Fprintln(w)
	if len(t.States) > 0 {
		fmt.Fprintf(w, "state changes: %s\n", statesText(t))
	}
	for _, x := range t.Retransmits {
		fmt.Fprintf(w, "sent again: %d segments, port %d to port %d\n", x.Count, x.Local, x.Peer)
	}
	for _, l := range t.Listeners {
		fmt.Fprintf(w, "accept queue of %s: at most %d\n", l.Address, l.Queue)
	}
	if table := connectionsTable(t); len(table.Rows) > 0 {
		_ = table.Text(w, "  ")
	}
}

func statesText(t *observer.TCP) string {
	var list []string
	for _, s := range t.States[:min(len(t.States), 6)] {
		list = append(list, fmt.Sprintf("%s → %s %d", s.From, s.To, s.Count))
	}
	return strings.Join(list, ", ")
}

func writeGo(w io.Writer, g *observer.GoReport) {
	fmt.Fprintf(w, "\nscheduler of Go: %d goroutines, %d threads (M), %d processors (P)\n", g.Goroutines, g.Threads, g.Procs)
	fmt.Fprintf(w, "  on average %.1f running, %.1f runnable, %.1f in system calls, %.0f waiting: G/P %.2f, M/P %.1f\n",
		g.Running, g.Runnable, g.Syscall, g.Waiting, g.GPerP, g.MPerP)
	fmt.Fprintf(w, "  to run after the network was ready: %d within 50 µs, %d within 500 µs, %d later\n", g.Netpoll[0], g.Netpoll[1], g.Netpoll[2])
	stateText(w, g)
	for _, x := range g.Reasons[:min(len(g.Reasons), 5)] {
		fmt.Fprintf(w, "  waited %s for %s (%d times)\n", draw.Seconds.Format(x.Seconds), x.Reason, x.Count)
	}
}

// stateText draws a line for each state of goroutines, processors and threads: darker is more of
// the most that the line has.
func stateText(w io.Writer, g *observer.GoReport) {
	columns := g.StateMap()
	if len(columns) == 0 {
		return
	}
	fmt.Fprintf(w, "  states over time, a column is %s\n", draw.Seconds.Format(g.Seconds/float64(len(columns))))
	for row, name := range observer.StateNames {
		values, most := make([]float64, len(columns)), 0.0
		for i, c := range columns {
			values[i] = c[row]
			most = max(most, c[row])
		}
		fmt.Fprintf(w, "  %11s |%s| most %.1f\n", name, shaded(values, most), most)
	}
}

// shaded is a row of a map: the darker, the more of most.
func shaded(values []float64, most float64) string {
	shades := []rune(" ░▒▓█")
	line := make([]rune, len(values))
	for i, v := range values {
		line[i] = shades[0]
		if v > 0 {
			line[i] = shades[max(int(v/most*float64(len(shades)-1)), 1)]
		}
	}
	return string(line)
}

// longestCall is the system call with most time that is not waiting for something to do.
func longestCall(r *observer.Report) *observer.Syscall {
	var best *observer.Syscall
	for i := range r.Syscalls {
		if s := &r.Syscalls[i]; !idleCalls[s.Name] && (best == nil || s.Total > best.Total) {
			best = s
		}
	}
	return best
}

// idleCalls wait for something to do: their time is not lost.
var idleCalls = map[string]bool{
	"epoll_wait": true, "epoll_pwait": true, "epoll_pwait2": true, "futex": true, "nanosleep": true, "clock_nanosleep": true,
	"ppoll": true, "poll": true, "select": true, "pselect6": true, "io_uring_enter": true, "rt_sigtimedwait": true, "wait4": true, "waitid": true, "pause": true,
}

// heatText draws a heat map: a line for each octave, a column for each slice.
func heatText(w io.Writer, s *observer.Syscall, r *observer.Report) {
	if s == nil || s.Count == 0 {
		return
	}
	var rows [][]float64 // by octave, then slice
	low, most := len(r.Bounds), 0.0
	for i, column := range s.Slices {
		for bound, n := range column {
			if n == 0 {
				continue
			}
			octave := bound / 2
			for len(rows) <= octave {
				rows = append(rows, make([]float64, len(s.Slices)))
			}
			rows[octave][i] += float64(n)
			low, most = min(low, octave), max(most, rows[octave][i])
		}
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s over time, a column is %s\n", s.Name, draw.Seconds.Format(r.Slice))
	for i := len(rows) - 1; i >= low; i-- {
		fmt.Fprintf(w, "  %9s |%s|\n", draw.Seconds.Format(r.Bounds[min(2*i+1, len(r.Bounds)-1)]), shaded(rows[i], most))
	}
}

func floats(list []uint64) []float64 {
	out := make([]float64, len(list))
	for i, n := range list {
		out[i] = float64(n)
	}
	return out
}
