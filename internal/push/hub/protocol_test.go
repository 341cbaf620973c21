package hub_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// topics publishes data on several channels.
func topics(t *testing.T, h *hub.Hub, a hub.Attributes, key, data string, names ...string) hub.Position {
	t.Helper()
	type answer struct {
		at  hub.Position
		err error
	}
	got := make(chan answer, 1)
	h.PublishTopics(names, hub.Publication{Data: []byte(data), Attributes: &a, IdempotencyKey: key}, func(p hub.Position, err error) { got <- answer{p, err} })
	x := <-got
	if x.err != nil {
		t.Fatalf("publish on %v: %v", names, x.err)
	}
	return x.at
}

// text is what a sink got, as channel=data.
func (s *sink) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, m := range s.got {
		out = append(out, m.Channel+"="+string(m.Data))
	}
	return strings.Join(out, " ")
}

// live subscribes and waits until the replay is over.
func live(t *testing.T, o *owner, opt hub.SubscribeOptions) *sink {
	t.Helper()
	s := newSink()
	subscribe(t, o, s, opt)
	for end, done := time.Now().Add(10*time.Second), false; !done; {
		o.do(func() { done = s.live || s.failed != nil })
		if time.Now().After(end) {
			t.Fatalf("%+v is not live", opt)
		}
	}
	return s
}

func TestAPublicationToSeveralChannelsComesOnceToEach(t *testing.T) {
	h := newHub(t, nil)
	o, o2 := newOwner(t, h), newOwner(t, h)
	type want struct {
		opt  hub.SubscribeOptions
		text string
		sink *sink
	}
	list := func(names ...string) []string { return names }
	wants := []*want{
		{opt: hub.SubscribeOptions{Channels: list("a")}, text: "a=1 a=3"},
		{opt: hub.SubscribeOptions{Channels: list("b")}, text: "b=1 b=2"},
		{opt: hub.SubscribeOptions{Channels: list("c")}, text: "c=1 c=3 c=4"},
		{opt: hub.SubscribeOptions{Channels: list("c", "b")}, text: "b=1 b=2 c=3 c=4"},
		{opt: hub.SubscribeOptions{Channels: list("a", "b", "c", "x")}, text: "a=1 b=2 c=3 c=4"},
		{opt: hub.SubscribeOptions{Channels: list("default:")}, text: "a=1 b=2 c=3 c=4"},
		{opt: hub.SubscribeOptions{Channels: list("default:", "b", "c", "other:x")}, text: "a=1 b=2 c=3 c=4"},
		{opt: hub.SubscribeOptions{Channels: list("default:"), Select: func(m *hub.Message) bool { return m.Channel == "c" }}, text: "c=1 c=3 c=4"},
		{opt: hub.SubscribeOptions{Channels: list("b", "c"), Public: true}, text: "b=1 b=2 c=4"},
	}
	for i, w := range wants {
		w.sink = live(t, []*owner{o, o2}[i%2], w.opt)
	}
	at := topics(t, h, hub.Attributes{}, "", "1", "a", "b", "c", "a")
	publish(t, h, "b", "2")
	topics(t, h, hub.Attributes{ID: "urn:3", Private: true}, "", "3", "c", "a")
	publish(t, h, "c", "4")
	for _, w := range wants {
		n := len(strings.Fields(w.text))
		w.sink.wait(t, fmt.Sprint(w.opt.Channels, " live"), func() bool { return len(w.sink.got) >= n })
		if got := w.sink.text(); got != w.text {
			t.Errorf("live %v: %s, want %s", w.opt.Channels, got, w.text)
		}
		all := w.opt
		all.All = true
		if got := live(t, o, all).text(); got != w.text {
			t.Errorf("replay %v: %s, want %s", w.opt.Channels, got, w.text)
		}
	}
	for _, m := range wants[2].sink.got[:1] {
		if m.ID() != at.String() || m.Attributes.Index != 2 || m.Attributes.First != at.Offset || !slices.Equal(m.Attributes.Topics, []string{"a", "b", "c"}) {
			t.Errorf("the third copy is %q %+v", m.ID(), m.Attributes)
		}
	}
	if m := wants[2].sink.got[1]; m.ID() != "urn:3" {
		t.Errorf("the id is %q", m.ID())
	}
}

