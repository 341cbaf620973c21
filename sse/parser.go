package sse

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// DefaultMaxEvent bounds an event if nothing else is said: a payload of 1 MiB
// and what an envelope adds to it fit with room.
const DefaultMaxEvent = 2 << 20

// ErrTooLarge is returned for a line or an event beyond Parser.MaxEvent. The
// stream cannot be read further.
var ErrTooLarge = errors.New("event is too large")

// keepBuffer is the largest buffer a parser keeps for the next event.
const keepBuffer = 64 << 10

// A Parser reads a stream from the pieces it arrives in; how the bytes are cut
// into pieces never changes what comes out. The zero Parser is ready for the
// start of a stream. It keeps a copy only of what is unfinished at the end of a
// piece, so a parser between two events holds little.
//
// A parser belongs to one goroutine. An event that the stream leaves unfinished
// is discarded with the parser, as the standard wants it.
type Parser struct {
	// MaxEvent bounds a line and the data of one event, in bytes; 0 means
	// DefaultMaxEvent.
	MaxEvent int
	// Comment, if not nil, is called with the text of each comment: what follows
	// the colon, less one leading space. The bytes are valid until it returns.
	Comment func(text []byte)

	// Unfinished line, copied.
	line []byte
	// The block read so far. data is either a piece of the caller's bytes, while
	// they are valid and one line is all there is, or own.
	data    []byte
	own     []byte
	typ     []byte
	newID   []byte
	retry   int
	hasData bool
	hasID   bool
	hasRtr  bool

	lastID   []byte
	retryNow int
	seenRtr  bool
	started  bool // past the first line, where alone a BOM may stand
	skipLF   bool // the last byte was CR: LF now belongs to it
	failed   error
}

// Reset makes p ready for a new stream that continues from lastID. Settings and
// buffers are kept.
func (p *Parser) Reset(lastID string) {
	*p = Parser{
		MaxEvent: p.MaxEvent, Comment: p.Comment,
		line: p.line[:0], own: p.own[:0], typ: p.typ[:0], newID: p.newID[:0],
		lastID: append(p.lastID[:0], lastID...),
	}
}

// LastEventID returns the last event id of the stream: what a client sends as
// Last-Event-ID to continue. Blocks without data move it too; an unfinished
// block does not. The bytes are valid until the next call.
func (p *Parser) LastEventID() []byte { return p.lastID }

// Retry returns the reconnection time in milliseconds and whether the stream has
// set one. A retry line counts at once, before its block is complete.
func (p *Parser) Retry() (ms int, ok bool) { return p.retryNow, p.seenRtr }

// Feed reads b, the next piece of the stream, and calls yield for each block
// that it completes. The event's bytes are valid until yield returns.
func (p *Parser) Feed(b []byte, yield func(Event)) error {
	for {
		ev, rest, ok, err := p.Next(b)
		if !ok {
			return err
		}
		yield(ev)
		b = rest
	}
}

// Next reads b up to the end of the first block that it completes and returns
// the block and the rest of b. Without a block (ok is false) all of b has been
// read and the caller brings more. Blocks without data, id and retry are skipped.
//
// The event's bytes are valid until the next call and as long as b is unchanged.
func (p *Parser) Next(b []byte) (ev Event, rest []byte, ok bool, err error) {
	if p.failed != nil {
		return Event{}, nil, false, p.failed
	}
	for len(b) > 0 {
		if p.skipLF {
			p.skipLF = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		i := indexEOL(b)
		if i < 0 {
			break
		}
		line := b[:i]
		p.skipLF = b[i] == '\r'
		b = b[i+1:]
		ev, ok, err := p.endLine(line)
		if err != nil {
			return Event{}, nil, false, p.fail(err)
		}
		if ok {
			return ev, b, true, nil
		}
	}
	p.detach()
	p.line = append(p.line, b...)
	if len(p.line) > p.max() {
		return Event{}, nil, false, p.fail(fmt.Errorf("%w: a line of more than %d bytes", ErrTooLarge, p.max()))
	}
	return Event{}, nil, false, nil
}

// endLine takes a line whose end has been found, without what is in p.line.
func (p *Parser) endLine(line []byte) (Event, bool, error) {
	parked := len(p.line) > 0
	if parked {
		p.line = append(p.line, line...)
		line = p.line
	}
	if len(line) > p.max() {
		return Event{}, false, fmt.Errorf("%w: a line of more than %d bytes", ErrTooLarge, p.max())
	}
	if !p.started {
		p.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		p.line = p.line[:0]
		ev, ok := p.endBlock()
		return ev, ok, nil
	}
	err := p.field(line)
	if parked {
		// A data line read from the parking place must leave it with it.
		p.detach()
		p.line = trim(p.line)
	}
	return Event{}, false, err
}

// field processes one line (WHATWG HTML §9.2.6).
func (p *Parser) field(line []byte) error {
	name, value, colon := bytes.Cut(line, []byte{':'})
	if colon && len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "":
		if p.Comment != nil {
			p.Comment(value)
		}
	case "data":
		return p.addData(value)
	case "event":
		p.typ = append(p.typ[:0], value...)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			p.newID, p.hasID = append(p.newID[:0], value...), true
		}
	case "retry":
		if ms, ok := parseRetry(value); ok {
			p.retry, p.hasRtr = ms, true
			p.retryNow, p.seenRtr = ms, true
		}
	}
	return nil
}

func (p *Parser) addData(value []byte) error {
	if !p.hasData {
		p.data, p.hasData = value, true
		return nil
	}
	if len(p.data)+1+len(value) > p.max() {
		return fmt.Errorf("%w: more than %d bytes of data", ErrTooLarge, p.max())
	}
	p.detach()
	p.own = append(append(p.own, '\n'), value...)
	p.data = p.own
	return nil
}

// detach copies data out of bytes that the caller is about to reuse.
func (p *Parser) detach() {
	if !p.hasData || len(p.own) > 0 {
		return
	}
	p.own = append(p.own, p.data...)
	p.data = p.own
}

// endBlock dispatches the block, if it says anything, and starts a new one.
func (p *Parser) endBlock() (Event, bool) {
	if p.hasID {
		p.lastID, p.newID = p.newID, p.lastID
	}
	ev := Event{
		ID: p.lastID, HasID: p.hasID, Type: p.typ,
		Data: p.data, HasData: p.hasData,
		Retry: p.retry, HasRetry: p.hasRtr,
	}
	ok := p.hasData || p.hasID || p.hasRtr
	p.own, p.typ = trim(p.own), p.typ[:0]
	p.data, p.retry = nil, 0
	p.hasData, p.hasID, p.hasRtr = false, false, false
	return ev, ok
}

func (p *Parser) fail(err error) error {
	p.failed = err
	p.line, p.own, p.data = nil, nil, nil
	return err
}

func (p *Parser) max() int {
	if p.MaxEvent > 0 {
		return p.MaxEvent
	}
	return DefaultMaxEvent
}

// trim empties b and lets go of it if it has grown beyond what is worth keeping.
// Bytes handed out from it stay valid: only the next append writes over them.
func trim(b []byte) []byte {
	if cap(b) > keepBuffer {
		return nil
	}
	return b[:0]
}

// parseRetry reads ASCII digits. No digits are no number; too many saturate.
func parseRetry(b []byte) (int, bool) {
	if len(b) == 0 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		if d := int(c - '0'); n > (math.MaxInt-d)/10 {
			n = math.MaxInt
		} else {
			n = n*10 + d
		}
	}
	return n, true
}
