// Command takeover measures upgrades of a running server under load: clients over SSE,
// WebSocket and HTTP/2, a part of them over TLS, follow channels that are published on at a
// steady rate, and others have WebSockets of a backend behind the server, which sends as often and gets all of it back,
// while the program is upgraded again and again. It says how many clients were
// disconnected, what was lost, repeated or reordered, and the longest silence of any client
// beyond the time between two messages of its channel.
//
//	go run ./bench/takeover -weir bin/weir -clients 15000 -rate 2000 -upgrades 50
//	go run ./bench/takeover -weir bin/weir -clients 1000 -rate 0 -upgrades 1000
//
// With -rate 0 the clients are idle, and the descriptors and memory of each process are compared.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"time"
)

// options are the flags.
type options struct {
	weir, engine, broker           string
	clients, channels, rate, loops int
	upgrades                       int
	tls, sse, ws, tunnels          float64
	pause, patience                time.Duration
}

// memory is from how many bytes on garbage is collected nevertheless.
const memory = 6 << 30

func main() {
	var o options
	flag.StringVar(&o.weir, "weir", "bin/weir", "the server's `binary`")
	flag.StringVar(&o.engine, "engine", "auto", "`engine` of the server's loops: auto, epoll or io_uring")
	flag.StringVar(&o.broker, "broker", "memory", "`kind` of the broker: memory or nats, which is embedded")
	flag.IntVar(&o.clients, "clients", 2000, "clients, each with a connection of its own")
	flag.IntVar(&o.channels, "channels", 0, "channels that they follow, one each; 0 means a tenth of the clients")
	flag.IntVar(&o.rate, "rate", 2000, "messages a second, over all channels; 0: none")
	flag.IntVar(&o.loops, "loops", 2, "event loops of a server")
	flag.IntVar(&o.upgrades, "upgrades", 5, "upgrades")
	flag.Float64Var(&o.tls, "tls", 1.0/3, "`part` of the clients that connect over TLS, to a server of its own")
	flag.Float64Var(&o.sse, "sse", 0.4, "`part` of the clients over SSE")
	flag.Float64Var(&o.ws, "ws", 0.3, "`part` of the clients over WebSocket; those that are left speak HTTP/2")
	flag.Float64Var(&o.tunnels, "tunnels", 0.1, "`part` of the clients that have a WebSocket of a backend")
	flag.DurationVar(&o.pause, "pause", 2*time.Second, "time between two upgrades")
	flag.DurationVar(&o.patience, "patience", 30*time.Second, "longest wait for clients to connect, and for the last message")
	flag.Parse()
	if o.channels == 0 {
		o.channels = max(o.clients/10, 1)
	}
	// The clients share the processors with the servers: their garbage can wait until the end.
	debug.SetMemoryLimit(memory)
	debug.SetGCPercent(-1)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := run(ctx, &o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "takeover:", err)
		os.Exit(1)
	}
	r.print(os.Stdout)
	if err := json.NewEncoder(os.Stderr).Encode(r); err != nil || !r.holds() {
		os.Exit(1)
	}
}

// run starts the servers and clients, publishes, and upgrades.
func run(ctx context.Context, o *options) (r *result, err error) {
	r = &result{Options: fmt.Sprintf("%+v", *o), Clients: o.clients}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	secured := int(float64(o.clients) * o.tls)
	var fleets []*fleet
	for i, n := range []int{o.clients - secured, secured} {
		if n == 0 {
			continue
		}
		channels := max(o.channels*n/o.clients, 1)
		b, err := newBackend(int(math.Ceil(float64(channels) * o.tunnels)))
		if err != nil {
			return nil, err
		}
		s, err := start(o, i == 1, b.listener.Addr().String())
		if err != nil {
			return nil, err
		}
		defer s.stop()
		f := &fleet{server: s, rate: o.rate * n / o.clients, channels: channels, backend: b}
		fleets = append(fleets, f)
		if err := f.connect(ctx, o, n); err != nil {
			return nil, err
		}
	}
	stops := make([]func() error, 0, len(fleets))
	for _, f := range fleets {
		stops = append(stops, f.publish(ctx))
	}
	for i := range o.upgrades {
		if err := sleep(ctx, o.pause); err != nil {
			return nil, err
		}
		for _, f := range fleets {
			if err := r.upgrade(i, f.server); err != nil {
				return nil, err
			}
		}
	}
	if err := sleep(ctx, o.pause); err != nil {
		return nil, err
	}
	for _, stop := range stops {
		if err := stop(); err != nil {
			return nil, err
		}
	}
	for _, f := range fleets {
		f.await(o.patience)
	}
	cancel()
	for _, f := range fleets {
		f.report(r)
	}
	return r, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
