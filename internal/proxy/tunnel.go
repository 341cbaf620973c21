package proxy

import (
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A tunnel is two connections that carry another protocol than HTTP: what one side
// sends goes to the other as it is.
type tunnel struct {
	loopState *LoopState
	pool      *pool   // nil: it came from another process, and its peer is not known in this one
	sides     [2]side // the client's, the peer's
	deadline  int64   // of silence; 0: none
	idle      int64
	over      bool
	// frames follow a WebSocket, from the client and from the peer; nil: it is none.
	frames *[2]frames
	// When t leaves by itself, and when at the latest; 0: not. leaving: it waits for the
	// end of a frame of the peer's.
	leaveAt, cutAt int64
	leaving        bool
	// What is reported to the cluster at its end, as far as pool is set.
	cluster  *upstream.Cluster
	peer     *upstream.Peer
	outcome  upstream.Outcome
	identity Identity // Call's
	// from is where it came from, if another process opened it.
	from origin
}

// A side is the handler of one of the two.
type side struct {
	t      *tunnel
	c      *eventloop.Conn
	other  *side
	paused bool
}

var _ eventloop.Handler = (*side)(nil)

// upgrade turns x, answered with 101, into a tunnel.
func (u *upConn) upgrade(x *Exchange, res *http1.Response) {
	now := u.loopState.loop.Now()
	x.status, x.firstByte, x.answered, x.headed = 101, now, true, true
	x.Cluster.Head(x.peer, x.began, now, 101)
	client := x.sink.Switch(x, res)
	if u.x != x {
		return // the client went, and canceled
	}
	if client == nil || client.Closing() {
		x.leave(upstream.Canceled)
		x.loopState.recycle(x)
		return
	}
	x.tally.codes[1].Add(1)
	p := u.loopState.proxy
	t := &tunnel{loopState: u.loopState, pool: u.pool, cluster: x.Cluster, peer: x.peer, outcome: x.outcome(upstream.OK),
		idle: int64(p.cfg.TunnelIdle), identity: x.Identity}
	x.peer = nil // Done is the tunnel's now
	u.free(x)
	u.closed = true // its end is the tunnel's to count
	if http1.EqualFold(res.Upgrade, "websocket") {
		t.frames = &[2]frames{}
	}
	a, b := &t.sides[0], &t.sides[1]
	*a, *b = side{t: t, c: client, other: b}, side{t: t, c: u.c, other: a}
	p.upgraded.Add(1)
	u.c.SetHandler(b)
	u.c.SetTimer(0)
	client.SetTimer(0)
	x.loopState.recycle(x)
	t.alive()
	if t.loopState.drainEnd > 0 {
		t.leaveWithin()
	}
	client.SetHandler(a)
	client.ResumeReading()
	client.Redeliver()
}

// alive postpones the end for silence.
func (t *tunnel) alive() {
	if t.idle > 0 {
		first := t.deadline == 0
		t.deadline = t.loopState.loop.Now() + t.idle
		if first {
			t.arm(t.loopState.loop.Now())
		}
	}
}

// Data implements eventloop.Handler.
func (s *side) Data(c *eventloop.Conn, b []byte) int {
	t := s.t
	t.alive()
	peers := s == &t.sides[1]
	if peers {
		t.outcome.Bytes += int64(len(b))
	}
	if t.frames != nil && !peers {
		t.frames[0].advance(b, false)
	} else if t.frames != nil {
		n := t.frames[1].advance(b, t.leaving)
		if f := &t.frames[1]; t.leaving && f.between() {
			s.other.c.Write(b[:n])
			t.leave()
			return len(b)
		}
	}
	s.other.c.Write(b)
	if s.other.c.Unsent() > s.t.loopState.proxy.cfg.Buffer {
		s.paused = true
		c.PauseReading()
	}
	return len(b)
}

// EndOfStream implements eventloop.Handler: one direction is over, the other may
// continue.
func (s *side) EndOfStream(*eventloop.Conn) bool {
	s.other.c.CloseWrite()
	return true
}

// Drained implements eventloop.Handler.
func (s *side) Drained(*eventloop.Conn) {
	if s.other.paused {
		s.other.paused = false
		s.other.c.ResumeReading()
	}
}

// Timer implements eventloop.Handler.
func (s *side) Timer(c *eventloop.Conn, now int64) {
	t := s.t
	switch {
	case c.Closing():
	case t.cutAt > 0 && now >= t.cutAt, t.deadline > 0 && now >= t.deadline:
		t.end()
	case t.leaveAt > 0 && now >= t.leaveAt:
		t.leave()
		fallthrough
	default:
		t.arm(now)
	}
}

// Closed implements eventloop.Handler: when one side is gone the other ends, after
// what it was sent; or is cut too, if that was.
func (s *side) Closed(_ *eventloop.Conn, err error) {
	t := s.t
	if t.over {
		return
	}
	if err != nil && s == &t.sides[0] {
		t.outcome.Kind = upstream.Canceled
	}
	if t.finish(); err != nil {
		s.other.c.Abort(err)
	} else {
		s.other.c.CloseAfterFlush()
	}
}

// finish reports t's end to its cluster.
func (t *tunnel) finish() {
	t.outcome.End = t.loopState.loop.Now()
	if t.pool != nil {
		t.cluster.Done(t.peer, t.outcome)
	}
	t.uncount()
}

// uncount takes t, which is over, out of the tunnels and connections that are open.
func (t *tunnel) uncount() {
	t.over = true
	t.loopState.proxy.upgraded.Add(-1)
	if t.pool != nil {
		t.pool.gone()
	} else {
		t.loopState.gauges.open.Add(-1)
	}
}
