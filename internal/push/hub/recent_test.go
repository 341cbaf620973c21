package hub_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/hub/hubtest"
)

const (
	payload = 1000
	cost    = payload + int64(unsafe.Sizeof(hub.Message{})) + 8
)

// budgeted is a hub on the memory broker, which keeps up to log bytes, whose rings keep up
// to recent.
func budgeted(t *testing.T, recent, log int64) (*hub.Hub, *memory.Broker) {
	t.Helper()
	b, err := memory.New(memory.Config{Bytes: log})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{
		Namespaces: []hub.Namespace{{Name: "default", Recent: 100, HistorySize: 1000}}, RecentBudget: recent,
		Encoders: []hub.Encoder{func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) }},
	}, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h, b
}

// Rings are counted to the byte. At the budget they lose what they keep, and who resumes
// gets it from the log.
func TestRecentMessagesStayWithinTheirBudget(t *testing.T) {
	h, _ := budgeted(t, 80*cost, 0)
	o := newOwner(t, h)
	var sinks []*sink
	for i := range 8 {
		s := newSink()
		subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{fmt.Sprint("c", i)}})
		sinks = append(sinks, s)
	}
	data := strings.Repeat("x", payload)
	var first hub.Position
	for i := range 8 {
		for range 9 {
			if at := publish(t, h, fmt.Sprint("c", i), data); first.Offset == 0 {
				first = at
			}
		}
	}
	if s := h.Stats(); s.RingBytes != 72*cost || s.Evicted != 0 {
		t.Fatalf("%d bytes, %d evicted; want %d and 0", s.RingBytes, s.Evicted, 72*cost)
	}
	for i := range 30 { // two channels are in use
		publish(t, h, fmt.Sprint("c", i%2), data)
		if s := h.Stats(); s.RingBytes > 90*cost {
			t.Fatalf("%d bytes are kept, the bound is %d and an eighth", s.RingBytes, 80*cost)
		}
	}
	for i, s := range sinks {
		want := 9
		if i < 2 {
			want = 24
		}
		s.wait(t, "the messages", func() bool { return len(s.got) == want })
	}
	hubtest.Until(t, 10*time.Second, "the budget", func() bool { return h.Stats().RingBytes <= 80*cost })
	s := h.Stats()
	if kept := s.RingBytes / cost; s.RingBytes%cost != 0 || s.Evicted == 0 || uint64(kept)+s.Evicted != 102 {
		t.Errorf("%d bytes are kept and %d messages evicted, of 102 with %d bytes", s.RingBytes, s.Evicted, cost)
	}
	late := newSink()
	subscribe(t, o, late, hub.SubscribeOptions{Channels: []string{"c0", "c1", "c2", "c7"}, Since: hub.Positions{first}})
	late.wait(t, "the replay", func() bool { return len(late.got) == 23+24+9+9 })
	if len(late.gaps) != 0 {
		t.Errorf("gaps %v", late.gaps)
	}
	for i, s := range sinks {
		if len(s.gaps) != 0 || s.failed != nil {
			t.Errorf("subscriber %d: gaps %v, %v", i, s.gaps, s.failed)
		}
	}
}

// With the memory broker the log itself is bounded: what went is a gap.
func TestTheLogInMemoryStaysWithinItsBudget(t *testing.T) {
	const stored = payload + 256
	h, b := budgeted(t, 10*cost, 50*stored)
	o := newOwner(t, h)
	data := strings.Repeat("x", payload)
	first := publish(t, h, "a", data)
	for range 200 {
		publish(t, h, "a", data)
		if n, _ := b.Memory(); n > 50*stored {
			t.Fatalf("%d bytes are kept, the bound is %d", n, 50*stored)
		}
	}
	if n, evicted := b.Memory(); n != 50*stored || evicted != 151 {
		t.Errorf("%d bytes kept, %d messages evicted; want %d and 151", n, evicted, 50*stored)
	}
	s := newSink()
	subscribe(t, o, s, hub.SubscribeOptions{Channels: []string{"a"}, Since: hub.Positions{first}})
	s.wait(t, "what is left", func() bool { return len(s.got) == 50 })
	if len(s.gaps) != 1 || s.gaps[0].Reason != hub.GapRetention {
		t.Errorf("gaps %+v", s.gaps)
	}
}
