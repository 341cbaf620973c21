package nats

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// busy publishes on channel without a pause from several goroutines until it is ended.
func busy(t *testing.T, n *hubtest.Node, ns *hub.Namespace, name string) (end func()) {
	t.Helper()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-n.Go(ns, hub.Publication{Channel: hubtest.Channel(ns, name), Data: []byte("busy")}):
				}
			}
		})
	}
	return func() { close(stop); wg.Wait() }
}

// payloadsOf puts a payload that can be found in a file into each message of x.
func payloadsOf(i int) string { return fmt.Sprintf("payload number %06d", i) }

// ruin changes a byte in the payloads of the i-th message of x, in files.
func ruin(t *testing.T, files []string, i int) {
	t.Helper()
	found := 0
	for _, f := range files {
		edit(t, f, func(b []byte) []byte {
			if at := bytes.Index(b, []byte(payloadsOf(i))); at >= 0 {
				found++
				b[at+3] ^= 0x20
			}
			return b
		})
	}
	if found == 0 {
		t.Fatalf("%q is in no file", payloadsOf(i))
	}
}

// A message whose payload was changed on the disk is left out by the server. A replay
// that crosses it gets a gap event, however much is published on the channel meanwhile.
func TestHoleOnABusyChannelIsAGap(t *testing.T) {
	both(t, func(t *testing.T, outside bool) {
		s := newStore(t, outside, hub.Namespace{Name: "a", HistorySize: 1_000_000, HistoryBytes: 1 << 30}.WithDefaults())
		for i := range 300 {
			got := make(chan error, 1)
			s.node.Publish(hub.Publication{Channel: "a:x", Data: []byte(payloadsOf(i))}, func(_ hub.Position, err error) { got <- err })
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		s.stop()
		ruin(t, s.blocks(), 150)
		cfg := Config{Dir: s.dir}
		if s.out != nil {
			s.proc = s.out.spawn(t)
			cfg = Config{URL: s.out.url()}
		}
		n := startOn(t, cfg, s.ns)
		defer busy(t, n, &s.ns, "x")()
		for range 10 {
			for since, want := range map[uint64]bool{0: true, 100: true, 149: true, 150: true, 151: false, 200: false} {
				p := n.Page(&s.ns, "x", since, 100)
				crossed := since < 151 && p.Covered >= 151
				if gap := p.FirstRetained > since+1; crossed && !gap || gap && since >= 151 || want && since > 100 && !gap {
					t.Fatalf("since %d to %d, %d messages: first retained %d", since, p.Covered, len(p.Messages), p.FirstRetained)
				}
			}
		}
	})
}

// With several replicas the message is read from another one, whichever of them answers and
// however much is published meanwhile.
func TestHoleOfAReplicaIsFilled(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	cs := cluster(t)
	ps := spawnAll(t, cs)
	ns := hub.Namespace{Name: "a", Replicas: 3, HistorySize: 1_000_000, HistoryBytes: 1 << 30}.WithDefaults()
	n := startOn(t, Config{URL: urls(cs)}, ns)
	for i := range 300 {
		n.Pub(&ns, "x", payloadsOf(i))
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		p.stop()
	}
	s := &store{t: t, dir: cs[1].Dir}
	ruin(t, s.blocks(), 150)
	spawnAll(t, cs)
	for i, c := range cs {
		n := startOn(t, Config{URL: c.url()}, ns)
		end, rounds, gaps := func() {}, 2, 0
		if i == 2 {
			end, rounds = busy(t, n, &ns, "x"), 8
		}
		for range rounds {
			for _, since := range []uint64{0, 100, 149, 150, 151} {
				p := n.Page(&ns, "x", since, 100)
				var got, want []uint64
				for seq := since + 1; seq <= since+100; seq++ {
					want = append(want, seq)
				}
				for _, m := range p.Messages {
					if got = append(got, m.Offset); string(m.Data) != payloadsOf(int(m.Offset)-1) {
						t.Fatalf("message %d is %q", m.Offset, m.Data)
					}
				}
				if gap := p.FirstRetained > since+1; !gap && !slices.Equal(got, want) {
					t.Errorf("node %d, since %d: %d messages without a gap, up to %d", i, since, len(got), p.Covered)
				} else if gap {
					gaps++
				}
			}
		}
		t.Logf("node %d: %d gaps in %d pages", i, gaps, 5*rounds)
		end()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
