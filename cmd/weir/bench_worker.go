package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// Several processes make one load: the parent starts itself N times as
// `weir bench --worker`, gives each its part of the Spec, waits until all have
// their connections, names an instant at which all start, and merges what they
// send back. They speak one JSON value per line.

// toWorker is what a worker reads: first Spec, then Start.
type toWorker struct {
	Spec  *loadgen.Spec `json:"spec,omitempty"`
	Start *time.Time    `json:"start,omitempty"`
}

// fromWorker is what it writes: Ready, then Snapshots, then Result or Err.
type fromWorker struct {
	Ready    bool              `json:"ready,omitempty"`
	Snapshot *loadgen.Snapshot `json:"snapshot,omitempty"`
	Result   *loadgen.Result   `json:"result,omitempty"`
	Err      string            `json:"err,omitempty"`
}

// startDelay is the time between naming the instant and the instant.
const startDelay = 200 * time.Millisecond

// benchWorker is one of the processes. The end of its input means that its parent
// is gone.
func benchWorker(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	say := func(m fromWorker) error {
		mu.Lock()
		defer mu.Unlock()
		return enc.Encode(m)
	}
	dec := json.NewDecoder(in)
	var first toWorker
	if err := dec.Decode(&first); err != nil {
		return fmt.Errorf("bench: a worker reads its part from standard input: %w", err)
	}
	if first.Spec == nil {
		return errors.New("bench: a worker reads its part from standard input: it has no spec")
	}
	starts := make(chan time.Time, 1)
	go func() {
		var second toWorker
		if dec.Decode(&second) == nil && second.Start != nil {
			starts <- *second.Start
			_ = dec.Decode(&struct{}{}) // returns when the parent is gone
		}
		cancel()
	}()
	g, err := loadgen.New(*first.Spec, slog.New(slog.DiscardHandler))
	if err == nil {
		defer closeGenerator(g)
		err = g.Connect(ctx)
	}
	if err != nil {
		return say(fromWorker{Err: err.Error()})
	}
	if err := say(fromWorker{Ready: true}); err != nil {
		return err
	}
	select {
	case at := <-starts:
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
		}
	case <-ctx.Done():
		return errors.New("bench: the process that started this worker is gone")
	}
	// Until the end, also of a run that was interrupted. A parent that is gone ends it by ctx.
	stop := repeat(context.WithoutCancel(ctx), 250*time.Millisecond, func(context.Context, time.Time) {
		s := g.Snapshot()
		_ = say(fromWorker{Snapshot: &s})
	})
	r, err := g.Run(ctx)
	stop()
	if err != nil {
		return say(fromWorker{Err: err.Error()})
	}
	return say(fromWorker{Result: r})
}

// A worker is one process as its parent sees it.
type worker struct {
	n     int // from 1
	cmd   *exec.Cmd
	in    io.WriteCloser
	said  *tail
	read  *json.Decoder
	last  loadgen.Snapshot
	known bool // last is set
}

// name reports which one it is.
func (w *worker) name(of int) string {
	return fmt.Sprintf("worker %d of %d (pid %d)", w.n, of, w.cmd.Process.Pid)
}

// runWorkers makes the load in n processes. A process that dies is named in died;
// the result is then of the others, and Partial. connected may be nil; it is called when all have their
// connections, and they start when it returns.
func runWorkers(ctx context.Context, spec loadgen.Spec, n int, connected func(context.Context) error, show func(loadgen.Snapshot)) (r *loadgen.Result, died, err error) {
	if _, err := spec.Split(n); err != nil {
		return nil, nil, usage("fewer processes, or more connections", "--processes %d: %w", n, err)
	}
	if spec, err = spec.WithSourceAddresses(spec.Conns + spec.Publishers); err != nil {
		return nil, nil, err
	}
	parts, err := spec.Split(n)
	if err != nil {
		return nil, nil, err
	}
	var workers []*worker
	defer func() {
		for _, w := range workers {
			w.end()
		}
	}()
	for i := range parts {
		w, err := startWorker(ctx, i+1, parts[i])
		if err != nil {
			return nil, nil, fmt.Errorf("start worker %d of %d: %w", i+1, n, err)
		}
		workers = append(workers, w)
	}
	for _, w := range workers {
		m, err := w.next()
		switch {
		case err != nil:
			return nil, nil, w.death(n, err)
		case m.Err != "":
			return nil, nil, errors.New(m.Err)
		}
	}
	if connected != nil {
		if err := connected(ctx); err != nil {
			return nil, nil, err
		}
	}
	start := time.Now().Add(startDelay)
	for _, w := range workers {
		if err := json.NewEncoder(w.in).Encode(toWorker{Start: &start}); err != nil {
			return nil, nil, w.death(n, err)
		}
	}
	return gather(workers, show)
}

