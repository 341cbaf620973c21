package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

const (
	key    = "curve-key-0123456789"
	public = "127.0.0.1:18730"
	admin  = "127.0.0.1:18731"
	// perChannel are the subscribers of a channel at the flat rate: the fan-out of a message stays
	// the same while connections grow.
	perChannel = 100
	// perProcess bounds the connections of one generator: all of them count as its descriptors.
	perProcess = 10_000
	// warmUp comes before a run is measured, connectRate is how fast connections are made.
	warmUp      = 2 * time.Second
	connectRate = 5000
)

// work is what the load generator gets for a kind: its target, and what belongs to it.
var work = map[string]func(p *point, o *options) []string{
	"echo": func(*point, *options) []string { return []string{"ws://" + public + "/echo", "--kind", "echo"} },
	"proxy": func(*point, *options) []string {
		return []string{"http://" + public + "/hello", "--kind", "http"}
	},
	"fanout": func(p *point, _ *options) []string {
		args := []string{"http://" + public + "/sse", "--adapter", "weir", "-H", "X-API-Key: " + key}
		if p.Flat {
			args = append(args, "--channels", strconv.Itoa(max(p.Conns/perChannel, 1)), "--arrival", "uniform")
		}
		return args
	},
}

// A point of a curve.
type point struct {
	Kind  string `json:"kind"`
	Loops int    `json:"loops"`
	Conns int    `json:"connections"`
	// Flat reports that the rate is o.rate; otherwise as much is done as can be.
	Flat bool          `json:"flat"`
	Runs []measurement `json:"runs"`
}

// A measurement is one run of a point.
type measurement struct {
	Rate float64 `json:"rate"`   // operations per second
	CPU  float64 `json:"cpu_us"` // processor time of the gateway for each, in µs
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	// Memory is the gateway's for each connection, in bytes, at the end.
	Memory float64 `json:"memory_bytes"`
	// Lost are deliveries that did not come and exchanges that failed.
	Lost uint64 `json:"lost"`
	// Limited reports why the generator was the limit, "" if it was not: of a run at the flat rate
	// the latency means nothing then.
	Limited string `json:"limited,omitempty"`
}

func (m *measurement) note() string {
	var s string
	if m.Lost > 0 {
		s = fmt.Sprintf("  %d lost", m.Lost)
	}
	if m.Limited != "" {
		s += "  generator: " + m.Limited
	}
	return s
}

func (p *point) name() string {
	if p.Flat {
		return fmt.Sprintf("%s, %d connections", p.Kind, p.Conns)
	}
	return fmt.Sprintf("%s, %d loops", p.Kind, p.Loops)
}

// plan lists the points, and names what this machine cannot run.
func plan(o *options, w io.Writer) (points []point) {
	for _, k := range o.kinds {
		for _, n := range o.loops {
			if n > runtime.NumCPU() {
				fmt.Fprintf(w, "not run: %s with %d loops: this machine has %d processors\n", k, n, runtime.NumCPU())
				continue
			}
			points = append(points, point{Kind: k, Loops: n, Conns: map[string]int{"fanout": 1000, "proxy": 128, "echo": 128}[k]})
		}
	}
	most := o.flatLoops * int(maxFiles()-300)
	for _, k := range o.kinds {
		for _, n := range o.conns {
			if n > most {
				fmt.Fprintf(w, "not run: %s with %d connections: %d loops have room for %d under this descriptor limit\n", k, n, o.flatLoops, most)
				continue
			}
			points = append(points, point{Kind: k, Loops: o.flatLoops, Conns: n, Flat: true})
		}
	}
	return points
}

func maxFiles() uint64 {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 1024
	}
	return r.Max
}

