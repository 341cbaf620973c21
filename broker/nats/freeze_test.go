package nats

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	judging "github.com/weir-gateway/weir/internal/testkit/history"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A world is three NATS servers that replicate one log, and a node on each; publishers
// at all nodes, and subscribers whose histories are evaluated. Between the servers there
// are relays or, with spaces, links between network namespaces.
type world struct {
	t       *testing.T
	servers []natsChild
	ps      []*process
	spaces  *spaces
	// ackTimeout is the nodes'; 0 means the default.
	ackTimeout hub.Duration
	clients    []*relay   // the way of clients to each server
	routes     [][]*relay // from one server to another; nil to itself
	nodes      []*worldNode
	checker    *judging.Checker
	names      []string

	stop  chan struct{}
	wg    sync.WaitGroup
	began time.Time // when the fault began

	mu       sync.Mutex
	answered int
	refused  int
	slowest  time.Duration // between two answers, over all nodes
	waited   time.Duration // the longest that a publish waited for its answer
	latest   time.Time
}

// A worldNode is a hub with its shard on a goroutine.
type worldNode struct {
	*hub.Hub
	b     *Broker
	shard *hub.Shard
	wake  chan struct{}
	calls chan func() // run by the shard's goroutine
	subs  []*worldSub
}

func (n *worldNode) do(f func()) { n.calls <- f }

// A worldSub is a subscriber. Its fields are the shard's.
type worldSub struct {
	hub.Subscriber
	w        *world
	name     string
	channels []string
	stream   *judging.Stream
	ready    chan struct{}
	ends     map[string]bool // the last messages that came
	silent   time.Duration   // the longest time without a message, which ended at silentTo
	silentTo time.Time
	at       time.Time
	failed   error
}

func (s *worldSub) Start(at hub.Positions) {
	from := map[string]judging.Position{}
	for _, p := range at {
		from["a"] = judging.Position{Epoch: p.Epoch, Offset: p.Offset}
	}
	s.stream = s.w.checker.Stream(s.name, s.channels, from)
	s.at = time.Now()
	close(s.ready)
}
func (s *worldSub) Live()            {}
func (s *worldSub) Room() bool       { return true }
func (s *worldSub) Failed(err error) { s.failed = err }
func (s *worldSub) Gap(g hub.Gap) {
	from, _ := hub.ParsePosition(g.From)
	s.stream.Gap(g.Namespace, judging.Position{Epoch: from.Epoch, Offset: from.Offset}, judging.Position{Epoch: g.To.Epoch, Offset: g.To.Offset})
}
func (s *worldSub) Deliver(b *hub.Batch) {
	now := time.Now()
	if d := now.Sub(s.at); d > s.silent {
		s.silent, s.silentTo = d, now
	}
	s.at = now
	for _, m := range b.Messages {
		s.stream.Received(m.Channel, judging.Position{Epoch: m.Epoch, Offset: m.Offset}, string(m.Data))
		if id := string(m.Data); strings.HasPrefix(id, "last") {
			s.ends[id] = true
		}
	}
}

const worldChannels = 5

func newWorld(t *testing.T, in *spaces, quick bool, ackTimeout hub.Duration) *world {
	w := &world{t: t, ackTimeout: ackTimeout, servers: cluster(t), spaces: in, checker: judging.New(judging.Options{}), stop: make(chan struct{})}
	for i := range worldChannels {
		w.names = append(w.names, fmt.Sprint("a:", i))
	}
	for i := range w.servers {
		w.servers[i].Quick = quick
	}
	if in != nil {
		var routes []string
		for i := range w.servers {
			c := &w.servers[i]
			c.Space, c.Host, c.ClusterHost = in.namespace(i), in.clientHost(i), in.serverHost(i)
			routes = append(routes, fmt.Sprintf("%s:%d", c.ClusterHost, c.ClusterPort))
		}
		for i := range w.servers {
			w.servers[i].Routes = routes
		}
	} else {
		w.relays()
	}
	w.ps = spawnAll(t, w.servers)
	ns := hub.Namespace{Name: "a", HistorySize: 1_000_000, Replicas: 3}
	for i := range w.servers {
		w.startNode(i, ns)
	}
	return w
}

