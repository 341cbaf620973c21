package nats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

func startOn(t *testing.T, cfg Config, ns ...hub.Namespace) *hubtest.Node {
	t.Helper()
	return hubtest.Start(t, newBroker(t, cfg), patience, ns...)
}

func history(t *testing.T, n *hubtest.Node, ns *hub.Namespace, name string) []*hub.Message {
	t.Helper()
	return n.Page(ns, name, 0, 1_000_000).Messages
}

func TestRestartKeepsTheLog(t *testing.T) {
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: dir}, ns)
	for i := range 10 {
		n.Pub(&ns, "x", fmt.Sprint(i))
	}
	p := hub.Publication{Channel: "a:x", Data: []byte("once"), IdempotencyKey: "k"}
	first, err := n.Try(&ns, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = startOn(t, Config{Dir: dir}, ns)
	if snap := n.Sub(&ns, "x", 100); !snap.Top.Same(first) || len(snap.Messages) != 11 {
		t.Errorf("after the restart: top %v with %d messages, want %v with 11", snap.Top, len(snap.Messages), first)
	}
	if again, err := n.Try(&ns, p); err != nil || !again.Same(first) {
		t.Errorf("a retry after the restart was answered %v, %v, want %v", again, err, first)
	}
	if next := n.Pub(&ns, "x", "next"); next.Epoch != first.Epoch || next.Offset != first.Offset+1 {
		t.Errorf("%v follows %v", next, first)
	}
	if m := n.Await(&ns, "x", 1)[0]; m.Prev != first.Offset {
		t.Errorf("prev %d, want %d", m.Prev, first.Offset)
	}
}

func TestChangedOptionsAreApplied(t *testing.T) {
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: dir}, ns)
	for i := range 20 {
		n.Pub(&ns, "x", fmt.Sprint(i))
	}
	before := n.End(&ns)
	n.Close()
	ns.HistorySize, ns.HistoryTTL, ns.IdempotencyWindow = 5, hub.Duration(time.Minute), hub.Duration(time.Second)
	n = startOn(t, Config{Dir: dir}, ns)
	if p := n.Page(&ns, "x", 0, 100); len(p.Messages) != 5 || p.FirstRetained != 16 || p.Epoch != before.Epoch {
		t.Errorf("history_size 5 left %d messages from %d in epoch %s", len(p.Messages), p.FirstRetained, p.Epoch)
	}
	n.Close()
	ns.HistorySize = 50 // what the smaller bound removed stays said
	n = startOn(t, Config{Dir: dir}, ns)
	n.Pub(&ns, "x", "20")
	if p := n.Page(&ns, "x", 0, 100); len(p.Messages) != 6 || p.FirstRetained != 16 {
		t.Errorf("history_size 50 has %d messages from %d", len(p.Messages), p.FirstRetained)
	}
}

func TestDirectoryBelongsToOneProcess(t *testing.T) {
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: dir}, ns)
	other := newBroker(t, Config{Dir: dir})
	defer other.Close()
	err := other.Start(t.Context(), []hub.Namespace{ns}, func(*hub.Message) {})
	if err == nil || !strings.Contains(err.Error(), "in use by process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("a second start on the directory: %v", err)
	}
	n.Pub(&ns, "x", "the first is not hurt")
	n.Close()
	startOn(t, Config{Dir: dir}, ns)
}

