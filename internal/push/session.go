package push

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// A Subscription is what a client asks for, credentials and routes apart.
type Subscription struct {
	Channels []string
	// Since is the position token to resume after; "" asks for live messages
	// only, "0" for everything retained.
	Since string
	// Envelope wraps SSE payloads even with one channel.
	Envelope bool
	// Hello makes a WebSocket begin with where the stream stands.
	Hello bool
	// Identity is who subscribes.
	Identity *auth.Identity
	// Fields are complete header lines to add to the answer's head.
	Fields []byte
	// Key is the WebSocket handshake's key.
	Key []byte
}

// Close codes beyond RFC 6455 §7.4, also given as the code of an SSE end event.
const (
	codeGoingAway    = 1001
	codeInternal     = 1011
	codeRestart      = 1012
	codeTryLater     = 1013
	codeTokenExpired = 4401
	codeTooSlow      = 4408
)

// options reads s.Since.
func (s *Subscription) options() hub.SubscribeOptions {
	o := hub.SubscribeOptions{Channels: s.Channels}
	switch s.Since {
	case "":
	case "0":
		o.All = true
	default:
		ps, err := hub.ParsePositions(s.Since)
		if err != nil {
			o.Unknown = printable(s.Since, 64)
		}
		o.Since = ps
	}
	return o
}

