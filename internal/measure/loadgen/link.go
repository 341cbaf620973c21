package loadgen

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A wire is what a link's bytes go through: an eventloop.Conn, or what
// replaces it where there is TLS. Its methods are for the loop of its shard.
type wire interface {
	Write(b []byte)
	Close(err error)
	CloseAfterFlush()
	SetTimer(d int64)
}

var _ wire = (*eventloop.Conn)(nil)

// An endpoint is a connection of the load: a link and the protocol on it. The Conn
// that its Connector methods get may be nil; link.w is what it writes to.
type endpoint interface {
	eventloop.Connector
	base() *link
}

type linkState uint8

const (
	down linkState = iota
	connecting
	up
	leaving // open until what was written is sent
)

// A link is a connection's life: it is opened, ends, and may be opened
// again. It belongs to its shard's loop.
type link struct {
	// Fixed.
	s   *shard
	num int32

	w           wire
	began       int64
	state       linkState
	fails       uint8
	retiring    bool
	established bool // at least once
	why         error
}

// leave ends l once what was written is sent; why is what its end counts as.
func (l *link) leave(why error) {
	if l.state == up {
		l.state = leaving
	}
	l.why = why
	l.w.CloseAfterFlush()
}

func (l *link) base() *link { return l }

// EndOfStream implements eventloop.Handler.
func (l *link) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (l *link) Drained(*eventloop.Conn) {}

// Reasons for this side to end a link.
var (
	errTimeout  = errors.New("timeout")
	errRetired  = errors.New("no longer needed")
	errMismatch = errors.New("another message came back than was sent")
)

// open starts to connect. On the loop.
func (s *shard) openLink(h endpoint) {
	l := h.base()
	if l.state != down || l.retiring || s.g.closing.Load() {
		s.g.dialer.opened()
		return
	}
	l.state = connecting
	l.began = s.touch()
	l.w = s.g.dial(s, h)
	l.w.SetTimer(int64(s.g.spec.Timeout))
}

// established notes that h's handshakes are done.
func (s *shard) established(h endpoint) {
	l := h.base()
	now := s.touch()
	s.account(now)
	s.g.dialer.opened()
	l.state, l.fails = up, 0
	s.open++
	record(&s.rec.Connect, now-l.began)
	_, stream := h.(*stream)
	if l.established {
		if stream {
			s.rec.delivery.Reconnects++
		} else {
			s.rec.Reconnects++
		}
	} else {
		l.established = true
		s.g.arrived(nil)
	}
	if h, ok := h.(sender); ok {
		l.w.SetTimer(0)
		h.carrier().armed = false
		s.free.offer(h)
		s.serve()
	}
}

// gone reports that h's connection has ended. It returns the state it was in. again
// says that it shall be opened again, after a wait of at least delay.
func (s *shard) gone(h endpoint, err error, again bool, delay time.Duration) {
	l := h.base()
	was := l.state
	now := s.touch()
	if was >= up {
		s.account(now)
		s.open--
	}
	l.state, l.w, l.why = down, nil, nil
	if was == connecting {
		s.g.dialer.opened()
	}
	if s.g.closing.Load() || l.retiring {
		return
	}
	if was == connecting {
		if !l.established && s.g.arrived(fmt.Errorf("connect %s: %w", s.g.target.address, explain(err))) {
			return // Connect gives up
		}
		s.rec.fail("connect: " + reason(err))
		s.sum.errors++
		l.fails = min(l.fails+1, 8)
		delay = max(delay, time.Duration(25<<l.fails)*time.Millisecond)
		if _, ok := h.(*stream); ok && !s.g.spec.Reconnect {
			again = false
		}
	}
	if again {
		s.g.dialer.add(h, now+int64(delay))
	}
}

// explain gives the end of a stream words.
func explain(err error) error {
	if err == nil {
		return errors.New("the server closed the connection")
	}
	return err
}

// retire ends h when nothing is under way on it.
func retire(h endpoint) {
	l := h.base()
	l.retiring = true
	if l.state == down {
		return
	}
	if h, ok := h.(sender); ok && len(h.carrier().out) > 0 {
		return
	}
	if g, ok := h.(*stream); ok {
		g.unsubscribe()
		return
	}
	l.w.Close(errRetired)
}

// A requestConn is a link that carries exchanges, in order.
type requestConn struct {
	link
	out    []exchange
	queued bool // in shard.free
	armed  bool // the timer runs
}

func (l *requestConn) carrier() *requestConn { return l }

func (l *requestConn) ready() bool {
	return l.state == up && !l.retiring && len(l.out) < l.s.depth
}

// arm sees to it that the timer comes when the oldest exchange takes too long.
func (l *requestConn) arm() {
	if !l.armed {
		l.armed = true
		l.w.SetTimer(int64(l.s.g.spec.Timeout))
	}
}

// Timer implements eventloop.Handler.
func (l *requestConn) Timer(*eventloop.Conn, int64) {
	l.armed = false
	now := l.s.touch()
	if l.state == connecting {
		l.w.Close(errTimeout)
		return
	}
	if len(l.out) == 0 {
		return
	}
	left := l.out[0].sent + int64(l.s.g.spec.Timeout) - now
	if left <= 0 {
		l.w.Close(errTimeout)
		return
	}
	l.armed = true
	l.w.SetTimer(left)
}

// finish takes the oldest exchange out.
func (l *requestConn) finish() exchange {
	ex := l.out[0]
	l.out = l.out[:copy(l.out, l.out[1:])]
	return ex
}

// lost ends everything under way, and has h opened again.
func (l *requestConn) lost(h sender, err error) {
	now := l.s.touch()
	if l.why != nil {
		err = l.why
	}
	if len(l.out) > 0 {
		why := reason(err)
		for _, ex := range l.out {
			l.s.fail(ex, why, now)
		}
		l.out = l.out[:0]
	}
	l.armed = false
	l.s.gone(h, err, true, 0)
	l.s.serve()
}
