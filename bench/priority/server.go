package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weir-gateway/weir/bench/program"
	"github.com/weir-gateway/weir/internal/observe/tune"
)

const (
	key    = "priority-key-0123456789"
	local  = "127.0.0.1:18000"
	remote = "10.77.0.1:18000"
)

// A class is one kind of messages: how many connections receive it, and its part of what is offered.
type class struct {
	name        string
	subscribers int
	part        float64
	dscp        int
}

var mix = []class{{"market", 20, 0.7, 10}, {"order", 20, 0.2, 46}, {"control", 10, 0.1, 16}}

func (c class) channel() string { return c.name + ":a" }

// A run is one measurement.
type run struct {
	name    string
	classes []class
	marked  bool
}

var runs = []run{{"alone", mix[1:2], true}, {"one queue", mix, false}, {"by class", mix, true}}

// client is the process in the other namespace.
type client struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func (c *client) ask(r request) (a answer, err error) {
	if err = json.NewEncoder(c.in).Encode(r); err != nil {
		return a, err
	}
	if !c.out.Scan() {
		return a, errors.Join(errors.New("the client has ended"), c.out.Err())
	}
	if err = json.Unmarshal(c.out.Bytes(), &a); err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// startClient makes the client's namespace and the veth to it.
func startClient(ctx context.Context) (*client, error) {
	c := &client{cmd: exec.CommandContext(ctx, "/proc/self/exe", "-role", roleClient)}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if err := ip("link set lo up", fmt.Sprintf("link add w0 type veth peer name c0 netns %d", c.cmd.Process.Pid),
		"addr add 10.77.0.1/24 dev w0", "link set w0 up"); err != nil {
		return nil, err
	}
	_, err = c.ask(request{Up: "10.77.0.2/24"})
	return c, err
}

// measure does all rounds and prints them.
func measure(ctx context.Context, o *options, w io.Writer) error {
	dscp := map[string]int{}
	for _, c := range mix {
		dscp[c.name] = c.dscp
	}
	link, err := tune.ParseLink("w0="+o.rate, dscp)
	if err != nil {
		return err
	}
	c, err := startClient(ctx)
	if err != nil {
		return err
	}
	defer c.in.Close() // it ends then, and its namespace with it
	dir, err := os.MkdirTemp("", "priority-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	system, journal := tune.System{Queues: tune.ClassQueue{}}, tune.OpenJournal(filepath.Join(dir, "journal"))
	if _, err := tune.Apply(system, journal, []tune.Step{{Target: tune.QdiscTarget + "w0", Value: link.String()}}); err != nil {
		return err
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Fprintf(w, "load average before: %s", load)
	}
	// A message with its event's and its packets' heads takes about 110 bytes more than its data.
	offered := o.overload * float64(link.Rate) / 8 / float64(o.payload+110)
	fmt.Fprintf(w, "link %s, %.0f messages/s of %d bytes offered (%.1f of the link), 7:2:1, engine %s, %d loops, %s a run\n", o.rate, offered, o.payload, o.overload, o.engine, o.loops, o.length)
	fmt.Fprintln(w, "| round | run | class | published/s | delivered | lost connections | p50 ms | p99 ms | max ms | published late, p99 ms |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|")
	p99 := map[string][]float64{}
	for round := range o.rounds {
		for _, r := range runs {
			got, err := r.do(ctx, o, c, offered, dir)
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, r.name, err)
			}
			for _, k := range r.classes {
				v := got[k.name]
				fmt.Fprintf(w, "| %d | %s | %s | %.0f | %.1f %% | %d | %.2f | %.2f | %.1f | %.2f |\n", round+1, r.name, k.name, v.rate, v.delivered, v.Broken, v.P50, v.P99, v.Max, v.late)
			}
			p99[r.name] = append(p99[r.name], got["order"].P99)
		}
	}
	if _, err := tune.Undo(system, journal, false); err != nil {
		return err
	}
	return conclude(w, p99)
}

// conclude prints what the p99 of orders is in the mix, of what it is alone: per round, and the
// middle of them.
func conclude(w io.Writer, p99 map[string][]float64) error {
	ratio := func(name string) []float64 {
		var list []float64
		for i, v := range p99[name] {
			list = append(list, v/p99["alone"][i])
		}
		slices.Sort(list)
		return list
	}
	one, by := ratio("one queue"), ratio("by class")
	fmt.Fprintf(w, "p99 of orders, of that alone: one queue %.1f (%.1f to %.1f), by class %.2f (%.2f to %.2f)\n",
		one[len(one)/2], one[0], one[len(one)-1], by[len(by)/2], by[0], by[len(by)-1])
	if by[len(by)/2] > 1.5 {
		return fmt.Errorf("the p99 of orders is %.2f times that alone, want at most 1.5", by[len(by)/2])
	}
	return nil
}

