package observer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/exp/trace"
)

// maxTrace bounds the execution trace in bytes: a busy process writes some megabytes a
// second.
const maxTrace = 512 << 20

// A GoReport is what the scheduler of a Go process did, from its execution trace.
type GoReport struct {
	Seconds    float64 `json:"seconds"`
	Goroutines int     `json:"goroutines"` // that were seen
	Threads    int     `json:"threads"`    // M
	Procs      int     `json:"procs"`      // P
	// Runnable and Running goroutines and those in system calls, and Waiting ones, on average.
	Running  float64 `json:"running"`
	Runnable float64 `json:"runnable"`
	Syscall  float64 `json:"syscall"`
	Waiting  float64 `json:"waiting"`
	// GPerP is (running + runnable) / P: above 1 goroutines wait for a processor. MPerP is
	// threads / P: it grows with system calls that block.
	GPerP float64 `json:"g_per_p"`
	MPerP float64 `json:"m_per_p"`
	// Netpoll is how long goroutines whose network was ready waited to run: up to 50 µs,
	// up to 500 µs, and longer.
	Netpoll [3]uint64 `json:"netpoll"`
	// SyncWait is the time that goroutines waited for locks, all together.
	SyncWait float64     `json:"sync_wait_seconds"`
	Reasons  []WaitOn    `json:"reasons"`
	States   [][]float64 `json:"states"` // by slice: running, runnable, syscall, waiting on average
	// ProcStates are how many P were running and idle, ThreadStates how many M ran goroutines,
	// were in system calls, and had nothing to do: by slice, on average.
	ProcStates   [][]float64 `json:"proc_states"`
	ThreadStates [][]float64 `json:"thread_states"`
}

// StateNames are the rows of StateMap.
var StateNames = []string{"G running", "G runnable", "G in a call", "G waiting", "P running", "P idle", "M running", "M in a call", "M parked"}

// StateMap is how many goroutines (G), processors (P) and threads (M) were in each state on
// average, by slice, then by StateNames.
func (g *GoReport) StateMap() [][]float64 {
	columns := make([][]float64, 0, len(g.States))
	for i := range min(len(g.States), len(g.ProcStates), len(g.ThreadStates)) {
		columns = append(columns, slices.Concat(g.States[i], g.ProcStates[i], g.ThreadStates[i]))
	}
	return columns
}

// WaitOn is why goroutines waited, in the runtime's words.
type WaitOn struct {
	Reason  string  `json:"reason"`
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"`
}

// startTrace requests the trace while the window is open. The function that it returns
// waits for the trace and reads it; nil without one to request.
func (w *window) startTrace(ctx context.Context) func([]Probe) (*GoReport, []Probe) {
	if w.Trace == nil {
		return nil
	}
	type outcome struct {
		report *GoReport
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		body, err := w.Trace(ctx, w.Duration)
		if err != nil {
			done <- outcome{err: err}
			return
		}
		defer body.Close()
		g, err := readTrace(io.LimitReader(body, maxTrace), w.Options.Slices)
		done <- outcome{g, err}
	}()
	return func(probes []Probe) (*GoReport, []Probe) {
		o := <-done
		p := Probe{Name: "go trace", On: o.err == nil}
		if o.err != nil {
			p.Why = o.err.Error()
		}
		return o.report, append(probes, p)
	}
}

// states of a goroutine in GoReport.States.
const (
	running = iota
	runnable
	inSyscall
	waiting
	stateCount
)

type goroutine struct {
	state   int
	since   trace.Time
	reason  string
	netpoll trace.Time // when its network was ready; 0: it waits for something else
}

// States of a processor (P), after those of goroutines in traceReader.cells.
const (
	procRunning = stateCount + iota
	procIdle
	cellStates
)

// A proc is a processor of the scheduler's.
type proc struct {
	state int
	since trace.Time
}

// ReadTrace reports an execution trace of a Go program, such as an evidence bundle's, in so many
// slices.
func ReadTrace(r io.Reader, parts int) (*GoReport, error) {
	return readTrace(io.LimitReader(r, maxTrace), parts)
}

// A traceReader follows goroutines through a trace.
type traceReader struct {
	all        map[trace.GoID]*goroutine
	threads    map[trace.ThreadID]bool
	procs      map[trace.ProcID]*proc
	start, end trace.Time
	cells      [][cellStates]float64 // nanoseconds in each state, by cell of the trace
	reasons    map[string]*WaitOn
	report     GoReport
}

// cell is how finely states are kept while the length of the trace is not known.
const cell = trace.Time(5_000_000)

// spend adds time in one state.
func (t *traceReader) spend(state int, from, to trace.Time) {
	for i := (from - t.start) / cell; from < to; i++ {
		for trace.Time(len(t.cells)) <= i {
			t.cells = append(t.cells, [cellStates]float64{})
		}
		next := min(to, t.start+(i+1)*cell)
		t.cells[i][state] += float64(next - from)
		from = next
	}
}

// readTrace reads a whole trace.
func readTrace(r io.Reader, parts int) (*GoReport, error) {
	reader, err := trace.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read the execution trace: %w", err)
	}
	t := &traceReader{all: map[trace.GoID]*goroutine{}, threads: map[trace.ThreadID]bool{}, procs: map[trace.ProcID]*proc{}, reasons: map[string]*WaitOn{}}
	for {
		e, err := reader.ReadEvent()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the execution trace: %w", err)
		}
		t.event(e)
	}
	if len(t.all) == 0 {
		return nil, errors.New("the execution trace has no goroutine in it")
	}
	return t.summary(parts), nil
}

