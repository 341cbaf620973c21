package h3

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// conn is a connection of QUIC: a connection on a loop that carries the streams. It is its
// own carrier, as nothing is sent on it but by its streams.
type conn struct {
	silent
	eventloop.Carried

	// Fixed at accept.
	srv       *Server
	loopState *loopState
	loop      *eventloop.Loop
	quic      *quic.Conn

	// Owned by the loop's goroutine. No lock.
	streams []*stream // open, in no order
	peer    netip.AddrPort
	last    quic.StreamID // where the next request would start, as GOAWAY says it
	flags   connFlags
	dscp    uint8 // of its packets

	// Any goroutine.
	mu      sync.Mutex
	budget  h2.Budget
	flooded bool
	control *quic.SendStream // nil until it is open
}

type connFlags uint8

const (
	gone    connFlags = 1 << iota // it is closed
	leaving                       // a first GOAWAY was sent
	left                          // the last GOAWAY was sent: streams that start are refused
	served                        // a request has come
)

// silent are the methods of a Handler and Carrier that concern bytes, for a connection that
// carries none itself: its streams do.
type silent struct{}

// Data implements eventloop.Handler.
func (silent) Data(_ *eventloop.Conn, b []byte) int { return len(b) }

// EndOfStream implements eventloop.Handler.
func (silent) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (silent) Drained(*eventloop.Conn) {}

// Send implements eventloop.Carrier.
func (silent) Send(b []byte) int { return len(b) }

// Reading implements eventloop.Carrier.
func (silent) Reading(bool) {}

// Shutdown implements eventloop.Carrier.
func (silent) Shutdown() {}

var (
	_ eventloop.Handler = (*conn)(nil)
	_ eventloop.Carrier = (*conn)(nil)
)

// serve is the connection's goroutine: it takes its streams.
func (h *conn) serve() {
	s := h.srv
	s.established(h.quic)
	in := make(chan bool, 1)
	if !h.loop.Post(func() { in <- h.open() }) {
		_ = h.quic.CloseWithError(quic.ApplicationErrorCode(NoError), "")
		return
	}
	// The loop answers as long as it runs, and ends what is open before it ends.
	if !<-in {
		return
	}
	if err := h.openControl(); err == nil {
		s.connections.Go(h.acceptUnidirectional)
		h.acceptStreams()
	}
	_ = h.quic.CloseWithError(quic.ApplicationErrorCode(NoError), "") // unless it has ended
	h.loop.Post(func() { h.Conn.Close(h.cause()) })
}

// acceptStreams takes the requests until the connection ends.
func (h *conn) acceptStreams() {
	for {
		q, err := h.quic.AcceptStream(h.srv.ended)
		if err != nil {
			return
		}
		s := &stream{conn: h, quic: q, more: make(chan struct{}, 1)}
		h.srv.counters.streams.Add(1)
		h.srv.connections.Go(s.read)
	}
}

// cause is why the connection has ended; nil: in order.
func (h *conn) cause() error {
	<-h.quic.Context().Done()
	err := context.Cause(h.quic.Context())
	if e, ok := errors.AsType[*quic.ApplicationError](err); ok && Code(e.ErrorCode) == NoError {
		return nil
	}
	return err
}

// open gives the connection its place on the loop. It returns false if there is none.
func (h *conn) open() bool {
	h.peer = addrOf(h.quic.RemoteAddr())
	if !h.loop.CarryRoot(&h.Carried, h.peer, h, h) {
		_ = h.quic.CloseWithError(quic.ApplicationErrorCode(ExcessiveLoad), "")
		return false
	}
	c := &h.srv.counters
	c.open.Add(1)
	if !h.srv.front.Admit(&h.Conn) {
		h.Conn.Close(errRefused)
		return false
	}
	c.conns.Add(1)
	state := h.quic.ConnectionState().TLS
	h.srv.front.Established(&h.Conn, &state)
	h.SetTimer(int64(h.srv.cfg.HeadTimeout))
	if h.loopState.drains {
		h.leave()
	}
	return !h.Closing()
}

var errRefused = errors.New("the connection is refused: a bound is reached")

func addrOf(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return unmapped(u.AddrPort())
}