// relays puts them between the servers and before their clients.
func (w *world) relays() {
	t := w.t
	w.routes = make([][]*relay, len(w.servers))
	for i := range w.servers {
		w.clients = append(w.clients, startRelay(t, fmt.Sprintf("127.0.0.1:%d", w.servers[i].Port)))
		w.servers[i].Advertise = w.clients[i].addr
		w.servers[i].Routes = nil
		for j := range w.servers {
			var r *relay
			if j != i {
				r = startRelay(t, fmt.Sprintf("127.0.0.1:%d", w.servers[j].ClusterPort))
				w.servers[i].Routes = append(w.servers[i].Routes, r.addr)
			}
			w.routes[i] = append(w.routes[i], r)
		}
	}
}

// url is where clients reach server i.
func (w *world) url(i int) string {
	if w.spaces != nil {
		return w.servers[i].url()
	}
	return "nats://" + w.clients[i].addr
}

// startNode starts a node that is connected to server i first.
func (w *world) startNode(i int, ns hub.Namespace) {
	w.t.Helper()
	b := newBroker(w.t, Config{URL: w.url(i), AckTimeout: w.ackTimeout})
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{ns}}, b)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := h.Start(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	n := &worldNode{Hub: h, b: b, wake: make(chan struct{}, 1), calls: make(chan func())}
	n.shard = h.NewShard(func() {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	})
	w.nodes = append(w.nodes, n)
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-n.wake:
				n.shard.Run()
			case f := <-n.calls:
				f()
			case <-over:
				return
			}
		}
	})
	w.t.Cleanup(func() {
		close(over)
		wg.Wait()
		h.Close()
	})
	for _, name := range w.names {
		w.subscribe(n, fmt.Sprint("node ", i, " ", name), name)
	}
	w.subscribe(n, fmt.Sprint("node ", i, " two"), w.names[0], w.names[1])
}

func (w *world) subscribe(n *worldNode, name string, channels ...string) {
	w.t.Helper()
	s := &worldSub{w: w, name: name, channels: channels, ready: make(chan struct{}), ends: map[string]bool{}}
	failed := make(chan error, 1)
	n.do(func() { failed <- n.shard.Subscribe(&s.Subscriber, s, hub.SubscribeOptions{Channels: channels}) })
	if err := <-failed; err != nil {
		w.t.Fatal(err)
	}
	select {
	case <-s.ready:
	case <-time.After(patience):
		w.t.Fatalf("%s does not begin", name)
	}
	n.subs = append(n.subs, s)
}

// publish publishes at rate per second, over all nodes and channels.
func (w *world) publish(rate int) {
	const step = 5 * time.Millisecond
	w.latest = time.Now()
	w.wg.Go(func() {
		tick := time.NewTicker(step)
		defer tick.Stop()
		began, sent := time.Now(), 0
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
			for ; sent < int(time.Since(began).Seconds()*float64(rate)); sent++ {
				w.one(w.nodes[sent%len(w.nodes)], w.names[sent/len(w.nodes)%len(w.names)], strconv.Itoa(sent), nil)
			}
		}
	})
}

func (w *world) one(n *worldNode, channel, id string, done chan<- error) {
	w.wg.Add(1)
	began := time.Now()
	n.Publish(hub.Publication{Channel: channel, Data: []byte(id)}, func(at hub.Position, err error) {
		if err == nil {
			w.checker.Published(channel, judging.Position{Epoch: at.Epoch, Offset: at.Offset}, id)
		} else {
			w.checker.Unanswered(channel, id)
		}
		now := time.Now()
		w.mu.Lock()
		w.waited = max(w.waited, now.Sub(began))
		if err == nil {
			w.answered++
			w.slowest = max(w.slowest, now.Sub(w.latest))
			w.latest = now
		} else {
			w.refused++
		}
		w.mu.Unlock()
		w.wg.Done()
		if done != nil {
			done <- err
		}
	})
}

