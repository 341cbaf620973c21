package eventloop

import (
	"syscall"
	"testing"
	"time"
)

func TestCloseAfterFlushShutsDownAndLingers(t *testing.T) {
	f := func(name string, end func(s *stage, c *Conn), at time.Duration, wantClosed bool) {
		t.Helper()
		s := newStage(t, Config{})
		h := &script{}
		c, k := s.connect(h)
		s.at(0, func() {
			c.SetTimer(int64(ms)) // the handler's time ends with the last byte
			c.Write([]byte("answer"))
			c.CloseAfterFlush()
			c.SetTimer(0)
			c.Write([]byte("more"))
			c.Send([]byte("more"))
			c.Queue([]byte("more"))
		})
		wantText(t, k, "answer")
		if !k.shut || k.closed || !k.reading || !c.Closing() {
			t.Errorf("%s: not shut down, closed already, or not reading", name)
		}
		s.at(at, func() { end(s, c) })
		if k.closed != wantClosed {
			t.Errorf("%s: closed: %v", name, k.closed)
		}
		if wantClosed {
			h.wants(t, "closed <nil>")
		}
		h.wants(t)
	}
	nothing := func(*stage, *Conn) {}
	f("shortly after", nothing, time.Second, false)
	f("the time is over", nothing, 2200*ms, true)
	f("the peer closes", func(s *stage, c *Conn) { s.ends(c) }, ms, true)
	f("the peer sends on", func(s *stage, c *Conn) { s.receives(c, "GET / HTTP/1.1\r\n\r\n") }, ms, false)
	f("the peer sends too much", func(s *stage, c *Conn) {
		for range lingerBytes>>16 + 1 {
			if !c.isClosed() {
				s.Received(c.key, make([]byte, 64<<10), 0)
			}
		}
	}, ms, true)
}

func TestResetWhileLingeringIsReported(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	c.CloseAfterFlush()
	s.Received(c.key, nil, syscall.ECONNRESET)
	h.wants(t, "closed connection reset by peer")
	if !k.closed {
		t.Error("not closed")
	}
}

func TestCloseAfterFlushSendsWhatWaits(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	k.room = 1
	s.at(0, func() {
		c.Send([]byte("long "))
		c.Write([]byte("answer"))
		c.CloseAfterFlush()
	})
	if k.shut || k.reading {
		t.Error("shut down or reading with an answer unsent")
	}
	s.receives(c, "unwanted") // by a hang-up
	s.ends(c)
	if k.closed {
		t.Fatal("the end of the peer's stream took the answer along")
	}
	s.at(ms, func() { s.takes(c, -1) })
	wantText(t, k, "long answer")
	h.wants(t, "closed <nil>") // both sides have ended: there is nothing to linger for
}

func TestQueuedBytesLeaveBeforeTheEnd(t *testing.T) {
	s := newStage(t, Config{})
	c, k := s.connect(&script{})
	s.at(ms, func() {
		c.Queue([]byte("a"))
		c.Queue([]byte("b"))
		c.CloseAfterFlush()
	})
	wantText(t, k, "ab")
	if !k.shut || !k.reading || k.closed {
		t.Error("not lingering")
	}
}

func TestTimerBoundsTheFlush(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{timer: func(c *Conn, _ int64) { c.Close(ErrStalled) }}
	c, k := s.connect(h)
	k.room = 0
	s.at(0, func() {
		c.Send([]byte("last words"))
		c.CloseAfterFlush()
		c.SetTimer(int64(time.Second))
	})
	s.at(1100 * ms)
	h.wants(t, "timer", "closed write stalled")
}

func TestPipelinedInputAfterTheLastAnswerIsNotShown(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{data: func(c *Conn, b []byte) int {
		c.Write([]byte("bye"))
		c.CloseAfterFlush()
		return 3
	}}
	c, k := s.connect(h)
	for _, room := range []int{-1, 0} {
		k.room = room
		s.receives(c, "onetwothree")
		h.wants(t, "data onetwothree")
		if c.parked != nil {
			t.Error("input is kept")
		}
		h.closed = func(*Conn, error) { h.log = nil }
		c.Close(nil)
		c, k = s.connect(h)
	}
}

func TestEndOfStreamMayCloseAfterFlush(t *testing.T) {
	for _, stay := range []bool{true, false} {
		s := newStage(t, Config{})
		h := &script{eof: func(c *Conn) bool {
			c.Write([]byte("answer"))
			c.CloseAfterFlush()
			return stay
		}}
		c, k := s.connect(h)
		k.room = 3
		s.ends(c)
		if k.closed {
			t.Fatalf("stay=%v: closed with half an answer", stay)
		}
		s.at(ms, func() { s.takes(c, -1) })
		wantText(t, k, "answer")
		h.wants(t, "eof", "closed <nil>")
	}
}

func TestHandlerChangedWhileClosingIsTheOneNotified(t *testing.T) {
	s := newStage(t, Config{})
	h, next := &script{}, &script{}
	c, _ := s.connect(h)
	c.CloseAfterFlush()
	c.SetHandler(next)
	s.ends(c)
	h.wants(t)
	next.wants(t, "closed <nil>")
}

