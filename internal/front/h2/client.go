package h2

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A Caller is the client's side of HTTP/2 on one loop. It belongs to the loop's goroutine.
//
// The other way round than a Server, it is the same trick: each stream of a Session is a
// connection of its own, on which a request is written in the form of HTTP/1.1 and its reply
// read in that form.
type Caller struct {
	// Fixed at NewCaller.
	limits http1.Limits
	log    *slog.Logger

	// Scratch, and what few calls have.
	req     http1.Request // of a call, while it is translated
	reply   replyFields   // what a header block says
	head    []byte        // of a reply, while it is made
	chunk   []byte        // a piece of a body with its frame
	name    []byte        // a field's name in small letters
	block   blockWriter
	buffers buffers
	trailer []byte // the fields behind a request's body
	// cut are the beginnings of such fields that are not whole.
	cut map[*call][]byte
}

// CallCounters count what Sessions do, those of one cluster for instance. The zero value is
// ready. The loop that has the Sessions adds, any goroutine reads.
type CallCounters struct {
	sessions, calls, unprocessed, resets, canceled, malformed, goaways atomic.Uint64
	open, openCalls                                                    atomic.Int64
	floods                                                             [floods]atomic.Uint64
}

// NewCaller returns a Caller whose replies' heads are bounded by limits.
func NewCaller(limits http1.Limits, log *slog.Logger) *Caller {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	l := &Caller{limits: limits, log: log, cut: map[*call][]byte{}}
	l.limits.MaxHead = cmp.Or(l.limits.MaxHead, 32<<10)
	l.block.init()
	return l
}

// CallStats are what CallCounters have counted since they were made, and what is open now.
type CallStats struct {
	Sessions    uint64 // connections that speak HTTP/2 to a backend
	Calls       uint64 // requests sent on them
	Unprocessed uint64 // of these, those that the backend said it did not process
	Resets      uint64 // those that the backend reset otherwise
	Canceled    uint64 // those that we reset, since no client waited for them
	Malformed   uint64 // replies that broke RFC 9113 in a way that concerns them alone
	GoAways     uint64 // connections that the backend said it will end
	Open        int64  // connections now
	OpenCalls   int64
	// Floods are the connections closed because the backend sent too much of something.
	Floods map[string]uint64
}

// Add adds what was counted to t. Any goroutine.
func (c *CallCounters) Add(t *CallStats) {
	t.Sessions += c.sessions.Load()
	t.Calls += c.calls.Load()
	t.Unprocessed += c.unprocessed.Load()
	t.Resets += c.resets.Load()
	t.Canceled += c.canceled.Load()
	t.Malformed += c.malformed.Load()
	t.GoAways += c.goaways.Load()
	t.Open += c.open.Load()
	t.OpenCalls += c.openCalls.Load()
	for i := range c.floods {
		if n := c.floods[i].Load(); n > 0 {
			if t.Floods == nil {
				t.Floods = map[string]uint64{}
			}
			t.Floods[flood(i).String()] += n
		}
	}
}

// An Owner is who opened a Session. Its methods are called on the loop's goroutine.
type Owner interface {
	// Room reports that calls have ended or more are allowed: Free may be more than it was.
	Room(s *Session)
	// Leaving reports that no more calls can be opened, though some may still run.
	Leaving(s *Session)
	// Ended is the last call: the connection is closed.
	Ended(s *Session, err error)
}

// A Session is a connection of HTTP/2 to a backend. It belongs to its loop's goroutine.
type Session struct {
	// Fixed by Start.
	caller   *Caller
	owner    Owner
	counters *CallCounters

	// Owned by the loop's goroutine. No lock.
	writer
	calls  []*call // whose head was sent, in the order of their numbers
	fresh  []*call // whose head was not sent
	linger []*call // replied to, while the backend has not ended their streams
	blocks blockReader
	budget *budget
	data   replyData // of a DATA frame that is not complete

	next   uint32 // the number of the next stream
	most   uint32 // streams that the backend allows at a time
	credit int32  // what the backend may send over all streams
	owed   int32  // what was received of it and not given back
	stray  int32  // what may still come for streams that were closed
	idle   int64  // how long it stays without calls
	flags  sessionFlags
}

// replyData is what is left of a DATA frame.
type replyData struct {
	dataLeft
	call *call // nil: it is closed, and what comes is dropped
}

type sessionFlags uint8

const (
	started         sessionFlags = 1 << iota // the preface was sent
	ready                                    // the backend's SETTINGS came: calls go out
	sLeaving                                 // no more calls are opened
	sOver                                    // the connection ends
	notifiedLeaving                          // the owner was notified
)

