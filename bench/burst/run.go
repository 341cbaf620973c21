package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/loadgen"
)

const key = "burst-key-0123456789"

// gateway is a weir that runs.
type gateway struct {
	cmd  *exec.Cmd
	url  string
	said bytes.Buffer
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
	config := fmt.Sprintf(`listen: 127.0.0.1:18700
admin: {listen: "127.0.0.1:18701"}
broker: {kind: memory}
eventloop: {engine: %q, loops: %d}
auth: {api_keys: [{name: burst, key: %s, publish: ["**"]}]}
admission: {guard: %s}
namespaces:
  - {name: market, durability: none, anonymous: true, class: %q}
  - {name: orders, durability: none, anonymous: true, class: %q}
`, o.engine, o.loops, key, guard, market, order)
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	args := []string{o.weir, "serve", "--config", file}
	if o.cpus != "" {
		args = append([]string{"taskset", "-c", o.cpus}, args...)
	}
	g := &gateway{cmd: exec.CommandContext(ctx, args[0], args[1:]...), url: "http://127.0.0.1:18700"}
	g.cmd.Stdout, g.cmd.Stderr = &g.said, &g.said
	g.cmd.Cancel = func() error { return g.cmd.Process.Signal(syscall.SIGINT) }
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	for range 200 {
		res, err := http.Get(g.url + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			return g, nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	g.stop()
	return nil, fmt.Errorf("the gateway does not answer: %s", g.said.String())
}

func (g *gateway) stop() {
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	_ = g.cmd.Wait() // it says how it ended, and that is of no interest
}

// cpu is the processor time that the gateway has used.
func (g *gateway) cpu() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var user, system int64
	_, _ = fmt.Sscan(f[11], &user) // the kernel writes numbers there
	_, _ = fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// spec is the load of one kind of publication.
func (g *gateway) spec(channel string, subscribers, publishers int) loadgen.Spec {
	return loadgen.Spec{
		Kind: loadgen.PubSub, Target: g.url + "/sse?channel=" + channel, Adapter: "weir", Channel: channel, Conns: subscribers, Publishers: publishers,
		Headers: []string{"X-API-Key: " + key}, Payload: 128, Loops: 2, Window: 250 * time.Millisecond, Warmup: 2 * time.Second,
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

// cost is what a publication takes the gateway when there is no pause: one over the
// rate of a closed loop.
func (g *gateway) cost(ctx context.Context, channel string, subscribers int) (time.Duration, error) {
	s := g.spec(channel, subscribers, 64)
	s.Closed, s.Concurrency, s.Duration = true, 64, 5*time.Second
	r, err := generate(ctx, s)
	if err != nil {
		return 0, err
	}
	w := &r[0].Total
	if w.Delivery.Published == 0 {
		return 0, fmt.Errorf("nothing was published on %s: %v", channel, w.Errors)
	}
	return time.Duration(float64(w.Length) / float64(w.Delivery.Published)), nil
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
	r.MarketCost, err = g.cost(ctx, "market:EURUSD", o.subscribers)
	if err == nil {
		r.OrderCost, err = g.cost(ctx, "orders:new", 1)
	}
	g.stop()
	if err != nil {
		return nil, err
	}
	if r.Capacity = o.capacity; r.Capacity == 0 {
		r.Capacity = 1 / (o.orders*r.OrderCost.Seconds() + (1-o.orders)*r.MarketCost.Seconds())
	}
	if g, err = start(ctx, o, !o.unclassed); err != nil {
		return nil, err
	}
	defer g.stop()
	specs := []loadgen.Spec{g.spec("market:EURUSD", o.subscribers, 512), g.spec("orders:new", 1, 128)}
	for i, part := range []float64{1 - o.orders, o.orders} {
		base := r.Capacity * o.base * part
		specs[i].Stages = []loadgen.Stage{
			{Duration: time.Millisecond, Rate: base}, {Duration: o.settle, Rate: base},
			{Duration: time.Millisecond, Rate: base * o.times}, {Duration: o.burst, Rate: base * o.times},
			{Duration: time.Millisecond, Rate: base}, {Duration: o.after, Rate: base},
		}
	}
	before := g.cpu()
	both, err := generate(ctx, specs...)
	if err != nil {
		return nil, err
	}
	r.CPU = g.cpu() - before
	r.judge(o, both[0], both[1])
	return r, nil
}
