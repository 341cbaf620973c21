package pusher

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
)

// Moving to another process: a client keeps its socket_id, its user and its channels, each
// where it was, and is a member all the time.

// The fields of a session's state. Their meaning does not change; see takeover.State.
const (
	moveApp      = iota + 1 // its ID
	moveKey                 // hash of the app's key and secret, which the signatures rest on
	moveSocketID            //
	moveAge                 // nanoseconds since it opened
	movePinged              // nanoseconds since an unanswered ping, plus 1
	moveSigned              // 1: it showed a signature
	moveUser                // the user's ID
	moveUserInfo            // JSON
	moveWatched             // a user on the watchlist; repeated
	moveOnline              // a watched user that the client knows to be online; repeated
	moveOffline             // the same, for offline
	moveEvents              // of client events: thousandths left, plus 1
	moveMessages            // of messages: thousandths left, plus 1
	movePace                // of the maximum rate: thousandths left, plus 1
	moveSub                 // a subscription's state; repeated
	moveUnlogged            // frames of messages that are in no log, to be sent first
)

// The fields of a subscription's state.
const (
	subName     = iota + 1 // the protocol's
	subPosition            // repeated
	subMember              // a member's ID
	subInfo                // and info, JSON
)

var _ socket.Mover = (*session)(nil)

// AppendState implements socket.Mover.
func (c *session) AppendState(dst takeover.State) (takeover.State, bool) {
	if c.gone || c.id == "" || c.app == nil {
		return dst, false
	}
	now, key := c.t.Now(), c.app.keyHash()
	dst = dst.MustString(moveApp, c.app.ID).MustBytes(moveKey, key[:]).MustString(moveSocketID, c.id).MustUint(moveAge, uint64(now-c.opened))
	if c.pinged != 0 {
		dst = dst.Uint(movePinged, uint64(now-c.pinged)+1)
	}
	if c.authorized {
		dst = dst.MustUint(moveSigned, 1)
	}
	if u := c.user; u != nil {
		dst = dst.MustString(moveUser, u.ID).Bytes(moveUserInfo, u.Info)
		for _, id := range u.Watchlist {
			dst = dst.String(moveWatched, id)
		}
	}
	for id, online := range c.online {
		if online {
			dst = dst.String(moveOnline, id)
		} else {
			dst = dst.String(moveOffline, id)
		}
	}
	dst = dst.Uint(moveEvents, c.events.thousandths()).Uint(moveMessages, c.messages.thousandths()).Uint(movePace, c.out.pace.thousandths())
	return c.appendSubscriptions(dst)
}

// keyHash identifies a pair of key and secret, without giving them away.
func (a *app) keyHash() [sha256.Size]byte {
	return sha256.Sum256([]byte("weir takeover\x00" + a.Key + "\x00" + a.secret))
}

func (b *bucket) thousandths() uint64 { return uint64(b.tokens*1000) + 1 }

// restore is thousandths' way back, within what b has.
func (b *bucket) restore(v uint64) {
	if v > 0 {
		b.tokens = min(b.tokens, float64(v-1)/1000)
	}
}

// maxUnlogged bounds the messages that move because no log has them, in bytes.
const maxUnlogged = 256 << 10

