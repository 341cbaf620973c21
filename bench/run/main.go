// Command run measures weir against what the sockets of this machine allow: each
// scenario on fresh processes, weir and the limit alternately, and reports their
// ratios. bench/README.md says why ratios. Run it from the top of the module,
// usually by `make bench-peers`.
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
	"strings"
	"syscall"
	"time"
)

func main() {
	beReference(os.Args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		complain(os.Stderr, err)
	}
	os.Exit(code)
}

func complain(w io.Writer, err error) {
	fmt.Fprintf(w, "bench: %v\n", err)
	if h, ok := errors.AsType[hint](err); ok {
		fmt.Fprintf(w, "hint: %s\n", h.text)
	}
}

type flags struct {
	scenarios, peers, bin, dir, label string
	runs, port, n                     int
	seconds                           float64
	budget                            time.Duration
	write                             bool
}

func parseFlags(args []string, stderr io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("bench", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.scenarios, "scenarios", "default", "names joined by commas or spaces")
	set.StringVar(&f.peers, "peers", "nchan uwebsockets centrifugo", "peers to measure if they are installed, or none")
	set.IntVar(&f.runs, "runs", 5, "rounds of each scenario")
	set.Float64Var(&f.seconds, "seconds", 1.5, "measured time of one run")
	set.DurationVar(&f.budget, "budget", 10*time.Minute, "start no further round when a scenario's share of it is up; each has at least one")
	set.IntVar(&f.n, "n", 0, "at most so many subscribers, to try the bench out; 0: as the scenario says")
	set.IntVar(&f.port, "port", 0, "the servers' port; 0 takes free ones")
	set.StringVar(&f.bin, "bin", ".cache/bench", "directory with weir, limit and load")
	set.StringVar(&f.dir, "dir", "bench", "directory with peers/ and results/")
	set.StringVar(&f.label, "label", "", "what to call the results; empty: the scenarios")
	set.BoolVar(&f.write, "write", true, "write bench/results")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 || f.runs < 1 || f.seconds <= 0 {
		return f, hinted(fmt.Errorf("%v: not understood", args), "bench -h lists the flags; -runs is from 1, -seconds above 0")
	}
	return f, nil
}

// command returns the exit status: 2 usage, 1 when something could not be
// measured. A missed target is a result, not a failure.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	f, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, err
	}
	chosen, err := choose(f.scenarios, f.n)
	if err != nil {
		return 2, err
	}
	if err := machineFits(chosen); err != nil {
		return 1, err
	}
	b := &bench{load: filepath.Join(f.bin, "load"), port: f.port, runs: f.runs, seconds: f.seconds, out: stderr, commands: map[string][]string{}}
	absent, err := b.find(f)
	if err != nil {
		return 1, err
	}
	if b.scratch, err = os.MkdirTemp("", "weir-bench-"); err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(b.scratch) }()
	rep := report{Facts: gather(ctx, b.weir.path), Runs: f.runs, Seconds: f.seconds, Shrunk: f.n, Absent: absent, commands: b.commands}
	failed, started := false, time.Now()
	for i, sc := range chosen {
		// Each has its share, and what the earlier ones left of theirs.
		b.until = started.Add(f.budget * time.Duration(i+1) / time.Duration(len(chosen)))
		r := b.run(ctx, sc)
		if ctx.Err() != nil {
			return 1, ctx.Err()
		}
		if r.err != nil {
			failed = true
			complain(stderr, r.err)
		}
		rep.add(r)
	}
	fmt.Fprint(stdout, rep.markdown())
	if f.write {
		path, err := rep.write(filepath.Join(f.dir, "results"), label(f))
		if err != nil {
			return 1, err
		}
		fmt.Fprintf(stderr, "written: %s.md and .json\n", path)
	}
	if failed {
		return 1, errors.New("not every scenario could be measured")
	}
	return 0, nil
}

func label(f flags) string {
	if f.label != "" {
		return f.label
	}
	name := strings.Join(strings.FieldsFunc(f.scenarios, func(r rune) bool { return r == ',' || r == ' ' }), "+")
	if name == "" {
		return "default"
	}
	return name[:min(len(name), 60)]
}

// find reads the adapters. Weir, the limit and the load client must be there;
// it returns why peers are not.
func (b *bench) find(f flags) (map[string]string, error) {
	folder := filepath.Join(f.dir, "peers")
	var err error
	if _, err := os.Stat(b.load); err != nil {
		return nil, hinted(fmt.Errorf("the load client: %w", err), "make bench-peers builds it; run from the top of the module")
	}
	if b.load, err = filepath.Abs(b.load); err != nil {
		return nil, err
	}
	if b.weir, err = readAdapter(folder, "weir", f.bin); err != nil {
		return nil, err
	}
	if b.limit, err = readAdapter(folder, "limit", f.bin); err != nil {
		return nil, err
	}
	absent := map[string]string{}
	for _, name := range strings.FieldsFunc(f.peers, func(r rune) bool { return r == ',' || r == ' ' }) {
		if name == "none" {
			continue
		}
		p, err := readAdapter(folder, name, f.bin)
		switch h, _ := errors.AsType[hint](err); {
		case errors.Is(err, errAbsent):
			absent[name] = "not installed: " + h.text
		case err != nil:
			return nil, err
		default:
			b.peers = append(b.peers, p)
		}
	}
	return absent, nil
}
