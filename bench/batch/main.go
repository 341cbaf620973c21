// Batch measures what routes[].batch is worth before a backend whose call costs a fixed time
// and a little for each item, one call at a time: a model of a GPU. The gateway serves one
// route without batch, one that waits for others for a time, and one that sends at once while
// no call is under way, side by side.
//
//	go run ./bench/batch -weir bin/weir                    3 rounds, about four minutes
//	go run ./bench/batch -weir bin/weir -runs 1 -for 1s    to try it out
//
// Times are the backend's sleeps, not computations, so that other processes matter little.
// The load average is in the report.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/bench/program"
)

type options struct {
	weir       string
	runs       int
	seconds    time.Duration
	fixed, per time.Duration
	out        string
}

func main() {
	var o options
	serve := flag.String("serve", "", "be the backend at this address (used by itself)")
	flag.StringVar(&o.weir, "weir", "bin/weir", "the gateway's binary")
	flag.IntVar(&o.runs, "runs", 3, "rounds")
	flag.DurationVar(&o.seconds, "for", 5*time.Second, "how long each is measured")
	flag.DurationVar(&o.fixed, "fixed", 20*time.Millisecond, "what a call costs")
	flag.DurationVar(&o.per, "per-item", time.Millisecond, "what an item costs besides")
	flag.StringVar(&o.out, "out", "", "where the table is kept; empty: nowhere")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if *serve != "" {
		err = serveModel(*serve, o)
	} else {
		err = measure(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "batch:", err)
		os.Exit(1)
	}
}

// variants are the routes; all have the same cluster.
var variants = []struct{ name, batch string }{
	{"none", ""},
	{"max_wait: 5ms", "{format: kserve, max_items: 32, max_wait: 5ms}"},
	{"max_calls: 1", "{format: kserve, max_items: 32, max_wait: -1ms, max_calls: 1}"},
}

// A demand is what clients do: so many of them, one request after the other, or requests at
// random times at a rate.
type demand struct {
	clients int
	rate    float64 // per second; 0: closed
}

func (d demand) String() string {
	if d.rate > 0 {
		return fmt.Sprintf("%.0f/s at random", d.rate)
	}
	return fmt.Sprintf("%d clients", d.clients)
}

var demands = []demand{{clients: 1}, {rate: 30}, {clients: 8}, {clients: 32}, {clients: 128}}

// A result is one variant under one demand.
type result struct{ perSecond, p50, p99, items float64 }

func measure(ctx context.Context, o options) error {
	url, admin, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	results := map[string][]result{}
	for range o.runs {
		for _, d := range demands {
			for i, v := range variants {
				r, err := sample(ctx, o, d, fmt.Sprintf("%s/%d", url, i), admin)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", d, v.name, err)
				}
				results[d.String()+v.name] = append(results[d.String()+v.name], r)
			}
		}
	}
	report := table(o, results)
	fmt.Print(report)
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, []byte(report), 0o644)
}

// start starts backend and gateway. stop ends them.
func start(ctx context.Context, o options) (url, admin string, stop func(), err error) {
	var addrs [3]string
	for i := range addrs {
		if addrs[i], err = program.FreeAddr(); err != nil {
			return "", "", nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return "", "", nil, err
	}
	dir, err := os.MkdirTemp("", "batch")
	if err != nil {
		return "", "", nil, err
	}
	config := fmt.Sprintf("listen: %s\nadmin: {listen: %s}\ngovernor: {enabled: false}\nclusters:\n  - {name: model, peers: [{address: %q}]}\nroutes:\n", addrs[0], addrs[1], addrs[2])
	for i, v := range variants {
		config += fmt.Sprintf("  - {name: %q, path: /%d, cluster: model", v.name, i)
		if v.batch != "" {
			config += ", batch: " + v.batch
		}
		config += "}\n"
	}
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return "", "", nil, err
	}
	model, err := program.Options{}.Start(ctx, self, "-serve", addrs[2], "-fixed", o.fixed.String(), "-per-item", o.per.String())
	if err != nil {
		return "", "", nil, err
	}
	gateway, err := program.Options{}.Start(ctx, o.weir, "serve", "--config", file)
	if err != nil {
		model.Kill()
		return "", "", nil, err
	}
	stop = func() {
		gateway.Stop()
		model.Kill()
		_ = os.RemoveAll(dir)
	}
	if err := errors.Join(model.Ready(program.Accepts(addrs[2])), gateway.Ready(program.Answers(ctx, "http://"+addrs[0]+"/readyz"))); err != nil {
		stop()
		return "", "", nil, err
	}
	return "http://" + addrs[0], "http://" + addrs[1] + "/metrics", stop, nil
}

