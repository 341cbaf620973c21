// Command gm measures what Chinese national cryptography costs the gateway:
//
//   - handshakes: full handshakes of TLCP and RFC 8998 per second of the server's
//     processor time, beside Tongsuo's s_server in the same round
//   - fanout: the server's processor time per message to SSE subscribers with SM4-GCM,
//     beside AES-128-GCM
//   - idle: the server's memory for each of many idle SSE subscribers, live and resident
//
// It is run from the root of the repository:
//
//	go run ./bench/gm -weir bin/weir -tongsuo path/to/openssl
//	go run ./bench/gm -weir bin/weir -only fanout -rounds 1     some of it, to try it out
//
// The server has CPU 0; this program, which is the clients, has CPU 1. Each run is made on
// a fresh process, and ratios are taken within a round. It needs Linux, two CPUs and
// taskset. `make test-gm` builds Tongsuo's openssl.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

type options struct {
	weir, engine, tongsuo, only string
	rounds, handshakes          int
	subscribers, messages, idle int
}

// A bench is one invocation.
type bench struct {
	options
	dir       string // of the servers' files
	cert, key string // for AES-GCM
}

func main() {
	var o options
	flag.StringVar(&o.weir, "weir", "bin/weir", "the gateway's `binary`")
	flag.StringVar(&o.engine, "engine", "auto", "its engine: epoll, io_uring or auto")
	flag.StringVar(&o.tongsuo, "tongsuo", "", "Tongsuo's openssl `binary`; empty: handshakes are measured without it")
	flag.StringVar(&o.only, "only", "", "handshakes, fanout or idle; empty: all")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each")
	flag.IntVar(&o.handshakes, "handshakes", 2000, "handshakes of a run")
	flag.IntVar(&o.subscribers, "subscribers", 500, "subscribers in fanout")
	flag.IntVar(&o.messages, "messages", 500, "messages of a run of fanout")
	flag.IntVar(&o.idle, "idle", 10_000, "idle subscribers of a run of idle")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "gm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if min(o.rounds, o.handshakes, o.subscribers, o.messages, o.idle) < 1 {
		return fmt.Errorf("-rounds, -handshakes, -subscribers, -messages and -idle are at least 1")
	}
	if out, err := exec.CommandContext(ctx, "taskset", "-a", "-cp", "1", strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset: %w: %s", err, out)
	}
	dir, err := os.MkdirTemp("", "weir-bench-gm-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{options: o, dir: dir}
	if _, err := gm.WriteTestChain(gm.TestChain{Dir: dir, Hosts: []string{"localhost"}, Lifetime: 24 * time.Hour}); err != nil {
		return err
	}
	if b.cert, b.key, err = program.Certificate(dir); err != nil {
		return err
	}
	known := false
	for _, m := range []struct {
		name    string
		measure func(context.Context) error
	}{{"handshakes", b.measureHandshakes}, {"fanout", b.measureFanout}, {"idle", b.measureIdle}} {
		if o.only != "" && o.only != m.name {
			continue
		}
		known = true
		if err := m.measure(ctx); err != nil {
			return err
		}
	}
	if !known {
		return fmt.Errorf("invalid -only %q: want handshakes, fanout or idle", o.only)
	}
	return nil
}

// spread is the least, the middle and the greatest of values.
func spread(values []float64) string {
	v := slices.Sorted(slices.Values(values))
	return fmt.Sprintf("%.2f / %.2f / %.2f", v[0], v[len(v)/2], v[len(v)-1])
}

func (b *bench) measureHandshakes(ctx context.Context) error {
	for _, suite := range []*gm.Suite{gm.SuiteOf(gm.VersionTLCP, gm.ECC_SM4_GCM_SM3), gm.SuiteOf(gm.VersionTLS13, gm.TLS_SM4_GCM_SM3)} {
		var ratios []float64
		for round := range b.rounds {
			g, err := b.startWeir(ctx)
			if err != nil {
				return err
			}
			own, err := b.handshakesOf(ctx, g, suite)
			if err != nil {
				return fmt.Errorf("weir, %s: %w", suite.Name, err)
			}
			fmt.Printf("handshakes %s, round %d: weir %.0f per second and core", suite.Name, round+1, own)
			if b.tongsuo != "" {
				if g, err = b.startTongsuo(ctx, suite); err != nil {
					return err
				}
				theirs, err := b.handshakesOf(ctx, g, suite)
				if err != nil {
					return fmt.Errorf("tongsuo, %s: %w", suite.Name, err)
				}
				ratios = append(ratios, own/theirs)
				fmt.Printf(", tongsuo %.0f, ratio %.2f", theirs, own/theirs)
			}
			fmt.Println()
		}
		if len(ratios) > 0 {
			fmt.Printf("handshakes %s: weir ÷ tongsuo %s (least / middle / greatest)\n", suite.Name, spread(ratios))
		}
	}
	return nil
}

func (b *bench) measureFanout(ctx context.Context) error {
	ways := []string{"AES-128-GCM", "RFC 8998", "TLCP"}
	ratios := map[string][]float64{}
	for round := range b.rounds {
		cost := map[string]float64{}
		for _, way := range ways {
			each, err := b.fanout(ctx, way)
			if err != nil {
				return fmt.Errorf("fanout, %s: %w", way, err)
			}
			cost[way] = each
			fmt.Printf("fanout %s, round %d: %.3f µs of the server per message\n", way, round+1, each)
		}
		for _, way := range ways[1:] {
			ratios[way] = append(ratios[way], cost[way]/cost[ways[0]])
		}
	}
	for _, way := range ways[1:] {
		fmt.Printf("fanout: SM4-GCM (%s) ÷ AES-128-GCM %s (least / middle / greatest)\n", way, spread(ratios[way]))
	}
	return nil
}

// quoted is s in a configuration file.
func quoted(s string) string { return strconv.Quote(strings.TrimSpace(s)) }
