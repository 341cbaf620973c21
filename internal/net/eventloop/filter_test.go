package eventloop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// brackets is a filter one can read: it puts what is sent between < and >, takes
// them off what arrives, and sends "~" at the end.
type brackets struct {
	kept     []byte
	released int
}

var errBroken = errors.New("broken")

func (f *brackets) Open(b []byte) (plain, reply []byte, err error) {
	if f.released > 0 {
		panic("used after its release")
	}
	b = append(f.kept, b...)
	f.kept = nil
	for len(b) > 0 {
		switch b[0] {
		case '<':
			end := bytes.IndexByte(b, '>')
			if end < 0 {
				f.kept = bytes.Clone(b)
				return plain, reply, nil
			}
			plain = append(plain, b[1:end]...)
			b = b[end:]
		case '?':
			reply = append(reply, '!')
		case '~':
			return plain, reply, io.EOF
		default:
			return plain, []byte("X"), errBroken
		}
		b = b[1:]
	}
	return plain, reply, nil
}

func (f *brackets) Seal(dst, b []byte) []byte {
	if f.released > 0 {
		panic("used after its release")
	}
	return append(append(append(dst, '<'), b...), '>')
}

func (f *brackets) Close(dst []byte) []byte { return append(dst, '~') }
func (f *brackets) Release()                { f.released++ }

// filtered gives a connection its filter.
func (s *stage) filtered(h Handler) (*Conn, *sock, *brackets) {
	s.t.Helper()
	c, k := s.connect(h)
	f := &brackets{}
	c.SetFilter(f, nil)
	return c, k, f
}

func TestAFilterIsBetweenSocketAndHandler(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k, f := s.filtered(h)
	if !c.Filtered() || c.Handler() != Handler(h) {
		t.Errorf("filtered %v, the handler is %T", c.Filtered(), c.Handler())
	}
	s.receives(c, "<a")
	h.wants(t)
	s.receives(c, "b><c>")
	h.wants(t, "data abc")
	s.receives(c, "?<d>?")
	h.wants(t, "data d")
	c.Write([]byte("1"))
	c.Write([]byte("2"))
	c.Send([]byte("3"))
	c.Queue([]byte("4"))
	c.Queue([]byte("5"))
	s.endTick()
	h.wants(t, "drained")
	if got := string(k.got); got != "!!<12><3><45>" {
		t.Errorf("the socket got %q", got)
	}
	other := &script{}
	c.SetHandler(other)
	s.receives(c, "<e>~")
	other.wants(t, "data e", "eof", "closed <nil>")
	if got := string(k.got); got != "!!<12><3><45>~" || f.released != 1 {
		t.Errorf("the socket got %q, %d releases", got, f.released)
	}
}

func TestAFiltersErrorEndsTheConnectionAfterItsReply(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k, f := s.filtered(h)
	s.receives(c, "<a>bad")
	h.wants(t, "data a", "closed broken")
	if string(k.got) != "X" || f.released != 1 {
		t.Errorf("the socket got %q, %d releases", k.got, f.released)
	}
}

func TestAFilteredStreamWithoutCloseIsTruncated(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{eof: func(*Conn) bool { return true }}
	c, _, _ := s.filtered(h)
	s.receives(c, "<a>")
	s.Received(c.key, nil, 0)
	h.wants(t, "data a", "closed stream truncated")

	c, _, _ = s.filtered(h)
	s.receives(c, "<a>~")
	h.wants(t, "data a", "eof")
	s.Received(c.key, nil, 0) // gone altogether
	h.wants(t, "closed <nil>")
}

func TestWhatCameBeforeTheFilterIsItsOwn(t *testing.T) {
	f := func(early string, socketEnded bool, want ...string) {
		t.Helper()
		s := newStage(t, Config{})
		h := &script{eof: func(*Conn) bool { return true }}
		before := &script{eof: func(*Conn) bool { return true }}
		c, _ := s.connect(before)
		if socketEnded {
			s.Received(c.key, nil, 0)
			before.wants(t, "eof")
		}
		c.SetHandler(h)
		c.SetFilter(&brackets{}, []byte(early))
		h.wants(t, want...)
	}
	f("", false)
	f("<a><b", false, "data a")
	f("<a>~", false, "data a", "eof")
	f("<a>~", true, "data a", "eof")
	f("<a>", true, "data a", "closed stream truncated")
	f("bad", false, "closed broken")
}

func TestRawBytesBeforeTheFilterStayRaw(t *testing.T) {
	s := newStage(t, Config{})
	h := &script{}
	c, k := s.connect(h)
	k.room = 3
	c.Send([]byte("raw bytes"))
	c.SetFilter(&brackets{}, nil)
	c.Send([]byte("sealed"))
	s.takes(c, -1)
	if got := string(k.got); got != "raw bytes<sealed>" {
		t.Errorf("the socket got %q", got)
	}
}