// printable returns at most n bytes of s with everything but plain ASCII replaced.
func printable(s string, n int) string {
	b := []byte(s[:min(len(s), n)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

// session is what SSE and WebSocket subscribers have in common. It belongs to
// its connection's loop. There is one per client: every word of it counts.
type session struct {
	sub      hub.Subscriber
	lane     *Lane
	conn     *eventloop.Conn
	identity *auth.Identity // nil: anonymous
	// backlog is what the socket is not ready for; nil when there is nothing.
	backlog *backlog
	// opening is the request until the answer has gone out.
	opening *opening
	// stands is where the stream is, for a stream of several namespaces, whose
	// id lines are its own; nil otherwise.
	stands hub.Positions
	// lastSend is when something was sent (SSE) or pinged (WebSocket), on the
	// loop's clock.
	lastSend int64
	format   hub.Format
	flags    sessionFlags
}

type sessionFlags uint8

const (
	several sessionFlags = 1 << iota // follows more than one channel
	ending                           // the last words were said, or the connection is gone
)

// opening is what a subscription keeps only until it has begun.
type opening struct {
	fields, key []byte
	hello       bool
}

const (
	// openingTime bounds how long a client waits for its subscription to stand.
	openingTime = int64(15 * time.Second)
	// partingTime bounds how long last words may wait for the socket.
	partingTime = int64(30 * time.Second)
)

// begin is the part of both transports that comes before the answer.
func (s *session) begin(l *Lane, c *eventloop.Conn, r *Subscription, sink hub.Sink) error {
	s.lane, s.conn = l, c
	s.lastSend = l.loop.Now()
	if r.Identity != nil && r.Identity != auth.Anonymous {
		s.identity = r.Identity
	}
	if len(r.Channels) > 1 {
		s.flags |= several
	}
	s.opening = &opening{fields: r.Fields, key: r.Key, hello: r.Hello}
	c.SetTimer(l.push.openingTime) // Start sets another
	l.enter()
	defer l.exit()
	return l.shard.Subscribe(&s.sub, sink, r.options())
}

// armTimer makes the timer come after next, or at the token's expiry or the
// client's own moment of a drain if that is sooner. Expiry is judged by the
// wall clock, which may be set: the timer comes at least every heartbeat.
func (s *session) armTimer(next int64) {
	if s.identity != nil && !s.identity.Expires.IsZero() {
		next = min(next, int64(time.Until(s.identity.Expires)))
	}
	if end := s.lane.drainEnd; end != 0 {
		next = min(next, rand.Int64N(max(end-s.lane.loop.Now(), 1))+1)
	}
	s.conn.SetTimer(max(next, int64(time.Millisecond)))
}

// expired reports whether the token has ended.
func (s *session) expired() bool {
	return s.identity != nil && s.identity.Expired(time.Now())
}

// send passes a batch on, or keeps it while the socket is not ready.
// It returns false when the subscriber has met the bound of its queue.
//
// The first case is what one delivery costs: no lock, no allocation, no clock.
func (s *session) send(b *hub.Batch) bool {
	switch {
	case s.flags == 0 && s.backlog == nil && !b.Replay && !s.conn.Stalled():
		s.conn.Send(b.Bytes(s.format))
	case s.flags&ending != 0:
	case b.Replay:
		s.replay(b)
	case s.backlog != nil || s.conn.Stalled():
		return s.hold(b)
	case s.stands != nil:
		for _, m := range b.Messages {
			s.conn.Queue(s.ownID(m))
			s.conn.Queue(s.lane.push.hub.Encode(m, s.format))
		}
	default:
		// Messages of other channels may follow in this tick: one write for all.
		s.conn.Queue(b.Bytes(s.format))
	}
	return true
}

// replay sends a page of history: at once when it is short, so that all who
// resume from the same place share its bytes, else piece by piece as the socket
// takes it.
func (s *session) replay(b *hub.Batch) {
	size := 0
	for _, m := range b.Messages {
		size += len(m.Data)
	}
	if s.stands == nil && s.backlog == nil && size <= replayAhead && !s.conn.Stalled() {
		s.conn.Send(b.Bytes(s.format))
		return
	}
	s.hold(b)
	s.release()
}

// ownID moves the stream's own position past m and returns its id line, or
// nothing for a message of a namespace that keeps no log.
func (s *session) ownID(m *hub.Message) []byte {
	if m.Offset == 0 {
		return nil
	}
	for i := range s.stands {
		if s.stands[i].Epoch == m.Epoch {
			s.stands[i].Offset = m.Offset
		}
	}
	line := append(make([]byte, 0, 16+24*len(s.stands)), "id: "...)
	return append(s.stands.AppendTo(line), '\n')
}

// moveStands takes a gap into the stream's own position and returns its token.
func (s *session) moveStands(g hub.Gap) string {
	if s.stands == nil {
		return g.To.String()
	}
	from, _ := hub.ParsePosition(g.From)
	for i, p := range s.stands {
		if p.Epoch == g.To.Epoch || p.Epoch == from.Epoch {
			s.stands[i] = g.To
		}
	}
	return string(s.stands.AppendTo(nil))
}

// appendGap appends what the client is told about g.
func (s *session) appendGap(b []byte, g hub.Gap) []byte {
	if s.format == formatWS {
		return websocket.AppendFrame(b, websocket.OpText, appendGap(nil, "gap", g, g.To.String()))
	}
	b = sse.AppendType(b, "gap")
	b = append(b, "id: "...)
	b = append(b, s.moveStands(g)...)
	b = append(b, "\ndata: "...)
	b = appendGap(b, "", g, "")
	return append(b, "\n\n"...)
}

// gap tells the client, after what it has not been sent yet. It returns false
// when there is no room to keep it.
func (s *session) gap(g hub.Gap) bool {
	if s.flags&ending != 0 {
		return true
	}
	kept, full := s.holdGap(g)
	if !kept && !full {
		s.conn.Write(s.appendGap(nil, g))
	}
	return !full
}

// Room implements hub.Sink.
func (s *session) Room() bool {
	return s.flags&ending == 0 && s.backlog == nil && s.conn.Unsent() < replayAhead && !s.conn.Closing()
}

// replayAhead is how many bytes a replay may have waiting for the socket.
const replayAhead = 64 << 10

// drained sends what was held; when all of it is gone, a replay goes on.
func (s *session) drained() {
	s.release()
	if s.flags&ending == 0 && s.backlog == nil && !s.conn.Stalled() {
		s.lane.enter()
		defer s.lane.exit()
		s.sub.Continue()
	}
}

// leave ends the subscription and drops what is held. It is for the session's
// own calls; see closed for the loop's.
func (s *session) leave() {
	s.flags |= ending
	s.drop()
	s.lane.shard.Unsubscribe(&s.sub)
}

// part gives the last words a time in which they must be gone, and closes.
func (s *session) part() {
	s.conn.SetTimer(partingTime)
	s.conn.CloseAfterFlush()
}

// closed is leave for a connection that was closed. That can happen during a
// call of the hub to some other sink, whose write found this one broken, and
// the hub's lists must not change under such a call.
func (s *session) closed() {
	s.flags |= ending
	s.drop()
	s.lane.gone(&s.sub)
}

// failure is how the hub's refusal is told to a client.
func failure(err error) (code int, reason string) {
	switch {
	case errors.Is(err, hub.ErrUnavailable), errors.Is(err, hub.ErrOverloaded), errors.Is(err, hub.ErrClosed):
		return codeTryLater, "not available now, try again later"
	default:
		return codeInternal, "internal error"
	}
}

func (s *session) logFailure(err error) {
	s.lane.push.counters.failedSubs.Add(1)
	s.lane.push.log.Warn("subscribe", "conn", s.conn.ID(), "peer", s.conn.Peer(), "err", err)
}

// debug logs what ended a subscriber, at debug level only.
func (s *session) debug(msg string, err error) {
	s.lane.push.log.Debug(msg, "conn", s.conn.ID(), "peer", s.conn.Peer(), "err", err)
}
