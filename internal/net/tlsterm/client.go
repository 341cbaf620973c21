package tlsterm

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// A Client is the client's side of TLS for connections that loops dial: crypto/tls
// does each handshake on one of a bounded number of goroutines, then the loop goes
// on with the record layer of records.go. Any goroutine may call its methods.
type Client struct {
	// Fixed at NewClient.
	gate       chan struct{} // as many as may compute at a time
	loopStates []*loopState

	live liveSet[*Shake]

	mu    sync.Mutex
	lines []*Line
}

// A Line bounds the handshakes of one group of peers, so that peers which hang in
// theirs delay only their own group.
type Line struct{ admission *admission }

const (
	// lineRunning is how many handshakes of a Line are under way at a time: most of
	// them wait for their peers.
	lineRunning = 256
	lineWaiting = 16384
)

// NewClient makes a Client for the loops with the numbers below loops.
func NewClient(loops int) *Client {
	cl := &Client{gate: make(chan struct{}, max(sys.Processors()/2, 1)), live: newLiveSet[*Shake]()}
	for range loops {
		cl.loopStates = append(cl.loopStates, newLoopState())
	}
	return cl
}

// Line returns a new Line.
func (cl *Client) Line() *Line {
	l := &Line{newAdmission(Config{MaxHandshakes: lineRunning, MaxWaiting: lineWaiting})}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.lines = append(cl.lines, l)
	return l
}

// Close ends the handshakes under way, lets none start and waits for their
// goroutines. Connections that are established stay.
func (cl *Client) Close() {
	cl.live.close(func(s *Shake) { s.x.cancel(errGone) })
	cl.mu.Lock()
	lines := cl.lines
	cl.mu.Unlock()
	for _, l := range lines {
		l.admission.close()
	}
}

// A Shake is the handshake of one connection. It belongs to the connection's loop,
// whose handler passes on what comes until it is over.
type Shake struct {
	client    *Client
	c         *eventloop.Conn
	loopState *loopState
	line      *Line
	x         *exchange
	place     *place
	then      func(error)
	over      bool
	// Written by the handshake's goroutine before its last post to the loop.
	result *result
}

// Shake starts the handshake on c, which is open. cfg becomes its own; sessions are
// kept in cfg.ClientSessionCache under key alone, if there is one. then is called
// once on c's loop, unless Cancel comes before: after no error Install has to follow.
func (cl *Client) Shake(c *eventloop.Conn, line *Line, cfg *tls.Config, key string, then func(error)) *Shake {
	s := cl.newShake(c, line, then)
	cfg.KeyLogWriter = &s.x.secrets
	cfg.CipherSuites = suites12
	cfg.Renegotiation = tls.RenegotiateNever
	if cfg.ClientSessionCache != nil {
		cfg.ClientSessionCache = &slot{cfg.ClientSessionCache, key, s.x}
	}
	s.enter(func() *result { return s.shake(cfg) })
	return s
}

// ShakeGM is Shake with TLCP or RFC 8998. cfg stays the caller's.
func (cl *Client) ShakeGM(c *eventloop.Conn, line *Line, cfg *gm.ClientConfig, then func(error)) *Shake {
	s := cl.newShake(c, line, then)
	s.enter(func() *result { return s.shakeGM(cfg) })
	return s
}

func (cl *Client) newShake(c *eventloop.Conn, line *Line, then func(error)) *Shake {
	s := &Shake{client: cl, c: c, loopState: cl.loopStates[c.Loop().ID()], line: line, then: then}
	s.x = newExchange(net.TCPAddrFromAddrPort(c.Peer()), nil, cl.gate, func() { c.Loop().Post(s.step) })
	s.x.dialed = true
	return s
}

