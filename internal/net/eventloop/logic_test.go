package eventloop

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func TestConnIsSmall(t *testing.T) {
	n := unsafe.Sizeof(Conn{})
	t.Logf("a Conn has %d bytes", n)
	if n > 112 { // the allocator's next size class is 128
		t.Errorf("a Conn has %d bytes, want at most 112", n)
	}
	if n := unsafe.Sizeof(outQueue{}); n > 112 {
		t.Errorf("an outQueue has %d bytes, want at most 112", n)
	}
}

func TestUnconsumedInputComesAgainWithMore(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{data: func(_ *Conn, b []byte) int { return bytes.IndexByte(b, '\n') + 1 }}
	c, _ := s.connect(h)
	s.receives(c, "a")
	s.receives(c, "b\nc")
	h.wants(t, "data a", "data ab\nc", "data c")
	s.receives(c, "\n")
	h.wants(t, "data c\n")
	if c.parked != nil {
		t.Error("a buffer is kept though all was consumed")
	}
}

func TestInputIsTheSameHoweverItIsSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 50 {
		s := newStage(t, Config{})
		var got []string
		h := &script{}
		h.data = func(c *Conn, b []byte) int {
			i := bytes.IndexByte(b, '\n')
			if i >= 0 {
				got = append(got, string(b[:i]))
			}
			if r.IntN(8) == 0 {
				c.PauseReading()
			}
			return i + 1
		}
		c, k := s.connect(h)
		var want []string
		var text strings.Builder
		for i := range 50 {
			line := strings.Repeat("x", r.IntN(300)) + fmt.Sprint(i)
			want = append(want, line)
			text.WriteString(line + "\n")
		}
		for rest := text.String(); rest != ""; {
			for !k.reading {
				c.ResumeReading()
			}
			n := min(len(rest), 1+r.IntN(400))
			s.receives(c, rest[:n])
			rest = rest[n:]
		}
		for c.parked != nil {
			c.ResumeReading()
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("round %d: lines were lost, repeated or changed", round)
		}
	}
}

func TestBytewiseInputReusesItsBuffer(t *testing.T) {
	s := newStage(t, Config{})
	c, _ := s.connect(nopHandler2{})
	one := []byte("x")
	s.Received(c.key, bytes.Repeat(one, 60<<10), 0)
	if n := testing.AllocsPerRun(1000, func() { s.Received(c.key, one, 0) }); n != 0 {
		t.Errorf("%v allocations for a byte after 60 KiB, want 0", n)
	}
}

// nopHandler2 consumes nothing.
type nopHandler2 struct{}

func (nopHandler2) Data(*Conn, []byte) int    { return 0 }
func (nopHandler2) EndOfStream(*Conn) bool    { return true }
func (nopHandler2) Drained(*Conn)             {}
func (nopHandler2) Timer(*Conn, int64)        {}
func (nopHandler2) Closed(_ *Conn, err error) { _ = err }

func TestTooMuchUnconsumedInputCloses(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{data: func(_ *Conn, b []byte) int { return 0 }}
	c, k := s.connect(h)
	s.Received(c.key, make([]byte, maxParked), 0)
	if k.closed {
		t.Fatal("closed at the bound, not over it")
	}
	h.log = nil
	h.closed = func(_ *Conn, err error) {
		if !errors.Is(err, ErrParked) {
			t.Errorf("closed with %v", err)
		}
	}
	s.Received(c.key, []byte("x"), 0)
	if !k.closed {
		t.Error("open with more than the bound")
	}
}

func TestPausedInputIsShownAtResume(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{data: func(c *Conn, b []byte) int {
		c.PauseReading()
		return 1
	}}
	c, k := s.connect(h)
	s.receives(c, "abc")
	h.wants(t, "data abc")
	if k.reading {
		t.Error("the poller still reads")
	}
	c.Redeliver() // paused: nothing is shown
	h.wants(t)
	c.ResumeReading()
	h.wants(t, "data bc")
	c.ResumeReading()
	h.wants(t, "data c")
	c.ResumeReading()
	h.wants(t)
	if !k.reading || c.parked != nil {
		t.Error("the poller does not read though nothing is paused")
	}
}

func TestAgainShowsWhatWasLeft(t *testing.T) {
	s := newStage(t, Config{})
	ready := false
	h := &script{data: func(c *Conn, b []byte) int {
		c.Redeliver() // during Data it does nothing
		if ready {
			return len(b)
		}
		return 0
	}}
	c, _ := s.connect(h)
	s.receives(c, "x")
	ready = true
	c.Redeliver()
	c.Redeliver()
	h.wants(t, "data x", "data x")
}

