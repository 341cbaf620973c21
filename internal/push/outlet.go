package push

import "github.com/weir-gateway/weir/internal/push/hub"

// An outlet is what the hub calls in place of a session's sink. It keeps a panic from the
// hub, and messages from a client whose connection is being closed.
type outlet struct {
	t    *transport
	sink hub.Sink // nil: it has ended
}

// subscription is a sink of the session's, after the first.
type subscription struct {
	outlet
	sub  *hub.Subscriber
	next *subscription
}

// first is a transport as its own first subscription, which costs nothing that way.
type first transport

var (
	_ hub.Sink      = (*subscription)(nil)
	_ hub.EventSink = (*subscription)(nil)
	_ hub.Sink      = (*first)(nil)
	_ hub.EventSink = (*first)(nil)
)

// open reports whether the sink is called.
func (o *outlet) open() bool { return o.sink != nil && o.t.flags&(closeSent|isGone) == 0 }

// Start implements hub.Sink.
func (o *outlet) Start(at hub.Positions) {
	if o.open() {
		o.t.enter()
		defer o.t.exit()
		o.sink.Start(at)
	}
}

// Live implements hub.Sink.
func (o *outlet) Live() {
	if o.open() {
		o.t.enter()
		defer o.t.exit()
		o.sink.Live()
	}
}

// Deliver implements hub.Sink.
func (o *outlet) Deliver(b *hub.Batch) {
	if o.open() {
		o.t.enter()
		defer o.t.exit()
		o.sink.Deliver(b)
	}
}

// Gap implements hub.Sink.
func (o *outlet) Gap(gap hub.Gap) {
	if o.open() {
		o.t.enter()
		defer o.t.exit()
		o.sink.Gap(gap)
	}
}

// Failed implements hub.Sink.
func (o *outlet) Failed(err error) {
	if o.open() {
		o.t.enter()
		defer o.t.exit()
		o.sink.Failed(err)
	}
}

// Room implements hub.Sink.
func (o *outlet) Room() (ok bool) {
	if o.open() {
		o.t.enter()
		defer o.t.exit()
		ok = !o.t.loopState().historyPaused() && o.sink.Room()
	}
	return ok
}

// Event implements hub.EventSink.
func (o *outlet) Event(e *hub.Event) {
	if x, ok := o.sink.(hub.EventSink); ok && o.open() {
		o.t.enter()
		defer o.t.exit()
		x.Event(e)
	}
}

// outlet is where f's messages go.
func (f *first) outlet() outlet { return outlet{(*transport)(f), f.sink} }

// The methods of hub.Sink and hub.EventSink: the receivers stay on the stack.

func (f *first) Start(at hub.Positions) { o := f.outlet(); o.Start(at) }
func (f *first) Live()                  { o := f.outlet(); o.Live() }
func (f *first) Deliver(b *hub.Batch)   { o := f.outlet(); o.Deliver(b) }
func (f *first) Gap(gap hub.Gap)        { o := f.outlet(); o.Gap(gap) }
func (f *first) Failed(err error)       { o := f.outlet(); o.Failed(err) }
func (f *first) Event(e *hub.Event)     { o := f.outlet(); o.Event(e) }
func (f *first) Room() bool             { o := f.outlet(); return o.Room() }

// link makes the subscription of s and returns the sink for the hub.
func (t *transport) link(s *hub.Subscriber, sink hub.Sink) hub.Sink {
	if t.sub == nil {
		t.sub, t.sink = s, sink
		return (*first)(t)
	}
	g := &subscription{outlet: outlet{t, sink}, sub: s, next: t.subs()}
	t.ensureMore().subs = g
	return g
}

// unlink takes s off the list and mutes its sink. It reports whether it was there.
func (t *transport) unlink(s *hub.Subscriber) bool {
	if t.sub == s {
		t.sub, t.sink = nil, nil
		return true
	}
	if t.more == nil {
		return false
	}
	for at := &t.more.subs; *at != nil; at = &(*at).next {
		if g := *at; g.sub == s {
			*at, g.sink = g.next, nil
			t.tidy()
			return true
		}
	}
	return false
}

func (t *transport) endSubscriptions() {
	shard := t.loopState().shard
	t.loopState().unmark(t.conn)
	if sub := t.sub; sub != nil {
		t.sub, t.sink = nil, nil
		shard.Unsubscribe(sub)
	}
	for g := t.subs(); g != nil; g = g.next {
		g.sink = nil
		shard.Unsubscribe(g.sub)
	}
	if t.more != nil {
		t.more.subs = nil
		t.tidy()
	}
}
