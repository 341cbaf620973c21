package tlsterm

import (
	"crypto/tls"
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

// Half handshakes cost who opens them nothing. They hold places only as long as no
// other needs them.
func TestHandshakesThatHangMakeRoomForThoseThatWait(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{MaxHandshakes: 2, HandshakeTimeout: seconds(300), HelloTimeout: seconds(60)}, echoes)
	var hung []net.Conn
	for range 6 {
		hung = append(hung, mute(t, s))
	}
	eventually(t, "two that run and four that wait", func() bool { st := s.Stats(); return st.Running == 2 && st.Waiting == 4 })
	c := dial(t, s, nil)
	roundTrip(t, c, []byte("there is room"))
	for _, c := range hung[:2] {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Error("one that hung longest is still there")
		}
	}
	if st := s.Stats(); st.Failed != 0 || st.Timeouts < 5 {
		t.Errorf("%+v", st)
	}
}

func TestHangingHandshakesStayWhileNoneIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{MaxHandshakes: 3, MaxWaiting: 10})
		var mu sync.Mutex
		var ended []int
		hang := func(i int) {
			gone := make(chan struct{})
			p := &place{end: func(error) {
				mu.Lock()
				ended = append(ended, i)
				mu.Unlock()
				close(gone)
			}}
			p.run = func() {
				a.hangs(p)
				<-gone
				a.resumed(p)
			}
			if !a.admit(p) {
				t.Fatal("turned away")
			}
			time.Sleep(hangPatience / 10)
		}
		var started atomic.Int32
		brief := func() { a.enter(func() { started.Add(1) }) }
		wants := func(what string, run int32, list ...int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if started.Load() != run || !slices.Equal(ended, list) {
				t.Errorf("%s: %d began, want %d; %v were ended, want %v", what, started.Load(), run, ended, list)
			}
		}
		hang(0)
		hang(1)
		hang(2)
		time.Sleep(time.Hour)
		wants("none waits", 0)
		brief()
		wants("one waits", 1, 0)
		hang(3)
		brief()
		wants("another waits", 2, 0, 1)
		hang(4) // with 2 and 3
		brief()
		wants("one more waits", 3, 0, 1, 2)
		hang(5)
		brief()
		wants("all are young", 3, 0, 1, 2)
		time.Sleep(hangPatience)
		wants("the first is not any more", 4, 0, 1, 2, 3)
		a.mu.Lock()
		for a.hung.Len() > 0 {
			p := a.hung.Front().Value.(*place)
			a.unhang(p)
			p.end(nil)
		}
		a.mu.Unlock()
		a.close()
		if a.runs() != 0 || a.leaving != 0 {
			t.Errorf("%d run, %d leave", a.runs(), a.leaving)
		}
	})
}

func TestWhileThrottledNoneWaitsForAHangingHandshake(t *testing.T) {
	s := serve(t, Config{HandshakeTimeout: seconds(300)}, echoes)
	s.Throttle(true)
	for range 3 {
		mute(t, s)
	}
	roundTrip(t, dial(t, s, nil), []byte("admitted"))
}

// A byte now and then does not make a handshake continue.
func TestAHandshakeThatTricklesMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{MaxHandshakes: 1, MaxWaiting: 10})
		gone := make(chan error)
		p := &place{end: func(err error) { close(gone) }}
		p.run = func() {
			for {
				a.hangs(p)
				select {
				case <-gone:
					return
				case <-time.After(hangPatience * 2 / 3):
					a.resumed(p)
				}
			}
		}
		a.admit(p)
		time.Sleep(10 * hangPatience)
		started := false
		a.enter(func() { started = true })
		time.Sleep(hangPatience)
		a.close()
		if !started {
			t.Error("the one that waited did not start")
		}
	})
}

// Anyone who has ended its side before it saw anything of ours will not end a handshake.
func TestAQueuedHandshakeThatEndsItsSideFreesItsPlace(t *testing.T) {
	s := serve(t, Config{MaxHandshakes: 1, MaxWaiting: 2, HandshakeTimeout: seconds(300)}, echoes)
	s.admission.mu.Lock()
	s.admission.patience = time.Hour
	s.admission.mu.Unlock()
	mute(t, s)
	eventually(t, "one that runs", func() bool { return s.Stats().Running == 1 })
	gone := []net.Conn{mute(t, s), mute(t, s)}
	eventually(t, "two that wait", func() bool { return s.Stats().Waiting == 2 })
	for _, c := range gone {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	eventually(t, "none that waits", func() bool { return s.Stats().Waiting == 0 })
}

// Of two, the second waits for the first; it is given up before that one's time is over,
// because it would have none left to run in.
func TestHandshakesThatWouldStartTooLateAreNotStarted(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{MaxHandshakes: 1, HandshakeTimeout: seconds(3)}, echoes)
	s.admission.mu.Lock()
	s.admission.patience = time.Hour
	s.admission.mu.Unlock()
	first := mute(t, s)
	eventually(t, "one that runs", func() bool { return s.Stats().Running == 1 })
	second := mute(t, s)
	eventually(t, "one that waits", func() bool { return s.Stats().Waiting == 1 })
	_ = second.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := io.Copy(io.Discard, second); n != 0 || isTimeout(err) {
		t.Errorf("the second got %d bytes and %v", n, err)
	}
	if st := s.Stats(); st.Running != 1 || st.Timeouts != 1 {
		t.Errorf("when the second was given up: %+v", st)
	}
	_ = first.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, first); isTimeout(err) {
		t.Error("the first was not ended")
	}
	eventually(t, "none", func() bool { return s.Stats().Running == 0 })
}