func TestAResumeSkipsOtherCopiesOfItsStart(t *testing.T) {
	h := newHub(t, nil)
	o := newOwner(t, h)
	publish(t, h, "b", "0")
	at := topics(t, h, hub.Attributes{ID: "i"}, "", "1", "a", "b", "c")
	publish(t, h, "b", "2")
	topics(t, h, hub.Attributes{ID: "i"}, "", "3", "a", "b") // the id again
	f := func(skip, want string, channels ...string) {
		t.Helper()
		found, err := h.Lookup(t.Context(), "default", "i")
		if err != nil || found != at {
			t.Fatalf("lookup: %v, %v, want %v", found, err, at)
		}
		s := live(t, o, hub.SubscribeOptions{Channels: channels, Since: hub.Positions{found}, SkipID: skip})
		if got := s.text(); got != want {
			t.Errorf("%v after %q: %s, want %s", channels, skip, got, want)
		}
	}
	f("i", "b=2 b=3", "b")
	f("i", "b=2 b=3", "b", "c")
	f("i", "", "c")
	f("i", "a=3", "a")
	f("i", "b=2 a=3", "default:")
	f("", "b=1 b=2 b=3", "b")
	f("j", "b=1 b=2 b=3", "b")
	if err := h.Remove(t.Context(), "a"); err != nil { // the earliest is the second copy then
		t.Fatal(err)
	}
	at.Offset++
	f("i", "", "c")
	f("i", "b=2 b=3", "b")
}

func TestTopicsThatCannotBeAreRefused(t *testing.T) {
	h := newHub(t, nil)
	f := func(want error, p hub.Publication, names ...string) {
		t.Helper()
		answers := 0
		h.PublishTopics(names, p, func(_ hub.Position, err error) {
			answers++
			if !errors.Is(err, want) {
				t.Errorf("%v: %v, want %v", names, err, want)
			}
		})
		if answers != 1 {
			t.Errorf("%v: %d answers", names, answers)
		}
	}
	f(hub.ErrBadAttributes, hub.Publication{})
	f(hub.ErrBadAttributes, hub.Publication{}, "a", "other:b")
	f(hub.ErrBadAttributes, hub.Publication{}, "a", "b c")
	f(hub.ErrBadAttributes, hub.Publication{}, slices.Repeat([]string{"a"}, hub.MaxTopics+1)...)
	f(hub.ErrBadAttributes, hub.Publication{Attributes: &hub.Attributes{Topics: []string{"a"}}}, "a", "b")
	f(hub.ErrUnknownNamespace, hub.Publication{}, "nowhere:a", "nowhere:b")
	f(hub.ErrTooLarge, hub.Publication{Data: make([]byte, 64<<10)}, "a", "b") // the names count
	f(nil, hub.Publication{}, "a")
	f(nil, hub.Publication{}, "a", "b")
}

func TestARetryOnSeveralChannelsStoresWhatIsMissing(t *testing.T) {
	h := newHub(t, nil)
	at := topics(t, h, hub.Attributes{}, "key", "1", "a", "b")
	if again := topics(t, h, hub.Attributes{}, "key", "1", "a", "b", "c"); again != at {
		t.Errorf("the retry was answered %v, want %v", again, at)
	}
	for _, name := range []string{"a", "b", "c"} {
		if p, err := h.History(t.Context(), name, hub.HistoryOptions{Limit: -1}); err != nil || len(p.Messages) != 1 {
			t.Errorf("%s holds %d, %v", name, len(p.Messages), err)
		}
	}
}

