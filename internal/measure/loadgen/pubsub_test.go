package loadgen_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// plain is pubsub against a world's plain sockets.
func plain(w *world, transport string, conns int) loadgen.Spec {
	target := w.URL
	if transport == "ws" {
		target = w.ws()
	}
	return loadgen.Spec{
		Kind: loadgen.PubSub, Target: target + "/sub/room", Publish: w.URL + "/pub/room", Transport: transport,
		Conns: conns, Publishers: 1, Arrival: loadgen.Uniform, Timeout: 3 * time.Second,
	}
}

func TestEveryDeliveryIsFollowed(t *testing.T) {
	f := func(transport string, change func(*loadgen.Spec)) {
		t.Helper()
		w := newWorld(t, nil)
		spec := plain(w, transport, 10)
		if change != nil {
			change(&spec)
		}
		win := measure(t, spec, loadgen.Load{Rate: 100}, time.Second)
		faultless(t, win, 100)
		d := win.Delivery
		if d.Published != 100 || d.Expected != 1000 || d.Received != 1000 || d.Lost+d.Late+d.Repeated+d.Reordered+d.Foreign > 0 || d.Reach != 1 {
			t.Errorf("%s: %+v", transport, d)
		}
		if win.Response.TotalCount() != 1000 || win.Service.TotalCount() != 1000 || win.Publish.TotalCount() != 100 {
			t.Errorf("%s: %d ages, %d from the sending, %d acknowledgements", transport, win.Response.TotalCount(), win.Service.TotalCount(), win.Publish.TotalCount())
		}
		// An age counts from the intended instant, so no less than from the sending.
		if win.Response.Mean() < win.Service.Mean()-1 {
			t.Errorf("%s: ages of %.0f µs from the intended instant and %.0f µs from the sending", transport, win.Response.Mean(), win.Service.Mean())
		}
	}
	f("sse", nil)
	f("ws", nil)
	f("ws", func(s *loadgen.Spec) { s.Deflate, s.Payload = true, 2000 })
	f("sse", func(s *loadgen.Spec) { s.Publishers, s.Loops, s.Payload = 5, 3, 64 })
}

func TestPublishersOverWebSocket(t *testing.T) {
	w := newWorld(t, nil)
	spec := plain(w, "ws", 4)
	spec.Publish = w.ws() + "/send"
	win := measure(t, spec, loadgen.Load{Rate: 200}, 500*time.Millisecond)
	if d := win.Delivery; win.Offered != 100 || d.Received != 400 || d.Published != 100 || d.Lost+d.Late+d.Repeated+d.Reordered > 0 {
		t.Errorf("offered %d, %+v", win.Offered, win.Delivery)
	}
}

func TestPlantedFaultsAreCountedExactly(t *testing.T) {
	trial.Long(t)
	one := func(b []byte) [][]byte { return [][]byte{b} }
	f := func(name string, mangle func(m *member, n int, data []byte) [][]byte, want loadgen.Delivery) {
		t.Helper()
		for _, transport := range []string{"sse", "ws"} {
			w := newWorld(t, func(w *world) { w.mangle = mangle })
			win := measure(t, plain(w, transport, 10), loadgen.Load{Rate: 250}, 800*time.Millisecond)
			d := *win.Delivery
			d.Closes = nil
			want.Published, want.Expected = 200, 2000
			if d.Published != want.Published || d.Expected != want.Expected || d.Received != want.Received || d.Lost != want.Lost ||
				d.Repeated != want.Repeated || d.Reordered != want.Reordered || d.Late != want.Late || d.Reach != want.Reach || d.Foreign != want.Foreign {
				t.Errorf("%s over %s:\ngot  %+v\nwant %+v", name, transport, d, want)
			}
		}
	}
	f("a message lost for one subscriber", func(m *member, n int, b []byte) [][]byte {
		if m.n == 3 && n == 50 {
			return nil
		}
		return one(b)
	}, loadgen.Delivery{Received: 1999, Lost: 1, Reach: 0.9})
	f("a message lost for all, long runs for one", func(m *member, n int, b []byte) [][]byte {
		if n == 20 || m.n == 0 && n > 40 && n <= 150 {
			return nil
		}
		return one(b)
	}, loadgen.Delivery{Received: 2000 - 10 - 110, Lost: 120, Reach: 0})
	f("the last messages never come", func(m *member, n int, b []byte) [][]byte {
		if m.n < 2 && n > 195 {
			return nil
		}
		return one(b)
	}, loadgen.Delivery{Received: 1990, Late: 10, Reach: 0.8})
	f("repeats", func(m *member, n int, b []byte) [][]byte {
		if m.n == 1 && n%20 == 0 {
			return [][]byte{b, b, b}
		}
		return one(b)
	}, loadgen.Delivery{Received: 2000, Repeated: 20, Reach: 1})
	f("a message overtaken by its next", func(m *member, n int, b []byte) [][]byte {
		switch {
		case m.n == 2 && n == 70:
			m.held = b
			return nil
		case m.n == 2 && n == 71:
			return [][]byte{b, m.held}
		}
		return one(b)
	}, loadgen.Delivery{Received: 2000, Reordered: 1, Reach: 1})
	f("a message of another publisher", func(m *member, n int, b []byte) [][]byte {
		if n == 9 {
			return [][]byte{[]byte("from another publisher"), b}
		}
		return one(b)
	}, loadgen.Delivery{Received: 2000, Foreign: 10, Reach: 1})
}

