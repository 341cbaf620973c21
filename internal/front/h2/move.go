package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// Moving to another process: a connection moves between two frames, with its header table,
// its windows and all of its streams. One stream that cannot move keeps the connection.

// The fields of a connection's state. Their meaning does not change; see takeover.State.
const (
	moveFlags       = iota + 1 // bits of connMarks
	moveTable                  // a header block that fills the client's header table
	moveWindow                 // this and the next: two's complement, 32 bits
	moveTheirWindow            // of new streams
	moveMaxFrame
	moveAllowance
	moveCredit
	moveOwed
	moveLast
	moveStopped // numbers of closed streams, 4 bytes each
	moveEnded   // the same
	moveBudget  // what is left of each flood, 2 bytes each
	moveStream  // repeated, in the order of their numbers: a stream's state
)

// The fields of a stream's state.
const (
	streamNumber = iota + 1
	streamConn   // eventloop's state
	streamMarks  // bits of streamMarked
	streamSends  // this and the next three: two's complement, 32 bits
	streamCredit
	streamUnread
	streamOwed
	streamLeft    // of a body
	streamUrgency // plus 1
	streamHeld    // what came of a body while the handler takes none: a heldState
)

// The fields of a heldState.
const (
	heldBytes = iota + 1
	heldEnds  // 1: the request is complete
	heldTrailer
)

// connMarked and streamMarked are the flags that move, bit by bit in the order of this list:
// append only.
var (
	connMarked   = [...]connFlags{gotSettings, leaving, left, movesNoTable, idle}
	streamMarked = [...]streamFlags{theirEnd, headSent, measured, chunked, tunnel, wide}
)

func marks[F connFlags | streamFlags](flags F, marked []F) (bits uint64) {
	for i, f := range marked {
		if flags&f != 0 {
			bits |= 1 << i
		}
	}
	return bits
}

func unmarked[F connFlags | streamFlags](bits uint64, marked []F) (flags F) {
	for i, f := range marked {
		if bits&(1<<i) != 0 {
			flags |= f
		}
	}
	return flags
}

var _ eventloop.Mover = (*conn)(nil)

// AppendState implements eventloop.Mover.
func (h *conn) AppendState(_ *eventloop.Conn, dst takeover.State) (takeover.State, uint8) {
	if !h.canMove() {
		return dst, 0
	}
	flags := h.flags
	if h.noTable {
		flags |= movesNoTable
	}
	l := h.loopState
	l.moving = h.blocks.appendTable(l.moving[:0])
	s := dst.MustUint(moveFlags, marks(flags, connMarked[:])).MustBytes(moveTable, l.moving)
	s = s.MustUint(moveWindow, bits(h.window)).MustUint(moveTheirWindow, bits(h.theirWindow)).MustUint(moveMaxFrame, bits(h.maxFrame))
	s = s.Uint(moveAllowance, bits(h.allowance)).MustUint(moveCredit, bits(h.credit)).MustUint(moveOwed, bits(h.owed)).MustUint(moveLast, uint64(h.last))
	s = s.MustBytes(moveStopped, appendNumbers(nil, h.closed.stopped)).Bytes(moveEnded, appendNumbers(nil, h.closed.ended))
	if h.budget != nil {
		var b []byte
		for _, left := range h.budget.left {
			b = binary.BigEndian.AppendUint16(b, left)
		}
		s = s.Bytes(moveBudget, b)
	}
	for _, x := range h.streams {
		var ok bool
		if l.moving, ok = x.appendState(l.moving[:0]); !ok {
			return dst, 0
		}
		s = s.MustBytes(moveStream, l.moving)
	}
	return s, takeover.KindHTTP2
}

// canMove reports whether h is between two frames, and no more than may move waits on it.
func (h *conn) canMove() bool {
	if h.flags&(failed|gotSettings) != gotSettings || int(h.preface) < len(Preface) {
		return false
	}
	if h.blocks.stream != 0 || h.data != (data{}) || len(h.linger)+len(h.settle)+len(h.out) > 0 {
		return false
	}
	unsent := h.sock.Unsent()
	for _, s := range h.streams {
		unsent += s.Unsent()
		if held := s.buffered(); held != nil {
			unsent += len(held.b)
		}
	}
	return unsent <= eventloop.MaxMoving
}

