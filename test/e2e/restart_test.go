package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/client"
	"github.com/weir-gateway/weir/test/judge"
)

// A returner is a client of a planned restart and when it was last served anew.
type returner struct {
	kind string
	mu   sync.Mutex
	n    int
	at   time.Time
}

func (r *returner) served() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	r.at = time.Now()
}

func (r *returner) last() (n int, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n, r.at
}

// returners are clients of every kind that follow the server through a restart.
func returners(t *testing.T, f *judge.Fleet, addr string, n int) (all []*returner) {
	ctx, cancel := context.WithCancel(context.Background())
	f.Cancel = cancel
	t.Cleanup(f.Land)
	add := func(kind string) *returner {
		r := &returner{kind: kind}
		all = append(all, r)
		return r
	}
	for i := range n {
		mine := channels[i%len(channels) : i%len(channels)+1]
		switch i % 4 {
		case 0, 1, 2: // EventSource, an impatient stream, a WebSocket that reconnects at once
			kind := []string{"patient stream", "impatient stream", "websocket"}[i%4]
			r, m := add(kind), f.Member(fmt.Sprintf("%s %d", kind, i), mine)
			s := &judge.Subscriber{
				Addr: addr, Socket: i%4 == 2, Patient: i%4 == 0, Channels: mine, Last: "0",
				On: m.On, Up: func(int) { m.Ups.Add(1) }, Served: func(int) { r.served() },
			}
			f.Wait.Go(func() {
				if err := s.Run(ctx); err != nil {
					t.Errorf("%s: %v", m.Name, err)
				}
			})
		default:
			transport := []client.Transport{client.SSE, client.WebSocket}[i/4%2]
			goClient(ctx, t, f, addr, add("go client "+string(transport)), mine, transport)
		}
	}
	return all
}

// goClient follows with the client package.
func goClient(ctx context.Context, t *testing.T, f *judge.Fleet, addr string, r *returner, mine []string, transport client.Transport) {
	m := f.Member(r.kind, mine)
	c, err := client.New(client.Config{URL: "http://" + addr})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := c.Subscribe(ctx, client.SubscribeOptions{Channels: mine, Since: "0", Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	f.Wait.Go(func() {
		defer stream.Close()
		session := 0
		for {
			ev, err := stream.Next(ctx)
			if err != nil {
				return
			}
			switch ev := ev.(type) {
			case *client.State:
				if ev.Connected {
					session++
				}
			case *client.Message:
				if n, _ := r.last(); n < session {
					for range session - n {
						r.served()
					}
				}
				m.On(judge.Event{Session: session, Kind: "message", Channel: ev.Channel, ID: ev.Position.String(), Data: ev.Data})
			case *client.Gap:
				t.Errorf("%s: gap from %s to %s", m.Name, ev.From, ev.To)
			}
		}
	})
}

// waitBack returns how long after start the clients were served by another session than
// those counted in before, in order.
func waitBack(t *testing.T, all []*returner, before []int, begin time.Time) []time.Duration {
	t.Helper()
	judge.Eventually(t, 60*time.Second, "every client is back", func() bool {
		return !slices.ContainsFunc(all, func(r *returner) bool { n, _ := r.last(); return n <= before[slices.Index(all, r)] })
	})
	var took []time.Duration
	for _, r := range all {
		_, at := r.last()
		took = append(took, at.Sub(begin))
	}
	slices.Sort(took)
	return took
}

func counts(all []*returner) (n []int) {
	for _, r := range all {
		k, _ := r.last()
		n = append(n, k)
	}
	return n
}

// The only node is restarted as a supervisor does it: SIGTERM, its end, the next process.
// The goal is 5 s for the last of 200 clients; the bound here leaves room for a machine
// that is busy.
func TestPlannedRestartOfTheOnlyNode(t *testing.T) {
	plannedRestarts(t, judge.Options{}, 3)
}

// The same while a service manager keeps the listening sockets: besides, no connection is
// refused, and every request gets an answer.
func TestPlannedRestartWithKeptSockets(t *testing.T) {
	f := func(name string, keeper judge.Keeper, engine string, loops int) {
		t.Helper()
		t.Run(name+" "+engine, func(t *testing.T) {
			s, h := plannedRestarts(t, judge.Options{Keeper: keeper, Config: map[string]any{"eventloop": map[string]any{"engine": engine, "loops": loops}}}, 3)
			for _, what := range h.failures() {
				t.Error(what)
			}
			if keeper != judge.DescriptorStore {
				return
			}
			if got := s.Kept(); len(got) != loops+1 {
				t.Errorf("kept are %q, want the sockets of %d loops and of the admin listener, once", got, loops)
			}
			for state, times := range map[string]int{"READY=1": 4, "STOPPING=1": 3, "WATCHDOG=1": 4} {
				n := 0
				for _, line := range s.Notified() {
					if line == state {
						n++
					}
				}
				if n < times || n > times && state != "WATCHDOG=1" {
					t.Errorf("notified of %s %d times, want %d", state, n, times)
				}
			}
		})
	}
	f("socket unit", judge.SocketUnit, "epoll", 2)
	f("socket unit", judge.SocketUnit, "io_uring", 2)
	f("descriptor store", judge.DescriptorStore, "epoll", 2)
	f("descriptor store", judge.DescriptorStore, "io_uring", 3)
}

// plannedRestarts has 200 clients follow the only node through n restarts, and others send
// requests on connections of their own all the while.
func plannedRestarts(t *testing.T, o judge.Options, n int) (*judge.Server, *hammer) {
	const within = 10 * time.Second
	o.Build = judge.Plain
	config := map[string]any{"shutdown": map[string]any{"drain": "10s"}}
	maps.Copy(config, o.Config)
	o.Config = config
	s := judge.New(t, o)
	f := judge.NewFleet(t, everything)
	p := &judge.Publisher{Addr: s.Public}
	stop := publishing(t, p, 200)
	all := returners(t, f, s.Public, 200)
	waitBack(t, all, make([]int, len(all)), time.Now())
	h := startHammer(t, s.Public)
	for range n {
		before, begin := counts(all), time.Now()
		s.Terminate()
		ended := time.Since(begin)
		s.Start()
		ready := time.Since(begin)
		took := waitBack(t, all, before, begin)
		last := took[len(took)-1]
		t.Logf("process ended after %s, next one ready after %s; clients back: median %s, p95 %s, last %s", ended.Round(time.Millisecond),
			ready.Round(time.Millisecond), took[len(took)/2].Round(time.Millisecond), took[len(took)*95/100].Round(time.Millisecond), last.Round(time.Millisecond))
		if last > within {
			t.Errorf("the last client is back after %s, want %s", last, within)
		}
	}
	h.stop()
	t.Logf("requests on new connections: %s", h)
	stop()
	acked := p.Acked()
	f.CaughtUp(acked, 30*time.Second)
	f.Land()
	f.Judge(acked)
	return s, h
}

// A hammer sends requests one after the other, each on a connection of its own.
type hammer struct {
	stop func()

	mu               sync.Mutex
	served, rejected int // 200, 503
	slowest          time.Duration
	broken           []string
}

func (h *hammer) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d served, %d answered 503, %d refused or broken, slowest %s", h.served, h.rejected, len(h.broken), h.slowest.Round(time.Millisecond))
}

func (h *hammer) failures() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.broken
}

