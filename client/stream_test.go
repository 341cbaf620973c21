package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/history"
)

// bearer makes tokens that live for d.
func bearer(d time.Duration) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		return strconv.FormatInt(time.Now().Add(d).UnixMilli(), 10), nil
	}
}

// A subscriber reports to the history checker what it sees, until it has seen the
// last message of each of its channels.
type subscriber struct {
	name string
	opts SubscribeOptions
	seen map[string]bool // channels whose last message has come
}

const last = `"bye"`

func (u *subscriber) follow(t *testing.T, c *Client, h *history.Checker, epochs map[string]string) {
	from := make(map[string]history.Position)
	for ns, epoch := range epochs {
		from[ns] = history.Position{Epoch: epoch}
	}
	report := h.Stream(u.name, u.opts.Channels, from)
	s, err := c.Subscribe(t.Context(), u.opts)
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	defer cancel()
	for len(u.seen) < len(u.opts.Channels) {
		ev, err := s.Next(ctx)
		if err != nil {
			t.Errorf("%s: next: %v; position %s", u.name, err, s.Position())
			return
		}
		switch ev := ev.(type) {
		case *Message:
			report.Received(ev.Channel, place(ev.Position), ev.Channel+string(ev.Data))
			if strings.HasSuffix(string(ev.Data), last) {
				u.seen[ev.Channel] = true
			}
		case *Gap:
			requested := parsePosition(ev.From)
			report.Gap(ev.Namespace, place(requested), place(ev.To))
		case *State:
			if !ev.Connected {
				report.Cut()
			}
		}
	}
}

func subscribers() (all []*subscriber) {
	add := func(o SubscribeOptions) {
		o.Since = "0"
		all = append(all, &subscriber{fmt.Sprintf("%s%v raw=%v #%d", o.Transport, o.Channels, o.Raw, len(all)), o, make(map[string]bool)})
	}
	for _, tr := range []Transport{SSE, WebSocket} {
		add(SubscribeOptions{Transport: tr, Channels: []string{"a"}})
		add(SubscribeOptions{Transport: tr, Channels: []string{"a", "b"}, Buffer: 1})
		add(SubscribeOptions{Transport: tr, Channels: []string{"a", "orders:1"}})
		add(SubscribeOptions{Transport: tr, Channels: []string{"orders:2", "b", "orders:1", "a"}})
	}
	add(SubscribeOptions{Transport: SSE, Channels: []string{"orders:2"}, Raw: true})
	return all
}

var allChannels = []string{"a", "b", "orders:1", "orders:2"}

// publish sends n messages with random pauses, each reported to the checker.
func publish(t *testing.T, c *Client, h *history.Checker, rnd *rand.Rand, who string, n int) {
	for i := range n {
		ch := allChannels[rnd.IntN(len(allChannels))]
		send(t, c, h, ch, fmt.Sprintf(`{"from": %q, "n":%d}`, who, i))
		time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
	}
}

func send(t *testing.T, c *Client, h *history.Checker, channel, data string) {
	at, err := c.Publish(t.Context(), Publication{Channel: channel, Data: []byte(data)})
	if err != nil {
		t.Logf("publish %s: %v", data, err)
		h.Unanswered(channel, channel+data)
		return
	}
	h.Published(channel, place(at), channel+data)
}

// The judge of everything the client promises: connections cut at random bytes,
// refusals, drains and expiring tokens, on all transports at once, and every
// message comes exactly once and in order.
func TestNothingIsLostOrRepeatedWhateverBreaks(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(seed)
			f.cuts, f.refusals, f.drains, f.tokens = 70, 15, 2, true
			c, stop := f.serve(t, Config{TokenFunc: bearer(20 * time.Second), Attempts: 50})
			defer stop()
			h := history.New(history.Options{ExactlyOnce: true, NoGaps: true})
			var subs, pubs sync.WaitGroup
			for _, u := range subscribers() {
				subs.Go(func() { u.follow(t, c, h, map[string]string{"default": "d1", "orders": "o1"}) })
			}
			for i := range 3 {
				rnd := rand.New(rand.NewPCG(seed, uint64(i)))
				pubs.Go(func() { publish(t, c, h, rnd, fmt.Sprint("p", i), 60) })
			}
			pubs.Wait()
			f.calm()
			for _, ch := range allChannels {
				send(t, c, h, ch, last)
			}
			subs.Wait()
			r := h.Report()
			if !r.OK() || r.Cuts < 20 || r.Published < 150 {
				t.Errorf("seed %d: %v", seed, r)
			}
		})
	}
}