func (s *stream) appendState(b takeover.State) (takeover.State, bool) {
	l := s.conn.loopState
	if s.flags&(headSent|ourEnd|wasReset) != headSent || s.settles || s.gone || l.answers.Keeps(s) {
		return b, false
	}
	c, ok := s.State()
	if !ok {
		return b, false
	}
	b = b.MustUint(streamNumber, uint64(s.id)).MustBytes(streamConn, c).MustUint(streamMarks, marks(s.flags, streamMarked[:]))
	b = b.MustUint(streamSends, bits(s.window)).MustUint(streamCredit, bits(s.credit)).MustUint(streamUnread, bits(s.unread)).MustUint(streamOwed, bits(s.owed))
	if held := s.buffered(); held != nil {
		b = b.MustBytes(streamHeld, held.state())
	}
	return b.MustUint(streamLeft, uint64(s.left)).Uint(streamUrgency, uint64(s.urgency)+1), true
}

func (h *bufferedBody) state() takeover.State {
	s := takeover.State{}.MustBytes(heldBytes, h.b).MustBytes(heldTrailer, h.trailer)
	if h.ends {
		s = s.MustUint(heldEnds, 1)
	}
	return s
}

// readHeld reads what state has written. Of a body there is a window at most.
func readHeld(s takeover.State) (*bufferedBody, error) {
	h := &bufferedBody{}
	if err := s.Into([]any{heldBytes: &h.b, heldEnds: &h.ends, heldTrailer: &h.trailer}); err != nil {
		return nil, err
	}
	if len(h.b) == 0 || len(h.b) > wideWindow {
		return nil, fmt.Errorf("%w: %d bytes of a body", takeover.ErrState, len(h.b))
	}
	h.b, h.trailer = bytes.Clone(h.b), bytes.Clone(h.trailer)
	return h, nil
}

// bits are those of a number that may be negative.
func bits(v int32) uint64 { return uint64(uint32(v)) }

