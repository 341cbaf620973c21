package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-gateway/weir/bench/program"
)

// roleEnv is set for the NATS server, which is this program as a process of its own: its value is
// "address directory".
const roleEnv = "WEIR_BENCH_NODES_NATS"

func serveNATS(config string) error {
	var host, dir string
	var port int
	if _, err := fmt.Sscanf(config, "%s %d %s", &host, &port, &dir); err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{Host: host, Port: port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir, JetStreamMaxStore: 1 << 40})
	if err != nil {
		return err
	}
	s.Start()
	s.WaitForShutdown()
	return nil
}

const (
	apiKey     = "nodes-benchmark-key"
	publishers = 8
	patience   = 30 * time.Second
)

// A cluster is some nodes on one NATS server, and their clients.
type cluster struct {
	o     *options
	s     *scenario
	n     int
	nats  *program.Process
	weirs []*program.Process
	addrs []string

	wg        sync.WaitGroup
	conns     []net.Conn
	open      atomic.Int64
	delivered atomic.Int64
	published atomic.Int64
	ending    atomic.Bool
	failed    atomic.Pointer[error]
}

// measure runs s with n nodes.
func measure(ctx context.Context, o *options, s *scenario, n int) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "weir-nodes")
	if err != nil {
		return sample{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := &cluster{o: o, s: s, n: n}
	defer c.close()
	if err := c.start(ctx, dir); err != nil {
		return sample{}, err
	}
	if err := c.connect(); err != nil {
		return sample{}, err
	}
	publishing, stop := context.WithCancel(ctx)
	defer stop()
	for i := range publishers {
		c.wg.Go(func() { c.publish(publishing, i) })
	}
	result := sample{Scenario: s.name, Nodes: n}
	time.Sleep(time.Second) // so that what the first messages cost is not in it
	weir, nats, delivered, err := c.used()
	if err != nil {
		return result, err
	}
	time.Sleep(o.window)
	weir2, nats2, delivered2, err := c.used()
	if err != nil {
		return result, err
	}
	stop()
	if result.Deliveries = delivered2 - delivered; result.Deliveries == 0 {
		return result, errors.New("nothing was delivered")
	}
	each := func(d time.Duration) float64 { return float64(d) / float64(result.Deliveries) / 1e3 }
	result.Weir, result.NATS = each(weir2-weir), each(nats2-nats)
	return result, c.settled()
}

// start starts the processes.
func (c *cluster) start(ctx context.Context, dir string) (err error) {
	addr, err := program.FreeAddr()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	env := fmt.Sprintf("%s=%s %s %s", roleEnv, host, port, filepath.Join(dir, "nats"))
	if c.nats, err = (program.Options{Env: []string{env}}).Start(ctx, self); err != nil {
		return err
	}
	if err := c.nats.Ready(program.Accepts(addr)); err != nil {
		return err
	}
	for i := range c.n {
		public, err := program.FreeAddr()
		if err != nil {
			return err
		}
		admin, err := program.FreeAddr()
		if err != nil {
			return err
		}
		file := filepath.Join(dir, fmt.Sprintf("weir%d.yaml", i))
		config := fmt.Sprintf(`listen: %s
admin: {listen: %q}
broker: {kind: nats, nats: {url: "nats://%s"}}
eventloop: {loops: 1}
auth: {api_keys: [{name: nodes, key: %s, publish: ["**"]}]}
namespaces: [{name: default, anonymous: true, durability: stored, history_size: 1000}]
`, public, admin, addr, apiKey)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return err
		}
		p, err := program.Options{}.Start(ctx, c.o.weir, "serve", "--config", file)
		if err != nil {
			return err
		}
		c.weirs, c.addrs = append(c.weirs, p), append(c.addrs, public)
		if err := p.Ready(program.Answers(ctx, "http://"+admin+"/readyz")); err != nil {
			return err
		}
	}
	return nil
}

// used returns the processor time of the nodes and of the NATS server, and what was delivered.
func (c *cluster) used() (weir, nats time.Duration, delivered int64, err error) {
	for _, p := range c.weirs {
		used, err := program.CPU(p.PID())
		if err != nil {
			return 0, 0, 0, err
		}
		weir += used
	}
	nats, err = program.CPU(c.nats.PID())
	return weir, nats, c.delivered.Load(), err
}

func channelName(n int) string { return fmt.Sprint("bench.", n) }

// connect opens the subscribers of all nodes. With many channels each has one subscriber.
func (c *cluster) connect() error {
	want := int64(0)
	for at, addr := range c.addrs {
		for i := range c.s.subscribers {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				return err
			}
			c.conns = append(c.conns, conn)
			want++
			channel := (i*c.n + at) % c.s.channels
			c.wg.Go(func() { c.follow(conn, channel) })
		}
	}
	for end := time.Now().Add(patience); c.open.Load() < want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d subscribers are connected", c.open.Load(), want)
		}
	}
	return nil
}

// follow reads a channel and counts what comes.
func (c *cluster) follow(conn net.Conn, channel int) {
	_, err := fmt.Fprintf(conn, "GET /sse?channel=%s HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n\r\n", channelName(channel))
	r := bufio.NewReaderSize(conn, 1024)
	for first := true; err == nil; {
		var line []byte
		line, err = r.ReadSlice('\n')
		switch {
		case first && bytes.HasPrefix(line, []byte("HTTP/1.1 200")):
			c.open.Add(1)
			first = false
		case bytes.HasPrefix(line, []byte("data:")):
			c.delivered.Add(1)
		}
	}
	if !c.ending.Load() {
		err = fmt.Errorf("a subscriber was disconnected: %w", err)
		c.failed.CompareAndSwap(nil, &err)
	}
}

// publish publishes to any of the nodes until ctx is done. With several channels the rate is for each
// node, so that every node has the same to deliver.
func (c *cluster) publish(ctx context.Context, which int) {
	rate, followed := c.s.rate, 1
	if c.s.channels > 1 {
		rate, followed = rate*c.n, c.s.subscribers*c.n
	}
	via := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}, Timeout: patience}
	defer via.CloseIdleConnections()
	tick := time.NewTicker(time.Second * publishers / time.Duration(rate))
	defer tick.Stop()
	for i := which; ; i += publishers {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		body := fmt.Sprintf(`{"channel":%q,"data":"%0120d"}`, channelName(i%followed), i)
		req, err := http.NewRequest(http.MethodPost, "http://"+c.addrs[rand.IntN(c.n)]+"/api/publish", bytes.NewReader([]byte(body)))
		if err == nil {
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-API-Key", apiKey)
			var res *http.Response
			if res, err = via.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK {
					err = fmt.Errorf("publish: %s", res.Status)
				}
			}
		}
		if err != nil {
			c.failed.CompareAndSwap(nil, &err)
			return
		}
		c.published.Add(1)
	}
}

// settled waits until all that was published is delivered, once to each that follows it.
func (c *cluster) settled() error {
	each := int64(1)
	if c.s.channels == 1 {
		each = int64(c.s.subscribers * c.n)
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if err := c.failed.Load(); err != nil {
			return *err
		}
		got, want := c.delivered.Load(), c.published.Load()*each
		if got == want {
			return nil
		}
		if got > want+int64(publishers)*each || time.Now().After(end) {
			return fmt.Errorf("%d deliveries of %d", got, want)
		}
	}
}

func (c *cluster) close() {
	c.ending.Store(true)
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	for _, p := range c.weirs {
		p.Stop()
	}
	if c.nats != nil {
		c.nats.Kill()
	}
	c.wg.Wait()
}
