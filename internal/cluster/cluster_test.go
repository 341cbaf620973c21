package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/cluster/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A node is a Cluster that runs, and what it received.
type node struct {
	*cluster.Cluster
	bus  *clustertest.Bus
	stop func() // ends it in order and waits

	mu     sync.Mutex
	events []string
}

func start(t *testing.T, net *clustertest.Net, id string) *node {
	t.Helper()
	bus := net.Join(id)
	c, err := cluster.New(cluster.Config{Name: "host-" + id, Version: "1"}, bus, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Cluster: c, bus: bus}
	say := func(what string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, what)
	}
	c.OnChange(func(o cluster.Node) { say("+" + o.ID) }, func(id string) { say("-" + id) })
	c.Handle("echo", func(from string, data []byte) []byte { return append([]byte(from+">"+id+":"), data...) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) reported() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

func ids(c *cluster.Cluster) (out []string) {
	for _, n := range c.Nodes() {
		out = append(out, n.ID)
	}
	return out
}

// simulate runs f with fake time over a net.
func simulate(t *testing.T, f func(t *testing.T, net *clustertest.Net)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := clustertest.NewNet(1)
		defer net.Close()
		f(t, net)
	})
}

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestNodesKnowEachOtherAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a := start(t, net, "a")
		synctest.Wait()
		b := start(t, net, "b")
		synctest.Wait()
		want(t, "a", ids(a.Cluster), []string{"a", "b"})
		want(t, "b", ids(b.Cluster), []string{"b", "a"})
		want(t, "name of a at b", b.Nodes()[1].Name, "host-a")
		b.stop()
		synctest.Wait()
		want(t, "events of a", a.reported(), []string{"+b", "-b"})
		want(t, "expired", a.Stats().Expired, 0)
		a.stop()
	})
}

func TestKilledNodeIsRemovedAtTheEndOfItsLease(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b := start(t, net, "a"), start(t, net, "b")
		time.Sleep(2500 * time.Millisecond)
		net.Kill("b")
		time.Sleep(2400 * time.Millisecond)
		want(t, "before the lease ends", a.Alive("b"), true)
		time.Sleep(2 * time.Second)
		want(t, "after", a.Alive("b"), false)
		want(t, "events of a", a.reported(), []string{"+b", "-b"})
		want(t, "expired", a.Stats().Expired, 1)
		b.stop()
		a.stop()
	})
}

func TestCutNodesComeBack(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b := start(t, net, "a"), start(t, net, "b")
		time.Sleep(time.Second)
		net.Cut("a", "b", true)
		time.Sleep(10 * time.Second)
		net.Cut("a", "b", false)
		time.Sleep(2 * time.Second)
		want(t, "events of a", a.reported(), []string{"+b", "-b", "+b"})
		want(t, "events of b", b.reported(), []string{"+a", "-a", "+a"})
		a.stop()
		b.stop()
	})
}

func TestLossySecondsRemoveNoNode(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		net.Set(0.1, 200*time.Millisecond)
		a, b := start(t, net, "a"), start(t, net, "b")
		time.Sleep(20 * time.Second)
		want(t, "events of a", a.reported(), []string{"+b"})
		want(t, "events of b", b.reported(), []string{"+a"})
		a.stop()
		b.stop()
	})
}

// A heartbeat that was in flight when the node left does not bring it back.
func TestALeavingNodeIsRemovedAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b := start(t, net, "a"), start(t, net, "b")
		time.Sleep(time.Second)
		b.stop()
		synctest.Wait()
		if err := b.bus.Broadcast("cluster.beat", []byte(`{"name":"host-b","started":1}`)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want(t, "events of a", a.reported(), []string{"+b", "-b"})
		a.stop()
	})
}

func TestEveryNodeAnswers(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b, c := start(t, net, "a"), start(t, net, "b"), start(t, net, "c")
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		answers, missing, err := a.Request(ctx, "echo", []byte("hi"))
		if err != nil || len(missing) != 0 || len(answers) != 3 {
			t.Fatalf("answers %q, missing %q, err %v", answers, missing, err)
		}
		want(t, "of c", string(answers["c"]), "a>c:hi")
		want(t, "of a", string(answers["a"]), "a>a:hi")
		one, err := b.RequestNode(ctx, "c", "echo", nil)
		want(t, "of c to b", string(one), "b>c:")
		want(t, "err", err, nil)
		_, err = b.RequestNode(ctx, "unknown", "echo", nil)
		want(t, "unknown", errors.Is(err, cluster.ErrNoNode), true)
		_, err = b.RequestNode(ctx, "c", "what", nil)
		want(t, "no handler", errors.Is(err, cluster.ErrNoHandler), true)
		c.Handle("never", func(string, []byte) []byte { time.Sleep(time.Minute); return nil })
		_, err = b.RequestNode(t.Context(), "c", "never", nil)
		want(t, "without a deadline", errors.Is(err, context.DeadlineExceeded), true)
		ended, end := context.WithCancel(t.Context())
		end()
		_, err = b.RequestNode(ended, "c", "never", nil)
		want(t, "ended", errors.Is(err, context.Canceled), true)
		_, err = b.RequestNode(t.Context(), "c", "echo", make([]byte, cluster.MaxQuestion+1))
		want(t, "too large", errors.Is(err, cluster.ErrTooLarge), true)
		for _, n := range []*node{a, b, c} {
			n.stop()
		}
	})
}

