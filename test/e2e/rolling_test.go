package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats/natstest"
	"github.com/weir-gateway/weir/test/judge"
)

// A balancer passes connections on to the nodes that are ready, one after the other, as a
// load balancer with health checks does.
type balancer struct {
	addr  string
	nodes []*balanced
	next  atomic.Int64
}

type balanced struct {
	addr  string
	ready atomic.Bool
	conns atomic.Int64 // open now
	taken atomic.Int64 // ever
}

func newBalancer(t *testing.T, nodes ...*judge.Server) *balancer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &balancer{addr: l.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); l.Close(); wg.Wait() })
	for _, n := range nodes {
		s := &balanced{addr: n.Public}
		b.nodes = append(b.nodes, s)
		s.check(ctx)
		wg.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				s.check(ctx)
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { b.serve(ctx, c) })
		}
	})
	return b
}

func (s *balanced) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/readyz", nil)
	if err != nil {
		return
	}
	res, err := judge.HTTP.Do(req)
	if err == nil {
		res.Body.Close()
	}
	s.ready.Store(err == nil && res.StatusCode == http.StatusOK)
}

// serve passes one connection on.
func (b *balancer) serve(ctx context.Context, down net.Conn) {
	defer down.Close()
	for range b.nodes {
		s := b.nodes[int(b.next.Add(1))%len(b.nodes)]
		if !s.ready.Load() {
			continue
		}
		up, err := net.Dial("tcp", s.addr)
		if err != nil {
			continue
		}
		defer up.Close()
		defer context.AfterFunc(ctx, func() { up.Close(); down.Close() })()
		s.taken.Add(1)
		s.conns.Add(1)
		defer s.conns.Add(-1)
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(up, down); _ = up.(*net.TCPConn).CloseWrite() })
		_, _ = io.Copy(down, up)
		_ = down.Close() // the node has ended it: so does the client's side
		both.Wait()
		return
	}
}

var drainLine = regexp.MustCompile(`msg=draining .*streams=(\d+) other_nodes=(\w+) others_rate=(\S+) over=(\S+)`)

// Three nodes are restarted one after the other behind a load balancer: the clients of
// each go to the other two, at the pace that those announce, and lose nothing.
func TestRollingRestartOfThreeNodes(t *testing.T) {
	const within, clients = 10 * time.Second, 240
	url := natstest.Server(t)
	var nodes []*judge.Server
	for i := range 3 {
		nodes = append(nodes, judge.New(t, judge.Options{Build: judge.Plain, Config: map[string]any{
			"shutdown": map[string]any{"drain": "10s"}, "broker": map[string]any{"nats": map[string]any{"url": url}},
			"cluster": map[string]any{"name": fmt.Sprint("node-", i)}, "mercure": map[string]any{"enabled": true}, // whose metrics count the nodes
		}}))
	}
	b := newBalancer(t, nodes...)
	f := judge.NewFleet(t, everything)
	p := &judge.Publisher{Addr: b.addr}
	stop := publishing(t, p, 100)
	all := returners(t, f, b.addr, clients)
	waitBack(t, all, make([]int, len(all)), time.Now())
	streams := func(s *judge.Server) int {
		return int(s.Series("weir_connections", `transport="sse"`) + s.Series("weir_connections", `transport="websocket"`))
	}
	for i, s := range nodes {
		judge.Eventually(t, 30*time.Second, "the nodes know each other and what each takes on", func() bool {
			return s.Metric("weir_cluster_nodes") == 3
		})
		before, here, taken := counts(all), streams(s), []int64{}
		for _, n := range b.nodes {
			taken = append(taken, n.taken.Load())
		}
		begin := time.Now()
		s.Terminate()
		ended := time.Since(begin)
		moved, last := 0, time.Duration(0)
		judge.Eventually(t, 60*time.Second, "every client of the node is back", func() bool {
			moved, last = 0, 0
			for j, r := range all {
				if n, at := r.last(); n > before[j] {
					moved, last = moved+1, max(last, at.Sub(begin))
				}
			}
			return moved >= here
		})
		line := drainLine.FindStringSubmatch(s.Log()[max(0, len(s.Log())-1<<20):])
		if line == nil || line[2] != "true" {
			t.Fatalf("node %d does not know that there are others: %q", i, line)
		}
		rate, _ := strconv.ParseFloat(line[3], 64)
		over, _ := time.ParseDuration(line[4])
		n, _ := strconv.Atoi(line[1])
		if want := time.Duration(float64(n) / rate * float64(time.Second)); rate <= 0 || over < want*9/10 || over > want*11/10 {
			t.Errorf("node %d: %d streams are closed over %s, others take on %.0f per second", i, n, over, rate)
		}
		t.Logf("node %d: %d of %d clients moved, closed over %s (others take on %.0f per second); the last is back after %s, the process ended after %s",
			i, moved, clients, over, rate, last.Round(time.Millisecond), ended.Round(time.Millisecond))
		for j, n := range b.nodes {
			if got := int(n.taken.Load() - taken[j]); j != i && got < here/4 {
				t.Errorf("node %d: %d of %d went to node %d", i, got, here, j)
			}
		}
		if last > within || moved < here || here < clients/6 {
			t.Errorf("node %d: %d of %d moved, the last is back after %s, want %s", i, moved, here, last, within)
		}
		s.Start()
		judge.Eventually(t, 10*time.Second, "the node gets clients again", b.nodes[i].ready.Load)
	}
	stop()
	acked := p.Acked()
	f.CaughtUp(acked, 30*time.Second)
	f.Land()
	f.Judge(acked)
}
