package hub

import (
	"fmt"
	"sync"
)

// An Event is delivered to the subscribers that a channel has on this node
// now, and to no others: that a member joined or left, say. It is
// not stored, has no place in the log and is not replayed.
type Event struct {
	// Channel it happened on; Notify fills it in.
	Channel string
	// Kind is a word that those who send and those who receive agree on.
	Kind string
	// Data is what they agreed on. It must not be changed afterwards.
	Data any

	mu    sync.Mutex
	forms forms
}

// An EventSink is a Sink that wants events. Others are passed over.
type EventSink interface {
	// Event is called as Sink's methods are, once the subscriber is live. Of two
	// calls the one that was notified first comes first, and an event comes after the
	// messages of its channel that had been delivered when it was notified.
	Event(e *Event)
}

// Encode returns what write makes of e, made once for all who request format f. The
// bytes are shared and immutable. Any goroutine.
func (e *Event) Encode(f Format, write func(dst []byte, e *Event) []byte) []byte {
	if p := e.forms.get(f); p != nil {
		return p.bytes
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.forms.get(f); p != nil {
		return p.bytes
	}
	b := write(nil, e)
	e.forms.add(f, b, false)
	return b
}

// Notify hands e to the live subscribers of channel on this node, and to those of
// its whole namespace, whose sinks are EventSinks. e must be new. It does not block;
// at a full queue it answers ErrOverloaded and has notified none. Any goroutine.
func (h *Hub) Notify(channel string, e *Event) error {
	n, err := h.namespaceOf(channel)
	switch {
	case err != nil:
		return err
	case h.closed.Load():
		return ErrClosed
	case h.overloaded():
		return fmt.Errorf("%w: a shard's queue is full", ErrOverloaded)
	}
	e.Channel = channel
	if ch := h.lookup(channel); ch != nil {
		ch.notify(e)
	}
	if w := n.whole.Load(); w != nil && w.name != channel {
		w.notify(e)
	}
	return nil
}

// notify queues e for every shard, after what was delivered so far.
func (ch *channel) notify(e *Event) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.state != chanActive {
		return // no live subscriber here
	}
	for _, l := range ch.locals {
		s := l.shard
		s.depth.Add(1) // it counts as a message does
		s.post(func() {
			l.event(e)
			s.depth.Add(-1)
		})
	}
}

// event hands e to the live subscribers of l.
func (l *local) event(e *Event) {
	l.flush()
	l.walk()
	for i := len(l.single) - 1; i >= 0; i-- {
		if s := l.single[i]; s != nil {
			if sink, ok := s.sink.(EventSink); ok {
				sink.Event(e)
			}
		}
	}
	for i := len(l.filtered) - 1; i >= 0; i-- {
		if s := l.filtered[i].s; s != nil {
			if sink, ok := s.sink.(EventSink); ok {
				sink.Event(e)
			}
		}
	}
	l.walked()
}
