package downstream

import (
	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
)

// The fields of the state of a connection between two requests.
const connLater = 1 // 1: a request was answered

var _ eventloop.Mover = (*conn)(nil)

// AppendState implements eventloop.Mover: a connection moves between two requests, with what
// came of the next head.
func (h *conn) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	if h.state != readingHead || h.pending != nil || h.x != nil || h.waiting || h.ended || h.paused || h.private != nil {
		return dst, 0
	}
	if h.later {
		dst = dst.Uint(connLater, 1)
	}
	return dst, takeover.KindHTTP1
}

// Moved implements eventloop.Mover.
func (h *conn) Moved(*eventloop.Conn) {}

// Arrive makes c a connection between two requests, as its state says. timer is how long it
// was until it would have been too late, in nanoseconds; 0: it had no bound.
func (s *Server) Arrive(c *eventloop.Conn, state takeover.State, timer int64) (eventloop.Handler, error) {
	h := &conn{loopState: s.loopStates[c.Loop().ID()]}
	if err := state.Into([]any{connLater: &h.later}); err != nil {
		return nil, err
	}
	if timer > 0 {
		c.SetTimer(timer)
	}
	return h, nil
}

// tunnelIdentity is whose a tunnel is.
type tunnelIdentity struct {
	auth *auth.Authenticator
	id   *auth.Identity
}

// Revoked implements proxy.Identity.
func (t tunnelIdentity) Revoked() bool { return t.auth.Revoked().Refuse(t.id) != nil }

// AppendState implements proxy.Identity.
func (t tunnelIdentity) AppendState(dst takeover.State) (takeover.State, bool) {
	return t.auth.AppendState(dst, t.id)
}

// TunnelIdentity reads whose a tunnel is that comes from another process, by the keys and revocations that a has now. Any
// goroutine.
func TunnelIdentity(a *auth.Authenticator, state takeover.State) (proxy.Identity, error) {
	id, err := a.Restore(state)
	if err != nil || id == nil {
		return nil, err
	}
	return tunnelIdentity{a, id}, nil
}
