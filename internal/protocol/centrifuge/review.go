package centrifuge

import (
	"unique"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
)

var _ access.Reviewed = (*session)(nil)

// Review implements access.Reviewed. A connection ends with the key of its token; a
// subscription with the key of its own, or with the right by which the client has it.
func (s *session) Review(r *access.Review) (stays bool) {
	if s.flags&(ended|refused) != 0 {
		return true
	}
	if r.Revoked != nil {
		return keepsAccess(s, r)
	}
	keys := s.srv().conf()
	proof := s.account.proof
	switch {
	case !r.Valid(proof), proof != (auth.Proof{}) && auth.By(proof) != keys.tokens:
		if !r.Dry {
			s.disconnect(protocol.DisconnectedInvalidToken)
		}
		return false
	case proof == (auth.Proof{}) && s.account.user == "" && s.flags&connected != 0 && r.ClosesAnonymous():
		if !r.Dry {
			s.disconnect(protocol.DisconnectedPermissionDenied)
		}
		return false
	}
	id := auth.Client(s.account.user, s.account.subscribe, s.account.publish)
	var lost []*subscription
	for x := range s.subscriptions() {
		if x.loses(r, &id) {
			lost = append(lost, x)
		}
	}
	for _, x := range lost {
		if x.pending() == nil {
			continue
		}
		if !r.Dry { // there is no answer yet that could be taken back
			s.disconnect(protocol.DisconnectedForceReconnect)
		}
		return false
	}
	if r.Dry {
		return true
	}
	for _, x := range lost {
		if s.flags&ended != 0 {
			return false
		}
		if pl := x.plan.Value(); pl.proof != (auth.Proof{}) && r.Known(pl.name) {
			x.expired() // the client may have a token of another key
		} else {
			x.unsubscribe(protocol.UnsubscribedByServer)
		}
	}
	return s.flags&ended == 0
}

// keepsAccess is Review of revocations.
func keepsAccess(s *session, r *access.Review) (stays bool) {
	if r.Revoked(s.account.user, idOf(s.account.token)) {
		s.disconnect(protocol.DisconnectedInvalidToken)
		return false
	}
	var lost []*subscription
	for x := range s.subscriptions() {
		if o := x.owned(); o != nil && o.token != nil && r.Revoked("", *o.token) {
			lost = append(lost, x)
		}
	}
	for _, x := range lost {
		if x.pending() != nil { // there is no answer yet that could be taken back
			s.disconnect(protocol.DisconnectedForceReconnect)
			return false
		}
	}
	for _, x := range lost {
		if s.flags&ended != 0 {
			return false
		}
		x.unsubscribe(protocol.UnsubscribedByServer)
	}
	return s.flags&ended == 0
}

// loses reports whether x is to end. What a token, a proxy or the server API gave stays
// whatever the namespace allows.
func (x *subscription) loses(r *access.Review, id *auth.Identity) bool {
	pl := x.plan.Value()
	if !r.Known(pl.name) || !r.Valid(pl.proof) || pl.proof != (auth.Proof{}) && auth.By(pl.proof) != x.s.srv().conf().subTokens {
		return true
	}
	if !r.Dry { // its options may be others now
		if ns, err := r.Now.Namespace(pl.name); err == nil {
			pl.ns = x.s.srv().namespace(ns)
			x.plan = unique.Make(pl)
		}
	}
	if pl.proof != (auth.Proof{}) || pl.flags&serverSide != 0 {
		return false
	}
	c := access.Caller{Identity: id}
	if r.Lost(access.Centrifuge, access.Read, pl.name, c, c) {
		return true
	}
	if !r.Dry && pl.flags&public == 0 && r.Now.Decide(access.Centrifuge, access.Read, pl.name, c) == access.Public &&
		r.Was.Decide(access.Centrifuge, access.Read, pl.name, c) == access.Full {
		pl.flags |= public
		x.plan = unique.Make(pl)
	}
	return false
}
