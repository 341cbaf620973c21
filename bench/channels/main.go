// Command channels measures what many channels cost on NATS, with one partition and with
// several: how long a node needs after a reconnect until all of its subscriptions work again,
// what a million channels of one namespace do to the publish rate, to the restart of the NATS
// server and to its memory, and what a message costs there for each node that has subscribers.
//
//	go run ./bench/channels -run rejoin -channels 200000 -partitions 1,4
//	go run ./bench/channels -run stored -channels 1000000 -partitions 1,4
//	go run ./bench/channels -run interest -nodes 8
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// options are the flags.
type options struct {
	channels, nodes, messages, payload int
	partitions                         []int
	dir                                string
}

func main() {
	if role := os.Getenv(roleEnv); role != "" {
		if err := serveNATS(role); err != nil {
			fmt.Fprintln(os.Stderr, "channels: NATS server:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	what := flag.String("run", "rejoin", "`measurement`: rejoin, stored or interest")
	parts := flag.String("partitions", "1,4", "partitions of the namespace, one run for each of the `list`")
	flag.IntVar(&o.channels, "channels", 200_000, "channels")
	flag.IntVar(&o.nodes, "nodes", 4, "nodes of the run interest, of which 0 to all have subscribers")
	flag.IntVar(&o.messages, "messages", 100_000, "messages per rate that is measured")
	flag.IntVar(&o.payload, "payload", 128, "`bytes` of a message")
	flag.StringVar(&o.dir, "dir", "", "`directory` for the NATS server's files; empty means a temporary one")
	flag.Parse()
	if err := run(*what, *parts, &o); err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
}

func run(what, parts string, o *options) error {
	for p := range strings.SplitSeq(parts, ",") {
		n, err := strconv.Atoi(p)
		if err != nil {
			return fmt.Errorf("-partitions: %q is not a number", p)
		}
		o.partitions = append(o.partitions, n)
	}
	measure := map[string]func(*options, int) error{"rejoin": rejoin, "stored": stored, "interest": interest}[what]
	if measure == nil {
		return fmt.Errorf("-run: %q is none of rejoin, stored and interest", what)
	}
	for _, p := range o.partitions {
		if err := measure(o, p); err != nil {
			return fmt.Errorf("%s with %d partitions: %w", what, p, err)
		}
	}
	return nil
}
