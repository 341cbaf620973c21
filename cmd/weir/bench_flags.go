package main

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// Exit statuses of the commands that measure. They are verdicts, so that wrong
// usage, elsewhere 2, is EX_USAGE of sysexits.h.
const (
	exitPass         = 0
	exitFail         = 1
	exitInconclusive = 2
	exitInvalid      = 3
	exitUsage        = 64
)

// exitStatuses is what help says of them.
const exitStatuses = `Exit status: 0 pass, 1 fail or no run, 2 inconclusive, 3 invalid (the
generator or its machine was the limit), 64 wrong usage.`

// An exitError ends the program with a status of its own. A nil err has been printed
// already.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "exit status " + strconv.Itoa(e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitWith is an error for every status but 0.
func exitWith(status int) error {
	if status == 0 {
		return nil
	}
	return &exitError{status: status}
}

// measures makes wrong usage of cmd end with exitUsage.
func measures(cmd *cobra.Command) *cobra.Command {
	args, run := cmd.Args, cmd.RunE
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return &exitError{exitUsage, &usageError{err}}
	})
	cmd.Args = func(cmd *cobra.Command, a []string) error {
		if args == nil {
			return nil
		}
		if err := args(cmd, a); err != nil {
			return &exitError{exitUsage, usage("usage: "+cmd.UseLine(), "%s: %w", strings.TrimPrefix(cmd.CommandPath(), "weir "), err)}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		err := run(cmd, a)
		if _, ok := errors.AsType[*usageError](err); ok {
			return &exitError{exitUsage, err}
		}
		return err
	}
	return cmd
}

// oneTarget wants the target as the only argument.
func oneTarget(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return errors.New("no target")
	case 1:
		return nil
	}
	return fmt.Errorf("%d targets", len(args))
}

// A targetFlags is the flags of bench and knee about the target.
type targetFlags struct {
	kind, arrival, body string
	http2               bool
	sources             []string
	spec                loadgen.Spec
}

// add defines the flags. Every zero means what loadgen.Spec says.
func (f *targetFlags) add(fs *pflag.FlagSet) {
	s := &f.spec
	fs.StringVar(&f.kind, "kind", "", "`KIND`: http, echo, pubsub, ws or sse (default: from URL and adapter)")
	fs.StringVar(&s.Adapter, "adapter", "", "`NAME`: plain, weir, mercure, nchan or centrifuge (default plain)")
	fs.StringArrayVarP(&s.Headers, "header", "H", nil, "`'Name: value'` for every request; may be repeated")
	fs.BoolVar(&s.Insecure, "insecure", false, "accept any certificate")
	fs.StringVar(&s.GM, "gm", "", "dial with Chinese national cryptography: `tlcp` (GB/T 38636) or tls13 (RFC 8998)")
	fs.IntVarP(&s.Conns, "conns", "c", 0, "`N` connections; with pubsub, ws and sse the subscribers (default 1, with http and echo 50)")
	fs.Float64Var(&s.ConnectRate, "connect-rate", 0, "`N` new connections per second (default 2000)")
	fs.StringSliceVar(&f.sources, "source", nil, "local `addresses` to connect from, which multiplies the ports there are")
	fs.StringVar(&f.arrival, "arrival", "poisson", "`distribution` of arrivals: poisson, uniform or burst:N")
	fs.IntVar(&s.MaxInFlight, "max-in-flight", 0, "at most `N` in flight; further arrivals are dropped and counted (default 10000)")
	fs.DurationVar(&s.Timeout, "timeout", 0, "`time` after which a request is an error (default 10s)")
	fs.StringVarP(&s.Method, "method", "X", "", "HTTP `method` (default GET, with a body POST)")
	fs.StringVar(&f.body, "body", "", "request body as `text`, or @file")
	fs.BoolVar(&f.http2, "http2", false, "speak HTTP/2")
	fs.IntVar(&s.Pipeline, "pipeline", 0, "`N` requests outstanding on a connection; with HTTP/2 streams (default 1)")
	fs.IntVar(&s.Payload, "payload", 0, "`bytes` of a message that is echoed or published (default 128)")
	fs.StringVar(&s.Transport, "transport", "", "how subscribers of pubsub `connect`, ws or sse (default: from the URL)")
	fs.IntVar(&s.Channels, "channels", 0, "`N` channels that subscribers are spread over (default 1)")
	fs.StringVar(&s.Channel, "channel", "", "`name` of the channels, with {channel} for the number (default bench-{channel})")
	fs.StringVar(&s.Publish, "publish", "", "`URL` to publish to (default: the adapter's)")
	fs.IntVar(&s.Publishers, "publishers", 0, "`N` connections that publish (default 4)")
	fs.BoolVar(&s.Deflate, "deflate", false, "offer permessage-deflate")
	fs.BoolVar(&s.Reconnect, "reconnect", false, "reconnect streams that end, with their position, and count missed messages")
	fs.DurationVar(&s.Window, "window", 0, "`time` of the intervals that are reported and checked (default 1s)")
	fs.Uint64Var(&s.Seed, "seed", 0, "seed `N` of the arrivals, to repeat a run (default: from the clock; the result has it)")
	fs.IntVar(&s.Loops, "loops", 0, "`N` event loops (default 1; beyond 10,000 connections one per CPU)")
	fs.StringVar(&s.Engine, "engine", "", "`NAME`: epoll, io_uring or auto (default auto)")
}