func TestLargeAnswersComeWhole(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b := start(t, net, "a"), start(t, net, "b")
		big := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
		b.Handle("big", func(string, []byte) []byte { return big })
		b.Handle("bigger", func(string, []byte) []byte { return make([]byte, cluster.MaxAnswer+1) })
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err := a.RequestNode(ctx, "b", "big", nil)
		if err != nil || !bytes.Equal(got, big) {
			t.Errorf("%d bytes, want %d; err %v", len(got), len(big), err)
		}
		_, err = a.RequestNode(ctx, "b", "bigger", nil)
		want(t, "bigger", errors.Is(err, cluster.ErrTooLarge), true)
		a.stop()
		b.stop()
	})
}

// Those that do not answer are named, whether they are slow or die meanwhile.
func TestMissingNodesAreNamed(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b, c := start(t, net, "a"), start(t, net, "b"), start(t, net, "c")
		release := make(chan struct{})
		slow := func(string, []byte) []byte { <-release; return nil }
		a.Handle("q", func(string, []byte) []byte { return []byte("yes") })
		b.Handle("q", slow)
		c.Handle("q", slow)
		time.Sleep(time.Second)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		answers, missing, err := a.Request(ctx, "q", nil)
		cancel()
		want(t, "answers", fmt.Sprint(len(answers), missing, err), "1 [b c] <nil>")
		want(t, "after", time.Since(began), time.Second)
		net.Kill("b")
		net.Kill("c")
		_, missing, _ = a.Request(t.Context(), "q", nil) // no deadline: their end is one
		want(t, "missing", missing, []string{"b", "c"})
		close(release)
		for _, n := range []*node{a, b, c} {
			n.stop()
		}
	})
}

func TestHandlersAtWorkAreBounded(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b := start(t, net, "a"), start(t, net, "b")
		release := make(chan struct{})
		b.Handle("q", func(string, []byte) []byte { <-release; return nil })
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		var mu sync.Mutex
		busy := 0
		for range 200 {
			wg.Go(func() {
				_, err := a.RequestNode(t.Context(), "b", "q", nil)
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, cluster.ErrBusy) {
					busy++
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		want(t, "refused", busy, 200-64)
		a.stop()
		b.stop()
	})
}

func TestStatsOfANodeAreSeenByTheOthers(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a, b := start(t, net, "a"), start(t, net, "b")
		b.Describe(func() []byte { return []byte(`{"connections":5}`) })
		time.Sleep(2500 * time.Millisecond)
		want(t, "stats", string(a.Nodes()[1].Stats), `{"connections":5}`)
		a.stop()
		b.stop()
	})
}

func TestOwnersAgreeAndFewMove(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		nodes := []*node{start(t, net, "a"), start(t, net, "b"), start(t, net, "c")}
		time.Sleep(time.Second)
		owners, per := map[string]string{}, map[string]int{}
		for i := range 3000 {
			key := fmt.Sprint("channel:", i)
			owners[key] = nodes[0].Owner(key)
			per[owners[key]]++
			for _, n := range nodes[1:] {
				want(t, key, n.Owner(key), owners[key])
			}
		}
		for id, n := range per {
			if n < 800 || n > 1200 {
				t.Errorf("%s owns %d of 3000 keys", id, n)
			}
		}
		nodes[2].stop()
		synctest.Wait()
		for key, was := range owners {
			if was != "c" {
				want(t, key, nodes[0].Owner(key), was)
			}
		}
		nodes[0].stop()
		nodes[1].stop()
	})
}

func TestNonsenseOfOtherNodesIsCounted(t *testing.T) {
	simulate(t, func(t *testing.T, net *clustertest.Net) {
		a := start(t, net, "a")
		synctest.Wait() // it listens
		evil := net.Join("evil")
		for _, m := range []string{"", "x", "\xff", "\x01\xff", "\x01\x00\x05\x02", "{", "\x01\x05abc"} {
			for _, topic := range []string{"cluster.beat", "cluster.ask", "cluster.reply"} {
				if err := evil.Broadcast(topic, []byte(m)); err != nil {
					t.Error(err)
				}
			}
		}
		synctest.Wait()
		want(t, "nodes", ids(a.Cluster), []string{"a"})
		if a.Stats().Malformed < 12 {
			t.Errorf("%d malformed", a.Stats().Malformed)
		}
		a.stop()
	})
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	f := func(c cluster.Config, ok bool) {
		t.Helper()
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	f(cluster.Config{}, true)
	f(cluster.Config{}.WithDefaults(), true)
	f(cluster.Config{Name: "a\nb"}, false)
	f(cluster.Config{Lease: 1}, false)
	f(cluster.Config{Heartbeat: 1}, false)
	f(cluster.Config{MaxNodes: -1}, false)
}