// A process that hosts the broker is killed in the middle of its publishing,
// several times on one directory: every answered message is there, once.
func TestKilledProcessLosesNothingAnswered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000}.WithDefaults()
	answered := map[string]hub.Position{} // by life and number
	for life := range 4 {
		p := spawn(t, "weir", dir)
		for range 300 + 500*life {
			line, err := p.out.ReadString('\n')
			if err != nil {
				t.Fatalf("life %d: %v", life, err)
			}
			record(t, answered, line)
		}
		p.kill()
		for { // what was answered before the end and not read yet
			line, err := p.out.ReadString('\n')
			if err != nil {
				break
			}
			record(t, answered, line)
		}
	}
	n := startOn(t, Config{Dir: dir}, ns)
	there := map[string]uint64{}
	for c := range 3 {
		for _, m := range history(t, n, &ns, fmt.Sprint(c)) {
			if _, twice := there[string(m.Data)]; twice {
				t.Errorf("message %s is there twice", m.Data)
			}
			there[string(m.Data)] = m.Offset
		}
	}
	epoch := n.End(&ns).Epoch
	for i, at := range answered {
		if at.Epoch != epoch {
			t.Fatalf("the epoch changed from %s to %s", at.Epoch, epoch)
		}
		if there[i] != at.Offset {
			t.Errorf("message %s was answered %d and is at %d", i, at.Offset, there[i])
		}
	}
	t.Logf("%d answered, %d there", len(answered), len(there))
}

// record notes "number position". The same number has the same position in every
// life: it is published with the number as its idempotency key.
func record(t *testing.T, answered map[string]hub.Position, line string) {
	t.Helper()
	i, token, ok := strings.Cut(strings.TrimSpace(line), " ")
	at, err := hub.ParsePosition(token)
	if !ok || err != nil || !strings.HasSuffix(line, "\n") {
		return // the last line, cut by the kill
	}
	if before, ok := answered[i]; ok && !before.Same(at) {
		t.Errorf("message %s was answered %v and then %v", i, before, at)
	}
	answered[i] = at
}

// load publishes until it is stopped and remembers what was answered.
type load struct {
	n    *hubtest.Node
	ns   *hub.Namespace
	stop chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	answered map[string]hub.Position
	refused  int
}

func startLoad(n *hubtest.Node, ns *hub.Namespace, writers int, channels ...string) *load {
	l := &load{n: n, ns: ns, stop: make(chan struct{}), answered: map[string]hub.Position{}}
	for w := range writers {
		l.wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				case <-time.After(200 * time.Microsecond):
				}
				id := fmt.Sprint(w, ".", i)
				r := <-n.Go(ns, hub.Publication{Channel: hubtest.Channel(ns, channels[i%len(channels)]), Data: []byte(id)})
				l.mu.Lock()
				if r.Err == nil {
					l.answered[id] = r.Position
				} else {
					l.refused++
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.answered)
}

// more waits until n more messages were answered.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	want := l.count() + n
	hubtest.Until(t, patience, fmt.Sprint(n, " more answers"), func() bool { return l.count() >= want })
}

// check ends the load and compares what was answered and what was delivered.
func (l *load) check(t *testing.T, nodes []*hubtest.Node, channels ...string) {
	t.Helper()
	close(l.stop)
	l.wg.Wait()
	for i, n := range nodes {
		got := map[string]uint64{}
		for _, name := range channels {
			last := l.n.Pub(l.ns, name, "last")
			n.Wait(patience, "the last message", func() bool { return true })
			hubtest.Until(t, patience, "the last message on "+name, func() bool {
				ms := n.On(hubtest.Channel(l.ns, name))
				return len(ms) > 0 && ms[len(ms)-1].Offset >= last.Offset
			})
			for _, m := range n.On(hubtest.Channel(l.ns, name)) {
				got[string(m.Data)] = m.Offset // the recorder has evaluated order and repeats
			}
		}
		lost := 0
		for id, at := range l.answered {
			if got[id] != at.Offset {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("node %d: %d of %d answered messages were not delivered where they were said to be", i, lost, len(l.answered))
		}
	}
	t.Logf("%d answered, %d refused", len(l.answered), l.refused)
}

// The external server is killed and started again under load, several times.
func TestKilledServerLosesNothingAnswered(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000}.WithDefaults()
	a := startOn(t, Config{URL: c.url()}, ns)
	b := startOn(t, Config{URL: c.url()}, ns)
	names := []string{"x", "y", "z"}
	for _, n := range []*hubtest.Node{a, b} {
		for _, name := range names {
			n.Sub(&ns, name, 0)
		}
	}
	before := a.End(&ns)
	l := startLoad(a, &ns, 3, names...)
	for range 3 {
		l.more(t, 300)
		p.kill()
		began := time.Now()
		hubtest.Until(t, time.Second, "ready to say no", func() bool { return errors.Is(a.Ready(), hub.ErrUnavailable) })
		if _, err := a.Try(&ns, hub.Publication{Channel: "a:x"}); !errors.Is(err, hub.ErrUnavailable) || time.Since(began) > time.Second {
			t.Errorf("publish without a server: %v after %v", err, time.Since(began))
		}
		p = c.spawn(t)
	}
	l.more(t, 300)
	l.check(t, []*hubtest.Node{a, b}, names...)
	if after := a.End(&ns); after.Epoch != before.Epoch {
		t.Errorf("the epoch changed")
	}
}

