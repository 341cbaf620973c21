package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-gateway/weir/internal/measure/capacity"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

type kneeFlags struct {
	targetFlags
	quick, standard, thorough bool
	axis, probe               string
	start, expect, maxRate    string
	clients, perClient        string
	price                     float64
	opt                       capacity.Options
	json, html                string
	quiet                     bool
	stdout, stderr            io.Writer
}

func newKnee() *cobra.Command {
	var f kneeFlags
	cmd := measures(&cobra.Command{
		Use:   "knee TARGET",
		Short: "Find the load a server can carry before latency grows steeply",
		Long: `Knee puts more and more load on a server and finds three rates, each with its
bracket and confidence:

  λ max    the highest rate it completes, however much is offered
  λ SLO    the highest rate at which the P99 still meets --slo
  λ knee   where latency starts to grow steeply: 2.5 times its value at low load

It measures each level several times with the low load between them, comes down
again, closes in by bisection, and confirms: just below the knee nothing may
break, just above it must. Where the machine is too noisy for that, the search ends
within seconds, with the reason and a remedy; with --bounded it continues and reports
bounds for the limit, with low confidence.

With --runtime it also reads the target's runtime: the two-condition rule (P99 at 2.5
and goroutines at 3 times the level before), scheduler, collector, processor time
per request.

Ctrl+C ends the search early and reports what was found so far.

` + exitStatuses,
		Example: `  weir knee http://127.0.0.1:8080/ --quick
  weir knee http://127.0.0.1:8080/ --slo 10ms --html knee.html
  weir knee http://127.0.0.1:8080/ --slo 10ms --expect 2k --runtime pid:4711 --json knee.json
  weir knee http://127.0.0.1:8080/ --slo 50ms --clients 5k --per-client 12/m --price 40
  weir knee ws://127.0.0.1:9000/echo --kind echo --conns 1000 --quick`,
		Args: oneTarget,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.stdout, f.stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return f.run(cmd.Context(), args[0])
		},
	})
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&f.quick, "quick", false, "under two minutes")
	fs.BoolVar(&f.standard, "standard", false, "about eight minutes (the default)")
	fs.BoolVar(&f.thorough, "thorough", false, "about half an hour")
	fs.DurationVar(&f.opt.SLO, "slo", 0, "`time` that the P99 of the response has to stay below (default: none)")
	fs.StringVar(&f.expect, "expect", "", "`rate` that the server must carry, for the verdict (default: none)")
	fs.StringVar(&f.axis, "axis", "rate", "`what` to increase: rate, or also concurrency, for the scalability model")
	fs.StringVar(&f.probe, "runtime", "", "`where` to read the target's runtime: pid:N, the URL of its metrics, or both with a comma")
	fs.StringVar(&f.start, "start", "", "`rate` of the first probe (default: a twentieth of what the generator can make)")
	fs.StringVar(&f.maxRate, "max-rate", "", "`rate` that is never exceeded (default: half of what the generator can make)")
	fs.DurationVar(&f.opt.MaxDuration, "max-duration", 0, "`time` of the whole search (default 2m, 12m or 40m)")
	fs.BoolVar(&f.opt.Bounded, "bounded", false, "search even on a machine that is too noisy, and report bounds")
	fs.Float64Var(&f.opt.Kappa, "kappa", 0, "`growth` of latency over low load that is the knee (default 2.5)")
	fs.StringVar(&f.clients, "clients", "", "`N` clients to serve: report how many machines they need")
	fs.StringVar(&f.perClient, "per-client", "", "`rate` of each client's requests, with pubsub of messages to it (12/m: one in 5 s)")
	fs.Float64Var(&f.price, "price", 0, "`amount` that one machine costs, for the price of the clients")
	f.add(fs)
	addOutputs(fs, &f.json, &f.html)
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "show nothing while it runs")
	return cmd
}

// options is what the flags request.
func (f *kneeFlags) options() (capacity.Options, error) {
	o := f.opt
	modes := 0
	for _, m := range []struct {
		on   bool
		mode capacity.Mode
	}{{f.quick, capacity.Quick}, {f.standard, capacity.Standard}, {f.thorough, capacity.Thorough}} {
		if m.on {
			o.Mode = m.mode
			modes++
		}
	}
	if modes > 1 {
		return o, usage("use only one of them", "--quick, --standard and --thorough exclude each other")
	}
	for _, r := range []struct {
		text string
		to   *float64
	}{{f.start, &o.Start}, {f.expect, &o.Expect}, {f.maxRate, &o.MaxRate}} {
		if r.text == "" {
			continue
		}
		var err error
		if *r.to, err = parseRate(r.text); err != nil {
			return o, err
		}
	}
	switch f.axis {
	case "rate":
	case "concurrency":
		o.ClosedLoop = true
	default:
		return o, usage("write --axis rate or --axis concurrency", "--axis %q is not known", f.axis)
	}
	if err := o.Validate(); err != nil {
		return o, &usageError{err}
	}
	return o, nil
}