const (
	// assumedCalls is how many calls wait for the backend's SETTINGS at most, and how many
	// it is taken to allow if it does not say (§6.5.2 recommends not less).
	assumedCalls = 100
	// ourMostCalls bounds what is made of a backend that allows any number.
	ourMostCalls = 1000
	// replyWindow is what a backend may send of a reply that is taken as it comes; the first
	// window is firstWindow, so that unread replies are not kept for long.
	replyWindow = 256 << 10
	// sessionWindow is the same over all streams. It is given back at once, so that a slow
	// client blocks its own stream alone.
	sessionWindow = 4 << 20
)

var (
	_ eventloop.Handler = (*Session)(nil)
	_ eventloop.Flusher = (*Session)(nil)
)

// Begin returns a Session on c, which may be connecting still and has a handler of the
// owner's until Start. Calls may be opened from now on; they wait. It is counted in counters.
func (l *Caller) Begin(c *eventloop.Conn, owner Owner, counters *CallCounters) *Session {
	counters.sessions.Add(1)
	counters.open.Add(1)
	return &Session{caller: l, writer: newWriter(c, &l.buffers), owner: owner, counters: counters, next: 1, most: assumedCalls, credit: sessionWindow}
}

// Start makes s speak: the connection is open, and is its own from now on. within bounds the
// time until the backend's SETTINGS come, idle how long s stays without calls.
func (s *Session) Start(within, idle int64) {
	s.flags |= started
	s.idle = idle
	s.sock.SetHandler(s)
	s.sock.SetTimer(max(within, 1))
	b := append([]byte(Preface), appendSettings(nil,
		setting{settingEnablePush, 0},
		setting{settingMaxHeaderList, uint32(s.caller.limits.MaxHead)},
	)...)
	s.control(appendWindowUpdate(b, 0, sessionWindow-firstWindow))
}

// Free returns how many more calls may be opened now.
func (s *Session) Free() int {
	if s.flags&(sLeaving|sOver) != 0 || s.next > maxStreamID-2*ourMostCalls {
		return 0
	}
	return int(s.most) - s.Calls()
}

// Calls returns how many calls are open.
func (s *Session) Calls() int { return len(s.calls) + len(s.fresh) + len(s.linger) }

// Allows returns how many calls the backend allows at a time.
func (s *Session) Allows() int { return int(s.most) }

// Ready reports whether the backend has shown that it speaks HTTP/2.
func (s *Session) Ready() bool { return s.flags&ready != 0 }

// Open opens a call, which h handles: a connection on which one request is written and one
// reply is read. While s is not Ready the request should not be written: h is notified by
// Connected when it may be. Open returns nil if there is no room.
func (s *Session) Open(h eventloop.Connector) *eventloop.Conn {
	if s.Free() <= 0 {
		return nil
	}
	c := &call{session: s, flow: flow{credit: firstWindow}}
	if !eventloop.Carry(&c.Carried, s.sock, c, h, s.Calls() == 0) {
		return nil
	}
	s.fresh = append(s.fresh, c)
	s.counters.openCalls.Add(1)
	if s.Ready() {
		s.sock.SetTimer(0)
	}
	return &c.Conn
}

// Leave lets no more calls be opened, and closes the connection when the last one is over.
func (s *Session) Leave() {
	s.flags |= sLeaving
	s.rest()
}

// Fail ends s with err, which all its calls get. What was not sent was not processed.
func (s *Session) Fail(err error) {
	if s.flags&sOver != 0 {
		return
	}
	s.flags |= sOver
	for _, list := range [][]*call{slices.Clone(s.fresh), slices.Clone(s.calls)} {
		for _, c := range list {
			c.Conn.Close(err)
		}
	}
	s.fresh, s.calls, s.linger, s.blocked, s.settle = nil, nil, nil, nil, nil
	s.blocks = blockReader{}
	s.counters.open.Add(-1)
	s.release()
	s.notifyLeaving()
}

// ErrElsewhere is what calls are closed with that waited for a connection which turned out to
// have no room for them. Nothing of them was sent.
var ErrElsewhere = errors.New("the connection has no room for the call")

// A PeerError is why a call ended early.
type PeerError struct {
	Code Code
	// Unprocessed: the backend has not acted on the request (RFC 9113 §8.7).
	Unprocessed bool
	// Malformed: what it sent is not HTTP/2.
	Malformed bool
	// Lost: the connection of the call ended.
	Lost bool
}