// As before with logs that are lost on the way: what is missing then is a gap event.
func TestLostLogIsReportedAndTheNewOneFollowed(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(seed)
			f.cuts = 50
			c, stop := f.serve(t, Config{Attempts: 50})
			defer stop()
			h := history.New(history.Options{ExactlyOnce: true, NoGaps: true})
			var subs sync.WaitGroup
			for _, u := range subscribers() {
				subs.Go(func() { u.follow(t, c, h, map[string]string{"default": "d1", "orders": "o1"}) })
			}
			rnd := rand.New(rand.NewPCG(seed, 9))
			for life := range 3 {
				publish(t, c, h, rnd, fmt.Sprint("life", life), 40)
				// All have a position in the log before it is lost: without one
				// they would start in the next without a notice.
				time.Sleep(time.Minute)
				if life == 0 {
					f.lose("default", "d2")
				} else if life == 1 {
					f.lose("orders", "o2")
					f.lose("default", "d3")
				}
			}
			f.calm()
			for _, ch := range allChannels {
				send(t, c, h, ch, last)
			}
			subs.Wait()
			if r := h.Report(); !r.OK() || r.Gaps < 8 {
				t.Errorf("seed %d: %v", seed, r)
			}
		})
	}
}

func TestStreamStopsForGoodWhenRefused(t *testing.T) {
	f := func(tr Transport, status int, stops bool) {
		t.Helper()
		requests := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if requests++; requests > 1 {
				status = 403
			}
			refuse(w, status, "go away", "stay away")
		}))
		defer srv.Close()
		c, _ := New(Config{URL: srv.URL, MinBackoff: time.Millisecond})
		defer c.Close()
		s, err := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Transport: tr})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for err == nil {
			_, err = s.Next(t.Context())
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Message != "go away" || e.Hint != "stay away" || e.Status != status {
			t.Errorf("%s %d: ended with %#v", tr, status, err)
		}
		if (requests == 1) != stops {
			t.Errorf("%s %d: %d requests", tr, status, requests)
		}
	}
	for _, tr := range []Transport{SSE, WebSocket} {
		f(tr, 400, true)
		f(tr, 401, true)
		f(tr, 403, true)
		f(tr, 404, true)
		f(tr, 408, false)
		f(tr, 429, false)
		f(tr, 500, false)
		f(tr, 503, false)
	}
}

func TestNoContentSwitchesTheStreamOff(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	defer srv.Close()
	c, _ := New(Config{URL: srv.URL})
	defer c.Close()
	s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
	defer s.Close()
	if _, err := s.Next(t.Context()); !final(err) {
		t.Errorf("after 204: %v", err)
	}
}

func TestSilenceEndsTheConnection(t *testing.T) {
	for _, tr := range []Transport{SSE, WebSocket} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(1)
			c, stop := f.serve(t, Config{IdleTimeout: 20 * time.Second}) // under the heartbeat of 25s
			defer stop()
			s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Transport: tr})
			defer s.Close()
			if st := next[*State](t, s); !st.Connected {
				t.Fatalf("%s: %v", tr, st.Err)
			}
			began := time.Now()
			st := next[*State](t, s)
			if st.Connected || time.Since(began) != 20*time.Second {
				t.Errorf("%s: %+v after %v", tr, st, time.Since(began))
			}
			if tr == SSE && !errors.Is(st.Err, errSilent) {
				t.Errorf("%s: %v", tr, st.Err)
			}
			if st = next[*State](t, s); !st.Connected {
				t.Errorf("%s: %v", tr, st.Err)
			}
		})
	}
}

func TestHeartbeatsKeepAQuietStreamAlive(t *testing.T) {
	for _, tr := range []Transport{SSE, WebSocket} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(1)
			c, stop := f.serve(t, Config{})
			defer stop()
			s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Transport: tr})
			defer s.Close()
			next[*State](t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Hour)
			defer cancel()
			if ev, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %+v, %v", tr, ev, err)
			}
			// The end of a Next is not the end of the stream.
			f.publish("a", "k", "", []byte(`null`))
			if m := next[*Message](t, s); string(m.Data) != "null" || m.Key != "k" || m.Channel != "a" || !m.Time.Equal(time.Now()) {
				t.Errorf("%s: %+v", tr, m)
			}
		})
	}
}