func TestAStalledSubscriberShowsInTheAges(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.mangle = func(m *member, n int, b []byte) [][]byte {
			if n == 100 && m.held == nil {
				m.held = b
				time.Sleep(250 * time.Millisecond) // the whole server, once
				for x := range w.members {
					x.held = b
				}
			}
			return [][]byte{b}
		}
	})
	win := measure(t, plain(w, "ws", 5), loadgen.Load{Rate: 200}, time.Second)
	if d := win.Delivery; d.Received != 1000 || d.Lost+d.Late > 0 {
		t.Errorf("%+v", d)
	}
	if p := win.Response.ValueAtPercentile(99); p < 200_000 {
		t.Errorf("P99 of the ages is %d µs after a stall of 250 ms", p)
	}
}

func TestARefusedPublishIsNotExpected(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.refuse = func(n int) int {
			if n%10 == 0 {
				return 503
			}
			return 0
		}
	})
	win := measure(t, plain(w, "sse", 5), loadgen.Load{Rate: 200}, 500*time.Millisecond)
	addsUp(t, win)
	if d := win.Delivery; win.Errors["status 503"] != 10 || d.Published != 90 || d.Expected != 450 || d.Received != 450 || d.Lost+d.Late > 0 {
		t.Errorf("errors %v, %+v", win.Errors, win.Delivery)
	}
}

func TestChannelsHaveTheirOwnSubscribers(t *testing.T) {
	w := newWorld(t, nil)
	spec := plain(w, "sse", 6)
	spec.Target, spec.Publish, spec.Channels, spec.FirstChannel = w.URL+"/sub/room{channel}", w.URL+"/pub/room{channel}", 3, 7
	win := measure(t, spec, loadgen.Load{Rate: 300}, 500*time.Millisecond)
	faultless(t, win, 150)
	if d := win.Delivery; d.Published != 150 || d.Expected != 300 || d.Received != 300 || d.Lost+d.Late+d.Foreign > 0 {
		t.Errorf("%+v", d)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.offset) != 3 || w.offset["room7"] != 50 || w.offset["room9"] != 50 {
		t.Errorf("messages by channel %v, want 50 each of room7 to room9", w.offset)
	}
}

func TestWindowsOfOneGeneratorDoNotMix(t *testing.T) {
	w := newWorld(t, nil)
	g := generator(t, plain(w, "ws", 5))
	for i := range 3 {
		win, err := g.Measure(context.Background(), loadgen.Load{Rate: 200}, 300*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		faultless(t, win, 60)
		if d := win.Delivery; d.Published != 60 || d.Expected != 300 || d.Received != 300 || d.Lost+d.Late+d.Repeated > 0 {
			t.Errorf("window %d: %+v", i, d)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.joined != 5 {
		t.Errorf("%d streams were opened for three windows, want 5", w.joined)
	}
}
