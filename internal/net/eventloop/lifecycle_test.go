package eventloop

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/net/poller"
)

func TestPanicEndsOnlyItsConnection(t *testing.T) {
	boom := func() { panic("boom") }
	f := func(name string, h *script, run func(s *stage, c *Conn)) {
		t.Helper()
		s := newStage(t, Config{})
		neighbour := &script{}
		_, kn := s.connect(neighbour)
		var reported error
		if h.closed == nil {
			h.closed = func(_ *Conn, err error) { reported = err }
		} else {
			reported = errors.New("panic: boom")
		}
		c, k := s.connect(h)
		s.at(ms, func() { run(s, c) })
		s.at(time.Hour)
		if !k.closed || reported == nil || !strings.Contains(reported.Error(), "boom") {
			t.Errorf("%s: closed %v, notified %v", name, k.closed, reported)
		}
		if kn.closed || s.n.panics != 1 || s.table.open != 1 {
			t.Errorf("%s: neighbour closed %v, %d panics, %d open", name, kn.closed, s.n.panics, s.table.open)
		}
		neighbour.wants(t)
	}
	f("Data", &script{data: func(*Conn, []byte) int { boom(); return 0 }}, func(s *stage, c *Conn) { s.receives(c, "x") })
	f("EndOfStream", &script{eof: func(*Conn) bool { boom(); return true }}, func(s *stage, c *Conn) { s.ends(c) })
	f("Timer", &script{timer: func(*Conn, int64) { boom() }}, func(_ *stage, c *Conn) { c.SetTimer(1) })
	f("Drained", &script{drained: func(*Conn) { boom() }}, func(_ *stage, c *Conn) { c.Queue([]byte("x")) })
	f("Closed", &script{closed: func(*Conn, error) { boom() }}, func(_ *stage, c *Conn) { c.Close(nil) })
}

func TestHandlerThatClaimsTooMuchLosesItsConnection(t *testing.T) {
	for _, n := range []int{2, -1} {
		s := newStage(t, Config{})
		c, k := s.connect(&script{data: func(*Conn, []byte) int { return n }})
		s.receives(c, "x")
		if !k.closed || len(s.dispatching) > 0 {
			t.Errorf("consumed %d of 1: open", n)
		}
	}
}

func TestPanicAtAcceptClosesTheConnection(t *testing.T) {
	s := newStage(t, Config{})
	s.accept = func(*Conn) Handler { panic("boom") }
	s.Accepted(0, 77, netip.AddrPort{})
	if s.table.open != 0 || s.g.Open() != 0 || s.n.panics != 1 {
		t.Errorf("%d open, %d panics", s.table.open, s.n.panics)
	}
}

func TestPanicInAPostedFunctionIsContained(t *testing.T) {
	s := newStage(t, Config{})
	ran := false
	s.Post(func() { panic("boom") })
	s.Post(func() { ran = true })
	s.at(ms)
	if !ran || s.n.panics != 1 {
		t.Errorf("the next one ran: %v, %d panics", ran, s.n.panics)
	}
}

func TestPanicOnTickEndsTheGroupInOrder(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, _ := s.connect(h)
	s.OnTick(func() { panic("boom") })
	s.p.wait = func(time.Duration, poller.Handler) error { return nil }
	err := s.g.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("Run returned %v", err)
	}
	if !c.isClosed() || s.p.released != 1 || s.Post(func() {}) {
		t.Error("the loop is not down")
	}
	h.wants(t, "closed loop stopped")
}

