package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A group is three nodes, each with a NATS server inside, that share a log of three replicas.
type group struct {
	c     *trial
	nodes []*judge.Server
	dirs  []string     // of their logs
	next  atomic.Int64 // which node the next publisher's connection is tried at first

	mu   sync.Mutex
	open []map[*counted]bool // subscribers' connections, by node
}

func (c *trial) group() *group {
	c.Helper()
	g := &group{c: c}
	var routes []string
	for range 3 {
		g.open = append(g.open, map[*counted]bool{})
		routes = append(routes, judge.FreeAddr(c))
	}
	for i, addr := range routes {
		config := judge.Namespace(map[string]any{"replicas": len(routes)})
		g.dirs = append(g.dirs, filepath.Join(c.TempDir(), "log"))
		config["broker"] = map[string]any{"nats": map[string]any{"dir": g.dirs[i], "cluster": map[string]any{
			"name": "chaos", "node": g.name(i), "listen": addr, "routes": routes,
		}}}
		g.nodes = append(g.nodes, judge.Launch(c, judge.Options{Build: judge.Plain, Config: config}))
	}
	for _, node := range g.nodes {
		node.Ready()
	}
	return g
}

func (g *group) name(i int) string { return fmt.Sprint("n", i) }

// dial connects to the next node that accepts it.
func (g *group) dial(ctx context.Context) (conn net.Conn, at int, err error) {
	for range g.nodes {
		at = int(g.next.Add(1)) % len(g.nodes)
		if conn, err = new(net.Dialer).DialContext(ctx, "tcp", g.nodes[at].Public); err == nil {
			return conn, at, nil
		}
	}
	return nil, 0, err
}

// publisher connects a writer to the next node that accepts it, as a load balancer would.
func (g *group) publisher(ctx context.Context) (net.Conn, error) {
	conn, _, err := g.dial(ctx)
	return conn, err
}

// A counted connection is one of a group's subscribers.
type counted struct {
	net.Conn
	close func()
}

func (c *counted) Close() error {
	c.close()
	return c.Conn.Close()
}

// subscriber connects to the node with the fewest subscribers of those that accept it.
func (g *group) subscriber(ctx context.Context, _ string) (conn net.Conn, err error) {
	order := []int{0, 1, 2}
	g.mu.Lock()
	slices.SortStableFunc(order, func(a, b int) int { return len(g.open[a]) - len(g.open[b]) })
	g.mu.Unlock()
	for _, at := range order {
		if conn, err = new(net.Dialer).DialContext(ctx, "tcp", g.nodes[at].Public); err != nil {
			continue
		}
		k := &counted{Conn: conn}
		k.close = func() { g.mu.Lock(); delete(g.open[at], k); g.mu.Unlock() }
		g.mu.Lock()
		g.open[at][k] = true
		g.mu.Unlock()
		return k, nil
	}
	return nil, err
}

// connected is how many subscribers node i has.
func (g *group) connected(i int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open[i])
}

// level cuts subscribers' connections to nodes that have more than a third, so that
// each has a third again, and returns how many.
func (g *group) level() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := len(g.open[0]) + len(g.open[1]) + len(g.open[2])
	for _, open := range g.open {
		excess := len(open) - (all+2)/3
		for k := range open {
			if excess--; excess < 0 {
				break
			}
			_ = k.Conn.Close()
			n++
		}
	}
	return n
}

// balance returns the address of a load balancer before the nodes, for publishers.
func (g *group) balance() string {
	g.c.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	serve := func(down net.Conn) {
		defer down.Close()
		up, _, err := g.dial(ctx)
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _, _ = down.Close(), up.Close() })
		defer stop()
		wg.Go(func() {
			_, _ = io.Copy(up, down)
			_ = up.Close()
		})
		_, _ = io.Copy(down, up)
	}
	wg.Go(func() {
		for {
			down, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(down) })
		}
	})
	g.c.Cleanup(func() { _ = ln.Close(); cancel(); wg.Wait() })
	return ln.Addr().String()
}

// leader returns which node leads the log once all replicas have all of it; -1 before.
func (g *group) leader() int {
	resp, err := judge.HTTP.Get("http://" + g.nodes[0].Admin + "/api/cluster")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	var a struct {
		Logs []struct {
			Leader   string
			Replicas []struct{ Current, Offline bool }
		}
	}
	if json.NewDecoder(resp.Body).Decode(&a) != nil || len(a.Logs) != 1 || len(a.Logs[0].Replicas) != len(g.nodes)-1 {
		return -1
	}
	for _, r := range a.Logs[0].Replicas {
		if !r.Current || r.Offline {
			return -1
		}
	}
	for i := range g.nodes {
		if g.name(i) == a.Logs[0].Leader {
			return i
		}
	}
	return -1
}

// whole waits until all replicas have the log, and returns which node leads it.
func (g *group) whole() (leader int) {
	g.c.Helper()
	judge.Eventually(g.c, patience, "all nodes are ready and have the log", func() bool {
		for _, node := range g.nodes {
			if status, _ := node.Get("/readyz"); status != http.StatusOK {
				return false
			}
		}
		leader = g.leader()
		return leader >= 0
	})
	return leader
}

