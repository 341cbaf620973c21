package centrifuge

import (
	"bytes"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/backlog"
)

// session is one client. It belongs to its transport's owner. There is one per
// client: every word of it counts.
type session struct {
	t socket.Transport
	// account is who the client is; shared by all that have no user.
	account *account
	// place is where the registry has it; guarded by the registry's lock.
	place uint32
	// due is when the next ping, or the pong, is due: in ticks, which wrap around.
	due   uint16
	flags sessionFlags
	// first is the client's first subscription, so that one costs no allocation.
	first subscription
}

type sessionFlags uint16

const (
	connecting sessionFlags = 1 << iota // the connect command came
	connected                           // and was answered
	refused                             // it was answered with an error: nothing is read any more
	ended                               // the last words were said, or the client is gone
	busy                                // a command is at work that others must not overtake
	awaitsPong                          // a ping was sent
	gotPong                             // and answered
	registered                          // in the registry
	subsExpire                          // some subscription has an end
	emulated                            // commands come by themselves
	inBand                              // input is being read
)

// sessionExtras is the part of a session that few need.
type sessionExtras struct {
	// bufferedInput is what the client said while it was busy.
	bufferedInput []byte
	// backlog is what the client is too slow for.
	backlog *backlog.Queue
	// firstExtras are the first subscription's, otherExtras the others'.
	firstExtras *subscriptionExtras
	otherExtras map[*subscription]*subscriptionExtras
	// more are the subscriptions after the first, index all of them when they are many.
	more  []*subscription
	index map[string]*subscription
	// headers are those of the client's request that proxies are sent.
	headers map[string]string
	// identity is what an extension decided, until the client connects; nil: nothing.
	identity *auth.Identity
	// resume is where an EventSource was; the other where it is.
	resume    string
	positions standings
	// pace is set if a namespace bounds the rate of messages.
	pace *pace
	// working counts the commands that are at work and may be overtaken.
	working int
	// connect is set until the connect command is answered.
	connect *connect
	// pings is how often the client is pinged, if its back-off says so; 0: as all are.
	pings time.Duration
	// end is why the connection ended.
	end protocol.Disconnection
}

const (
	tick = 100 * time.Millisecond
	// refusedTime is how long a client may take to go after its connect has failed.
	refusedTime = 5 * time.Second
	// maxWorking bounds the commands of a client that are at work at a time.
	maxWorking = 64
)

func (s *session) kind() *kind  { return s.account.kind }
func (s *session) srv() *Server { return s.account.kind.srv }

func (s *session) ensureExtras() *sessionExtras {
	a := s.mayChange()
	if a.extras == nil {
		a.extras = &sessionExtras{}
	}
	return a.extras
}

// pingEvery is how often the client is pinged.
func (a *account) pingEvery() time.Duration {
	if r := a.extras; r != nil && r.pings != 0 {
		return r.pings
	}
	return time.Duration(a.kind.srv.conf().cfg.PingInterval)
}

// begin is the first call: the transport is open. pings is how often the client is to be pinged.
func (k *kind) begin(t socket.Transport, headers map[string]string, pings time.Duration) *session {
	c := &session{t: t, account: k.anonymous}
	if pings = max(pings.Truncate(time.Second), time.Second); pings < time.Duration(k.srv.conf().cfg.PingInterval) {
		c.ensureExtras().pings = pings // the protocol has seconds
	}
	if len(headers) > 0 {
		c.ensureExtras().headers = headers
	}
	t.SetTimer(time.Duration(k.srv.conf().cfg.StaleTimeout))
	return c
}

// Message implements socket.Session.
func (s *session) Message(b []byte, _ bool) {
	if s.kind().uni {
		s.uniMessage(b)
		return
	}
	s.input(b)
}

// input reads commands.
func (s *session) input(b []byte) {
	switch {
	case s.flags&(ended|refused) != 0:
		return
	case len(b) == 0:
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	case s.flags&(busy|inBand) != 0:
		s.bufferInput(b)
		return
	}
	s.flags |= inBand
	defer func() { s.flags &^= inBand }()
	var c protocol.Command
	for len(b) > 0 && s.flags&(ended|refused) == 0 {
		if s.flags&busy != 0 {
			s.bufferInput(b)
			return
		}
		rest, err := protocol.Next(b, s.kind().enc, &c)
		if err != nil {
			s.disconnect(protocol.DisconnectedBadRequest)
			return
		}
		s.srv().counters.commands[c.Kind].Add(1)
		s.handle(&c)
		b = rest
	}
}

