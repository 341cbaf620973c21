package push

import (
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// Kinds of handlers that go on in another process, see eventloop.Mover. Those of other
// packages follow. A number is never used again for something else.
const (
	KindSSE       = 1
	KindWebSocket = 2
	KindHTTP1     = 3 // of downstream
)

// The fields of a session's state. Their meaning does not change; see takeover.State.
const (
	sessionChannel  = iota + 1 // repeated, in order
	sessionPosition            // of the stream, as on the wire
	sessionIdentity            // auth's state
	sessionForm                // see formNumbers
	sessionSent                // nanoseconds since something was sent or pinged
	sessionHeard               // of a WebSocket: since its client was heard of
	sessionUnlogged            // bytes of messages that are in no log, to be sent first
)

// formNumbers are those of the wire formats in a session's state: their own may change. A
// stream in chunks has formInChunks added.
var formNumbers = map[hub.Format]uint64{
	wire.SSE: 1, wire.SSEEnvelope: 2, wire.SSEData: 3,
	wire.Gzip.In(wire.SSE): 4, wire.Gzip.In(wire.SSEEnvelope): 5, wire.Gzip.In(wire.SSEData): 6,
	wire.Zstd.In(wire.SSE): 7, wire.Zstd.In(wire.SSEEnvelope): 8, wire.Zstd.In(wire.SSEData): 9,
	wire.WebSocket: 10, wire.WebSocketDeflate: 11,
}

const formInChunks = 64

// formNumber returns the number of f; 0: it does not move.
func formNumber(f hub.Format) uint64 {
	if wire.IsChunked(f) {
		if n := formNumbers[wire.OutOfChunks(f)]; n != 0 {
			return n + formInChunks
		}
		return 0
	}
	return formNumbers[f]
}

var _, _ eventloop.Mover = (*sseSession)(nil), (*wsSession)(nil)

// AppendState implements eventloop.Mover.
func (s *sseSession) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	if s.custom() != nil {
		return dst, 0
	}
	return s.appendState(dst, KindSSE)
}

// AppendState implements eventloop.Mover. Its client waits while a message is incomplete.
func (s *wsSession) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	if s.parser != nil {
		return dst, 0
	}
	dst = dst.Uint(sessionHeard, uint64(s.lane.loop.Now()-s.lastRecv))
	return s.appendState(dst, KindWebSocket)
}

// AppendState implements eventloop.Mover: it stays, and is drained.
func (s *heldSession) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	return dst, 0
}

// AppendState implements eventloop.Mover: what it records is here.
func (s *recordedSession) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	return dst, 0
}

// appendState appends what both have in common.
func (s *session) appendState(dst takeover.State, kind uint8) (takeover.State, uint8) {
	form := formNumber(s.format)
	if form == 0 || s.flags&ending != 0 || s.opening() != nil || s.lane.push.prover == nil {
		return dst, 0
	}
	at, ok := s.sub.Stands()
	if !ok {
		return dst, 0
	}
	dst = dst.MustUint(sessionForm, form).Uint(sessionSent, uint64(s.lane.loop.Now()-s.lastSend))
	for _, name := range s.sub.Channels() {
		dst = dst.MustString(sessionChannel, name)
	}
	id, ok := s.lane.push.prover.AppendState(nil, s.identity())
	if !ok {
		return dst, 0
	}
	dst = dst.MustBytes(sessionIdentity, id)
	if q := s.backlog; q != nil {
		if at, ok = q.Stands(at); ok {
			dst, ok = s.appendUnlogged(dst, q)
		}
		if !ok {
			return dst, 0
		}
	}
	if len(at) > 0 {
		dst = dst.MustBytes(sessionPosition, at.AppendTo(nil))
	}
	return dst, kind
}

// maxUnlogged bounds the messages that move because no log has them, in bytes.
const maxUnlogged = 256 << 10

// appendUnlogged appends the messages of q that are in no log, and gaps among them.
func (s *session) appendUnlogged(dst takeover.State, q *backlog.Queue) (takeover.State, bool) {
	var frames []byte
	for _, g := range q.Unlogged() {
		frames = s.appendGap(frames, g)
	}
	for m := range q.Messages() {
		if m.Offset != 0 {
			continue
		}
		if frames = append(frames, s.lane.push.hub.Encode(m, s.format)...); len(frames) > maxUnlogged {
			return dst, false
		}
	}
	return dst.MustBytes(sessionUnlogged, frames), true
}

