package pusher

import (
	"context"
	"errors"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// subscription is one channel of a session. The owner of the session's transport
// calls it.
type subscription struct {
	hub.Subscriber
	c      *session
	name   string // the protocol's
	kind   protocol.Kind
	active bool // the hub has started it, and it is counted
	moved  bool // it began in another process
	// fresh reports that a message has come: what the cache has is older.
	fresh bool
	at    uint64 // where it began
	// rare is what presence channels need; nil otherwise.
	rare *membership
}

var (
	_ hub.Sink      = (*subscription)(nil)
	_ hub.EventSink = (*subscription)(nil)
)

// subscribe takes pusher:subscribe.
func (c *session) subscribe(data []byte) {
	var in protocol.Subscribe
	if err := protocol.Fields(data, &in); err != nil || in.Channel == "" {
		c.complain(0, "", "pusher:subscribe: its data has no channel")
		return
	}
	if err := protocol.CheckChannel(in.Channel); err != nil {
		c.refuse(wire.Printable(in.Channel, protocol.MaxChannel), "InvalidChannel", err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case c.subs[in.Channel] != nil:
		c.complain(0, in.Channel, "Existing subscription to channel "+in.Channel)
		return
	case len(c.subs) >= c.s.conf().cfg.MaxSubscriptions:
		c.refuse(in.Channel, "LimitReached", "this connection has as many channels as it may", protocol.CloseQuota)
		return
	}
	sub := &subscription{c: c, name: in.Channel, kind: protocol.KindOf(in.Channel)}
	if kind, why, status := sub.authorize(&in); why != "" {
		c.refuse(in.Channel, kind, why, status)
		return
	}
	if c.subs == nil {
		c.subs = map[string]*subscription{}
	}
	c.subs[sub.name] = sub
	if err := c.t.Subscribe(&sub.Subscriber, sub, hub.SubscribeOptions{Channels: []string{c.app.channel(sub.name)}}); err != nil {
		sub.Failed(err)
	}
}

// refuse reports to the client that a subscription failed.
func (c *session) refuse(channel, kind, why string, status int) {
	c.s.counts.denied.Add(1)
	c.send(protocol.AppendSubscriptionError(nil, channel, kind, why, status))
}

// authorize checks a subscription. why is empty if it may start.
func (sub *subscription) authorize(in *protocol.Subscribe) (kind, why string, status int) {
	c := sub.c
	if sub.kind.Is(protocol.User) {
		if !c.s.may(access.Read, sub.hubName(), sub.signedIn()) {
			return "AuthError", "only the user who has signed in may subscribe to the user's channel", http.StatusUnauthorized
		}
		return "", "", 0
	}
	if !sub.kind.Is(protocol.Private) {
		if !c.s.may(access.Read, sub.hubName(), false) {
			return "AuthError", "the channel is not for clients of this protocol", http.StatusForbidden
		}
		return "", "", 0
	}
	signed := protocol.Equal(in.Auth, protocol.SignSubscription(c.app.Key, c.app.secret, c.id, in.Channel, in.ChannelData))
	if !c.s.may(access.Read, sub.hubName(), signed) {
		what := "socket_id:channel"
		if in.ChannelData != "" {
			what += ":channel_data"
		}
		return "AuthError", "auth is not the app's signature of " + what, http.StatusUnauthorized
	}
	if !sub.kind.Is(protocol.Presence) {
		return "", "", 0
	}
	var m protocol.Member
	var err error
	switch {
	case len(in.ChannelData) > c.s.conf().cfg.MaxMemberData:
		return "LimitReached", "channel_data is longer than max_member_data", http.StatusRequestEntityTooLarge
	case in.ChannelData != "":
		m, err = protocol.ParseMember(in.ChannelData)
	case c.user != nil:
		m = protocol.Member{ID: c.user.ID, Info: c.user.Info}
	default:
		err = errors.New("a presence channel needs channel_data with a user_id, or a user who has signed in")
	}
	if err != nil {
		return "AuthError", err.Error(), http.StatusUnauthorized
	}
	if revoked(c.s, m.ID) {
		return "AuthError", "the user was revoked", http.StatusUnauthorized
	}
	sub.rare = &membership{member: m}
	return sub.full()
}

// full refuses a further user where there are as many as there may be.
func (sub *subscription) full() (kind, why string, status int) {
	p, ch := sub.c.s.deps.Presence, sub.hubName()
	if _, users := p.Count(ch); users >= sub.c.s.conf().cfg.MaxMembers && !p.Has(ch, sub.rare.member.ID) {
		return "LimitReached", "the presence channel has as many members as it may", protocol.CloseQuota
	}
	return "", "", 0
}

func (sub *subscription) hubName() string { return sub.c.app.channel(sub.name) }

// Start reports that what follows comes.
func (sub *subscription) Start(at hub.Positions) {
	c := sub.c
	if c.gone || sub.moved {
		return
	}
	if len(at) == 1 {
		sub.at = at[0].Offset
	}
	if sub.kind.Is(protocol.Presence) {
		if kind, why, status := sub.enter(); why != "" {
			c.t.Unsubscribe(&sub.Subscriber)
			delete(c.subs, sub.name)
			c.refuse(sub.name, kind, why, status)
			return
		}
	}
	sub.active = true
	c.authorized = c.authorized || sub.kind.Is(protocol.Private)
	c.s.counts.subscribed.Add(1)
	c.s.deps.Presence.Add(sub.hubName(), presence.Pusher, 1)
	switch {
	case sub.rare != nil:
		c.event(protocol.EventSubscribed, sub.name, sub.members())
	case c.app.sendsCount(sub.kind):
		n := c.s.deps.Presence.Subscriptions(sub.hubName(), presence.Pusher)
		c.event(protocol.EventSubscribed, sub.name, protocol.AppendCount(nil, n))
	default:
		c.event(protocol.EventSubscribed, sub.name, []byte("{}"))
	}
	sub.countChanged()
	if sub.kind.Is(protocol.Cache) {
		sub.greet()
	}
}

// enter joins a presence channel.
func (sub *subscription) enter() (kind, why string, status int) {
	if kind, why, status = sub.full(); why != "" {
		return kind, why, status
	}
	m := &sub.rare.member
	if !sub.c.s.deps.Presence.Has(sub.hubName(), m.ID) {
		sub.rare.came = sub.c.t.Now()
	}
	err := sub.c.s.deps.Presence.Join(sub.hubName(), presence.Member{Client: sub.c.id, User: m.ID, ChanInfo: m.Info})
	switch {
	case errors.Is(err, presence.ErrTooLarge):
		return "LimitReached", err.Error(), http.StatusRequestEntityTooLarge
	case err != nil:
		return "ServerError", err.Error(), http.StatusServiceUnavailable
	}
	return "", "", 0
}

// members is what the client is notified of anyone who is there.
func (sub *subscription) members() []byte {
	list := membersOf(sub.c.s.deps.Presence.Members(sub.hubName(), 0))
	r := sub.rare
	r.known, r.until = make(map[string]bool, len(list)), sub.c.t.Now()+int64(newsTime)
	for _, m := range list {
		r.known[m.ID] = true
	}
	return protocol.AppendMembers(nil, list)
}

// greet sends the channel's last event, or says that there is none.
func (sub *subscription) greet() {
	c := sub.c
	var m *hub.Message
	var err error
	requested := c.t.Do(func(ctx context.Context) {
		m, err = c.s.deps.Hub.Latest(ctx, sub.hubName())
	}, func() {
		switch {
		case c.gone || c.subs[sub.name] != sub || sub.fresh:
		case err == nil && m.Offset > sub.at: // it is on its way
		case err == nil:
			c.out.deliver(c, m)
		default:
			c.event(protocol.EventCacheMiss, sub.name, nil)
			if errors.Is(err, hub.ErrNoMessage) {
				c.app.hook(hookEvent{Name: hookCacheMiss, Channel: sub.name})
			}
		}
	})
	if !requested { // too much to do: the client calls its application, as it would without a cache
		c.event(protocol.EventCacheMiss, sub.name, nil)
	}
}

// Live implements hub.Sink: nothing is replayed.
func (sub *subscription) Live() {}

// Deliver sends messages that come.
func (sub *subscription) Deliver(b *hub.Batch) {
	c := sub.c
	if c.gone {
		return
	}
	sub.fresh = true
	if c.out.queue == nil && c.namespace().MaxRate == 0 && sub.deliversAll(b.Messages) && !c.t.Stalled() {
		c.t.Deliver(b, c.s.deps.Format)
		return
	}
	for _, m := range b.Messages {
		if sub.delivers(m) && !c.gone {
			if sub.rare != nil {
				sub.introduce(m)
			}
			c.out.deliver(c, m)
		}
	}
}

// deliversAll reports whether messages go to the client as they are, with nothing between.
func (sub *subscription) deliversAll(messages []*hub.Message) bool {
	for _, m := range messages {
		if m.Attributes != nil && (!sub.delivers(m) || sub.rare != nil && m.Attributes.Origin != "") {
			return false
		}
	}
	return true
}

// delivers keeps from the client what it has sent itself, and from subscribers without a
// signature what is private.
func (sub *subscription) delivers(m *hub.Message) bool {
	a := m.Attributes
	return a == nil || a.Origin != sub.c.id && (!a.Private || sub.kind.Guarded())
}

// Event is news of the channel that is not a message.
func (sub *subscription) Event(e *hub.Event) {
	n, ok := e.Data.(*channelNews)
	if !ok || sub.c.gone || !sub.active {
		return
	}
	if r := sub.rare; r != nil && n.user != "" && !r.unseen(n, sub.c.t.Now()) {
		return
	}
	sub.c.t.Send(n.frame)
}

// Gap reports that messages may be missing.
func (sub *subscription) Gap(g hub.Gap) {
	if !sub.c.gone {
		sub.c.gap(sub.name, g)
	}
}

// Failed is the end of a subscription that cannot be had or kept.
func (sub *subscription) Failed(err error) {
	c := sub.c
	sub.leave()
	if c.gone {
		return
	}
	delete(c.subs, sub.name)
	e, kind := wire.ErrorOf(err), "ServerError"
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden { // by an extension
		kind = "AuthError"
	}
	c.refuse(sub.name, kind, e.Message, e.Status)
}

// Room reports whether replay is welcome.
func (sub *subscription) Room() bool { return !sub.c.t.Stalled() }

// unsubscribe takes pusher:unsubscribe.
func (c *session) unsubscribe(channel string) {
	sub := c.subs[channel]
	if sub == nil {
		return
	}
	c.t.Unsubscribe(&sub.Subscriber)
	delete(c.subs, channel)
	sub.leave()
}

// leave counts the subscription off.
func (sub *subscription) leave() {
	if !sub.active {
		return
	}
	sub.active = false
	p, ch := sub.c.s.deps.Presence, sub.hubName()
	if sub.rare != nil {
		p.Leave(ch, sub.c.id)
	}
	p.Add(ch, presence.Pusher, -1)
	sub.countChanged()
}

// sendsCount reports whether subscribers of channels of kind k are sent their number:
// on presence channels they know, and those of a user's are one.
func (a *app) sendsCount(k protocol.Kind) bool {
	return a.SubscriptionCount && !k.Is(protocol.Presence) && !k.Is(protocol.User)
}

// countChanged notes that the channel has one subscriber more, or less.
func (sub *subscription) countChanged() {
	if a := sub.c.app; a.sendsCount(sub.kind) || a.hooked[hookCount] && !sub.kind.Is(protocol.User) {
		sub.c.s.totals.changed(sub.hubName())
	}
}
