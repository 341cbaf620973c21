// Command curve measures what the runtime costs as it grows: the gateway's processor time for a
// delivery, a proxied request and an echoed message with 1, 2, 4 … event loops, and at a flat rate
// from 1,000 to 40,000 connections, which several processes make. It draws the curves and takes a
// processor profile at each number of connections, so that it can be seen where a curve bends and
// which functions grow there.
//
//	go run ./bench/curve -weir bin/weir -out curve
//
// As many loops are run as there are processors: 4 and 8 need a machine that has them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	weir, engine, out string
	kinds             []string
	loops, conns      []int
	flatLoops         int
	rate              float64
	length            time.Duration
	rounds            int
}

func main() {
	var o options
	var kinds, loops, conns string
	flag.StringVar(&o.weir, "weir", "", "the gateway's `binary`, which is the load generator, too")
	flag.StringVar(&o.engine, "engine", "auto", "`engine` of the gateway's loops")
	flag.StringVar(&o.out, "out", "curve", "`directory` for the page, the results and the profiles")
	flag.StringVar(&kinds, "kinds", "fanout,proxy,echo", "`kinds` of work")
	flag.StringVar(&loops, "loops", "1,2,4,8", "numbers of `loops`; more than there are processors are left out")
	flag.StringVar(&conns, "conns", "1000,2000,5000,10000,20000,40000", "numbers of `connections` at the flat rate")
	flag.IntVar(&o.flatLoops, "flat-loops", 3, "`loops` at the flat rate: with io_uring each has room for about as many connections as the descriptor limit")
	flag.Float64Var(&o.rate, "rate", 10000, "deliveries, requests or echoes per `second` at the flat rate")
	flag.DurationVar(&o.length, "length", 8*time.Second, "measured time of a run")
	flag.IntVar(&o.rounds, "rounds", 3, "`rounds`; the median of a point counts")
	flag.Parse()
	err := o.parse(kinds, loops, conns)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = run(ctx, &o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "curve:", err)
		os.Exit(1)
	}
}

func (o *options) parse(kinds, loops, conns string) (err error) {
	if o.weir == "" {
		return errors.New("say where the gateway's binary is: -weir")
	}
	if o.rounds < 1 || o.length < time.Second || o.rate <= 0 || o.flatLoops < 1 {
		return errors.New("invalid -rounds, -length, -rate or -flat-loops: want at least 1, 1s, more than 0 and at least 1")
	}
	o.kinds = strings.Split(kinds, ",")
	for _, k := range o.kinds {
		if _, ok := work[k]; !ok {
			return fmt.Errorf("invalid kind %q: want fanout, proxy or echo", k)
		}
	}
	if o.loops, err = numbers("-loops", loops); err != nil {
		return err
	}
	o.conns, err = numbers("-conns", conns)
	return err
}

func numbers(name, text string) (list []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("invalid %s %q: want numbers above 0, separated by commas", name, part)
		}
		list = append(list, n)
	}
	return list, nil
}

// run measures all points, round after round, and reports.
func run(ctx context.Context, o *options, w io.Writer) error {
	if err := os.MkdirAll(filepath.Join(o.out, "profiles"), 0o755); err != nil {
		return err
	}
	b, err := startBackend()
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // the process ends
	points := plan(o, w)
	fmt.Fprintf(w, "%d points, %d rounds, about %v\n", len(points), o.rounds, (time.Duration(len(points)*o.rounds) * (o.length + 9*time.Second)).Round(time.Minute))
	for round := range o.rounds {
		for i := range points {
			p := &points[i]
			m, err := p.measure(ctx, o, b.Addr(), round == o.rounds-1)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name(), err)
			}
			p.Runs = append(p.Runs, m)
			fmt.Fprintf(w, "round %d, %-32s %8.0f/s  %6.2f µs  P50 %6.2f ms  P99 %6.2f ms  %5.1f KiB per connection%s\n",
				round+1, p.name(), m.Rate, m.CPU, m.P50, m.P99, m.Memory/1024, m.note())
		}
	}
	return report(o, points, w)
}
