package h2

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// conn is a connection of HTTP/2: the handler of a socket.
type conn struct {
	// Fixed by ServeConn.
	loopState *loopState

	// Owned by the loop's goroutine. No lock. What a delivery touches comes first.
	writer
	streams []*stream // open, in the order of their numbers
	flags   connFlags
	preface uint8  // bytes of it that came
	credit  int32  // what the client may send over all streams
	owed    int32  // what was consumed of it and not given back
	last    uint32 // the highest number of a stream that the client has started

	closed closedStreams
	linger []*stream // answered, while their requests are not complete; see linger.go
	blocks blockReader
	budget *budget // nil until something is charged to it
	data   data    // of a DATA frame that is not complete
}

// data is what is left of a DATA frame.
type data struct {
	dataLeft
	stream *stream // nil: it is closed, and what comes is dropped
}

type connFlags uint8

const (
	gotSettings  connFlags = 1 << iota // the client's first
	leaving                            // a first GOAWAY was sent
	left                               // the last GOAWAY was sent: streams that start are refused
	failed                             // the connection ends with an error of the client's
	idle                               // the timer is that of a connection without streams
	movesNoTable                       // in a state alone: writer.noTable
)

var (
	_ eventloop.Handler = (*conn)(nil)
	_ eventloop.Flusher = (*conn)(nil)
)

// Data implements eventloop.Handler.
func (h *conn) Data(c *eventloop.Conn, b []byte) int {
	used := 0
	for !c.Closing() && h.flags&failed == 0 {
		n := h.consume(b[used:])
		if n == 0 {
			h.loopState.deliver()
			return used
		}
		used += n
	}
	h.loopState.deliver()
	return len(b)
}

// consume takes the next piece of input and returns its length; 0 means that more is needed.
func (h *conn) consume(b []byte) int {
	switch {
	case int(h.preface) < len(Preface):
		return h.readPreface(b)
	case !h.data.none():
		return h.deliverData(b)
	case len(b) < frameHead:
		return 0
	}
	f := parseHeader(b)
	if !h.expects(f) {
		return frameHead
	}
	if f.kind == frameData {
		return h.beginData(f, b)
	}
	if len(b) < frameHead+f.length {
		return 0
	}
	h.loopState.deliver() // what follows comes after it
	h.frame(f, b[frameHead:frameHead+f.length])
	return frameHead + f.length
}

func (h *conn) readPreface(b []byte) int {
	n := min(len(b), len(Preface)-int(h.preface))
	if string(b[:n]) != Preface[h.preface:int(h.preface)+n] {
		h.fail(ProtocolError, "no preface")
		return n
	}
	h.preface += uint8(n)
	return n
}

// expects checks the head of a frame by what may come now.
func (h *conn) expects(f header) bool {
	switch {
	case f.length > maxFrameSize:
		h.fail(FrameSizeError, "a frame is too large")
	case h.flags&gotSettings == 0 && (f.kind != frameSettings || f.flags&flagAck != 0):
		h.fail(ProtocolError, "the first frame is not SETTINGS")
	case !h.blocks.expects(f):
		h.fail(ProtocolError, "a header block is not continued")
	default:
		return true
	}
	return false
}

// frame takes a whole frame that is not DATA.
func (h *conn) frame(f header, p []byte) {
	switch f.kind {
	case frameHeaders:
		h.headers(f, p)
	case frameContinuation:
		h.continuation(f, p)
	case framePriority:
		h.priority(f, p)
	case frameReset:
		h.reset(f, p)
	case frameSettings:
		h.settings(f, p)
	case framePushPromise:
		h.fail(ProtocolError, "a client does not push")
	case framePing:
		h.ping(f, p)
	case frameGoAway:
		h.goneAway(f)
	case frameWindowUpdate:
		h.windowUpdate(f, p)
	case framePriorityUpdate:
		h.priorityUpdate(f, p)
	default:
		h.tolerate(floodUnknown) // §4.1: they are ignored
	}
}