// leader returns which server leads the log.
func (w *world) leader() int {
	w.t.Helper()
	at := -1
	hubtest.Until(w.t, patience, "a leader", func() bool {
		var a struct {
			Cluster struct{ Leader string } `json:"cluster"`
		}
		if w.nodes[0].b.request(w.t.Context(), "STREAM.INFO.weir_a", nil, &a) != nil {
			return false
		}
		for i, c := range w.servers {
			if c.Name == a.Cluster.Leader {
				at = i
			}
		}
		return at >= 0
	})
	return at
}

// isolate cuts server i off from the others, or ends that. Its clients stay.
func (w *world) isolate(i int, cut bool) {
	if w.spaces != nil {
		if err := w.spaces.cut(i, cut); err != nil {
			w.t.Fatal(err)
		}
		return
	}
	for j := range w.servers {
		if j != i {
			w.routes[i][j].hold(cut)
			w.routes[j][i].hold(cut)
		}
	}
}

// finish ends the load, waits until every publish is answered and everything has come to rest and returns the verdict.
func (w *world) finish() *judging.Report {
	w.t.Helper()
	close(w.stop)
	w.wg.Wait()
	for i, name := range w.names {
		id := fmt.Sprint("last ", i)
		hubtest.Until(w.t, 2*patience, "the last message on "+name+" to be stored", func() bool {
			done := make(chan error, 1)
			w.one(w.nodes[0], name, id, done)
			return <-done == nil
		})
		late := time.Now().Add(2 * patience)
		for _, n := range w.nodes {
			for n.lacks(name, id) != "" {
				if time.Now().After(late) {
					w.t.Fatalf("the last message on %s did not come to %s", name, n.lacks(name, id))
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
	return w.checker.Report()
}

// lacks returns which subscribers of channel have not got id.
func (n *worldNode) lacks(channel, id string) string {
	got := make(chan string, 1)
	n.do(func() {
		var names []string
		for _, s := range n.subs {
			if slices.Contains(s.channels, channel) && !s.ends[id] {
				names = append(names, fmt.Sprint(s.name, " ", s.failed))
			}
		}
		got <- strings.Join(names, ", ")
	})
	return <-got
}

// silence returns how long the subscribers that waited longest got nothing.
func (w *world) silence() string {
	var text string
	for _, n := range w.nodes {
		longest := n.subs[0]
		for _, s := range n.subs {
			if s.silent > longest.silent {
				longest = s
			}
		}
		text += fmt.Sprintf("%.1fs to %.1f ", longest.silent.Seconds(), longest.silentTo.Sub(w.began).Seconds())
	}
	return text
}

// A row is a fault: of the log's leader or another server, which is stopped or, with
// partition, cut off from the other servers, by relays or by network namespaces. With
// quick the servers elect leaders as those inside Weir do.
type row struct {
	name                      string
	leader, partition, spaces bool
	quick                     bool
}

// freeze runs one fault for a while under load and judges it.
func freeze(t *testing.T, r row, rate int, during time.Duration, beside bool) {
	var in *spaces
	if r.spaces {
		in = newSpaces(t, 3) // without them relays do
	}
	leader, partition := r.leader, r.partition
	w := newWorld(t, in, r.quick, 0)
	w.publish(rate)
	var others []*bystander
	if beside {
		others = w.startBystanders()
	}
	w.more(2 * rate)
	i := w.leader()
	if !leader {
		i = (i + 1) % len(w.servers)
	}
	fault := func(on bool) {
		switch {
		case partition:
			w.isolate(i, on)
		case on:
			w.ps[i].suspend(t)
		default:
			w.ps[i].cmd.Process.Signal(continueSignal)
		}
	}
	w.began = time.Now()
	fault(true)
	<-time.After(during)
	fault(false)
	w.more(4 * rate)
	v := w.finish()
	if beside {
		logBystanders(t, others)
	}
	t.Logf("%d answered, %d refused, longest without an answer %.1fs, a publish waited at most %.1fs, silent %s; lost %d in %d holes, %d gaps excuse %d, repeated %d, reordered %d, unanswered and stored %d",
		w.answered, w.refused, w.slowest.Seconds(), w.waited.Seconds(), w.silence(), v.Count(judging.Lost), v.Count(judging.Hole), v.Gaps, v.Excused,
		v.Count(judging.Repeated), v.Count(judging.Reordered), v.Stored)
	if !v.OK() {
		t.Error(v)
	}
}

// more waits until n more publications were answered.
func (w *world) more(n int) {
	w.t.Helper()
	answered := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.answered
	}
	n += answered()
	hubtest.Until(w.t, 2*patience, "answers", func() bool { return answered() >= n })
}

// Each row stops one of three servers for a while, or cuts it off from the others:
// no subscriber misses a message without a gap. With WEIR_FREEZE_RUNS it runs as
// often, for 20 s each, at WEIR_FREEZE_RATE publications per second.
func TestFrozenServerLosesNothing(t *testing.T) {
	trial.Long(t)
	runs, _ := strconv.Atoi(os.Getenv("WEIR_FREEZE_RUNS"))
	rate, _ := strconv.Atoi(os.Getenv("WEIR_FREEZE_RATE"))
	rate = cmp.Or(rate, 200)
	during, short := 20*time.Second, runs == 0
	if short {
		runs, during, rate = 1, 12*time.Second, 300
	}
	rows := []row{
		{name: "stopped leader", leader: true},
		{name: "stopped follower"},
		{name: "isolated leader", leader: true, partition: true},
		{name: "isolated follower", partition: true},
		{name: "leader without a link", leader: true, partition: true, spaces: true},
		{name: "follower without a link", partition: true, spaces: true},
		{name: "stopped leader, quick elections", leader: true, quick: true},
	}
	have := newSpaces(t, 1) != nil
	for _, r := range rows {
		if short && (r.quick || r.partition && r.spaces != have) {
			continue // relays where there are no namespaces
		}
		for run := range runs {
			t.Run(fmt.Sprint(r.name, "/", run), func(t *testing.T) {
				if short {
					t.Parallel()
				}
				freeze(t, r, rate, during, !short)
			})
		}
	}
}

// While the log elects another leader, publishes wait and are then stored once and in
// order. None is refused but those that a later one was seen to overtake.
func TestPublishesWaitForTheNextLeader(t *testing.T) {
	trial.Long(t)
	f := func(name string, quick bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			publishesWait(t, quick)
		})
	}
	f("external", false)
	f("as inside Weir", true)
}

func publishesWait(t *testing.T, quick bool) {
	// An election of external servers can take two rounds, and longer than the default of 10 s.
	w := newWorld(t, nil, quick, hub.Duration(30*time.Second))
	ch := w.names[0]
	type answer struct {
		id   int
		at   hub.Position
		err  error
		took time.Duration
	}
	const count = 600
	answers := make(chan answer, count)
	n := w.nodes[(w.leader()+1)%len(w.nodes)]
	tick := time.NewTicker(20 * time.Millisecond) // longer than an election altogether
	defer tick.Stop()
	for i := range count {
		if i == 50 {
			w.ps[w.leader()].kill()
		}
		<-tick.C
		began := time.Now()
		n.Publish(hub.Publication{Channel: ch, Data: fmt.Append(nil, i)}, func(at hub.Position, err error) {
			answers <- answer{i, at, err, time.Since(began)}
		})
	}
	at := make([]uint64, count)
	var slowest time.Duration
	overtaken := 0
	for range count {
		a := <-answers
		if errors.Is(a.err, errOvertaken) {
			overtaken++
		} else if a.err != nil {
			t.Errorf("publish %d after %v: %v", a.id, a.took, a.err)
		}
		at[a.id] = a.at.Offset
		slowest = max(slowest, a.took)
	}
	at = slices.DeleteFunc(at, func(at uint64) bool { return at == 0 })
	if overtaken > count/20 {
		t.Errorf("%d of %d publishes were overtaken", overtaken, count)
	}
	if !slices.IsSorted(at) {
		t.Error("stored in another order than published")
	}
	p, err := n.b.History(t.Context(), &hub.Namespace{Name: "a"}, ch, 0, count+100)
	if err != nil || len(p.Messages) != count-overtaken {
		t.Errorf("%d messages are stored, %v, want %d", len(p.Messages), err, count-overtaken)
	}
	t.Logf("slowest answer after %v, %d overtaken", slowest, overtaken)
}
