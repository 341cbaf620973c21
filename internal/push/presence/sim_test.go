package presence_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/cluster/clustertest"
	"github.com/weir-gateway/weir/internal/push/presence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A node is a Presence that runs, what it has of its own, and what its watcher was
// notified of.
type node struct {
	*presence.Presence
	id   string
	stop func()

	// The test's goroutine.
	own    map[string]map[string]string // channel → client → user
	counts map[string]int

	mu    sync.Mutex
	t     *testing.T
	seen  map[string]map[string]bool // channel → node/client, by events
	users map[string]map[string]bool
	used  map[string]bool // occupied
	log   []string
}

func start(t *testing.T, net *clustertest.Net, id string) *node {
	t.Helper()
	bus := net.Join(id)
	c, err := cluster.New(cluster.Config{}, bus, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := presence.New(presence.Config{}, c, bus, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		Presence: p, id: id, t: t, own: map[string]map[string]string{}, counts: map[string]int{},
		seen: map[string]map[string]bool{}, users: map[string]map[string]bool{}, used: map[string]bool{},
	}
	p.Watch(n.watch)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	n.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	return n
}

// watch keeps the state that events make, and finds those that make none: one that
// says again what is known, or ends what is not.
func (n *node) watch(channel string, events []presence.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen[channel] == nil {
		n.seen[channel], n.users[channel] = map[string]bool{}, map[string]bool{}
	}
	turn := func(set map[string]bool, name string, on bool, what string) {
		if set[name] == on {
			n.t.Errorf("%s: %s %s of %s reported twice", n.id, what, name, channel)
		}
		if set[name] = on; !on {
			delete(set, name)
		}
	}
	for _, e := range events {
		client := e.Member.Node + "/" + e.Member.Client
		n.log = append(n.log, fmt.Sprint(channel, " ", names[e.Type], " ", e.Member.Client, ":", e.Member.User))
		switch e.Type {
		case presence.Join:
			turn(n.seen[channel], client, true, "join")
		case presence.Leave:
			turn(n.seen[channel], client, false, "leave")
		case presence.UserJoin:
			turn(n.users[channel], e.Member.User, true, "first of user")
		case presence.UserLeave:
			turn(n.users[channel], e.Member.User, false, "last of user")
		case presence.Occupied:
			turn(n.used, channel, true, "occupied")
		case presence.Vacated:
			turn(n.used, channel, false, "vacated")
		}
	}
}

var names = map[presence.EventType]string{
	presence.Join: "join", presence.Leave: "leave", presence.UserJoin: "first", presence.UserLeave: "last",
	presence.Occupied: "occupied", presence.Vacated: "vacated",
}

func (n *node) reported() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.log
	n.log = nil
	return out
}

func (n *node) join(channel, client, user string) {
	if err := n.Join(channel, presence.Member{Client: client, User: user, Info: []byte(`{"of":"` + user + `"}`)}); err != nil {
		n.t.Error(err)
	}
	if n.own[channel] == nil {
		n.own[channel] = map[string]string{}
	}
	n.own[channel][client] = user
}

func (n *node) leave(channel, client string) {
	n.Leave(channel, client)
	delete(n.own[channel], client)
}

func (n *node) add(channel string, d int) {
	n.Add(channel, presence.Pusher, d)
	n.counts[channel] += d
}

// check compares what n sees, and what its events made, with the truth.
func (n *node) check(nodes []*node, channels []string) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ch := range channels {
		clients, users, subs := map[string]bool{}, map[string]bool{}, 0
		for _, o := range nodes {
			for c, u := range o.own[ch] {
				clients[o.id+"/"+c], users[u] = true, true
			}
			subs += o.counts[ch]
		}
		got := map[string]bool{}
		for _, m := range n.Members(ch, 0) {
			got[m.Node+"/"+m.Client] = true
			if want := `{"of":"` + m.User + `"}`; string(m.Info) != want {
				n.t.Errorf("%s: info of %s is %s, want %s", n.id, m.Client, m.Info, want)
			}
		}
		n.same(ch, "members", got, clients)
		n.same(ch, "events of clients", n.seen[ch], clients)
		n.same(ch, "events of users", n.users[ch], users)
		if c, u := n.Count(ch); c != len(clients) || u != len(users) {
			n.t.Errorf("%s: %s counts %d clients and %d users, want %d and %d", n.id, ch, c, u, len(clients), len(users))
		}
		if s := n.Subscriptions(ch, presence.Pusher); s != subs || n.used[ch] != (subs > 0) {
			n.t.Errorf("%s: %s has %d subscriptions, occupied %v, want %d", n.id, ch, s, n.used[ch], subs)
		}
	}
}