func TestAcceptMayAnswerAndClose(t *testing.T) {
	s := newStage(t, Config{})
	f := func(accept func(*Conn) Handler) (*Conn, *sock) {
		var c *Conn
		s.accept = func(got *Conn) Handler { c = got; return accept(got) }
		s.fd++
		s.Accepted(3, s.fd, netip.MustParseAddrPort("[2001:db8::1]:80"))
		return c, s.p.socks[c.key]
	}
	c, k := f(func(c *Conn) Handler {
		c.Write([]byte("go away"))
		c.CloseAfterFlush()
		return nil
	})
	if string(k.got) != "go away" || !k.shut || k.closed || c.Listener() != 3 || c.Peer().String() != "[2001:db8::1]:80" {
		t.Errorf("%+v from %v at %d", k, c.Peer(), c.Listener())
	}
	s.ends(c)
	h := &script{}
	c, k = f(func(c *Conn) Handler {
		c.CloseAfterFlush()
		return h
	})
	s.receives(c, "x")
	s.ends(c)
	h.wants(t, "closed <nil>")
	if !k.closed {
		t.Error("open")
	}
	if _, k = f(func(*Conn) Handler { return nil }); !k.closed {
		t.Error("a connection without a handler is open")
	}
	_, k = f(func(c *Conn) Handler { c.Close(nil); return h })
	h.wants(t)
	if !k.closed || s.table.open != 0 || s.g.Open() != 0 {
		t.Errorf("closed %v, %d open", k.closed, s.g.Open())
	}
}

func TestOneConnectionTooManyIsClosedAtAccept(t *testing.T) {
	s := newStage(t, Config{MaxConns: 2})
	a, _ := s.connect(&script{})
	s.connect(&script{})
	if c, _ := s.connect(&script{}); c != nil {
		t.Fatal("a third connection has a handler")
	}
	if len(s.p.unwanted) != 1 || s.p.unwanted[0] != s.fd || s.n.refused != 1 {
		t.Errorf("closed %v", s.p.unwanted)
	}
	a.Close(nil)
	if c, _ := s.connect(&script{}); c == nil {
		t.Error("no room after one has left")
	}
}

func TestConnectionThatCannotBeWatchedIsClosed(t *testing.T) {
	s := newStage(t, Config{})
	s.p.refuseAdd = true
	if c, _ := s.connect(&script{}); c != nil {
		t.Error("it has a handler")
	}
	if s.table.open != 0 || s.g.Open() != 0 {
		t.Errorf("%d open", s.table.open)
	}
	for _, k := range s.p.socks {
		if !k.closed {
			t.Error("its descriptor is open")
		}
	}
}

func TestFailedAcceptPausesTheListener(t *testing.T) {
	s := newStage(t, Config{})
	fail := func() { s.AcceptFailed(1, syscall.EMFILE) }
	s.at(0, fail, fail)
	if !s.p.unwatched[1] || s.timeout() != 200*ms {
		t.Errorf("paused: %v, the loop would sleep for %v", s.p.unwatched[1], s.timeout())
	}
	s.at(199 * ms)
	if !s.p.unwatched[1] {
		t.Error("resumed early")
	}
	s.at(200 * ms)
	if s.p.unwatched[1] || len(s.accepting.paused) != 0 {
		t.Error("not resumed")
	}
	s.at(201*ms, fail)
	s.g.listens = 2
	s.g.StopAccepting()
	s.at(300*ms, fail)
	s.at(time.Hour, fail)
	s.at(2 * time.Hour)
	if !s.p.unwatched[0] || !s.p.unwatched[1] || len(s.accepting.paused) != 0 {
		t.Error("accepting after StopAccepting")
	}
}

func TestTimerIsNeverEarly(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, _ := s.connect(h)
	s.now = int64(33 * ms)
	c.SetTimer(int64(500 * ms))
	s.at(532 * ms)
	h.wants(t)
	s.at(634 * ms)
	h.wants(t, "timer")
	c.SetTimer(int64(time.Second))
	c.SetTimer(0)
	s.at(time.Minute)
	h.wants(t)
	if s.Time(s.Now()).Sub(s.base) != time.Minute {
		t.Errorf("Time(%d) is %v after the start", s.Now(), s.Time(s.Now()).Sub(s.base))
	}
}

func TestTimersMayCloseEachOther(t *testing.T) {
	s := newStage(t, Config{})
	var conns []*Conn
	fired := 0
	for range 10 {
		c, _ := s.connect(&script{timer: func(*Conn, int64) {
			fired++
			for _, c := range conns {
				c.Close(nil)
			}
		}})
		c.SetTimer(1)
		conns = append(conns, c)
	}
	s.at(time.Second)
	if fired != 1 || s.timers.Len() != 0 {
		t.Errorf("%d fired, %d left", fired, s.timers.Len())
	}
}