// priority takes a PRIORITY frame: it is out of use, but for its rules.
func (h *conn) priority(f header, p []byte) {
	switch {
	case f.stream == 0:
		h.fail(ProtocolError, "PRIORITY for no stream")
	case len(p) != 5:
		h.resetStream(f.stream, FrameSizeError)
	case binary.BigEndian.Uint32(p)&maxStreamID == f.stream:
		h.resetStream(f.stream, ProtocolError)
	default:
		h.tolerate(floodPriority)
	}
}

// priorityUpdate takes a stream's priority (RFC 9218 §7.1).
func (h *conn) priorityUpdate(f header, p []byte) {
	switch {
	case f.stream != 0 || len(p) < 4:
		h.fail(ProtocolError, "PRIORITY_UPDATE on a stream, or too short")
	case binary.BigEndian.Uint32(p)&maxStreamID == 0:
		h.fail(ProtocolError, "PRIORITY_UPDATE of no stream")
	case h.tolerate(floodPriority):
		if s := h.find(binary.BigEndian.Uint32(p) & maxStreamID); s != nil {
			s.urgency = urgencyOf(p[4:])
		}
	}
}

func (h *conn) ping(f header, p []byte) {
	switch {
	case f.stream != 0:
		h.fail(ProtocolError, "PING on a stream")
	case len(p) != 8:
		h.fail(FrameSizeError, "PING has not 8 bytes")
	case f.flags&flagAck != 0:
		if h.flags&(leaving|left) == leaving && [8]byte(p) == leavePing {
			h.sendLastGoAway()
		}
	case h.tolerateMoved(floodPing):
		h.control(appendPing(nil, flagAck, [8]byte(p)))
	}
}

// goneAway takes the client's GOAWAY: it starts no more streams, and we start none.
func (h *conn) goneAway(f header) {
	switch {
	case f.stream != 0:
		h.fail(ProtocolError, "GOAWAY on a stream")
	case f.length < 8:
		h.fail(FrameSizeError, "GOAWAY is too short")
	default:
		h.leave(endClient)
		h.sendLastGoAway()
	}
}

// reset takes the client's end of a stream.
func (h *conn) reset(f header, p []byte) {
	switch {
	case f.stream == 0 || h.idle(f.stream):
		h.fail(ProtocolError, "RST_STREAM for an idle stream")
		return
	case len(p) != 4:
		h.fail(FrameSizeError, "RST_STREAM has not 4 bytes")
		return
	}
	s := h.find(f.stream)
	if s == nil {
		h.tolerate(floodReset)
		return
	}
	if s.flags&headSent == 0 && !h.tolerate(floodReset) {
		return
	}
	s.flags |= theirEnd | ourEnd
	h.unlinger(s, false)
	s.Conn.Close(&StreamError{Code: Code(binary.BigEndian.Uint32(p)), Peer: true})
}

// A StreamError is why a stream was closed.
type StreamError struct {
	Code Code
	Peer bool // it was the client's wish
}

// Error implements error.
func (e *StreamError) Error() string {
	if e.Peer {
		return "the client reset the stream: " + e.Code.String()
	}
	return "stream error: " + e.Code.String()
}

// idle reports whether the client has not started a stream of that number.
func (h *conn) idle(id uint32) bool { return id > h.last || id%2 == 0 }

// find returns an open stream, or nil.
func (h *conn) find(id uint32) *stream {
	if i, ok := h.index(id); ok {
		return h.streams[i]
	}
	return h.lingering(id)
}

func (h *conn) index(id uint32) (int, bool) {
	return slices.BinarySearchFunc(h.streams, id, func(s *stream, id uint32) int { return int(s.id) - int(id) })
}

// forget takes s off the list of open streams.
func (h *conn) forget(s *stream, reset bool) {
	i, ok := h.index(s.id)
	if !ok {
		return
	}
	h.streams = slices.Delete(h.streams, i, i+1)
	h.closed.add(s.id, reset)
	h.loopState.counters.openStreams.Add(-1)
	if h.data.stream == s {
		h.data.stream = nil
	}
	h.loopState.answers.Forget(s)
	delete(h.loopState.held, s)
	if h.owe(s.unread); len(h.streams) == 0 {
		h.rest()
	}
}