// killedMember kills one of three nodes again and again: which returns which, by the leader's
// number. Clients connect to the others; nothing acknowledged is lost, and nothing comes twice.
func killedMember(c *trial, which func(leader int) int) {
	g := c.group()
	w := &world{trial: c, node: g.nodes[0], dial: g.subscriber}
	l := load{subscribers: c.size(2000), rate: max(int(5000**share), 100), options: exact, publishers: g.publisher}
	if *long { // four subscribers each, for 5,000 publications per second to many are more than one machine sends
		for i := range max(l.subscribers/4, 1) {
			l.channels = append(l.channels, fmt.Sprint("c", i))
		}
		l.writers = 128
	}
	w.begin(l)
	began, spent := time.Now(), processors()
	c.began = began
	leaders := 0
	for range c.times(50) {
		if c.over() {
			break
		}
		leader := g.whole()
		victim := which(leader)
		if victim == leader {
			leaders++
		}
		c.pause(c.between(0, 700*time.Millisecond))
		before := w.counts()
		var began time.Time
		cut := 0
		w.fault(false, func() {
			cut, began = g.connected(victim), time.Now()
			g.nodes[victim].Kill()
		})
		var again []time.Duration
		judge.Eventually(c, patience, fmt.Sprintf("the %d subscribers of the killed node are served", cut), func() bool {
			again = w.since(began, before)
			return len(again) >= cut
		})
		w.resumes = append(w.resumes, again...)
		c.Log(w.timeline(began, before))
		g.nodes[victim].Start()
		before, began = w.counts(), time.Now()
		cut = g.level()
		judge.Eventually(c, patience, fmt.Sprintf("%d subscribers are served by the node that is back", cut), func() bool { return len(w.since(began, before)) >= cut })
	}
	c.proof = fmt.Sprintf("SIGKILL ended one of three nodes each time, %d times the log's leader", leaders)
	took := time.Since(began).Seconds()
	c.note("%d subscribers, up to %d publications/s, %d on the mean; the clients took %.2f processors of %d", len(w.fleet.Members), l.rate,
		int(float64(w.pub.Count())/took), (processors()-spent).Seconds()/took, runtime.NumCPU())
	w.finish()
}

// processors is the time that this process, with the clients and the history, has had.
func processors() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// since returns after what time from began on those subscribers were served that were less often in before.
func (w *world) since(began time.Time, before []int64) (all []time.Duration) {
	for i, m := range w.fleet.Members {
		if m.Served.Load() > before[i] {
			all = append(all, time.Unix(0, m.ServedAt.Load()).Sub(began))
		}
	}
	return all
}

// timeline reports when what was back after a kill at began: publications, and of the subscribers that
// were served less often in before their connections, their service and their first message.
func (w *world) timeline(began time.Time, before []int64) string {
	first := time.Duration(0)
	for _, a := range w.pub.AckedSince(began) {
		if d := a.At.Sub(began); a.Began.After(began) && (first == 0 || d < first) {
			first = d
		}
	}
	var up, served, message []time.Duration
	note := func(all *[]time.Duration, at *atomic.Int64) {
		if d := time.Unix(0, at.Load()).Sub(began); d > 0 {
			*all = append(*all, d)
		}
	}
	for i, m := range w.fleet.Members {
		if m.Served.Load() > before[i] {
			note(&up, &m.UpAt)
			note(&served, &m.ServedAt)
			note(&message, &m.FirstAt)
		}
	}
	line := fmt.Sprintf("first publication after %.2f s, longest pause %.2f s;", first.Seconds(), w.outage(began).Seconds())
	for _, part := range []struct {
		what string
		all  []time.Duration
	}{{"accepted", up}, {"served", served}, {"first message", message}} {
		if len(part.all) > 0 {
			line += fmt.Sprintf(" %d %s: p10 %.2f, p50 %.2f, p90 %.2f, p99 %.2f, last %.2f s;", len(part.all), part.what, quantile(part.all, 0.1).Seconds(),
				quantile(part.all, 0.5).Seconds(), quantile(part.all, 0.9).Seconds(), quantile(part.all, 0.99).Seconds(), slices.Max(part.all).Seconds())
		}
	}
	return line
}

// replacedMembers replaces each of three nodes, one after the other: it ends in order, and another
// one starts in its place, every other time with an empty directory, as on another machine. Every
// publication is stored in the end, and nothing acknowledged is lost.
func replacedMembers(c *trial) {
	g := c.group()
	w := &world{trial: c, node: g.nodes[0], dial: g.subscriber}
	w.begin(load{subscribers: c.size(500), rate: 100, front: g.balance(), options: exact})
	leaders, emptied := 0, 0
	for round := range c.times(10) {
		for i, node := range g.nodes {
			if g.whole() == i {
				leaders++
			}
			w.fault(false, func() {
				node.Terminate()
				if (round+i)%2 == 1 {
					if err := os.RemoveAll(g.dirs[i]); err != nil {
						c.Fatal(err)
					}
					emptied++
				}
				node.Start()
			})
		}
	}
	g.whole()
	c.proof = fmt.Sprintf("each of three nodes ended in order and another one started, %d times the log's leader, %d times with an empty directory", leaders, emptied)
	c.note("%d subscribers, up to 100 publications/s; every publication acknowledged", len(w.fleet.Members))
	w.finish()
}
