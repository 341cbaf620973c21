package hub_test

import (
	"testing"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A broker finds out that a message cannot be read after it was replayed past. Clients of the
// channel get a gap, those that are connected and those that come later.
func TestDamageFoundLateIsAGap(t *testing.T) {
	b, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{
		Namespaces: []hub.Namespace{{Name: "a"}},
		Encoders:   []hub.Encoder{func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) }},
	}, &leaky{Broker: b, f: func(m *hub.Message) *hub.Message {
		if string(m.Data) == "report" {
			return &hub.Message{Channel: "a:x", Epoch: m.Epoch, Offset: 1, Missing: true, Damaged: true}
		}
		return m
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	o := newOwner(t, h)
	x, y := []string{"a:x"}, []string{"a:y"}
	live(t, o, hub.SubscribeOptions{Channels: []string{"a:z"}}) // what reports it is delivered on it
	first := publish(t, h, "a:x", "1")
	second := publish(t, h, "a:x", "2")
	alone, both, other := live(t, o, hub.SubscribeOptions{Channels: x}), live(t, o, hub.SubscribeOptions{Channels: []string{"a:x", "a:y"}}), live(t, o, hub.SubscribeOptions{Channels: y})
	publish(t, h, "a:z", "report")
	alone.wait(t, "a gap of its channel", func() bool { return len(alone.gaps) == 1 })
	both.wait(t, "a gap of one of its channels", func() bool { return len(both.gaps) == 1 })
	for what, p := range map[string]hub.Position{"from before it": first, "from where it was passed": second} {
		s := live(t, o, hub.SubscribeOptions{Channels: x, Since: hub.Positions{p}})
		if len(s.gaps) != 1 {
			t.Errorf("one that resumes %s: gaps %+v", what, s.gaps)
		}
	}
	after := publish(t, h, "a:x", "3")
	alone.wait(t, "what follows", func() bool { return len(alone.got) == 1 })
	s := live(t, o, hub.SubscribeOptions{Channels: x, Since: hub.Positions{after}})
	publish(t, h, "a:y", "4")
	other.wait(t, "a message", func() bool { return len(other.got) == 1 })
	if len(s.gaps) > 0 || len(other.gaps) > 0 || len(alone.gaps) > 1 {
		t.Errorf("gaps %+v of one that resumes after it, %+v of another channel, %+v of one that had its gap", s.gaps, other.gaps, alone.gaps)
	}
}
