package access

import (
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Review checks whether connected clients keep their rights in a reload. It
// is made before, with Dry, to count them, and after, to end those that do not. With Revoked it
// ends those who were revoked.
type Review struct {
	// Was decides as before the reload, Now as after it.
	Was, Now *Model
	// Identity returns who an identity is after the reload; false if what proved it is
	// gone. Valid reports whether a proof is still there.
	Identity func(*auth.Identity) (*auth.Identity, bool)
	Valid    func(auth.Proof) bool
	// Revoked reports whether a protocol's user, or the token of that user, is revoked; nil:
	// it is not checked. With it, nothing else is.
	Revoked func(user string, token auth.TokenID) bool
	// Dry has nothing changed.
	Dry bool
}

// Reviewed is a client's session that can be asked. Its owner calls it.
type Reviewed interface {
	// Review reports whether the client may stay. If not, and r is not dry, it has been
	// notified why and its connection closed; what it loses short of that has ended.
	Review(r *Review) (stays bool)
}

// A Revocable serves a client by a backend: a request that a route has forwarded, or a tunnel. Its
// owner calls it.
type Revocable interface {
	// EndRevoked ends it if the client is revoked by now, and reports whether it has.
	EndRevoked() (ended bool)
}

// Lost reports whether a right was there before and is not any more.
func (r *Review) Lost(by Protocol, op Op, channel string, was, now Caller) bool {
	if !r.Known(channel) {
		return true
	}
	return r.Now.Decide(by, op, channel, now) == Refused && r.Was.Decide(by, op, channel, was) != Refused
}

// ClosesAnonymous reports whether clients without a token could connect by the Centrifuge
// protocol, and cannot any more.
func (r *Review) ClosesAnonymous() bool {
	was, now := r.Was.rules.Load().cfg.Centrifuge, r.Now.rules.Load().cfg.Centrifuge
	return was != nil && was.Anonymous && (now == nil || !now.Anonymous)
}

// Known reports whether the channel's namespace is there after the reload.
func (r *Review) Known(channel string) bool {
	_, err := r.Now.rules.Load().namespace(channel)
	return err == nil
}

// Namespace returns the namespace of a channel, as m has it.
func (m *Model) Namespace(channel string) (*hub.Namespace, error) {
	return m.rules.Load().namespace(channel)
}
