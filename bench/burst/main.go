// Command burst measures admission on a running gateway: market data and orders at
// 0.6 of its capacity, a burst of three times that, and the base load again, all in
// the open model and over real sockets. It finds the capacity first, on the same
// gateway and the same machine, and reports whether the claims of
// docs/design/admission.md hold.
//
//	go run ./bench/burst -weir ./weir -burst 10s
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

// options are the flags.
type options struct {
	weir, engine, cpus, metrics string
	loops, subscribers, payload int
	base, times, orders         float64
	settle, burst, after, slice time.Duration
	unclassed, guard            bool
	capacity                    float64
}

func main() {
	var o options
	flag.StringVar(&o.weir, "weir", "", "the gateway's `binary`")
	flag.StringVar(&o.engine, "engine", "auto", "`engine` of the gateway's loops")
	flag.StringVar(&o.cpus, "cpus", "", "`CPUs` of the gateway, as taskset takes them; empty means any")
	flag.StringVar(&o.metrics, "metrics", "", "write the gateway's metrics at the end to this `file`")
	flag.IntVar(&o.loops, "loops", 2, "event loops of the gateway")
	flag.IntVar(&o.subscribers, "subscribers", 200, "subscribers of the market's channel")
	flag.IntVar(&o.payload, "payload", 4096, "`bytes` of a message of the market, which is compressed for its subscribers")
	flag.Float64Var(&o.base, "base", 0.6, "base load as a `part` of the capacity")
	flag.Float64Var(&o.times, "times", 3, "the burst in `times` of the base")
	flag.Float64Var(&o.orders, "orders", 0.1, "orders as a `part` of all")
	flag.DurationVar(&o.settle, "before", 10*time.Second, "how long the base load lasts before")
	flag.DurationVar(&o.burst, "burst", 10*time.Second, "how long the burst lasts")
	flag.DurationVar(&o.after, "after", 10*time.Second, "how long the base load lasts after")
	flag.DurationVar(&o.slice, "slice", time.Millisecond, "how long a loop works on what waits at a time")
	flag.BoolVar(&o.unclassed, "unclassed", false, "nothing has a class: what happens without admission")
	flag.BoolVar(&o.guard, "guard", true, "halve the market's budget while the process is short of processors")
	flag.Float64Var(&o.capacity, "capacity", 0, "requests per second; 0 means that it is measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := run(ctx, &o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "burst:", err)
		os.Exit(1)
	}
	r.print(os.Stdout)
	if err := json.NewEncoder(os.Stderr).Encode(r); err != nil {
		os.Exit(1)
	}
}
