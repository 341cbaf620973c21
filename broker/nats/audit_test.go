package nats

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A mixedLog has messages of several channels in each file: the i-th is of the i-th channel in turns.
type mixedLog struct {
	*store
	channels []string
	messages int
}

var threeChannels = []string{"x", "y", "z"}

// newMixedLog publishes messages and ends what serves the log, or with kill only the server.
func newMixedLog(t *testing.T, outside bool, messages int) *mixedLog {
	t.Helper()
	m := &mixedLog{store: newStore(t, outside, mixedSpace(1)), channels: threeChannels, messages: messages}
	for i := range messages {
		m.publish(i)
	}
	return m
}

func mixedSpace(replicas int) hub.Namespace {
	return hub.Namespace{Name: "a", Replicas: replicas, HistorySize: 10_000, HistoryBytes: 1 << 30}.WithDefaults()
}

func (m *mixedLog) publish(i int) {
	m.t.Helper()
	got := make(chan error, 1)
	m.node.Publish(hub.Publication{
		Channel: "a:" + m.channels[i%len(m.channels)], Data: []byte(payloadsOf(i)), Attributes: &hub.Attributes{ID: fmt.Sprint(i)},
	}, func(_ hub.Position, err error) { got <- err })
	if err := <-got; err != nil {
		m.t.Fatal(err)
	}
}

// offsets returns where the messages of the i-th channel after since are, if each was published
// once and nothing else was.
func (m *mixedLog) offsets(channel int, since uint64) (all []uint64) {
	for i := channel; i < m.messages; i += len(m.channels) {
		if seq := uint64(i + 1); seq > since {
			all = append(all, seq)
		}
	}
	return all
}

// replay reads a channel from since on, page by page, as a client that resumes there would get it.
func replay(t *testing.T, n *hubtest.Node, ns *hub.Namespace, name string, since, upTo uint64) (got []uint64, gap bool) {
	t.Helper()
	for since < upTo {
		p := n.Page(ns, name, since, 100)
		gap = gap || p.FirstRetained > since+1
		for _, m := range p.Messages {
			if want := payloadsOf(int(m.Offset) - 1); string(m.Data) != want {
				t.Errorf("message %d is %q, want %q", m.Offset, m.Data, want)
			}
			got = append(got, m.Offset)
		}
		since = p.Covered
	}
	return got, gap
}

// gaps replays each channel from several places, and returns how many replays had a gap. None lacks a
// message without.
func (m *mixedLog) gaps(n *hubtest.Node) (gaps int) {
	m.t.Helper()
	for c, name := range m.channels {
		for since := uint64(0); since < uint64(m.messages); since += 23 {
			got, gap := replay(m.t, n, &m.ns, name, since, uint64(m.messages))
			if want := m.offsets(c, since); gap {
				gaps++
			} else if !slices.Equal(got, want) {
				m.t.Errorf("%s since %d: %d messages of %d without a gap", name, since, len(got), len(want))
			}
		}
	}
	return gaps
}

// check replays each channel from several places. Of the channel with lost messages a replay that
// crosses one has a gap; each other has everything.
func (m *mixedLog) check(n *hubtest.Node, lost []int) {
	m.t.Helper()
	ns := m.ns
	for c, name := range m.channels {
		for since := uint64(0); since < uint64(m.messages); since += 37 {
			got, gap := replay(m.t, n, &ns, name, since, uint64(m.messages))
			want := m.offsets(c, since)
			crossed, own := false, false
			for _, i := range lost {
				own = own || i%len(m.channels) == c
				crossed = crossed || i%len(m.channels) == c && uint64(i+1) > since
			}
			switch {
			case !gap && !slices.Equal(got, want):
				m.t.Errorf("%s since %d: %d messages of %d without a gap", name, since, len(got), len(want))
			case crossed && !gap:
				m.t.Errorf("%s since %d: no gap", name, since)
			case !own && gap:
				m.t.Errorf("%s since %d: a gap, though all %d messages can be read", name, since, len(want))
			}
		}
	}
}

// serve starts what serves the log without a hub.
func (m *mixedLog) serve() *hubtest.Node {
	m.t.Helper()
	cfg := Config{Dir: m.dir}
	if m.out != nil {
		m.proc = m.out.spawn(m.t)
		cfg = Config{URL: m.out.url()}
	}
	return startOn(m.t, cfg, m.ns)
}

