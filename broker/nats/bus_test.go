package nats

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// An ear keeps what is sent on a topic, by sender.
type ear struct {
	mu       sync.Mutex
	received map[string][]string
	stop     func()
}

func listen(t *testing.T, b hub.Bus, topic string) *ear {
	t.Helper()
	e := &ear{received: map[string][]string{}}
	var err error
	e.stop, err = b.Listen(topic, func(from string, data []byte) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.received[from] = append(e.received[from], string(data))
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *ear) from(node string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.received[node]...)
}

func busOf(n *hubtest.Node) hub.Bus { return n.Broker.(*Broker).Bus() }

// introduce has every node send to every other until all have received from all: how long the
// news of a listener takes between servers is not said anywhere.
func introduce(t *testing.T, nodes []*hubtest.Node) {
	t.Helper()
	var ears []*ear
	for _, n := range nodes {
		ears = append(ears, listen(t, busOf(n), "hello"))
	}
	for _, n := range nodes {
		for i, e := range ears {
			hubtest.Until(t, patience, fmt.Sprint("node ", i, " to receive"), func() bool {
				_ = busOf(n).Broadcast("hello", nil) // it is sent again
				return len(e.from(busOf(n).Node())) > 0
			})
		}
	}
	for _, e := range ears {
		e.stop()
	}
}

// checkBus has all send to all and to each other, and compares what was received.
func checkBus(t *testing.T, nodes []*hubtest.Node) {
	t.Helper()
	var ears, others []*ear
	for _, n := range nodes {
		ears = append(ears, listen(t, busOf(n), "a.b-c_D"))
		others = append(others, listen(t, busOf(n), "a"))
	}
	introduce(t, nodes) // the news of two listeners on one topic comes in order
	const count = 200
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			for i := range count {
				err := busOf(n).Broadcast("a.b-c_D", fmt.Append(nil, i, " all"))
				for _, to := range nodes {
					err = errors.Join(err, busOf(n).SendTo(busOf(to).Node(), "a.b-c_D", fmt.Append(nil, i, " one")))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i, e := range ears {
		for j, n := range nodes {
			var got []string
			hubtest.Until(t, patience, fmt.Sprintf("node %d to receive from node %d", i, j), func() bool {
				got = e.from(busOf(n).Node())
				return len(got) >= 2*count
			})
			for k, s := range got {
				if want := fmt.Sprint(k/2, []string{" all", " one"}[k%2]); s != want {
					t.Fatalf("node %d received %q from node %d, want %q", i, s, j, want)
				}
			}
		}
		if len(others[i].received) != 0 {
			t.Errorf("another topic received %v", others[i].received)
		}
		e.stop()
		others[i].stop()
	}
}

func TestBusAlone(t *testing.T) {
	n := startOn(t, Config{Dir: t.TempDir()}, hub.Namespace{Name: "a"})
	checkBus(t, []*hubtest.Node{n})
	b := busOf(n)
	f := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(b.Broadcast("", nil), "1 to 64")
	f(b.Broadcast("a b", nil), "a b")
	f(b.Broadcast("a", make([]byte, 512<<10+1)), "too large")
	f(b.SendTo("a.b", "t", nil), "a.b")
	_, err := b.Listen(">", func(string, []byte) {})
	f(err, `">"`)
	if id := b.Node(); id == "" || len(id) > 32 || strings.Trim(id, plain) != "" || id == newNode() {
		t.Errorf("node %q", id)
	}
	e := listen(t, b, "large")
	data := strings.Repeat("d", 512<<10)
	if err := b.Broadcast("large", []byte(data)); err != nil {
		t.Fatal(err)
	}
	hubtest.Until(t, patience, "512 KiB", func() bool { return len(e.from(b.Node())) == 1 })
	if e.from(b.Node())[0] != data {
		t.Error("another text came")
	}
	n.Close()
	if err := b.Broadcast("a", nil); !errors.Is(err, hub.ErrClosed) {
		t.Errorf("send after the end: %v", err)
	}
	if _, err := b.Listen("a", func(string, []byte) {}); !errors.Is(err, hub.ErrClosed) {
		t.Errorf("listen after the end: %v", err)
	}
	e.stop()
	early := newBroker(t, Config{Dir: t.TempDir()})
	defer early.Close()
	if err := early.Bus().Broadcast("a", nil); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("send before the start: %v", err)
	}
}

func TestBusOfAnEmbeddedCluster(t *testing.T) {
	dir := t.TempDir()
	var cfgs []Config
	var routes []string
	for i := range 3 {
		at := fmt.Sprintf("127.0.0.1:%d", trial.FreePort(t))
		routes = append(routes, at)
		cfgs = append(cfgs, Config{Dir: filepath.Join(dir, fmt.Sprint(i)), Cluster: Cluster{Name: "c", Node: fmt.Sprint("n", i), Listen: at}})
	}
	nodes := make([]*hubtest.Node, 3)
	var wg sync.WaitGroup
	for i := range cfgs {
		cfgs[i].Cluster.Routes = routes
		wg.Go(func() { nodes[i] = startOn(t, cfgs[i], hub.Namespace{Name: "a", Durability: hub.None}) })
	}
	wg.Wait()
	checkBus(t, nodes)
}

func TestBusRecoversWithTheServer(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a", Durability: hub.None}
	nodes := []*hubtest.Node{startOn(t, Config{URL: c.url()}, ns), startOn(t, Config{URL: c.url()}, ns)}
	apart := startOn(t, Config{URL: c.url(), Prefix: "other"}, ns)
	unheard := listen(t, busOf(apart), "kept")
	kept := listen(t, busOf(nodes[0]), "kept")
	checkBus(t, nodes)
	p.kill()
	hubtest.Until(t, patience, "the end to be said", func() bool {
		return errors.Is(busOf(nodes[1]).Broadcast("kept", nil), hub.ErrUnavailable)
	})
	c.spawn(t)
	hubtest.Until(t, patience, "the listener to be there again", func() bool {
		_ = busOf(nodes[1]).Broadcast("kept", []byte("after")) // it is sent again
		got := kept.from(busOf(nodes[1]).Node())
		return len(got) > 0 && got[len(got)-1] == "after"
	})
	introduce(t, nodes)
	checkBus(t, nodes)
	if len(unheard.received) != 0 {
		t.Error("another installation received it")
	}
}

// One listener that stops loses what is past its bound, and no other does.
func TestSlowListenerIsBounded(t *testing.T) {
	n := startOn(t, Config{Dir: t.TempDir()}, hub.Namespace{Name: "a"})
	b := busOf(n)
	gate, entered := make(chan struct{}), make(chan struct{}, 1)
	gotAll := 0
	stop, err := b.Listen("t", func(string, []byte) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-gate
		gotAll++
	})
	if err != nil {
		t.Fatal(err)
	}
	quick := listen(t, b, "t")
	const count = maxBusQueue + 1000
	for i := range count {
		hubtest.Until(t, patience, "room on the bus", func() bool { return b.Broadcast("t", fmt.Append(nil, i)) == nil })
	}
	hubtest.Until(t, patience, "the other listener", func() bool { return len(quick.from(b.Node())) == count })
	<-entered
	hubtest.Until(t, patience, "the loss to be counted", func() bool { return n.Broker.(*Broker).BusDropped() >= 1000-1 })
	close(gate)
	stop()
	stop() // twice does nothing
	n.Close()
	if gotAll > maxBusQueue+1 {
		t.Errorf("%d received", gotAll)
	}
}