func (c *session) appendSubscriptions(dst takeover.State) (takeover.State, bool) {
	var newest hub.Positions // all channels of an app are of one namespace
	at := make(map[*subscription]hub.Positions, len(c.subs))
	for _, sub := range c.subs {
		own, ok := sub.Position()
		if !ok || !sub.active {
			return dst, false
		}
		at[sub] = own
		for _, p := range own {
			if len(newest) == 0 || newest[0].Epoch == p.Epoch && newest[0].Offset < p.Offset {
				newest = hub.Positions{p}
			}
		}
	}
	if q := c.out.queue; q != nil {
		var ok bool
		if newest, ok = q.Position(newest); !ok {
			return dst, false
		}
		var frames []byte
		for m := range q.Messages() {
			if m.Offset == 0 && c.subs[channelOf(m.Channel)] != nil {
				frames = append(frames, c.s.deps.Hub.Encode(m, c.s.deps.Format)...)
			}
		}
		if len(frames) > maxUnlogged {
			return dst, false
		}
		dst = dst.MustBytes(moveUnlogged, frames)
	}
	for name, sub := range c.subs {
		s := takeover.State{}.MustString(subName, name)
		for _, p := range at[sub] {
			if len(newest) > 0 && newest[0].Epoch == p.Epoch && newest[0].Offset < p.Offset {
				p = newest[0]
			}
			s = s.MustString(subPosition, p.String())
		}
		if r := sub.rare; r != nil {
			s = s.MustString(subMember, r.member.ID).Bytes(subInfo, r.member.Info)
		}
		dst = dst.MustBytes(moveSub, s)
	}
	return dst, true
}

// Moved implements socket.Mover: no other client is notified.
func (c *session) Moved() {
	c.gone = true
	p := c.s.deps.Presence
	for _, sub := range c.subs {
		if sub.rare != nil {
			p.Depart(sub.hubName(), c.id)
		}
		p.Move(sub.hubName(), presence.Pusher, -1)
	}
	c.subs = nil
	if c.user != nil {
		c.app.users.remove(c.user.ID, c.user.Watchlist, c)
		if c.app.Watchlists {
			p.Depart(c.app.lobby, c.id)
		}
	}
	if c.out.queue != nil {
		c.out.queue.Forget(&c.s.lag)
	}
	p.Move(c.app.crowd, presence.Pusher, -1)
}

// An arrival is a client of another process.
type arrival struct {
	app                    *app
	id                     string
	age, pinged            int64
	signed                 bool
	user                   *protocol.SignedIn
	online                 map[string]bool
	events, messages, pace uint64
	subs                   []arrivingSub
	unlogged               []byte
}

type arrivingSub struct {
	name   string
	at     hub.Positions
	member *protocol.Member
}

var errApp = errors.New("the client's app is not here, is disabled, or has another key")

// ReadState is a socket.Reader for the protocol's clients, with the apps and rules of now.
func (s *Server) ReadState(state takeover.State) (*socket.Arriving, error) {
	a := &arrival{}
	var key, userInfo []byte
	var app, user string
	var age, pinged uint64
	var watched, online, offline []string
	err := state.Into([]any{
		moveApp: &app, moveKey: &key, moveSocketID: &a.id, moveAge: &age, movePinged: &pinged, moveSigned: &a.signed,
		moveUser: &user, moveUserInfo: &userInfo, moveWatched: &watched, moveOnline: &online, moveOffline: &offline,
		moveEvents: &a.events, moveMessages: &a.messages, movePace: &a.pace, moveUnlogged: &a.unlogged,
		moveSub: func(f takeover.Field) error { return a.readSubscription(takeover.State(f.Bytes)) },
	})
	a.app = s.conf().byID[app]
	a.age, a.pinged = int64(min(age, longest)), int64(min(pinged, longest))
	if user != "" || userInfo != nil || watched != nil {
		a.user = &protocol.SignedIn{ID: user, Info: bytes.Clone(userInfo), Watchlist: watched}
	}
	if len(online)+len(offline) > 0 {
		a.online = map[string]bool{}
	}
	for _, id := range online {
		a.online[id] = true
	}
	for _, id := range offline {
		a.online[id] = false
	}
	if err != nil {
		return nil, err
	}
	if a.app == nil || !a.app.Enabled.On() {
		return nil, errApp
	}
	if now := a.app.keyHash(); !bytes.Equal(key, now[:]) {
		return nil, errApp
	}
	for _, x := range a.subs {
		kind := protocol.KindOf(x.name)
		if !s.may(access.Read, a.app.channel(x.name), kind.Is(protocol.Private) || kind.Is(protocol.User)) {
			return nil, fmt.Errorf("the channel %q is not allowed here", x.name)
		}
	}
	if a.user != nil && revoked(s, a.user.ID) {
		return nil, errors.New("the user was revoked")
	}
	return &socket.Arriving{MaxMessage: s.conf().maxMessage(), Open: func(t socket.Transport) socket.Session { return a.open(s, t) }}, nil
}

