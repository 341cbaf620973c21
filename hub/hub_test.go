package hub_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/memory"
	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// start returns a running hub in memory.
func start(t *testing.T, namespaces ...hub.Namespace) *hub.Hub {
	t.Helper()
	h, err := hub.New(hub.Config{Namespaces: namespaces, Log: trial.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// publish publishes data on channel and returns its position.
func publish(t *testing.T, h *hub.Hub, channel, data string) hub.Position {
	t.Helper()
	at, err := h.Publish(t.Context(), hub.Publication{Channel: channel, Data: []byte(data)})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// subscription reads a subscription in the background.
type subscription struct {
	t    *testing.T
	next chan any // a hub.Message or an error
	stop context.CancelFunc
}

func subscribe(t *testing.T, h *hub.Hub, o hub.SubscribeOptions) *subscription {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &subscription{t, make(chan any), stop}
	go func() {
		defer close(s.next)
		for m, err := range h.Subscribe(ctx, o) {
			var v any = m
			if err != nil {
				v = err
			}
			select {
			case s.next <- v:
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(stop)
	return s
}

// reads expects the next pair to be a message with the data.
func (s *subscription) reads(data string) hub.Message {
	s.t.Helper()
	m, ok := s.pair().(hub.Message)
	if !ok || string(m.Data) != data {
		s.t.Fatalf("got %+v, want a message %q", m, data)
	}
	return m
}

func (s *subscription) pair() any {
	s.t.Helper()
	select {
	case v := <-s.next:
		return v
	case <-time.After(trial.Patience):
		s.t.Fatal("no further pair")
		return nil
	}
}

func TestSubscriptionResumesAfterAPosition(t *testing.T) {
	h := start(t)
	first := publish(t, h, "news", "1")
	publish(t, h, "news", "2")
	publish(t, h, "other", "x")
	publish(t, h, "news", "3")
	s := subscribe(t, h, hub.SubscribeOptions{Channels: []string{"news"}, Since: first})
	s.reads("2")
	third := s.reads("3")
	publish(t, h, "news", "4")
	fourth := s.reads("4")
	if third.Channel != "news" || third.ID != string(third.Position) || fourth.Position == third.Position || fourth.Time.IsZero() {
		t.Errorf("%+v, %+v", third, fourth)
	}
	all := subscribe(t, h, hub.SubscribeOptions{Channels: []string{"news"}, All: true})
	for i := 1; i <= 4; i++ {
		all.reads(fmt.Sprint(i))
	}
}

func TestSubscriptionOfSeveralNamespacesResumesInEach(t *testing.T) {
	h := start(t, hub.Namespace{Name: "a"}, hub.Namespace{Name: "b"})
	channels := []string{"a:x", "b:x"}
	publish(t, h, "a:x", "0")
	s := subscribe(t, h, hub.SubscribeOptions{Channels: channels, All: true})
	s.reads("0")
	publish(t, h, "b:x", "1")
	last := s.reads("1")
	s.stop()
	publish(t, h, "a:x", "2")
	publish(t, h, "b:x", "3")
	again := subscribe(t, h, hub.SubscribeOptions{Channels: channels, Since: last.Position})
	got := []string{string(again.pair().(hub.Message).Data), string(again.pair().(hub.Message).Data)}
	if strings.Join(got, "") != "23" && strings.Join(got, "") != "32" {
		t.Errorf("got %v, want 2 and 3", got)
	}
}

func TestSlowLoopLosesNothing(t *testing.T) {
	h := start(t, hub.Namespace{Name: "default", HistorySize: 10_000})
	s := subscribe(t, h, hub.SubscribeOptions{Channels: []string{"news"}, All: true, Buffer: 16})
	const n = 5000
	pubs := make([]hub.Publication, n)
	for i := range pubs {
		pubs[i] = hub.Publication{Channel: "news", Data: fmt.Append(nil, i)}
	}
	for i, r := range h.PublishAll(t.Context(), pubs) { // while nothing reads
		if r.Err != nil {
			t.Fatalf("%d: %v", i, r.Err)
		}
	}
	for i := range n {
		s.reads(fmt.Sprint(i))
	}
	publish(t, h, "news", "last")
	s.reads("last")
}

func TestSlowLoopHasAGapWithoutALog(t *testing.T) {
	h := start(t, hub.Namespace{Name: "default", Durability: hub.None})
	s := subscribe(t, h, hub.SubscribeOptions{Channels: []string{"news"}, Buffer: 4})
	trial.Eventually(t, "the subscription", func() bool { // without a log, what comes before it is not delivered
		publish(t, h, "news", "first")
		return h.Stats().Delivered > 0
	})
	for i := range 200 {
		publish(t, h, "news", fmt.Sprint(i))
	}
	trial.Eventually(t, "the bound", func() bool { return h.Stats().Delivered > 3 })
	for {
		v := s.pair()
		if m, ok := v.(hub.Message); ok && m.Position == "" {
			continue
		}
		if gap := (*hub.GapError)(nil); !errors.As(v.(error), &gap) || gap.Reason != hub.GapOverflow || gap.Namespace != "default" {
			t.Fatalf("got %v", v)
		}
		return
	}
}

func TestGapIsReportedAndTheSubscriptionContinues(t *testing.T) {
	h := start(t, hub.Namespace{Name: "default", HistorySize: 2})
	first := publish(t, h, "news", "1")
	for i := 2; i <= 5; i++ {
		publish(t, h, "news", fmt.Sprint(i))
	}
	s := subscribe(t, h, hub.SubscribeOptions{Channels: []string{"news"}, Since: first})
	gap := (*hub.GapError)(nil)
	if err, ok := s.pair().(error); !ok || !errors.As(err, &gap) || gap.Reason != hub.GapRetention || gap.Position == "" {
		t.Fatalf("got %v", gap)
	}
	s.reads("4")
	s.reads("5")
}

func TestWhatEndsASubscription(t *testing.T) {
	h := start(t)
	f := func(o hub.SubscribeOptions, want error) {
		t.Helper()
		s := subscribe(t, h, o)
		if err, ok := s.pair().(error); !ok || want != nil && !errors.Is(err, want) {
			t.Errorf("%+v: got %v, want %v", o, err, want)
		}
		if _, more := <-s.next; more {
			t.Errorf("%+v: a pair after the last", o)
		}
	}
	f(hub.SubscribeOptions{}, nil)
	f(hub.SubscribeOptions{Channels: []string{""}}, hub.ErrBadChannel)
	f(hub.SubscribeOptions{Channels: []string{"nowhere:x"}}, hub.ErrUnknownNamespace)
	f(hub.SubscribeOptions{Channels: []string{"news"}, Since: "nonsense"}, hub.ErrBadPosition)

	s := subscribe(t, h, hub.SubscribeOptions{Channels: []string{"news"}, All: true})
	publish(t, h, "news", "1")
	s.reads("1")
	s.stop()
	if err, _ := s.pair().(error); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	s = subscribe(t, h, hub.SubscribeOptions{Channels: []string{"news"}, All: true})
	s.reads("1")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err, _ := s.pair().(error); !errors.Is(err, hub.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := h.Publish(t.Context(), hub.Publication{Channel: "news"}); !errors.Is(err, hub.ErrClosed) {
		t.Errorf("publishing after Close: %v", err)
	}
}

func TestHubMayBeClosedInsideALoop(t *testing.T) {
	h := start(t)
	publish(t, h, "news", "1")
	var last error
	for _, err := range h.Subscribe(t.Context(), hub.SubscribeOptions{Channels: []string{"news"}, All: true}) {
		if last = err; err == nil {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if !errors.Is(last, hub.ErrClosed) {
		t.Errorf("got %v", last)
	}
}

func TestPublishKeepsWhatItIsGiven(t *testing.T) {
	h := start(t)
	p := hub.Publication{Channel: "news", Data: []byte("1"), ID: "id-1", Event: "update", Key: "k", Tags: map[string]string{"a": "b"}, IdempotencyKey: "once"}
	at, err := h.Publish(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := h.Publish(t.Context(), p); err != nil || again != at {
		t.Errorf("the same key: %q, %v, want %q", again, err, at)
	}
	p.Data = []byte("2")
	if _, err := h.Publish(t.Context(), p); !errors.Is(err, hub.ErrKeyReused) {
		t.Errorf("the key for another message: %v", err)
	}
	r, err := h.History(t.Context(), "news", hub.HistoryOptions{})
	if err != nil || len(r.Messages) != 1 || r.Top != at {
		t.Fatalf("history: %+v, %v", r, err)
	}
	if m := r.Messages[0]; m.ID != "id-1" || m.Event != "update" || m.Key != "k" || m.Tags["a"] != "b" || string(m.Data) != "1" || m.Position != at {
		t.Errorf("%+v", m)
	}
	if _, err := h.Publish(t.Context(), hub.Publication{Channel: "news", Data: make([]byte, 1<<20)}); !errors.Is(err, hub.ErrTooLarge) {
		t.Errorf("a megabyte: %v", err)
	}
	if _, err := h.Publish(t.Context(), hub.Publication{Channel: "news", Event: strings.Repeat("x", 300)}); !errors.Is(err, hub.ErrBadMessage) {
		t.Errorf("a long event: %v", err)
	}
}

func TestHistoryPages(t *testing.T) {
	h := start(t)
	for i := range 5 {
		publish(t, h, "news", fmt.Sprint(i))
	}
	f := func(o hub.HistoryOptions, want string, more bool) hub.History {
		t.Helper()
		r, err := h.History(t.Context(), "news", o)
		var got strings.Builder
		for _, m := range r.Messages {
			got.Write(m.Data)
		}
		if err != nil || got.String() != want || r.More != more {
			t.Errorf("%+v: %q, more %v, %v; want %q, %v", o, got.String(), r.More, err, want, more)
		}
		return r
	}
	page := f(hub.HistoryOptions{Limit: 2}, "01", true)
	f(hub.HistoryOptions{Since: page.Messages[1].Position}, "234", false)
	f(hub.HistoryOptions{Limit: 3, Reverse: true}, "432", true)
	if _, err := h.History(t.Context(), "news", hub.HistoryOptions{Since: "x"}); !errors.Is(err, hub.ErrBadPosition) {
		t.Errorf("a bad position: %v", err)
	}
	if err := h.Remove(t.Context(), "news"); err != nil {
		t.Fatal(err)
	}
	f(hub.HistoryOptions{}, "", false)
}

func TestPresenceIsSeenAndEnds(t *testing.T) {
	h := start(t)
	if err := h.Join("room", hub.Member{Client: "c1", User: "anna", Info: []byte(`{"x":1}`)}); err != nil {
		t.Fatal(err)
	}
	if m := h.Members("room"); len(m) != 1 || m[0].User != "anna" || string(m[0].Info) != `{"x":1}` {
		t.Errorf("%+v", m)
	}
	h.Leave("room", "c1")
	if m := h.Members("room"); len(m) != 0 {
		t.Errorf("%+v", m)
	}
}

func TestInvalidConfigurationIsNamed(t *testing.T) {
	f := func(cfg hub.Config, want string) {
		t.Helper()
		if _, err := hub.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", cfg, err, want)
		}
	}
	f(hub.Config{Namespaces: []hub.Namespace{{Name: "a b"}}}, `"a b"`)
	f(hub.Config{Namespaces: []hub.Namespace{{Name: "a", Durability: "often"}}}, `"often"`)
	f(hub.Config{Namespaces: []hub.Namespace{{Name: "a"}, {Name: "a"}}}, `"a"`)
	b, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(hub.Config{Namespaces: []hub.Namespace{{Name: "a", Durability: hub.Synced}}, Broker: b})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err == nil {
		t.Error("the memory broker accepted durability synced")
	}
}

func TestMethodsBeforeStartAnswer(t *testing.T) {
	h, err := hub.New(hub.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range h.Subscribe(t.Context(), hub.SubscribeOptions{Channels: []string{"news"}}) {
		if !errors.Is(err, hub.ErrClosed) {
			t.Errorf("got %v", err)
		}
	}
	if err := h.Join("room", hub.Member{Client: "c"}); !errors.Is(err, hub.ErrClosed) || len(h.Members("room")) > 0 {
		t.Errorf("got %v", err)
	}
	h.Leave("room", "c")
	if err := h.Ready(); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("ready: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}