func TestEndOfStreamComesAfterPausedInput(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{data: func(c *Conn, b []byte) int {
		c.PauseReading()
		return 1
	}, eof: func(*Conn) bool { return true }}
	c, k := s.connect(h)
	s.receives(c, "ab")
	s.ends(c) // a hang-up is reported though reading is paused
	h.wants(t, "data ab")
	h.data = func(_ *Conn, b []byte) int { return len(b) }
	c.ResumeReading()
	h.wants(t, "data b", "eof")
	c.ResumeReading()
	h.wants(t)
	if k.closed || k.reading {
		t.Error("a connection that stays after the end of its stream is closed or read")
	}
	s.ends(c) // a second time: it is gone
	h.wants(t, "closed <nil>")
}

func TestEndOfStreamAfterResumeWithinData(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{eof: func(*Conn) bool { return true }}
	c, _ := s.connect(h)
	h.data = func(c *Conn, b []byte) int {
		c.PauseReading()
		return 0
	}
	s.receives(c, "a")
	s.ends(c)
	h.data = func(c *Conn, b []byte) int {
		c.PauseReading() // no effect: there is no more to read
		c.ResumeReading()
		return len(b)
	}
	h.log = nil
	c.ResumeReading()
	h.wants(t, "data a", "eof")
}

func TestEndOfStreamWithoutMoreToSayCloses(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{eof: func(c *Conn) bool {
		c.Write([]byte("bye"))
		return false
	}}
	c, k := s.connect(h)
	s.ends(c)
	h.wants(t, "eof", "closed <nil>")
	wantText(t, k, "bye")
}

func TestWritesOfOneReadLeaveInOneSend(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{data: func(c *Conn, b []byte) int {
		c.Write(b[:1])
		return 1
	}}
	c, k := s.connect(h)
	s.at(ms, func() { s.receives(c, "pipelined") })
	wantText(t, k, "pipelined")
	if k.sends != 1 {
		t.Errorf("%d sends, want 1", k.sends)
	}
}

func TestQueueMergesATick(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	for round := range 3 { // after a drain it works as before
		s.at(ms, func() {
			for _, w := range []string{"a", "b", "c"} {
				c.Queue([]byte(w))
			}
			if k.sends != round || c.Unsent() != 3 {
				t.Errorf("sent before the end of the tick")
			}
		})
		wantText(t, k, "abc")
		h.wants(t, "drained")
		if k.sends != round+1 || c.out != nil {
			t.Errorf("%d sends after %d ticks", k.sends, round+1)
		}
	}
}