// measure runs a fresh gateway under the point's load.
func (p *point) measure(ctx context.Context, o *options, backend net.Addr, profiled bool) (m measurement, err error) {
	dir, err := os.MkdirTemp("", "curve-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	g, err := p.serve(ctx, o, backend, dir)
	if err != nil {
		return m, err
	}
	defer func() {
		g.Kill() // a drain is not what is measured
		http.DefaultClient.CloseIdleConnections()
	}()
	if profiled && p.Flat {
		done := make(chan error, 1)
		go func() {
			done <- profile(ctx, p.profile(o), time.Duration(p.Conns)*time.Second/connectRate+warmUp+time.Second, o.length-2*time.Second)
		}()
		defer func() {
			if perr := <-done; err == nil {
				err = perr
			}
		}()
	}
	r, err := p.load(ctx, o, g.PID())
	if err != nil {
		return m, err
	}
	return p.read(r), nil
}

// profile is the file of the point's processor profile.
func (p *point) profile(o *options) string {
	return filepath.Join(o.out, "profiles", fmt.Sprintf("%s-%d.pprof", p.Kind, p.Conns))
}

// load runs the generator.
func (p *point) load(ctx context.Context, o *options, pid int) (*loadgen.Result, error) {
	args := append([]string{"bench"}, work[p.Kind](p, o)...)
	args = append(args, "--conns", strconv.Itoa(p.Conns), "--connect-rate", strconv.Itoa(connectRate), "--duration", o.length.String(), "--warmup", warmUp.String(),
		"--runtime", "pid:"+strconv.Itoa(pid), "--processes", strconv.Itoa((p.Conns+perProcess-1)/perProcess), "--source", sources(p.Conns), "--json", "-")
	switch {
	case !p.Flat && p.Kind == "fanout":
		args = append(args, "--closed", "--concurrency", "4")
	case !p.Flat:
		args = append(args, "--closed")
	case p.Kind == "fanout":
		args = append(args, "--rate", strconv.FormatFloat(o.rate/perChannel, 'f', 1, 64))
	default:
		args = append(args, "--rate", strconv.FormatFloat(o.rate, 'f', 0, 64))
	}
	cmd := exec.CommandContext(ctx, o.weir, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run() // its status is a verdict: what counts is whether there is a result
	r := &loadgen.Result{}
	if jerr := json.Unmarshal(out.Bytes(), r); jerr != nil {
		return nil, fmt.Errorf("weir %s: %w: %s", strings.Join(args, " "), errors.Join(err, jerr), said.String())
	}
	return r, nil
}

// sources are addresses to connect from: one has 28,000 ports.
func sources(conns int) string {
	var list []string
	for i := range conns/10_000 + 1 {
		list = append(list, fmt.Sprintf("127.0.0.%d", 2+i))
	}
	return strings.Join(list, ",")
}

// read takes what counts out of a result.
func (p *point) read(r *loadgen.Result) measurement {
	t := &r.Total
	seconds := max(t.Length.Seconds(), 1e-9)
	done := t.Completed
	var m measurement
	for _, n := range t.Errors {
		m.Lost += n
	}
	if d := t.Delivery; d != nil {
		done = d.Received
		m.Lost += d.Lost
	}
	m.Lost += t.Dropped
	m.Rate = float64(done) / seconds
	if t.Response != nil {
		m.P50, m.P99 = float64(t.Response.ValueAtPercentile(50))/1000, float64(t.Response.ValueAtPercentile(99))/1000
	}
	var cpu, over float64
	for _, u := range r.Uses {
		cpu, over = cpu+u.CPU, over+u.Seconds
		m.Memory = float64(u.RSS) / float64(p.Conns)
	}
	if over > 0 && m.Rate > 0 {
		m.CPU = 1e6 * cpu / over / m.Rate
	}
	if p.Flat && t.Generator.Limited {
		m.Limited, _, _ = strings.Cut(t.Generator.Why, ":") // the rest repeats itself for each process
	}
	return m
}

// serve starts a server under test.
func (p *point) serve(ctx context.Context, o *options, backend net.Addr, dir string) (*program.Process, error) {
	config := fmt.Sprintf(`listen: %s
admin: {listen: %q}
broker: {kind: memory}
governor: {evidence: {dir: "off"}}
eventloop: {engine: %q, loops: %d}
push: {echo: true}
auth: {api_keys: [{name: curve, key: %s, publish: ["**"]}]}
namespaces:
  - {name: default, durability: none, anonymous: true}
clusters:
  - {name: hello, peers: [{address: %q}], pool: {max_idle: 512}}
routes:
  - {path: /hello, cluster: hello}
`, public, admin, o.engine, p.Loops, key, backend)
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	g, err := program.Options{Env: []string{"GOMAXPROCS=" + strconv.Itoa(min(p.Loops, runtime.NumCPU()))}}.Start(ctx, o.weir, "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	return g, g.Ready(program.Answers(ctx, "http://"+public+"/readyz"))
}

// profile takes a processor profile that long, after a time.
func profile(ctx context.Context, name string, after, length time.Duration) error {
	select {
	case <-time.After(after):
	case <-ctx.Done():
		return ctx.Err()
	}
	b, err := program.Get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, max(int(length.Seconds()), 1)))
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return os.WriteFile(name, b, 0o644)
}

// backend answers proxied requests.
type backend struct {
	*http.Server
	at net.Addr
}

func (b *backend) Addr() net.Addr { return b.at }

func startBackend() (*backend, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	hello := []byte("hello")
	b := &backend{at: l.Addr(), Server: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(hello) // a client that has gone is no matter
	})}}
	go func() { _ = b.Serve(l) }() // it ends with Close
	return b, nil
}

// median is the point's measurement that has the median of the cost.
func (p *point) median() measurement {
	runs := slices.Clone(p.Runs)
	slices.SortFunc(runs, func(a, b measurement) int {
		switch {
		case a.CPU < b.CPU:
			return -1
		case a.CPU > b.CPU:
			return 1
		}
		return 0
	})
	return runs[len(runs)/2]
}

// spread is the least and the greatest cost.
func (p *point) spread() (least, most float64) {
	least = p.Runs[0].CPU
	for _, r := range p.Runs {
		least, most = min(least, r.CPU), max(most, r.CPU)
	}
	return least, most
}
