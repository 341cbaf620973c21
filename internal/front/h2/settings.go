package h2

import (
	"encoding/binary"
	"slices"
)

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
		for _, s := range slices.Clone(h.streams) {
			s.proceed()
		}
	}
	h.unblock()
}

// set takes one setting. It returns false after a value that ends the connection.
func (h *conn) set(id uint16, v uint32) bool {
	if id == settingEnablePush && v > 1 {
		h.fail(ProtocolError, "ENABLE_PUSH is neither 0 nor 1")
		return false
	}
	code, reason := h.writer.set(id, v, flows(h.streams))
	if reason != "" {
		h.fail(code, reason)
	}
	return reason == ""
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
	if f.stream == 0 {
		if code, reason := h.widen(p); reason != "" {
			h.fail(code, reason)
		}
		return
	}
	if s := h.find(f.stream); s != nil {
		if code := s.widen(p); code != NoError {
			s.abort(code)
		}
	}
}
