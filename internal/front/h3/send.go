package h3

import (
	"errors"
	"sync"
	"time"
	"unsafe"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// outflow is what a stream's answer waits in. quic-go takes what fits the client's window at
// once, however much that is, so only aheadMost is given to it that way; beyond that a
// goroutine writes, which returns as the network takes it.
type outflow struct {
	mu      sync.Mutex
	pending []byte // for the goroutine
	ahead   int    // given to quic-go since it was last known to have sent all
	running bool   // the goroutine
	wanted  bool   // the loop waits for room
	ends    bool   // the stream ends behind pending
	broken  bool   // nothing can be sent any more
}

const (
	aheadMost   = 16 << 10
	pendingMost = 64 << 10
	writeMost   = 16 << 10 // in one call, for which there is WriteStall
)

// room returns how much may be written now. 0: Writable follows.
func (s *stream) room() int {
	o := &s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	n := pendingMost - len(o.pending)
	if n <= 0 {
		o.wanted = true
		return 0
	}
	return n
}

// write sends b, of which there is room for about as much.
func (s *stream) write(b []byte) {
	o := &s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken {
		return
	}
	if !o.running {
		if o.ahead+len(b) <= aheadMost {
			err := s.quic.TryWriteAll(b)
			if err == nil {
				o.ahead += len(b)
				return
			}
			if !errors.Is(err, quic.ErrWouldBlock) {
				o.broken = true // the reading goroutine, or the connection, says why
				return
			}
		}
		o.running = true
		s.conn.srv.connections.Go(s.flush)
	}
	o.pending = append(o.pending, b...)
}

// flush is the writing goroutine.
func (s *stream) flush() {
	o := &s.out
	for {
		o.mu.Lock()
		b, wanted := o.pending, o.wanted
		o.pending, o.wanted = nil, false
		if len(b) == 0 {
			o.running, o.ahead = false, 0
			ends := o.ends
			o.mu.Unlock()
			if ends {
				_ = s.quic.Close()
			}
			s.writable(wanted)
			return
		}
		o.mu.Unlock()
		s.writable(wanted)
		for len(b) > 0 {
			n := min(len(b), writeMost)
			_ = s.quic.SetWriteDeadline(time.Now().Add(s.conn.srv.cfg.WriteStall))
			if _, err := s.quic.Write(b[:n]); err != nil {
				s.unsent(err)
				return
			}
			b = b[n:]
		}
	}
}

func (s *stream) writable(wanted bool) {
	if wanted {
		s.conn.loop.Post(func() {
			if s.flags&streamEnd == 0 {
				s.Writable()
			}
		})
	}
}

// unsent ends a stream whose client does not take it.
func (s *stream) unsent(err error) {
	o := &s.out
	o.mu.Lock()
	o.pending, o.broken, o.running = nil, true, false
	o.mu.Unlock()
	late, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	if ok && late.Timeout() && s.conn.quic.Context().Err() == nil {
		s.conn.srv.counters.stall.Add(1)
		err = eventloop.ErrStalled
	}
	if e, ok := errors.AsType[*quic.StreamError](err); ok && e.Remote {
		err = &StreamError{Code: Code(e.ErrorCode), Peer: true}
	}
	s.quic.CancelWrite(quic.StreamErrorCode(RequestCancelled))
	s.conn.loop.Post(func() { s.Conn.Close(err) })
}

// Send implements eventloop.Carrier: the head of the answer is translated, what follows is
// its body.
func (s *stream) Send(b []byte) (taken int) {
	if s.flags&ourEnd != 0 {
		return len(b) // it will not be sent
	}
	for s.flags&headSent == 0 && len(b) > 0 {
		n := s.sendHead(b)
		taken += n
		b = b[n:]
		if s.flags&ourEnd != 0 {
			return taken + len(b)
		}
	}
	for len(b) > 0 {
		n := min(len(b), s.room())
		if n == 0 {
			return taken
		}
		l := s.conn.loopState
		l.chunk = append(appendFrame(l.chunk[:0], frameData, uint64(n)), b[:n]...)
		s.write(l.chunk)
		taken += n
		b = b[n:]
	}
	return taken
}

// sendEnd ends the stream, by trailers if there are any.
func (s *stream) sendEnd() {
	s.flags |= ourEnd
	if l := s.conn.loopState; l.answers.HasTrailer(s) {
		l.block.Reset()
		l.answers.Trailer(s, l.encode)
		s.write(l.headersFrame())
	}
	o := &s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running {
		o.ends = true
		return
	}
	_ = s.quic.Close()
}

// reset reports that the answer will not be complete.
func (s *stream) reset(code Code) {
	s.flags |= ourEnd
	o := &s.out
	o.mu.Lock()
	o.pending, o.broken = nil, true
	o.mu.Unlock()
	s.quic.CancelWrite(quic.StreamErrorCode(code))
}

// sendHead sends the head that b starts with, or keeps it until it is complete. It returns
// how much of b that used.
func (s *stream) sendHead(b []byte) int {
	l := s.conn.loopState
	res, used, err := l.answers.Head(s, b)
	if res == nil && err == nil {
		return used
	}
	status := 0
	if err == nil {
		status, err = l.answers.Status(res, s.flags&tunnel != 0)
	}
	if err != nil {
		s.conn.srv.log.Error("invalid head of an answer", "conn", s.ID(), "err", err)
		s.reset(InternalError)
		return used
	}
	if status >= 200 {
		s.flags |= headSent
		s.conn.answered()
	}
	l.block.Reset()
	l.answers.Fields(status, res, l.encode)
	s.write(l.headersFrame())
	return used
}

// headersFrame is a HEADERS frame of what was written to the encoder.
func (l *loopState) headersFrame() []byte {
	_ = l.encoder.Close() // the next field starts a section
	l.chunk = append(appendFrame(l.chunk[:0], frameHeaders, uint64(l.block.Len())), l.block.Bytes()...)
	return l.chunk
}

// encode encodes a field. The encoder has no table, so it keeps neither of the strings.
func (l *loopState) encode(name string, value []byte) {
	_ = l.encoder.WriteField(qpack.HeaderField{Name: name, Value: unsafe.String(unsafe.SliceData(value), len(value))}) // a buffer takes all
}
