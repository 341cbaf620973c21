package push

import (
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// The fields of a session's state. Their meaning does not change; see takeover.State.
const (
	sessionChannel   = iota + 1 // repeated, in order
	sessionPosition             // of the stream, as on the wire
	sessionIdentity             // auth's state
	sessionForm                 // see formNumbers
	sessionSent                 // nanoseconds since something was sent or pinged
	sessionLastRead             // of a WebSocket: since its client last sent
	sessionUnlogged             // bytes of messages that are in no log, to be sent first
	sessionProtocol             // of a protocol's stream of events: its name
	sessionCustom               // and its state
	sessionEnds                 // nanoseconds until its end
	sessionHeartbeat            // nanoseconds of silence, if the client's back-off says how many
)

// formNumbers are those of the wire formats in a session's state: their own may change. A
// stream in chunks has formInChunks added.
var formNumbers = map[hub.Format]uint64{
	wire.SSE: 1, wire.SSEEnvelope: 2, wire.SSEData: 3,
	wire.Gzip.In(wire.SSE): 4, wire.Gzip.In(wire.SSEEnvelope): 5, wire.Gzip.In(wire.SSEData): 6,
	wire.Zstd.In(wire.SSE): 7, wire.Zstd.In(wire.SSEEnvelope): 8, wire.Zstd.In(wire.SSEData): 9,
	wire.WebSocket: 10, wire.WebSocketDeflate: 11,
	wire.Mercure: 12, wire.Gzip.In(wire.Mercure): 13, wire.Zstd.In(wire.Mercure): 14,
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
	x := s.custom()
	if x == nil {
		return s.appendState(dst, takeover.KindSSE)
	}
	if x.state == nil {
		return dst, 0
	}
	custom, ok := x.state(nil)
	if !ok {
		return dst, 0
	}
	dst = dst.MustString(sessionProtocol, s.loopState.push.protocols[x.protocol].name).MustBytes(sessionCustom, custom)
	if x.ends != 0 {
		dst = dst.MustUint(sessionEnds, uint64(max(x.ends-s.loopState.loop.Now(), 1)))
	}
	return s.appendState(dst, takeover.KindEvents)
}

// AppendState implements eventloop.Mover. Its client waits while a message is incomplete.
func (s *wsSession) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	if s.parser != nil {
		return dst, 0
	}
	dst = dst.Uint(sessionLastRead, uint64(s.loopState.loop.Now()-s.lastRecv))
	return s.appendState(dst, takeover.KindWebSocket)
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
	if form == 0 || s.flags&ending != 0 || s.opening() != nil || s.loopState.push.prover == nil {
		return dst, 0
	}
	at, ok := s.sub.Position()
	if !ok {
		return dst, 0
	}
	dst = dst.MustUint(sessionForm, form).Uint(sessionSent, uint64(s.loopState.loop.Now()-s.lastSend))
	if s.extras != nil && s.extras.heartbeat != 0 {
		dst = dst.Uint(sessionHeartbeat, uint64(s.extras.heartbeat))
	}
	for _, name := range s.sub.Channels() {
		dst = dst.MustString(sessionChannel, name)
	}
	if s.custom() == nil { // a protocol's own has it otherwise
		id, ok := s.loopState.push.prover.AppendState(nil, s.identity())
		if !ok {
			return dst, 0
		}
		dst = dst.MustBytes(sessionIdentity, id)
	}
	if q := s.backlog; q != nil {
		if at, ok = q.Position(at); ok {
			dst, ok = s.appendUnlogged(dst, q)
		}
		if !ok {
			return dst, 0
		}
	}
	if len(at) > 0 {
		var room [128]byte
		dst = dst.MustBytes(sessionPosition, at.AppendTo(room[:0]))
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
		if frames = append(frames, s.loopState.push.hub.Encode(m, s.format)...); len(frames) > maxUnlogged {
			return dst, false
		}
	}
	return dst.MustBytes(sessionUnlogged, frames), true
}

// Moved implements eventloop.Mover.
func (s *sseSession) Moved(c *eventloop.Conn) {
	s.closed()
	x := s.custom()
	if x == nil {
		s.tally(c, s.loopState.push, 0, -1)
		return
	}
	s.tally(c, s.loopState.push, x.protocol, -1)
	s.report(x.moved)
}

// Moved implements eventloop.Mover.
func (s *wsSession) Moved(c *eventloop.Conn) {
	s.closed()
	s.loopState.push.tally(c, true, -1)
}

// An Arriving is a session that comes from another process, read and not yet open.
type Arriving struct {
	kind            uint8
	sub             Subscription
	format          hub.Format
	at              hub.Positions
	sent, sinceRead int64
	unlogged        []byte
	heartbeat       int64 // of its client's back-off; 0: as for all
	ends            int64 // nanoseconds until the end of a protocol's stream; 0: it has none
}