func appendNumbers(b []byte, list []uint32) []byte {
	for _, n := range list {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// Moved implements eventloop.Mover.
func (h *conn) Moved(*eventloop.Conn) {
	h.loopState.counters.open.Add(-1)
	h.loopState.counters.openStreams.Add(-int64(len(h.streams)))
	for _, s := range h.streams {
		s.gone = true
		s.Leave()
		delete(h.loopState.held, s)
	}
	h.flags |= failed
	h.streams, h.blocked, h.blocks = nil, nil, blockReader{}
}

// An Arriving is a connection that comes from another process, read and not yet open.
type Arriving struct {
	conn    *conn // without a loop
	streams []arrivingStream
}

type arrivingStream struct {
	stream *stream
	conn   *eventloop.Moving
	held   *bufferedBody // nil: none
	open   Open
}

// Quiet reports whether little is expected from the client: it has streams, all of which are quiet.
func (a *Arriving) Quiet() bool {
	for _, x := range a.streams {
		if !x.conn.Quiet {
			return false
		}
	}
	return len(a.streams) > 0
}

// Open makes the handler of a connection that arrives, on its loop.
type Open func(*eventloop.Conn) (eventloop.Handler, error)

// ReadState reads the state of a connection. read reads that of each stream. Any goroutine.
func (s *Server) ReadState(state takeover.State, read func(*eventloop.Moving) (Open, error)) (*Arriving, error) {
	h := &conn{preface: uint8(len(Preface))}
	a := &Arriving{conn: h}
	numbers := [...]*int32{moveWindow: &h.window, moveTheirWindow: &h.theirWindow, moveMaxFrame: &h.maxFrame, moveAllowance: &h.allowance, moveCredit: &h.credit, moveOwed: &h.owed}
	err := state.Read(func(f takeover.Field) (_ bool, err error) {
		if f.Tag < len(numbers) && numbers[f.Tag] != nil {
			*numbers[f.Tag] = int32(uint32(f.Uint))
			return true, nil
		}
		switch f.Tag {
		case moveFlags:
			h.flags = unmarked(f.Uint, connMarked[:])
			h.noTable = h.flags&movesNoTable != 0
			h.flags &^= movesNoTable
		case moveTable:
			err = h.blocks.fillTable(s.cfg.Head.MaxHead, f.Bytes)
		case moveLast:
			h.last = uint32(f.Uint)
		case moveStopped:
			h.closed.stopped, err = numbersOf(f.Bytes, stoppedMost)
		case moveEnded:
			h.closed.ended, err = numbersOf(f.Bytes, endedMost)
		case moveBudget:
			h.budget = budgetOf(f.Bytes)
		case moveStream:
			err = a.readStream(takeover.State(f.Bytes), read)
		default:
			return false, nil
		}
		return true, err
	})
	if err == nil && (h.maxFrame < maxFrameSize || h.maxFrame > ourMaxFrame || h.window < 0 || h.theirWindow < 0 || h.flags&gotSettings == 0) {
		err = fmt.Errorf("%w: an HTTP/2 connection with frames of %d bytes, windows of %d and %d", takeover.ErrState, h.maxFrame, h.window, h.theirWindow)
	}
	return a, err
}

func numbersOf(b []byte, most int) (list []uint32, err error) {
	if len(b)%4 != 0 || len(b)/4 > most {
		return nil, fmt.Errorf("%d bytes of stream numbers", len(b))
	}
	for ; len(b) > 0; b = b[4:] {
		list = append(list, binary.BigEndian.Uint32(b))
	}
	return list, nil
}

// budgetOf returns a budget of what is left. A kind that the other version does not have is
// full.
func budgetOf(b []byte) *budget {
	g := &budget{}
	for i := range g.left {
		g.left[i] = budgetMost
		if len(b) >= 2 {
			g.left[i] = min(binary.BigEndian.Uint16(b), budgetMost)
			b = b[2:]
		}
	}
	return g
}

func (a *Arriving) readStream(state takeover.State, read func(*eventloop.Moving) (Open, error)) error {
	a.streams = append(a.streams, arrivingStream{stream: &stream{}})
	x := &a.streams[len(a.streams)-1]
	s := x.stream
	numbers := [...]*int32{streamSends: &s.window, streamCredit: &s.credit, streamUnread: &s.unread, streamOwed: &s.owed}
	s.urgency = usualUrgency
	err := state.Read(func(f takeover.Field) (_ bool, err error) {
		if f.Tag < len(numbers) && numbers[f.Tag] != nil {
			*numbers[f.Tag] = int32(uint32(f.Uint))
			return true, nil
		}
		switch f.Tag {
		case streamNumber:
			s.id = uint32(f.Uint)
		case streamConn:
			x.conn, err = eventloop.Import(takeover.State(f.Bytes))
		case streamMarks:
			s.flags = unmarked(f.Uint, streamMarked[:])
		case streamLeft:
			s.left = int64(f.Uint)
		case streamUrgency:
			s.urgency = uint8(min(f.Uint-1, 7))
		case streamHeld:
			x.held, err = readHeld(takeover.State(f.Bytes))
		default:
			return false, nil
		}
		return true, err
	})
	switch {
	case err != nil:
		return err
	case x.conn == nil, s.id%2 == 0, len(a.streams) > 1 && a.streams[len(a.streams)-2].stream.id >= s.id:
		return errors.New("a stream without a connection or out of order")
	}
	x.open, err = read(x.conn)
	return err
}

// Arrive makes c the connection that a describes. timer is how long it was until c's timer, in
// nanoseconds; 0: it was not set. A stream that cannot be opened is reset. Loop only.
func (s *Server) Arrive(c *eventloop.Conn, a *Arriving, timer int64) (eventloop.Handler, error) {
	l := s.loopStates[c.Loop().ID()]
	h := a.conn
	h.loopState, h.sock, h.pool = l, c, &l.buffers
	if h.budget != nil {
		h.budget.at = c.Loop().Now()
	}
	l.counters.conns.Add(1)
	l.counters.open.Add(1)
	c.SetHandler(h)
	if timer > 0 {
		c.SetTimer(timer)
	}
	for i, x := range a.streams {
		if c.Closing() {
			break
		}
		x.stream.conn = h
		h.streams = append(h.streams, x.stream)
		if x.held != nil { // until the handler reads on
			l.held[x.stream] = x.held
		}
		l.counters.openStreams.Add(1)
		if err := eventloop.ArriveCarried(&x.stream.Carried, c, x.stream, x.conn, i == 0, x.open); err != nil {
			s.log.Warn("a stream of the old process is closed", "conn", c.ID(), "stream", x.stream.id, "err", err)
		}
	}
	if l.drains {
		h.leave(endDrain)
	}
	return h, nil
}