func TestClosedConnectionDoesNothing(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	c.Abort(ErrStalled)
	if !k.aborted {
		t.Error("not reset")
	}
	// The scripted poller fails the test if any of these reaches it.
	c.Close(nil)
	c.Abort(nil)
	c.CloseAfterFlush()
	c.Write([]byte("x"))
	c.Send([]byte("x"))
	c.Queue([]byte("x"))
	c.PauseReading()
	c.ResumeReading()
	c.Redeliver()
	c.SetTimer(1)
	if c.Unsent() != 0 || c.UnsentKernel() != 0 || c.Stalled() || !c.Closing() {
		t.Error("a closed connection has something to send")
	}
	s.at(time.Hour)
	h.wants(t, "closed write stalled")
}

func TestEventsOfAClosedConnectionDoNotReachItsSuccessor(t *testing.T) {
	s := newStage(t, Config{})
	old, _ := s.connect(&script{})
	id := old.ID()
	old.Close(nil)
	h := &script{}
	c, _ := s.connect(h)
	if c.key.Slot() != old.key.Slot() || c.ID() == id {
		t.Fatalf("slot %d, then %d; IDs %x, %x", old.key.Slot(), c.key.Slot(), id, c.ID())
	}
	s.receives(old, "stale")
	s.Writable(old.key)
	s.ends(old)
	s.Received(old.key, nil, syscall.EPIPE)
	if _, ok := s.FD(old.key); ok {
		t.Error("the old key still has a descriptor")
	}
	h.wants(t)
}

func TestGenerationsStayWithinTheirBits(t *testing.T) {
	s := newStage(t, Config{})
	c, _ := s.connect(&script{})
	c.Close(nil)
	s.table.gens[0] = 1<<30 - 1
	c, _ = s.connect(&script{})
	if c.key>>62 != 0 {
		t.Errorf("key %x has one of the poller's bits", c.key)
	}
	s.id = 255
	if c.ID()>>56 != 255 || uint32(c.ID()) != c.key.Slot() {
		t.Errorf("ID %x", c.ID())
	}
	c.Close(nil)
	if s.table.gens[0] != 0 {
		t.Errorf("generation %d after the last one", s.table.gens[0])
	}
}

func TestClosingGivesUpParkedInput(t *testing.T) {
	s := newStage(t, Config{})
	c, _ := s.connect(nopHandler2{})
	s.receives(c, "half a requ")
	c.CloseAfterFlush()
	if c.parked != nil {
		t.Error("input that is never delivered is kept")
	}
}

func TestEndOfStreamIsReportedOnce(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{data: func(*Conn, []byte) int { return 0 }, eof: func(*Conn) bool { return true }}
	c, _ := s.connect(h)
	s.receives(c, "rest")
	s.ends(c)
	c.Redeliver()
	h.wants(t, "data rest", "eof", "data rest")
}

func TestCloseWriteEndsOneSide(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	k.room = 3
	s.at(ms, func() {
		c.Send([]byte("request"))
		c.CloseWrite()
		c.Write([]byte("x"))
		c.Send([]byte("x"))
		c.Queue([]byte("x"))
		c.CloseWrite()
	})
	if k.shut || c.Closing() {
		t.Error("shut with bytes unsent, or taken for closed")
	}
	s.at(2*ms, func() { s.takes(c, -1) })
	wantText(t, k, "request")
	if !k.shut || k.closed || !k.reading {
		t.Error("not shut down, or not reading on")
	}
	h.wants(t)
	c.SetTimer(int64(time.Second))
	s.receives(c, "answer")
	s.at(2 * time.Second)
	h.wants(t, "data answer", "timer")
	s.ends(c)
	h.wants(t, "eof", "closed <nil>")
}

func TestBothSidesEndInAnyOrder(t *testing.T) {
	f := func(name string, act func(s *stage, c *Conn), want ...string) {
		t.Helper()
		s := newStage(t, Config{})
		h := &script{eof: func(*Conn) bool { return true }}
		c, k := s.connect(h)
		k.room = 1
		act(s, c)
		h.wants(t, want...)
		if !k.closed {
			t.Errorf("%s: not closed", name)
		}
	}
	f("ours first", func(s *stage, c *Conn) {
		c.CloseWrite()
		s.ends(c)
	}, "eof", "closed <nil>")
	f("theirs first", func(s *stage, c *Conn) {
		s.ends(c)
		c.CloseWrite()
	}, "eof", "closed <nil>")
	f("theirs while ours waits", func(s *stage, c *Conn) {
		c.Send([]byte("ab"))
		c.CloseWrite()
		s.ends(c)
		if c.isClosed() {
			t.Error("closed with bytes unsent")
		}
		s.takes(c, -1)
	}, "eof", "closed <nil>")
	f("ours altogether after half", func(s *stage, c *Conn) {
		c.CloseWrite()
		c.CloseAfterFlush()
		s.ends(c)
	}, "closed <nil>")
	f("none comes to the end", func(s *stage, c *Conn) {
		c.CloseWrite()
		c.CloseAfterFlush()
		s.at(3 * time.Second)
	}, "closed <nil>")
	f("both of ours while bytes wait", func(s *stage, c *Conn) {
		c.Send([]byte("ab"))
		c.CloseWrite()
		c.CloseAfterFlush()
		s.takes(c, -1)
		s.ends(c)
	}, "closed <nil>")
	f("paused input comes before", func(s *stage, c *Conn) {
		c.CloseWrite()
		c.PauseReading()
		s.receives(c, "a")
		s.ends(c)
		c.ResumeReading()
	}, "data a", "eof", "closed <nil>")
}