func TestBadAttributesAreRefused(t *testing.T) {
	h := newHub(t, nil)
	f := func(a hub.Attributes, want error) {
		t.Helper()
		h.Publish(hub.Publication{Channel: "a", Data: []byte("d"), Attributes: &a}, func(_ hub.Position, err error) {
			if !errors.Is(err, want) {
				t.Errorf("%+v: %v, want %v", a, err, want)
			}
		})
	}
	f(hub.Attributes{}, nil)
	f(hub.Attributes{ID: strings.Repeat("i", 255), Event: strings.Repeat("e", 255)}, nil)
	f(hub.Attributes{ID: strings.Repeat("i", 256)}, hub.ErrBadAttributes)
	f(hub.Attributes{Event: strings.Repeat("e", 256)}, hub.ErrBadAttributes)
	f(hub.Attributes{ID: "#x"}, hub.ErrBadAttributes)
	f(hub.Attributes{ID: "x\ny"}, hub.ErrBadAttributes)
	f(hub.Attributes{ID: "x\x00"}, hub.ErrBadAttributes)
	f(hub.Attributes{ID: "\xff"}, hub.ErrBadAttributes)
	f(hub.Attributes{Event: "x\r"}, hub.ErrBadAttributes)
	f(hub.Attributes{Retry: -1}, hub.ErrBadAttributes)
	f(hub.Attributes{Payload: 3}, hub.ErrBadAttributes)
	f(hub.Attributes{Info: []byte("{")}, hub.ErrBadAttributes)
	f(hub.Attributes{Tags: map[string]string{"a": "\xff"}}, hub.ErrBadAttributes)
	f(hub.Attributes{Topics: []string{"a"}}, hub.ErrBadAttributes)
	f(hub.Attributes{Index: 1}, hub.ErrBadAttributes)
	f(hub.Attributes{First: 1}, hub.ErrBadAttributes)
	f(hub.Attributes{Info: []byte(`"` + strings.Repeat("x", 64<<10) + `"`)}, hub.ErrTooLarge)
	h.Publish(hub.Publication{Channel: "default:"}, func(_ hub.Position, err error) {
		if !errors.Is(err, hub.ErrBadChannel) {
			t.Errorf("publish on a whole namespace: %v", err)
		}
	})
}