// demand is what --clients, --per-client and --price request; nil if they are absent.
func (f *kneeFlags) demand() (*capacity.Demand, error) {
	if f.clients == "" {
		if f.perClient != "" || f.price != 0 {
			return nil, usage("add --clients with their number", "--per-client and --price need --clients")
		}
		return nil, nil
	}
	if f.perClient == "" {
		return nil, usage("add --per-client, such as 0.2 or 12/m", "--clients needs the rate of each client")
	}
	d := &capacity.Demand{Price: f.price}
	var err error
	if d.Clients, err = parseRate(f.clients); err != nil {
		return nil, usage("write it as 5000 or 5k", "--clients %q is not a number", f.clients)
	}
	if d.PerClient, err = parseRate(f.perClient); err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil {
		return nil, &usageError{err}
	}
	return d, nil
}

// fanout is how many clients a request of the search reaches.
func fanout(s loadgen.Spec) float64 {
	if s.Kind != loadgen.PubSub {
		return 1
	}
	return float64(max(s.Conns, 1)) / float64(max(s.Channels, 1))
}

// searched is the Spec of a target whose rate is searched.
func (f *kneeFlags) searched(target string) (loadgen.Spec, error) {
	spec, err := f.specFor(target, true)
	if err != nil {
		return spec, err
	}
	switch spec.Kind {
	case loadgen.WebSocket, loadgen.SSE:
		return spec, usage("use --kind pubsub, echo or http", "%s sends nothing, so there is no rate to search", spec.Kind)
	}
	if err := spec.Validate(); err != nil {
		return spec, specErrors(err)
	}
	return spec, nil
}

func (f *kneeFlags) run(ctx context.Context, target string) error {
	opt, err := f.options()
	if err != nil {
		return err
	}
	demand, err := f.demand()
	if err != nil {
		return err
	}
	spec, err := f.searched(target)
	if err != nil {
		return err
	}
	source, err := runtimeSource(ctx, f.probe)
	if err != nil {
		return err
	}
	files, err := openOutputs(f.stdout, f.stderr, f.json, f.html)
	if err != nil {
		return err
	}
	defer files.close()
	g, err := loadgen.New(spec, slog.New(slog.DiscardHandler))
	if err == nil {
		defer closeGenerator(g)
		err = g.Connect(ctx)
	}
	if err != nil {
		if limit, ok := errors.AsType[*loadgen.LimitError](err); ok {
			return &exitError{exitInvalid, fmt.Errorf("knee: %w", limit)}
		}
		return fmt.Errorf("knee: %w", err)
	}
	var load capacity.Target
	if load, err = capacity.NewGenerated(g, spec); err != nil {
		return &usageError{fmt.Errorf("knee: %w", err)}
	}
	if source != nil {
		load = capacity.WithRuntime(load, source)
	}
	live := newKneeLive(f.stderr, target, f.quiet)
	opt.Progress = live.show
	opt.Ceiling = capacity.GeneratorCeiling(spec, slog.New(slog.DiscardHandler))
	started := time.Now()
	r, err := capacity.Find(ctx, load, opt)
	live.end()
	if r == nil || len(r.Windows) == 0 && err != nil {
		return fmt.Errorf("knee: %w", err)
	}
	if demand != nil {
		r.Size(*demand, fanout(spec), spec.Conns)
	}
	return f.write(files, search{target: target, spec: spec, r: r, took: time.Since(started), err: err})
}

// A search is one run of knee, with the data of its reports.
type search struct {
	target string
	spec   loadgen.Spec
	r      *capacity.Report
	took   time.Duration
	err    error // why it ended before its end
}

func (f *kneeFlags) write(files *outputs, s search) error {
	if err := kneeText(files.text, s); err != nil {
		return err
	}
	err := errors.Join(
		files.write(f.json, func(w io.Writer) error { return json.NewEncoder(w).Encode(s.r) }),
		files.write(f.html, s.r.Page("Capacity of "+s.target, "Made by weir knee: "+describeTarget(s.spec)+".").HTML),
	)
	if err != nil {
		return err
	}
	return exitWith(s.r.Verdict.ExitCode())
}
