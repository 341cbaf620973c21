package eventloop

import (
	"bytes"
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
)

// mover echoes lines, and says whose they are. A half line waits in the connection.
type mover struct {
	funcs
	name   string
	stays  bool
	moved  chan struct{}
	closes chan error
}

func (m *mover) Data(c *Conn, b []byte) int {
	i := bytes.LastIndexByte(b, '\n') + 1
	if i > 0 {
		c.Write(append([]byte(m.name+":"), b[:i]...))
	}
	return i
}

func (m *mover) Closed(_ *Conn, err error) { m.closes <- err }

func (m *mover) AppendState(_ *Conn, dst takeover.State) (takeover.State, uint8) {
	if m.stays {
		return dst, 0
	}
	return dst.String(1, "a mover's"), 7
}

func (m *mover) Moved(*Conn) { close(m.moved) }

// sent is what Export gave to another process: here it is kept.
type sent struct {
	list  []takeover.Record
	t     *testing.T
	first int
}

func (s *sent) send(n int, body []byte, fds []int) (int, error) {
	var own []int
	for _, fd := range fds {
		d, err := syscall.Dup(fd) // the kernel does that, too
		if err != nil {
			s.t.Error(err)
		}
		own = append(own, d)
	}
	f := takeover.Frame{Type: takeover.Conns, Body: bytes.Clone(body), Files: own}
	list, err := f.Records()
	if err != nil {
		s.t.Error(err)
	}
	if len(list) != n {
		s.t.Errorf("%d records, said to be %d", len(list), n)
	}
	first := s.first
	s.first += n
	s.list = append(s.list, list...)
	return first, nil
}

func line(t *testing.T, c net.Conn, send, want string) {
	t.Helper()
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("after %q: %q, %v; want %q", send, b, err, want)
	}
}

func newMover(*Conn) Handler {
	return &mover{name: "old", moved: make(chan struct{}), closes: make(chan error, 1)}
}

