package push

import (
	"io"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// An idle client of a protocol has a connection of the loop's, this, and what the
// protocol keeps.
func TestTransportsAreSmall(t *testing.T) {
	f := func(name string, size, want uintptr) {
		t.Helper()
		if size != want {
			t.Errorf("%s has %d bytes, want %d", name, size, want)
		}
	}
	f("transport", unsafe.Sizeof(transport{}), 64)
	f("subscription", unsafe.Sizeof(subscription{}), 40)
}

func TestLastReceiveTimeIsNeverTooEarly(t *testing.T) {
	f := func(at, later time.Duration) {
		t.Helper()
		now := int64(at + later)
		got := readAt(readStamp(int64(at)), now)
		if early := int64(at) - got; early > 0 || -early > int64(17*time.Millisecond) || got > now {
			t.Errorf("received at %v, asked at %v: %v", at, time.Duration(now), time.Duration(got))
		}
	}
	const year = 365 * 24 * time.Hour
	for _, at := range []time.Duration{0, 1, time.Second, time.Hour, year, 1<<32<<readUnit - 1, 1 << 32 << readUnit, 5 * year} {
		for _, later := range []time.Duration{0, 1, 17 * time.Millisecond, time.Minute, time.Hour, year} {
			f(at, later)
		}
	}
}

// restless sets its timer as often as it comes, and counts.
type restless struct {
	t        socket.Transport
	timers   int
	every    time.Duration
	reported chan string
}

func (s *restless) Message([]byte, bool) {}
func (s *restless) Pong()                {}
func (s *restless) Drained()             {}
func (s *restless) Timer() {
	s.timers++
	s.t.SetTimer(s.every)
	select {
	case s.reported <- "timer":
	default:
	}
}

func (s *restless) Drain() {
	s.reported <- "drain"
	s.t.Close(1012, "")
}
func (s *restless) Closed()         { s.reported <- "closed" }
func (s *restless) Subject() string { return "me" }

// The protocol's timer continues during a drain, until it is the client's turn.
func TestTimersContinueDuringADrain(t *testing.T) {
	reported := make(chan string, 100)
	s := play(t, &scripted{begin: func(tr socket.Transport) socket.Session {
		r := &restless{t: tr, every: time.Millisecond, reported: reported}
		tr.SetTimer(r.every)
		return r
	}}, hub.Namespace{})
	c, _ := s.client("S")
	defer c.Close()
	if got := <-reported; got != "timer" {
		t.Fatal(got)
	}
	s.Drain(wire.DrainPlan{Over: 2 * time.Second})
	timers := 0
	for got := range reported {
		if got == "drain" {
			break
		}
		if timers++; got != "timer" {
			t.Fatal(got)
		}
	}
	t.Logf("%d timers during the drain", timers)
	c.Close()
	trial.Eventually(t, "it was notified of its end", func() bool {
		select {
		case got := <-reported:
			return got == "closed"
		default:
			return false
		}
	})
}

// A session without a timer is drained too, and is in the lists until then.
func TestDrainComesWithoutATimer(t *testing.T) {
	reported := make(chan string, 100)
	s := play(t, &scripted{begin: func(tr socket.Transport) socket.Session { return &restless{t: tr, reported: reported} }}, hub.Namespace{})
	c, r := s.client("W")
	defer c.Close()
	head := make([]byte, 12)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	got := make(chan Lags, 1)
	s.Lags(10, func(*Lag) float64 { return 1 }, func(l Lags) { got <- l })
	l := <-got
	if l.Total != 1 || len(l.Worst) != 1 || l.Worst[0].Transport != "websocket" || l.Worst[0].Protocol != "restless" || l.Worst[0].Subject != "me" {
		t.Errorf("lags: %+v", l)
	}
	s.Drain(wire.DrainPlan{Over: 300 * time.Millisecond})
	if got := <-reported; got != "drain" {
		t.Errorf("received %q", got)
	}
	if got := <-reported; got != "closed" {
		t.Errorf("received %q", got)
	}
}