func TestQueueInSteadyStateAllocatesNothing(t *testing.T) {
	s := newStage(t, Config{})
	c, k := s.connect(nopHandler2{})
	b := []byte("frame")
	k.got = make([]byte, 0, 1<<20)
	n := testing.AllocsPerRun(1000, func() {
		c.Queue(b)
		c.Queue(b)
		s.endTick()
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestStalledConnectionDrainsWhenTheSocketTakesMore(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	k.room = 2
	c.Send([]byte("abcd"))
	if !c.Stalled() || c.Unsent() != 2 || len(s.stalled.conns) != 1 {
		t.Fatal("a socket that took too little does not stall its connection")
	}
	c.Send([]byte("e"))
	c.Write([]byte("f"))
	c.Queue([]byte("g"))
	s.at(ms)
	wantText(t, k, "ab")
	s.at(2*ms, func() { s.takes(c, 3) })
	h.wants(t)
	wantText(t, k, "cde")
	s.at(3*ms, func() { s.takes(c, -1) })
	wantText(t, k, "fg")
	h.wants(t, "drained")
	if c.Stalled() || len(s.stalled.conns) != 0 || s.n.stalls != 1 {
		t.Error("still stalled after everything has left")
	}
	c.Queue([]byte("h")) // right after a drain: nothing waits for the socket
	s.at(4 * ms)
	wantText(t, k, "h")
}

func TestDrainedMayWriteAndStallAgain(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	h.drained = func(c *Conn) {
		if len(h.log) < 3 {
			k.room = 1
			c.Send([]byte("again"))
		}
	}
	k.room = 0
	c.Send([]byte("x"))
	s.at(ms, func() { s.takes(c, -1) })
	s.at(2*ms, func() { s.takes(c, -1) })
	s.at(3*ms, func() { s.takes(c, -1) })
	h.wants(t, "drained", "drained", "drained")
	wantText(t, k, "xagainagain")
}

func TestSmallWritesBehindAStallShareMemory(t *testing.T) {
	s := newStage(t, Config{})
	c, k := s.connect(&script{})
	k.room = 0
	c.Send([]byte("x"))
	want := "x"
	for range 10000 {
		c.Write([]byte("ab"))
		want += "ab"
	}
	if n := len(c.out.segs); n > 3 {
		t.Errorf("%d segments for 20 KB of small writes", n)
	}
	s.at(ms, func() { s.takes(c, -1) })
	wantText(t, k, want)
}

// anyWrite writes b to c in one of the ways there are.
func anyWrite(r *rand.Rand, c *Conn, b []byte) {
	switch r.IntN(4) {
	case 0:
		c.Write(b)
		clear(b)
	case 1:
		c.Send(b)
	case 2:
		c.Queue(b)
	case 3:
		c.SendCopy(b)
		clear(b)
	}
}

// TestOrderIsKept mixes all ways to write, on several connections, with sockets
// that take random amounts and handlers that write when they are called.
func TestOrderIsKept(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := newStage(t, Config{})
		const peers = 3
		conns, socks := make([]*Conn, peers), make([]*sock, peers)
		want, received := make([]bytes.Buffer, peers), make([]bytes.Buffer, peers)
		budget := 300
		write := func(i int) {
			if budget--; budget < 0 {
				return
			}
			b := bytes.Repeat([]byte{byte('a' + budget%26)}, 1+r.IntN(1<<r.IntN(18)))
			want[i].Write(b)
			anyWrite(r, conns[i], b)
		}
		for i := range peers {
			conns[i], socks[i] = s.connect(&script{
				data:    func(_ *Conn, b []byte) int { write(r.IntN(peers)); return len(b) },
				drained: func(*Conn) { write(r.IntN(peers)) },
			})
			s.limits.maxQueue = 1 << 30
		}
		takes := func(i, n int) {
			s.takes(conns[i], n)
			received[i].Write(socks[i].got)
			socks[i].got = nil
		}
		for step := range 120 {
			s.at(time.Duration(step) * ms / 100)
			for range r.IntN(6) {
				i := r.IntN(peers)
				switch r.IntN(4) {
				case 0:
					s.receives(conns[i], "x")
				case 1:
					takes(i, r.IntN(100<<10))
				default:
					write(i)
				}
			}
		}
		budget = 0
		for i := range 5 * peers {
			takes(i%peers, -1)
			s.at(time.Duration(10+i) * ms)
		}
		for i := range peers {
			if conns[i].isClosed() || !bytes.Equal(received[i].Bytes(), want[i].Bytes()) {
				t.Fatalf("seed %d: connection %d got %d bytes that are not the %d written, in order", seed, i, received[i].Len(), want[i].Len())
			}
		}
	}
}

// What is written in a tick leaves at its end, in the order of the first writes.
func TestATicksWritesLeaveInABurst(t *testing.T) {
	f := func(name string, act func(s *stage, a, b *Conn), wantA, wantB string, sends int) {
		t.Helper()
		s := newStage(t, Config{})
		a, ka := s.connect(&script{})
		b, kb := s.connect(&script{})
		s.at(ms, func() { act(s, a, b) })
		wantText(t, ka, wantA)
		wantText(t, kb, wantB)
		if n := ka.sends + kb.sends; n != sends {
			t.Errorf("%s: %d sends, want %d", name, n, sends)
		}
		if len(s.gather.list)+len(s.gather.b)+s.gather.flushed > 0 {
			t.Errorf("%s: something is left", name)
		}
	}
	one, two, three := []byte("1"), []byte("2"), []byte("3")
	f("alternately", func(_ *stage, a, b *Conn) { a.Write(one); b.Write(two) }, "1", "2", 2)
	f("twice", func(_ *stage, a, _ *Conn) { a.Write(one); a.Write(two) }, "12", "", 1)
	f("back again", func(_ *stage, a, b *Conn) { a.Write(one); b.Write(two); a.Write(three) }, "13", "2", 3)
	f("sent meanwhile", func(_ *stage, a, b *Conn) { a.Write(one); b.Write(two); a.Send(three) }, "13", "2", 3)
	f("queued meanwhile", func(_ *stage, a, b *Conn) { a.Write(one); b.Write(two); a.Queue(three) }, "13", "2", 3)
	f("closed meanwhile", func(_ *stage, a, b *Conn) { a.Write(one); b.Write(two); a.Close(nil) }, "", "2", 1)
	f("closed in order", func(_ *stage, a, b *Conn) { a.Write(one); b.Write(two); a.CloseAfterFlush() }, "1", "2", 2)
	f("full", func(s *stage, a, b *Conn) {
		a.Write(one)
		b.Write(two)
		s.p.socks[a.key].room = 0
		a.Send(three)
		a.Write(two)
		s.takes(a, -1)
	}, "132", "2", 3)
}

func TestMuchIsNotGathered(t *testing.T) {
	s := newStage(t, Config{})
	a, ka := s.connect(&script{})
	b, kb := s.connect(&script{})
	a.Write([]byte("a"))
	for range burstLimit {
		b.Write([]byte("b"))
	}
	if len(ka.got) != 1 || len(kb.got) == 0 || cap(s.gather.b) > 2*burstLimit {
		t.Errorf("%d and %d bytes were sent, %d are kept", len(ka.got), len(kb.got), cap(s.gather.b))
	}
}

func TestFailedFlushDoesNotMixConnections(t *testing.T) {
	s := newStage(t, Config{})
	other, ok := s.connect(&script{})
	h := &script{closed: func(*Conn, error) { other.Write([]byte("news")) }}
	c, k := s.connect(h)
	third, k3 := s.connect(&script{})
	k.err = syscall.EPIPE
	s.at(ms, func() {
		c.Write([]byte("secret"))
		third.Write([]byte("mine")) // flushes c, which fails, whose handler writes
	})
	h.wants(t, "closed broken pipe")
	wantText(t, ok, "news")
	wantText(t, k3, "mine")
	wantText(t, k, "")
}

func TestFullQueueCloses(t *testing.T) {
	s := newStage(t, Config{MaxQueue: 64 << 10})
	for _, write := range []func(*Conn, []byte){(*Conn).Write, (*Conn).Send, (*Conn).Queue} {
		h := &script{}
		c, k := s.connect(h)
		k.room = 0
		c.Send([]byte("x"))
		write(c, make([]byte, 64<<10-1))
		if k.closed {
			t.Error("closed at the bound, not over it")
		}
		write(c, []byte("x"))
		h.wants(t, "closed write queue is full")
		if !k.closed || s.now != 0 {
			t.Error("open over the bound")
		}
	}
	if s.n.queueFull != 3 || len(s.stalled.conns) != 0 {
		t.Errorf("counted %d, %d still stalled", s.n.queueFull, len(s.stalled.conns))
	}
}

func TestStalledPeerIsClosed(t *testing.T) {
	s := newStage(t, shortStall(10*time.Second))
	dead, slow := &script{}, &script{}
	c, k := s.connect(dead)
	d, kd := s.connect(slow)
	k.room, kd.room = 0, 0
	s.at(0, func() {
		c.Send(make([]byte, 100))
		d.Send(make([]byte, 100))
		k.unsent, kd.unsent = 100<<10, 100<<10
	})
	for sec := range 40 {
		kd.unsent -= minProgress / 9 // the kernel still has more: no Writable comes
		s.at(time.Duration(sec) * time.Second)
	}
	dead.wants(t, "closed write stalled")
	slow.wants(t)
	if s.n.stallCloses != 1 || len(s.stalled.conns) != 1 {
		t.Errorf("%d closed, %d stalled", s.n.stallCloses, len(s.stalled.conns))
	}
	if wait := s.timeout(); wait > time.Second {
		t.Errorf("the loop would sleep for %v with a stalled connection", wait)
	}
}

func TestSweepSurvivesHandlersThatCloseOthers(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := newStage(t, shortStall(time.Second))
		var conns []*Conn
		closed := 0
		for range 20 {
			h := &script{closed: func(*Conn, error) {
				closed++
				conns[r.IntN(len(conns))].Close(nil)
			}}
			c, k := s.connect(h)
			k.room = 0
			c.Send([]byte("x"))
			conns = append(conns, c)
		}
		for i := range 12 {
			s.at(time.Duration(i) * 300 * ms)
		}
		if closed != len(conns) || len(s.stalled.conns) != 0 || s.table.open != 0 {
			t.Fatalf("seed %d: %d of %d closed, %d stalled", seed, closed, len(conns), len(s.stalled.conns))
		}
	}
}

func TestCountersAddUp(t *testing.T) {
	s := newStage(t, Config{})
	c, _ := s.connect(&script{data: func(c *Conn, b []byte) int { c.Send([]byte("four")); return len(b) }})
	s.at(ms, func() { s.receives(c, "ab") }, func() { s.receives(c, "c") })
	got := s.Stats()
	want := Stats{Ticks: 1, Accepted: 1, Open: 1, Reads: 2, BytesIn: 3, Sends: 2, BytesOut: 8}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	s.at(2*ms, func() { c.Close(nil) })
	if got := s.Stats(); got.Open != 0 || got.Closed != 1 {
		t.Errorf("after the close: %+v", got)
	}
}

func TestSharedFramesAreNotWrittenInto(t *testing.T) {
	s := newStage(t, Config{})
	c, k := s.connect(&script{})
	k.room = 1
	backing := []byte("frame|next frame")
	c.Send(backing[:5])
	c.Write([]byte("private"))
	c.Queue(backing[:5])
	c.Write([]byte("private"))
	s.at(ms, func() { s.takes(c, -1) })
	wantText(t, k, "frameprivateframeprivate")
	if string(backing) != "frame|next frame" {
		t.Errorf("a frame that others share has become %q", backing)
	}
}
