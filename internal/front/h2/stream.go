package h2

import (
	"errors"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// stream is one request and its answer, or a tunnel: a connection for anyone who handles it.
type stream struct {
	flow

	conn  *conn
	left  int64 // of a body whose length was said
	flags streamFlags
}

type streamFlags uint16

const (
	theirEnd streamFlags = 1 << iota // the client sends no more
	ourEnd                           // nor do we
	headSent                         // the answer's head went out
	measured                         // left counts
	chunked                          // the body is shown in chunks
	tunnel                           // the end of the client's side is the end of a stream of bytes
	wasReset                         // by us
	stopped                          // the handler takes no input for now
	wide                             // credit is of wideWindow
)

var _ eventloop.Carrier = (*stream)(nil)

// begin starts a stream.
func (h *conn) begin(id uint32, r *fields, ends bool) {
	l := h.loopState
	head, ok := r.appendHead(l.head[:0], ends)
	l.head = head
	if !ok {
		h.resetStream(id, ProtocolError)
		return
	}
	if r.over { // the parser says so, in the words of HTTP/1.1
		head = appendTooLarge(head[:0], l.srv.cfg.Head.MaxHead)
		l.head = head
	}
	s := &stream{conn: h, flow: flow{id: id, window: h.theirWindow, credit: streamWindow, urgency: r.urgency}}
	switch {
	case r.method == "CONNECT":
		s.flags |= tunnel
	case r.length >= 0:
		s.left = r.length
		s.flags |= measured
	case !ends:
		s.flags |= chunked
	}
	if ends && s.flags&measured != 0 && s.left > 0 { // §8.1.1
		h.resetStream(id, ProtocolError)
		return
	}
	if !eventloop.Carry(&s.Carried, h.sock, s, nil, len(h.streams) == 0) {
		h.refuse(id)
		return
	}
	if h.flags&(leaving|idle) == idle {
		h.flags &^= idle
	}
	if len(h.streams) == 0 && h.flags&leaving == 0 {
		h.sock.SetTimer(0)
	}
	h.streams = append(h.streams, s)
	l.counters.openStreams.Add(1)
	handler := l.srv.accept(&s.Conn)
	if handler == nil {
		s.flags |= theirEnd
		s.reset(RefusedStream)
		s.Conn.Close(errRefused)
		return
	}
	s.SetHandler(handler)
	if ends {
		s.flags |= theirEnd
	}
	s.Arrived(head)
	if ends && s.flags&tunnel != 0 && !s.gone {
		s.Ended()
	}
}

var errRefused = errors.New("the stream is refused: a bound is reached")

// appendTooLarge appends the beginning of a head that no parser takes for small enough.
func appendTooLarge(b []byte, limit int) []byte {
	b = append(b, "GET / HTTP/1.1\r\nhost: x\r\nx: "...)
	for len(b) <= limit {
		b = append(b, "too large "...)
	}
	return b
}

// trailers takes the fields behind a request's body.
func (s *stream) trailers(r *fields, ends bool) {
	switch {
	case s.flags&theirEnd != 0:
		s.abort(StreamClosed)
	case !ends || r.bad != "" || r.over || r.seen != 0 || s.flags&tunnel != 0: // §8.1
		s.malformed()
	default:
		s.ended(r.rest)
	}
}

// malformed ends a stream whose request breaks the rules of HTTP/2.
func (s *stream) malformed() {
	s.conn.loopState.counters.malformed.Add(1)
	s.abort(ProtocolError)
}

// abort ends a stream for what the client did to it (§5.4.2).
func (s *stream) abort(code Code) {
	if !s.conn.tolerate(floodMadeReset) {
		return
	}
	s.reset(code)
	s.conn.unlinger(s, true)
	s.flags |= theirEnd
	s.Conn.Close(&StreamError{Code: code})
}

// reset reports that the stream is over.
func (s *stream) reset(code Code) {
	s.flags |= ourEnd | wasReset
	s.conn.control(appendReset(nil, s.id, code))
}

// resetStream resets a stream that is not open.
func (h *conn) resetStream(id uint32, code Code) {
	if s := h.find(id); s != nil {
		s.abort(code)
		return
	}
	h.resetAfter(nil, id, code)
}

// rejectSpaced answers a request that has white space around a field value with status 400
// before it resets the stream, as RFC 9113 §8.1.1 permits. Programs send such values by
// accident, and Go's client repeats a request whose stream is reset with PROTOCOL_ERROR.
func (h *conn) rejectSpaced(id uint32) {
	head := appendHeader(nil, 1, frameHeaders, flagEndHeaders|flagEndStream, id)
	h.resetAfter(append(head, indexedBit|status400), id, ProtocolError)
}

// resetAfter sends frames, then resets a stream that is not open.
func (h *conn) resetAfter(frames []byte, id uint32, code Code) {
	h.loopState.counters.malformed.Add(1)
	if !h.tolerate(floodMadeReset) {
		return
	}
	h.control(appendReset(frames, id, code))
	if id <= h.last {
		h.closed.add(id, true)
	}
}

// Reading implements eventloop.Carrier. What was left unread is taken right after this
// call, which is looked at when the tick ends.
func (s *stream) Reading(on bool) {
	if s.flags |= stopped; on {
		s.flags &^= stopped
	}
	if on {
		s.conn.settleLater(&s.flow, s)
	}
}

// settled implements settler.
func (s *stream) settled() {
	s.settles = false
	s.resume()
	s.consumed()
}

// Shutdown implements eventloop.Carrier.
func (s *stream) Shutdown() {
	if s.flags&ourEnd != 0 {
		return
	}
	if s.flags&headSent == 0 {
		s.reset(InternalError) // nothing was answered
		return
	}
	s.sendEnd()
}

// Close implements eventloop.Carrier.
func (s *stream) Close(err error, orderly bool) {
	if s.gone {
		return
	}
	s.gone = true
	h := s.conn
	reset := s.flags&wasReset != 0
	switch {
	case h.flags&failed != 0:
	case s.flags&ourEnd != 0:
	case orderly && s.flags&headSent != 0:
		s.sendEnd()
	default:
		reset = true
		s.reset(s.codeOf(err))
	}
	piece := h.data.stream
	h.forget(s, reset)
	if s.flags&theirEnd == 0 && !reset && h.flags&failed == 0 {
		h.await(s)
		h.data.stream = piece
	}
}

// codeOf says to the client why its stream ends.
func (s *stream) codeOf(err error) Code {
	switch {
	case errors.Is(err, eventloop.ErrStalled):
		if s.window <= 0 {
			s.conn.loopState.counters.floods[floodZeroWindow].Add(1)
		}
		return Cancel
	case err == nil:
		return Cancel
	case errors.Is(err, eventloop.ErrParked), errors.Is(err, eventloop.ErrQueueFull):
		return EnhanceYourCalm
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

// Share is how many bytes may wait for s if one that has its connection to itself may have
// most: what waits for all streams of a connection is bounded, however many a client opens
// and does not read. Loop only.
func (s *stream) Share(most int) int {
	return min(most, max(shareMost/max(len(s.conn.streams), 1), shareLeast))
}

const (
	shareMost  = 1 << 20
	shareLeast = 8 << 10
)

// Alone reports whether no other stream of its connection is open. Loop only.
func (s *stream) Alone() bool { return len(s.conn.streams) == 1 }