// A message of one of several channels was changed on the disk. Counts that begin in the same file
// leave it out like the replay does, and yet no replay lacks it without a gap.
func TestDamageInALogOfSeveralChannelsIsAGap(t *testing.T) {
	both(t, func(t *testing.T, outside bool) {
		for name, lost := range map[string][]int{
			"in the middle": {150}, "the first of its channel": {1}, "the newest of its channel": {297},
			"the newest of all": {299}, "two": {90, 210},
		} {
			t.Run(name, func(t *testing.T) {
				m := newMixedLog(t, outside, 300)
				m.stop()
				for _, i := range lost {
					ruin(t, m.blocks(), i)
				}
				n := m.serve()
				m.check(n, lost)
				t.Logf("%+v", n.Broker.(*Broker).Stats())
			})
		}
	})
}

// One of three copies is damaged in a log of several channels. Whichever copy answers, a replay has
// every message: the other copies have them.
func TestDamagedCopyOfSeveralChannelsIsFilled(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	cs := cluster(t)
	ps := spawnAll(t, cs)
	m := &mixedLog{store: &store{t: t, dir: cs[1].Dir, ns: mixedSpace(3)}, channels: threeChannels, messages: 300}
	n := startOn(t, Config{URL: urls(cs)}, m.ns)
	for i := range m.messages {
		n.Pub(&m.ns, m.channels[i%3], payloadsOf(i))
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		p.stop()
	}
	for _, i := range []int{100, 150, 290} {
		ruin(t, m.blocks(), i)
	}
	spawnAll(t, cs)
	for _, c := range cs {
		n := startOn(t, Config{URL: c.url()}, m.ns)
		b := n.Broker.(*Broker)
		hubtest.Until(t, patience, "all copies", func() bool {
			logs := b.Logs(t.Context())
			return len(logs) == 1 && len(logs[0].Replicas) == 2 && !slices.ContainsFunc(logs[0].Replicas, func(r ReplicaStatus) bool { return !r.Current })
		})
		hubtest.Until(t, 2*patience, "every message, of whichever copy", func() bool { return m.gaps(n) == 0 })
		t.Logf("%+v", b.Stats())
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that is killed reads its files when it starts, and cuts one that is damaged where the
// damage begins. A node that was there all the time has clients of before: they get a gap.
func TestFileThatWasCutIsAGapForARunningNode(t *testing.T) {
	s := newStore(t, true, mixedSpace(1))
	s.size = 12 << 10
	s.fill(1500)
	at := s.positions()
	if n := len(s.blocks()); n < 3 {
		t.Fatalf("%d files", n)
	}
	s.proc.kill()
	edit(t, s.blocks()[1], func(b []byte) []byte { return flip(b, len(b)-60<<10, s.size) })
	s.proc = s.out.spawn(t)
	s.node.until("the connection", func() bool { return s.node.b.Ready() == nil })
	s.fill(300)
	for _, i := range []int{5, len(at) / 4} {
		if !s.resume("the file was cut", i, at[i]) {
			t.Errorf("no gap after message %d of %d", i+1, len(at))
		}
	}
}

// What a node keeps of a channel's newest messages was read before it is known to be complete. Who was
// replayed from it without a message that cannot be read gets a gap as soon as that is known.
func TestDamageInTheNewestMessagesIsAGap(t *testing.T) {
	m := newMixedLog(t, false, 900)
	m.ns.Recent = 16
	h, err := m.node.History(t.Context(), "a:x", hub.HistoryOptions{Limit: -1})
	if err != nil || len(h.Messages) != 300 {
		t.Fatal(len(h.Messages), err)
	}
	m.stop()
	ruin(t, m.blocks(), 870)
	m.start()
	x := m.node.subscribe(hub.SubscribeOptions{Channels: []string{"a:x"}, Since: hub.Positions{h.Messages[287].Position()}})
	y := m.node.subscribe(hub.SubscribeOptions{Channels: []string{"a:y"}, Since: hub.Positions{h.Messages[287].Position()}})
	m.node.until("a gap", func() bool { return len(x.gaps) > 0 })
	later := m.node.subscribe(hub.SubscribeOptions{Channels: []string{"a:x"}, Since: hub.Positions{h.Messages[295].Position()}})
	m.node.until("a gap for one that may come from there", func() bool { return len(later.gaps) > 0 && len(later.ids) > 0 })
	if len(y.gaps) > 0 || y.bad != "" || x.bad != "" {
		t.Errorf("the other channel: gaps %v; %s; %s", y.gaps, y.bad, x.bad)
	}
}
