package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/bench/program"
)

type bench struct {
	options
	dir, limit, self, engine string
	backendPort              int
}

// A sample is one server under one load.
type sample struct {
	cpu, p99 float64 // µs per request, ms
	failed   int
}

func (b *bench) header(ctx context.Context) string {
	out := func(name string, args ...string) string {
		text, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(strings.Split(string(text), "\n")[0])
	}
	return fmt.Sprintf("# Proxying, measured %s\n\nLinux %s, %d CPUs, %s, commit %s; %s; %s. %d connections, %d rounds of %v each on fresh processes, server on CPU 0,\n"+
		"load and backend on CPU 1. Processor time, user and kernel, of all the server's processes. The ratios are pair by pair.\n\n",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), out("uname", "-r"), runtime.NumCPU(), runtime.Version(), out("git", "rev-parse", "--short=12", "HEAD"),
		out("nginx", "-v"), out("haproxy", "-v"), b.conns, b.runs, b.seconds)
}

// sample starts a server, loads it and ends it.
func (b *bench) sample(ctx context.Context, s scenario, c contestant) (m sample, err error) {
	backend := 0
	if s.backend {
		if backend, err = freePort(); err != nil {
			return m, err
		}
		b.backendPort = backend
		p, err := start(ctx, "1", backend, b.limit, fmt.Sprint(backend))
		if err != nil {
			return m, err
		}
		defer p.Stop()
	}
	port, err := freePort()
	if err != nil {
		return m, err
	}
	p, err := start(ctx, "0", port, append([]string{c.program}, c.args(port, backend)...)...)
	if err != nil {
		return m, err
	}
	defer p.Stop()
	if _, err := b.load(ctx, s, c, port, time.Second/2); err != nil { // warm: connections, pools, code
		return m, err
	}
	before, err := program.CPUWithChildren(p.PID())
	if err != nil {
		return m, err
	}
	l, err := b.load(ctx, s, c, port, b.seconds)
	if err != nil {
		return m, err
	}
	after, err := program.CPUWithChildren(p.PID())
	if err != nil {
		return m, err
	}
	if l.requests == 0 {
		return m, errNoLoad
	}
	return sample{cpu: (after - before).Seconds() * 1e6 / float64(l.requests), p99: l.p99, failed: l.failed}, nil
}

type load struct {
	requests, failed int
	p99              float64
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in`)
	wrkP99      = regexp.MustCompile(`99%\s+([\d.]+)(us|ms|s)`)
	wrkErrors   = regexp.MustCompile(`(?:connect|read|write|timeout) (\d+)|Non-2xx or 3xx responses: (\d+)`)
)

func (b *bench) load(ctx context.Context, s scenario, c contestant, port int, d time.Duration) (l load, err error) {
	script := filepath.Join(b.dir, "pipeline.lua")
	text := fmt.Sprintf("init = function()\n  local r = {}\n  for i = 1, %d do r[i] = wrk.format() end\n  all = table.concat(r)\nend\nrequest = function() return all end\n", s.pipeline)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		return l, err
	}
	args := []string{"-c", "1", "wrk", "-t1", fmt.Sprintf("-c%d", b.conns), "--latency", fmt.Sprintf("-d%dms", d.Milliseconds())}
	args[len(args)-1] = fmt.Sprintf("-d%ds", max(1, int(d.Round(time.Second)/time.Second)))
	if s.pipeline > 1 {
		args = append(args, "-s", script)
	}
	out, err := exec.CommandContext(ctx, "taskset", append(args, "http://"+addr(port)+c.path)...).CombinedOutput()
	if err != nil {
		return l, fmt.Errorf("wrk: %w\n%s", err, out)
	}
	if f := wrkRequests.FindSubmatch(out); f != nil {
		l.requests, _ = strconv.Atoi(string(f[1]))
	}
	if f := wrkP99.FindSubmatch(out); f != nil {
		l.p99, _ = strconv.ParseFloat(string(f[1]), 64)
		l.p99 *= map[string]float64{"us": 1e-3, "ms": 1, "s": 1e3}[string(f[2])]
	}
	for _, f := range wrkErrors.FindAllSubmatch(out, -1) {
		n, _ := strconv.Atoi(string(f[1]) + string(f[2]))
		l.failed += n
	}
	return l, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// start runs a server on a CPU and waits until it listens.
func start(ctx context.Context, cpu string, port int, args ...string) (*program.Process, error) {
	p, err := program.Options{CPUs: cpu, Env: []string{"GOMAXPROCS=1"}, Stderr: os.Stderr}.Start(ctx, args...)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(program.Accepts(addr(port))); err != nil {
		return nil, err
	}
	return p, nil
}

// paired returns the ratios of a to b, round by round, in order of size.
func paired(a, b []sample) []float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		r = append(r, a[i].cpu/b[i].cpu)
	}
	slices.Sort(r)
	return r
}

func median(m []sample, f func(sample) float64) float64 {
	var v []float64
	for _, x := range m {
		v = append(v, f(x))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func (b *bench) nginx(port int, location string) []string {
	conf := fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/nginx.pid; error_log /dev/null;
events { worker_connections 4096; multi_accept on; }
http {
  access_log off; keepalive_requests 1000000000; default_type text/plain;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
  upstream u { server 127.0.0.1:%[2]d; keepalive 512; keepalive_requests 1000000000; }
  server { listen 127.0.0.1:%[3]d backlog=4096; location / { %[4]s } }
}
`, b.dir, max(b.backendPort, 1), port, location)
	return []string{"-c", b.write("nginx.conf", conf), "-e", "/dev/null"}
}

func (b *bench) haproxy(port, backend int) []string {
	conf := fmt.Sprintf(`global
  nbthread 1
  maxconn 4000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend f
  bind 127.0.0.1:%d
  default_backend b
backend b
  server s 127.0.0.1:%d pool-max-conn 1000
`, port, backend)
	return []string{"-db", "-f", b.write("haproxy.cfg", conf)}
}

func (b *bench) write(name, text string) string {
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		panic(err) // a temporary folder of our own
	}
	return path
}

// reverseProxy is Go's own, as its documentation shows it.
func reverseProxy(ctx context.Context, listen, peer string) error {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: peer})
	p.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // clients that leave
	p.Transport = &http.Transport{MaxIdleConnsPerHost: 512}
	s := &http.Server{Addr: listen, Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { <-ctx.Done(); _ = s.Close() }()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