func startHammer(t *testing.T, addr string) *hammer {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hammer{}
	var wg sync.WaitGroup
	h.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(h.stop)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				res, err := client.Get("http://" + addr + "/readyz") //nolint:noctx // one that began is to end
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
				h.mu.Lock()
				switch {
				case err != nil:
					h.broken = append(h.broken, err.Error())
				case res.StatusCode == http.StatusOK:
					h.served++
				default:
					h.rejected++
				}
				h.slowest = max(h.slowest, time.Since(begin))
				h.mu.Unlock()
			}
		})
	}
	return h
}

// What is configured decides where a process listens, not what is kept.
func TestKeptSocketsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	moved := map[string]any{"listen": judge.FreeAddr(t)}
	listens := func(addr string) bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	t.Run("descriptor store", func(t *testing.T) {
		s := judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Keeper: judge.DescriptorStore, Config: map[string]any{"eventloop": map[string]any{"loops": 2}}})
		s.Terminate()
		if !listens(s.Public) || !listens(s.Admin) {
			t.Fatal("no socket is kept")
		}
		was := s.Public
		s.Public = moved["listen"].(string)
		s.Configure(map[string]any{"eventloop": map[string]any{"loops": 1}})
		s.Start()
		if listens(was) || len(s.Kept()) != 2 {
			t.Errorf("%s still listens, or kept are %q", was, s.Kept())
		}
		s.Terminate()
		s.Configure(map[string]any{"eventloop": map[string]any{"loops": 3}, "admin": map[string]any{"listen": "off"}})
		s.Start() // three loops on the one socket
		// It reports to the service manager what it does not need any more.
		judge.Eventually(t, 10*time.Second, "the public listener alone is kept", func() bool { return len(s.Kept()) == 1 && !listens(s.Admin) })
	})
	t.Run("socket unit", func(t *testing.T) {
		s := judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Keeper: judge.SocketUnit})
		s.Terminate()
		s.Configure(moved)
		if out, want := s.RefusesToStart(), `socket "weir.socket" from the service manager listens on `+s.Public+`, which is neither listen (`; !strings.Contains(out, want) {
			t.Errorf("%s, want %q", out, want)
		}
		s.Configure(nil)
		s.Start()
	})
}
