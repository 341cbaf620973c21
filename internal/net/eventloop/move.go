package eventloop

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// A Mover is a Handler whose connection can continue in another process.
type Mover interface {
	Handler
	// AppendState appends what the handler knows of c to dst and returns which kind of
	// handler continues from that; 0: not now. Nothing changes.
	AppendState(c *Conn, dst takeover.State) (state takeover.State, kind uint8)
	// Moved is the last call, in place of Closed: c is open, in another process.
	Moved(c *Conn)
}

// A MovingFilter is a Filter whose connection can continue in another process.
type MovingFilter interface {
	Filter
	// AppendState is Mover's.
	AppendState(dst takeover.State) (state takeover.State, ok bool)
	// Wipe forgets the keys for good: nothing can be opened or sealed any more.
	Wipe()
}

// The fields of a connection's state. Their meaning does not change; see takeover.State.
const (
	connKind     = iota + 1 // of the handler
	connHandler             // its state
	connIP                  // of the peer, 16 bytes
	connPort                // of the peer
	connAge                 // nanoseconds since it was accepted
	connListener            // index of its listener, plus 1
	connLoop                // index of its loop, plus 1
	connTimer               // nanoseconds until the handler's timer
	connInput               // that the handler did not consume
	connRaw                 // that the socket brought and is not yet delivered
	connSealed              // that the filter made and goes as it is
	connOutput              // that waits for the socket
	connNoRead              // 1: reading is paused
	connFilter              // the filter's state
	connSocket              // number of its socket, which the other process has, plus 1
)

// MaxMoving bounds the unsent bytes of a connection that moves.
const MaxMoving = 1 << 20

// Exported are connections of a loop that were sent and have not left yet.
type Exported struct {
	conns      []*Conn
	numbers    []int       // of conns
	companions []companion // that are in the states of conns
	size       int         // bytes of their states
}

// Len is the number of connections.
func (e *Exported) Len() int { return len(e.conns) }

// Bytes is what their states take together.
func (e *Exported) Bytes() int { return e.size }

// A Sender sends the states of n connections as the body of a frame, with the descriptors of those
// whose sockets were not sent ahead, which are lent until it returns. The connections have the numbers from
// first on.
type Sender func(n int, body []byte, fds []int) (first int, err error)

// Export hands the states of the connections that can move now to send. They are not read
// from then on, until Leave or Keep, before which the loop must not turn. paused says that no loop turns meanwhile: no input of
// any other connection is seen either; otherwise these are mostExported connections at most. Loop only, between two ticks.
func (l *Loop) Export(paused bool, send Sender) (*Exported, error) {
	if paused {
		l.stays = nil // of an upgrade before
	}
	l.flushDirty()
	l.gather.flush()
	l.runFlushers()
	conns := 0
	if paused { // nearly all of them move
		conns = len(l.table.conns)
	}
	wanted, loans := make([]*Conn, 0, conns), make([]poller.Loan, 0, conns)
	var companions []*Conn
	for _, c := range l.table.conns {
		if c != nil && c.fd >= 0 && !c.Connecting() && (paused || c.canMove() || canAccompany(c)) {
			wanted, loans = append(wanted, c), append(loans, poller.Loan{Key: c.key, FD: int(c.fd)})
		}
	}
	l.poller.Quiesce(loans, pollEvents{l}, quiesceTime, paused)
	e := &Exported{conns: make([]*Conn, 0, len(wanted)), numbers: make([]int, 0, len(wanted))}
	b := batch{loop: l, send: send, to: e, most: mostExported}
	if paused {
		b.most = math.MaxInt
	}
	l.exporting = &b
	defer func() { l.exporting = nil }()
	for _, c := range wanted {
		switch {
		case b.err != nil:
			c.restoreReading()
		case c.canMove() && len(e.conns) >= b.most:
			c.restoreReading()
		case c.canMove():
			if b.conns = append(b.conns, c); len(b.conns) == takeover.MaxFiles {
				b.lend()
			}
		case canAccompany(c):
			companions = append(companions, c)
		default:
			c.restoreReading()
		}
	}
	b.lend()
	e.restoreOthers(companions)
	return e, b.err
}

// mostExported bounds the connections of an Export while others are served, which waits for an answer about them.
const mostExported = takeover.MaxFiles

// quiesceTime bounds how long a loop waits for what is in flight.
const quiesceTime = 50 * time.Millisecond

const (
	// batchBytes is from which size on a batch is sent; a frame has room for one more record
	// of maxState.
	batchBytes = 1 << 20
	maxState   = takeover.MaxBody/2 - batchBytes
)