// A connection continues in another group with what came of it and was not consumed, and what
// came while the loops were stopped; those that are kept continue where they are.
func TestEnginesMoveConnections(t *testing.T) {
	eachEngine(t, Config{Loops: 1}, newMover, func(t *testing.T, g *real) {
		a, b := g.dial(), g.dial()
		line(t, a, "1\nhal", "old:1\n")
		line(t, b, "2\n", "old:2\n")
		var conns []*Conn
		g.onLoops(func(l *Loop) {
			l.Conns(func(c *Conn) bool { conns = append(conns, c); return true })
		})
		pause, err := g.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(a, "f\n3\n"); err != nil { // it is not read here
			t.Fatal(err)
		}
		other := otherGroup(t, g.Engine())
		s := &sent{t: t}
		pause.Each(func(l *Loop) {
			e, err := l.Export(true, s.send)
			if err != nil || e.Len() != 2 || e.Bytes() == 0 {
				t.Errorf("%d connections exported, %d bytes, %v", e.Len(), e.Bytes(), err)
			}
			e.Keep(map[int]bool{1: true})
			e.Wipe()
			e.Leave()
		})
		pause.Resume()
		<-conns[0].Handler().(*mover).moved
		line(t, b, "4\n", "old:4\n")
		_ = syscall.Close(s.list[1].Files[0])
		m, err := Import(s.list[0].State)
		if err != nil || m.Kind != 7 || len(m.State) == 0 {
			t.Fatalf("%+v, %v", m, err)
		}
		other.onLoops(func(l *Loop) {
			err := l.arrive(s.list[0].Files[0], m, nil, func(c *Conn) (Handler, error) {
				if c.Peer().String() != a.LocalAddr().String() {
					t.Errorf("peer %v, want %v", c.Peer(), a.LocalAddr())
				}
				return &mover{name: "new", moved: make(chan struct{}), closes: make(chan error, 1)}, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		line(t, a, "", "new:half\n3\n")
		line(t, a, "5\n", "new:5\n")
		if old, fresh := g.Loops()[0].Stats(), other.Loops()[0].Stats(); old.Moved != 1 || fresh.Arrived != 1 {
			t.Errorf("%d moved, %d arrived", old.Moved, fresh.Arrived)
		}
	})
}

// otherGroup is what another process would have.
func otherGroup(t *testing.T, engine string) *real {
	t.Helper()
	g, err := New(Config{Engine: engine, Loops: 1}, newMover, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return &real{Group: g, t: t}
}

// What waits for a slow reader moves with its connection.
func TestEnginesMoveWhatWaitsForTheSocket(t *testing.T) {
	eachEngine(t, Config{Loops: 1}, newMover, func(t *testing.T, g *real) {
		c := g.dial()
		line(t, c, "1\n", "old:1\n")
		want := bytes.Repeat([]byte("0123456789abcdef"), 12<<10) // 192 KiB
		total := 0
		g.onLoops(func(l *Loop) {
			l.Conns(func(c *Conn) bool {
				for c.Unsent() == 0 { // until the socket is full
					c.Send(want)
					total += len(want)
				}
				return true
			})
		})
		s := &sent{t: t}
		moved := 0
		for end := time.Now().Add(10 * time.Second); moved == 0 && time.Now().Before(end); {
			if g.Engine() == engineUring { // a send of the ring has to end first: the client takes some
				n, err := io.ReadFull(c, make([]byte, len(want)))
				if total -= n; err != nil {
					t.Fatal(err)
				}
			}
			g.onLoops(func(l *Loop) {
				e, err := l.Export(false, s.send)
				if err != nil {
					t.Error(err)
				}
				moved = e.Len()
				e.Wipe()
				e.Leave()
			})
			if total <= len(want) {
				break
			}
		}
		if moved == 0 {
			t.Log("the ring had sent all of it before it could be moved: nothing is left to look at")
			return
		}
		m, err := Import(s.list[0].State)
		if err != nil {
			t.Fatal(err)
		}
		other := otherGroup(t, g.Engine())
		other.onLoops(func(l *Loop) {
			if err := l.arrive(s.list[0].Files[0], m, nil, func(c *Conn) (Handler, error) { return newMover(c), nil }); err != nil {
				t.Error(err)
			}
		})
		rest := make([]byte, total)
		if _, err := io.ReadFull(c, rest); err != nil {
			t.Fatal(err)
		}
		for i := range rest {
			if rest[i] != want[i%16] {
				t.Fatalf("byte %d of %d is %q", i, total, rest[i])
			}
		}
	})
}

// arrive is Receive and Arrive of one connection.
func (l *Loop) arrive(fd int, m *Moving, filter Filter, handler func(*Conn) (Handler, error)) error {
	fds := []int32{int32(fd)}
	if _, err := l.Receive(fds); err != nil {
		return err
	}
	return l.Arrive(fds[0], m, filter, handler)
}

// A connection that cannot be had any more, and a loop that has ended, take nothing with them.
func TestArriveWhereItCannot(t *testing.T) {
	g, err := New(Config{Loops: 1}, newMover, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Fatal(err)
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fds[1])
	if err := g.Loops()[0].arrive(fds[0], &Moving{}, nil, nil); err == nil {
		t.Error("a loop that has ended takes a connection")
	}
	if n, err := syscall.Read(fds[1], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the socket is open still: %d, %v", n, err)
	}
	if _, err := g.Pause(t.Context()); err == nil {
		t.Error("loops that have ended are paused")
	}
}

func FuzzImport(f *testing.F) {
	f.Add([]byte(takeover.State{}.MustUint(connKind, 3).Bytes(connIP, make([]byte, 16)).MustBytes(connInput, []byte("x")).Uint(connLoop, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Import(takeover.State(b)); err == nil && (m.Kind == 0 || m.Loop < 0 || m.Timer < 0 || m.age < 0) {
			t.Fatalf("%x: %+v", b, m)
		}
	})
}