func TestKilledLeaderLosesNothingAnswered(t *testing.T) {
	t.Parallel()
	cs := cluster(t)
	ps := spawnAll(t, cs)
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000, Replicas: 3}.WithDefaults()
	n := startOn(t, Config{URL: urls(cs)}, ns)
	names := []string{"x", "y", "z"}
	for _, name := range names {
		n.Sub(&ns, name, 0)
	}
	l := startLoad(n, &ns, 2, names...)
	for range 1 {
		l.more(t, 200)
		i := leader(t, n, cs)
		ps[i].kill()
		l.more(t, 200)
		ps[i] = cs[i].spawn(t)
	}
	l.more(t, 200)
	l.checkEach(t, n, names...)
}

// leader returns which server leads the stream.
func leader(t *testing.T, n *hubtest.Node, cs []natsChild) int {
	t.Helper()
	at := -1
	hubtest.Until(t, patience, "a leader", func() bool {
		var a struct {
			Cluster struct{ Leader string } `json:"cluster"`
		}
		if n.Broker.(*Broker).request(t.Context(), "STREAM.INFO.weir_a", nil, &a) != nil {
			return false
		}
		for i, c := range cs {
			if c.Name == a.Cluster.Leader {
				at = i
			}
		}
		return at >= 0
	})
	return at
}

// checkEach is check for a cluster, channel by channel.
func (l *load) checkEach(t *testing.T, n *hubtest.Node, channels ...string) {
	t.Helper()
	l.check(t, []*hubtest.Node{n}, channels...)
}

func TestDeletedStreamStartsANewEpoch(t *testing.T) {
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	n.Sub(&ns, "x", 0)
	var old hub.Position
	for range 5 {
		old = n.Pub(&ns, "x", "old")
	}
	n.Await(&ns, "x", 5)
	b := n.Broker.(*Broker)
	var gone struct{ Success bool }
	if err := b.request(t.Context(), "STREAM.DELETE.weir_a", nil, &gone); err != nil || !gone.Success {
		t.Fatalf("delete the stream: %v", err)
	}
	var at hub.Position
	hubtest.Until(t, patience, "publishing to work again", func() (ok bool) {
		p, err := n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("new")})
		at = p
		return err == nil
	})
	if at.Epoch == old.Epoch || at.Offset == 0 {
		t.Errorf("the new stream is at %v, the deleted one was at %v", at, old)
	}
	ms := n.Await(&ns, "x", 6)
	if m := ms[len(ms)-1]; m.Epoch != at.Epoch || string(m.Data) != "new" {
		t.Errorf("delivered %q at %v, want new at %v", m.Data, m.Position(), at)
	}
	if top := n.End(&ns); top.Epoch != at.Epoch {
		t.Errorf("top %v", top)
	}
}