func startWorker(ctx context.Context, n int, spec loadgen.Spec) (*worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{n: n, said: &tail{}}
	w.cmd = exec.CommandContext(ctx, exe, "bench", "--worker")
	w.cmd.Stderr = w.said
	// A terminal's Ctrl+C reaches the parent alone, which passes it on.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w.cmd.Cancel = func() error { return w.cmd.Process.Signal(os.Interrupt) }
	w.cmd.WaitDelay = 20 * time.Second
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.read = json.NewDecoder(bufio.NewReaderSize(out, 1<<16))
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	return w, json.NewEncoder(w.in).Encode(toWorker{Spec: &spec})
}

func (w *worker) next() (fromWorker, error) {
	var m fromWorker
	err := w.read.Decode(&m)
	return m, err
}

// death reports how a worker ended that should not have.
func (w *worker) death(of int, err error) error {
	_ = w.in.Close()
	if e := w.cmd.Wait(); e != nil {
		err = e
	}
	if words := w.said.String(); words != "" {
		return fmt.Errorf("%s ended: %w: %s", w.name(of), err, words)
	}
	return fmt.Errorf("%s ended: %w", w.name(of), err)
}

// end lets the process go and waits for it; it may have ended already.
func (w *worker) end() {
	_ = w.in.Close()
	_ = w.cmd.Wait()
}

// gather reads all workers to their end.
func gather(workers []*worker, show func(loadgen.Snapshot)) (*loadgen.Result, error, error) {
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		results = make([]*loadgen.Result, len(workers))
		errs    = make([]error, len(workers))
	)
	for i, w := range workers {
		wg.Go(func() {
			for {
				m, err := w.next()
				switch {
				case err != nil:
					errs[i] = w.death(len(workers), err)
					return
				case m.Err != "":
					errs[i] = fmt.Errorf("%s: %s", w.name(len(workers)), m.Err)
					return
				case m.Result != nil:
					results[i] = m.Result
					return
				case m.Snapshot != nil:
					mu.Lock()
					w.last, w.known = *m.Snapshot, true
					show(together(workers))
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	died := errors.Join(errs...)
	var all *loadgen.Result
	for _, r := range results {
		switch {
		case r == nil:
			continue
		case all == nil:
			all = r
		default:
			if err := all.Merge(r); err != nil {
				return nil, nil, err
			}
		}
	}
	if all == nil {
		return nil, nil, died
	}
	all.Partial = all.Partial || died != nil
	return all, died, nil
}

// together is the workers' snapshots as one. Counts and rates add up; percentiles
// do not, so the greatest is used.
func together(workers []*worker) loadgen.Snapshot {
	var s loadgen.Snapshot
	for _, w := range workers {
		if !w.known {
			continue
		}
		l := w.last
		s.Phase = l.Phase
		s.Elapsed, s.Total = max(s.Elapsed, l.Elapsed), max(s.Total, l.Total)
		s.Conns += l.Conns
		s.InFlight += l.InFlight
		s.OfferedRate += l.OfferedRate
		s.SentRate += l.SentRate
		s.CompletedRate += l.CompletedRate
		s.ErrorRate += l.ErrorRate
		s.Dropped += l.Dropped
		s.Errors += l.Errors
		s.P50, s.P95, s.P99 = max(s.P50, l.P50), max(s.P95, l.P95), max(s.P99, l.P99)
		s.ServiceP99, s.LagP99 = max(s.ServiceP99, l.ServiceP99), max(s.LagP99, l.LagP99)
		s.Limited = s.Limited || l.Limited
		if l.Delivery != nil {
			if s.Delivery == nil {
				s.Delivery = &loadgen.Delivery{Reach: 1}
			}
			s.Delivery.Merge(l.Delivery)
		}
	}
	return s
}

// A tail keeps the last of what a process says, in one line.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 2048 {
		t.text = t.text[len(t.text)-2048:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return lines[len(lines)-1]
}