func TestWriteFromClosedOnTheLastStepOfATickIsSent(t *testing.T) {
	s := newStage(t, shortStall(time.Second))
	other, ok := s.connect(&script{})
	c, k := s.connect(&script{closed: func(*Conn, error) {
		other.Write([]byte("a"))
		other.Queue([]byte("b"))
	}})
	k.room = 0
	c.Send([]byte("x"))
	for i := range 10 {
		s.at(time.Duration(i) * 300 * ms)
	}
	wantText(t, ok, "ab")
	// During the flush of the tick itself: the next tick follows at once.
	c, k = s.connect(&script{closed: func(*Conn, error) { other.Queue([]byte("c")) }})
	s.at(4*time.Second, func() {
		k.err = syscall.EPIPE
		c.Queue([]byte("x"))
	})
	if s.timeout() != 0 {
		t.Errorf("the loop would sleep for %v with bytes queued", s.timeout())
	}
	s.at(4 * time.Second)
	wantText(t, ok, "c")
}

// TestOneWakeUpPerSleep posts from many goroutines to a loop that sleeps.
func TestOneWakeUpPerSleep(t *testing.T) {
	s := newStage(t, Config{})
	s.maxSleep = time.Hour
	asleep, awake := make(chan struct{}), make(chan struct{})
	var wakes atomic.Int64
	sleeps := 0
	s.p.wake = func() { wakes.Add(1) }
	s.p.wait = func(d time.Duration, h poller.Handler) error {
		if d != 0 {
			sleeps++
			asleep <- struct{}{}
			<-awake
		}
		h.TickStarted()
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.g.Run(ctx) }()
	const rounds, posters = 50, 100
	ran := 0
	for round := range rounds {
		<-asleep
		var wg sync.WaitGroup
		for range posters {
			wg.Go(func() { s.Post(func() { ran++ }) })
		}
		wg.Wait()
		if n := wakes.Load(); n != int64(round+1) {
			t.Fatalf("%d wake-ups in %d sleeps", n, round+1)
		}
		awake <- struct{}{}
	}
	<-asleep
	if ran != rounds*posters || sleeps != rounds+1 {
		t.Errorf("%d of %d ran, in %d sleeps", ran, rounds*posters, sleeps)
	}
	if ticks := s.Stats().Ticks; ticks != rounds {
		t.Errorf("%d ticks for %d wake-ups: one is enough for each", ticks, rounds)
	}
	cancel()
	awake <- struct{}{}
	for {
		select {
		case <-asleep:
			awake <- struct{}{}
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			s.Wake() // must not reach a poller that is released
			if s.Post(func() { t.Error("ran") }) {
				t.Error("posted to a loop that has ended")
			}
			return
		}
	}
}

func TestLoopThatHasEndedIsNotWoken(t *testing.T) {
	s := newStage(t, Config{})
	s.p.wake = func() { t.Error("a released poller was woken") }
	s.g.Release()
	s.g.Release()
	s.sleeping.Store(true)
	s.Wake()
	if s.Post(func() {}) || s.p.released != 1 {
		t.Errorf("released %d times", s.p.released)
	}
	if err := s.g.Run(t.Context()); err == nil {
		t.Error("a released group runs")
	}
	if _, err := s.g.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err == nil {
		t.Error("a released group listens")
	}
}

func TestWhatWasPostedBeforeTheEndIsRunAndSent(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	s.Post(func() {
		s.stopping = true
		s.Post(func() { c.Write([]byte("last ")); c.Queue([]byte("words")) })
	})
	s.p.wait = func(time.Duration, poller.Handler) error { return nil }
	if err := s.g.Run(cancelled()); err != nil {
		t.Fatal(err)
	}
	wantText(t, k, "last words")
	h.wants(t, "drained", "closed loop stopped")
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestFailedPollerEndsTheGroup(t *testing.T) {
	s := newStage(t, Config{})
	s.p.wait = func(time.Duration, poller.Handler) error { return syscall.EBADF }
	if err := s.g.Run(t.Context()); !errors.Is(err, syscall.EBADF) {
		t.Errorf("Run returned %v", err)
	}
}