// enter has shake run when the line allows it.
func (s *Shake) enter(shake func() *result) {
	if s.client.live.add(s) {
		s.place = s.line.admission.enter(func() { s.run(shake) })
	}
	if s.place == nil {
		s.client.live.remove(s)
		s.over = true
		s.c.Loop().Post(func() { // never from here
			if then := s.then; then != nil {
				s.then = nil
				then(ErrBusy)
			}
		})
	}
}

// run is the handshake, on a goroutine of its own.
func (s *Shake) run(shake func() *result) {
	s.client.gate <- struct{}{}
	res := shake()
	<-s.client.gate
	s.client.live.remove(s)
	s.c.Loop().Post(func() {
		s.result = res
		s.step()
	})
}

func (s *Shake) shake(cfg *tls.Config) *result {
	conn := tls.Client(s.x, cfg)
	if err := conn.Handshake(); err != nil {
		return &result{err: err}
	}
	state := conn.ConnectionState()
	r, err := s.x.finishDialed(&state, s.loopState)
	if err == nil && state.Version == tls.VersionTLS13 && cfg.ClientSessionCache != nil {
		r.dialed.conn, r.dialed.x = conn, s.x
	}
	return &result{records: r, resumed: state.DidResume, protocol: state.NegotiatedProtocol, err: err}
}

// step sends what the handshake has to say, and takes its result. Loop only.
func (s *Shake) step() {
	c := s.c
	if s.over || c.Closing() {
		return
	}
	if b := s.x.drainOutput(); len(b) > 0 {
		c.SendCopy(b) // an alert is not to be lost to what then does
	}
	if s.result == nil || c.Closing() {
		return
	}
	s.over = true
	s.then(s.result.err)
}

// Data takes what came from the peer.
func (s *Shake) Data(b []byte) {
	if !s.over && s.x.feed(b) > maxEarly {
		s.c.PauseReading()
	}
}

// End reports that the peer sends no more.
func (s *Shake) End() {
	if !s.over {
		s.x.end()
	}
}

// Cancel ends a handshake whose connection is closed.
func (s *Shake) Cancel() {
	s.then = nil
	if s.over {
		return
	}
	s.over = true
	s.line.admission.leave(s.place)
	s.x.cancel(errGone)
	s.client.live.remove(s)
}

// Protocol is what ALPN agreed on; empty: nothing.
func (s *Shake) Protocol() string {
	if s.result == nil {
		return ""
	}
	return s.result.protocol
}

// Resumed reports whether the handshake resumed a session.
func (s *Shake) Resumed() bool { return s.result != nil && s.result.resumed }

// Install makes what follows on the connection records; its handler gets what came
// right behind the handshake at once. After then was called without an error.
func (s *Shake) Install() {
	s.c.ResumeReading()
	s.c.SetFilter(s.result.records, s.x.rest())
}

// finishDialed is finish for the client's side.
func (x *exchange) finishDialed(state *tls.ConnectionState, l *loopState) (*records, error) {
	s := suiteOf(state.Version, state.CipherSuite)
	if s == nil {
		return nil, errors.New("no record layer for " + tls.CipherSuiteName(state.CipherSuite))
	}
	r := &records{loopState: l, suite: s, dialed: &dialed{}}
	k := &x.secrets
	if s.v13 {
		if len(k.client) != s.hashLen || len(k.server) != s.hashLen {
			return nil, errors.New("the handshake left no traffic secrets")
		}
		s.setSecret(&r.in, k.server)
		s.setSecret(&r.out, k.client) // the client's Finished went under another key
		return r, nil
	}
	const random = serverRandomAt // of both hellos
	if len(k.master) == 0 || len(x.head) < random+randomLen || len(x.received) < random+randomLen {
		return nil, errors.New("the handshake left no master secret")
	}
	s.setMaster(&r.out, &r.in, k.master, x.head[random:random+randomLen], x.received[random:random+randomLen])
	return r, nil
}

// dialed is what the record layer of a client needs besides.
type dialed struct {
	skip int // bytes of a session ticket still to come
	// conn and x take the session tickets in, until the first data; then nil.
	conn *tls.Conn
	x    *exchange
	gm   *gm.Tickets // the same with a suite of RFC 8998
}

