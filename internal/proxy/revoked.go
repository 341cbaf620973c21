package proxy

import (
	"errors"

	"github.com/weir-gateway/weir/websocket"
)

var (
	errRevoked = errors.New("the client was revoked")
	// revokedFrame is a close frame: 1008, policy violation (RFC 6455 §7.4.1).
	revokedFrame = websocket.AppendFrame(nil, websocket.OpClose, append([]byte{0x03, 0xf0}, "token revoked"...))
)

// EndRevoked implements access.Revocable for the client's side of a tunnel.
func (s *side) EndRevoked() (ended bool) {
	t := s.t
	if s != &t.sides[0] || t.over || t.identity == nil || !t.identity.Revoked() {
		return false
	}
	if f := t.frames; f == nil || !f[1].between() { // a frame of the backend's is under way
		s.c.Abort(errRevoked)
		return true
	}
	s.c.Write(revokedFrame)
	t.end()
	return true
}
