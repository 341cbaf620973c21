package pusher

import (
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// outbox holds the messages that a client cannot take yet.
type outbox struct {
	queue *backlog.Queue // what the client is too slow for; nil if there is nothing
	pace  bucket         // of messages, if the namespace has a maximum rate
}

// deliver sends a message to c, or keeps it if c is slow.
func (o *outbox) deliver(c *session, m *hub.Message) {
	if o.queue == nil && !c.t.Stalled() && o.inTime(c) {
		c.t.Send(c.s.deps.Hub.Encode(m, c.s.deps.Format))
		return
	}
	if o.queue == nil {
		o.queue = &backlog.Queue{}
	}
	if !o.queue.Push(m, c.namespace(), &c.s.lag) {
		c.s.counts.slow.Add(1)
		c.close(protocol.CloseCapacity, "The client reads too slowly")
		return
	}
	if c.namespace().MaxRate > 0 {
		c.arm(c.t.Now())
	}
}

// inTime reports whether a further message is within the namespace's maximum rate.
func (o *outbox) inTime(c *session) bool {
	rate := c.namespace().MaxRate
	return rate == 0 || o.pace.allow(c.t.Now(), rate, rate)
}

// Drained implements socket.Session: what waited is sent, as long as the client takes it.
func (c *session) Drained() {
	q := c.out.queue
	if c.gone || q == nil {
		return
	}
	for _, g := range q.PopDropped(&c.s.lag) {
		c.gap("", g)
	}
	for !c.t.Stalled() && !c.gone {
		if g, ok := q.PopGap(); ok {
			c.gap("", g)
			continue
		}
		if q.Len() == 0 {
			c.out.queue = nil
			return
		}
		if !c.out.inTime(c) {
			c.arm(c.t.Now())
			return
		}
		if m := q.Pop(&c.s.lag); c.subs[channelOf(m.Channel)] != nil {
			c.t.Send(c.s.deps.Hub.Encode(m, c.s.deps.Format))
		}
	}
}
