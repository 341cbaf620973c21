package push

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/front/access"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/prefetch"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// A Subscription is what a client requests, credentials and routes apart.
type Subscription struct {
	wire.Subscription
	// Identity is who subscribes.
	Identity *auth.Identity
	// Fields are complete header lines to add to the answer's head.
	Fields []byte
	// Key is the WebSocket handshake's key.
	Key []byte
	// Accept is what the client can decode: the value of Accept-Encoding for SSE,
	// of Sec-WebSocket-Extensions for WebSocket.
	Accept []byte
	// Custom is what a protocol's stream of events is, for ServeEvents; nil otherwise. It
	// replaces the channels and the position above.
	Custom *socket.Subscription
	// Protocol is Push.Protocol's.
	Protocol uint8
	// Chunked reports that a body without a known length goes in chunks: the client speaks
	// HTTP/1.1.
	Chunked bool

	extensions string // agreed by ServeWebSocket
}

// Close codes beyond RFC 6455 §7.4, also given as the code of an SSE end event.
const (
	codeNormal       = 1000
	codeGoingAway    = 1001
	codeInternal     = 1011
	codeRestart      = 1012
	codeTryLater     = 1013
	codeTokenExpired = wire.CodeTokenExpired
	codeTooSlow      = 4408
)

// session is what SSE and WebSocket subscribers have in common. It belongs to
// its connection's loop. There is one per client: every word of it counts.
type session struct {
	sub       hub.Subscriber
	loopState *LoopState
	conn      *eventloop.Conn
	// backlog is what the socket is not ready for; nil when there is nothing.
	backlog *backlog.Queue
	// extras is what most subscribers do not have once they are open; nil then.
	extras *sessionExtras
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
	paced                            // has a maximum rate
	open                             // reads what is open to all, and no private messages
	lossy                            // gaps of the start may follow: their blocks have no position before Live
)

// sessionExtras is the part of a session that few need.
type sessionExtras struct {
	identity *auth.Identity // nil: anonymous
	// opening is the request until the answer has gone out.
	opening *opening
	// The field is the stream's position, for a stream of several namespaces, whose
	// id lines are its own; nil otherwise.
	position hub.Positions
	// pace is the budget of a subscriber with a maximum rate.
	pace pace
	// custom is nil for Weir's own streams.
	custom *custom
	// heartbeat is how long a silence may be, in nanoseconds, if the client's back-off says so; 0: as for all.
	heartbeat int64
}

func (s *session) identity() *auth.Identity {
	if s.extras == nil {
		return nil
	}
	return s.extras.identity
}

func (s *session) opening() *opening {
	if s.extras == nil {
		return nil
	}
	return s.extras.opening
}

func (s *session) position() hub.Positions {
	if s.extras == nil {
		return nil
	}
	return s.extras.position
}

// opened drops what was needed only until the answer went out.
func (s *session) opened() {
	s.extras.opening = nil
	if s.extras.identity == nil && s.extras.position == nil && s.flags&paced == 0 && s.extras.custom == nil && s.extras.heartbeat == 0 {
		s.extras = nil
	}
}

// opening is what a subscription keeps only until it has started.
type opening struct {
	fields, key []byte
	extensions  string // agreed in a WebSocket handshake
	hello       bool
	moved       bool // the answer went out from another process
	// What the client asked to resume from; unknown says that it was no position.
	requested hub.Positions
	unknown   bool
	// Of a protocol's stream.
	preamble     []byte
	began, ended func()
}

// resumes returns the position that the client receives first, of a stream that starts at at.
// When gaps follow, that is its own: a client that is cut off before it has received them requests
// the same again, and receives them then.
func (o *opening) resumes(at hub.Positions) (first hub.Positions, lossy bool) {
	switch {
	case o.unknown:
		return nil, true
	case len(o.requested) == 0:
		return at, false
	}
	for _, p := range at {
		if !slices.ContainsFunc(o.requested, func(q hub.Position) bool { return q.Epoch == p.Epoch && q.Offset == p.Offset }) {
			return o.requested, true
		}
	}
	return at, false
}

const (
	// openingTime bounds how long a client waits for its subscription to be established.
	openingTime = int64(15 * time.Second)
	// partingTime bounds how long last words may wait for the socket.
	partingTime = int64(30 * time.Second)
	// sessionPartingTime is the same for a protocol's session, which others see as
	// present until it is over.
	sessionPartingTime = int64(5 * time.Second)
)

