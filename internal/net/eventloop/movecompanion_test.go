package eventloop

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/weir-gateway/weir/internal/app/takeover"
)

// relay is one side of two connections that carry each other's bytes: the client's, which was accepted, and the one that was
// dialed for it.
type relay struct {
	funcs
	c     *Conn
	other *relay
	moved chan struct{} // the client's; closed when both have left
}

func newRelay() (client, backend *relay) {
	client, backend = &relay{moved: make(chan struct{})}, &relay{}
	client.other, backend.other = backend, client
	return client, backend
}

func (r *relay) Data(_ *Conn, b []byte) int {
	r.other.c.Write(b)
	return len(b)
}

func (r *relay) Connected(*Conn) {}

func (r *relay) Principal() *Conn {
	if r.moved != nil {
		return nil
	}
	return r.other.c
}

func (r *relay) AppendState(_ *Conn, dst takeover.State) (takeover.State, uint8) {
	s, ok := CompanionState(r.other.c)
	if !ok {
		return dst, 0
	}
	return dst.MustBytes(1, s), takeover.KindTunnel
}

func (r *relay) Moved(*Conn) {
	if r.moved != nil {
		LeaveCompanion(r.other.c)
		close(r.moved)
	}
}

// relaying returns both ends of a relay of g.
func relaying(t *testing.T, g *real, backends net.Listener) (client, backend net.Conn) {
	t.Helper()
	client = g.dial()
	if _, err := io.WriteString(client, "hello\n"); err != nil {
		t.Fatal(err)
	}
	backend, err := backends.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	line(t, backend, "hi\n", "hello\n")
	line(t, client, "", "hi\n")
	return client, backend
}

// A connection moves with the one that was opened for it, and with what both have received, or neither moves.
func TestEnginesMoveCompanions(t *testing.T) {
	t.Parallel()
	backends, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer backends.Close()
	to := Endpoint{Addr: netip.MustParseAddrPort(backends.Addr().String())}
	accept := func(c *Conn) Handler {
		client, backend := newRelay()
		client.c, backend.c = c, c.Loop().Dial(to, DialOptions{}, backend)
		return client
	}
	eachEngine(t, Config{Loops: 1}, accept, func(t *testing.T, g *real) {
		clients, peers := map[string]net.Conn{}, map[string]net.Conn{}
		for range 2 {
			client, backend := relaying(t, g, backends)
			name := client.LocalAddr().String()
			clients[name], peers[name] = client, backend
		}
		g.onLoops(func(l *Loop) {
			_, err := l.SendSockets(0, func(_ int, fds []int) (int, error) { return 0, fmt.Errorf("%d sockets", len(fds)) })
			if err == nil || err.Error() != "4 sockets" {
				t.Errorf("sent ahead: %v, want 4 sockets", err)
			}
		})
		pause, err := g.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name := range clients { // not read here
			line(t, clients[name], "late\n", "")
			line(t, peers[name], "late, too\n", "")
		}
		other, s := otherGroup(t, g.Engine()), &sent{t: t}
		var left *Conn
		pause.Each(func(l *Loop) {
			e, err := l.Export(true, s.send)
			if err != nil || e.Len() != 2 || len(s.list) != 2 {
				t.Errorf("%d connections exported, %v; want 2", e.Len(), err)
				return
			}
			left = e.conns[0]
			e.Keep(map[int]bool{1: true})
			e.Wipe()
			e.Leave()
			if e, err := l.Export(false, s.send); err != nil || e.Len() != 0 {
				t.Errorf("%d connections that were refused are exported, %v", e.Len(), err)
			}
		})
		pause.Resume()
		if left == nil {
			return
		}
		for _, fd := range s.list[1].Files {
			_ = syscall.Close(fd)
		}
		name := left.Peer().String()
		other.onLoops(func(l *Loop) { arriveRelay(t, l, s.list[0]) })
		for n := range clients {
			line(t, peers[n], "", "late\n")
			line(t, clients[n], "again\n", "late, too\n")
			line(t, peers[n], "and back\n", "again\n")
			line(t, clients[n], "", "and back\n")
		}
		if old, fresh := g.Loops()[0].Stats(), other.Loops()[0].Stats(); old.Moved != 2 || fresh.Arrived != 2 || clients[name] == nil {
			t.Errorf("%d moved, %d arrived; want 2, of %s", old.Moved, fresh.Arrived, name)
		}
	})
}

// arriveRelay has l take a client's connection, whose record has its backend's.
func arriveRelay(t *testing.T, l *Loop, r takeover.Record) {
	m, err := Import(r.State)
	if err != nil || len(r.Files) != 2 {
		t.Errorf("%d descriptors, %v; want 2", len(r.Files), err)
		return
	}
	var companion *Moving
	err = m.State.Read(func(f takeover.Field) (_ bool, err error) {
		companion, err = ImportCompanion(takeover.State(f.Bytes))
		return true, err
	})
	if err != nil {
		t.Error(err)
		return
	}
	fds := []int32{int32(r.Files[0]), int32(r.Files[1])}
	if _, err := l.Receive(fds); err != nil {
		t.Error(err)
		return
	}
	client, backend := newRelay()
	err = l.Arrive(fds[0], m, nil, func(c *Conn) (Handler, error) {
		client.c = c
		c.SetHandler(client)
		return client, l.Arrive(fds[1], companion, nil, func(c *Conn) (Handler, error) {
			backend.c = c
			return backend, nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}
