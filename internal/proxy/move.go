package proxy

import (
	"fmt"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// Moving to another process: a tunnel is the state of its client's connection, which has the backend's
// connection in it, so that both move or neither does.

// The fields of a tunnel's state. Their meaning does not change; see takeover.State.
const (
	tunnelBackend    = iota + 1 // the backend's connection, eventloop's state
	tunnelMarks                 // bits: it is a WebSocket, the client is not read, the backend is not read
	tunnelFromClient            // of a WebSocket: a framesState
	tunnelFromBackend
	tunnelSilence  // nanoseconds since something came, if that is limited
	tunnelIdentity // whose it is
	tunnelCluster  // its name
	tunnelPeer     // upstream.Address, as it reads
	tunnelBytes    // that came from the backend
)

const (
	markWebSocket = 1 << iota
	markClientPaused
	markBackendPaused
)

// The fields of where a direction of a WebSocket is.
const (
	framesLeft = iota + 1
	framesHead
	framesClosing
)

// An origin is what is kept of a tunnel's peer by name: for the next process.
type origin struct{ cluster, peer string }

var (
	_ eventloop.Mover     = (*side)(nil)
	_ eventloop.Companion = (*side)(nil)
)

// MoveTunnels sets whether tunnels move: only to a process that knows what they are. Any goroutine.
func (p *Proxy) MoveTunnels(on bool) { p.moving.Store(on) }

// Principal implements eventloop.Companion for the backend's side.
func (s *side) Principal() *eventloop.Conn {
	t := s.t
	if s != &t.sides[1] || t.over || t.leaving || !t.loopState.proxy.moving.Load() {
		return nil
	}
	return t.sides[0].c
}

// AppendState implements eventloop.Mover for the client's side.
func (s *side) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	t := s.t
	if t.sides[1].Principal() == nil || s != &t.sides[0] {
		return dst, 0
	}
	b := dst
	if t.identity != nil {
		id, ok := t.identity.AppendState(nil)
		if !ok {
			return dst, 0
		}
		b = b.MustBytes(tunnelIdentity, id)
	}
	backend, ok := eventloop.CompanionState(t.sides[1].c)
	if !ok {
		return dst, 0
	}
	marks := uint64(0)
	if f := t.frames; f != nil {
		marks |= markWebSocket
		b = b.MustBytes(tunnelFromClient, f[0].state()).MustBytes(tunnelFromBackend, f[1].state())
	}
	if t.sides[0].paused {
		marks |= markClientPaused
	}
	if t.sides[1].paused {
		marks |= markBackendPaused
	}
	if t.idle > 0 {
		b = b.Uint(tunnelSilence, uint64(max(t.loopState.loop.Now()+t.idle-t.deadline, 0)))
	}
	from := t.from
	if t.pool != nil {
		from = origin{t.cluster.Name(), t.peer.Address().String()}
	}
	b = b.String(tunnelCluster, from.cluster).String(tunnelPeer, from.peer).Uint(tunnelBytes, uint64(t.outcome.Bytes))
	return b.MustUint(tunnelMarks, marks).MustBytes(tunnelBackend, backend), takeover.KindTunnel
}

// Moved implements eventloop.Mover: the tunnel is open in another process, which counts its end.
func (s *side) Moved(*eventloop.Conn) {
	t := s.t
	if s != &t.sides[0] || t.over {
		return
	}
	if t.pool != nil {
		t.peer.Moved()
	}
	t.uncount()
	eventloop.LeaveCompanion(t.sides[1].c)
}

func (f *frames) state() takeover.State {
	s := takeover.State{}.MustUint(framesLeft, f.left).MustBytes(framesHead, f.head[:f.n])
	if f.closing {
		s = s.MustUint(framesClosing, 1)
	}
	return s
}

// read reads what state has written.
func (f *frames) read(s takeover.State) error {
	var head []byte
	if err := s.Into([]any{framesLeft: &f.left, framesHead: &head, framesClosing: &f.closing}); err != nil {
		return err
	}
	if len(head) > 0 && f.left > 0 || len(head) >= len(f.head) {
		return fmt.Errorf("%w: %d bytes of a frame's head, and of a frame %d", takeover.ErrState, len(head), f.left)
	}
	for _, b := range head {
		f.head[f.n] = b
		f.n++
		f.headed()
	}
	if int(f.n) != len(head) {
		return fmt.Errorf("%w: a frame's head in %d bytes is complete", takeover.ErrState, len(head))
	}
	return nil
}

