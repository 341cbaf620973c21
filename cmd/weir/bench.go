package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

type benchFlags struct {
	targetFlags
	rate, stages     string
	closed           bool
	requests         int
	concurrency      int
	processes        int
	thresholds       []string
	json, hdr, html  string
	pushgateway      string
	probe            string
	quiet            bool
	worker           bool
	duration, warmup time.Duration
	conditions       []threshold
	stdout, stderr   io.Writer
	log              *slog.Logger
}

func newBench() *cobra.Command {
	var f benchFlags
	cmd := measures(&cobra.Command{
		Use:   "bench TARGET",
		Short: "Put load on a server and measure its responses",
		Long: `Bench puts load on any server that speaks HTTP, WebSocket or SSE and reports
rates, percentiles, errors, lost and repeated messages.

The model is open: requests come at --rate per second whatever the server does,
and response times count from the instant at which each was scheduled, so a
slow server cannot hide by slowing the generator. Service times, from the real
send, are shown beside them. With --closed each connection sends its next request after the
answer to the last. How late the generator itself was is measured too: where that was the
limit, the run is reported as invalid.

A --threshold makes a verdict: p99<5ms, service.p95<2ms, mean<1ms, errors<0.1%,
errors==0, lost==0, reach>=0.999, rate>=0.98 (completed of offered) or
throughput>=1000. It holds when its 95 % interval is on the right side, for the
run and in nine of ten windows; without the samples for that (1,000 for a P99)
it is inconclusive.

Ctrl+C ends the run early and reports what was measured so far.

` + exitStatuses,
		Example: `  weir bench http://127.0.0.1:8080/ --rate 1000
  weir bench http://127.0.0.1:8080/ --rate 5k --threshold 'p99<5ms,errors<0.1%' --html report.html
  weir bench http://127.0.0.1:8080/ -n 10000 -c 50
  weir bench http://127.0.0.1:8080/ --stages 30s:1000,30s:4000 --json run.json
  weir bench ws://127.0.0.1:9000/echo --kind echo --conns 1000 --rate 2k
  weir bench http://127.0.0.1:8000/sse --adapter weir --conns 1000 --rate 50 -H 'X-API-Key: KEY'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.worker {
				return nil
			}
			return oneTarget(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.stdout, f.stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if f.worker {
				return benchWorker(cmd.Context(), cmd.InOrStdin(), f.stdout)
			}
			return f.run(cmd.Context(), args[0])
		},
	})
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.rate, "rate", "r", "", "`arrivals` per second: 1000, 2.5k, 90/m (default 100)")
	fs.DurationVarP(&f.duration, "duration", "d", 0, "measured `time` (default 10s)")
	fs.IntVarP(&f.requests, "requests", "n", 0, "exactly `N` requests (publishes), or until --duration; a closed loop unless there is a rate")
	fs.DurationVar(&f.warmup, "warmup", 0, "`time` before that, not counted (default 1s)")
	fs.StringVar(&f.stages, "stages", "", "a `ramp` in place of rate and duration: 30s:1000,1m:2k:500 (time:rate[:conns])")
	fs.BoolVar(&f.closed, "closed", false, "closed loop: send the next request when the response has arrived")
	fs.IntVar(&f.concurrency, "concurrency", 0, "`N` requests at a time in the closed loop (default: one per connection)")
	f.add(fs)
	fs.StringVar(&f.probe, "runtime", "", "`where` to read the target's CPU, GC and memory: pid:N, the URL of its metrics, or both")
	fs.IntVar(&f.processes, "processes", 1, "split the load over `N` processes")
	fs.StringArrayVarP(&f.thresholds, "threshold", "t", nil, "`condition` for the verdict; may be repeated")
	addOutputs(fs, &f.json, &f.html)
	fs.StringVar(&f.hdr, "hdr", "", "write the histograms to this `file` as an HdrHistogram log")
	fs.StringVar(&f.pushgateway, "pushgateway", "", "push metrics to this Prometheus push gateway (`URL`) every second, and the result")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "show nothing while it runs")
	fs.BoolVar(&f.worker, "worker", false, "be one of several processes")
	cobra.CheckErr(fs.MarkHidden("worker"))
	cmd.AddCommand(newCompare())
	return cmd
}

// spec is what the flags request.
func (f *benchFlags) spec(target string) (loadgen.Spec, error) {
	s, err := f.specFor(target, f.rate != "" || f.closed || f.requests > 0 || f.stages != "")
	if err != nil {
		return s, err
	}
	if s.Stages, err = parseStages(f.stages); err != nil {
		return s, err
	}
	sends := s.Kind != loadgen.WebSocket && s.Kind != loadgen.SSE
	switch {
	case f.closed && f.rate != "":
		return s, usage("omit one of them", "--closed and --rate: a closed loop has no rate of its own")
	case f.concurrency != 0 && !f.closed && (f.requests == 0 || f.rate != ""):
		return s, usage("add --closed, or omit it", "--concurrency applies to the closed loop only")
	case len(s.Stages) > 0 && (f.rate != "" || f.duration != 0):
		return s, usage("omit --rate and --duration", "--stages sets rate and duration itself")
	case f.rate != "":
		if s.Rate, err = parseRate(f.rate); err != nil {
			return s, err
		}
	case f.requests > 0 && !f.closed && len(s.Stages) == 0:
		s.Closed = true // as tools with such an option do
	case sends && !f.closed && len(s.Stages) == 0:
		s.Rate = 100
	}
	s.Closed, s.Concurrency = s.Closed || f.closed, f.concurrency
	s.Duration, s.Warmup, s.Requests = f.duration, f.warmup, f.requests
	if err := s.Validate(); err != nil {
		return s, specErrors(err)
	}
	if f.processes < 1 {
		return s, usage("", "--processes %d", f.processes)
	}
	return s, nil
}

func (f *benchFlags) run(ctx context.Context, target string) error {
	spec, err := f.spec(target)
	if err != nil {
		return err
	}
	if f.conditions, err = parseThresholds(f.thresholds); err != nil {
		return err
	}
	source, err := runtimeSource(ctx, f.probe)
	if err != nil {
		return err
	}
	pusher, err := newBenchPusher(f.pushgateway, target)
	if err != nil {
		return err
	}
	files, err := openOutputs(f.stdout, f.stderr, f.json, f.hdr, f.html)
	if err != nil {
		return err
	}
	defer files.close()
	f.log = slog.New(slog.DiscardHandler)
	live := newBenchLive(f.stderr, spec, f.quiet)
	var feed benchFeed
	uses := feed.watchTarget(ctx, source)
	pusher.start(ctx, &feed)
	defer pusher.end()
	r, died, err := f.measure(ctx, spec, live, &feed)
	live.end()
	used := uses()
	if err != nil {
		if limit, ok := errors.AsType[*loadgen.LimitError](err); ok {
			return &exitError{exitInvalid, fmt.Errorf("bench: %w", limit)}
		}
		if _, ok := errors.AsType[*usageError](err); ok {
			return err
		}
		return fmt.Errorf("bench: %w", err)
	}
	r.Uses = used
	j := evaluateRun(r, f.conditions)
	if died != nil {
		j.Verdict = worse(j.Verdict, invalid)
		j.Why = append(j.Why, died.Error())
	}
	if err := f.write(files, r, j); err != nil {
		return err
	}
	if line := pusher.finish(ctx, r, j); line != "" {
		_, _ = fmt.Fprintln(f.stderr, line) // standard error takes it or nothing can be said
	}
	return exitWith(j.Verdict.exit())
}

// measure makes the load, here or in several processes. died names processes that
// did not come back with a result; r is then of the others.
func (f *benchFlags) measure(ctx context.Context, spec loadgen.Spec, live *benchLive, feed *benchFeed) (r *loadgen.Result, died, err error) {
	if f.processes > 1 {
		return runWorkers(ctx, spec, f.processes, nil, func(s loadgen.Snapshot) {
			feed.set(s)
			live.show(s)
		})
	}
	g, err := loadgen.New(spec, f.log)
	if err != nil {
		return nil, nil, err
	}
	defer closeGenerator(g)
	feed.follow(g.Snapshot)
	stop := live.follow(g.Snapshot)
	defer stop()
	r, err = g.Run(ctx)
	return r, nil, err
}

// closeGenerator ends all connections; what a close says changes nothing any more.
func closeGenerator(g *loadgen.Generator) { _ = g.Close() }

// write brings the result to the terminal and to the files requested.
func (f *benchFlags) write(files *outputs, r *loadgen.Result, j runVerdict) error {
	if err := benchText(files.text, r, j); err != nil {
		return err
	}
	return errors.Join(
		files.write(f.json, func(w io.Writer) error { return writeResult(w, r, j) }),
		files.write(f.hdr, r.WriteHDR),
		files.write(f.html, benchPage(r, j).HTML),
	)
}

// writeResult is the result as JSON with the verdict beside it.
func writeResult(w io.Writer, r *loadgen.Result, j runVerdict) error {
	text, err := withVerdict(r, j)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// withVerdict adds "verdict" to what a Result is in JSON; loadgen.ReadResult reads
// over it.
func withVerdict(r *loadgen.Result, j runVerdict) (json.RawMessage, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write the result as JSON: %w", err)
	}
	v, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("write the verdict as JSON: %w", err)
	}
	text = append(text[:len(text)-1], `,"verdict":`...)
	return append(append(text, v...), '}'), nil
}

// outputs are the files that a command writes at its end. They are opened at its
// beginning: anyone who cannot write must know before ten minutes of measuring.
type outputs struct {
	stdout io.Writer
	text   io.Writer // for the terminal: standard error where standard output carries one of the files
	open   map[string]*os.File
}

func openOutputs(stdout, stderr io.Writer, names ...string) (*outputs, error) {
	o := &outputs{stdout: stdout, text: stdout, open: make(map[string]*os.File)}
	tookStdout := false
	for _, name := range names {
		switch {
		case name == "":
			continue
		case name == "-" && tookStdout:
			o.close()
			return nil, usage("send one of them to a file", "two outputs on standard output")
		case name == "-":
			tookStdout, o.text = true, stderr
			continue
		}
		if _, twice := o.open[name]; twice {
			o.close()
			return nil, usage("write each to its own file", "two outputs to %s", name)
		}
		// Not truncated yet: a run that cannot start leaves an old report alone.
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			o.close()
			return nil, usage("", "%w", err)
		}
		o.open[name] = file
	}
	return o, nil
}

// write fills the output of a name; an empty name is none.
func (o *outputs) write(name string, fill func(io.Writer) error) error {
	switch name {
	case "":
		return nil
	case "-":
		return fill(o.stdout)
	}
	file := o.open[name]
	delete(o.open, name)
	// A device or a pipe cannot be truncated and need not be.
	if st, err := file.Stat(); err == nil && st.Mode().IsRegular() {
		if err := file.Truncate(0); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return cmp.Or(fill(file), file.Close())
}

// close leaves what was not written; a file that is empty was made here.
func (o *outputs) close() {
	for name, file := range o.open {
		st, err := file.Stat()
		_ = file.Close()
		if err == nil && st.Size() == 0 && st.Mode().IsRegular() {
			_ = os.Remove(name)
		}
	}
}