func TestPrivateMessagesSkipPublicSubscriptions(t *testing.T) {
	h := newHub(t, nil)
	o := newOwner(t, h)
	all, public := live(t, o, hub.SubscribeOptions{Channels: []string{"a"}}), live(t, o, hub.SubscribeOptions{Channels: []string{"a"}, Public: true})
	for i := range 6 {
		h.Publish(hub.Publication{Channel: "a", Data: []byte(strconv.Itoa(i)), Attributes: &hub.Attributes{Private: i%3 == 1}}, func(_ hub.Position, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.wait(t, "all", func() bool { return len(all.got) == 6 })
	public.wait(t, "the last", func() bool { return len(public.got) >= 4 })
	if got := public.text(); got != "a=0 a=2 a=3 a=5" {
		t.Errorf("live: %s", got)
	}
	if got := live(t, o, hub.SubscribeOptions{Channels: []string{"a"}, Public: true, All: true}).text(); got != "a=0 a=2 a=3 a=5" {
		t.Errorf("replay: %s", got)
	}
}

func TestAWholeNamespaceResumesAnywhere(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.Namespaces[0].HistorySize = 20 })
	o := newOwner(t, h)
	var at []hub.Position
	for i := range 60 {
		at = append(at, publish(t, h, fmt.Sprint("c", i%5), strconv.Itoa(i)))
	}
	f := func(opt hub.SubscribeOptions, first, gaps int) {
		t.Helper()
		opt.Channels = []string{"default:", "c1"}
		s := live(t, o, opt)
		next := publish(t, h, "c9", "next")
		s.wait(t, "the next", func() bool { return len(s.got) > 0 && s.got[len(s.got)-1].Offset == next.Offset })
		for i, m := range s.got {
			if opt.Select == nil && m.Offset != uint64(first+i) {
				t.Fatalf("%+v: message %d is %d, want %d", opt, i, m.Offset, first+i)
			}
		}
		if len(s.gaps) != gaps {
			t.Errorf("%+v: gaps %v, want %d", opt, s.gaps, gaps)
		}
		o.do(func() { o.shard.Unsubscribe(&s.sub) })
	}
	f(hub.SubscribeOptions{All: true}, 1, 0)
	f(hub.SubscribeOptions{Since: hub.Positions{at[30]}}, 32, 0)
	f(hub.SubscribeOptions{Since: hub.Positions{at[59]}}, 61, 0)
	if err := h.Remove(t.Context(), "c2"); err != nil {
		t.Fatal(err)
	}
	s := live(t, o, hub.SubscribeOptions{Channels: []string{"default:"}, Since: hub.Positions{at[30]}})
	if len(s.gaps) != 1 || s.gaps[0].Reason != hub.GapRetention {
		t.Errorf("gaps %v after a removal, want one", s.gaps)
	}
}

func TestHistoryIsReadInBothDirections(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.Namespaces[0].HistorySize = 400 })
	o := newOwner(t, h)
	var at []hub.Position
	for i := range 600 {
		at = append(at, publish(t, h, "a", strconv.Itoa(i)))
		publish(t, h, "b", "-")
	}
	top := publish(t, h, "c", "-")
	f := func(opt hub.HistoryOptions, first, last int, more, lost bool) {
		t.Helper()
		p, err := h.History(t.Context(), "a", opt)
		if err != nil {
			t.Errorf("%+v: %v", opt, err)
			return
		}
		var want, got []string
		for i := first; i <= last; i++ {
			want = append(want, strconv.Itoa(i))
		}
		if opt.Reverse {
			slices.Reverse(want)
		}
		for _, m := range p.Messages {
			got = append(got, string(m.Data))
		}
		if !slices.Equal(got, want) || p.More != more || p.Lost != lost || p.Top != top {
			t.Errorf("%+v: %v, more %v, lost %v, top %v, want %d..%d", opt, got, p.More, p.Lost, p.Top, first, last)
		}
	}
	for _, warm := range []bool{false, true} {
		if warm {
			live(t, o, hub.SubscribeOptions{Channels: []string{"a"}})
		}
		f(hub.HistoryOptions{}, 0, -1, false, false)
		f(hub.HistoryOptions{Limit: 3, Since: at[300]}, 301, 303, true, false)
		f(hub.HistoryOptions{Limit: 3, Since: at[597]}, 598, 599, false, false)
		f(hub.HistoryOptions{Limit: -1, Since: at[200]}, 201, 599, false, false)
		f(hub.HistoryOptions{Limit: -1}, 200, 599, false, true)
		f(hub.HistoryOptions{Limit: 2, Since: hub.Position{Offset: 20}}, 200, 201, true, true)
		f(hub.HistoryOptions{Limit: 3, Reverse: true}, 597, 599, true, false)
		f(hub.HistoryOptions{Limit: 3, Reverse: true, Since: at[300]}, 297, 299, true, false)
		f(hub.HistoryOptions{Limit: 3, Reverse: true, Since: at[201]}, 200, 200, false, true)
		f(hub.HistoryOptions{Limit: -1, Reverse: true}, 200, 599, false, true)
	}
	if _, err := h.History(t.Context(), "a", hub.HistoryOptions{Since: hub.Position{Epoch: "x", Offset: 1}}); !errors.Is(err, hub.ErrBadEpoch) {
		t.Errorf("another epoch: %v", err)
	}
	if m, err := h.Latest(t.Context(), "a"); err != nil || string(m.Data) != "599" {
		t.Errorf("latest: %v, %v", m, err)
	}
	if _, err := h.Latest(t.Context(), "never"); !errors.Is(err, hub.ErrNoMessage) {
		t.Errorf("latest of nothing: %v", err)
	}
	if at, err := h.Top(t.Context(), "default"); err != nil || at != top {
		t.Errorf("top: %v, %v, want %v", at, err, top)
	}
	if at, err := h.Top(t.Context(), "flow"); err != nil || !at.IsZero() {
		t.Errorf("top without a log: %v, %v", at, err)
	}
	if p, err := h.History(t.Context(), "flow:a", hub.HistoryOptions{Limit: 5}); err != nil || len(p.Messages) > 0 {
		t.Errorf("history without a log: %+v, %v", p, err)
	}
	if p, err := h.History(t.Context(), "default:", hub.HistoryOptions{Limit: 2, Reverse: true}); err != nil || len(p.Messages) != 2 || p.Messages[0].Channel != "c" {
		t.Errorf("history of all: %+v, %v", p, err)
	}
}

