package centrifuge

import (
	"context"
	"errors"
	"time"
	"unique"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// subscription is a client on a channel: its place in the hub, and its own sink. It
// belongs to the session's owner.
type subscription struct {
	sub hub.Subscriber
	s   *session // nil: the place is free
	// plan is what it has in common with others, which share it.
	plan unique.Handle[plan]
}

var (
	_ hub.Sink      = (*subscription)(nil)
	_ hub.EventSink = (*subscription)(nil)
)

// A plan is the channel of a subscription and its options.
type plan struct {
	ns    *namespace
	name  string
	flags planFlags
	proof auth.Proof // of a subscription token; zero: it came by another way
}

type planFlags uint8

// The states of moved sessions have these numbers: append only.
const (
	recoverable planFlags = 1 << iota // the client may recover
	positioned                        // the client is notified when it missed something
	serverSide                        // the client did not request it
	joinLeave                         // the client is notified of others
	tracked                           // others are notified of the client
	public                            // no private messages
)

// subscriptionExtras is the part of a subscription that few have.
type subscriptionExtras struct {
	// pending is set until the client has been answered.
	pending *pending
	expires time.Time // zero: never
	byProxy bool      // the proxy is asked then
	info    []byte    // for others
	filter  *protocol.Filter
	delta   *delta
	// token is that of a subscription token with a jti; nil otherwise.
	token *auth.TokenID
}

// pending is a subscription that the client has not been notified of yet.
type pending struct {
	*subscription
	subscribeOptions
	at       hub.Position // where it starts; zero without a log
	got      []*hub.Message
	bytes    int    // of got
	replayed int    // messages that the hub has replayed, wanted or not
	ready    bool   // all is there; only the connect command's answer is missing
	failed   bool   // it cannot be recovered
	then     func() // what waits for the answer; nil: nothing
}

// answered continues with what waits for the answer.
func (p *pending) answered() {
	if p.then != nil {
		p.then()
	}
}

// subscribeOptions are what a subscription is to be.
type subscribeOptions struct {
	channel string
	ns      *namespace
	flags   planFlags
	// requested are flags that the client requests and may have, whatever overrides the
	// namespace's.
	requested planFlags
	// recovering reports that the client comes with a position, since. recover gets what
	// came after it, cache only the newest message.
	recovering     bool
	recover, cache bool
	since          protocol.Position
	check          hub.Check // of since, if it came with one
	// reject requests an error if it cannot be recovered.
	reject  bool
	delta   bool
	filter  *protocol.Filter
	expires time.Time
	byProxy bool
	proof   auth.Proof // of a subscription token
	token   *auth.TokenID
	info    []byte // for others
	data    []byte // for the client
	// id is the command to answer; connect the one that it is a part of; announce has
	// the client notified by a push.
	id       uint32
	connect  *connect
	announce bool
}

const maxEpoch = 64

// attach starts a subscription.
func (s *session) attach(w subscribeOptions) {
	w.settle()
	x := s.newSubscription()
	x.plan = unique.Make(plan{ns: w.ns, name: w.channel, flags: w.flags, proof: w.proof})
	p := &pending{subscription: x, subscribeOptions: w}
	o := &subscriptionExtras{pending: p, expires: w.expires, byProxy: w.byProxy, info: w.info, filter: w.filter, token: withJTI(w.token)}
	if w.delta {
		o.delta = &delta{}
	}
	if !w.expires.IsZero() {
		s.flags |= subsExpire
	}
	x.setOwn(o)
	s.account.extras.indexed(x, s.subscriptions())
	if w.ns.rate > 0 {
		s.ensureExtras().limitRate(w.ns.rate, s.t.Now())
	}
	s.srv().counters.subscriptions.Add(1)
	p.begin()
}

// newSubscription adds a subscription whose plan is to be set.
func (s *session) newSubscription() *subscription {
	x := &s.first
	if x.s != nil {
		x = &subscription{}
		r := s.ensureExtras()
		r.more = append(r.more, x)
	}
	x.s = s
	return x
}

// begin subscribes at the hub.
func (p *pending) begin() {
	opt := hub.SubscribeOptions{Channels: []string{p.channel}}
	if p.recover && !p.cache && p.since.Epoch != "" {
		if len(p.since.Epoch) > maxEpoch {
			p.failed = true
		} else {
			at := p.s.srv().position(p.since)
			if p.check != 0 {
				at.Check = p.check
			}
			opt.Since = hub.Positions{at}
		}
	}
	if err := p.s.t.Subscribe(&p.sub, p.subscription, opt); err != nil {
		p.Failed(err)
	}
}

// again starts anew after the hub's call is over.
func (p *pending) again() {
	p.s.t.Unsubscribe(&p.sub)
	p.s.t.Post(func() {
		if p.subscription.pending() == p && p.s.flags&ended == 0 {
			p.begin()
		}
	})
}

func (x *subscription) pending() *pending {
	if o := x.owned(); o != nil {
		return o.pending
	}
	return nil
}

// owned is what most subscriptions do not have once they are established; nil then.
func (x *subscription) owned() *subscriptionExtras {
	if x.s == nil || x.s.account.extras == nil {
		return nil
	}
	if x == &x.s.first {
		return x.s.account.extras.firstExtras
	}
	return x.s.account.extras.otherExtras[x]
}

// mayOwn is owned of x, made if there is none.
func mayOwn(x *subscription) *subscriptionExtras {
	o := x.owned()
	if o == nil {
		o = &subscriptionExtras{}
		x.setOwn(o)
	}
	return o
}

func (x *subscription) setOwn(o *subscriptionExtras) {
	if o == nil && x.s.account.extras == nil {
		return
	}
	r := x.s.ensureExtras()
	switch {
	case x == &x.s.first:
		r.firstExtras = o
	case o == nil:
		delete(r.otherExtras, x)
	default:
		if r.otherExtras == nil {
			r.otherExtras = map[*subscription]*subscriptionExtras{}
		}
		r.otherExtras[x] = o
	}
}

// Start implements hub.Sink.
func (x *subscription) Start(at hub.Positions) {
	p := x.pending()
	if p == nil {
		return
	}
	if len(at) > 0 {
		p.at = at[0]
	}
	switch {
	case p.at.Epoch == "":
		p.recover = false // there is nothing to recover from
		p.complete()
	case p.recover && p.cache:
		p.readLatest()
	case p.failed && p.recover:
		p.unrecovered()
	case p.recover && p.since.Epoch == "":
		p.since.Epoch = x.s.srv().epoch(p.at.Epoch)
		p.again()
	case p.recover && !p.failed: // Live answers
	default:
		p.complete()
	}
}

// Live implements hub.Sink: what was to be recovered is there.
func (x *subscription) Live() {
	if p := x.pending(); p != nil && p.recover && !p.cache && !p.ready && x.s.flags&ended == 0 {
		p.complete()
	}
}

// Room implements hub.Sink.
func (x *subscription) Room() bool { return true }

// Deliver implements hub.Sink. The first case is what one delivery costs.
func (x *subscription) Deliver(b *hub.Batch) {
	s := x.s
	r := s.account.extras
	if (r == nil || r.plain() && x.owned() == nil) && s.flags&ended == 0 && !s.t.Stalled() && !x.withheld(b) {
		s.t.Deliver(b, s.account.kind.format)
		return
	}
	x.deliver(b)
}

// withheld reports whether b has something that x may not get.
func (x *subscription) withheld(b *hub.Batch) bool {
	for _, m := range b.Messages {
		if m.Attributes != nil && m.Attributes.Private && x.plan.Value().flags&public != 0 {
			return true
		}
	}
	return false
}

func (x *subscription) matches(m *hub.Message) bool {
	var tags map[string]string
	if a := m.Attributes; a != nil {
		if a.Private && x.plan.Value().flags&public != 0 {
			return false
		}
		tags = a.Tags
	}
	o := x.owned()
	return o == nil || o.filter == nil || o.filter.Match(tags)
}

// deliver is Deliver for subscriptions and clients that are not plain.
func (x *subscription) deliver(b *hub.Batch) {
	s := x.s
	if s.flags&ended != 0 {
		return
	}
	if p := x.pending(); p != nil {
		p.collect(b.Messages)
		return
	}
	for _, m := range b.Messages {
		if s.flags&ended != 0 || x.s == nil {
			return
		}
		if !x.matches(m) {
			continue
		}
		if s.account.extras != nil && (s.account.extras.backlog != nil || s.account.extras.pace != nil) || s.t.Stalled() {
			s.enqueue(m)
			continue
		}
		s.t.Send(x.encode(m))
	}
	if s.account.extras != nil && s.account.extras.pace != nil {
		s.Drained()
	}
}

// encode returns m for the client. It is called once for each message, in order.
func (x *subscription) encode(m *hub.Message) []byte {
	s := x.s
	k, srv, o := s.account.kind, s.srv(), x.owned()
	switch {
	case o != nil && o.delta != nil:
		return srv.deltas.next(k, o.delta, m)
	case k.ids && s.account.extras != nil && s.account.extras.positions != nil:
		id := s.account.extras.advance(m)
		if len(s.account.extras.positions) == 1 {
			break // its bytes have it
		}
		return append(id, srv.deps.Hub.Encode(m, srv.deps.Formats.uniSSE)...)
	}
	return srv.deps.Hub.Encode(m, k.format)
}

// collect keeps what comes before the client was answered.
func (p *pending) collect(messages []*hub.Message) {
	if p.recover && !p.cache && !p.ready {
		// The hub may remember more than the namespace promises to keep.
		if p.replayed += len(messages); p.replayed > p.ns.size {
			p.unrecovered()
			return
		}
	}
	for _, m := range messages {
		if p.matches(m) {
			p.got = append(p.got, m)
			p.count(len(m.Data))
		}
	}
	cfg := &p.s.srv().conf().cfg
	limit := cfg.RecoveryLimit
	switch {
	case p.cache:
		if len(p.got) > 1 {
			p.got = p.got[len(p.got)-1:]
			p.count(len(p.got[0].Data) - p.bytes)
		}
	case len(p.got) <= limit && (p.together() <= cfg.MaxQueue || len(p.got) == 1):
	case p.recover && !p.ready:
		p.unrecovered()
	case len(p.got) > 4*limit || p.bytes > 4*cfg.MaxQueue: // the connect command takes too long
		p.s.disconnect(protocol.DisconnectedSlow)
	}
}

// unrecovered starts anew where the channel is now, or gives up.
func (p *pending) unrecovered() {
	p.s.srv().counters.unrecovered.Add(1)
	p.count(-p.bytes)
	p.got, p.replayed, p.failed = nil, 0, true
	if p.reject && p.connect == nil {
		s := p.s
		p.drop()
		command{s, p.id}.fail(protocol.ErrorUnrecoverable)
		p.answered()
		return
	}
	p.since, p.check = protocol.Position{}, 0
	p.subscribeOptions.recover = false
	p.subscribeOptions.cache = false
	p.again()
}

// readLatest reads the newest message.
func (p *pending) readLatest() {
	var m *hub.Message
	var err error
	srv := p.s.srv()
	ok := p.s.do(func(ctx context.Context) { m, err = srv.deps.Hub.Latest(ctx, p.channel) }, func() {
		if p.subscription.pending() != p {
			return
		}
		switch {
		case errors.Is(err, hub.ErrNoMessage): // recovered only if the client has seen the end
			p.failed = p.since.Offset == 0 || srv.position(p.since).Epoch != p.at.Epoch || p.since.Offset != p.at.Offset
		case err != nil:
			p.failed = true
		case len(p.got) == 0 && p.matches(m) && (srv.position(p.since).Epoch != m.Epoch || p.since.Offset < m.Offset):
			p.got = append(p.got, m)
		}
		p.complete()
	})
	if !ok {
		p.failed = true
		p.complete()
	}
}

// Gap implements hub.Sink.
func (x *subscription) Gap(g hub.Gap) {
	p := x.pending()
	flags := x.plan.Value().flags
	switch {
	case x.s.flags&ended != 0:
	case p != nil && p.recover && !p.cache && !p.failed:
		p.unrecovered()
	case p != nil:
		p.at = g.At
	case flags&(recoverable|positioned) != 0:
		x.insufficient()
	}
}

// insufficient ends a subscription whose client missed something, so that it comes
// again and recovers.
func (x *subscription) insufficient() {
	s := x.s
	s.srv().counters.insufficient.Add(1)
	if x.plan.Value().flags&serverSide != 0 {
		s.disconnect(protocol.DisconnectedInsufficientState)
		return
	}
	x.unsubscribe(protocol.UnsubscribedInsufficientState)
}

// Failed implements hub.Sink.
func (x *subscription) Failed(err error) {
	s, p := x.s, x.pending()
	switch {
	case s == nil || s.flags&ended != 0:
	case p == nil:
		x.insufficient()
	case p.connect != nil:
		x.drop()
		p.connect.failed(errorOf(err))
	default:
		x.drop()
		if p.id != 0 {
			command{s, p.id}.fail(errorOf(err))
		}
		p.answered()
	}
}

// Event implements hub.EventSink.
func (x *subscription) Event(e *hub.Event) {
	if e.Kind != eventKind || x.s.flags&ended != 0 || x.plan.Value().flags&joinLeave == 0 {
		return
	}
	if x.pending() != nil {
		return // the client does not know of the subscription yet
	}
	k := x.s.account.kind
	if b := e.Encode(k.format, k.appendEvents); len(b) > 0 && x.s != nil {
		x.s.send(b)
	}
}

// complete is called when nothing is missing but the answer.
func (p *pending) complete() {
	p.ready = true
	if p.connect != nil {
		p.connect.one()
		return
	}
	s := p.s
	r, rest := p.finish()
	switch {
	case p.id != 0:
		command{s, p.id}.reply(r)
	case p.announce:
		s.push(p.channel, &protocol.Subscription{
			Recoverable: r.Recoverable, Epoch: r.Epoch, Offset: r.Offset, Positioned: r.Positioned, Data: r.Data,
		})
		rest = append(rest, p.got...)
	}
	p.sendAll(rest)
	p.answered()
}

// finish makes the subscription one that the client knows of, and returns the answer.
// rest is what the client is sent after it.
func (p *pending) finish() (r *protocol.SubscribeResult, rest []*hub.Message) {
	s := p.s
	enc := s.kind().enc
	f := p.plan.Value().flags
	r = &protocol.SubscribeResult{
		Data: p.data, Delta: p.subscribeOptions.delta, WasRecovering: p.recovering,
	}
	if p.at.Epoch != "" && f&(positioned|recoverable) != 0 {
		r.Recoverable, r.Positioned = f&recoverable != 0, f&(positioned|recoverable) != 0
		r.Epoch, r.Offset = s.srv().epoch(p.at.Epoch), p.at.Offset
	}
	if !p.expires.IsZero() && !p.byProxy {
		r.Expires, r.TTL = true, s.srv().ttl(p.expires)
	}
	switch {
	case p.recover && !p.failed && !p.announce:
		r.Recovered = true
		s.srv().counters.recovered.Add(1)
		r.Offset = p.since.Offset // publications take the client on from there
		for _, m := range p.got {
			r.Publications = append(r.Publications, p.publication(m, enc))
		}
	case !p.announce:
		rest = p.got
	}
	if st := s.standings(); st != nil {
		at := p.at
		if r.Recovered && len(p.got) > 0 {
			at = p.got[len(p.got)-1].Position()
		}
		st[p.channel] = at
	}
	o := p.owned()
	if o.pending = nil; o.expires.IsZero() && o.info == nil && o.filter == nil && o.delta == nil && o.token == nil {
		p.setOwn(nil)
	}
	p.join()
	if !p.expires.IsZero() {
		s.schedule()
	}
	s.srv().events.subscribed(s, p.channel)
	s.slim()
	return r, rest
}

// publication returns m as a part of an answer.
func (x *subscription) publication(m *hub.Message, enc protocol.Encoding) *protocol.Publication {
	p := publicationOf(m, enc)
	if o := x.owned(); o != nil && o.delta != nil {
		p.Data = payloadOf(m, enc)
		p.Text = true
		o.delta.before = m
	}
	return &p
}

func (x *subscription) sendAll(messages []*hub.Message) {
	for _, m := range messages {
		if x.s == nil || x.s.flags&ended != 0 {
			return
		}
		x.s.send(x.encode(m))
	}
}

// drop ends x without a word.
func (x *subscription) drop() {
	s := x.s
	s.t.Unsubscribe(&x.sub)
	x.left()
	s.account.extras.forget(x)
	x.setOwn(nil)
	x.s = nil
}

// unsubscribe ends x and notifies the client why.
func (x *subscription) unsubscribe(why protocol.Unsubscription) {
	s, name := x.s, x.plan.Value().name
	x.drop()
	s.push(name, why)
	s.srv().events.unsubscribed(s, name, why)
}