func TestReconnectWaitsAsLongAsADrainingServerRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.retry = 8000
		c, stop := f.serve(t, Config{})
		defer stop()
		s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Since: "0"})
		defer s.Close()
		f.publish("a", "", "", []byte(`1`))
		next[*Message](t, s)
		f.mu.Lock()
		close(f.drain)
		f.drain = make(chan struct{})
		f.mu.Unlock()
		st := next[*State](t, s)
		e, ok := errors.AsType[*Error](st.Err)
		if !ok || e.Code != 1012 || e.Message != "draining" {
			t.Errorf("ended with %v", st.Err)
		}
		began := time.Now()
		if st := next[*State](t, s); !st.Connected {
			t.Errorf("not connected: %v", st.Err)
		}
		if d := time.Since(began); d < 8*time.Second || d > 12*time.Second {
			t.Errorf("came back after %v, requested 8s and up to a half more", d)
		}
	})
}

func TestCheckpointMovesThePosition(t *testing.T) {
	for _, tr := range []Transport{SSE, WebSocket} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(1)
			f.publish("other", "", "", []byte(`1`))
			f.publish("orders:1", "", "", []byte(`1`))
			c, stop := f.serve(t, Config{})
			defer stop()
			s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a", "orders:9"}, Transport: tr})
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for err := error(nil); err == nil; {
				_, err = s.Next(ctx)
			}
			if s.Position() != "d1-1~o1-1" {
				t.Errorf("%s: position %q", tr, s.Position())
			}
			// Another stream continues from the position.
			s.Close()
			f.publish("a", "", "", []byte(`2`))
			again, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Since: s.Position(), Transport: tr})
			defer again.Close()
			if m := next[*Message](t, again); m.Position.String() != "d1-2" {
				t.Errorf("%s: %+v", tr, m)
			}
		})
	}
}

func TestPositionIsThatOfWhatNextGaveOut(t *testing.T) {
	for _, tr := range []Transport{SSE, WebSocket} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(1)
			for i := range 10 {
				f.publish("a", "", "", []byte(strconv.Itoa(i)))
			}
			c, stop := f.serve(t, Config{})
			defer stop()
			s, _ := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Since: "0", Transport: tr})
			defer s.Close()
			for range 10 {
				m := next[*Message](t, s)
				synctest.Wait() // the reader is ahead by as much as it can be
				if s.Position() != m.Position.String() {
					t.Errorf("%s: position %s after %v", tr, s.Position(), m.Position)
				}
			}
		})
	}
}

func TestEndOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		c, stop := f.serve(t, Config{})
		defer stop()
		reason := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		s, _ := c.Subscribe(ctx, SubscribeOptions{Channels: []string{"a"}})
		next[*State](t, s)
		cancel(reason)
		if _, err := s.Next(t.Context()); !errors.Is(err, reason) {
			t.Errorf("after the end of the context: %v", err)
		}
		s, _ = c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}})
		next[*State](t, s)
		s.Close()
		s.Close()
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// Over real sockets, where bytes are cut into other pieces than by pipes.
func TestOverLoopback(t *testing.T) {
	for _, tr := range []Transport{SSE, WebSocket} {
		f := newFake(1)
		srv := httptest.NewServer(f)
		c, err := New(Config{URL: srv.URL + "/"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Subscribe(t.Context(), SubscribeOptions{Channels: []string{"a"}, Since: "0", Transport: tr})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			data := strconv.Quote(strings.Repeat("x", i*37))
			at, err := c.Publish(t.Context(), Publication{Channel: "a", Data: []byte(data)})
			if err != nil {
				t.Fatal(err)
			}
			if m := next[*Message](t, s); m.Position != at || string(m.Data) != data {
				t.Fatalf("%s: %v %.40q, published %v %.40q", tr, m.Position, m.Data, at, data)
			}
		}
		s.Close()
		c.Close()
		srv.CloseClientConnections()
		srv.Close()
	}
}

// place is a position as the history knows it.
func place(p Position) history.Position {
	return history.Position{Epoch: p.Epoch, Offset: p.Offset}
}
