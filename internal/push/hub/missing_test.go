package hub_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// leaky is a broker that loses messages on their way to the hub. What f returns for
// a message is delivered in its place.
type leaky struct {
	hub.Broker
	f func(*hub.Message) *hub.Message
}

func (l *leaky) Start(ctx context.Context, namespaces []hub.Namespace, deliver func(*hub.Message)) error {
	return l.Broker.Start(ctx, namespaces, func(m *hub.Message) {
		if m = l.f(m); m != nil {
			deliver(m)
		}
	})
}

// What a broker lost shows as a gap before the next message: by the predecessor that
// it names, or because the broker reports it. Anyone who resumes from before it gets all.
func TestLostMessagesAreAGap(t *testing.T) {
	reported := func(channel string) func(*hub.Message) *hub.Message {
		return func(m *hub.Message) *hub.Message {
			if text := string(m.Data); text != "3" && text != "4" {
				return m
			}
			return &hub.Message{Channel: channel, Epoch: m.Epoch, Offset: m.Offset, Missing: true}
		}
	}
	f := func(name, channel string, channels []string, lose func(*hub.Message) *hub.Message, gaps int) {
		t.Run(name, func(t *testing.T) {
			b, err := memory.New(memory.Config{})
			if err != nil {
				t.Fatal(err)
			}
			h, err := hub.New(hub.Config{
				Namespaces: []hub.Namespace{{Name: "a"}},
				Encoders:   []hub.Encoder{func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) }},
			}, &leaky{Broker: b, f: lose})
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { h.Close() })
			o := newOwner(t, h)
			live := newSink()
			subscribe(t, o, live, hub.SubscribeOptions{Channels: channels})
			var at []hub.Position
			for i := range 6 {
				at = append(at, publish(t, h, channel, fmt.Sprint(i+1)))
			}
			live.wait(t, "the last message", func() bool { return len(live.got) == 4 })
			if len(live.gaps) != gaps {
				t.Fatalf("%d gaps, want %d: %+v", len(live.gaps), gaps, live.gaps)
			}
			first, last := live.gaps[0], live.gaps[gaps-1]
			if first.From != at[1].String() || last.To != at[3] || last.At != at[3] || string(live.got[1].Data) != "2" || string(live.got[2].Data) != "5" {
				t.Errorf("gaps %+v; messages after it start with %s", live.gaps, live.got[2].Data)
			}
			back := newSink()
			subscribe(t, o, back, hub.SubscribeOptions{Channels: channels, Since: hub.Positions{at[0]}})
			back.wait(t, "all since the first", func() bool { return len(back.got) == 5 })
			if len(back.gaps) > 0 || string(back.got[1].Data) != "3" {
				t.Errorf("resumed: gaps %+v, second message %s", back.gaps, back.got[1].Data)
			}
		})
	}
	lose := func(m *hub.Message) *hub.Message {
		if text := string(m.Data); text == "3" || text == "4" {
			return nil
		}
		return m
	}
	f("a predecessor that did not come", "a:x", []string{"a:x"}, lose, 1)
	f("the same of several channels", "a:x", []string{"a:x", "a:y"}, lose, 1)
	f("reported", "a:x", []string{"a:x"}, reported("a:x"), 2)
	f("reported of the whole namespace", "a:x", []string{"a:"}, reported("a:"), 2)
}

// A stream of two channels has one position: a message of one takes it past what the other
// lost. One that was taken past it gets a gap when that is found out, or when it resumes.
func TestALostMessageIsAGapForStreamsThatWereTakenPastIt(t *testing.T) {
	f := func(name, channel, text string) {
		t.Run(name, func(t *testing.T) {
			b, err := memory.New(memory.Config{})
			if err != nil {
				t.Fatal(err)
			}
			var lost hub.Position
			h, err := hub.New(hub.Config{
				Namespaces: []hub.Namespace{{Name: "a"}},
				Encoders:   []hub.Encoder{func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) }},
			}, &leaky{Broker: b, f: func(m *hub.Message) *hub.Message {
				switch string(m.Data) {
				case "lost":
					lost = m.Position()
					return nil
				case "report":
					return &hub.Message{Channel: "a:x", Epoch: lost.Epoch, Offset: lost.Offset, Missing: true}
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
			both := []string{"a:x", "a:y"}
			stays, leaves := live(t, o, hub.SubscribeOptions{Channels: both}), live(t, o, hub.SubscribeOptions{Channels: both})
			live(t, o, hub.SubscribeOptions{Channels: []string{"a:z"}}) // what reports it is delivered on it
			first := publish(t, h, "a:x", "1")
			publish(t, h, "a:x", "lost")
			passed := publish(t, h, "a:y", "2")
			for _, s := range []*sink{stays, leaves} {
				s.wait(t, "the messages that came", func() bool { return len(s.got) == 2 })
			}
			o.do(func() { o.shard.Unsubscribe(&leaves.sub) })
			back := live(t, o, hub.SubscribeOptions{Channels: both, Since: hub.Positions{passed}})
			publish(t, h, channel, text)
			for what, s := range map[string]*sink{
				"was there":               stays,
				"had resumed":             back,
				"resumes after it":        live(t, o, hub.SubscribeOptions{Channels: both, Since: hub.Positions{passed}}),
				"resumes with everything": live(t, o, hub.SubscribeOptions{Channels: []string{"a:"}, Since: hub.Positions{passed}}),
			} {
				s.wait(t, "a gap for one that "+what, func() bool { return len(s.gaps) > 0 })
				if g := s.gaps[0]; len(s.gaps) > 1 || g.At.Offset < passed.Offset || g.To.Offset < lost.Offset {
					t.Errorf("one that %s: gaps %+v, after %v", what, s.gaps, passed)
				}
			}
			if s := live(t, o, hub.SubscribeOptions{Channels: both[1:], Since: hub.Positions{passed}}); len(s.gaps) > 0 {
				t.Errorf("one that does not follow the channel: gaps %+v", s.gaps)
			}
			early := live(t, o, hub.SubscribeOptions{Channels: both, Since: hub.Positions{first}})
			early.wait(t, "what was stored", func() bool { return len(early.got) >= 2 })
			if len(early.gaps) > 0 || string(early.got[0].Data) != "lost" {
				t.Errorf("one that resumes before it: gaps %+v, %s", early.gaps, early.text())
			}
		})
	}
	f("reported", "a:z", "report")
	f("named by the next message", "a:x", "next")
}

// What is missing at the beginning of a new epoch is a gap as well.
func TestALostMessageBeginsAnEpoch(t *testing.T) {
	b, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{
		Namespaces: []hub.Namespace{{Name: "a"}},
		Encoders:   []hub.Encoder{func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) }},
	}, &leaky{Broker: b, f: func(m *hub.Message) *hub.Message {
		if string(m.Data) == "lost" {
			return &hub.Message{Channel: m.Channel, Epoch: "next", Offset: 7, Missing: true}
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
	s := live(t, o, hub.SubscribeOptions{Channels: []string{"a:x"}})
	publish(t, h, "a:x", "1")
	publish(t, h, "a:x", "lost")
	s.wait(t, "both gaps", func() bool { return len(s.gaps) == 2 })
	if e, g := s.gaps[0], s.gaps[1]; e.Reason != hub.GapEpoch || g.To != (hub.Position{Epoch: "next", Offset: 7}) || len(s.got) != 1 {
		t.Errorf("gaps %+v, %d messages", s.gaps, len(s.got))
	}
}