// An outcome is what became of a class.
type outcome struct {
	received
	rate, delivered float64
	late            float64 // milliseconds, the 99th percentile of how late the publisher itself was
}

// do starts a gateway, and publishes.
func (r *run) do(ctx context.Context, o *options, c *client, offered float64, dir string) (map[string]outcome, error) {
	g, err := r.start(ctx, o, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		g.Kill() // a drain is not what is measured
		http.DefaultClient.CloseIdleConnections()
	}()
	subs := map[string]int{}
	for _, k := range r.classes {
		subs[k.channel()] = k.subscribers
	}
	if _, err := c.ask(request{Server: remote, Subscribe: subs}); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var publishing sync.WaitGroup
	published, failures := make([]*publisher, len(r.classes)), make(chan error, len(r.classes))
	since := time.Now().Add(o.warm).UnixNano()
	until := since + int64(o.length)
	for i, k := range r.classes {
		p := &publisher{
			channel: k.channel(), size: o.payload, every: time.Duration(float64(time.Second) * float64(k.subscribers) / (offered * k.part)),
			since: since, until: until, late: hdrhistogram.New(1, 60_000_000, 3),
		}
		published[i] = p
		publishing.Go(func() {
			if err := p.run(ctx); err != nil && ctx.Err() == nil {
				failures <- fmt.Errorf("publish to %s: %w", k.channel(), err)
			}
		})
	}
	if _, err := c.ask(request{Since: since}); err != nil {
		return nil, err
	}
	select {
	case <-time.After(time.Until(time.Unix(0, until))):
	case err := <-failures:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a, err := c.ask(request{Until: until, Wait: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	stop()
	publishing.Wait()
	all := map[string]outcome{}
	for i, k := range r.classes {
		n := float64(published[i].n)
		v := outcome{received: a.Channels[k.channel()], rate: n / o.length.Seconds(), late: float64(published[i].late.ValueAtQuantile(99)) / 1000}
		v.delivered = 100 * float64(v.Messages) / (n * float64(k.subscribers))
		all[k.name] = v
	}
	return all, nil
}

// A publisher publishes to a channel at a fixed rate.
type publisher struct {
	channel      string
	size         int
	every        time.Duration
	since, until int64 // messages that were sent between them count

	// After run's end.
	n    int                     // messages
	late *hdrhistogram.Histogram // microseconds from when a message was due to when it was sent
}

// run publishes until ctx ends. A message has the time at which it is sent: on the machine that
// publishers, gateway and subscribers share here, how late a publisher is says nothing of the link.
func (p *publisher) run(ctx context.Context) error {
	pad := strings.Repeat("x", max(p.size-len(`{"t":0123456789012345678,"p":""}`), 0))
	for due := time.Now(); ctx.Err() == nil; due = due.Add(p.every) {
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return nil
		}
		at := time.Now()
		body := fmt.Sprintf(`{"channel":%q,"data":{"t":%d,"p":%q}}`, p.channel, at.UnixNano(), pad)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+local+"/api/publish", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("X-API-Key", key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		said, _ := io.ReadAll(res.Body) // an answer that breaks off has no status 200 the next time
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", res.Status, said)
		}
		if at := at.UnixNano(); at >= p.since && at < p.until {
			p.n++
			_ = p.late.RecordValue(min(max((at-due.UnixNano())/1000, 1), 60_000_000)) // within its bounds
		}
	}
	return nil
}

// start starts a gateway.
func (r *run) start(ctx context.Context, o *options, dir string) (*program.Process, error) {
	var marks, namespaces strings.Builder
	for _, k := range mix {
		class := k.name
		policy := map[string]string{"market": ", policy: drop-oldest, queue_messages: 1024"}[k.name]
		if r.marked {
			fmt.Fprintf(&marks, "%s: {dscp: %d}, ", k.name, k.dscp)
		}
		fmt.Fprintf(&namespaces, "  - {name: %s, durability: none, anonymous: true, class: %s%s}\n", k.name, class, policy)
	}
	config := fmt.Sprintf(`listen: 0.0.0.0:18000
admin: {listen: "127.0.0.1:18001"}
broker: {kind: memory}
eventloop: {engine: %q, loops: %d}
auth: {api_keys: [{name: bench, key: %s, publish: ["**"]}]}
admission: {marks: {%s}}
namespaces:
%s`, o.engine, o.loops, key, strings.TrimSuffix(marks.String(), ", "), namespaces.String())
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	g, err := program.Options{}.Start(ctx, o.weir, "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	return g, g.Ready(program.Answers(ctx, "http://"+local+"/readyz"))
}
