package tlsterm

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

func TestASlowClientHelloIsShedInTime(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{HelloTimeout: seconds(0.3)}, echoes)
	f := func(sent string) {
		t.Helper()
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, sent)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		start := time.Now()
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%q: %v after %v", sent, err, time.Since(start))
		}
		if d := time.Since(start); d < 200*time.Millisecond {
			t.Errorf("%q: closed after %v already", sent, d)
		}
	}
	f("")
	f("\x16")
	f("\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
	if st := s.Stats(); st.Timeouts != 3 || st.Running != 0 {
		t.Errorf("%+v", st)
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// mute finishes no handshake: it sends the ClientHello and then nothing.
func mute(t testing.TB, s *server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = c.Write(hello(t))
	return c
}

// hello is a ClientHello.
func hello(t testing.TB) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	var done sync.WaitGroup
	done.Go(func() { _ = tls.Client(a, client(nil)).Handshake() })
	rec := make([]byte, headerLen, 4096)
	if _, err := io.ReadFull(b, rec); err != nil {
		t.Fatal(err)
	}
	rec = append(rec, make([]byte, int(rec[3])<<8|int(rec[4]))...)
	if _, err := io.ReadFull(b, rec[headerLen:]); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	done.Wait()
	return rec
}

func TestAHandshakeThatStopsIsEnded(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{HandshakeTimeout: seconds(0.3)}, echoes)
	c := mute(t, s)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, c); isTimeout(err) {
		t.Error("it was not ended")
	}
	eventually(t, "the end of the goroutine", func() bool { return s.Stats().Running == 0 })
	if st := s.Stats(); st.Timeouts != 1 {
		t.Errorf("%+v", st)
	}
}

func TestHandshakesBeyondTheBoundWaitAndBeyondThatAreShed(t *testing.T) {
	s := serve(t, Config{MaxHandshakes: 2, MaxWaiting: 3, HandshakeTimeout: seconds(60), HelloTimeout: seconds(60)}, echoes)
	var stuck []net.Conn
	for range 2 {
		stuck = append(stuck, mute(t, s))
	}
	eventually(t, "two that run", func() bool { return s.Stats().Running == 2 })
	results := make(chan error, 3)
	for range 3 {
		go func() {
			c, err := tls.Dial("tcp", s.addr, client(nil))
			if err == nil {
				_ = c.Close()
			}
			results <- err
		}()
	}
	eventually(t, "three that wait", func() bool { return s.Stats().Waiting == 3 })
	if c, err := tls.Dial("tcp", s.addr, client(nil)); err == nil {
		_ = c.Close()
		t.Error("one more was let in")
	}
	if st := s.Stats(); st.Shed != 1 || st.Running != 2 || st.Waiting != 3 {
		t.Errorf("%+v", st)
	}
	_ = stuck[0].Close() // its place is free at once
	for range 3 {
		if err := <-results; err != nil {
			t.Errorf("one that waited: %v", err)
		}
	}
	eventually(t, "the last of them counted", func() bool { return s.Stats().Full == 3 && s.Stats().Waiting == 0 })
}

func TestAQueuedHandshakeThatClosesFreesItsPlace(t *testing.T) {
	s := serve(t, Config{MaxHandshakes: 1, MaxWaiting: 2, HandshakeTimeout: seconds(60)}, echoes)
	mute(t, s)
	eventually(t, "one that runs", func() bool { return s.Stats().Running == 1 })
	gone := []net.Conn{mute(t, s), mute(t, s)}
	eventually(t, "two that wait", func() bool { return s.Stats().Waiting == 2 })
	for _, c := range gone {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	eventually(t, "none that waits", func() bool { return s.Stats().Waiting == 0 })
}

// A storm: every client at once, all get in, and never more run than may.
func TestAStormOfHandshakesIsBoundedAndAllGetIn(t *testing.T) {
	const clients = 200
	s := serve(t, Config{MaxHandshakes: 8, HandshakeCPUs: 1, HandshakeTimeout: seconds(60)}, echoes)
	var stop atomic.Bool
	var watch, all sync.WaitGroup
	most := 0
	watch.Go(func() {
		for !stop.Load() {
			most = max(most, s.Stats().Running)
		}
	})
	for range clients {
		all.Go(func() {
			c, err := tls.Dial("tcp", s.addr, client(nil))
			if err != nil {
				t.Errorf("dial: %v", err)
				return
			}
			_ = c.Close()
		})
	}
	all.Wait()
	stop.Store(true)
	watch.Wait()
	eventually(t, "the last of them counted", func() bool { return s.Stats().Full == clients })
	if st := s.Stats(); st.Shed != 0 || st.Failed != 0 || most > 8 {
		t.Errorf("%+v, at most %d at a time", st, most)
	}
}

func TestARateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{MaxHandshakes: 1000, MaxWaiting: 1000, HandshakeRate: 50})
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		for range 100 {
			if a.enter(func() {
				mu.Lock()
				at = append(at, time.Since(start))
				mu.Unlock()
			}) == nil {
				t.Error("turned away")
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(at) != 100 || a.waits() != 0 {
			t.Fatalf("%d ran, %d wait", len(at), a.waits())
		}
		slices.Sort(at)
		for i, d := range at { // five at once, then fifty a second
			if want := time.Duration(max(0, i-4)) * time.Second / 50; d < want-time.Millisecond || d > want+50*time.Millisecond {
				t.Errorf("the %dth began after %v, want %v", i+1, d, want)
			}
		}
		a.close()
		if a.enter(func() {}) != nil {
			t.Error("a closed admission let someone in")
		}
	})
}

func TestQueuedHandshakesRunInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{MaxHandshakes: 1, MaxWaiting: 10})
		hold := make(chan struct{})
		a.enter(func() { <-hold })
		var got []int
		var places []*place
		for i := range 5 {
			places = append(places, a.enter(func() { got = append(got, i) }))
		}
		a.leave(places[2])
		a.leave(places[2]) // twice does no harm
		close(hold)
		synctest.Wait()
		if !slices.Equal(got, []int{0, 1, 3, 4}) {
			t.Errorf("they ran as %v", got)
		}
		a.leave(places[0])
		a.close()
	})
}

func TestCloseEndsHandshakesUnderWay(t *testing.T) {
	s := serve(t, Config{HandshakeTimeout: seconds(60)}, echoes)
	standing := dial(t, s, nil)
	roundTrip(t, standing, []byte("established"))
	mute(t, s)
	eventually(t, "one that runs", func() bool { return s.Stats().Running == 1 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	roundTrip(t, standing, []byte("still here"))
	if c, err := tls.Dial("tcp", s.addr, client(nil)); err == nil {
		_ = c.Close()
		t.Error("a handshake began after Close")
	}
}

func TestOnlyCiphersInUseStayReady(t *testing.T) {
	s := allSuites[0]
	l := newLoopState()
	l.read.limit = 4
	var all []*records
	for range 10 {
		a, b := pair(s)
		b.loopState = l
		all = append(all, b)
		for range 3 {
			if plain, _, err := b.Open(a.Seal(nil, []byte("x"))); err != nil || string(plain) != "x" {
				t.Fatalf("%q and %v", plain, err)
			}
		}
		ready := 0
		for _, r := range all {
			if r.in.aead != nil {
				ready++
			}
		}
		if ready > 4 || ready != len(l.read.halves) {
			t.Fatalf("%d ciphers are ready, %d listed", ready, len(l.read.halves))
		}
	}
	for _, r := range all {
		r.Release()
	}
	if n := len(l.read.halves); n > 1 {
		t.Errorf("%d of closed connections are listed", n)
	}
}

func TestCiphersOfSilentConnectionsAreTakenBackAsOthersConnect(t *testing.T) {
	l := newLoopState()
	talks, busy := pair(allSuites[0])
	busy.loopState = l
	var all []*records
	for range 10 * warmLeast {
		a, b := pair(allSuites[0])
		b.loopState = l
		l.connected()
		for _, x := range [][2]*records{{a, b}, {talks, busy}} {
			if _, _, err := x[1].Open(x[0].Seal(nil, []byte("x"))); err != nil {
				t.Fatal(err)
			}
			x[1].Seal(nil, []byte("y"))
		}
		all = append(all, b)
		if busy.in.aead == nil || busy.out.aead == nil {
			t.Fatal("one that is in use has lost its cipher")
		}
	}
	ready := 0
	for _, r := range all {
		if r.in.aead != nil || r.out.aead != nil {
			ready++
		}
	}
	if ready > 2*warmLeast || ready > len(l.read.halves) || ready > len(l.write.halves) {
		t.Errorf("%d of %d silent connections have a cipher, %d and %d are listed", ready, len(all), len(l.read.halves), len(l.write.halves))
	}
	for _, r := range append(all, busy) {
		r.Release()
	}
	if n := len(l.read.halves); n > 1 {
		t.Errorf("%d of closed connections are listed", n)
	}
}

// A handler that panics loses its connection, not the process.
func TestAPanicEndsOneConnection(t *testing.T) {
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { return bomb{} })
	c := dial(t, s, nil)
	_, _ = c.Write([]byte("bang"))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("it went on")
	}
	dial(t, s, nil)
}

type bomb struct{ echo }

func (bomb) Data(*eventloop.Conn, []byte) int { panic("bang") }

func TestWhileThrottledHandshakesRunOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{MaxHandshakes: 10, MaxWaiting: 10})
		defer a.close()
		a.throttle(true)
		var running, most, done atomic.Int32
		run := func() {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Second)
			running.Add(-1)
			done.Add(1)
		}
		for range 6 {
			a.enter(run)
		}
		time.Sleep(2500 * time.Millisecond)
		if most.Load() != 1 || done.Load() != 2 {
			t.Errorf("%d at a time, %d done", most.Load(), done.Load())
		}
		a.throttle(false)
		time.Sleep(1100 * time.Millisecond)
		if done.Load() != 6 {
			t.Errorf("not throttled any more, %d are done", done.Load())
		}
	})
}
