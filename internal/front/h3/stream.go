package h3

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/quic-go/quic-go"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// stream is one request and its answer, or a tunnel: a connection for anyone who handles it.
type stream struct {
	eventloop.Carried

	// Fixed when it is taken.
	conn *conn
	quic *quic.Stream
	more chan struct{} // signals the reading goroutine to continue

	// Owned by the loop's goroutine. No lock.
	left  int64       // of a body whose length was said
	at    int         // in conn.streams
	still func() bool // calls off what waits for the client's end of the answer
	flags streamFlags

	// Any goroutine.
	readClosed atomic.Bool // nothing more is to be read
	out        outflow
}

type streamFlags uint16

const (
	theirEnd  streamFlags = 1 << iota // the client sends no more
	ourEnd                            // nor do we
	headSent                          // the answer's head went out
	measured                          // left counts
	chunked                           // the body is shown in chunks
	tunnel                            // the end of the client's side is the end of a stream of bytes
	paused                            // the handler wants no input now
	waits                             // the reading goroutine waits
	settles                           // Flush is to be called
	streamEnd                         // Close was called
)

var (
	_ eventloop.Carrier = (*stream)(nil)
	_ eventloop.Flusher = (*stream)(nil)
)

// maxUnread is what the handler may have left unconsumed while more is read. The loop keeps
// more than that and a piece.
const maxUnread = 64 << 10

// begin starts the stream with its head.
func (s *stream) begin(r *request) {
	h := s.conn
	h.last = max(h.last, s.quic.StreamID()+4)
	switch {
	case h.flags&gone != 0:
		s.reject(RequestCancelled)
		return
	case h.flags&left != 0, !eventloop.CarryFrom(&s.Carried, &h.Conn, h.where(), s, nil, len(h.streams) == 0):
		h.srv.counters.refused.Add(1)
		s.reject(RequestRejected) // it may be sent again elsewhere
		return
	}
	if len(h.streams) == 0 && h.flags&leaving == 0 {
		h.SetTimer(0)
	}
	s.at = len(h.streams)
	h.streams = append(h.streams, s)
	h.srv.counters.openStreams.Add(1)
	switch {
	case r.connect:
		s.flags |= tunnel
	case r.length >= 0:
		s.flags |= measured
		s.left = r.length
	case !r.ends:
		s.flags |= chunked
	}
	s.quic.SetPriority(int8(r.urgency), true)
	s.still = context.AfterFunc(s.quic.Context(), s.refused)
	handler := h.srv.front.Accept(&s.Conn)
	if handler == nil {
		h.srv.counters.refused.Add(1)
		s.reset(RequestRejected)
		s.Conn.Close(errRefused)
		return
	}
	s.SetHandler(handler)
	s.Arrived(r.head)
}

// refused is called when the client wants no answer any more, or its connection has ended.
// Any goroutine.
func (s *stream) refused() {
	if e, ok := errors.AsType[*quic.StreamError](context.Cause(s.quic.Context())); ok && e.Remote {
		s.conn.loop.Post(func() { s.failed(&StreamError{Code: Code(e.ErrorCode), Peer: true}) })
	}
}

// reject ends a stream that has not started.
func (s *stream) reject(code Code) {
	s.flags |= streamEnd
	s.stopReading(code)
	s.reset(code)
}

// stopReading notifies the client and the reading goroutine that no more is wanted.
func (s *stream) stopReading(code Code) {
	s.readClosed.Store(true)
	s.quic.CancelRead(quic.StreamErrorCode(code))
}

// body gives a piece of the request's body to the handler, framed as it expects it.
func (s *stream) body(b []byte) {
	if s.flags&streamEnd != 0 {
		return
	}
	if s.flags&measured != 0 {
		if s.left -= int64(len(b)); s.left < 0 { // RFC 9114 §4.1.2
			s.failed(&StreamError{Code: MessageError, why: "the body is longer than it was said to be"})
			return
		}
	}
	if s.flags&chunked != 0 {
		l := s.conn.loopState
		l.chunk = http1.AppendChunk(l.chunk[:0], b)
		b = l.chunk
	}
	s.Arrived(b)
}