func TestAPanicAtTheBeginningEndsTheConnection(t *testing.T) {
	s := serve(t, Config{}, func(*eventloop.Conn) eventloop.Handler { panic("at once") })
	c, err := tls.Dial("tcp", s.addr, client(nil))
	if err != nil {
		return // it was that quick
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the connection stays: %v", err)
	}
	eventually(t, "no connection", func() bool { return s.group.Open() == 0 })
}

func TestNoHandshakeWaitsAfterClose(t *testing.T) {
	a := newAdmission(Config{MaxHandshakes: 1, MaxWaiting: 10})
	hold, closed := make(chan struct{}), make(chan struct{})
	a.enter(func() { <-hold })
	p := a.enter(func() { t.Error("it began") })
	a.enter(func() { t.Error("it began") })
	go func() { a.close(); close(closed) }()
	eventually(t, "a closed door", func() bool { return a.waits() == 0 })
	a.leave(p)
	if n := a.waits(); n != 0 {
		t.Errorf("%d wait", n)
	}
	close(hold)
	<-closed
}

// What has started is not blocked by what starts: of many that come at once, few are under
// way as long as none waits for a client.
func TestFewHandshakesStartBeforeTheFirstEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{MaxHandshakes: 100, MaxWaiting: 100, HandshakeCPUs: 2})
		step := make(chan struct{})
		for range 50 {
			p := new(place)
			p.run = func() {
				<-step // computes
				a.hangs(p)
				time.Sleep(time.Second)
				a.resumed(p)
				<-step // computes
			}
			a.admit(p)
		}
		wants := func(what string, running, waiting int) {
			t.Helper()
			synctest.Wait()
			if a.runs() != running || a.waits() != waiting {
				t.Errorf("%s: %d run and %d wait, want %d and %d", what, a.runs(), a.waits(), running, waiting)
			}
		}
		wants("at first", 2, 48)
		for range 5 {
			step <- struct{}{}
		}
		wants("five wait for their clients", 7, 43)
		time.Sleep(2 * time.Second)
		for range 5 { // some of them, or some of the two that compute
			step <- struct{}{}
			synctest.Wait()
		}
		if n := a.runs(); n > 7 {
			t.Errorf("%d run after five went on", n)
		}
		close(step)
		time.Sleep(time.Minute)
		wants("in the end", 0, 0)
		a.close()
	})
}

// Those that wait in line hold a ClientHello each and nothing else, however much they send.
func TestThoseThatWaitHoldNoMoreThanTheirHello(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{MaxHandshakes: 1, HandshakeTimeout: seconds(300)}, echoes)
	s.admission.mu.Lock()
	s.admission.patience = time.Hour
	s.admission.mu.Unlock()
	mute(t, s)
	eventually(t, "one that runs", func() bool { return s.Stats().Running == 1 })
	quiet := mute(t, s)
	loud := mute(t, s)
	eventually(t, "two that wait", func() bool { return s.Stats().Waiting == 2 })
	_, _ = loud.Write(make([]byte, 64<<10))
	eventually(t, "one that waits", func() bool { return s.Stats().Waiting == 1 })
	c, err := net.Dial("tcp", s.addr) // and so when it all comes at once
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(append(hello(t), make([]byte, 64<<10)...))
	eventually(t, "it refused", func() bool { return s.Stats().Failed == 2 })
	_ = quiet.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := quiet.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("the quiet one got %v", err)
	}
}

func TestAClientHelloInTooManyRecordsIsRefused(t *testing.T) {
	s := serve(t, Config{}, echoes)
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	message := append([]byte{clientHello, 0, byte(maxHello >> 8), 0}, make([]byte, maxHello/2)...)
	var wire []byte
	for _, b := range message {
		wire = append(wire, typeHandshake, 3, 1, 0, 1, b)
	}
	_, _ = c.Write(wire)
	got := make([]byte, 7)
	if _, err := io.ReadFull(c, got); err != nil || got[6] != alertDecodeError {
		t.Errorf("got %x and %v, want alert %d", got, err, alertDecodeError)
	}
}
