package h3

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"

	"github.com/weir-gateway/weir/internal/front/h2"
)

// A request is read on a goroutine of its stream, which ends with the request: it takes the
// frames apart and shows the loop a piece at a time, the next one when that was taken.

// A request is what the first HEADERS frame of a stream says, in the form of HTTP/1.1.
type request struct {
	head    []byte
	length  int64 // of the body; -1: not said
	connect bool
	ends    bool // no body follows
	over    bool // it is not to be read on
	urgency uint8
}

var (
	readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 8<<10) }}
	heads   = sync.Pool{New: func() any { return &headSpace{} }}
)

// headSpace is what is needed while a head is read.
type headSpace struct {
	fields h2.RequestHead
	block  []byte
}

// A request that says nothing of a body is waited for the end of its stream, which comes
// with the head, mostly: endWait if its method has no use for a body, else bodyWait.
const (
	endWait  = 200 * time.Millisecond
	bodyWait = 20 * time.Millisecond
)

// read reads the request.
func (s *stream) read() {
	in := readers.Get().(*bufio.Reader)
	in.Reset(s.quic)
	s.over(s.readAll(frames{in}))
	in.Reset(nil)
	readers.Put(in)
}

func (s *stream) readAll(f frames) error {
	_ = s.quic.SetReadDeadline(time.Now().Add(s.conn.srv.cfg.HeadTimeout))
	r, err := s.readHead(f)
	if err != nil {
		return err
	}
	_ = s.quic.SetReadDeadline(time.Time{})
	if !s.show(func() { s.begin(r) }) || r.over {
		return nil
	}
	return s.readBody(f)
}

// readHead reads up to the end of the first HEADERS frame.
func (s *stream) readHead(f frames) (*request, error) {
	for {
		kind, length, err := f.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, &StreamError{Code: RequestIncomplete, why: "no head"}
		case err != nil:
			return nil, err
		case kind == frameHeaders:
			return s.parseHead(f, length)
		case kind == frameData || onlyControl(kind):
			return nil, &connError{FrameUnexpected, "a request does not start with HEADERS"}
		case !s.conn.tolerate(h2.FloodUnknown):
			return nil, errEnds
		}
		if err := f.skip(length); err != nil {
			return nil, err
		}
	}
}

// errEnds reports that the connection ends already.
var errEnds = errors.New("the connection ends")

func (s *stream) parseHead(f frames, length uint64) (*request, error) {
	lim := s.conn.srv.cfg.Head
	if length > 2*uint64(lim.MaxHead) {
		if !s.conn.tolerate(h2.FloodHeaders) {
			return nil, errEnds
		}
		return &request{head: h2.TooLargeHead(nil, lim), over: true}, nil
	}
	space := heads.Get().(*headSpace)
	defer heads.Put(space)
	q := &space.fields
	if err := s.fields(f, length, space); err != nil {
		return nil, err
	}
	switch {
	case q.Malformed() != "":
		return nil, &StreamError{Code: MessageError, why: q.Malformed()}
	case q.TooLarge() && !s.conn.tolerate(h2.FloodHeaders):
		return nil, errEnds
	}
	r := &request{length: q.Length(), connect: q.Connect(), over: q.TooLarge(), urgency: q.Urgency()}
	if !r.connect && !r.over && r.length <= 0 {
		r.ends = s.endsSoon(f, q.Bodiless())
	}
	var ok bool
	if r.head, ok = q.Append(nil, r.ends, lim); !ok {
		return nil, &StreamError{Code: MessageError, why: "a pseudo-field"}
	}
	return r, nil
}

// fields reads a field section.
func (s *stream) fields(f frames, length uint64, space *headSpace) (err error) {
	if space.block, err = f.payload(space.block, length); err != nil {
		return err
	}
	space.fields.Reset(s.conn.srv.cfg.Head)
	next := new(qpack.Decoder).Decode(space.block)
	for {
		field, err := next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &connError{DecompressionFailed, "a field section cannot be decoded"}
		}
		space.fields.Add(field.Name, field.Value)
	}
}

// endsSoon reports whether nothing follows, as far as that is known shortly.
func (s *stream) endsSoon(f frames, bodiless bool) bool {
	wait := bodyWait
	if bodiless {
		wait = endWait
	}
	_ = s.quic.SetReadDeadline(time.Now().Add(wait))
	_, err := f.in.Peek(1)
	return errors.Is(err, io.EOF)
}

// readBody reads what follows the head.
func (s *stream) readBody(f frames) error {
	for trailers := false; ; {
		kind, length, err := f.next()
		switch {
		case errors.Is(err, io.EOF):
			s.show(func() { s.ended(nil) })
			return nil
		case err != nil:
			return err
		case onlyControl(kind), trailers && kind <= frameHeaders:
			return &connError{FrameUnexpected, "a frame that does not belong there"}
		case kind == frameData:
			if length == 0 && !s.conn.tolerate(h2.FloodEmpty) {
				return errEnds
			}
			if err := s.readData(f, length); err != nil {
				return err
			}
		case kind == frameHeaders:
			if err := s.readTrailers(f, length); err != nil {
				return err
			}
			trailers = true
		case !s.conn.tolerate(h2.FloodUnknown):
			return errEnds
		default:
			if err := f.skip(length); err != nil {
				return err
			}
		}
	}
}

// readData shows the payload of a DATA frame as it comes.
func (s *stream) readData(f frames, length uint64) error {
	for length > 0 {
		if _, err := f.in.Peek(1); err != nil {
			return truncated(err)
		}
		b, _ := f.in.Peek(int(min(uint64(f.in.Buffered()), length))) // they are there
		if !s.show(func() { s.body(b) }) {
			return errEnds
		}
		length -= uint64(len(b))
		_, _ = f.in.Discard(len(b))
	}
	return nil
}

// readTrailers reads the fields behind a body.
func (s *stream) readTrailers(f frames, length uint64) error {
	if length > 2*uint64(s.conn.srv.cfg.Head.MaxHead) {
		return &StreamError{Code: ExcessiveLoad, why: "trailers are too large"}
	}
	space := heads.Get().(*headSpace)
	defer heads.Put(space)
	if err := s.fields(f, length, space); err != nil {
		return err
	}
	lines, ok := space.fields.Trailers()
	if !ok {
		return &StreamError{Code: MessageError, why: "trailers"}
	}
	s.show(func() { s.ended(lines) })
	return nil
}

// show has f run on the loop and waits until the handler has room for more. It returns
// false when no more is wanted.
func (s *stream) show(f func()) bool {
	if !s.conn.loop.Post(func() {
		defer s.shown()
		f()
	}) {
		return false
	}
	<-s.more // what was posted is run, and the stream's end says it, too
	return !s.readClosed.Load()
}

// over is the end of the goroutine.
func (s *stream) over(err error) {
	var own *StreamError
	var broken *connError
	if e, ok := errors.AsType[*quic.StreamError](err); ok && e.Remote {
		own = &StreamError{Code: Code(e.ErrorCode), Peer: true}
	}
	switch {
	case err == nil || errors.Is(err, errEnds) || s.readClosed.Load():
		return
	case own != nil:
	case errors.As(err, &broken):
		s.conn.fail(broken.code, broken.why)
		return
	case errors.As(err, &own):
	default: // the deadline of the head, or the end of the connection
		own = &StreamError{Code: RequestIncomplete, why: err.Error()}
	}
	s.conn.loop.Post(func() { s.failed(own) })
}
