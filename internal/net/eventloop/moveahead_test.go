package eventloop

import (
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/weir-gateway/weir/internal/app/takeover"
)

// Sockets go ahead while their connections are served; a state names its socket then, and comes without a
// descriptor. A connection that is made later comes with one, and one that ends meanwhile ends for its client.
func TestEnginesSendSocketsAhead(t *testing.T) {
	eachEngine(t, Config{Loops: 1}, newMover, func(t *testing.T, g *real) {
		a, b, ends := g.dial(), g.dial(), g.dial()
		for _, c := range []net.Conn{a, b, ends} {
			line(t, c, "1\n", "old:1\n")
		}
		var files []int32
		send := func(loop int, fds []int) (int, error) {
			first := len(files)
			for _, fd := range fds {
				d, err := syscall.Dup(fd)
				if err != nil {
					t.Error(err)
				}
				files = append(files, int32(d))
			}
			if loop != 0 {
				t.Errorf("sockets of loop %d", loop)
			}
			return first, nil
		}
		g.onLoops(func(l *Loop) {
			if next, err := l.SendSockets(0, send); err != nil || next >= 0 || len(files) != 3 {
				t.Errorf("%d sockets sent, then %d, %v; want 3 and the end", len(files), next, err)
			}
			if _, err := l.SendSockets(0, send); err != nil || len(files) != 3 {
				t.Errorf("%d sockets sent, %v: one that was sent is sent again", len(files), err)
			}
		})
		other := otherGroup(t, g.Engine())
		other.onLoops(func(l *Loop) {
			if n, err := l.Receive(files); n != 3 || err != nil {
				t.Errorf("%d sockets received, %v", n, err)
			}
		})
		line(t, a, "2\n", "old:2\n") // it is served meanwhile
		g.onLoops(func(l *Loop) {
			l.Conns(func(c *Conn) bool {
				if c.Peer().String() == ends.LocalAddr().String() {
					c.Close(nil)
				}
				return true
			})
		})
		if rest, err := io.ReadAll(ends); err != nil || len(rest) > 0 {
			t.Errorf("the connection that was closed: %q, %v", rest, err)
		}
		late := g.dial()
		line(t, late, "1\n", "old:1\n")
		s := &sent{t: t}
		pause, err := g.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{a, b, late} {
			if _, err := io.WriteString(c, "3\n"); err != nil { // it is not read here
				t.Fatal(err)
			}
		}
		pause.Each(func(l *Loop) {
			e, err := l.Export(true, s.send)
			if err != nil || e.Len() != 3 {
				t.Errorf("%d connections exported, %v; want 3", e.Len(), err)
			}
			e.Wipe()
			e.Leave()
		})
		pause.Resume()
		other.onLoops(func(l *Loop) {
			taken := map[int]bool{}
			for _, r := range s.list {
				taken[arriveAhead(t, l, r, files)-1] = true
			}
			for i, fd := range files {
				if !taken[i] {
					l.Discard(fd)
				}
			}
		})
		for _, c := range []net.Conn{a, b, late} {
			line(t, c, "", "new:3\n")
			line(t, c, "4\n", "new:4\n")
		}
	})
}

// arriveAhead has l take the connection of r, whose socket is one of files or comes with it, and returns the number of
// the socket, plus 1.
func arriveAhead(t *testing.T, l *Loop, r takeover.Record, files []int32) int {
	m, err := Import(r.State)
	if err != nil {
		t.Error(err)
		return 0
	}
	if (m.Socket == 0) != (len(r.Files) == 1) || m.Socket > len(files) {
		t.Errorf("socket %d of %d, with %d descriptors", m.Socket, len(files), len(r.Files))
		return 0
	}
	handler := func(*Conn) (Handler, error) {
		return &mover{name: "new", moved: make(chan struct{}), closes: make(chan error, 1)}, nil
	}
	if m.Socket == 0 {
		err = l.arrive(r.Files[0], m, nil, handler)
	} else {
		err = l.Arrive(files[m.Socket-1], m, nil, handler)
	}
	if err != nil {
		t.Error(err)
	}
	return m.Socket
}

// What is sent ahead and does not leave is the loop's alone again.
func TestEnginesKeepSocketsThatWereSent(t *testing.T) {
	eachEngine(t, Config{Loops: 1}, newMover, func(t *testing.T, g *real) {
		c := g.dial()
		line(t, c, "1\n", "old:1\n")
		g.onLoops(func(l *Loop) {
			if _, err := l.SendSockets(0, func(int, []int) (int, error) { return 0, nil }); err != nil {
				t.Error(err)
			}
			l.ForgetSockets()
		})
		s := &sent{t: t}
		pause, err := g.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pause.Each(func(l *Loop) {
			e, err := l.Export(true, s.send)
			if err != nil {
				t.Error(err)
			}
			e.Keep(nil)
		})
		pause.Resume()
		if len(s.list) != 1 || len(s.list[0].Files) != 1 {
			t.Fatalf("%+v: want a connection with its descriptor", s.list)
		}
		line(t, c, "2\n", "old:2\n")
		_ = syscall.Close(s.list[0].Files[0])
	})
}