// rest is called when no stream is open.
func (h *conn) rest() {
	h.streams, h.blocked = nil, nil
	h.closed.trim()
	switch {
	case h.sock.Closing():
	case h.flags&left != 0:
		h.flushNow()
		h.sock.CloseAfterFlush()
	case h.flags&leaving == 0:
		h.flags |= idle
		h.sock.SetTimer(int64(h.loopState.srv.cfg.KeepAlive))
	}
}

// EndOfStream implements eventloop.Handler: there is no client to answer.
func (h *conn) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (h *conn) Drained(*eventloop.Conn) { h.unblock() }

// Timer implements eventloop.Handler.
func (h *conn) Timer(*eventloop.Conn, int64) {
	switch {
	case h.flags&leaving != 0:
		h.sendLastGoAway()
	case h.blocks.stream != 0:
		h.fail(ProtocolError, "a header block takes too long")
	case h.flags&gotSettings == 0:
		h.fail(NoError, "no preface came")
	case len(h.streams) > 0:
	case h.last == 0 && h.flags&idle == 0:
		h.leave(endNoRequest)
	default:
		h.leave(endIdle)
	}
}

// Closed implements eventloop.Handler.
func (h *conn) Closed(_ *eventloop.Conn, err error) {
	if err == nil {
		err = errConnClosed
	}
	h.flags |= failed
	for len(h.streams) > 0 {
		s := h.streams[len(h.streams)-1]
		s.flags |= theirEnd | ourEnd
		if s.Conn.Close(err); len(h.streams) > 0 && h.streams[len(h.streams)-1] == s { // never
			h.streams = h.streams[:len(h.streams)-1]
		}
	}
	h.loopState.counters.open.Add(-1)
	h.release()
	h.blocks, h.blocked, h.settle = blockReader{}, nil, nil
}

var errConnClosed = fmt.Errorf("the connection of the stream was closed")

// fail ends the connection for what the client did (§5.4.1).
func (h *conn) fail(code Code, why string) {
	if h.flags&failed != 0 || h.sock.Closing() {
		return
	}
	h.loopState.srv.log.Debug("HTTP/2 connection ends", "conn", h.sock.ID(), "peer", h.sock.Peer(), "code", code.String(), "err", why)
	h.flags |= failed
	h.count(endingOf(code))
	h.control(goAwayFrame(h.last, code, why))
	h.flushNow()
	for len(h.streams) > 0 {
		s := h.streams[len(h.streams)-1]
		s.flags |= theirEnd | ourEnd
		s.Conn.Close(&StreamError{Code: code})
	}
	h.sock.CloseAfterFlush()
}

// leave reports that no further request is taken (§6.8): first that there will be an end, and
// when the client knows that, where it was. So a request that is on its way is served.
func (h *conn) leave(why ending) {
	if h.flags&(leaving|failed) != 0 || h.sock.Closing() {
		return
	}
	h.count(why)
	h.flags = h.flags&^idle | leaving
	h.control(appendPing(goAwayFrame(maxStreamID, NoError, ""), 0, leavePing))
	h.sock.SetTimer(leaveTime)
}

// leavePing shows that the client has got the first GOAWAY; leaveTime is how long that is
// waited for.
var leavePing = [8]byte{'w', 'e', 'i', 'r', 'l', 'e', 'f', 't'}

const leaveTime = int64(1e9)

// sendLastGoAway reports which stream was the last one, and ends the connection when that is over.
func (h *conn) sendLastGoAway() {
	if h.flags&(left|failed) != 0 || h.sock.Closing() {
		return
	}
	h.flags |= left
	h.sock.SetTimer(0)
	h.control(goAwayFrame(h.last, NoError, ""))
	if len(h.streams) == 0 {
		h.rest()
	}
}