// serveModel is the backend. Items are counted by their commas: they are plain numbers.
func serveModel(addr string, o options) error {
	var one sync.Mutex
	s := &http.Server{Addr: addr, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		n := 1 + bytes.Count(body, []byte(","))
		one.Lock()
		time.Sleep(o.fixed + time.Duration(n)*o.per)
		one.Unlock()
		_, _ = io.WriteString(w, `{"predictions":[1`+strings.Repeat(",1", n-1)+`]}`)
	})}
	return s.ListenAndServe()
}

// sample has clients make requests of one route.
func sample(ctx context.Context, o options, d demand, url, metrics string) (result, error) {
	before, err := program.Metrics(ctx, metrics)
	if err != nil {
		return result{}, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	defer client.CloseIdleConnections()
	times, inTime, err := d.run(ctx, client, url, o.seconds)
	if err != nil {
		return result{}, err
	}
	after, err := program.Metrics(ctx, metrics)
	if err != nil {
		return result{}, err
	}
	requests := `weir_upstream_requests_total{cluster="model",code="2xx"}`
	calls := after[requests] - before[requests]
	slices.Sort(times)
	return result{perSecond: float64(inTime) / o.seconds.Seconds(), items: float64(len(times)) / calls,
		p50: times[len(times)/2].Seconds() * 1e3, p99: times[len(times)*99/100].Seconds() * 1e3}, nil
}

// run makes the requests of d and returns how long each took, and how many were answered
// in time; the others that began in time are waited for.
func (d demand) run(ctx context.Context, client *http.Client, url string, span time.Duration) (times []time.Duration, inTime int, failed error) {
	var mu sync.Mutex
	end := time.Now().Add(span)
	one := func(due time.Time) {
		err := ask(ctx, client, url)
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, err)
		times = append(times, time.Since(due))
		if time.Now().Before(end) {
			inTime++
		}
	}
	var all sync.WaitGroup
	for range d.clients {
		all.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				one(time.Now())
			}
		})
	}
	if d.rate > 0 {
		for due := time.Now(); due.Before(end) && ctx.Err() == nil; due = due.Add(time.Duration(rand.ExpFloat64() / d.rate * float64(time.Second))) {
			time.Sleep(time.Until(due))
			all.Go(func() { one(due) })
		}
	}
	all.Wait()
	if len(times) == 0 {
		failed = errors.Join(failed, errors.New("no request was made"))
	}
	return times, inTime, failed
}

func ask(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"instances":[1]}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || string(body) != `{"predictions":[1]}`) {
		err = fmt.Errorf("%s %s", res.Status, body)
	}
	return err
}

// table is the report: the medians of the rounds.
func table(o options, results map[string][]result) string {
	load, _ := os.ReadFile("/proc/loadavg") // empty where there is none
	b := fmt.Sprintf("# Batching before a model of a GPU, measured %s\n\n%s, %d CPUs, load average at the end %s. A call takes %v and %v for each item, one call at a time; requests have one\n"+
		"item. %d rounds of %v each on one gateway, medians of the rounds. Clients send one request after the other; at random is open, with times from when a request was due.\n\n"+
		"| demand | batch | requests/s | p50 ms | p99 ms | requests per call |\n|---|---|---:|---:|---:|---:|\n",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), runtime.Version(), runtime.NumCPU(), firstFields(string(load), 1), o.fixed, o.per, o.runs, o.seconds)
	for _, d := range demands {
		for _, v := range variants {
			list := results[d.String()+v.name]
			m := func(get func(result) float64) float64 {
				var all []float64
				for _, r := range list {
					all = append(all, get(r))
				}
				return program.Median(all)
			}
			b += fmt.Sprintf("| %s | %s | %.0f | %.1f | %.1f | %.1f |\n", d, v.name, m(func(r result) float64 { return r.perSecond }),
				m(func(r result) float64 { return r.p50 }), m(func(r result) float64 { return r.p99 }), m(func(r result) float64 { return r.items }))
		}
	}
	return b
}

func firstFields(s string, n int) string {
	f := strings.Fields(s)
	return strings.Join(f[:min(n, len(f))], " ")
}
