package push

import (
	"fmt"
	"net/http"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

var (
	errTooOften   = fmt.Errorf("%w: too many publications from this address", hub.ErrOverloaded)
	errTimePassed = fmt.Errorf("%w: expired, not executed", hub.ErrOverloaded)
)

var (
	_ Job = (*publication)(nil)
	_ Job = (*waitingBroadcast)(nil)
)

// offer publishes pub, queued: at once if its namespace has no class.
func (x *publication) offer(pub hub.Publication, topics []string) {
	channel := pub.Channel
	if len(topics) > 0 {
		channel = topics[0]
	}
	class := x.push.ClassOf(channel)
	if class == limit.Unclassed {
		x.publish(pub, topics)
		return
	}
	x.pub, x.topics = pub, topics
	l, key := x.loopState, limit.Key{}
	if topics == nil && pub.IdempotencyKey == "" {
		key = x.push.key(channel, pub.Key)
	}
	late, now := l.Late()
	v, old := l.Offer(class, key, x, late, now)
	switch v {
	case limit.Go:
		fanoutCost := l.EstimateFanout(x)
		x.Serve()
		l.Served(class, fanoutCost, now)
	case limit.Refuse:
		x.Shed(false)
	case limit.Replaced:
		x.older = old.(*publication) // only publications have keys
	case limit.Wait:
	}
}

// Serve implements Job.
func (x *publication) Serve() {
	pub, topics := x.pub, x.topics
	x.pub, x.topics = hub.Publication{}, nil
	x.publish(pub, topics)
}

// Shed implements Job.
func (x *publication) Shed(expired bool) {
	x.pub, x.topics = hub.Publication{}, nil
	x.state.Store(answered) // it never was the hub's: it can be used again
	for o := x.older; o != nil; {
		next := o.older
		o.older = nil
		o.Shed(expired)
		o = next
	}
	x.older = nil
	x.push.counters.publishErrors.Add(1)
	l, then, answer := x.loopState, x.then, x.answer
	l.recycle(x)
	err, body := hub.ErrOverloaded, overloadedBody
	if expired {
		err, body = errTimePassed, expiredBody
	}
	if then != nil {
		then(hub.Position{}, err)
		return
	}
	answer(http.StatusServiceUnavailable, body)
}

// Gone implements Job. One that has replaced others is published for them.
func (x *publication) Gone() bool { return x.older == nil && x.conn.Closing() }

// Conn implements Job.
func (x *publication) Conn() *eventloop.Conn { return x.conn }

// Fanout implements Job.
func (x *publication) Fanout() (n int, channel string) {
	if x.topics == nil {
		return x.loopState.shard.Interest(x.pub.Channel), x.pub.Channel
	}
	for _, t := range x.topics {
		n += x.loopState.shard.Interest(t)
	}
	return n, ""
}

// notifyOlder answers those whose place x has taken.
func (x *publication) notifyOlder() {
	for o := x.older; o != nil; {
		next := o.older
		o.older = nil
		o.state.Store(answered)
		o.conflated(x.pos, x.failed)
		o = next
	}
	x.older = nil
}

// conflated answers one whose place a newer one has taken: with that one's position.
func (x *publication) conflated(at hub.Position, err error) {
	x.pos, x.failed = at, err
	switch {
	case x.then != nil:
		x.notifyProtocol()
	case err != nil:
		x.refused(wire.ErrorOf(err))
	default:
		x.push.counters.published.Add(1)
		l, answer := x.loopState, x.answer
		l.answer = wire.AppendConflated(l.answer[:0], at)
		l.recycle(x)
		answer(http.StatusOK, l.answer)
	}
}

// waitingBroadcast is a broadcast of a class.
type waitingBroadcast struct {
	*broadcast
	conn *eventloop.Conn
	call *Call
	who  *auth.Identity
}

// queueBroadcast queues w and publishes it.
func (l *LoopState) queueBroadcast(class limit.Class, w *waitingBroadcast) {
	late, now := l.Late()
	switch v, _ := l.Offer(class, limit.Key{}, w, late, now); v {
	case limit.Go:
		fanoutCost := l.EstimateFanout(w)
		w.Serve()
		l.Served(class, fanoutCost, now)
	case limit.Refuse:
		w.Shed(false)
	case limit.Wait, limit.Replaced:
	}
}

// Serve implements Job.
func (w *waitingBroadcast) Serve() { w.publish(w.conn, w.call, w.who) }

// Shed implements Job.
func (w *waitingBroadcast) Shed(expired bool) {
	w.loopState.push.counters.publishErrors.Add(uint64(len(w.call.Channels)))
	body := overloadedBody
	if expired {
		body = expiredBody
	}
	w.answer(http.StatusServiceUnavailable, body)
}

// Gone implements Job.
func (w *waitingBroadcast) Gone() bool { return w.conn.Closing() }

// Conn implements Job.
func (w *waitingBroadcast) Conn() *eventloop.Conn { return w.conn }

// Fanout implements Job.
func (w *waitingBroadcast) Fanout() (n int, channel string) {
	for _, ch := range w.call.Channels {
		n += w.loopState.shard.Interest(ch)
	}
	return n, ""
}