// A batch collects connections for a frame.
type batch struct {
	loop  *Loop
	send  Sender
	to    *Exported
	conns []*Conn
	loans []poller.Loan
	body  []byte
	n     int // connections in it
	most  int // connections of all batches
	files []int
	err   error

	// pending are the companions in the state that is being made, lent all that were lent.
	pending []companion
	lent    []poller.Loan

	// Used again for each connection.
	handler, conn, filter, carriedHandler, carried takeover.State
}

// lend sends those of conns that can move now, and lets the others continue.
func (b *batch) lend() {
	b.loans = b.loans[:0]
	for _, c := range b.conns {
		b.loans = append(b.loans, loanOf(c))
	}
	b.loop.poller.Lend(b.loans)
	for i, c := range b.conns {
		if b.err != nil || !b.add(c, &b.loans[i]) {
			c.restoreReading()
		}
	}
	b.flush()
	b.loop.poller.EndLend(b.loans)
	b.loop.poller.EndLend(b.lent)
	clear(b.conns)
	b.conns, b.lent = b.conns[:0], b.lent[:0]
}

// loanOf is what there is to be lent of c now.
func loanOf(c *Conn) poller.Loan {
	part := poller.SocketAndInput
	if c.loop.sent.number(c.key) != 0 {
		part = poller.InputOnly
	}
	return poller.Loan{Key: c.key, FD: int(c.fd), Part: part}
}

// add puts c in, if it can move.
func (b *batch) add(c *Conn, loan *poller.Loan) bool {
	if loan.File < 0 || len(b.to.conns) >= b.most {
		return false
	}
	s, ok := b.state(c, loan)
	companions := b.pending
	b.pending = nil
	var files []int
	if loan.Part == poller.SocketAndInput {
		files = append(files, loan.File)
	}
	for _, x := range companions {
		if x.loan.Part == poller.SocketAndInput {
			files = append(files, x.loan.File)
		}
	}
	if !ok || len(s) > maxState || len(files) > takeover.MaxFiles {
		return false
	}
	if len(b.files)+len(files) > takeover.MaxFiles {
		b.flush()
	}
	before := len(b.body)
	b.files = append(b.files, files...)
	b.body = takeover.AppendRecord(b.body, len(files), s)
	b.to.size += len(b.body) - before
	b.to.conns = append(b.to.conns, c)
	b.to.companions = append(b.to.companions, companions...)
	if b.n++; len(b.body) > batchBytes {
		b.flush()
	}
	return true
}

func (b *batch) flush() {
	if b.n > 0 && b.err == nil {
		var first int
		first, b.err = b.send(b.n, b.body, b.files)
		for i := range b.n {
			b.to.numbers = append(b.to.numbers, first+i)
		}
	}
	b.body, b.files, b.n = b.body[:0], b.files[:0], 0
}

// canMove reports whether c was accepted, is not ending, has not too much to send, and has a
// handler that can move.
func (c *Conn) canMove() bool {
	if _, stays := c.loop.stays[c.key]; stays || c.listener == noListener || !isMovable(c) {
		return false
	}
	_, ok := c.Handler().(Mover)
	return ok
}

// isMovable reports whether c is not ending and has not too much to send. One direction may have ended, if that is complete
// and the socket shows it: the other process finds the end of what c receives as this one did, and what follows from it.
func isMovable(c *Conn) bool {
	const no = flagClosed | flagClosing | flagGathered
	switch f := c.flags & (flagEOF | flagNotified | flagHalf | flagShut); {
	case c.flags&no != 0 || c.Unsent() > MaxMoving:
		return false
	case f == 0:
		return true
	case f == flagEOF|flagNotified, f == flagHalf|flagShut:
		return c.fd >= 0 && c.filtered() == nil
	}
	return false
}

func (c *Conn) restoreReading() {
	if c.flags&(flagClosed|flagNoRead|flagEOF) == 0 {
		c.loop.poller.SetReading(c.key, int(c.fd), true)
	}
}

// state returns what c, which is lent, is, until the next call.
func (b *batch) state(c *Conn, loan *poller.Loan) (takeover.State, bool) {
	handler, kind := c.Handler().(Mover).AppendState(c, b.handler[:0])
	if b.handler = handler; kind == 0 {
		return nil, false
	}
	s := c.appendOwn(b.conn[:0], handler, kind)
	defer func() { b.conn = s }()
	s = s.Uint(connListener, uint64(c.listener)+1).Uint(connLoop, uint64(c.loop.id)+1)
	s, ok := appendSocket(s, c, loan)
	return s, ok
}

