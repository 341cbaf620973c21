package push

import (
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// The fields of the state of a transport with a protocol's session. Their meaning does not
// change; see takeover.State.
const (
	transportProtocol = iota + 1 // its name
	transportSession             // the session's state
	transportKind                // 0: a stream, 1: a stream in chunks, 2: a WebSocket
	transportLastRead            // nanoseconds since the client last sent
)

const (
	kindStream = iota
	kindChunked
	kindSocket
)

var _ eventloop.Mover = (*transport)(nil)

// AppendState implements eventloop.Mover. Its client waits while a message is incomplete.
func (t *transport) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	m, ok := t.session.(socket.Mover)
	if !ok || t.calls > 0 || t.flags&(closeSent|isGone|isOver|drainSent) != 0 || t.more != nil && (t.more.parser != nil || t.more.deciding != nil) {
		return dst, 0
	}
	session, ok := m.AppendState(nil)
	if !ok {
		return dst, 0
	}
	kind := uint64(kindStream)
	switch {
	case t.flags&isSocket != 0:
		kind = kindSocket
	case t.flags&inChunks != 0:
		kind = kindChunked
	}
	dst = dst.MustString(transportProtocol, t.loopState().push.protocols[t.protocol].name).MustBytes(transportSession, session).MustUint(transportKind, kind)
	return dst.Uint(transportLastRead, uint64(t.Now()-t.LastRead())), takeover.KindProtocol
}

// Moved implements eventloop.Mover.
func (t *transport) Moved(*eventloop.Conn) {
	t.flags |= isGone | isOver
	t.tally(-1)
	t.endSubscriptions()
	t.session.(socket.Mover).Moved()
}

// An ArrivingProtocol is a protocol's session that comes from another process, read and not
// yet open.
type ArrivingProtocol struct {
	*socket.Arriving
	flags     transportFlags
	protocol  uint8
	sinceRead int64
}

// ReadProtocol reads the state of a protocol's session. readers are those of the protocols, by
// name. Any goroutine.
func (p *Push) ReadProtocol(s takeover.State, readers map[string]socket.Reader) (*ArrivingProtocol, error) {
	a := &ArrivingProtocol{}
	var name string
	var session takeover.State
	var kind, lastRead uint64
	err := s.Into([]any{transportProtocol: &name, transportSession: &session, transportKind: &kind, transportLastRead: &lastRead})
	a.flags = map[uint64]transportFlags{kindChunked: inChunks, kindSocket: isSocket}[kind]
	a.sinceRead = nanoseconds(lastRead)
	if err != nil {
		return nil, err
	}
	read := readers[name]
	if a.protocol = p.protocols.number(name); read == nil || a.protocol == 0 {
		return nil, fmt.Errorf("the protocol %q is not served here", name)
	}
	a.Arriving, err = read(session)
	return a, err
}

// number returns the number of a protocol; 0 if there is none of that name.
func (p protocols) number(name string) uint8 {
	return uint8(max(slices.IndexFunc(p, func(x protocol) bool { return x.name == name }), 0))
}

// ArriveProtocol makes c what a says. Loop only.
func (p *Push) ArriveProtocol(c *eventloop.Conn, a *ArrivingProtocol) eventloop.Handler {
	l := p.LoopState(c)
	t := &transport{conn: c, flags: a.flags | arriving, protocol: a.protocol, lastRead: readStamp(l.loop.Now() - a.sinceRead)}
	if a.flags&isSocket != 0 {
		t.limits = l.lentFor(a.MaxMessage)
	}
	t.start(a.Open)
	t.flags &^= arriving
	return t
}