// bufferInput keeps b until the command at work is done. A pong need not wait.
func (s *session) bufferInput(b []byte) {
	enc := s.kind().enc
	if bytes.Equal(b, protocol.Empty(enc)) {
		s.pong()
		return
	}
	r := s.ensureExtras()
	if len(r.bufferedInput)+len(b) > 4*s.srv().conf().cfg.MaxCommand {
		s.disconnect(protocol.DisconnectedTooManyRequests)
		return
	}
	if len(r.bufferedInput) > 0 && enc == protocol.JSON {
		r.bufferedInput = append(r.bufferedInput, '\n')
	}
	r.bufferedInput = append(r.bufferedInput, b...)
}

// done ends the command at work and reads what was held meanwhile.
func (s *session) done() {
	s.flags &^= busy
	if s.account.extras == nil || len(s.account.extras.bufferedInput) == 0 || s.flags&inBand != 0 {
		return
	}
	held := s.account.extras.bufferedInput
	s.account.extras.bufferedInput = nil
	s.input(held)
}

// handle answers one command.
func (s *session) handle(c *protocol.Command) {
	switch {
	case c.Kind == protocol.None && c.ID == 0:
		s.pong()
	case c.Kind == protocol.None, c.Kind == protocol.Ping,
		c.ID == 0 && c.Kind != protocol.Send,
		c.Kind == protocol.Connect && s.flags&(connecting|connected) != 0,
		c.Kind != protocol.Connect && s.flags&connected == 0:
		s.disconnect(protocol.DisconnectedBadRequest)
	case c.Kind == protocol.Connect:
		s.connect(c.ID, c.Connect)
	default:
		command{s, c.ID}.answer(c)
	}
}

// answer answers a command of a connected client.
func (s command) answer(c *protocol.Command) {
	switch c.Kind {
	case protocol.Subscribe:
		s.subscribe(&c.Sub)
	case protocol.Unsubscribe:
		s.unsubscribe(c.Sub.Channel)
	case protocol.Publish:
		s.publish(c)
	case protocol.Presence, protocol.PresenceStats:
		s.presence(c)
	case protocol.History:
		s.history(c)
	case protocol.RPC:
		s.rpc(c)
	case protocol.Send:
		s.disconnect(protocol.DisconnectedNotAvailable)
	case protocol.Refresh:
		s.refresh(c.Sub.Token)
	case protocol.SubRefresh:
		s.subRefresh(c)
	}
}

// reply answers the command.
func (s command) reply(r protocol.Result) {
	s.write(func(dst []byte) []byte { return protocol.AppendReply(dst, s.kind().enc, s.id, r) })
}

// fail answers the command with an error.
func (s command) fail(e protocol.Error) {
	s.srv().counters.failed.Add(1)
	s.write(func(dst []byte) []byte { return protocol.AppendError(dst, s.kind().enc, s.id, e) })
}

// push sends a push of its own. channel is the hub's.
func (s *session) push(channel string, body protocol.PushBody) {
	k := s.kind()
	s.write(func(dst []byte) []byte { return protocol.AppendPush(dst, k.enc, k.uni, wireName(channel), body) })
}

// scratch is room for what is sent once.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

const maxScratch = 64 << 10

// write sends what body appends, which no other client gets.
func (s *session) write(body func(dst []byte) []byte) {
	if !s.room() {
		return
	}
	buf := scratch.Get().(*[]byte)
	b := s.kind().appendWrapped((*buf)[:0], pushRoom, body)
	s.t.Write(b)
	if cap(b) > cap(*buf) && cap(b) <= maxScratch {
		*buf = b
	}
	scratch.Put(buf)
}

// send sends b, which may be shared.
func (s *session) send(b []byte) {
	if s.room() {
		s.t.Send(b)
	}
}

// room reports whether the client may be sent something, and ends it if it does not
// take what it was sent.
func (s *session) room() bool {
	if s.flags&ended != 0 {
		return false
	}
	if s.t.Stalled() && s.t.Unsent() > s.srv().conf().cfg.MaxQueue {
		s.disconnect(protocol.DisconnectedSlow)
		return false
	}
	return true
}

