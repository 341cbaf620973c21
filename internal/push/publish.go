package push

import (
	"bytes"
	"net/http"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// An APIError is an answer to an API call that is not a success.
type APIError = wire.Error

// A Call is one parsed API call.
type Call = wire.Call

// MaxBody bounds the body of an API call.
const MaxBody = wire.MaxBody

// ParsePublish reads the body of /api/publish. The result shares nothing with body.
func (p *Push) ParsePublish(body []byte) (*Call, *APIError) { return wire.ParsePublish(p.hub, body) }

// ParseBroadcast reads the body of /api/broadcast.
func (p *Push) ParseBroadcast(body []byte) (*Call, *APIError) { return wire.ParseBroadcast(body) }

// ErrorOf says in HTTP what the hub or the broker refused.
func ErrorOf(err error) *APIError { return wire.ErrorOf(err) }

// AppendError appends the JSON of an error answer.
func AppendError(b []byte, e *APIError) []byte { return wire.AppendError(b, e) }

// publishCall is Publish for what is allowed.
func (p *Push) publishCall(c *eventloop.Conn, call *Call, who *auth.Identity, answer func(status int, body []byte)) {
	if call.Broadcast {
		p.broadcast(c, call, who, answer)
		return
	}
	x := p.LoopState(c).publication(c, call.Channels[0])
	x.answer = answer
	x.offer(call.For(0, who), nil)
}

// publication is one call of the hub under way.
type publication struct {
	push      *Push
	loopState *LoopState
	done      func(hub.Position, error) // x.answered, made once

	conn    *eventloop.Conn
	channel string
	answer  func(status int, body []byte) // of a call on its own
	all     *broadcast                    // the call it is part of, else nil
	then    func(hub.Position, error)     // of a protocol's; else nil

	// Until it is the hub's: what is queued.
	pub    hub.Publication
	topics []string // of PublishTopicsFor; else nil
	// older are those whose place x has taken: they are answered as x is.
	older *publication

	state  atomic.Uint32 // who is first: the broker's answer, or Publish's return
	pos    hub.Position
	failed error
	bad    *APIError // what failed means for the client
}

// maxSparePublications bounds what a loop keeps for the next calls.
const maxSparePublications = 256

// publication returns an empty one, used before if there is one.
func (l *LoopState) publication(c *eventloop.Conn, channel string) *publication {
	var x *publication
	if n := len(l.publications); n > 0 {
		x = l.publications[n-1]
		l.publications[n-1] = nil
		l.publications = l.publications[:n-1]
	} else {
		x = &publication{push: l.push, loopState: l}
		x.done = x.answered
	}
	x.conn, x.channel = c, channel
	return x
}

// recycle keeps x for the next call, if the hub is done with it for certain:
// it answered before Publish returned.
func (l *LoopState) recycle(x *publication) {
	if x.state.Load() == answered && len(l.publications) < maxSparePublications {
		*x = publication{push: x.push, loopState: l, done: x.done}
		l.publications = append(l.publications, x)
	}
}

// States of a publication.
const (
	publishing uint32 = iota
	answered
	returned
)

// publish hands pub to the hub.
func (x *publication) publish(pub hub.Publication, topics []string) {
	x.push.counters.storing.Add(1)
	if topics != nil {
		x.push.hub.PublishTopics(topics, pub, x.done)
	} else {
		x.push.hub.Publish(pub, x.done)
	}
	x.returned()
}

// returned comes after the call of the hub.
func (x *publication) returned() {
	if !x.state.CompareAndSwap(publishing, returned) {
		x.complete()
	}
}

// answered is what the broker calls, from any goroutine.
func (x *publication) answered(at hub.Position, err error) {
	x.pos, x.failed = at, err
	if !x.state.CompareAndSwap(publishing, answered) {
		x.conn.Loop().Post(x.complete)
	}
}

// complete counts the outcome and passes it on. On the connection's loop, once.
func (x *publication) complete() {
	p := x.push
	p.counters.storing.Add(-1)
	if x.older != nil {
		x.notifyOlder()
	}
	if x.then != nil {
		x.notifyProtocol()
		return
	}
	if x.failed == nil {
		p.counters.published.Add(1)
		x.finish()
		return
	}
	if x.bad = wire.ErrorOf(x.failed); x.bad.Status == http.StatusInternalServerError {
		p.log.Warn("publish", "channel", x.channel, "err", x.failed)
	}
	x.refused(x.bad)
}

// notifyProtocol is the outcome of a protocol's publication.
func (x *publication) notifyProtocol() {
	if x.failed == nil {
		x.push.counters.published.Add(1)
	} else {
		x.push.counters.publishErrors.Add(1)
	}
	then, at, err := x.then, x.pos, x.failed
	x.loopState.recycle(x)
	then(at, err)
}

// PublishFor publishes pub for c's client and has done called once on c's loop, before
// it returns or later. c may be closed by then.
func (p *Push) PublishFor(c *eventloop.Conn, pub hub.Publication, done func(hub.Position, error)) {
	p.publishFor(c, nil, pub, done)
}

// PublishTopicsFor is PublishFor for hub.Hub.PublishTopics.
func (p *Push) PublishTopicsFor(c *eventloop.Conn, topics []string, pub hub.Publication, done func(hub.Position, error)) {
	p.publishFor(c, topics, pub, done)
}

// publishDecided is publishFor for what is allowed.
func (p *Push) publishDecided(c *eventloop.Conn, topics []string, pub hub.Publication, done func(hub.Position, error)) {
	if _, ok := p.front.Publish(p.front.Peer(c.Peer().Addr()), "", c.Loop().Now()); !ok {
		p.counters.publishErrors.Add(1)
		done(hub.Position{}, errTooOften)
		return
	}
	if topics != nil {
		pub.Channel = ""
	}
	x := p.LoopState(c).publication(c, pub.Channel)
	x.then = done
	x.offer(pub, topics)
}

// refused is the outcome of a publication that was not let through.
func (x *publication) refused(bad *APIError) {
	x.bad = bad
	x.push.counters.publishErrors.Add(1)
	x.finish()
}

// finish answers the call, if x was all it waited for.
func (x *publication) finish() {
	if x.all != nil {
		x.all.finish()
		return
	}
	l, answer, status := x.loopState, x.answer, http.StatusOK
	l.answer = x.append(l.answer[:0])
	if x.bad != nil {
		status = x.bad.Status
	}
	l.recycle(x)
	answer(status, l.answer)
}

// append appends the JSON of the outcome.
func (x *publication) append(b []byte) []byte {
	if x.bad != nil {
		return wire.AppendError(b, x.bad)
	}
	return wire.AppendResult(b, x.pos)
}

// broadcast is a call that publishes to several channels in order, and answers
// when all have answered.
type broadcast struct {
	loopState *LoopState
	left      int
	all       []*publication
	answer    func(status int, body []byte)
}

func (p *Push) broadcast(c *eventloop.Conn, call *Call, who *auth.Identity, answer func(int, []byte)) {
	l := p.LoopState(c)
	b := &broadcast{loopState: l, left: len(call.Channels), all: make([]*publication, len(call.Channels)), answer: answer}
	if class := p.LeastOf(call.Channels); class != limit.Unclassed {
		l.queueBroadcast(class, &waitingBroadcast{broadcast: b, conn: c, call: call, who: who})
		return
	}
	b.publish(c, call, who)
}

// publish starts all of them.
func (b *broadcast) publish(c *eventloop.Conn, call *Call, who *auth.Identity) {
	for i, ch := range call.Channels {
		b.all[i] = b.loopState.publication(c, ch)
		b.all[i].all = b
	}
	for from := 0; from < len(b.all); from += prefetchAhead {
		b.publishSome(call, from, min(from+prefetchAhead, len(b.all)), who)
	}
}

// prefetchAhead is how many publications are looked up together.
const prefetchAhead = 64

// publishSome is publish for the channels between from and to.
func (b *broadcast) publishSome(call *Call, from, to int, who *auth.Identity) {
	l := b.loopState
	pubs := l.pubs[:0]
	l.pubs = nil // a call of the hub may come back here
	for i := from; i < to; i++ {
		pubs = append(pubs, call.For(i, who))
	}
	l.push.hub.Prefetch(pubs)
	for i, pub := range pubs {
		x := b.all[from+i]
		if bad := l.push.access.MayPublish(who, x.channel); bad != nil {
			x.refused(bad)
			continue
		}
		x.publish(pub, nil)
	}
	clear(pubs)
	l.pubs = pubs
}

// finish is called for each publication and answers at the last.
func (b *broadcast) finish() {
	if b.left--; b.left > 0 {
		return
	}
	l := b.loopState
	text := append(l.answer[:0], `{"result":{"responses":[`...)
	for i, x := range b.all {
		if i > 0 {
			text = append(text, ',')
		}
		text = bytes.TrimSuffix(x.append(text), []byte("\n"))
		l.recycle(x)
	}
	text = append(text, "]}}\n"...)
	if l.answer = text; cap(text) > 64<<10 {
		l.answer = nil
	}
	b.answer(http.StatusOK, text)
}