// A log that ends before messages that were seen is another log, also when the
// server came back with older files under a broker that kept running.
func TestRegressedServerStartsANewEpoch(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	n.Sub(&ns, "x", 0)
	for range 5 {
		n.Pub(&ns, "x", "kept")
	}
	p.stop()
	saved := filepath.Join(t.TempDir(), "saved")
	if err := os.CopyFS(saved, os.DirFS(c.Dir)); err != nil {
		t.Fatal(err)
	}
	p = c.spawn(t)
	var old hub.Position
	hubtest.Until(t, patience, "five more", func() bool {
		at, err := n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("lost")})
		if err == nil {
			old = at
		}
		return old.Offset >= 10
	})
	n.Await(&ns, "x", 10)
	p.kill()
	c.Dir = saved
	c.spawn(t)
	var at hub.Position
	hubtest.Until(t, patience, "publishing to work again", func() bool {
		var err error
		at, err = n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("new")})
		return err == nil
	})
	if at.Epoch == old.Epoch || at.Offset != 6 {
		t.Errorf("after the loss: %v, before it %v", at, old)
	}
	ms := n.Await(&ns, "x", 11)
	if m := ms[10]; !m.Position().Same(at) || string(m.Data) != "new" {
		t.Errorf("delivered %q at %v, want %v", m.Data, m.Position(), at)
	}
}

func TestRegressedDirectoryStartsANewEpoch(t *testing.T) {
	dir := t.TempDir()
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: dir}, ns)
	old := n.Pub(&ns, "x", "d")
	n.Close()
	f := func(what string, change func(*marks), same bool) {
		t.Helper()
		h, err := openHighWater(dir)
		if err != nil {
			t.Fatal(err)
		}
		m := marks{Boot: h.last.Boot, Mount: h.last.Mount, Clean: h.last.Clean, Logs: map[string]mark{"a": h.last.Logs["a"]}}
		change(&m)
		h.boot, h.mount = m.Boot, m.Mount
		if err := h.write(m.Logs, m.Clean); err != nil {
			t.Fatal(err)
		}
		n := startOn(t, Config{Dir: dir}, ns)
		at := n.End(&ns)
		if (at.Epoch == old.Epoch) != same || at.Offset != old.Offset {
			t.Errorf("%s: %v, before it %v", what, at, old)
		}
		old = n.Pub(&ns, "x", "d")
		n.Close()
	}
	f("an orderly restart", func(*marks) {}, true)
	f("a killed process", func(m *marks) { m.Clean = false }, true)
	f("an orderly restart of the machine", func(m *marks) { m.Boot = "another" }, true)
	f("a file system mounted anew after an orderly end", func(m *marks) { m.Mount = "another" }, true)
	f("a file system mounted anew without one", func(m *marks) { m.Mount, m.Clean = "another", false }, false)
	f("a power failure", func(m *marks) { m.Boot, m.Clean = "another", false }, false)
	f("a log that ends too early", func(m *marks) { m.Logs["a"] = mark{Epoch: m.Logs["a"].Epoch, Last: old.Offset + 1} }, false)
	f("a directory without its marks", func(m *marks) { m.Logs = nil }, false)
	f("an orderly restart", func(*marks) {}, true)
}