// begin is the part of both transports that comes before the answer.
func (s *session) begin(l *LoopState, c *eventloop.Conn, r *Subscription, sink hub.Sink) error {
	if l.push.refusing.Load() || l.push.full(1) { // it is counted already
		return hub.ErrOverloaded
	}
	if r.Identity != nil && gone(r.Identity) {
		return hub.ErrUnavailable // it comes back, and is refused
	}
	s.prepare(l, c, r)
	var opt hub.SubscribeOptions
	if x := r.Custom; x != nil {
		if opt = x.Options; x.Select != nil {
			opt.Select = x.Select
		}
		s.extras.custom = newCustom(r, l.loop.Now())
		o := s.extras.opening
		o.preamble, o.began, o.ended = x.Preamble, x.Began, x.Ended
	} else {
		opt = wire.Options(r.Channels, r.Since)
		s.extras.opening.requested, s.extras.opening.unknown = opt.Since, opt.Unknown != ""
	}
	if r.Custom != nil && l.push.rejects(l, &opt) {
		return hub.ErrOverloaded
	}
	l.enter()
	defer l.exit()
	l.markFor(c, opt.Channels)
	err := l.shard.Subscribe(&s.sub, sink, opt)
	if err != nil {
		l.unmark(c)
	}
	return err
}

// prepare gives s what it needs before it subscribes.
func (s *session) prepare(l *LoopState, c *eventloop.Conn, r *Subscription) {
	s.loopState, s.conn = l, c
	s.lastSend = l.loop.Now()
	s.extras = &sessionExtras{opening: &opening{fields: r.Fields, key: r.Key, hello: r.Hello, extensions: r.extensions}}
	if r.Identity != nil && r.Identity != auth.Anonymous {
		s.extras.identity = r.Identity
	}
	if rate := l.push.rate(r.Channels); rate > 0 {
		s.flags |= paced
		s.extras.pace = pace{rate: rate, at: l.loop.Now()}
	}
	if len(r.Channels) > 1 {
		s.flags |= several
	}
	adapt(s, r)
	c.SetTimer(l.push.openingTime) // Start sets another
}

// adapt takes the client's longest back-off into account.
func adapt(s *session, r *Subscription) {
	cfg := &s.loopState.push.cfg
	every := time.Duration(cfg.Heartbeat)
	if r.Custom != nil && r.Custom.Heartbeat != 0 {
		every = r.Custom.Heartbeat
	}
	if b := cfg.HeartbeatInterval(every, r.MaxBackoff); b != every {
		s.extras.heartbeat = int64(b)
	}
}

// heartbeatInterval is how long a silence may be.
func heartbeatInterval(s *session) int64 {
	if s.extras != nil {
		if s.extras.heartbeat != 0 {
			return s.extras.heartbeat
		}
		if c := s.extras.custom; c != nil && c.heartbeat != 0 {
			return c.heartbeat
		}
	}
	return int64(s.loopState.push.cfg.Heartbeat)
}

// armTimer makes the timer come after next, or at the token's expiry or the
// client's own time of a drain if that is sooner. Expiry is evaluated by the
// wall clock, which may be set: the timer comes at least every heartbeat.
func (s *session) armTimer(next int64) {
	if id := s.identity(); id != nil && !id.Expires.IsZero() {
		next = min(next, int64(time.Until(id.Expires)))
	}
	if s.flags&paced != 0 && s.backlog != nil && !s.conn.Stalled() { // else the socket says when
		next = min(next, s.extras.pace.wait())
	}
	if c := s.custom(); c != nil && c.ends != 0 {
		next = min(next, c.ends-s.loopState.loop.Now())
	}
	if end := s.loopState.drainEnd; end != 0 {
		next = min(next, rand.Int64N(max(end-s.loopState.loop.Now(), 1))+1)
	}
	s.conn.SetTimer(max(next, int64(time.Millisecond)))
}

// expired reports whether the token has ended.
func (s *session) expired() bool {
	id := s.identity()
	return id != nil && id.Expired(time.Now())
}

