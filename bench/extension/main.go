// Extension measures what an extension costs a gateway: the processor time of a request that
// Weir answers itself, without an extension, with a Go function, with a unary call by gRPC, and
// with messages on one long-lived stream of gRPC.
//
//	go run ./bench/extension                 5 rounds, about a minute
//	go run ./bench/extension -runs 1 -for 1s to try it out; such numbers say nothing
//
// The gateway has CPU 0, the load and the extension's server have CPU 1. Each round runs the
// variants one by one on fresh processes and compares within the round. It needs Linux, two CPUs and
// taskset.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/bench/program"
)

var variants = []string{"none", "hook", "unary", "stream"}

type options struct {
	runs    int
	seconds time.Duration
	conns   int
	out     string
}

func main() {
	var o options
	role := flag.String("as", "", "be the gateway of a variant, or rules, the extension's server (used by itself)")
	listen := flag.String("listen", "", "its address")
	target := flag.String("target", "", "the extension's server")
	flag.IntVar(&o.runs, "runs", 5, "rounds")
	flag.DurationVar(&o.seconds, "for", 3*time.Second, "how long each is measured")
	flag.IntVar(&o.conns, "conns", 32, "client connections")
	flag.StringVar(&o.out, "out", "bench/results/extension.md", "where the table is kept; empty: nowhere")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch *role {
	case "":
		err = measure(ctx, o)
	case "rules":
		err = serveRules(ctx, *listen)
	default:
		err = serveGateway(ctx, *role, *listen, *target)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "extension:", err)
		os.Exit(1)
	}
}

// measure runs all variants and writes the table.
func measure(ctx context.Context, o options) error {
	if _, err := exec.LookPath("taskset"); err != nil {
		return errors.New("taskset is missing; apt-get install util-linux")
	}
	rules, err := program.FreeAddr()
	if err != nil {
		return err
	}
	server, err := start(ctx, "1", rules, "-as", "rules", "-listen", rules)
	if err != nil {
		return err
	}
	defer server.Stop()
	costs := map[string][]float64{}
	for range o.runs {
		for _, v := range variants {
			cost, err := sample(ctx, o, v, rules)
			if err != nil {
				return fmt.Errorf("%s: %w", v, err)
			}
			costs[v] = append(costs[v], cost)
		}
	}
	report := fmt.Sprintf("# The cost of an extension, measured %s\n\n%s, %d CPUs. %d connections, %d rounds of %v each on fresh processes, the gateway on CPU 0, load and extension on CPU 1.\n"+
		"Processor time of the gateway's process, user and kernel, per request; ratios within the round.\n\n"+
		"| extension | CPU µs per request | to none: min / median / max |\n|---|---:|---:|\n",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), runtime.Version(), runtime.NumCPU(), o.conns, o.runs, o.seconds)
	for _, v := range variants {
		var ratios []float64
		for i, c := range costs[v] {
			ratios = append(ratios, c/costs["none"][i])
		}
		slices.Sort(ratios)
		report += fmt.Sprintf("| %s | %.1f | %.2f / **%.2f** / %.2f |\n", v, program.Median(costs[v]), ratios[0], ratios[len(ratios)/2], ratios[len(ratios)-1])
	}
	fmt.Print(report)
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, []byte(report), 0o644)
}

// sample returns the processor time of a request, in microseconds.
func sample(ctx context.Context, o options, variant, rules string) (float64, error) {
	addr, err := program.FreeAddr()
	if err != nil {
		return 0, err
	}
	gateway, err := start(ctx, "0", addr, "-as", variant, "-listen", addr, "-target", rules)
	if err != nil {
		return 0, err
	}
	defer gateway.Stop()
	if _, err := load(ctx, addr, o.conns, time.Second/2); err != nil { // warm: connections, pools, code
		return 0, err
	}
	before, err := program.CPU(gateway.PID())
	if err != nil {
		return 0, err
	}
	n, err := load(ctx, addr, o.conns, o.seconds)
	if err != nil {
		return 0, err
	}
	after, err := program.CPU(gateway.PID())
	if err != nil {
		return 0, err
	}
	return (after - before).Seconds() * 1e6 / float64(n), nil
}

// load sends requests on conns connections and returns how many were answered with 200.
func load(ctx context.Context, addr string, conns int, d time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var n atomic.Int64
	errs := make(chan error, conns)
	var all sync.WaitGroup
	for range conns {
		all.Go(func() { errs <- client(ctx, addr, &n) })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return 0, err
		}
	}
	if n.Load() == 0 {
		return 0, errors.New("no request was answered")
	}
	return n.Load(), nil
}

func client(ctx context.Context, addr string, n *atomic.Int64) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	request := []byte("GET /x HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: bench\r\nAuthorization: Bearer 0123456789\r\nAccept: */*\r\n\r\n")
	for ctx.Err() == nil {
		if _, err := c.Write(request); err != nil {
			return err
		}
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return err
		}
		_ = res.Body.Close() // it was read to its end
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("answered %s", res.Status)
		}
		n.Add(1)
	}
	return nil
}

// start runs this program in another role on a CPU and waits until it listens.
func start(ctx context.Context, cpu, addr string, args ...string) (*program.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := program.Options{CPUs: cpu, Env: []string{"GOMAXPROCS=1"}, Stderr: os.Stderr}.Start(ctx, append([]string{self}, args...)...)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(program.Accepts(addr)); err != nil {
		return nil, err
	}
	return p, nil
}
