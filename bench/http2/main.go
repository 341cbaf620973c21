// Command http2 measures what HTTP/2 and HTTP/3 cost the gateway beside HTTP/1.1: memory of
// idle SSE subscribers and processor time of a fan-out, and for HTTP/2 processor time and
// memory of large bodies through a route.
//
//	go run ./bench/http2 -weir bin/weir                          all of it, 5 rounds, about ten minutes
//	go run ./bench/http2 -weir bin/weir -only fanout -rounds 1   some of it, to try it out
//
// The gateway has CPU 0; this program, which is the clients and the backend, has CPU 1.
// Each run is made on a fresh process, and each round runs all variants one after the other, so
// that ratios are taken within a round: absolute figures drift on a shared machine.
//
// It needs Linux, two CPUs and taskset, and 10,300 open files for the default number of
// subscribers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/bench/program"
)

type options struct {
	weir, engine, only, out string
	rounds                  int
	idle, idleTLS           int
	subscribers             int
	seconds                 time.Duration
	megabytes               int
}

func main() {
	var o options
	flag.StringVar(&o.weir, "weir", "bin/weir", "the gateway's `binary`")
	flag.StringVar(&o.engine, "engine", "auto", "its engine: epoll, io_uring or auto")
	flag.StringVar(&o.only, "only", "", "scenarios, separated by commas: memory, fanout, upload, download; empty: all")
	flag.StringVar(&o.out, "out", "", "where the report is kept, without .md and .json; empty: nowhere")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each scenario")
	flag.IntVar(&o.idle, "idle", 10_000, "idle subscribers in memory")
	flag.IntVar(&o.idleTLS, "idle-tls", 2000, "idle subscribers in memory that have a TLS connection each")
	flag.IntVar(&o.subscribers, "subscribers", 2000, "subscribers in fanout")
	flag.DurationVar(&o.seconds, "seconds", 2*time.Second, "measured time of a run of fanout")
	flag.IntVar(&o.megabytes, "mb", 200, "size of a body in upload and download, in units of 1,000,000 bytes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "http2:", err)
		os.Exit(1)
	}
}

// A bench is one invocation.
type bench struct {
	options
	dir  string // of servers' files
	cert string // with its key, for TLS
	key  string
}

func run(ctx context.Context, o options) error {
	chosen := scenarios(o)
	if o.only != "" {
		names := strings.Split(o.only, ",")
		chosen = slices.DeleteFunc(chosen, func(s *scenario) bool { return !slices.Contains(names, s.name) })
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no scenario %q: want memory, fanout, upload or download", o.only)
	}
	if out, err := exec.CommandContext(ctx, "taskset", "-a", "-cp", "1", strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset: %w: %s", err, out)
	}
	b := &bench{options: o}
	var err error
	if b.dir, err = os.MkdirTemp("", "weir-bench-http2-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if b.cert, b.key, err = program.Certificate(b.dir); err != nil {
		return err
	}
	r := newReport(ctx, o)
	for _, s := range chosen {
		if err := b.measure(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		r.add(s)
	}
	fmt.Print(r.markdown())
	return r.write(o.out)
}

// measure carries out the rounds of a scenario.
func (b *bench) measure(ctx context.Context, s *scenario) error {
	s.got = make([][]sample, len(s.ways))
	for i := range b.rounds {
		for k, w := range s.ways {
			m, err := s.run(b, ctx, w)
			if err != nil {
				return fmt.Errorf("%s: %w", w, err)
			}
			s.got[k] = append(s.got[k], m)
		}
		fmt.Fprintf(os.Stderr, "  %s %d/%d\n", s.name, i+1, b.rounds)
	}
	return nil
}
