package push

import (
	"errors"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
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
// its connection's loop.
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
	// lastSend and lastRecv are on the loop's clock.
	lastSend, lastRecv int64
	format             hub.Format
	flags              sessionFlags
}

type sessionFlags uint8

const (
	several sessionFlags = 1 << iota // follows more than one channel
	ending                           // the last words were said
)

// opening is what a subscription keeps only until it has begun.
type opening struct {
	fields, key []byte
	hello       bool
}

// begin is the part of both transports that comes before the answer.
func (s *session) begin(l *Lane, c *eventloop.Conn, r *Subscription, sink hub.Sink) error {
	s.lane, s.conn = l, c
	s.lastSend, s.lastRecv = l.loop.Now(), l.loop.Now()
	if r.Identity != nil && r.Identity != auth.Anonymous {
		s.identity = r.Identity
	}
	if len(r.Channels) > 1 {
		s.flags |= several
	}
	s.opening = &opening{fields: r.Fields, key: r.Key, hello: r.Hello}
	return l.shard.Subscribe(&s.sub, sink, r.options())
}

// armTimer sets the next of heartbeat and expiry.
func (s *session) armTimer() {
	next := int64(s.lane.push.cfg.Heartbeat) - (s.lane.loop.Now() - s.lastSend)
	if s.identity != nil && !s.identity.Expires.IsZero() {
		next = min(next, int64(s.identity.Expires.Sub(s.lane.loop.Time(s.lane.loop.Now()))))
	}
	s.conn.SetTimer(max(next, int64(time.Millisecond)))
}

// expired reports whether the token has ended.
func (s *session) expired() bool {
	return s.identity != nil && s.identity.Expired(s.lane.loop.Time(s.lane.loop.Now()))
}

// send passes a batch on, or keeps it while the socket is not ready.
// It returns false when the subscriber has met the bound of its queue.
func (s *session) send(b *hub.Batch) bool {
	s.lastSend = s.lane.loop.Now()
	switch {
	case s.flags&ending != 0:
	case s.backlog != nil || s.conn.Stalled():
		return s.hold(b)
	case s.stands != nil:
		for _, m := range b.Messages {
			s.conn.Queue(s.ownID(m))
			s.conn.Queue(s.lane.push.hub.Encode(m, s.format))
		}
	case s.flags&several != 0 && !b.Replay:
		// Messages of other channels may follow in this tick: one write for all.
		s.conn.Queue(b.Bytes(s.format))
	default:
		s.conn.Send(b.Bytes(s.format))
	}
	return true
}

// ownID moves the stream's own position past m and returns its id line.
func (s *session) ownID(m *hub.Message) []byte {
	for i := range s.stands {
		if s.stands[i].Epoch == m.Epoch {
			s.stands[i].Offset = m.Offset
		}
	}
	if len(s.stands) == 0 {
		return nil
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

// Room implements hub.Sink.
func (s *session) Room() bool {
	return s.flags&ending == 0 && s.backlog == nil && s.conn.Unsent() < replayAhead
}

// replayAhead is how many bytes a replay may have waiting for the socket.
const replayAhead = 64 << 10

// drained sends what was held; when all of it is gone, a replay goes on.
func (s *session) drained() {
	s.release()
	if s.backlog == nil && !s.conn.Stalled() {
		s.sub.Continue()
	}
}

// leave ends the subscription and drops what is held.
func (s *session) leave() {
	s.lane.shard.Unsubscribe(&s.sub)
	s.drop()
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

// A Lag is how far one subscriber is behind, for the admin API.
type Lag struct {
	Conn      uint64    `json:"conn"`
	Loop      int       `json:"loop"`
	Peer      string    `json:"peer"`
	Transport string    `json:"transport"`
	Subject   string    `json:"subject,omitempty"`
	Channels  []string  `json:"channels"`
	Since     time.Time `json:"connected_at"`
	Messages  int       `json:"lag_messages"`
	Bytes     int       `json:"lag_bytes"`
	Kernel    int       `json:"kernel_bytes"`
	Age       float64   `json:"lag_seconds"`
}

// lag describes s. It costs a system call.
func (s *session) lag(transport string) Lag {
	c := s.conn
	g := Lag{
		Conn: c.ID(), Loop: c.Loop().ID(), Peer: c.Peer().String(), Transport: transport,
		Channels: s.sub.Channels(), Since: c.Loop().Time(c.Accepted()), Bytes: c.Unsent(), Kernel: c.UnsentKernel(),
	}
	if s.identity != nil {
		g.Subject = s.identity.Subject
	}
	if b := s.backlog; b != nil {
		g.Messages = b.len()
		g.Bytes += b.bytes
		g.Age = time.Duration(c.Loop().Now() - b.since).Seconds()
	}
	return g
}

// describer is a handler that can say how far it is behind.
type describer interface{ describe() Lag }

// Lags calls f on each loop's goroutine with what its subscribers look like; f
// gets false for a loop that has ended. It returns at once.
func (p *Push) Lags(f func(loop int, lags []Lag, ok bool)) {
	for _, lane := range p.lanes {
		ok := lane.loop.Post(func() {
			var all []Lag
			lane.loop.Conns(func(c *eventloop.Conn) bool {
				if d, ok := c.Handler().(describer); ok {
					all = append(all, d.describe())
				}
				return true
			})
			f(lane.loop.ID(), all, true)
		})
		if !ok {
			f(lane.loop.ID(), nil, false)
		}
	}
}

// Loops returns how many loops Lags will answer for.
func (p *Push) Loops() int { return len(p.lanes) }

// debug logs what ended a subscriber, at debug level only.
func (s *session) debug(msg string, err error) {
	s.lane.push.log.Debug(msg, "conn", s.conn.ID(), "peer", s.conn.Peer(), "err", err)
}