func (n *node) same(ch, what string, got, want map[string]bool) {
	n.t.Helper()
	if !maps.Equal(got, want) && len(got)+len(want) > 0 {
		n.t.Errorf("%s: %s of %s are %v, want %v", n.id, what, ch, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// TestNodesConverge has five nodes come, go, die and be cut off over a net that
// loses and delays, and all of them see the truth in the end, with every event once.
func TestNodesConverge(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { converge(t, seed) })
		})
	}
}

func converge(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	net := clustertest.NewNet(seed)
	defer net.Close()
	channels := []string{"a", "b", "c", "d"}
	var nodes, dead []*node
	started := 0
	begin := func() {
		started++
		nodes = append(nodes, start(t, net, fmt.Sprint("n", started)))
	}
	for range 3 + r.IntN(3) {
		begin()
	}
	net.Set(0.05, 50*time.Millisecond)
	for step := range 1500 {
		n, ch := nodes[r.IntN(len(nodes))], channels[r.IntN(len(channels))]
		client := fmt.Sprint("c", r.IntN(8))
		switch r.IntN(8) {
		case 0, 1, 2:
			n.join(ch, client, fmt.Sprint("u", r.IntN(5)))
		case 3, 4:
			n.leave(ch, client)
		case 5:
			n.add(ch, 1)
		case 6:
			if n.counts[ch] > 0 {
				n.add(ch, -r.IntN(n.counts[ch]+1))
			}
		case 7:
			time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
		}
		switch {
		case step%300 == 150 && len(nodes) > 2: // one dies
			i := r.IntN(len(nodes))
			net.Kill(nodes[i].id)
			dead = append(dead, nodes[i])
			nodes = slices.Delete(nodes, i, i+1)
		case step%300 == 200: // one leaves in order
			if len(nodes) > 2 {
				nodes[0].stop()
				nodes = nodes[1:]
			}
		case step%300 == 250: // others come
			begin()
			begin()
		case step%500 == 100: // two are cut off from each other until they give each other up
			net.Cut(nodes[0].id, nodes[1].id, true)
			time.Sleep(6 * time.Second)
			net.Cut(nodes[0].id, nodes[1].id, false)
		}
	}
	net.Set(0, 20*time.Millisecond)
	time.Sleep(15 * time.Second)
	for _, n := range nodes {
		n.check(nodes, channels)
	}
	if net.Lost() == 0 {
		t.Error("nothing was lost")
	}
	for _, n := range slices.Concat(nodes, dead) {
		n.stop()
	}
}

// with runs f with fake time and two nodes that know each other.
func with(t *testing.T, f func(t *testing.T, net *clustertest.Net, a, b *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := clustertest.NewNet(1)
		defer net.Close()
		a, b := start(t, net, "a"), start(t, net, "b")
		time.Sleep(time.Second)
		f(t, net, a, b)
		a.stop()
		b.stop()
	})
}

