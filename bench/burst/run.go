package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

const key = "burst-key-0123456789"

// gateway is a weir that runs.
type gateway struct {
	*program.Process
	url, admin string
	dir        string

	subs *loadgen.Readers
}

// start runs the gateway. classed gives its namespaces classes.
func start(ctx context.Context, o *options, classed bool) (*gateway, error) {
	dir, err := os.MkdirTemp("", "burst")
	if err != nil {
		return nil, err
	}
	market, order := "", ""
	if classed {
		market, order = "market", "order"
	}
	guard := "2ms"
	if !o.guard {
		guard = "-1s"
	}
	addr, err := program.FreeAddr()
	if err != nil {
		return nil, err
	}
	adminAddr, err := program.FreeAddr()
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`listen: %s
admin: {listen: %q}
broker: {kind: memory}
eventloop: {engine: %q, loops: %d}
auth: {api_keys: [{name: burst, key: %s, publish: ["**"]}]}
admission: {guard: %s, slice: %s}
namespaces:
  - {name: market, durability: none, anonymous: true, compress: true, queue_messages: 20000, queue_bytes: 67108864, class: %q}
  - {name: orders, durability: none, anonymous: true, class: %q}
`, addr, adminAddr, o.engine, o.loops, key, guard, o.slice, market, order)
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	p, err := program.Options{CPUs: o.cpus}.Start(ctx, o.weir, "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	g := &gateway{Process: p, url: "http://" + addr, admin: "http://" + adminAddr, dir: dir}
	if err := p.Ready(program.Answers(ctx, g.url+"/readyz")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return g, nil
}

func (g *gateway) stop() {
	g.Stop()
	_ = os.RemoveAll(g.dir)
}

// spec is the load of one kind of publication.
func (g *gateway) spec(channel string, publishers, size int) loadgen.Spec {
	return loadgen.Spec{
		Kind: loadgen.HTTP, Target: g.url + "/api/publish", Method: "POST", Conns: publishers, Pipeline: 1,
		Headers: []string{"X-API-Key: " + key}, Body: `{"channel":"` + channel + `","data":"` + loadgen.PriceText(size) + `"}`,
		Window: 250 * time.Millisecond, Warmup: 2 * time.Second,
	}
}

// generate carries specs out at the same time.
func generate(ctx context.Context, specs ...loadgen.Spec) ([]*loadgen.Result, error) {
	results, errs := make([]*loadgen.Result, len(specs)), make([]error, len(specs))
	var all sync.WaitGroup
	for i, s := range specs {
		all.Go(func() {
			g, err := loadgen.New(s, nil)
			if err != nil {
				errs[i] = err
				return
			}
			results[i], errs[i] = g.Run(ctx)
			errs[i] = errors.Join(errs[i], g.Close())
		})
	}
	all.Wait()
	return results, errors.Join(errs...)
}

// search finds the highest rate of the mix that the gateway without classes carries
// within the latency that admission aims at.
func (g *gateway) search(ctx context.Context, o *options) (float64, error) {
	market, err := loadgen.New(g.spec("market:EURUSD", 512, o.payload), nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = market.Close() }()
	orders, err := loadgen.New(g.spec("orders:new", 128, 128), nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = orders.Close() }()
	carries := func(rate float64) (bool, error) {
		var w [2]*loadgen.Window
		var errs [2]error
		var all sync.WaitGroup
		for i, m := range []*loadgen.Generator{market, orders} {
			part := []float64{1 - o.orders, o.orders}[i]
			all.Go(func() { w[i], errs[i] = m.Measure(ctx, loadgen.Load{Rate: rate * part}, 2*time.Second) })
		}
		all.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return false, err
		}
		var p phase
		p.add(w[0])
		p.add(w[1])
		p.finish()
		ok := p.Failed+p.Refused == 0 && p.P95 <= 15
		fmt.Fprintf(os.Stderr, "search: %.0f/s: P95 %.2f ms, %d failed, carried: %v\n", rate, p.P95, p.Failed+p.Refused, ok)
		return ok, nil
	}
	low, high := 1000.0, 0.0
	for high == 0 || high > 1.1*low {
		rate := 1.6 * low
		if high > 0 {
			rate = (low + high) / 2
		}
		ok, err := carries(rate)
		if err == nil && !ok {
			ok, err = carries(rate) // once may be a stall of the machine's
		}
		switch {
		case err != nil:
			return 0, err
		case ok:
			low = rate
		default:
			high = rate
		}
	}
	return low, nil
}

