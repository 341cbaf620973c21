package nats

import (
	"fmt"
	"testing"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A log with a new epoch is followed on other subjects. What was stored before a node has
// subscribed to them is missing on all channels, and the next message of one of them shows it:
// it is delivered after what all of them miss, in the order of the log.
func TestWhatAllChannelsMissComesInTheOrderOfTheLog(t *testing.T) {
	ns := hub.Namespace{Name: "a"}.WithDefaults()
	b := newBroker(t, Config{Dir: t.TempDir()})
	t.Cleanup(func() { _ = b.Close() })
	got := make(chan *hub.Message, 256)
	gate := make(chan struct{})
	deliver := func(m *hub.Message) {
		if m.Channel == "a:gate" {
			<-gate
			return
		}
		got <- m
	}
	if err := b.Start(t.Context(), []hub.Namespace{ns}, deliver); err != nil {
		t.Fatal(err)
	}
	names := []string{"a:x", "a:y", "a:z"}
	for _, name := range append(names, "a:gate") {
		if _, err := b.Subscribe(t.Context(), &ns, name, 0); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(channel string) {
		done := make(chan error, 1)
		b.Publish(&ns, hub.Publication{Channel: channel, Data: []byte("m")}, func(_ hub.Position, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	s, err := b.stream(&ns)
	if err != nil {
		t.Fatal(err)
	}
	const rounds, each = 20, 4 // which of what is ready is taken first is random
	since := uint64(0)
	for range rounds {
		publish("a:gate") // run waits until the round is prepared
		for _, name := range names {
			unsubscribe(s.channels[token("a", name)].sub)
		}
		for i := range each * len(names) {
			publish(names[i%len(names)])
		}
		for _, name := range names {
			c := s.channels[token("a", name)]
			if c.sub, err = b.nc.ChanSubscribe(s.live(s.epochNow(), token("a", name)), s.in); err != nil {
				t.Fatal(err)
			}
		}
		s.nudge() // as adopt does
		publish(names[0])
		trial.Eventually(t, "the last message to have come", func() bool { return len(s.in) > 0 })
		gate <- struct{}{}
		order := ""
		for range each*len(names) + 1 {
			m := <-got
			order += fmt.Sprintf(" %s@%d", m.Channel, m.Offset)
			if m.Offset <= since {
				t.Fatalf("reordered:%s", order)
			}
			since = m.Offset
		}
	}
}