func want[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestJoinIsSeenHereAtOnceAndThereSoon(t *testing.T) {
	with(t, func(t *testing.T, _ *clustertest.Net, a, b *node) {
		a.join("room", "1", "anna")
		a.join("room", "2", "anna")
		c, u := a.Count("room")
		want(t, "here", fmt.Sprint(c, u), "2 1")
		time.Sleep(15 * time.Millisecond)
		c, u = b.Count("room")
		want(t, "there", fmt.Sprint(c, u), "2 1")
		want(t, "user there", b.Has("room", "anna"), true)
		time.Sleep(time.Second)
		events := []string{"room join 1:anna", "room join 2:anna", "room first 2:anna"}
		want(t, "reported here", a.reported(), events)
		got := b.reported()
		slices.Sort(got)
		slices.Sort(events)
		want(t, "reported there", len(got), 3)
	})
}

func TestReconnectWithinAWindowIsNoEvent(t *testing.T) {
	with(t, func(t *testing.T, _ *clustertest.Net, a, b *node) {
		a.join("room", "1", "anna")
		time.Sleep(time.Second)
		a.reported()
		b.reported()
		for range 5 {
			a.leave("room", "1")
			a.join("room", "1", "anna")
		}
		time.Sleep(time.Second)
		want(t, "here", len(a.reported()), 0)
		want(t, "there", len(b.reported()), 0)
		// The same user on another node: the client is another, the user is not.
		a.leave("room", "1")
		b.join("room", "9", "anna")
		time.Sleep(time.Second)
		got := a.reported()
		slices.Sort(got)
		want(t, "moved", got, []string{"room join 9:anna", "room leave 1:anna"})
		want(t, "count", fmt.Sprint(a.Count("room")), fmt.Sprint(1, 1))
	})
}

func TestDeathOfANodeEndsItsMembersAtOnce(t *testing.T) {
	with(t, func(t *testing.T, net *clustertest.Net, a, b *node) {
		for i := range 100 {
			b.join("room", fmt.Sprint(i), "user")
		}
		a.join("room", "x", "user")
		b.add("other", 3)
		time.Sleep(time.Second)
		a.reported()
		net.Kill("b")
		time.Sleep(5 * time.Second)
		want(t, "count", fmt.Sprint(a.Count("room")), fmt.Sprint(1, 1))
		want(t, "subscriptions", a.Subscriptions("other", presence.Pusher), 0)
		got := a.reported()
		want(t, "events", len(got), 101) // 100 leave, other vacated; the user stays
		want(t, "vacated", strings.Contains(fmt.Sprint(got), "other vacated"), true)
		want(t, "channels", len(a.Channels(nil)), 1)
	})
}

// A crowd that comes and goes is reported in pieces, each of it once.
func TestPresenceIsReportedOnce(t *testing.T) {
	with(t, func(t *testing.T, net *clustertest.Net, a, b *node) {
		const n = 5_000
		for i := range n {
			b.join("room", fmt.Sprint(i), fmt.Sprint("u", i%3000))
		}
		b.add("room", 1)
		time.Sleep(time.Second)
		a.check([]*node{a, b}, []string{"room"})
		b.check([]*node{a, b}, []string{"room"})
		want(t, "reported", len(a.reported()), n+3000+1)
		for i := range n {
			b.leave("room", fmt.Sprint(i))
			if i%1000 == 0 {
				time.Sleep(30 * time.Millisecond) // windows start and end meanwhile
			}
		}
		time.Sleep(time.Second)
		a.check([]*node{a, b}, []string{"room"})
		want(t, "reported", len(a.reported()), n+3000)
		for i := range n {
			b.join("room", fmt.Sprint(i), "one")
		}
		time.Sleep(time.Second)
		a.reported()
		net.Kill("b")
		time.Sleep(5 * time.Second)
		want(t, "reported at the end", len(a.reported()), n+2) // the one user, and the channel is vacated
		want(t, "channels", a.Stats().Channels, 0)
	})
}

func TestLargeStateReachesANodeThatJoins(t *testing.T) {
	with(t, func(t *testing.T, net *clustertest.Net, a, b *node) {
		for i := range 20_000 {
			a.join(fmt.Sprint("room:", i%1000), fmt.Sprint(i), fmt.Sprint("u", i%7))
		}
		time.Sleep(time.Second)
		c := start(t, net, "c")
		time.Sleep(time.Second)
		want(t, "members at c", c.Stats().Members, 20_000)
		want(t, "holes at b", b.Stats().Holes, 0)
		want(t, "channels", len(c.Channels(func(ch string) bool { return strings.HasPrefix(ch, "room:9") })), 111)
		c.stop()
	})
}

func TestBoundsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := clustertest.NewNet(1)
		defer net.Close()
		bus := net.Join("a")
		c, _ := cluster.New(cluster.Config{}, bus, nil)
		p, err := presence.New(presence.Config{MaxMembers: 2}, c, bus, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := func(client string, info int, want error) {
			t.Helper()
			if err := p.Join("room", presence.Member{Client: client, Info: make([]byte, info)}); !errors.Is(err, want) {
				t.Errorf("join %s: %v, want %v", client, err, want)
			}
		}
		f("1", 10, nil)
		f("2", presence.MaxMember, presence.ErrTooLarge)
		f("2", 10, nil)
		f("3", 10, presence.ErrFull)
		f("2", 20, nil) // is there already
		p.Leave("room", "1")
		f("3", 10, nil)
		p.Leave("room", "absent")
		p.Leave("nowhere", "1")
		p.Add("room", presence.Native, -5)
		want(t, "subscriptions", p.Subscriptions("room", presence.Native), 0)
		want(t, "own", p.Stats().Local, 2)
	})
}
