package pusher

import (
	"time"

	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/presence"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// session is one client. All its methods are for the owner of its transport.
type session struct {
	// Fixed when it opens.
	s      *Server
	app    *app // nil if the key is unknown
	t      socket.Transport
	id     string // the socket_id; empty for a client that is turned away
	opened int64

	// Owned by the transport's owner.
	subs       map[string]*subscription // by the protocol's name
	user       *protocol.SignedIn       // nil until it signs in
	online     map[string]bool          // those whom the user watches, as sent to the client; nil if none
	out        outbox                   // messages for it
	events     bucket                   // of client events
	messages   bucket                   // of all that the client says
	pinged     int64                    // when a ping was sent that was not answered yet; 0: none
	authorized bool                     // signed in, or showed a signature for a channel
	gone       bool                     // closing, or closed
}

var (
	_ socket.Session    = (*session)(nil)
	_ socket.Identified = (*session)(nil)
)

// Subject is the user who has signed in.
func (c *session) Subject() string {
	if c.user == nil {
		return ""
	}
	return c.user.ID
}

// bucket is a budget that fills with time.
type bucket struct {
	tokens float64
	at     int64
}

// allow takes a token, of which there are rate more a second and never more than most.
func (b *bucket) allow(now int64, rate, most int) bool {
	b.tokens = min(float64(most), b.tokens+float64(now-b.at)/1e9*float64(rate))
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// Message is a frame of the client.
func (c *session) Message(b []byte, binary bool) {
	if c.gone {
		return
	}
	if !c.messages.allow(c.t.Now(), c.s.conf().cfg.MessageRate, c.s.conf().cfg.burst()) {
		c.s.counts.flooded.Add(1)
		c.close(protocol.CloseCapacity, "The client sends more than it may")
		return
	}
	if binary {
		c.complain(0, "", "binary messages are not supported")
		return
	}
	f, err := protocol.ParseFrame(b)
	if err != nil {
		c.complain(0, "", "the message could not be read: it must be a JSON object with an event")
		return
	}
	switch f.Event {
	case protocol.EventPing:
		c.send([]byte(`{"event":"pusher:pong","data":"{}"}`))
	case protocol.EventPong:
	case protocol.EventSubscribe:
		c.subscribe(f.Data)
	case protocol.EventUnsubscribe:
		var in protocol.Subscribe
		if protocol.Fields(f.Data, &in) == nil {
			c.unsubscribe(in.Channel)
		}
	case protocol.EventSignin:
		c.signin(f.Data)
	default:
		if protocol.IsClientEvent(f.Event) {
			c.clientEvent(f)
			return
		}
		c.complain(0, f.Channel, "no such event: clients send pusher: events and client- events")
	}
}

// Pong is an answer to a ping of WebSocket's own, of which none are sent.
func (c *session) Pong() {}

// Timer looks after clients that are silent or do not authorize.
func (c *session) Timer() {
	if c.gone {
		return
	}
	now, lastRead := c.t.Now(), c.t.LastRead()
	if within := int64(c.app.AuthorizeWithin); within > 0 && !c.authorized && now-c.opened >= within {
		c.deny("Connection not authorized within timeout")
		return
	}
	if c.pinged != 0 && lastRead >= c.pinged {
		c.pinged = 0
	}
	switch {
	case c.pinged != 0 && now-c.pinged >= int64(c.s.conf().cfg.PongTimeout):
		c.s.counts.unanswered.Add(1)
		c.close(protocol.CloseNoPong, "Pong reply not received")
		return
	case c.pinged == 0 && now-lastRead >= c.s.conf().cfg.silence():
		c.pinged = now
		c.send([]byte(`{"event":"pusher:ping","data":"{}"}`))
	}
	c.Drained()
	if !c.gone {
		c.arm(now)
	}
}

// arm sets the timer for what comes first.
func (c *session) arm(now int64) {
	next := c.t.LastRead() + c.s.conf().cfg.silence()
	if c.pinged != 0 {
		next = c.pinged + int64(c.s.conf().cfg.PongTimeout)
	}
	if within := int64(c.app.AuthorizeWithin); within > 0 && !c.authorized {
		next = min(next, c.opened+within)
	}
	if rate := c.namespace().MaxRate; rate > 0 && c.out.queue != nil {
		next = min(next, now+int64(time.Second)/int64(rate))
	}
	c.t.SetTimer(time.Duration(max(next-now, int64(time.Millisecond))))
}

// Drain sends the client away, in a way that pusher-js does not take for a reason to
// give WebSocket up: it comes back at once if there is another node to go to, otherwise
// after a second, until the next process is there.
func (c *session) Drain() {
	code := protocol.CloseReconnect
	if len(c.s.deps.Cluster.Nodes()) < 2 {
		code = protocol.CloseCapacity
	}
	c.close(code, "The server restarts, please reconnect")
}

// Closed is the end.
func (c *session) Closed() {
	c.gone = true
	if c.id == "" {
		return
	}
	for _, sub := range c.subs {
		sub.leave()
	}
	c.subs = nil
	c.signout()
	if c.out.queue != nil {
		c.out.queue.Forget(&c.s.lag)
	}
	c.s.deps.Presence.Add(c.app.crowd, presence.Pusher, -1)
}

// close reports why, as an event and as a close frame, and ends the connection.
// Without the frame pusher-js may give up WebSocket.
func (c *session) close(code int, reason string) {
	if c.gone {
		return
	}
	c.gone = true
	c.send(protocol.AppendError(nil, code, "", reason))
	c.t.Close(code, reason)
}

// complain reports an error to the client that the connection outlives. Code 0 is null.
func (c *session) complain(code int, channel, message string) {
	c.send(protocol.AppendError(nil, code, channel, message))
}

// event sends one of the protocol's own events.
func (c *session) event(name, channel string, data []byte) {
	c.send(protocol.AppendEvent(nil, name, channel, data, ""))
}

// send sends text as a frame of its own.
func (c *session) send(text []byte) { c.t.Send(websocket.AppendFrame(nil, websocket.OpText, text)) }

// gap reports that messages may be missing. The protocol has no word for it; clients
// pass over events that no handler is bound to.
func (c *session) gap(channel string, g hub.Gap) {
	c.event("weir:gap", channel, wire.AppendGap(nil, "", g, ""))
}
