package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/test/judge"
)

// streams are the subscribers' connections that the node has open; with io_uring they are no
// descriptors of the process.
func streams(node *judge.Server) int {
	return int(node.Series("weir_connections", `transport="sse"`) + node.Series("weir_connections", `transport="websocket"`))
}

// requests are the connections without a stream. The publishers have up to eight.
func requests(node *judge.Server) int {
	return int(node.Series("weir_connections", `transport="http"`))
}

// A space is a network namespace with a link to this one.
type space struct {
	c            *trial
	name         string
	host, inside string // addresses
}

func (c *trial) space() *space {
	c.Helper()
	n := os.Getpid() % 200
	s := &space{c: c, name: fmt.Sprintf("weir-chaos-%d", os.Getpid()), host: fmt.Sprintf("10.215.%d.1", n), inside: fmt.Sprintf("10.215.%d.2", n)}
	link := fmt.Sprintf("weirch%d", n)
	c.command("ip", "netns", "add", s.name)
	c.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", link).Run()
		_ = exec.Command("ip", "netns", "del", s.name).Run()
	})
	for _, line := range []string{
		fmt.Sprintf("link add %s type veth peer name eth0 netns %s", link, s.name), fmt.Sprintf("addr add %s/30 dev %s", s.host, link),
		fmt.Sprintf("link set %s up", link), fmt.Sprintf("-n %s addr add %s/30 dev eth0", s.name, s.inside), fmt.Sprintf("-n %s link set eth0 up", s.name),
	} {
		c.command("ip", strings.Fields(line)...)
	}
	return s
}

// drop has every packet inside dropped: no FIN, no RST, no answer.
func (s *space) drop() {
	s.c.Helper()
	s.c.command("ip", "netns", "exec", s.name, "nft", "add table inet c; add chain inet c i { type filter hook input priority 0; policy drop; }; add chain inet c o { type filter hook output priority 0; policy drop; }")
}

