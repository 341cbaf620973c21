package downstream

import (
	"net/http"

	"github.com/weir-gateway/weir/internal/front/access"
)

var _ access.Revocable = (*conn)(nil)

// EndRevoked implements access.Revocable: a request at a backend is answered 401, or cut if its reply
// has started. A call of gRPC ends with UNAUTHENTICATED.
func (h *conn) EndRevoked() (ended bool) {
	r := h.pending
	if r == nil || h.x == nil || r.c.Closing() {
		return false
	}
	err := h.loopState.srv.auth.Revoked().Refuse(r.policy.Identity)
	if err == nil {
		return false
	}
	h.abandon()
	e := tokenError(err)
	if reply := &r.forwarding.reply; !reply.began || !reply.cutGRPC(http.StatusUnauthorized, e.Message) {
		reply.stop(func() { r.fail(e) })
	}
	return true
}
