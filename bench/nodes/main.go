// Command nodes measures what a delivery costs the gateways with one node and with three on one
// NATS server: one hot channel that all clients follow, and many channels with one subscriber
// each. Clients grow with the nodes, and with many channels so do these and the messages, so that every node has the
// same to deliver. It prints processor time per delivery of the gateways together, and of the NATS
// server, side by side in each round.
//
//	go run ./bench/nodes -weir bin/weir
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/weir-gateway/weir/bench/program"
)

// options are the flags.
type options struct {
	weir             string
	nodes, rounds    int
	subscribers      int
	channels         int
	hotRate, allRate int
	window           time.Duration
}

// A scenario is who follows what, for each node, and how much is published in a second.
type scenario struct {
	name                  string
	subscribers, channels int
	rate                  int
}

// A sample is what one run with so many nodes has cost.
type sample struct {
	Scenario   string
	Nodes      int
	Deliveries int64
	// Weir and NATS are microseconds of processor time per delivery.
	Weir, NATS float64
}

func main() {
	if os.Getenv(roleEnv) != "" {
		if err := serveNATS(os.Getenv(roleEnv)); err != nil {
			fmt.Fprintln(os.Stderr, "nodes: NATS server:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.weir, "weir", "bin/weir", "the gateway's `binary`")
	flag.IntVar(&o.nodes, "nodes", 3, "nodes to compare with one")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds, each with one node and with -nodes")
	flag.IntVar(&o.subscribers, "subscribers", 1000, "subscribers of the hot channel on each node")
	flag.IntVar(&o.channels, "channels", 10_000, "channels of the other scenario with -nodes, each with a subscriber on one of them")
	flag.IntVar(&o.hotRate, "hot", 10, "messages a second on the hot channel")
	flag.IntVar(&o.allRate, "rate", 500, "messages a second for each node over all channels of the other scenario")
	flag.DurationVar(&o.window, "window", 8*time.Second, "time that is measured in each run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		os.Exit(1)
	}
}

// run measures both scenarios and prints the table.
func run(ctx context.Context, o *options) error {
	var samples []sample
	fmt.Printf("| scenario | weir, µs a delivery: 1 node | %d nodes | times linear | NATS, µs a delivery: 1 node | %d nodes |\n|---|---|---|---|---|---|\n", o.nodes, o.nodes)
	for _, s := range []scenario{
		{"one hot channel", o.subscribers, 1, o.hotRate},
		{fmt.Sprintf("%d channels", o.channels), o.channels / o.nodes, o.channels, o.allRate},
	} {
		costs := map[int][]sample{}
		for range o.rounds {
			for _, n := range []int{1, o.nodes} {
				one, err := measure(ctx, o, &s, n)
				if err != nil {
					return fmt.Errorf("%s with %d nodes: %w", s.name, n, err)
				}
				costs[n] = append(costs[n], one)
				samples = append(samples, one)
			}
		}
		one, many := middle(costs[1]), middle(costs[o.nodes])
		fmt.Printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", s.name, one.Weir, many.Weir, one.Weir/many.Weir, one.NATS, many.NATS)
	}
	return json.NewEncoder(os.Stderr).Encode(samples)
}

// middle is the medians of the costs.
func middle(list []sample) (m sample) {
	var weir, nats []float64
	for _, s := range list {
		weir, nats = append(weir, s.Weir), append(nats, s.NATS)
	}
	return sample{Weir: program.Median(weir), NATS: program.Median(nats)}
}