// Moved implements eventloop.Mover.
func (s *sseSession) Moved(c *eventloop.Conn) {
	s.closed()
	s.tally(c, s.lane.push, 0, -1)
}

// Moved implements eventloop.Mover.
func (s *wsSession) Moved(c *eventloop.Conn) {
	s.closed()
	s.lane.push.tally(c, true, -1)
}

// An Arriving is a session that comes from another process, read and not yet open.
type Arriving struct {
	kind        uint8
	sub         Subscription
	format      hub.Format
	at          hub.Positions
	sent, heard int64
	unlogged    []byte
}

// ReadState reads the state of a session of that kind, with the channels and keys of now: the
// error says what of it cannot go on. Any goroutine.
func (p *Push) ReadState(kind uint8, s takeover.State) (*Arriving, error) {
	a := &Arriving{kind: kind}
	var form uint64
	var position []byte
	var identity takeover.State
	err := s.Read(func(f takeover.Field) (bool, error) {
		switch f.Tag {
		case sessionChannel:
			a.sub.Channels = append(a.sub.Channels, string(f.Bytes))
		case sessionPosition:
			position = f.Bytes
		case sessionIdentity:
			identity = takeover.State(f.Bytes)
		case sessionForm:
			form = f.Uint
		case sessionSent:
			a.sent = int64(min(f.Uint, uint64(never)))
		case sessionHeard:
			a.heard = int64(min(f.Uint, uint64(never)))
		case sessionUnlogged:
			a.unlogged = f.Bytes
		default:
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if len(position) > 0 {
		if a.at, err = hub.ParsePositions(string(position)); err != nil {
			return nil, fmt.Errorf("%w: %w", takeover.ErrState, err)
		}
	}
	if err := a.findForm(form); err != nil {
		return nil, err
	}
	for _, ch := range a.sub.Channels {
		if _, err := p.hub.Namespace(ch); err != nil {
			return nil, err
		}
	}
	if a.sub.Identity, err = p.prover.Restore(identity); err != nil {
		return nil, err
	}
	if a.sub.Identity == nil {
		a.sub.Identity = auth.Anonymous
	}
	if bad := p.access.MayRead(a.sub.Identity, a.sub.Channels); bad != nil {
		return nil, errors.New(bad.Message)
	}
	return a, nil
}

// findForm finds the wire format of a number.
func (a *Arriving) findForm(number uint64) error {
	for f, n := range formNumbers {
		if wire.IsFrame(f) != (a.kind == KindWebSocket) {
			continue
		}
		switch {
		case n == number:
			a.format = f
			return nil
		case n+formInChunks == number && a.kind == KindSSE:
			a.format = wire.InChunks(f)
			return nil
		}
	}
	return fmt.Errorf("%w: wire format %d of kind %d", takeover.ErrState, number, a.kind)
}

// Arrive makes c what a says, and goes on with its stream where that was.
func (p *Push) Arrive(c *eventloop.Conn, a *Arriving) (eventloop.Handler, error) {
	l := p.Lane(c)
	now := l.loop.Now()
	var h eventloop.Handler
	var s *session
	var sink hub.Sink
	if a.kind == KindWebSocket {
		w := &wsSession{lastRecv: now - a.heard}
		h, s, sink = w, &w.session, w
	} else {
		w := &sseSession{}
		h, s, sink = w, &w.session, w
	}
	s.format = a.format
	s.openTo(p.access, &a.sub)
	c.SetHandler(h)
	p.tally(c, a.kind == KindWebSocket, 1)
	if len(a.unlogged) > 0 {
		c.Write(a.unlogged)
	}
	s.prepare(l, c, &a.sub)
	s.lastSend = now - a.sent
	s.rare.opening.moved = true
	l.enter()
	defer l.exit()
	opt := hub.SubscribeOptions{Channels: a.sub.Channels, Since: a.at}
	if err := l.shard.Subscribe(&s.sub, sink, opt); err != nil {
		s.logFailure(err)
		p.tally(c, a.kind == KindWebSocket, -1)
		return nil, err
	}
	return h, nil
}

// goesOn reports whether the session came from another process and is live here now, where
// its client was sent everything up to at.
func (s *session) goesOn(at hub.Positions) bool {
	o := s.opening()
	if o == nil || !o.moved {
		return false
	}
	if !wire.IsFrame(s.format) && len(at) > 1 {
		s.keepsStands(at)
	}
	s.opened()
	return true
}