func (t *traceReader) event(e trace.Event) {
	now := e.Time()
	if t.start == 0 {
		t.start = now
	}
	t.end = max(t.end, now)
	if m := e.Thread(); m != trace.NoThread {
		t.threads[m] = true
	}
	if p := e.Proc(); p != trace.NoProc && t.procs[p] == nil {
		t.procs[p] = &proc{state: procRunning, since: t.start} // what runs on it shows that
	}
	if e.Kind() != trace.EventStateTransition {
		return
	}
	change := e.StateTransition()
	switch change.Resource.Kind {
	case trace.ResourceGoroutine:
	case trace.ResourceProc:
		t.proc(change, now)
		return
	default:
		return
	}
	id := change.Resource.Goroutine()
	from, to := change.Goroutine()
	g := t.all[id]
	if g == nil {
		g = &goroutine{state: stateOf(from), since: t.start}
		t.all[id] = g
	}
	t.leave(g, now)
	if to == trace.GoWaiting {
		g.reason = change.Reason
	}
	switch {
	case from == trace.GoWaiting && to == trace.GoRunnable && g.reason == "network":
		g.netpoll = now
	case to == trace.GoRunning && g.netpoll != 0:
		t.netpoll(now - g.netpoll)
		g.netpoll = 0
	}
	g.state, g.since = stateOf(to), now
}

// proc follows a processor.
func (t *traceReader) proc(change trace.StateTransition, now trace.Time) {
	from, to := change.Proc()
	p := t.procs[change.Resource.Proc()]
	if p == nil {
		p = &proc{state: procState(from), since: t.start}
		t.procs[change.Resource.Proc()] = p
	}
	if p.state >= 0 && now > p.since {
		t.spend(p.state, p.since, now)
	}
	p.state, p.since = procState(to), now
}

func procState(s trace.ProcState) int {
	switch s {
	case trace.ProcRunning:
		return procRunning
	case trace.ProcIdle:
		return procIdle
	}
	return -1
}

// leave ends what g was in.
func (t *traceReader) leave(g *goroutine, now trace.Time) {
	if g.state < 0 || now <= g.since {
		return
	}
	t.spend(g.state, g.since, now)
	if g.state == waiting && g.reason != "" {
		r := t.reasons[g.reason]
		if r == nil {
			r = &WaitOn{Reason: g.reason}
			t.reasons[g.reason] = r
		}
		r.Count++
		r.Seconds += float64(now-g.since) / 1e9
	}
}

func (t *traceReader) netpoll(wait trace.Time) {
	switch {
	case wait <= 50_000:
		t.report.Netpoll[0]++
	case wait <= 500_000:
		t.report.Netpoll[1]++
	default:
		t.report.Netpoll[2]++
	}
}

func stateOf(s trace.GoState) int {
	switch s {
	case trace.GoRunning:
		return running
	case trace.GoRunnable:
		return runnable
	case trace.GoSyscall:
		return inSyscall
	case trace.GoWaiting:
		return waiting
	}
	return -1
}

func (t *traceReader) summary(parts int) *GoReport {
	for _, g := range t.all {
		t.leave(g, t.end)
	}
	for _, p := range t.procs {
		if p.state >= 0 && t.end > p.since {
			t.spend(p.state, p.since, t.end)
		}
	}
	g := &t.report
	length := max(t.end-t.start, 1)
	g.Seconds = float64(length) / 1e9
	g.Goroutines, g.Threads, g.Procs = len(t.all), len(t.threads), max(len(t.procs), 1)
	var sum [cellStates]float64
	bySlice := make([][cellStates]float64, parts)
	for i, c := range t.cells {
		part := min(int(trace.Time(i)*cell*trace.Time(parts)/length), parts-1)
		for state, ns := range c {
			sum[state] += ns
			bySlice[part][state] += ns * float64(parts) / float64(length)
		}
	}
	for _, s := range bySlice {
		g.States = append(g.States, append([]float64(nil), s[:stateCount]...))
		g.ProcStates = append(g.ProcStates, []float64{s[procRunning], s[procIdle]})
		parked := max(float64(len(t.threads))-s[procRunning]-s[inSyscall], 0)
		g.ThreadStates = append(g.ThreadStates, []float64{s[procRunning], s[inSyscall], parked})
	}
	mean := func(state int) float64 { return sum[state] / float64(length) }
	g.Running, g.Runnable, g.Syscall, g.Waiting = mean(running), mean(runnable), mean(inSyscall), mean(waiting)
	g.GPerP, g.MPerP = (g.Running+g.Runnable)/float64(g.Procs), float64(g.Threads)/float64(g.Procs)
	g.Reasons = []WaitOn{}
	for _, r := range t.reasons {
		g.Reasons = append(g.Reasons, *r)
	}
	slices.SortFunc(g.Reasons, func(a, b WaitOn) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Reason, b.Reason))
	})
	if r := t.reasons["sync"]; r != nil {
		g.SyncWait = r.Seconds
	}
	g.Reasons = g.Reasons[:min(len(g.Reasons), 10)]
	return g
}
