package h2

import (
	"encoding/binary"
	"slices"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// Data implements eventloop.Handler.
func (s *Session) Data(c *eventloop.Conn, b []byte) int {
	used := 0
	for !c.Closing() && s.flags&sOver == 0 {
		n := s.consume(b[used:])
		if n == 0 {
			return used
		}
		used += n
	}
	return len(b)
}

// consume takes the next piece of input and returns its length; 0 means that more is needed.
func (s *Session) consume(b []byte) int {
	switch {
	case !s.data.none():
		return s.deliverData(b)
	case len(b) < frameHead:
		return 0
	}
	f := parseHeader(b)
	if !s.expects(f) {
		return frameHead
	}
	if f.kind == frameData {
		return s.beginData(f, b)
	}
	if len(b) < frameHead+f.length {
		return 0
	}
	s.frame(f, b[frameHead:frameHead+f.length])
	return frameHead + f.length
}

// expects checks the head of a frame by what may come now.
func (s *Session) expects(f header) bool {
	switch {
	case s.flags&ready == 0 && (f.kind != frameSettings || f.flags&flagAck != 0):
		s.fail(ProtocolError, "the first frame is not SETTINGS")
	case f.length > maxFrameSize:
		s.fail(FrameSizeError, "a frame is too large")
	case !s.blocks.expects(f):
		s.fail(ProtocolError, "a header block is not continued")
	default:
		return true
	}
	return false
}

// frame takes a whole frame that is not DATA.
func (s *Session) frame(f header, p []byte) {
	switch f.kind {
	case frameHeaders:
		s.headers(f, p)
	case frameContinuation:
		s.continuation(f, p)
	case frameReset:
		s.reset(f, p)
	case frameSettings:
		s.settings(f, p)
	case framePushPromise:
		s.fail(ProtocolError, "PUSH_PROMISE, which is switched off")
	case framePing:
		s.ping(f, p)
	case frameGoAway:
		s.goneAway(f, p)
	case frameWindowUpdate:
		s.windowUpdate(f, p)
	case framePriority:
		if f.stream == 0 || len(p) != 5 {
			s.fail(ProtocolError, "PRIORITY for no stream, or not 5 bytes long")
			return
		}
		s.tolerate(floodPriority)
	default:
		s.tolerate(floodUnknown) // §4.1: they are ignored
	}
}

func (s *Session) ping(f header, p []byte) {
	switch {
	case f.stream != 0:
		s.fail(ProtocolError, "PING on a stream")
	case len(p) != 8:
		s.fail(FrameSizeError, "PING has not 8 bytes")
	case f.flags&flagAck != 0:
		s.tolerate(floodPing) // we send none
	case s.tolerateMoved(floodPing):
		s.control(appendPing(nil, flagAck, [8]byte(p)))
	}
}

// goneAway takes the backend's GOAWAY (§6.8): calls that it has not processed are notified, the rest
// continue.
func (s *Session) goneAway(f header, p []byte) {
	switch {
	case f.stream != 0:
		s.fail(ProtocolError, "GOAWAY on a stream")
		return
	case len(p) < 8:
		s.fail(FrameSizeError, "GOAWAY is too short")
		return
	case s.flags&sLeaving != 0 && !s.tolerate(floodReset):
		return
	}
	if s.flags&sLeaving == 0 {
		s.counters.goaways.Add(1)
	}
	last, code := binary.BigEndian.Uint32(p)&maxStreamID, Code(binary.BigEndian.Uint32(p[4:]))
	s.flags |= sLeaving
	s.notifyLeaving()
	for _, c := range slices.Concat(s.fresh, s.calls) {
		if !c.gone && (c.id == 0 || c.id > last) {
			s.counters.unprocessed.Add(1)
			c.flags |= requestEnded | replyEnded
			c.Conn.Close(&PeerError{Code: code, Unprocessed: true})
		}
	}
	s.rest()
}

// reset takes the backend's end of a stream.
func (s *Session) reset(f header, p []byte) {
	switch {
	case f.stream == 0 || s.isIdle(f.stream):
		s.fail(ProtocolError, "RST_STREAM for an idle stream")
		return
	case len(p) != 4:
		s.fail(FrameSizeError, "RST_STREAM has not 4 bytes")
		return
	}
	c := s.find(f.stream)
	if c == nil {
		s.tolerate(floodReset)
		return
	}
	code := Code(binary.BigEndian.Uint32(p))
	c.flags |= requestEnded | replyEnded
	if s.unlinger(c) {
		return
	}
	refused := code == RefusedStream && c.flags&gotHead == 0
	if refused {
		s.counters.unprocessed.Add(1)
	} else {
		s.counters.resets.Add(1)
	}
	c.Conn.Close(&PeerError{Code: code, Unprocessed: refused})
}

// settings takes the backend's SETTINGS (§6.5).
func (s *Session) settings(f header, p []byte) {
	switch {
	case f.stream != 0:
		s.fail(ProtocolError, "SETTINGS on a stream")
		return
	case f.flags&flagAck != 0:
		if len(p) != 0 {
			s.fail(FrameSizeError, "an acknowledgement of SETTINGS has none")
		}
		return
	case len(p)%6 != 0:
		s.fail(FrameSizeError, "SETTINGS are not whole")
		return
	case s.Ready() && !s.tolerate(floodSettings):
		return
	}
	if !s.Ready() {
		s.most = ourMostCalls // unless it says otherwise
	}
	for ; len(p) > 0; p = p[6:] {
		if !s.set(binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])) {
			return
		}
	}
	s.control(appendHeader(nil, 0, frameSettings, flagAck, 0))
	if s.Ready() {
		for _, c := range slices.Clone(s.calls) {
			c.proceed()
		}
		s.unblock()
	} else {
		s.established()
	}
	if s.flags&(sOver|sLeaving) == 0 {
		s.owner.Room(s)
	}
}

// established lets the calls that waited for the backend go out.
func (s *Session) established() {
	s.flags |= ready
	s.sock.SetTimer(0)
	for i, c := range slices.Clone(s.fresh) {
		switch h, ok := c.Handler().(eventloop.Connector); {
		case c.gone:
		case i >= int(s.most):
			c.Conn.Close(ErrElsewhere)
		case ok:
			h.Connected(&c.Conn)
		}
	}
	s.rest()
}

// set takes one setting. It returns false after a value that ends the connection.
func (s *Session) set(id uint16, v uint32) bool {
	switch {
	case id == settingEnablePush && v != 0: // §6.5.2: a server says 0 or nothing
		s.fail(ProtocolError, "a server does not switch push on")
		return false
	case id == settingMaxStreams:
		s.most = min(v, ourMostCalls)
	}
	code, reason := s.writer.set(id, v, flows(s.calls))
	if reason != "" {
		s.fail(code, reason)
	}
	return reason == ""
}

// windowUpdate takes what more may be sent (§6.9).
func (s *Session) windowUpdate(f header, p []byte) {
	switch {
	case len(p) != 4:
		s.fail(FrameSizeError, "WINDOW_UPDATE has not 4 bytes")
		return
	case f.stream != 0 && s.isIdle(f.stream):
		s.fail(ProtocolError, "WINDOW_UPDATE for an idle stream")
		return
	case !s.tolerateMoved(floodWindow):
		return
	}
	if f.stream == 0 {
		if code, reason := s.widen(p); reason != "" {
			s.fail(code, reason)
		}
		return
	}
	if c := s.find(f.stream); c != nil && !c.gone {
		if code := c.widen(p); code != NoError {
			c.abort(code)
		}
	}
}
