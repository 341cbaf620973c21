package e2e

import (
	"context"
	"fmt"
	"slices"
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
func returners(t *testing.T, f *fleet, addr string, n int) (all []*returner) {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	t.Cleanup(f.land)
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
			r, m := add(kind), f.member(fmt.Sprintf("%s %d", kind, i), mine)
			s := &judge.Subscriber{
				Addr: addr, Socket: i%4 == 2, Patient: i%4 == 0, Channels: mine, Last: "0",
				On: m.on, Up: func(int) { m.ups.Add(1) }, Served: func(int) { r.served() },
			}
			f.wg.Go(func() {
				if err := s.Run(ctx); err != nil {
					t.Errorf("%s: %v", m.name, err)
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
func goClient(ctx context.Context, t *testing.T, f *fleet, addr string, r *returner, mine []string, transport client.Transport) {
	m := f.member(r.kind, mine)
	c, err := client.New(client.Config{URL: "http://" + addr})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := c.Subscribe(ctx, client.SubscribeOptions{Channels: mine, Since: "0", Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	f.wg.Go(func() {
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
				m.on(judge.Event{Session: session, Kind: "message", Channel: ev.Channel, ID: ev.Position.String(), Data: ev.Data})
			case *client.Gap:
				m.t.Errorf("%s: gap from %s to %s", m.name, ev.From, ev.To)
			}
		}
	})
}

// waitBack returns how long after begin the clients were served by another session than
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
// The goal is 5 s for the last of 200 clients; the bound here leaves room for a
// machine that is busy.
func TestPlannedRestartOfTheOnlyNode(t *testing.T) {
	const within = 10 * time.Second
	s := judge.New(t, judge.Options{Build: judge.Plain, Config: map[string]any{"shutdown": map[string]any{"drain": "10s"}}})
	f := newFleet(t)
	p := &judge.Publisher{Addr: s.Public}
	stop := publishing(t, p, 200)
	all := returners(t, f, s.Public, 200)
	waitBack(t, all, make([]int, len(all)), time.Now())
	for range 3 {
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
	stop()
	acked := p.Acked()
	f.caughtUp(acked, 30*time.Second)
	f.land()
	f.judge(acked)
}
