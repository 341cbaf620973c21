package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/bench/program"
)

const apiKey = "bench-key-of-this-run"

// A gateway is a running weir.
type gateway struct {
	*program.Process
	addr, admin string
}

// start runs a fresh gateway on CPU 0. Whatever is not its own goes to backend, if there
// is one.
func (b *bench) start(ctx context.Context, w way, backend string) (*gateway, error) {
	g := &gateway{}
	var err error
	if g.addr, err = program.FreeAddr(); err != nil {
		return nil, err
	}
	if g.admin, err = program.FreeAddr(); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`listen: %s
admin: {listen: %q}
broker: {kind: memory}
eventloop: {engine: %q}
namespaces: [{name: default, anonymous: true}]
auth: {api_keys: [{name: bench, key: %s, publish: ["**"]}]}
log: {level: warn}
`, g.addr, g.admin, b.engine, apiKey)
	if w.tls {
		config += fmt.Sprintf("tls: {certificates: [{cert_file: %q, key_file: %q}]}\n", b.cert, b.key)
	}
	if w.version == 3 {
		config += "downstream: {http3: true}\n"
	}
	if backend != "" {
		config += fmt.Sprintf("routes: [{path: /*, cluster: b, limits: {max_body: -1}}]\nclusters: [{name: b, peers: [{address: %q}]}]\n", backend)
	}
	file := filepath.Join(b.dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if g.Process, err = (program.Options{CPUs: "0"}).Start(ctx, b.weir, "serve", "--config", file); err != nil {
		return nil, err
	}
	if err := g.Ready(program.Answers(ctx, "http://"+g.admin+"/readyz")); err != nil {
		return nil, err
	}
	return g, nil
}

// A usage is what the gateway has used so far, and holds now.
type usage struct {
	cpu       time.Duration
	rss, peak float64       // bytes
	core      time.Duration // busy time of CPU 0, of all processes
	at        time.Time
}

func (g *gateway) usage() (u usage, err error) {
	if u.cpu, err = program.CPU(g.PID()); err != nil {
		return u, err
	}
	u.at = time.Now()
	if u.rss, err = g.kilobytes("smaps_rollup", "Rss"); err != nil {
		return u, err
	}
	if u.peak, err = g.kilobytes("status", "VmHWM"); err != nil {
		return u, err
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "cpu0" && len(f) > 7 {
			for _, i := range []int{1, 2, 3, 6, 7} {
				ticks, _ := strconv.Atoi(f[i])
				u.core += time.Duration(ticks) * 10 * time.Millisecond
			}
		}
	}
	return u, nil
}

func (g *gateway) kilobytes(file, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", g.PID(), file))
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("/proc/PID/%s has no %s", file, name)
	}
	kb, err := strconv.ParseFloat(string(m[1]), 64)
	return kb * 1024, err
}

// othersPercent is how much of CPU 0 other processes used between two readings.
func othersPercent(before, after usage) float64 {
	return 100 * ((after.core - before.core) - (after.cpu - before.cpu)).Seconds() / after.at.Sub(before.at).Seconds()
}

// runtimeState collects garbage and returns what the runtime then says of itself.
func (g *gateway) runtimeState(ctx context.Context) (map[string]float64, error) {
	if _, err := program.Get(ctx, "http://"+g.admin+"/debug/pprof/heap?gc=1"); err != nil {
		return nil, err
	}
	return program.Metrics(ctx, "http://"+g.admin+"/metrics")
}