// The hub may be slow: what does not fit the queue is fetched from the log.
func TestSlowDeliveryLosesNothing(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000, MaxMessageBytes: 1 << 20, QueueBytes: 4 << 20}.WithDefaults()
	b := newBroker(t, Config{Dir: t.TempDir()})
	r := hubtest.NewRecorder(t)
	gate := make(chan struct{})
	if err := b.Start(t.Context(), []hub.Namespace{ns}, func(m *hub.Message) { <-gate; r.Deliver(m) }); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range []string{"a:x", "a:y"} {
		if _, err := b.Subscribe(t.Context(), &ns, name, 0); err != nil {
			t.Fatal(err)
		}
	}
	const count = 10_000 // the queue of this namespace holds 2,048
	answers := make(chan error, count)
	for i := range count {
		p := hub.Publication{Channel: []string{"a:x", "a:y"}[i%2], Data: fmt.Append(nil, i)}
		b.Publish(&ns, p, func(_ hub.Position, err error) { answers <- err })
		if i%1000 == 999 {
			for range 1000 {
				if err := <-answers; err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	close(gate)
	const soon = 7 * time.Second // before the check of quiet channels would find it
	for _, name := range []string{"a:x", "a:y"} {
		hubtest.Until(t, soon, "all messages on "+name, func() bool { return len(r.On(name)) >= count/2 })
		prev := uint64(0)
		for i, m := range r.On(name) {
			if m.Prev != prev && prev != 0 || len(r.On(name)) != count/2 {
				t.Fatalf("%s: message %d has prev %d after %d", name, i, m.Prev, prev)
			}
			prev = m.Offset
		}
	}
}

// lose takes channel x's subscription away while f runs, behind the broker's back:
// what f publishes is lost on the way as between servers that lost each other.
func lose(t *testing.T, n *hubtest.Node, f func()) {
	t.Helper()
	loseOn(t, n.Broker, &hub.Namespace{Name: "a"}, "a:x", f)
}

// loseOn has what is published on channel while f runs get lost on its way to b.
func loseOn(t *testing.T, broker hub.Broker, ns *hub.Namespace, channel string, f func()) {
	t.Helper()
	b := broker.(*Broker)
	s, err := b.stream(ns)
	if err != nil {
		t.Fatal(err)
	}
	tok := token(ns.Name, channel)
	s.mu.Lock()
	c := s.channels[tok]
	s.mu.Unlock()
	if err := errors.Join(c.sub.Unsubscribe(), b.nc.Flush()); err != nil {
		t.Fatal(err)
	}
	f()
	var sub *natsgo.Subscription
	sub, err = b.nc.ChanSubscribe(s.live(s.epochNow(), tok), s.in)
	if err = errors.Join(err, b.nc.Flush()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	c.sub = sub
	s.mu.Unlock()
}

func TestLostMessageIsFetchedBeforeTheNext(t *testing.T) {
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{Dir: t.TempDir()}, ns)
	n.Sub(&ns, "x", 0)
	n.Pub(&ns, "x", "1")
	n.Await(&ns, "x", 1)
	lose(t, n, func() { n.Pub(&ns, "x", "2"); n.Pub(&ns, "x", "3") })
	n.Pub(&ns, "x", "4")
	hubtest.Until(t, 5*time.Second, "the lost messages", func() bool { return len(n.On("a:x")) == 4 })
	for i, m := range n.On("a:x") {
		if string(m.Data) != fmt.Sprint(i+1) || m.Prev != uint64(i) {
			t.Errorf("message %d is %s with prev %d", i, m.Data, m.Prev)
		}
	}
}

func TestLostLastMessageIsFoundByTheCheck(t *testing.T) {
	t.Parallel()
	c := external(t)
	c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url()}, ns)
	n.Sub(&ns, "x", 0)
	n.Pub(&ns, "x", "1")
	n.Await(&ns, "x", 1)
	lose(t, n, func() { n.Pub(&ns, "x", "2") })
	n.Await(&ns, "x", 2)
}

func TestPendingIsBounded(t *testing.T) {
	c := external(t)
	p := c.spawn(t)
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	n := startOn(t, Config{URL: c.url(), MaxPending: 100, MaxPendingBytes: 1 << 20, AckTimeout: hub.Duration(4 * time.Second)}, ns)
	p.suspend(t)
	began := time.Now()
	var answers []<-chan hubtest.Result
	for range 200 {
		answers = append(answers, n.Go(&ns, hub.Publication{Channel: "a:x", Data: []byte("d")}))
	}
	// With less than the time that a publish waits for its answer, however busy the machine is.
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("publishing to a stopped server took %v", took)
	}
	overloaded, unavailable := 0, 0
	for _, a := range answers {
		switch r := <-a; {
		case errors.Is(r.Err, hub.ErrOverloaded):
			overloaded++
		case errors.Is(r.Err, hub.ErrUnavailable):
			unavailable++
		default:
			t.Errorf("a stopped server answered %v, %v", r.Position, r.Err)
		}
	}
	if overloaded != 100 || unavailable != 100 {
		t.Errorf("%d overloaded and %d unavailable, want 100 each", overloaded, unavailable)
	}
	p.cmd.Process.Signal(continueSignal)
	hubtest.Until(t, patience, "publishing to work again", func() bool {
		_, err := n.Try(&ns, hub.Publication{Channel: "a:x", Data: []byte("d")})
		return err == nil
	})
}
