// Proxy measures what forwarding a small request costs: Weir, nginx, HAProxy, Go's
// ReverseProxy and an unparsed relay in C, one after the other under the same load;
// and what a reply of their own costs, one at a time and sixteen pipelined.
//
//	go run ./bench/proxy                 all of it, 5 rounds, some minutes
//	go run ./bench/proxy -runs 1 -for 1s to try it out; such numbers say nothing
//
// Servers have CPU 0, the load (wrk) and the backend have CPU 1. A server's cost is
// the processor time of its processes over the requests that were answered. Each
// round runs each once on fresh processes and compares within the round, because
// absolute figures drift on a shared machine.
//
// It needs Linux, two CPUs, gcc, taskset and wrk; nginx and haproxy if they are to
// be compared with.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	runs    int
	seconds time.Duration
	conns   int
	only    string
	beside  string
	out     string
}

func main() {
	var o options
	role := flag.String("as", "", "be one of the servers: weir or reverseproxy (used by itself)")
	listen := flag.String("listen", "", "that server's address")
	peer := flag.String("peer", "", "and its backend")
	engine := flag.String("engine", "", "Weir's engine: epoll, io_uring or auto")
	flag.IntVar(&o.runs, "runs", 5, "rounds")
	flag.DurationVar(&o.seconds, "for", 2*time.Second, "how long each is measured")
	flag.IntVar(&o.conns, "conns", 128, "client connections")
	flag.StringVar(&o.only, "only", "", "one scenario: proxy, reply or reply-16; empty: all")
	flag.StringVar(&o.beside, "beside", "", "the servers to compare with, separated by commas; empty: all that are installed")
	flag.StringVar(&o.out, "out", "bench/results/proxy.md", "where the table is kept; empty: nowhere")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	switch *role {
	case "weir":
		err = serve(ctx, *listen, *peer, *engine)
	case "reverseproxy":
		err = reverseProxy(ctx, *listen, *peer)
	default:
		err = measure(ctx, o, *engine)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

// measure runs all scenarios and writes the table.
func measure(ctx context.Context, o options, engine string) error {
	for _, tool := range []string{"gcc", "taskset", "wrk"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing; apt-get install gcc util-linux wrk", tool)
		}
	}
	dir, err := os.MkdirTemp("", "weir-bench-proxy-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	limit := filepath.Join(dir, "limit")
	if out, err := exec.CommandContext(ctx, "gcc", "-O2", "-o", limit, "bench/proxy/limit/limit.c").CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s\n(run it in the repository)", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b := &bench{options: o, dir: dir, limit: limit, self: self, engine: engine}
	report := b.header(ctx)
	for _, s := range b.scenarios() {
		if o.only != "" && s.name != o.only {
			continue
		}
		table, err := b.run(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Println(table)
		report += table + "\n"
	}
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, []byte(report), 0o644)
}

// A scenario is one load, and the servers that bear it. The first is Weir, the
// second what the others are compared with too.
type scenario struct {
	name, what string
	pipeline   int
	backend    bool
	servers    []contestant
	targets    map[string]float64 // of Weir's ratio to another
}

// A contestant is a server as it is started. Without its program it is left out.
type contestant struct {
	name, program, path string
	args                func(port, backend int) []string
}

func (b *bench) scenarios() []scenario {
	weir := func(path string) contestant {
		return contestant{"weir", b.self, path, func(port, backend int) []string {
			return []string{"-as", "weir", "-listen", addr(port), "-peer", addr(max(backend, 1)), "-engine", b.engine}
		}}
	}
	own := []contestant{
		weir("/static/hello"),
		{"limit", b.limit, "/", func(port, _ int) []string { return []string{fmt.Sprint(port)} }},
		{"nginx", "nginx", "/", func(port, _ int) []string { return b.nginx(port, `return 200 "Hello, World!";`) }},
	}
	return []scenario{
		{name: "proxy", what: "a small request forwarded to a C backend over keep-alive connections", backend: true, pipeline: 1,
			targets: map[string]float64{"nginx": 0.85}, servers: []contestant{
				weir("/hello"),
				{"limit", b.limit, "/", func(port, backend int) []string { return []string{fmt.Sprint(port), fmt.Sprint(backend)} }},
				{"nginx", "nginx", "/", func(port, _ int) []string {
					return b.nginx(port, `proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection "";`)
				}},
				{"haproxy", "haproxy", "/", b.haproxy},
				{"reverseproxy", b.self, "/", func(port, backend int) []string {
					return []string{"-as", "reverseproxy", "-listen", addr(port), "-peer", addr(backend)}
				}},
			}},
		{name: "reply", what: "a reply of its own, one request at a time", pipeline: 1, targets: map[string]float64{"limit": 1.3}, servers: own},
		{name: "reply-16", what: "the same, 16 requests pipelined", pipeline: 16, servers: own},
	}
}

func addr(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// run measures a scenario and returns its table.
func (b *bench) run(ctx context.Context, s scenario) (string, error) {
	s.servers = slices.DeleteFunc(slices.Clone(s.servers), func(c contestant) bool {
		_, err := exec.LookPath(c.program)
		return err != nil || b.beside != "" && c.name != "weir" && !slices.Contains(strings.Split(b.beside, ","), c.name)
	})
	results := map[string][]sample{}
	for range b.runs {
		for _, c := range s.servers {
			m, err := b.sample(ctx, s, c)
			if err != nil {
				return "", fmt.Errorf("%s: %w", c.name, err)
			}
			results[c.name] = append(results[c.name], m)
		}
	}
	var t strings.Builder
	fmt.Fprintf(&t, "## %s\n\n%s.\n\n", s.name, strings.ToUpper(s.what[:1])+s.what[1:])
	t.WriteString("| server | CPU µs per request | p99 ms | weir ÷ it: min / median / max | target | met | failed |\n|---|---:|---:|---:|---|---|---:|\n")
	for _, c := range s.servers {
		m := results[c.name]
		ratios := paired(results["weir"], m)
		fmt.Fprintf(&t, "| %s | %.2f | %.2f | %.2f / **%.2f** / %.2f |", c.name, median(m, func(x sample) float64 { return x.cpu }),
			median(m, func(x sample) float64 { return x.p99 }), ratios[0], ratios[len(ratios)/2], ratios[len(ratios)-1])
		if want, ok := s.targets[c.name]; ok {
			met := "no"
			if ratios[len(ratios)/2] <= want {
				met = "yes"
			}
			fmt.Fprintf(&t, " ≤ %.2f | %s |", want, met)
		} else {
			t.WriteString(" – | – |")
		}
		failed := 0
		for _, x := range m {
			failed += x.failed
		}
		fmt.Fprintf(&t, " %d |\n", failed)
	}
	return t.String(), nil
}

var errNoLoad = errors.New("no request was answered")