// ended reports that the request is complete. trailer are the fields behind its body.
func (s *stream) ended(trailer []byte) {
	if s.flags&(theirEnd|streamEnd) != 0 {
		return
	}
	s.flags |= theirEnd
	switch {
	case s.flags&measured != 0 && s.left != 0:
		s.failed(&StreamError{Code: MessageError, why: "the body is shorter than it was said to be"})
	case s.flags&tunnel != 0:
		s.Ended()
	case s.flags&chunked != 0:
		l := s.conn.loopState
		l.chunk = http1.AppendLastChunk(l.chunk[:0], trailer)
		s.Arrived(l.chunk)
	}
}

// failed ends the stream for what the client did to it.
func (s *stream) failed(e *StreamError) {
	if s.flags&streamEnd != 0 {
		return // it has ended already, maybe with an answer that is still under way
	}
	h := s.conn
	kind := h2.FloodReset
	if !e.Peer {
		kind = h2.FloodMadeReset
		h.srv.counters.malformed.Add(1)
		h.srv.log.Debug("malformed request", "conn", h.ID(), "peer", h.peer, "stream", s.quic.StreamID(), "err", e)
	}
	if s.flags&headSent == 0 && !h.tolerate(kind) {
		return
	}
	code := e.Code
	if e.Peer {
		code = RequestCancelled
	}
	s.stopReading(code)
	s.reset(code)
	s.flags |= theirEnd
	if s.Loop() != nil { // it has started
		s.Conn.Close(e)
	}
}

// shown is called when the handler has seen a piece of the request.
func (s *stream) shown() {
	s.flags |= waits
	s.readOn()
}

// readOn lets the reading goroutine continue, unless what it has read waits for the handler.
func (s *stream) readOn() {
	if s.flags&waits == 0 || s.flags&streamEnd == 0 && (s.flags&paused != 0 || s.Unread() > maxUnread) {
		return
	}
	s.flags &^= waits
	s.more <- struct{}{}
}

// Reading implements eventloop.Carrier. What was left unread is taken right after this
// call, which is looked at when the tick ends.
func (s *stream) Reading(on bool) {
	if !on {
		s.flags |= paused
		return
	}
	if s.flags &^= paused; s.flags&(waits|settles) == waits {
		s.flags |= settles
		s.conn.loop.FlushAtTickEnd(s)
	}
}

// Flush implements eventloop.Flusher.
func (s *stream) Flush() {
	s.flags &^= settles
	s.readOn()
}

// Shutdown implements eventloop.Carrier.
func (s *stream) Shutdown() {
	switch {
	case s.flags&ourEnd != 0:
	case s.flags&headSent == 0:
		s.reset(InternalError) // nothing was answered
	default:
		s.sendEnd()
	}
}

// Close implements eventloop.Carrier.
func (s *stream) Close(err error, orderly bool) {
	if s.flags&streamEnd != 0 {
		return
	}
	s.flags |= streamEnd
	s.still()
	code := NoError // RFC 9114 §4.1: the answer is complete, whatever else was to come
	switch {
	case s.flags&ourEnd != 0:
	case orderly && s.flags&headSent != 0:
		s.sendEnd()
	default:
		code = codeOf(err)
		s.reset(code)
	}
	if s.flags&theirEnd == 0 {
		s.stopReading(code)
	}
	s.conn.forget(s)
	s.readOn()
}

// codeOf says to the client why its stream ends.
func codeOf(err error) Code {
	switch {
	case err == nil, errors.Is(err, eventloop.ErrStalled):
		return RequestCancelled
	case errors.Is(err, eventloop.ErrParked), errors.Is(err, eventloop.ErrQueueFull):
		return ExcessiveLoad
	}
	return InternalError
}

// Trailer makes fields, lines as HTTP/1.1 has them, follow the body that was written: they
// go out when the sending side ends. Loop only.
func (s *stream) Trailer(lines []byte) {
	if len(lines) > 0 && s.flags&ourEnd == 0 {
		s.conn.loopState.answers.SetTrailer(s, lines)
	}
}

// Alone reports whether no other stream of its connection is open. Loop only.
func (s *stream) Alone() bool { return len(s.conn.streams) == 1 }

// Version is HTTP's. Any goroutine.
func (*stream) Version() uint8 { return 3 }