func TestRemovedMessagesAreNotReplayed(t *testing.T) {
	h := newHub(t, nil)
	o := newOwner(t, h)
	keep := live(t, o, hub.SubscribeOptions{Channels: []string{"a"}})
	whole := live(t, o, hub.SubscribeOptions{Channels: []string{"default:"}})
	first := publish(t, h, "a", "1")
	publish(t, h, "b", "2")
	publish(t, h, "a", "3")
	whole.wait(t, "all", func() bool { return len(whole.got) == 3 })
	resume := func(channel, want string, gaps int) {
		t.Helper()
		s := live(t, o, hub.SubscribeOptions{Channels: []string{channel}, Since: hub.Positions{first}})
		if got := s.text(); got != want || len(s.gaps) != gaps {
			t.Errorf("%s: got %q, gaps %v, want %q and %d", channel, got, s.gaps, want, gaps)
		}
	}
	resume("a", "a=3", 0)
	resume("default:", "b=2 a=3", 0)
	if err := h.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	resume("a", "", 1)
	resume("default:", "b=2", 1)
	if p, err := h.History(t.Context(), "a", hub.HistoryOptions{Limit: -1}); err != nil || len(p.Messages) > 0 || !p.Lost {
		t.Errorf("history %+v, %v", p, err)
	}
	publish(t, h, "a", "4")
	keep.wait(t, "what comes after", func() bool { return len(keep.got) == 3 })
	resume("a", "a=4", 1)
	if len(keep.gaps) > 0 {
		t.Errorf("gaps %v for who had everything", keep.gaps)
	}
}

// listener is a sink that records events.
type listener struct {
	*sink
	received []string
	wires    [][]byte
}

func (l *listener) Event(e *hub.Event) {
	w := e.Encode(3, func(dst []byte, e *hub.Event) []byte { return fmt.Appendf(dst, "%s %s %v", e.Channel, e.Kind, e.Data) })
	l.note(func() { l.received, l.wires = append(l.received, string(w)), append(l.wires, w) })
}