// forget lets no more tickets be taken in.
func (d *dialed) forget() { d.conn, d.x, d.gm = nil, nil, nil }

const (
	newSessionTicket = 4
	// maxTicketMessage bounds a NewSessionTicket, whose ticket may have 64 KB.
	maxTicketMessage = 1<<16 + 1<<10
)

// serverMessage takes messages after the handshake: session tickets (RFC 8446
// §4.6.1) and key updates.
func (r *records) serverMessage(b []byte, requested *bool) error {
	if len(b) == 0 {
		return &recordError{alertUnexpectedMessage, "an empty handshake record"}
	}
	d := r.dialed
	for len(b) > 0 {
		switch {
		case d.skip > 0:
			n := min(d.skip, len(b))
			d.skip -= n
			b = b[n:]
			continue
		case r.messageLen == 0 && b[0] == keyUpdate, r.messageLen > 0 && r.message[0] == keyUpdate:
			d.conn, d.x = nil, nil // it would need the new key
			return r.handshakeMessage(b, requested)
		}
		n := copy(r.message[r.messageLen:4], b)
		r.messageLen += uint8(n)
		b = b[n:]
		if r.message[0] != newSessionTicket {
			return &recordError{alertUnexpectedMessage, "a handshake message after the handshake"}
		}
		if r.messageLen < 4 {
			break
		}
		r.messageLen = 0
		if d.skip = int(r.message[1])<<16 | int(r.message[2])<<8 | int(r.message[3]); d.skip > maxTicketMessage {
			return &recordError{alertDecodeError, "a session ticket that is too long"}
		}
	}
	return r.noData()
}

// ticket shows crypto/tls a record that holds nothing but messages after the
// handshake: it keeps the session that they start. As long as no other record was
// opened, its count of them is ours. data is the record's plaintext, for package gm.
func (d *dialed) ticket(rec, data []byte) {
	if d.gm != nil {
		d.gm.Add(data)
	}
	if d.conn == nil {
		return
	}
	d.x.feed(rec)
	d.x.neverWait()
	var none [1]byte
	if _, err := d.conn.Read(none[:]); !errors.Is(err, errNothingYet) {
		d.conn, d.x = nil, nil // it is not a session, then
	}
}

// errNothingYet is temporary, which crypto/tls forgets.
var errNothingYet net.Error = nothingYet{}

type nothingYet struct{}

func (nothingYet) Error() string   { return "nothing has come yet" }
func (nothingYet) Timeout() bool   { return false }
func (nothingYet) Temporary() bool { return true }

// A slot is the place of one peer in a cache of sessions. The master secret of a
// TLS 1.2 session is stored beside it: the key log is silent when it resumes.
type slot struct {
	cache tls.ClientSessionCache
	key   string
	x     *exchange
}

var _ tls.ClientSessionCache = (*slot)(nil)

// Get implements tls.ClientSessionCache.
func (s *slot) Get(string) (*tls.ClientSessionState, bool) {
	session, ok := s.cache.Get(s.key)
	if !ok || session == nil {
		return nil, false
	}
	_, state, err := session.ResumptionState()
	if err != nil || state == nil {
		return nil, false
	}
	for _, extra := range state.Extra {
		if master, ok := bytes.CutPrefix(extra, []byte(masterPrefix)); ok {
			s.x.secrets.master = master
		}
	}
	return session, true
}

// Put implements tls.ClientSessionCache.
func (s *slot) Put(_ string, session *tls.ClientSessionState) {
	if session != nil && len(s.x.secrets.master) > 0 {
		if _, state, err := session.ResumptionState(); err == nil && state != nil {
			state.Extra = append(state.Extra, append([]byte(masterPrefix), s.x.secrets.master...))
		}
	}
	s.cache.Put(s.key, session)
}
