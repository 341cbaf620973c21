package centrifuge

import (
	"time"
	"unique"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
)

// nextExpiry is when something of the client ends. Where the client is to refresh it,
// some time is added.
func (s *session) nextExpiry() (time.Time, bool) {
	var next time.Time
	consider := func(at time.Time, byProxy bool) {
		if at.IsZero() {
			return
		}
		if at = s.endOf(at, byProxy); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	consider(s.account.expires, s.account.byProxy)
	if s.flags&subsExpire != 0 {
		for x := range s.subscriptions() {
			if o := x.owned(); o != nil && o.pending == nil {
				consider(o.expires, o.byProxy)
			}
		}
	}
	return next, !next.IsZero()
}

// endOf is when something that expires at at is ended.
func (s *session) endOf(at time.Time, byProxy bool) time.Time {
	if byProxy {
		return at
	}
	return at.Add(time.Duration(s.srv().conf().cfg.ExpiredCloseDelay))
}

func (s *session) isOver(at time.Time, byProxy bool) bool {
	return !at.IsZero() && !s.srv().now().Before(s.endOf(at, byProxy))
}

// expire ends what is over, or asks whether it may go on.
func (s *session) expire() {
	a := s.account
	switch {
	case !s.isOver(a.expires, a.byProxy):
	case a.byProxy:
		s.refreshByProxy()
	default:
		s.disconnect(protocol.DisconnectedExpired)
		return
	}
	if s.flags&subsExpire == 0 {
		return
	}
	var over []*subscription
	for x := range s.subscriptions() {
		if o := x.owned(); o != nil && o.pending == nil && s.isOver(o.expires, o.byProxy) {
			over = append(over, x)
		}
	}
	for _, x := range over {
		switch {
		case s.flags&ended != 0:
			return
		case x.owned().byProxy:
			s.subRefreshByProxy(x)
		default:
			s.expired(x)
		}
	}
}

// expired ends a subscription whose time is up.
func (s *session) expired(x *subscription) {
	if x.plan.Value().flags&serverSide != 0 {
		s.disconnect(protocol.DisconnectedSubscriptionExpired)
		return
	}
	s.unsubscribe(x, protocol.UnsubscribedExpired)
}

// refresh answers a refresh command: the client has a new token.
func (s *session) refresh(id uint32, token string) {
	if token == "" {
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	}
	srv := s.srv()
	s.withClaims(srv.conf().tokens, auth.ForClient, token, s.ordered(id), func(got *claims, err error) {
		if err != nil {
			switch e, d := verdict(err); {
			case d != nil:
				s.disconnect(*d)
			case e.Temporary:
				s.fail(id, *e)
			default:
				s.disconnect(protocol.DisconnectedExpired)
			}
			return
		}
		if got.Sub != s.account.user {
			s.disconnect(protocol.DisconnectedInvalidToken)
			return
		}
		s.renew(got.expires)
		a := s.account
		a.info, a.meta, a.subscribe, a.publish, a.proof = safe(got.Info), got.Meta, got.subscribe, got.publish, got.proof
		r := &protocol.RefreshResult{}
		if !got.expires.IsZero() {
			r.Expires, r.TTL = true, srv.ttl(got.expires)
		}
		s.reply(id, r)
	})
}

// renew gives the connection a new end.
func (s *session) renew(expires time.Time) {
	s.mayChange().expires = expires
	s.schedule()
}

// subRefresh answers a sub_refresh command.
func (s *session) subRefresh(c *protocol.Command) {
	srv, id, channel := s.srv(), c.ID, c.Sub.Channel
	in, ok := hubName(channel)
	switch {
	case channel == "":
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	case c.Type != 0:
		s.fail(id, protocol.ErrorNotAvailable)
		return
	case c.Sub.Token == "":
		s.fail(id, protocol.ErrorBadRequest)
		return
	case !ok || s.find(in) == nil:
		s.fail(id, protocol.ErrorPermissionDenied)
		return
	}
	s.withClaims(srv.conf().subTokens, auth.ForAny, c.Sub.Token, s.ordered(id), func(got *claims, err error) {
		x := s.find(in)
		switch {
		case err != nil:
			switch e, d := verdict(err); {
			case d != nil:
				s.disconnect(*d)
			case e.Temporary:
				s.fail(id, *e)
			default:
				s.fail(id, protocol.ErrorExpired)
			}
			return
		case !s.isFor(got, channel):
			s.disconnect(protocol.DisconnectedInvalidToken)
			return
		case x == nil:
			s.fail(id, protocol.ErrorPermissionDenied)
			return
		}
		x.renew(got.expires, safe(got.Info))
		pl := x.plan.Value()
		pl.proof = got.proof
		x.plan = unique.Make(pl)
		r := &protocol.SubRefreshResult{}
		if !got.expires.IsZero() {
			r.Expires, r.TTL = true, srv.ttl(got.expires)
		}
		s.reply(id, r)
	})
}

// renew gives a subscription a new end.
func (x *subscription) renew(expires time.Time, info []byte) {
	o := x.owned()
	if o == nil {
		if expires.IsZero() && info == nil {
			return
		}
		o = &own{}
		x.setOwn(o)
	}
	o.expires = expires
	if info != nil {
		o.info = info
	}
	if !expires.IsZero() {
		x.s.flags |= subsExpire
	}
	x.s.schedule()
}