// disconnect reports why the connection ends, and ends it.
func (s *session) disconnect(d protocol.Disconnection) {
	if s.flags&ended != 0 {
		return
	}
	s.flags |= ended
	s.ensureExtras().end = d
	s.srv().counters.disconnected(d)
	if d.Code == protocol.DisconnectedNormal.Code { // nothing is said then: the connection is gone
		s.t.Cut()
		return
	}
	if k := s.kind(); !k.socket {
		s.t.Send(k.appendPush(nil, "", d))
	}
	s.t.Close(int(d.Code), d.Reason)
}

// Drain implements socket.Session.
func (s *session) Drain() { s.disconnect(protocol.DisconnectedShutdown) }

// Closed implements socket.Session.
func (s *session) Closed() {
	srv := s.srv()
	if s.flags&ended == 0 {
		s.flags |= ended
		s.ensureExtras().end = protocol.DisconnectedNormal
	}
	if s.flags&registered != 0 {
		srv.registry.remove(s)
	}
	for x := range s.subscriptions() {
		x.left()
	}
	if s.account.extras != nil && s.account.extras.backlog != nil {
		s.account.extras.backlog.Forget(&srv.waiting)
	}
	srv.emulated.remove(s)
	if s.flags&connected != 0 {
		srv.events.disconnected(s)
	}
}

// Subject implements socket.Identified.
func (s *session) Subject() string { return s.account.user }

// now is the clock of due.
func (s *session) now() uint16 { return uint16(s.t.Now() / int64(tick)) }

// schedule sets the timer to what is due next.
func (s *session) schedule() {
	next := time.Duration(int16(s.due-s.now())) * tick
	if at, ok := s.nextExpiry(); ok {
		next = min(next, at.Sub(s.srv().now()))
	}
	if s.account.extras != nil && s.account.extras.pace != nil && s.account.extras.backlog != nil {
		next = min(next, s.account.extras.pace.wait())
	}
	s.t.SetTimer(max(next, tick))
}

// pong is the empty command.
func (s *session) pong() {
	if s.flags&connected == 0 || s.flags&awaitsPong == 0 || s.flags&gotPong != 0 {
		s.disconnect(protocol.DisconnectedBadRequest)
		return
	}
	s.flags |= gotPong
}

// Pong implements socket.Session: native pings count by LastRead.
func (s *session) Pong() {}

// Timer implements socket.Session.
func (s *session) Timer() {
	switch {
	case s.flags&refused != 0:
		s.flags |= ended
		s.ensureExtras().end = protocol.DisconnectedNormal
		s.t.Cut()
		return
	case s.flags&connected == 0:
		s.disconnect(protocol.DisconnectedStale)
		return
	}
	if int16(s.due-s.now()) <= 0 {
		s.pingOrPong()
	}
	if s.account.extras != nil && s.account.extras.pace != nil {
		s.Drained()
	}
	if s.flags&ended == 0 {
		s.expire()
	}
	if s.flags&ended == 0 {
		s.schedule()
	}
}

// pingOrPong is called when one of them is due. After a ping the pong is due, after a
// pong the next ping.
func (s *session) pingOrPong() {
	cfg := &s.srv().conf().cfg
	every := s.account.pingEvery()
	ping, pong := uint16(every/tick), uint16(min(time.Duration(cfg.PongTimeout), every/2)/tick)
	if s.flags&awaitsPong == 0 {
		s.ping()
		if s.kind().uni {
			s.due += ping
			return
		}
		s.flags |= awaitsPong
		s.due += pong
		return
	}
	if s.flags&gotPong == 0 {
		s.disconnect(protocol.DisconnectedNoPong)
		return
	}
	s.flags &^= awaitsPong | gotPong
	s.due += ping - pong
}

func (s *session) ping() {
	k := s.kind()
	if k.uni && k.socket {
		if s.t.Now()-s.t.LastRead() > int64(s.account.pingEvery()+time.Duration(s.srv().conf().cfg.PongTimeout))*2 {
			s.disconnect(protocol.DisconnectedNoPong)
			return
		}
		s.t.Ping()
	}
	s.t.Send(k.empty())
}

// empty is the ping of the kind.
func (k *kind) empty() []byte {
	return k.appendWrapped(nil, 8, func(dst []byte) []byte { return append(dst, protocol.Empty(k.enc)...) })
}