// appendSocket appends the part of the state of c that depends on its socket, which is lent. ok is false if the filter
// cannot move.
func appendSocket(s takeover.State, c *Conn, loan *poller.Loan) (state takeover.State, ok bool) {
	s = s.Bytes(connIP, c.peerIP[:]).Uint(connPort, uint64(c.peerPort))
	s = s.MustUint(connSocket, uint64(c.loop.sent.number(c.key)))
	s = s.MustBytes(connRaw, loan.Input)
	sealed := loan.Unsent
	if q := c.out; q != nil && len(q.sealed) > 0 {
		sealed = slices.Concat(sealed, q.sealed)
	}
	s = s.MustBytes(connSealed, sealed)
	if f := c.filtered(); f != nil {
		m, ok := f.filter.(MovingFilter)
		if !ok {
			return s, false
		}
		b := c.loop.exporting
		if b.filter, ok = m.AppendState(b.filter[:0]); !ok {
			return s, false
		}
		s = s.MustBytes(connFilter, b.filter)
	}
	return s, true
}

// appendOwn appends the part of the state that does not depend on the socket; handler is that of
// the handler, of that kind.
func (c *Conn) appendOwn(s, handler takeover.State, kind uint8) takeover.State {
	s = s.MustUint(connKind, uint64(kind)).MustBytes(connHandler, handler).Uint(connAge, uint64(c.loop.now-c.accepted))
	if d := c.TimerRemaining(); d > 0 {
		s = s.Uint(connTimer, uint64(d))
	}
	if c.parked != nil {
		s = s.MustBytes(connInput, c.parked.b)
	}
	if q := c.out; q != nil {
		s = s.MustBytes(connOutput, q.waiting())
	}
	if c.flags&flagNoRead != 0 {
		s = s.Uint(connNoRead, 1)
	}
	return s
}

// waiting returns what waits, but for what is sealed.
func (q *outQueue) waiting() (b []byte) {
	for _, seg := range q.segs[q.head:] {
		b = append(b, seg...)
	}
	return b
}

// Wipe forgets the keys of all of them. Only Leave may follow. Loop only.
func (e *Exported) Wipe() {
	wipe := func(c *Conn) {
		if f := c.filtered(); f != nil {
			f.filter.(MovingFilter).Wipe()
		}
	}
	for _, c := range e.conns {
		wipe(c)
	}
	for _, x := range e.companions {
		wipe(x.conn)
	}
}

// Keep takes the connections whose numbers are in kept back: they continue here, and are not exported before the
// next pause. nil: all of them. Loop only.
func (e *Exported) Keep(kept map[int]bool) {
	left := e.conns[:0]
	for i, c := range e.conns {
		if kept != nil && !kept[e.numbers[i]] {
			left = append(left, c)
			continue
		}
		if c.restoreReading(); kept != nil {
			stay(c)
		}
	}
	clear(e.conns[len(left):])
	e.conns, e.numbers = left, nil
	e.keepCompanions()
}

// stay has c not be exported before the next pause.
func stay(c *Conn) {
	l := c.loop
	if l.stays == nil {
		l.stays = map[poller.Key]struct{}{}
	}
	l.stays[c.key] = struct{}{}
}

// Leave gives them up: the sockets are another process's, and stay open. Loop only.
func (e *Exported) Leave() {
	for _, c := range e.conns {
		c.leave()
	}
	e.conns, e.companions = nil, nil
}

func (c *Conn) leave() {
	if c.isClosed() {
		return
	}
	l := c.loop
	h, _ := c.Handler().(Mover)
	if f := c.filtered(); f != nil {
		c.handler = f.Handler
		f.filter.Release()
	}
	c.flags |= flagClosed
	l.timers.Stop(&c.timer)
	l.sent.remove(c.key)
	if c.fd >= 0 {
		l.poller.CloseShared(c.key, int(c.fd))
	}
	l.release(c)
	l.n.moved++
	c.parked = nil
	if c.out != nil {
		c.out.release()
	}
	if h != nil {
		l.guard(nil, func() { h.Moved(c) })
	}
}

// A Moving is a connection that arrives from another process, understood and not yet a
// loop's.
type Moving struct {
	// Kind and State are the handler's, see Mover.
	Kind  uint8
	State takeover.State
	// Filter is the filter's state; nil: there was none.
	Filter takeover.State
	// Loop is the number of the loop that it had.
	Loop int
	// Socket is the number by which SendSockets sent its socket, plus 1; 0: it comes with a descriptor.
	Socket int
	// Timer is how long it was until the handler's timer, in nanoseconds; 0: there was none.
	Timer int64
	// Quiet says that little is expected from the peer: what other connections receive and what all are sent goes first.
	// Import leaves it to what reads the handler's state.
	Quiet bool

	peer            netip.AddrPort
	age             int64
	listener        uint8
	noRead          bool
	input, raw      []byte
	sealed, waiting []byte
}

// longest bounds what a state says of times, in nanoseconds: about 36 years.
const longest = 1 << 60

var errNoKind = errors.New("a connection without a handler")