// Whatever is written, by whichever call, however little the socket takes at a
// time, and whatever the filter itself has to say in between: the other side
// reads it in order, then one end.
func TestFilteredOutputIsTheSameHoweverItIsTaken(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 200 {
		s := newStage(t, Config{})
		h := &script{}
		c, k, f := s.filtered(h)
		var want strings.Builder
		replies := 0
		for range 60 {
			b := bytes.Repeat([]byte{byte('a' + r.IntN(26))}, 1+r.IntN(50))
			if r.IntN(20) == 0 {
				b = bytes.Repeat(b, 2000)
			}
			if k.room < 0 && r.IntN(4) == 0 {
				k.room = r.IntN(100)
			}
			switch r.IntN(6) {
			case 0:
				c.Write(b)
			case 1:
				c.Send(b)
			case 2:
				c.Queue(b)
			case 3:
				s.receives(c, "?")
				replies++
				b = nil
			case 4:
				s.endTick()
				b = nil
			default:
				if k.owed {
					s.takes(c, []int{-1, r.IntN(20_000)}[r.IntN(2)])
				}
				b = nil
			}
			want.Write(b)
			if n := c.Unsent(); n < 0 || (n > 0) != (c.out != nil) {
				t.Fatalf("round %d: %d bytes wait, queue %v", round, n, c.out != nil)
			}
		}
		c.CloseAfterFlush()
		for i := 0; !k.shut && i < 100; i++ {
			s.endTick()
			if k.owed {
				s.takes(c, -1)
			}
		}
		got := string(k.got)
		if n := strings.Count(got, "!"); n != replies {
			t.Fatalf("round %d: %d replies of %d", round, n, replies)
		}
		if strings.Count(got, "~") != 1 || !strings.HasSuffix(got, "~") || f.released != 1 || !k.shut {
			t.Fatalf("round %d: the end is missing, repeated or early; %d releases, shut %v", round, f.released, k.shut)
		}
		if plain := strings.NewReplacer("!", "", "<", "", ">", "", "~", "").Replace(got); plain != want.String() {
			t.Fatalf("round %d: %d bytes came through, want %d", round, len(plain), want.Len())
		}
	}
}

// numbered is a filter that numbers what it seals, replies included, as one that
// encrypts does.
type numbered struct {
	brackets
	n int
}

func (f *numbered) Open(b []byte) (plain, reply []byte, err error) {
	if plain, reply, err = f.brackets.Open(b); len(reply) > 0 {
		f.n++
		reply = fmt.Appendf(nil, "%d%s", f.n, reply)
	}
	return plain, reply, err
}

func (f *numbered) Seal(dst, b []byte) []byte {
	f.n++
	return f.brackets.Seal(fmt.Appendf(dst, "%d", f.n), b)
}

func TestWhatAFilterSealsLeavesInTheOrderInWhichItWasSealed(t *testing.T) {
	f := func(name, want string, act func(s *stage, c *Conn, k *sock)) {
		t.Helper()
		s := newStage(t, Config{})
		c, k := s.connect(&script{eof: func(*Conn) bool { return true }})
		c.SetFilter(&numbered{}, nil)
		act(s, c, k)
		s.endTick()
		wantText(t, k, want)
	}
	f("written in the same tick", "1<a>2!3<b>", func(s *stage, c *Conn, _ *sock) {
		c.Write([]byte("a"))
		s.receives(c, "?")
		c.Write([]byte("b"))
	})
	f("the end is near, and bytes wait", "1<a>2!3<b>~", func(s *stage, c *Conn, k *sock) {
		k.room = 1
		c.Send([]byte("a"))
		c.Send([]byte("b"))
		c.CloseWrite()
		s.receives(c, "?")
		s.takes(c, -1)
	})
	f("their end comes with it", "1!2<a>", func(s *stage, c *Conn, _ *sock) {
		s.receives(c, "?~")
		c.Send([]byte("a"))
	})
}

// A slow reader holds at most one sealed piece; the rest is the shared message.
func TestAStalledFilterSealsNoMoreThanAPiece(t *testing.T) {
	s := newStage(t, Config{})
	c, k, _ := s.filtered(&script{})
	k.room = 10
	shared := bytes.Repeat([]byte("m"), 1<<20)
	c.Send(shared)
	c.Send(shared)
	if n := len(c.out.sealed); n > sealLimit+2 {
		t.Errorf("%d bytes are sealed ahead", n)
	}
	if last := c.out.segs[len(c.out.segs)-1]; &last[0] != &shared[0] {
		t.Error("the message was copied")
	}
}

func TestAFiltersCloseIsSentOnceAndLast(t *testing.T) {
	f := func(name, want string, act func(s *stage, c *Conn, k *sock)) {
		t.Helper()
		s := newStage(t, Config{})
		c, k, b := s.filtered(&script{eof: func(*Conn) bool { return true }})
		s.at(ms, func() { act(s, c, k) })
		wantText(t, k, want)
		if !k.closed || b.released != 1 {
			t.Errorf("%s: closed %v, released %d times", name, k.closed, b.released)
		}
	}
	end := func(s *stage, c *Conn) { s.receives(c, "~") }
	f("half, then theirs", "<a>~", func(s *stage, c *Conn, _ *sock) {
		c.Send([]byte("a"))
		c.CloseWrite()
		s.receives(c, "<b>?") // whose reply is not sent any more
		end(s, c)
	})
	f("theirs, then half", "<a>~", func(s *stage, c *Conn, _ *sock) {
		end(s, c)
		c.Send([]byte("a"))
		c.CloseWrite()
	})
	f("half while bytes wait", "<a>~", func(s *stage, c *Conn, k *sock) {
		k.room = 1
		c.Send([]byte("a"))
		c.CloseWrite()
		end(s, c)
		s.takes(c, -1)
	})
	f("an end that waits itself", "<a>~", func(s *stage, c *Conn, k *sock) {
		k.room = 3
		c.Send([]byte("a"))
		c.CloseWrite()
		s.takes(c, -1)
		end(s, c)
	})
	f("half, then all", "<a>~", func(s *stage, c *Conn, _ *sock) {
		c.Send([]byte("a"))
		c.CloseWrite()
		c.CloseAfterFlush()
		s.Received(c.key, nil, 0)
	})
	f("half, then at once", "~", func(_ *stage, c *Conn, _ *sock) {
		c.CloseWrite()
		c.Close(nil)
	})
}