func TestEventsReachListeners(t *testing.T) {
	h := newHub(t, nil)
	var ls []*listener
	for i, opt := range []hub.SubscribeOptions{
		{Channels: []string{"a"}},
		{Channels: []string{"b", "a"}},
		{Channels: []string{"default:", "a"}},
		{Channels: []string{"a"}, Public: true},
		{Channels: []string{"b"}},
	} {
		o := newOwner(t, h)
		l := &listener{sink: newSink()}
		o.do(func() {
			if err := o.shard.Subscribe(&l.sub, l, opt); err != nil {
				t.Error(err)
			}
		})
		for up := false; !up; {
			o.do(func() { up = l.live })
		}
		ls = append(ls, l)
		if i == 0 { // a sink that does not care is passed over
			live(t, o, hub.SubscribeOptions{Channels: []string{"a"}})
		}
	}
	publish(t, h, "a", "1")
	for i := range 3 {
		if err := h.Notify("a", &hub.Event{Kind: "join", Data: i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Notify("b", &hub.Event{Kind: "end"}); err != nil {
		t.Fatal(err)
	}
	for i, l := range ls {
		want := []string{"a join 0", "a join 1", "a join 2", "b end <nil>"}
		switch i {
		case 0, 3:
			want = want[:3]
		case 4:
			want = want[3:]
		}
		l.wait(t, "events", func() bool { return len(l.received) >= len(want) })
		if !slices.Equal(l.received, want) {
			t.Errorf("listener %d received %q, want %q", i, l.received, want)
		}
		if i == 3 && &l.wires[0][0] != &ls[0].wires[0][0] {
			t.Error("an event was encoded twice")
		}
	}
	if err := h.Notify("nowhere:a", &hub.Event{}); !errors.Is(err, hub.ErrUnknownNamespace) {
		t.Errorf("in an unknown namespace: %v", err)
	}
}

func TestEventsAreBounded(t *testing.T) {
	h := newHub(t, func(c *hub.Config) { c.ShardQueue = 10 })
	o := newOwner(t, h)
	l := &listener{sink: newSink()}
	o.do(func() { _ = o.shard.Subscribe(&l.sub, l, hub.SubscribeOptions{Channels: []string{"a"}}) })
	for up := false; !up; {
		o.do(func() { up = l.live })
	}
	reported := 0
	o.do(func() { // the shard does not run meanwhile
		for range 50 {
			switch err := h.Notify("a", &hub.Event{Kind: "x"}); {
			case err == nil:
				reported++
			case !errors.Is(err, hub.ErrOverloaded):
				t.Error(err)
			}
		}
	})
	if reported != 10 {
		t.Errorf("%d events were taken with a queue of 10", reported)
	}
	l.wait(t, "those taken", func() bool { return len(l.received) == reported })
	if err := h.Notify("a", &hub.Event{Kind: "x"}); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

func TestChannelsAreCounted(t *testing.T) {
	h := newHub(t, nil)
	a, b := newOwner(t, h), newOwner(t, h)
	for i := range 1200 { // more than is queried about at a time
		live(t, a, hub.SubscribeOptions{Channels: []string{fmt.Sprint("c", i)}})
	}
	live(t, a, hub.SubscribeOptions{Channels: []string{"c1", "c2"}})
	live(t, b, hub.SubscribeOptions{Channels: []string{"c1"}})
	live(t, b, hub.SubscribeOptions{Channels: []string{"default:"}})
	publish(t, h, "c1", "12345")
	publish(t, h, "c1", "12345")
	publish(t, h, "empty", "1")
	got := map[string]hub.ChannelStats{}
	if err := h.Channels(t.Context(), func(c hub.ChannelStats) bool { got[c.Name] = c; return true }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]hub.ChannelStats{
		"c1": {Name: "c1", Subscribers: 3, Messages: 2, Bytes: 10}, "c2": {Name: "c2", Subscribers: 2},
		"c1199": {Name: "c1199", Subscribers: 1}, "default:": {Name: "default:", Subscribers: 1, Messages: 3, Bytes: 11}, "empty": {},
	} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
	if len(got) != 1201 {
		t.Errorf("%d channels, want 1,201", len(got))
	}
	if st, err := h.ChannelStats(t.Context(), "c1"); err != nil || st.Subscribers != 3 {
		t.Errorf("c1: %+v, %v", st, err)
	}
	if st, err := h.ChannelStats(t.Context(), "empty"); err != nil || st.Subscribers != 0 || st.Name != "empty" {
		t.Errorf("empty: %+v, %v", st, err)
	}
	n := 0
	if err := h.Channels(t.Context(), func(hub.ChannelStats) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("who had enough got %d, %v", n, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	h.NewShard(func() {}) // it is not run
	if err := h.Channels(over, func(hub.ChannelStats) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("a shard that does not run: %v", err)
	}
}

// Another node removes: this one is notified and forgets what it keeps.
func TestARemovalOnAnotherNodeIsReceived(t *testing.T) {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	plain := func(dst []byte, m *hub.Message) []byte { return append(dst, m.Data...) }
	h, err := hub.New(hub.Config{Encoders: []hub.Encoder{plain}}, broker)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	o := newOwner(t, h)
	live(t, o, hub.SubscribeOptions{Channels: []string{"a"}})
	whole := live(t, o, hub.SubscribeOptions{Channels: []string{"default:"}})
	first := publish(t, h, "a", "1")
	last := publish(t, h, "a", "2")
	whole.wait(t, "both", func() bool { return len(whole.got) == 2 })
	ns, err := h.Namespace("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Remove(t.Context(), ns, "a"); err != nil {
		t.Fatal(err)
	}
	if err := h.Bus().Broadcast("hub.removed", fmt.Appendf(nil, `{"channel":"a","epoch":%q,"offset":%d}`, last.Epoch, last.Offset)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "default:"} {
		for end := time.Now().Add(10 * time.Second); ; {
			s := live(t, o, hub.SubscribeOptions{Channels: []string{name}, Since: hub.Positions{first}})
			o.do(func() { o.shard.Unsubscribe(&s.sub) })
			if len(s.got) == 0 && len(s.gaps) == 1 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: still replays %v, gaps %v", name, offsets(s.got), s.gaps)
			}
		}
	}
	if err := h.Bus().Broadcast("hub.removed", []byte("rubbish")); err != nil {
		t.Error(err)
	}
}

func TestCallsDuringCloseEnd(t *testing.T) {
	for range 20 {
		h := newHub(t, nil)
		publish(t, h, "a", "1")
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for {
					var err error
					switch i % 4 {
					case 0:
						_, err = h.History(context.Background(), "a", hub.HistoryOptions{Limit: 1})
					case 1:
						_, err = h.Top(context.Background(), "default")
					case 2:
						err = h.Remove(context.Background(), "b")
					default:
						if _, err = h.Lookup(context.Background(), "default", "x"); errors.Is(err, hub.ErrNoMessage) {
							err = nil
						}
					}
					if errors.Is(err, hub.ErrClosed) || errors.Is(err, context.Canceled) {
						return
					}
					if err != nil {
						t.Errorf("call %d: %v", i, err)
						return
					}
				}
			})
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
}
