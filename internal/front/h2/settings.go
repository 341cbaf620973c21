package h2

import "encoding/binary"

// settings takes the client's SETTINGS (RFC 9113 §6.5).
func (h *conn) settings(f header, p []byte) {
	switch {
	case f.stream != 0:
		h.fail(ProtocolError, "SETTINGS on a stream")
		return
	case f.flags&flagAck != 0:
		if len(p) != 0 {
			h.fail(FrameSizeError, "an acknowledgement of SETTINGS has none")
		}
		return
	case len(p)%6 != 0:
		h.fail(FrameSizeError, "SETTINGS are not whole")
		return
	case h.flags&gotSettings != 0 && !h.tolerate(floodSettings):
		return
	}
	h.flags |= gotSettings
	was := h.theirWindow
	for ; len(p) > 0; p = p[6:] {
		if !h.set(binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])) {
			return
		}
	}
	h.control(appendHeader(nil, 0, frameSettings, flagAck, 0)) // before what the settings allow
	if h.theirWindow > was {
		h.wake()
	}
	h.unblock()
}

// set takes one setting. It returns false after a value that ends the connection.
func (h *conn) set(id uint16, v uint32) bool {
	switch id {
	case settingTableSize:
		if v < 4096 {
			h.flags |= noTable // RFC 7541 §4.2: our next header block says that it follows
		}
	case settingEnablePush:
		if v > 1 {
			h.fail(ProtocolError, "ENABLE_PUSH is neither 0 nor 1")
			return false
		}
	case settingWindow:
		if v > maxWindow {
			h.fail(FlowControlError, "INITIAL_WINDOW_SIZE is too large")
			return false
		}
		return h.setWindow(int32(v))
	case settingMaxFrame:
		if v < maxFrameSize || v >= 1<<24 {
			h.fail(ProtocolError, "MAX_FRAME_SIZE is not within its bounds")
			return false
		}
		h.maxFrame = int32(min(v, ourMaxFrame))
	}
	return true
}

// ourMaxFrame bounds the frames that are sent, so that streams take turns.
const ourMaxFrame = 32 << 10

// setWindow changes what new streams may be sent, and the open ones by as much (§6.9.2).
func (h *conn) setWindow(v int32) bool {
	by := int64(v) - int64(h.theirWindow)
	h.theirWindow = v
	for _, s := range h.streams {
		w := int64(s.window) + by
		if w > maxWindow {
			h.fail(FlowControlError, "a stream's window is too large")
			return false
		}
		s.window = int32(w)
	}
	return true
}

// windowUpdate takes what more may be sent (§6.9).
func (h *conn) windowUpdate(f header, p []byte) {
	switch {
	case len(p) != 4:
		h.fail(FrameSizeError, "WINDOW_UPDATE has not 4 bytes")
		return
	case f.stream != 0 && h.idle(f.stream):
		h.fail(ProtocolError, "WINDOW_UPDATE for an idle stream")
		return
	case !h.tolerateMoved(floodWindow):
		return
	}
	by := binary.BigEndian.Uint32(p) & maxWindow
	if f.stream == 0 {
		switch {
		case by == 0:
			h.fail(ProtocolError, "WINDOW_UPDATE by nothing")
		case int64(h.window)+int64(by) > maxWindow:
			h.fail(FlowControlError, "the connection's window is too large")
		default:
			h.window += int32(by)
			h.unblock()
		}
		return
	}
	s := h.find(f.stream)
	switch {
	case s == nil:
	case by == 0:
		s.abort(ProtocolError)
	case int64(s.window)+int64(by) > maxWindow:
		s.abort(FlowControlError)
	default:
		s.window += int32(by)
		s.Writable()
	}
}