// send passes a batch on, or keeps it while the socket is not ready.
// It returns false when the subscriber has met the bound of its queue.
//
// The first case is what one delivery costs: no lock, no allocation, no clock.
func (s *session) send(b *hub.Batch) bool {
	switch {
	case s.flags&^open == 0 && s.backlog == nil && !b.Replay && !s.conn.Stalled() && !s.hides(b):
		if w, ok := b.Once(s.format); ok {
			s.conn.SendCopy(w)
		} else {
			s.conn.Send(b.Bytes(s.format))
		}
	case s.flags&ending != 0:
	case s.hides(b):
		return s.sendVisible(b)
	case b.Replay:
		s.replay(b)
	case s.backlog != nil || s.conn.Stalled():
		return s.enqueue(b)
	case s.flags&paced != 0:
		ok := s.enqueue(b)
		s.release()
		return ok
	case s.position() != nil:
		for _, m := range b.Messages {
			s.conn.Queue(s.advanceID(m))
			s.conn.Queue(s.loopState.push.hub.Encode(m, s.format))
		}
	default:
		// Messages of other channels may follow in this tick: one write for all.
		s.conn.Queue(b.Bytes(s.format))
	}
	return true
}

// hides reports whether some of b is not for this subscriber.
func (s *session) hides(b *hub.Batch) bool {
	if s.flags&open == 0 {
		return false
	}
	for _, m := range b.Messages {
		if m.Attributes != nil && s.loopState.push.access.Hidden(m, s.identity()) {
			return true
		}
	}
	return false
}

// sendVisible sends what of b is for this subscriber.
func (s *session) sendVisible(b *hub.Batch) bool {
	visible := &hub.Batch{Replay: b.Replay}
	for _, m := range b.Messages {
		if !s.loopState.push.access.Hidden(m, s.identity()) {
			visible.Messages = append(visible.Messages, m)
		}
	}
	if len(visible.Messages) == 0 {
		return true
	}
	ok := s.enqueue(visible)
	s.release()
	return ok
}

// openTo notes that s reads what r's identity has no grant for.
func (s *session) openTo(m *access.Model, r *Subscription) {
	if !m.Granted(r.Identity, r.Channels) {
		s.flags |= open
	}
}

// replay sends a page of history: at once when it is short, so that all who
// resume from the same place share its bytes, else piece by piece as the socket
// takes it.
func (s *session) replay(b *hub.Batch) {
	size := 0
	for _, m := range b.Messages {
		size += len(m.Data)
	}
	if s.flags&paced == 0 && s.position() == nil && s.backlog == nil && size <= replayAhead && !s.conn.Stalled() {
		s.conn.Send(b.Bytes(s.format))
		return
	}
	s.enqueue(b)
	s.release()
}

// advanceID moves the stream's own position past m and returns its id line, or
// nothing for a message of a namespace that keeps no log.
func (s *session) advanceID(m *hub.Message) []byte {
	if m.Offset == 0 {
		return nil
	}
	position := s.position()
	for i := range position {
		if position[i].Epoch == m.Epoch {
			position[i] = m.Position()
		}
	}
	line := append(make([]byte, 0, 16+32*len(position)), "id: "...)
	return s.coded(append(position.AppendTo(line), '\n'))
}

// coded returns text of the subscriber's own as its stream has it: in its coding, and
// framed.
func (s *session) coded(text []byte) []byte {
	if c := wire.CodingOf(s.format); c != wire.Plain {
		text = s.loopState.push.formats.Encode(c, nil, text, false)
	}
	return s.framed(text)
}

// framed returns bytes of the body as a chunk, if the body is chunked.
func (s *session) framed(b []byte) []byte {
	if len(b) > 0 && wire.IsChunked(s.format) {
		return http1.AppendChunk(make([]byte, 0, len(b)+16), b)
	}
	return b
}

// keepsPosition makes the id lines of a stream of several namespaces its own. gaps says that gap
// events may follow: their blocks have no id before Live, since the one of a namespace would
// lead past the gaps of the others.
func (s *session) keepsPosition(at hub.Positions, gaps bool) {
	s.extras.position = append(hub.Positions(nil), at...)
	if gaps {
		s.flags |= lossy
	}
	f := wire.CodingOf(s.format).In(wire.SSEData)
	if wire.IsChunked(s.format) {
		f = wire.InChunks(f)
	}
	s.format = f
}

// movePosition takes a gap into the stream's own position and returns its token.
func (s *session) movePosition(g hub.Gap) string {
	position := s.position()
	if position == nil {
		return g.At.String()
	}
	from, _ := hub.ParsePosition(g.From)
	for i, p := range position {
		if p.Epoch == g.At.Epoch || p.Epoch == from.Epoch {
			position[i] = g.At
		}
	}
	return string(position.AppendTo(nil))
}