// Error implements error.
func (e *PeerError) Error() string {
	switch {
	case e.Lost:
		return "the connection to the backend ended"
	case e.Malformed:
		return "malformed reply: " + e.Code.String()
	}
	return "the backend reset the stream: " + e.Code.String()
}

// Closed implements eventloop.Handler.
func (s *Session) Closed(_ *eventloop.Conn, err error) {
	if s.flags&sOver == 0 {
		s.flags |= sLeaving // nothing new, whatever the calls' handlers do now
		for _, c := range slices.Clone(s.fresh) {
			c.Conn.Close(s.lost(err, true))
		}
		s.Fail(s.lost(err, false))
	}
	s.owner.Ended(s, err)
}

// lost is the error of a call at the end of its connection.
func (s *Session) lost(err error, fresh bool) error {
	switch {
	case errors.Is(err, eventloop.ErrStopped), errors.Is(err, eventloop.ErrStalled):
		return err
	}
	return &PeerError{Code: InternalError, Lost: true, Unprocessed: fresh && s.Ready()}
}

// EndOfStream implements eventloop.Handler.
func (s *Session) EndOfStream(*eventloop.Conn) bool { return false }

// Drained implements eventloop.Handler.
func (s *Session) Drained(*eventloop.Conn) { s.unblock() }

// Timer implements eventloop.Handler.
func (s *Session) Timer(*eventloop.Conn, int64) {
	switch {
	case !s.Ready():
		s.fail(SettingsTimeout, "no SETTINGS came")
	case s.Calls() == len(s.linger):
		s.Leave()
	}
}

// fail ends the connection for what the backend did (§5.4.1).
func (s *Session) fail(code Code, why string) {
	if s.flags&sOver != 0 || s.sock.Closing() {
		return
	}
	s.caller.log.Debug("HTTP/2 connection to a backend ends", "conn", s.sock.ID(), "peer", s.sock.Peer(), "code", code.String(), "err", why)
	s.control(goAwayFrame(0, code, why))
	s.flushNow()
	s.Fail(&PeerError{Code: code, Malformed: true})
	s.sock.CloseAfterFlush()
}

// rest is called when a call is over.
func (s *Session) rest() {
	if s.flags&sOver != 0 || len(s.calls)+len(s.fresh) > 0 {
		return
	}
	if s.flags&sLeaving == 0 {
		s.sock.SetTimer(max(s.idle, 1))
		return
	}
	if s.flags&started != 0 {
		s.control(goAwayFrame(0, NoError, ""))
		s.flushNow()
	}
	s.Fail(nil)
	s.sock.CloseAfterFlush()
}

func (s *Session) notifyLeaving() {
	if s.flags&notifiedLeaving == 0 {
		s.flags |= notifiedLeaving
		s.owner.Leaving(s)
	}
}

// forget takes c off the lists.
func (s *Session) forget(c *call) {
	if i := slices.Index(s.fresh, c); i >= 0 {
		s.fresh = slices.Delete(s.fresh, i, i+1)
	} else if i, ok := s.index(c.id); ok {
		s.calls = slices.Delete(s.calls, i, i+1)
	}
	s.counters.openCalls.Add(-1)
	delete(s.caller.cut, c)
	if s.data.call == c {
		s.data.call = nil
	}
	if s.flags&sOver != 0 {
		return
	}
	s.rest()
	if s.flags&(sOver|sLeaving) == 0 {
		s.owner.Room(s)
	}
}

func (s *Session) index(id uint32) (int, bool) {
	return slices.BinarySearchFunc(s.calls, id, func(c *call, id uint32) int { return int(c.id) - int(id) })
}

// find returns the call whose stream has that number, or nil.
func (s *Session) find(id uint32) *call {
	if i, ok := s.index(id); ok {
		return s.calls[i]
	}
	for _, c := range s.linger {
		if c.id == id {
			return c
		}
	}
	return nil
}

// isIdle reports whether we have not started a stream of that number.
func (s *Session) isIdle(id uint32) bool { return id >= s.next || id%2 == 0 }

// tolerate takes one of f from the connection's budget. Without one it ends the connection
// and returns false.
func (s *Session) tolerate(f flood) bool {
	if s.budget == nil {
		s.budget = &budget{}
	}
	s.budget.refill(s.sock.Loop().Now())
	if s.budget.spend(f) {
		return true
	}
	s.counters.floods[f].Add(1)
	s.fail(EnhanceYourCalm, "too much of "+f.String())
	return false
}

// tolerateMoved is tolerate for what bodies that move account for.
func (s *Session) tolerateMoved(f flood) bool {
	return s.excused() || s.tolerate(f)
}
