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
		if at = s.srv().conf().endOf(at, byProxy); next.IsZero() || at.Before(next) {
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
func (x *settings) endOf(at time.Time, byProxy bool) time.Time {
	if byProxy {
		return at
	}
	return at.Add(time.Duration(x.cfg.ExpiredCloseDelay))
}

func (x *settings) isOver(now, at time.Time, byProxy bool) bool {
	return !at.IsZero() && !now.Before(x.endOf(at, byProxy))
}

// expire ends what is over, or checks whether it may continue.
func (s *session) expire() {
	a, conf, now := s.account, s.srv().conf(), s.srv().now()
	switch {
	case !conf.isOver(now, a.expires, a.byProxy):
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
		if o := x.owned(); o != nil && o.pending == nil && conf.isOver(now, o.expires, o.byProxy) {
			over = append(over, x)
		}
	}
	for _, x := range over {
		switch {
		case s.flags&ended != 0:
			return
		case x.owned().byProxy:
			x.refreshByProxy()
		default:
			x.expired()
		}
	}
}

// expired ends a subscription whose time is up.
func (x *subscription) expired() {
	if x.plan.Value().flags&serverSide != 0 {
		x.s.disconnect(protocol.DisconnectedSubscriptionExpired)
		return
	}
	x.unsubscribe(protocol.UnsubscribedExpired)
}

// refresh answers a refresh command: the client has a new token.
func (s command) refresh(token string) {
	if token == "" {
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	}
	srv := s.srv()
	withClaims(srv, srv.conf().tokens, auth.ForClient, token, s.inOrder, func(got *claims, err error) {
		if err != nil {
			rejectToken(s, err, func() { s.disconnect(protocol.DisconnectedExpired) })
			return
		}
		if got.Sub != s.account.user {
			s.disconnect(protocol.DisconnectedInvalidToken)
			return
		}
		s.renew(got.expires)
		a := s.account
		a.info, a.meta, a.subscribe, a.publish, a.proof, a.token = safe(got.Info), got.Meta, got.subscribe, got.publish, got.proof, got.token
		r := &protocol.RefreshResult{}
		if !got.expires.IsZero() {
			r.Expires, r.TTL = true, srv.ttl(got.expires)
		}
		s.reply(r)
	})
}

// rejectToken answers a refresh whose token was not accepted, by expire unless the
// reason says otherwise.
func rejectToken(s command, err error, expire func()) {
	switch e, d := verdict(err); {
	case d != nil:
		s.disconnect(*d)
	case e.Temporary:
		s.fail(*e)
	default:
		expire()
	}
}

// renew gives the connection a new end.
func (s *session) renew(expires time.Time) {
	s.mayChange().expires = expires
	s.schedule()
}

// subRefresh answers a sub_refresh command.
func (s command) subRefresh(c *protocol.Command) {
	srv, channel := s.srv(), c.Sub.Channel
	in, ok := hubName(channel)
	switch {
	case channel == "":
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	case c.Type != 0:
		s.fail(protocol.ErrorNotAvailable)
		return
	case c.Sub.Token == "":
		s.fail(protocol.ErrorBadRequest)
		return
	case !ok || s.find(in) == nil:
		s.fail(protocol.ErrorPermissionDenied)
		return
	}
	withClaims(srv, srv.conf().subTokens, auth.ForAny, c.Sub.Token, s.inOrder, func(got *claims, err error) {
		x := s.find(in)
		switch {
		case err != nil:
			rejectToken(s, err, func() { s.fail(protocol.ErrorExpired) })
			return
		case !got.isFor(s.session, channel):
			s.disconnect(protocol.DisconnectedInvalidToken)
			return
		case x == nil:
			s.fail(protocol.ErrorPermissionDenied)
			return
		}
		x.renew(got.expires, safe(got.Info))
		if t := withJTI(got.token); t != nil || x.owned() != nil {
			mayOwn(x).token = t
		}
		pl := x.plan.Value()
		pl.proof = got.proof
		x.plan = unique.Make(pl)
		r := &protocol.SubRefreshResult{}
		if !got.expires.IsZero() {
			r.Expires, r.TTL = true, srv.ttl(got.expires)
		}
		s.reply(r)
	})
}

// renew gives a subscription a new end.
func (x *subscription) renew(expires time.Time, info []byte) {
	if x.owned() == nil && expires.IsZero() && info == nil {
		return
	}
	o := mayOwn(x)
	o.expires = expires
	if info != nil {
		o.info = info
	}
	if !expires.IsZero() {
		x.s.flags |= subsExpire
	}
	x.s.schedule()
}