// ReadState reads the state of a session of that kind, with the channels and keys of now: the
// error reports what of it cannot continue. readers are those of protocols' streams, by name. Any
// goroutine.
func (p *Push) ReadState(kind uint8, s takeover.State, readers map[string]socket.SubscriptionReader) (*Arriving, error) {
	a := &Arriving{kind: kind}
	var protocol string
	var custom takeover.State
	var form uint64
	var position []byte
	var identity takeover.State
	var sent, lastRead, heartbeat, ends uint64
	err := s.Into([]any{
		sessionChannel: &a.sub.Channels, sessionPosition: &position, sessionIdentity: &identity, sessionForm: &form,
		sessionSent: &sent, sessionLastRead: &lastRead, sessionHeartbeat: &heartbeat, sessionEnds: &ends,
		sessionUnlogged: &a.unlogged, sessionProtocol: &protocol, sessionCustom: &custom,
	})
	a.sent, a.sinceRead, a.heartbeat, a.ends = nanoseconds(sent), nanoseconds(lastRead), nanoseconds(heartbeat), nanoseconds(ends)
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
	if kind == takeover.KindEvents {
		return a, a.readCustom(p, protocol, custom, readers)
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

// nanoseconds bounds what a state says of times.
func nanoseconds(n uint64) int64 { return int64(min(n, uint64(never))) }

// readCustom reads what a protocol's stream of events is.
func (a *Arriving) readCustom(p *Push, protocol string, s takeover.State, readers map[string]socket.SubscriptionReader) (err error) {
	read := readers[protocol]
	if a.sub.Protocol = p.protocols.number(protocol); read == nil || a.sub.Protocol == 0 {
		return fmt.Errorf("the protocol %q is not served here", protocol)
	}
	if a.sub.Custom, err = read(s); err != nil {
		return err
	}
	a.sub.Channels, a.sub.Identity = a.sub.Custom.Options.Channels, a.sub.Custom.Identity
	return nil
}

// framesOf and streamsOf are the wire formats of sessions by their numbers: of WebSockets, and of
// streams of events.
var framesOf, streamsOf = func() (frames, streams map[uint64]hub.Format) {
	frames, streams = map[uint64]hub.Format{}, map[uint64]hub.Format{}
	for f, n := range formNumbers {
		if wire.IsFrame(f) {
			frames[n] = f
		} else {
			streams[n], streams[n+formInChunks] = f, wire.InChunks(f)
		}
	}
	return frames, streams
}()

// findForm finds the wire format of a number.
func (a *Arriving) findForm(number uint64) (err error) {
	forms := streamsOf
	if a.kind == takeover.KindWebSocket {
		forms = framesOf
	}
	var ok bool
	if a.format, ok = forms[number]; !ok {
		err = fmt.Errorf("%w: wire format %d of kind %d", takeover.ErrState, number, a.kind)
	}
	return err
}

// Arrive makes c what a says, and continues with its stream where that was.
func (p *Push) Arrive(c *eventloop.Conn, a *Arriving) (eventloop.Handler, error) {
	l := p.LoopState(c)
	now := l.loop.Now()
	var h eventloop.Handler
	var s *session
	var sink hub.Sink
	if a.kind == takeover.KindWebSocket {
		w := &wsSession{lastRecv: now - a.sinceRead}
		h, s, sink = w, &w.session, w
	} else {
		w := &sseSession{}
		h, s, sink = w, &w.session, w
	}
	s.format = a.format
	opt := hub.SubscribeOptions{Channels: a.sub.Channels, Since: a.at}
	count := func(n int64) { p.tally(c, a.kind == takeover.KindWebSocket, n) }
	if x := a.sub.Custom; x == nil {
		s.openTo(p.access, &a.sub)
	} else {
		opt = x.Options
		opt.Since, opt.All = a.at, false
		if x.Select != nil {
			opt.Select = x.Select
		}
		count = func(n int64) { h.(*sseSession).tally(c, p, a.sub.Protocol, n) }
	}
	c.SetHandler(h)
	count(1)
	if len(a.unlogged) > 0 {
		c.Write(a.unlogged)
	}
	s.prepare(l, c, &a.sub)
	s.lastSend, s.extras.heartbeat = now-a.sent, a.heartbeat
	s.extras.opening.moved, s.extras.opening.requested = true, a.at
	if x := a.sub.Custom; x != nil {
		s.extras.custom = newCustom(&a.sub, now)
		s.extras.custom.ended, s.extras.custom.ends = x.Ended, 0
		if a.ends > 0 {
			s.extras.custom.ends = now + a.ends
		}
		s.report(x.Began)
	}
	l.enter()
	defer l.exit()
	l.markFor(c, opt.Channels)
	if err := l.shard.Subscribe(&s.sub, sink, opt); err != nil {
		l.unmark(c)
		s.logFailure(err)
		count(-1)
		if x := a.sub.Custom; x != nil {
			s.report(x.Ended)
		}
		return nil, err
	}
	return h, nil
}

// resumesAt reports whether the session came from another process and is live here now, where
// its client was sent everything up to at.
func (s *session) resumesAt(at hub.Positions) bool {
	o := s.opening()
	if o == nil || !o.moved {
		return false
	}
	if !wire.IsFrame(s.format) && len(at) > 1 && s.custom() == nil {
		_, lossy := o.resumes(at)
		s.keepsPosition(at, lossy)
	}
	s.opened()
	return true
}
