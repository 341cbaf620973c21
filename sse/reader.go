package sse

import "io"

// readSize is how much a Reader reads from its source at once.
const readSize = 16 << 10

// A Reader reads the events of one stream from an io.Reader. It belongs to one
// goroutine.
type Reader struct {
	// Parser holds the settings and the state of the stream: set its limits
	// before the first Next, ask it for LastEventID at any time between two.
	Parser Parser

	src  io.Reader
	buf  []byte
	rest []byte // of buf: read from src and not yet parsed
	err  error  // of src, given out once rest is parsed
}

// NewReader returns a Reader over src. It reads ahead; nothing else should read
// from src afterwards.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next returns the next block of the stream, whether it carries data or only an
// id or a retry (see [Event.HasData]). Its bytes are valid until the next call.
//
// At the end of the stream it returns io.EOF; an unfinished block is discarded.
func (r *Reader) Next() (Event, error) {
	for {
		ev, rest, ok, err := r.Parser.Next(r.rest)
		r.rest = rest
		switch {
		case err != nil:
			return Event{}, err
		case ok:
			return ev, nil
		case r.err != nil:
			return Event{}, r.err
		}
		if r.buf == nil {
			r.buf = make([]byte, readSize)
		}
		n, err := r.src.Read(r.buf)
		r.rest, r.err = r.buf[:n], err
	}
}