// An Arriving is a tunnel that comes from another process, read and not yet open.
type Arriving struct {
	// Backend is the backend's connection.
	Backend *eventloop.Moving

	filter   eventloop.Filter // of the backend's connection; nil: plaintext
	frames   *[2]frames
	marks    uint64
	silence  int64
	bytes    int64
	identity Identity
	from     origin
}

// ReadState reads the state of a tunnel that belongs to the loop of that number. identity reads that of an Identity: its
// error reports that the client may not have the tunnel here. Any goroutine.
func (p *Proxy) ReadState(s takeover.State, loop int, identity func(takeover.State) (Identity, error)) (*Arriving, error) {
	a := &Arriving{}
	var frames [2]frames
	var silence, bytes uint64
	err := s.Into([]any{
		tunnelBackend: func(f takeover.Field) (err error) {
			a.Backend, err = eventloop.ImportCompanion(takeover.State(f.Bytes))
			return err
		},
		tunnelMarks:       &a.marks,
		tunnelFromClient:  func(f takeover.Field) error { return frames[0].read(takeover.State(f.Bytes)) },
		tunnelFromBackend: func(f takeover.Field) error { return frames[1].read(takeover.State(f.Bytes)) },
		tunnelSilence:     &silence,
		tunnelIdentity: func(f takeover.Field) (err error) {
			a.identity, err = identity(takeover.State(f.Bytes))
			return err
		},
		tunnelCluster: &a.from.cluster, tunnelPeer: &a.from.peer, tunnelBytes: &bytes,
	})
	if err != nil {
		return nil, err
	}
	const longest = 1 << 62
	a.silence, a.bytes = int64(min(silence, longest)), int64(min(bytes, longest))
	if a.Backend == nil || a.marks >= 1<<3 {
		return nil, fmt.Errorf("%w: a tunnel with marks %#x, or without a backend", takeover.ErrState, a.marks)
	}
	if a.marks&markWebSocket != 0 {
		a.frames = &frames
	}
	if len(a.Backend.Filter) > 0 {
		a.filter, err = p.tls.Restore(loop, a.Backend.Filter)
	}
	return a, err
}

// Arrive makes c the client's side of the tunnel a. fd is the backend's socket, which Receive returned on c's loop, and
// is the tunnel's from now on. The tunnel is counted to its cluster and peer where clusters knows these; as in a reload it
// stays open where not. Loop only.
func (p *Proxy) Arrive(c *eventloop.Conn, a *Arriving, fd int32, clusters func(name string) *upstream.Cluster) (eventloop.Handler, error) {
	l := p.LoopState(c.Loop())
	if a.identity != nil && a.identity.Revoked() { // since it was read
		l.loop.Discard(fd)
		return nil, errRevoked
	}
	now := l.loop.Now()
	t := &tunnel{loopState: l, frames: a.frames, identity: a.identity, from: a.from, idle: int64(p.cfg.TunnelIdle)}
	t.outcome = upstream.Outcome{Status: 101, Start: now, FirstByte: now, Bytes: a.bytes, Headed: true}
	client, backend := &t.sides[0], &t.sides[1]
	*client = side{t: t, c: c, other: backend, paused: a.marks&markClientPaused != 0}
	*backend = side{t: t, other: client, paused: a.marks&markBackendPaused != 0}
	if t.cluster = clusters(a.from.cluster); t.cluster != nil {
		if t.peer = upstream.Arrived(t.cluster, a.from.peer); t.peer != nil {
			t.pool = l.poolOf(poolKey{peer: t.peer})
			t.pool.open++
		}
	}
	l.gauges.open.Add(1)
	p.upgraded.Add(1)
	c.SetHandler(client)
	err := l.loop.Arrive(fd, a.Backend, a.filter, func(b *eventloop.Conn) (eventloop.Handler, error) {
		backend.c = b
		t.resume(a.silence)
		return backend, nil
	})
	if err != nil {
		t.finish()
		return nil, fmt.Errorf("the backend's connection: %w", err)
	}
	return client, nil
}

// resume sets the deadlines of a tunnel that was silent for that long.
func (t *tunnel) resume(silence int64) {
	now := t.loopState.loop.Now()
	if t.idle > 0 {
		t.deadline = now + max(t.idle-silence, 1)
		t.arm(now)
	}
	if t.loopState.drainEnd > 0 {
		t.leaveWithin()
	}
}