// appendGap appends what the client receives about g.
func (s *session) appendGap(b []byte, g hub.Gap) []byte {
	if wire.IsFrame(s.format) {
		id := ""
		if !g.At.IsZero() {
			id = g.At.String()
		}
		return websocket.AppendFrame(b, websocket.OpText, wire.AppendGap(nil, "gap", g, id))
	}
	if c := s.custom(); c != nil && c.gap != nil {
		if text := c.gap(g); len(text) > 0 {
			b = append(b, s.coded(text)...)
		}
		return b
	}
	text := sse.AppendType(nil, "gap")
	if !g.At.IsZero() {
		if token := s.movePosition(g); s.flags&lossy == 0 {
			text = append(text, "id: "...)
			text = append(text, token...)
			text = append(text, '\n')
		}
	}
	text = append(text, "data: "...)
	text = wire.AppendGap(text, "", g, "")
	return append(b, s.coded(append(text, "\n\n"...))...)
}

// gap notifies the client, after what it has not been sent yet. It returns false
// when there is no room to keep it.
func (s *session) gap(g hub.Gap) bool {
	if s.flags&ending != 0 {
		return true
	}
	kept, full := s.enqueueGap(g)
	if !kept && !full {
		s.conn.Write(s.appendGap(nil, g))
	}
	return !full
}

// Prefetch implements hub.Prefetcher.
func (s *session) Prefetch(int) { prefetch.Object(s.conn) }

// Live implements hub.Sink: the client reads on alike. What it was sent of the gaps has had no
// position so far if there may be several.
func (s *session) Live() {
	position := s.position()
	if s.flags&lossy == 0 || position == nil || s.backlog != nil || s.flags&ending != 0 {
		return
	}
	s.flags &^= lossy
	s.conn.Write(s.coded(append(position.AppendTo([]byte("id: ")), "\n\n"...)))
}

// Room implements hub.Sink.
func (s *session) Room() bool {
	return s.flags&ending == 0 && s.backlog == nil && s.conn.Unsent() < replayAhead && !s.conn.Closing() && !s.loopState.historyPaused()
}

// replayAhead is how many bytes a replay may have waiting for the socket.
const replayAhead = 64 << 10

// drained sends what was held; when all of it is gone, a replay continues.
func (s *session) drained() {
	s.release()
	if s.flags&ending == 0 && s.backlog == nil && !s.conn.Stalled() {
		s.loopState.enter()
		defer s.loopState.exit()
		s.sub.Continue()
	}
}

// leave ends the subscription and drops what is held. It is for the session's
// own calls; see closed for the loop's.
func (s *session) leave() {
	s.flags |= ending
	s.drop()
	s.loopState.shard.Unsubscribe(&s.sub)
}

// part gives the last words a time in which they must be gone, and closes.
func (s *session) part() {
	if wire.IsChunked(s.format) {
		s.conn.Write(lastChunk)
	}
	s.conn.SetTimer(partingTime)
	s.conn.CloseAfterFlush()
}

// closed is leave for a connection that was closed. That can happen during a
// call of the hub to some other sink, whose write found this one broken, and
// the hub's lists must not change under such a call.
func (s *session) closed() {
	s.flags |= ending
	s.drop()
	s.loopState.unmark(s.conn)
	s.loopState.gone(&s.sub)
}

// recovered is deferred by every call of the hub: a panic for one subscriber ends
// that one, and the hub continues with the next.
func (s *session) recovered() {
	if r := recover(); r != nil {
		s.loopState.push.counters.panics.Add(1)
		s.loopState.push.log.Error("panic for a subscriber", "conn", s.conn.ID(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		s.conn.Close(fmt.Errorf("panic: %v", r))
	}
}

// lastChunk ends a chunked body in order.
var lastChunk = http1.AppendLastChunk(nil, nil)

// failure is how the hub's refusal is reported to a client.
func failure(err error) (code int, reason string) {
	switch {
	case errors.Is(err, hub.ErrUnavailable), errors.Is(err, hub.ErrOverloaded), errors.Is(err, hub.ErrClosed):
		return codeTryLater, "not available now, try again later"
	default:
		return codeInternal, "internal error"
	}
}

func (s *session) logFailure(err error) {
	s.loopState.push.counters.failedSubs.Add(1)
	s.loopState.push.log.Warn("subscribe", "conn", s.conn.ID(), "peer", s.conn.Peer(), "err", err)
}

// debug logs what ended a subscriber, at debug level only.
func (s *session) debug(msg string, err error) {
	s.loopState.push.log.Debug(msg, "conn", s.conn.ID(), "peer", s.conn.Peer(), "err", err)
}
