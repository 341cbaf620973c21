package nats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// Three gateways, each with its server inside, make a cluster of their own; one
// of them goes away and comes back.
func TestEmbeddedServersMakeACluster(t *testing.T) {
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a", Replicas: 3}.WithDefaults()
	var cfgs []Config
	var routes []string
	for i := range 3 {
		listen := fmt.Sprintf("127.0.0.1:%d", trial.FreePort(t))
		routes = append(routes, listen)
		cfgs = append(cfgs, Config{Dir: filepath.Join(dir, fmt.Sprint(i)), Cluster: Cluster{
			Name: "c", Node: fmt.Sprint("n", i), Listen: listen, User: "u", Password: "p",
		}})
	}
	nodes := make([]*hubtest.Node, 3)
	var wg sync.WaitGroup
	for i := range cfgs {
		cfgs[i].Cluster.Routes = routes
		wg.Go(func() { nodes[i] = startOn(t, cfgs[i], ns) })
	}
	wg.Wait()
	for _, n := range nodes {
		if n == nil {
			t.Fatal("a node did not start")
		}
		n.Sub(&ns, "x", 0)
	}
	publish := func(n *hubtest.Node, data string) (at hub.Position) {
		t.Helper()
		p := hub.Publication{Channel: "a:x", Data: []byte(data), IdempotencyKey: data}
		hubtest.Until(t, patience, "publishing to work", func() bool {
			var err error
			at, err = n.Try(&ns, p)
			return err == nil
		})
		return at
	}
	for i, n := range nodes {
		publish(n, fmt.Sprint(i))
	}
	for _, n := range nodes {
		n.Await(&ns, "x", 3)
	}
	if err := nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	last := publish(nodes[0], "without n2")
	nodes[1].Await(&ns, "x", 4)
	back := startOn(t, cfgs[2], ns)
	snap := back.Sub(&ns, "x", 10)
	if !snap.Top.Same(last) || len(snap.Messages) != 4 {
		t.Errorf("the node that came back sees %d messages at %v, want 4 at %v", len(snap.Messages), snap.Top, last)
	}
	if at := publish(back, "from n2"); at.Epoch != last.Epoch {
		t.Errorf("the epoch changed from %v to %v", last, at)
	}
	nodes[0].Await(&ns, "x", 5)
}

func TestAbsentServerIsSaid(t *testing.T) {
	b := newBroker(t, Config{URL: fmt.Sprintf("nats://127.0.0.1:%d", trial.FreePort(t))})
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := b.Start(ctx, []hub.Namespace{{Name: "a"}}, func(*hub.Message) {})
	if !errors.Is(err, hub.ErrUnavailable) || !strings.Contains(err.Error(), "is the server running") {
		t.Errorf("start without a server: %v", err)
	}
	if err := b.Ready(); !errors.Is(err, hub.ErrClosed) {
		t.Errorf("ready after a failed start: %v", err)
	}
}

func TestForeignStreamIsLeftAlone(t *testing.T) {
	c := external(t)
	c.spawn(t)
	n := startOn(t, Config{URL: c.url()}, hub.Namespace{Name: "a"})
	b := n.Broker.(*Broker)
	var a struct{}
	err := b.request(t.Context(), "STREAM.CREATE.weir_b", map[string]any{"name": "weir_b", "subjects": []string{"other"}}, &a)
	if err != nil {
		t.Fatal(err)
	}
	other := newBroker(t, Config{URL: c.url()})
	defer other.Close()
	err = other.Start(t.Context(), []hub.Namespace{{Name: "b"}}, func(*hub.Message) {})
	if err == nil || !strings.Contains(err.Error(), "not one of ours") {
		t.Errorf("start on a foreign stream: %v", err)
	}
	if other := newBroker(t, Config{URL: c.url()}); true {
		defer other.Close()
		err := other.Start(t.Context(), []hub.Namespace{{Name: "c", Replicas: 3}}, func(*hub.Message) {})
		if err == nil || !strings.Contains(err.Error(), "no cluster") {
			t.Errorf("three replicas on one external server: %v", err)
		}
	}
}

// Two installations share a server without seeing each other.
func TestPrefixesKeepInstallationsApart(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	one := startOn(t, Config{URL: c.url(), Prefix: "one"}, ns)
	two := startOn(t, Config{URL: c.url(), Prefix: "two"}, ns)
	one.Sub(&ns, "x", 0)
	two.Sub(&ns, "x", 0)
	p1, p2 := one.Pub(&ns, "x", "1"), two.Pub(&ns, "x", "2")
	if p1.Epoch == p2.Epoch || p1.Offset != 1 || p2.Offset != 1 {
		t.Errorf("%v and %v", p1, p2)
	}
	if a, b := one.Await(&ns, "x", 1), two.Await(&ns, "x", 1); string(a[0].Data)+string(b[0].Data) != "12" {
		t.Errorf("delivered %q and %q", a[0].Data, b[0].Data)
	}
}

// A server that stops answering without closing is noticed and answered for.
func TestSilentServerIsNoticed(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	n.Sub(&ns, "x", 0)
	n.Pub(&ns, "x", "1")
	p.suspend(t)
	began := time.Now()
	hubtest.Until(t, patience, "not ready", func() bool { return n.Ready() != nil })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a silent server was noticed after %v", took)
	}
	p.cmd.Process.Signal(continueSignal)
	hubtest.Until(t, patience, "ready again", func() bool { return n.Ready() == nil })
	n.Pub(&ns, "x", "2")
	n.Await(&ns, "x", 2)
}