// Import reads the state of a connection.
func Import(s takeover.State) (*Moving, error) {
	m, err := importConn(s)
	if err == nil && m.Kind == 0 {
		err = fmt.Errorf("%w: %w", takeover.ErrState, errNoKind)
	}
	return m, err
}

func importConn(s takeover.State) (*Moving, error) {
	m := &Moving{listener: noListener}
	var ip [16]byte
	var port uint16
	err := s.Read(func(f takeover.Field) (bool, error) {
		switch f.Tag {
		case connKind:
			m.Kind = uint8(f.Uint)
		case connHandler:
			m.State = takeover.State(f.Bytes)
		case connIP:
			if copy(ip[:], f.Bytes) != len(ip) {
				return true, fmt.Errorf("an address of %d bytes", len(f.Bytes))
			}
		case connPort:
			port = uint16(f.Uint)
		case connAge:
			m.age = int64(min(f.Uint, longest))
		case connListener:
			m.listener = uint8(f.Uint - 1)
		case connLoop:
			m.Loop = int(min(f.Uint-1, 255))
		case connTimer:
			m.Timer = int64(min(f.Uint, longest))
		case connInput:
			m.input = f.Bytes
		case connRaw:
			m.raw = f.Bytes
		case connSealed:
			m.sealed = f.Bytes
		case connOutput:
			m.waiting = f.Bytes
		case connNoRead:
			m.noRead = f.Uint != 0
		case connFilter:
			m.Filter = takeover.State(f.Bytes)
		case connSocket:
			m.Socket = int(min(f.Uint, 1<<31))
		default:
			return false, nil
		}
		return true, nil
	})
	m.peer = netip.AddrPortFrom(netip.AddrFrom16(ip), port)
	return m, err
}

// Receive makes sockets that came from another process the loop's, for Arrive, and replaces each
// descriptor by what the socket is called. n of them, the first, were taken; err is why the
// others were not, which are closed. Loop only.
func (l *Loop) Receive(fds []int32) (n int, err error) {
	if l.ended {
		for _, fd := range fds {
			sys.Close(int(fd))
		}
		return 0, ErrStopped
	}
	l.table.conns, l.table.gens = slices.Grow(l.table.conns, len(fds)), slices.Grow(l.table.gens, len(fds))
	return l.poller.Adopt(fds)
}

// Arrive makes fd, which Receive returned, a connection as m says. handler makes its handler;
// filter is nil if there was none. After an error c is closed. What waited is sent, and what
// the handler had not consumed is shown to it. Loop only.
func (l *Loop) Arrive(fd int32, m *Moving, filter Filter, handler func(*Conn) (Handler, error)) error {
	c := &Conn{
		socket:   socket{loop: l, fd: fd, listener: m.listener, peerIP: m.peer.Addr().As16(), peerPort: m.peer.Port()},
		accepted: l.now - m.age,
	}
	c.timer.Owner = c
	l.shared.open.Add(1)
	c.key = l.table.add(c)
	if m.Quiet {
		l.poller.AddLater(c.key, int(fd))
	} else if err := l.poller.Add(c.key, int(fd)); err != nil {
		c.Close(err)
		return err
	}
	return l.settleIn(c, m, filter, handler)
}

// settleIn gives c, which has its place on the loop, what m says and a handler.
func (l *Loop) settleIn(c *Conn, m *Moving, filter Filter, handler func(*Conn) (Handler, error)) error {
	l.n.arrived++
	if m.restoreOutput(c); c.isClosed() {
		return ErrQueueFull
	}
	if filter != nil {
		c.handler = &filtered{filter: filter, Handler: (*parting)(nil)}
	}
	if len(m.input) > 0 {
		c.parked = &parkedInput{bytes.Clone(m.input)}
	}
	var h Handler
	err := errNoHandler
	l.guard(nil, func() { h, err = handler(c) })
	if err != nil {
		c.SetHandler(&parting{})
		c.Close(err)
		return err
	}
	if c.SetHandler(h); m.noRead {
		c.pause()
	}
	defer func(was bool) { l.arriving = was }(l.arriving)
	l.arriving = true
	if c.Redeliver(); len(m.raw) > 0 && !c.isClosed() {
		c.arrived(bytes.Clone(m.raw))
	}
	return nil
}

var errNoHandler = errors.New("the handler of an arriving connection panicked")

// restoreOutput queues what waited for the socket of c.
func (m *Moving) restoreOutput(c *Conn) {
	if len(m.sealed)+len(m.waiting) == 0 {
		return
	}
	c.out = c.loop.queues.get(c)
	c.out.sealed = append(c.out.sealed, m.sealed...)
	c.out.bytes = len(m.sealed)
	if len(m.waiting) > 0 {
		c.enqueueCopy(m.waiting)
	}
	if c.out != nil {
		c.out.markDirty()
	}
}