// specFor is the Spec of what the flags say about a target. sends says that a rate
// or a loop was asked for.
func (f *targetFlags) specFor(target string, sends bool) (loadgen.Spec, error) {
	s := f.spec
	s.Target = target
	var err error
	if s.Arrival, s.Burst, err = parseArrival(f.arrival); err != nil {
		return s, err
	}
	if s.Kind, err = f.kindFor(target, sends); err != nil {
		return s, err
	}
	if f.http2 {
		s.Version = "2"
	}
	if s.Conns == 0 && (s.Kind == loadgen.HTTP || s.Kind == loadgen.Echo) {
		s.Conns = 50
	}
	if s.Body, err = readBody(f.body); err != nil {
		return s, err
	}
	for _, a := range f.sources {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return s, usage("write it as 127.0.0.2", "--source %q: %w", a, err)
		}
		s.Sources = append(s.Sources, addr)
	}
	return s, nil
}

// kindFor guesses the kind where only one makes sense.
func (f *targetFlags) kindFor(target string, sends bool) (loadgen.Kind, error) {
	scheme, _, ok := strings.Cut(target, "://")
	if !ok {
		return "", usage("write it as http://127.0.0.1:8080/path; ws:, https: and wss: are known too", "target %q is not a URL", target)
	}
	switch {
	case f.kind != "":
		return loadgen.Kind(f.kind), nil
	case f.spec.Adapter != "" && f.spec.Adapter != "plain", f.spec.Publish != "":
		return loadgen.PubSub, nil
	case scheme == "http" || scheme == "https":
		return loadgen.HTTP, nil
	case sends:
		return loadgen.Echo, nil
	}
	return "", usage("--kind echo sends messages and waits for each to come back, --kind ws only follows what the server sends",
		"what %s does with messages is not known", target)
}

// readBody reads what --body says: text, or @file.
func readBody(v string) (string, error) {
	name, ok := strings.CutPrefix(v, "@")
	if !ok {
		return v, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return "", usage("a body that starts with @ names a file", "--body: %w", err)
	}
	return string(b), nil
}

// parseArrival reads poisson, uniform, burst or burst:N.
func parseArrival(v string) (loadgen.Arrival, int, error) {
	name, n, ok := strings.Cut(v, ":")
	a := loadgen.Arrival(name)
	bad := usage("write --arrival poisson, uniform or burst:10", "--arrival %q is not known", v)
	switch {
	case a == loadgen.Burst && ok:
		size, err := strconv.Atoi(n)
		if err != nil || size < 1 {
			return "", 0, bad
		}
		return a, size, nil
	case ok || a != loadgen.Burst && a != loadgen.Poisson && a != loadgen.Uniform:
		return "", 0, bad
	}
	return a, 0, nil
}

// parseRate reads arrivals per second: 1000, 2.5k, 1M, 1000/s, 90/m.
func parseRate(v string) (float64, error) {
	text, per := strings.TrimSuffix(v, "/s"), 1.0
	if t, ok := strings.CutSuffix(text, "/m"); ok {
		text, per = t, 60
	}
	factor := 1.0
	for suffix, by := range map[string]float64{"k": 1e3, "M": 1e6} {
		if t, ok := strings.CutSuffix(text, suffix); ok {
			text, factor = t, by
			break
		}
	}
	r, err := strconv.ParseFloat(text, 64)
	if err != nil || !(r >= 0) || math.IsInf(r, 0) {
		return 0, usage("write it as 1000, 2.5k or 90/m", "invalid rate %q: want arrivals per second", v)
	}
	return r * factor / per, nil
}

// parseStages reads "30s:1000,1m:2k:500": duration, rate at its end, and
// connections at its end. A rate of - stays as it is.
func parseStages(v string) ([]loadgen.Stage, error) {
	if v == "" {
		return nil, nil
	}
	var stages []loadgen.Stage
	for i, part := range strings.Split(v, ",") {
		bad := func(err error) error {
			return usage(`write stages as duration:rate[:connections], "30s:1000,1m:2k:500"`, "stage %d, %q: %w", i+1, part, err)
		}
		fields := strings.Split(strings.TrimSpace(part), ":")
		if len(fields) != 2 && len(fields) != 3 {
			return nil, bad(fmt.Errorf("%d fields", len(fields)))
		}
		var st loadgen.Stage
		var err error
		if st.Duration, err = time.ParseDuration(fields[0]); err != nil {
			return nil, bad(err)
		}
		st.Rate = -1
		if fields[1] != "-" {
			if st.Rate, err = parseRate(fields[1]); err != nil {
				return nil, bad(err)
			}
		}
		if len(fields) == 3 {
			if st.Conns, err = strconv.Atoi(fields[2]); err != nil || st.Conns < 0 {
				return nil, bad(fmt.Errorf("connections %q", fields[2]))
			}
		}
		stages = append(stages, st)
	}
	return stages, nil
}

// specErrors makes what is wrong with a Spec wrong usage, each with its hint.
func specErrors(err error) error {
	var all []error
	for _, p := range config.Problems(err) {
		all = append(all, &usageError{p})
	}
	return errors.Join(all...)
}