// run finds the capacity and carries out the burst.
func run(ctx context.Context, o *options) (*result, error) {
	if o.weir == "" {
		return nil, errors.New("say where the gateway's binary is: -weir")
	}
	r := &result{Options: fmt.Sprintf("%+v", *o), orders: o.orders}
	g, err := start(ctx, o, false)
	if err != nil {
		return nil, err
	}
	stop, err := g.subscribe(ctx, o)
	if r.Capacity = o.capacity; err == nil && r.Capacity == 0 {
		r.Capacity, err = g.search(ctx, o)
	}
	stop()
	g.stop()
	if err != nil {
		return nil, err
	}
	if g, err = start(ctx, o, !o.unclassed); err != nil {
		return nil, err
	}
	defer g.stop()
	if stop, err = g.subscribe(ctx, o); err != nil {
		return nil, err
	}
	specs := []loadgen.Spec{g.spec("market:EURUSD", 512, o.payload), g.spec("orders:new", 128, 128)}
	for i, part := range []float64{1 - o.orders, o.orders} {
		base := r.Capacity * o.base * part
		specs[i].Stages = []loadgen.Stage{
			{Duration: time.Millisecond, Rate: base}, {Duration: o.settle, Rate: base},
			{Duration: time.Millisecond, Rate: base * o.times}, {Duration: o.burst, Rate: base * o.times},
			{Duration: time.Millisecond, Rate: base}, {Duration: o.after, Rate: base},
		}
	}
	before, err := program.CPU(g.PID())
	if err != nil {
		return nil, err
	}
	both, err := generate(ctx, specs...)
	if err != nil {
		return nil, err
	}
	after, err := program.CPU(g.PID())
	if err != nil {
		return nil, err
	}
	r.CPU = after - before
	n := g.settle()
	if o.metrics != "" {
		if err := g.keepMetrics(ctx, o.metrics); err != nil {
			return nil, err
		}
	}
	r.Closed = g.subs.Ended()
	stop()
	r.Delivered = n
	market, err := g.admitted(ctx, "market")
	if err != nil {
		return nil, err
	}
	orders, err := g.admitted(ctx, "order")
	if err != nil {
		return nil, err
	}
	r.Expected = plain*market + orders
	r.evaluate(o, both[0], both[1])
	return r, nil
}

// plain is how many of the market's subscribers take it uncompressed and are counted.
const plain = 2

// subscribe opens the subscribers: those of the market, and one of the orders.
func (g *gateway) subscribe(ctx context.Context, o *options) (stop func(), err error) {
	g.subs = &loadgen.Readers{}
	addr, market := strings.TrimPrefix(g.url, "http://"), "/sse?channel=market:EURUSD"
	return g.subs.Close, errors.Join(
		g.subs.Connect(ctx, addr, market, max(o.subscribers-plain, 0), true),
		g.subs.Connect(ctx, addr, market, min(plain, o.subscribers), false),
		g.subs.Connect(ctx, addr, "/sse?channel=orders:new", 1, false))
}

// settle waits until nothing more is delivered and returns how much was.
func (g *gateway) settle() uint64 {
	for {
		n := g.subs.Delivered()
		time.Sleep(300 * time.Millisecond)
		if g.subs.Delivered() == n {
			return n
		}
	}
}

// admitted is how many publications of a class the gateway says it let through.
func (g *gateway) admitted(ctx context.Context, class string) (uint64, error) {
	m, err := program.Metrics(ctx, g.admin+"/metrics")
	return uint64(m[`weir_admission_requests_total{class="`+class+`",outcome="admitted"}`]), err
}

// keepMetrics writes what the gateway counted to a file.
func (g *gateway) keepMetrics(ctx context.Context, file string) error {
	b, err := program.Get(ctx, g.admin+"/metrics")
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}
