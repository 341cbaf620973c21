// Command observing measures what watching costs: the same fan-out on a gateway with
// everything on (the governor, its canaries, a scrape a second, a reader of the live
// page) and on one with nothing of it, in pairs, in the order on off off on, so that what
// the machine does meanwhile falls on both alike.
//
//	go run ./bench/observing -weir ./bin/weir -pairs 6
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

const (
	key    = "observing-key-0123456789"
	public = "127.0.0.1:18720"
	admin  = "127.0.0.1:18721"
)

// options are the flags.
type options struct {
	weir                    string
	pairs, loops            int
	subscribers, publishers int
	length                  time.Duration
	live                    bool
	recorder                bool
}

func main() {
	var o options
	flag.StringVar(&o.weir, "weir", "", "the gateway's `binary`")
	flag.IntVar(&o.pairs, "pairs", 6, "`pairs` of runs; an even number balances the order")
	flag.IntVar(&o.loops, "loops", 1, "event loops of the gateway")
	flag.IntVar(&o.subscribers, "subscribers", 500, "subscribers of the channel")
	flag.IntVar(&o.publishers, "publishers", 16, "publications under way at a time")
	flag.DurationVar(&o.length, "length", 4*time.Second, "length of a run")
	flag.BoolVar(&o.live, "live", true, "with everything on, a client reads the live page")
	flag.BoolVar(&o.recorder, "recorder", true, "the flight recorder is armed while the state is alert, as a full loop is")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, &o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "observing:", err)
		os.Exit(1)
	}
}

// A score is one run's.
type score struct {
	rate float64 // deliveries per second
	cost float64 // processor time of the gateway per delivery, in seconds
}

// run measures the pairs and prints the ratios.
func run(ctx context.Context, o *options, w io.Writer) error {
	if o.weir == "" {
		return errors.New("say where the gateway's binary is: -weir")
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Fprintf(w, "load average before: %s", load)
	}
	fmt.Fprintf(w, "%d subscribers, %d publishers, %d loops, %s a run, live page %v, recorder %v\n", o.subscribers, o.publishers, o.loops, o.length, o.live, o.recorder)
	fmt.Fprintln(w, "| pair | order | on, deliveries/s | off | ratio | on, µs CPU per delivery | off | ratio |")
	fmt.Fprintln(w, "|---:|---|---:|---:|---:|---:|---:|---:|")
	var rates, costs []float64
	for i := range o.pairs {
		var got [2]score // off, on
		order := [2]int{1, 0}
		if i%2 == 1 {
			order = [2]int{0, 1}
		}
		for _, which := range order {
			s, err := measure(ctx, o, which == 1)
			if err != nil {
				return err
			}
			got[which] = s
		}
		off, on := got[0], got[1]
		rates, costs = append(rates, on.rate/off.rate), append(costs, off.cost/on.cost)
		fmt.Fprintf(w, "| %d | %s | %.0f | %.0f | %.3f | %.3f | %.3f | %.3f |\n", i+1, []string{"on off", "off on"}[i%2],
			on.rate, off.rate, on.rate/off.rate, on.cost*1e6, off.cost*1e6, off.cost/on.cost)
	}
	fmt.Fprintf(w, "\nthroughput on/off: %s\nefficiency on/off (deliveries per processor second): %s\n", middle(rates), middle(costs))
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Fprintf(w, "load average after: %s", load)
	}
	return nil
}

// middle is the median of ratios with the least and the greatest.
func middle(v []float64) string {
	v = slices.Sorted(slices.Values(v))
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return fmt.Sprintf("median %.3f, %.3f to %.3f in %d pairs", m, v[0], v[len(v)-1], len(v))
}

// measure is one run on a fresh gateway.
func measure(ctx context.Context, o *options, on bool) (s score, err error) {
	dir, err := os.MkdirTemp("", "observing")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := fmt.Sprintf(`listen: %s
admin: {listen: %q}
broker: {kind: memory}
eventloop: {loops: %d}
auth: {api_keys: [{name: bench, key: %s, publish: ["**"]}]}
governor: {enabled: %v, evidence: {dir: %q, flight_recorder: %v}}
namespaces: [{name: default, durability: none, anonymous: true}]
`, public, admin, o.loops, key, on, filepath.Join(dir, "evidence"), o.recorder)
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return s, err
	}
	p, err := program.Options{}.Start(ctx, o.weir, "serve", "--config", file)
	if err != nil {
		return s, err
	}
	defer p.Stop()
	if err := p.Ready(program.Answers(ctx, "http://"+public+"/readyz")); err != nil {
		return s, err
	}
	watching, end := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	if on {
		watchers.Go(func() { scrape(watching) })
		if o.live {
			watchers.Go(func() { follow(watching) })
		}
	}
	defer watchers.Wait()
	defer end()
	g, err := loadgen.New(loadgen.Spec{
		Kind: loadgen.PubSub, Target: "http://" + public + "/sse?channel=a", Adapter: "weir", Channel: "a", Conns: o.subscribers, Publishers: o.publishers,
		Headers: []string{"X-API-Key: " + key}, Payload: 128, Window: 250 * time.Millisecond, Warmup: time.Second,
		Closed: true, Concurrency: o.publishers, Duration: o.length,
	}, nil)
	if err != nil {
		return s, err
	}
	before, err := program.CPU(p.PID())
	if err != nil {
		return s, err
	}
	r, err := g.Run(ctx)
	if err = errors.Join(err, g.Close()); err != nil {
		return s, err
	}
	after, err := program.CPU(p.PID())
	if err != nil {
		return s, err
	}
	d := r.Total.Delivery
	if d.Received == 0 {
		return s, fmt.Errorf("nothing was delivered: %v", r.Total.Errors)
	}
	// The warm-up's processor time is counted and its deliveries are not: the same for both.
	s.rate = float64(d.Received) / r.Total.Length.Seconds()
	s.cost = (after - before).Seconds() / float64(d.Received)
	return s, nil
}

// scrape reads the metrics once a second, ten times as often as is usual.
func scrape(ctx context.Context) {
	for tick := time.Tick(time.Second); ; {
		take(ctx, "/metrics")
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}

// follow is a page that is left open.
func follow(ctx context.Context) { take(ctx, "/api/live") }

func take(ctx context.Context, path string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, nil)
	if err != nil {
		return
	}
	if res, err := http.DefaultClient.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body) // until the end, or ctx's
		_ = res.Body.Close()
	}
}
