package nats

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// An observer counts the reads of logs that come to a NATS server's account, by kind.
type observer struct {
	t  *testing.T
	nc *natsgo.Conn

	mu   sync.Mutex
	seen map[string]int
}

const (
	readsOfAny    = "DIRECT.GET"     // which any replica answers
	readsOfLeader = "STREAM.MSG.GET" // of one message each
)

func observe(t *testing.T, url string) *observer {
	t.Helper()
	o := &observer{t: t, seen: map[string]int{}}
	nc, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	o.nc = nc
	_, err = nc.Subscribe("$JS.API.>", func(m *natsgo.Msg) {
		for _, kind := range []string{readsOfAny, readsOfLeader} {
			if strings.HasPrefix(m.Subject, "$JS.API."+kind+".") {
				o.mu.Lock()
				o.seen[kind]++
				o.mu.Unlock()
			}
		}
	})
	if err = errors.Join(err, nc.Flush()); err != nil {
		t.Fatal(err)
	}
	return o
}

// count returns how many reads came since it was called before.
func (o *observer) count() (anyReplica, leader int) {
	o.t.Helper()
	if err := o.nc.Flush(); err != nil {
		o.t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	anyReplica, leader = o.seen[readsOfAny], o.seen[readsOfLeader]
	clear(o.seen)
	return anyReplica, leader
}

// What a node reads when it gets the subscribers of another one, and when its own channels may have missed
// something, does not grow with the channels. Read one by one, 300 of them are 604 reads, and five more each
// for audits, and 319.
func TestChannelsAreReadTogether(t *testing.T) {
	const channels = 300
	cs := cluster(t)
	spawnAll(t, cs)
	ns := hub.Namespace{Name: "a", Replicas: 3}.WithDefaults()
	writer := startHub(t, Config{URL: cs[0].url()}, ns)
	name := func(i int) string { return fmt.Sprint("a:c", i) }
	var at []hub.Position
	for i := range channels {
		at = append(at, writer.publish(name(i), fmt.Sprint("1 ", i)))
	}
	for i := range channels {
		writer.publish(name(i), fmt.Sprint("2 ", i))
	}
	n := startHub(t, Config{URL: cs[1].url()}, ns)
	o := observe(t, cs[1].url())
	o.count()

	readers := make([]*streamReader, channels)
	for i := range readers {
		readers[i] = &streamReader{}
		err := n.shard.Subscribe(new(hub.Subscriber), readers[i], hub.SubscribeOptions{Channels: []string{name(i)}, Since: hub.Positions{at[i]}})
		if err != nil {
			t.Fatal(err)
		}
	}
	have := func(ids string) func() bool {
		return func() bool {
			for i, r := range readers {
				want := strings.ReplaceAll(ids, "i", fmt.Sprint(i))
				if r.bad != "" || len(r.gaps) > 0 {
					t.Fatalf("channel %d: %s, gaps %v", i, r.bad, r.gaps)
				}
				if strings.Join(r.ids, ",") != want {
					return false
				}
			}
			return true
		}
	}
	n.until("what was missed", have("2 i"))
	anyReplica, leader := o.count()
	t.Logf("%d channels joined: %d direct reads, %d reads of the leader", channels, anyReplica, leader)
	if anyReplica > 30 || leader > 30 { // the slower the machine, the fewer channels come together
		t.Errorf("%d channels were joined with %d direct reads and %d of the leader, want at most 30 each", channels, anyReplica, leader)
	}

	s := n.b.all()[ns.LogName()]
	compare := func() {
		checked := s.checked.Swap(0)
		s.nudge()
		n.until("the log to be compared", func() bool { return s.checked.Load() == checked })
	}
	for i := range channels {
		loseOnAll(t, s, name(i))
	}
	for i := range channels {
		writer.publish(name(i), fmt.Sprint("3 ", i))
	}
	o.count()
	compare()
	n.until("what was lost on the way", have("2 i,3 i"))
	anyReplica, leader = o.count()
	t.Logf("%d channels caught up: %d direct reads, %d reads of the leader", channels, anyReplica, leader)
	if anyReplica > 5 || leader > 5 {
		t.Errorf("%d channels caught up with %d direct reads and %d of the leader, want at most 5 each", channels, anyReplica, leader)
	}

	compare()
	if anyReplica, leader = o.count(); anyReplica > 0 || leader > 2 {
		t.Errorf("%d channels that miss nothing were compared with %d direct reads and %d of the leader, want 0 and at most 2", channels, anyReplica, leader)
	}
}

// loseOnAll has what is published on channel get lost on its way to s from now on.
func loseOnAll(t *testing.T, s *stream, channel string) {
	t.Helper()
	s.mu.Lock()
	c := s.channels[token(s.opts.Load().Name, channel)]
	s.mu.Unlock()
	if err := c.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
}

// What retention removed does not count as read: a subscriber that resumes from before it gets a gap, and others what
// is there.
func TestResumeReachesNoFurtherThanTheLog(t *testing.T) {
	ns := hub.Namespace{Name: "a", HistorySize: 3}.WithDefaults()
	cfg := Config{Dir: t.TempDir()}
	writer := startHub(t, cfg, ns)
	first := writer.publish("a:x", "x1")
	other := writer.publish("a:y", "y1")
	for i := range 5 {
		writer.publish("a:x", fmt.Sprint("x", i+2))
	}
	writer.publish("a:y", "y2")
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	n := startHub(t, cfg, ns)
	y := n.subscribe(hub.SubscribeOptions{Channels: []string{"a:y"}, Since: hub.Positions{other}})
	x := n.subscribe(hub.SubscribeOptions{Channels: []string{"a:x"}, Since: hub.Positions{first}})
	n.until("what is there", func() bool {
		return strings.Join(x.ids, ",") == "x4,x5,x6" && strings.Join(y.ids, ",") == "y2"
	})
	if len(x.gaps) != 1 || x.gaps[0].Reason != hub.GapRetention || len(y.gaps) != 0 || x.bad+y.bad != "" {
		t.Errorf("gaps %v of the one whose messages were removed, %v of the other; %s%s", x.gaps, y.gaps, x.bad, y.bad)
	}
}

// Only what comes after the newest hole counts as read.
func TestStretchStartsAfterAHole(t *testing.T) {
	o := &logOptions{logPlace{log: "p.log.a."}}
	at := func(seq uint64, tok string) stored { return stored{seq: seq, subject: o.log + tok} }
	st := &stretch{floor: 10, upTo: 10, messages: map[string][]stored{}}
	f := func(tok string, upTo uint64, n int, floor uint64, want ...uint64) {
		t.Helper()
		ms, got := st.newest(tok, upTo, n)
		var seqs []uint64
		for _, m := range ms {
			seqs = append(seqs, m.seq)
		}
		if fmt.Sprint(seqs) != fmt.Sprint(want) || got != floor {
			t.Errorf("newest of %s up to %d: %v after %d, want %v after %d", tok, upTo, seqs, got, want, floor)
		}
	}
	st.extend(o, []stored{at(11, "x"), at(12, "y"), at(13, "x"), at(14, "x")}, 13)
	f("x", 13, 9, 10, 11, 13)
	f("x", 12, 9, 10, 11)
	f("x", 13, 1, 11, 13)
	f("z", 13, 9, 10)
	st.extend(o, []stored{at(14, "y"), at(16, "y"), at(17, "x")}, 17)
	f("y", 17, 9, 15, 16)
	f("x", 17, 9, 15, 17)
	st.extend(o, nil, 18)
	f("x", 18, 9, 18)
}