// longest bounds what a state says of times, in nanoseconds: about 36 years.
const longest = 1 << 60

func (a *arrival) readSubscription(state takeover.State) error {
	x := arrivingSub{}
	var member string
	var info []byte
	err := state.Into([]any{
		subName: &x.name, subMember: &member, subInfo: &info,
		subPosition: func(f takeover.Field) error {
			at, err := hub.ParsePosition(string(f.Bytes))
			x.at = append(x.at, at)
			return err
		},
	})
	if err == nil {
		if err = protocol.CheckChannel(x.name); err != nil {
			err = fmt.Errorf("%w: %w", takeover.ErrState, err)
		}
	}
	if member != "" || info != nil {
		x.member = &protocol.Member{ID: member, Info: bytes.Clone(info)}
	}
	if err == nil && protocol.KindOf(x.name).Is(protocol.Presence) != (x.member != nil) {
		err = fmt.Errorf("%w: channel %q with a member: %v", takeover.ErrState, x.name, x.member != nil)
	}
	a.subs = append(a.subs, x)
	return err
}

// open makes the session.
func (a *arrival) open(s *Server, t socket.Transport) socket.Session {
	now := t.Now()
	c := &session{s: s, app: a.app, t: t, id: a.id, opened: now - a.age, user: a.user, online: a.online, authorized: a.signed}
	if a.pinged > 0 {
		c.pinged = now - (a.pinged - 1)
	}
	p := s.deps.Presence
	p.Move(c.app.crowd, presence.Pusher, 1)
	c.events = bucket{float64(s.conf().cfg.ClientEventRate), now}
	c.messages = bucket{float64(s.conf().cfg.burst()), now}
	c.out.pace = bucket{float64(c.namespace().MaxRate), now}
	c.events.restore(a.events)
	c.messages.restore(a.messages)
	c.out.pace.restore(a.pace)
	if u := c.user; u != nil {
		c.app.users.add(u.ID, u.Watchlist, c)
		if c.app.Watchlists {
			if err := p.Arrive(c.app.lobby, presence.Member{Client: c.id, User: u.ID}); err != nil {
				s.log.Warn("a user who signed in is not listed", "app", c.app.ID, "err", err)
			}
		}
	}
	if len(a.unlogged) > 0 {
		t.Write(a.unlogged)
	}
	c.subs = make(map[string]*subscription, len(a.subs))
	for i := range a.subs {
		c.rejoin(&a.subs[i])
	}
	c.arm(now)
	return c
}

// rejoin subscribes the client where it was.
func (c *session) rejoin(a *arrivingSub) {
	sub := &subscription{c: c, name: a.name, kind: protocol.KindOf(a.name), moved: true, fresh: true}
	c.subs[sub.name] = sub
	if m := a.member; m != nil {
		sub.rare = &membership{member: *m}
		if err := c.s.deps.Presence.Arrive(sub.hubName(), presence.Member{Client: c.id, User: m.ID, ChanInfo: m.Info}); err != nil {
			c.s.log.Warn("a member is not listed", "channel", sub.name, "err", err)
		}
	}
	sub.active = true
	c.s.deps.Presence.Move(sub.hubName(), presence.Pusher, 1)
	opt := hub.SubscribeOptions{Channels: []string{sub.hubName()}, Since: a.at}
	if err := c.t.Subscribe(&sub.Subscriber, sub, opt); err != nil {
		sub.Failed(err)
	}
}