// dial connects from inside: the socket is made on a thread that is there meanwhile. It comes
// back, for the end of a thread kills the processes that were started on it (Pdeathsig).
func (s *space) dial(ctx context.Context, addr string) (net.Conn, error) {
	namespace := func(name string) (move func() error, err error) {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		return func() error {
			defer f.Close()
			const sysSetns = 308 // amd64
			if _, _, e := syscall.RawSyscall(sysSetns, f.Fd(), syscall.CLONE_NEWNET, 0); e != 0 {
				return e
			}
			return nil
		}, nil
	}
	runtime.LockOSThread()
	home, err := namespace("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	inside, err := namespace("/run/netns/" + s.name)
	if err == nil {
		err = inside()
	}
	var conn net.Conn
	if err == nil {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	if e := home(); e != nil {
		return conn, errors.Join(err, e) // and the thread stays locked
	}
	runtime.UnlockOSThread()
	return conn, err
}

// badClients: whatever becomes of a client, the node finds it out and has as many
// connections afterwards as before.
func badClients(c *trial) {
	s := c.space()
	config := judge.Namespace(nil)
	_, port, _ := net.SplitHostPort(judge.FreeAddr(c))
	config["listen"] = "0.0.0.0:" + port
	config["push"] = map[string]any{"heartbeat": "1s", "idle_timeout": "3s"}
	config["eventloop"] = map[string]any{"user_timeout": "3s", "write_stall": "5s"}
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: config, Listen: "127.0.0.1:" + port})
	w := c.under(node, load{subscribers: c.size(100), rate: 100, options: exact})
	base := streams(node)
	back := func(what string) {
		c.Helper()
		began := time.Now()
		judge.Eventually(c, patience, what+": the node has as many connections as before", func() bool { return streams(node) <= base && requests(node) <= 16 })
		c.note("%s: cleared after %.1f s", what, time.Since(began).Seconds())
	}
	half := c.size(500)
	// Half-open: 2 in 3 SSE, 1 in 3 WebSocket.
	ctx, cancel := context.WithCancel(c.Context())
	var inside sync.WaitGroup
	var early atomic.Pointer[error] // the error of one that ended
	for i := range half {
		m := &judge.Subscriber{Addr: s.host + ":" + port, Socket: i%3 == 0, Channels: channels[:1], On: func(judge.Event) {}, Dial: s.dial}
		inside.Go(func() {
			if err := m.Once(ctx); ctx.Err() == nil {
				early.Store(&err)
			}
		})
	}
	judge.Eventually(c, patience, "they are connected", func() bool {
		if err := early.Load(); err != nil {
			c.Fatalf("a client from the namespace: %v", *err)
		}
		return streams(node) >= base+half
	})
	s.drop()
	c.faults += half
	back(fmt.Sprintf("%d half-open", half))
	cancel()
	inside.Wait()
	// Resets in the middle of frames.
	relay := judge.NewRelay(c, node.Public, 3000, c.seed)
	var cut sync.WaitGroup
	ctx, cancel = context.WithTimeout(c.Context(), 5*time.Second)
	for i := range 50 {
		m := &judge.Subscriber{Addr: relay.Addr, Socket: i%2 == 0, Channels: channels, Last: "0", On: func(judge.Event) {}}
		cut.Go(func() { _ = m.Run(ctx) })
	}
	cut.Wait()
	cancel()
	if relay.Cuts.Load() < 50 {
		c.Errorf("%d connections were reset", relay.Cuts.Load())
	}
	c.faults += int(relay.Cuts.Load())
	back(fmt.Sprintf("%d resets", relay.Cuts.Load()))
	// One byte at a time, and a request that stops halfway.
	slow := 0
	for range 20 {
		conn, err := net.Dial("tcp", node.Public)
		if err != nil {
			c.Fatal(err)
		}
		for _, b := range []byte("GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") {
			if _, err := conn.Write([]byte{b}); err != nil {
				c.Fatal(err)
			}
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && strings.Contains(line, "200") {
			slow++
		}
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	if slow != 20 {
		c.Errorf("%d of 20 requests byte by byte were answered", slow)
	}
	back("requests byte by byte")
	c.proof = fmt.Sprintf("nftables dropped the packets of %d clients, %d connections were reset", half, relay.Cuts.Load())
	w.finish()
}

// reconnectStorm: all clients are cut at once, each resumes what was published meanwhile.
func reconnectStorm(c *trial) {
	judge.Descriptors(c, uint64(4*c.size(5000)+2000))
	node := judge.New(c, judge.Options{Build: judge.Plain})
	link := judge.NewLink(c, node.Public)
	w := c.under(node, load{subscribers: c.size(5000), rate: 100, addr: link.Addr, options: exact})
	before := w.latency(time.Now().Add(-5 * time.Second))
	for range c.times(3) {
		w.fault(true, func() {
			link.Set(judge.Shape{HoldUp: true, HoldDown: true})
			w.more(100)
			link.Set(judge.Shape{})
			n := link.Reset()
			if n < len(w.fleet.Members)*9/10 {
				c.Errorf("%d connections were cut", n)
			}
			c.proof = fmt.Sprintf("%d connections were reset at once", n)
		})
		c.note("publish p99 %.0f ms, before %.0f ms", float64(w.latency(time.Now().Add(-10*time.Second)).Milliseconds()), float64(before.Milliseconds()))
	}
	if w.rss[1] > 2*w.rss[0] {
		c.Errorf("memory has grown from %d MiB to %d", w.rss[0]>>20, w.rss[1]>>20)
	}
	w.finish()
}

// latency is the 99th percentile of publications answered since.
func (w *world) latency(since time.Time) time.Duration {
	var all []time.Duration
	for _, a := range w.pub.Acked() {
		if a.At.After(since) {
			all = append(all, a.At.Sub(a.Began))
		}
	}
	if len(all) == 0 {
		return 0
	}
	return quantile(all, 0.99)
}

// slowReaders: one in five stops reading. Each is disconnected or held at its bound, the
// others continue, and memory stays.
func slowReaders(c *trial) {
	node := judge.New(c, judge.Options{Build: judge.Plain, Config: judge.Namespace(map[string]any{"history_size": 2000})})
	w := c.under(node, load{subscribers: c.size(400), rate: 100, options: history.Options{ExactlyOnce: true}})
	ctx, cancel := context.WithCancel(context.Background())
	var tap judge.Tap
	var slow sync.WaitGroup
	ended := make(chan string, 4096)
	n := c.size(100)
	for i := range n {
		s := &judge.Subscriber{Addr: node.Public, Socket: i%2 == 0, Channels: channels, Dial: tap.Dial, On: func(e judge.Event) {
			if e.Kind == "end" {
				select {
				case ended <- string(e.Data):
				default:
				}
			}
		}}
		slow.Go(func() { _ = s.Run(ctx) })
	}
	want := len(w.fleet.Members) + n
	judge.Eventually(c, patience, "they are connected", func() bool {
		return int(node.Series("weir_connections", `transport="sse"`)+node.Series("weir_connections", `transport="websocket"`)) >= want
	})
	big := &judge.Publisher{Addr: node.Public}
	feed, stop := context.WithCancel(context.Background())
	var feeding sync.WaitGroup
	pad := strings.Repeat("x", 1000)
	for f := range 4 {
		feeding.Go(func() {
			for i := 0; feed.Err() == nil; i++ {
				_ = big.Publish(c.Context(), channels[i%len(channels)], fmt.Sprint("big", f, "-", i, pad))
			}
		})
	}
	tap.Shut()
	began := time.Now()
	c.faults = n
	var grown []int64
	for i := range c.times(60) {
		_ = i
		c.pause(time.Second)
		w.sample()
		grown = append(grown, node.Memory())
	}
	stalled := node.Series("weir_subscribers_closed_total", `reason="too_slow"`)
	w.outages = append(w.outages, w.outage(began))
	stop()
	feeding.Wait()
	tap.Open()
	cancel()
	slow.Wait()
	for _, a := range big.Acked() {
		w.fleet.Checker.Published(a.Channel, history.Position{Epoch: a.Epoch, Offset: a.Offset}, a.Payload)
	}
	if len(grown) > 20 {
		half := grown[len(grown)/2:]
		c.note("memory in the second half: %d to %d MiB", half[0]>>20, half[len(half)-1]>>20)
	}
	c.proof = fmt.Sprintf("%d clients did not read; the node closed connections %.0f times as too slow", n, stalled)
	c.note("%d messages of 1 kB", len(big.Acked()))
	w.finish()
}