// where returns the address that the client has now.
func (h *conn) where() netip.AddrPort {
	if now := addrOf(h.quic.RemoteAddr()); now != h.peer {
		h.srv.counters.moved.Add(1)
		h.srv.log.Debug("a client has moved", "conn", h.ID(), "from", h.peer, "to", now)
		if h.dscp != 0 {
			h.srv.socket.mark(h.peer, 0)
			h.srv.socket.mark(now, h.dscp)
		}
		h.peer = now
	}
	return h.peer
}

// fail ends the connection for what the client did (RFC 9114 §8). Any goroutine.
func (h *conn) fail(code Code, why string) {
	h.srv.log.Debug("HTTP/3 connection ends", "peer", h.quic.RemoteAddr(), "code", code.String(), "err", why)
	_ = h.quic.CloseWithError(quic.ApplicationErrorCode(code), why)
}

// tolerate takes one of f from the connection's budget. Without one it ends the connection
// and returns false. Any goroutine.
func (h *conn) tolerate(f h2.Flood) bool {
	h.mu.Lock()
	ok := !h.flooded && h.budget.Spend(f, time.Now().UnixNano())
	first := !ok && !h.flooded
	h.flooded = !ok
	h.mu.Unlock()
	if first {
		h.srv.counters.floods[f].Add(1)
		h.fail(ExcessiveLoad, "too much of "+f.String())
	}
	return ok
}

// answered counts a stream as served.
func (h *conn) answered() {
	h.mu.Lock()
	h.budget.Earn()
	h.mu.Unlock()
}

// forget takes s off the list of open streams.
func (h *conn) forget(s *stream) {
	last := len(h.streams) - 1
	h.streams[s.at] = h.streams[last]
	h.streams[s.at].at = s.at
	h.streams[last] = nil
	h.streams = h.streams[:last]
	h.srv.counters.openStreams.Add(-1)
	h.loopState.answers.Forget(s)
	if last > 0 || h.flags&gone != 0 {
		return
	}
	h.streams = nil
	switch {
	case h.flags&left != 0:
		h.SetTimer(lastTime)
	case h.flags&leaving == 0:
		h.SetTimer(int64(h.srv.cfg.KeepAlive))
	}
}

// leave reports that no further request is taken (RFC 9114 §5.2): first that there will be an
// end, and when the client can know that, where it was.
func (h *conn) leave() {
	if h.flags&(leaving|gone) != 0 {
		return
	}
	h.flags |= leaving
	h.writeControl(appendGoAway(nil, lastStream))
	h.SetTimer(leaveTime)
}

const (
	lastStream = quic.StreamID(1<<62 - 4)
	leaveTime  = int64(1e9)
	// lastTime is for the last answers' way to the client: the end of a connection of QUIC
	// takes away what is under way. Most clients end it themselves before that.
	lastTime = int64(5e8)
)

// writeControl writes to the control stream. What a client does not take of the few bytes there are
// is lost with it.
func (h *conn) writeControl(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.control != nil {
		_ = h.control.TryWriteAll(b)
	}
}

// Timer implements eventloop.Handler.
func (h *conn) Timer(*eventloop.Conn, int64) {
	switch {
	case h.flags&(leaving|left) == leaving:
		h.flags |= left
		if h.writeControl(appendGoAway(nil, h.last)); len(h.streams) == 0 {
			h.SetTimer(lastTime)
		}
	case len(h.streams) == 0:
		h.Conn.Close(nil)
	}
}

// Close implements eventloop.Carrier.
func (h *conn) Close(err error, _ bool) {
	code := NoError
	if errors.Is(err, errRefused) {
		code = ExcessiveLoad
	}
	_ = h.quic.CloseWithError(quic.ApplicationErrorCode(code), "")
}

// Closed implements eventloop.Handler.
func (h *conn) Closed(_ *eventloop.Conn, err error) {
	if err == nil {
		err = errConnClosed
	}
	h.where() // it may have moved without a word
	h.flags |= gone
	for len(h.streams) > 0 {
		h.streams[len(h.streams)-1].Conn.Close(err)
	}
	h.srv.socket.mark(h.peer, 0)
	h.srv.counters.open.Add(-1)
}

var errConnClosed = errors.New("the connection of the stream was closed")
