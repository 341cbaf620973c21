package websocket

import (
	"encoding/binary"
	"unicode/utf8"
)

// Parser turns the bytes of one connection into events. The zero value is the
// server side (it expects masked frames), without compression, with the default
// limits. It is small: what a partial message needs is taken from a pool while it
// is partial and goes back with the call after its event.
//
// A Parser belongs to one goroutine at a time.
type Parser struct {
	// Fixed at Init.
	limits *Limits // nil means the defaults

	// The frame and the message under way.
	asm   *assembly // nil unless something is partial or held
	left  uint64    // payload bytes of this frame still to come
	key   [4]byte   // turned to fit the next byte
	op    Opcode    // of this frame
	msg   Opcode    // of this message; 0 between messages
	state state

	// The error that ended it, returned again by each later call.
	err *ProtocolError
}

type state uint16

const (
	// Fixed at Init.
	clientSide state = 1 << iota
	deflateOn

	inFrame        // the header was read, the payload is not complete
	final          // this frame ends its message
	compressed     // this message is compressed
	gathering      // this message does not lie in the caller's buffer alone
	pendingMessage // the caller has a message that lies in asm
	pendingControl // the caller has a control payload that lies in asm
	peerClosed     // a close frame came: nothing after it counts
)

// ParserOptions is what the handshake settled. The zero value is a server without
// compression.
type ParserOptions struct {
	// Client marks the client side: frames must come unmasked. False means server.
	Client bool

	// Deflate allows compressed messages. Set it only where permessage-deflate was
	// negotiated without context takeover of the peer.
	Deflate bool

	// Limits may be shared; nil means the defaults.
	Limits *Limits
}

// Init makes p ready for a new connection, whatever it did before.
func (p *Parser) Init(o ParserOptions) {
	p.Reset()
	*p = Parser{limits: o.Limits}
	if o.Client {
		p.state |= clientSide
	}
	if o.Deflate {
		p.state |= deflateOn
	}
}

// Reset returns what p holds and makes it ready for a new connection with the
// same options. Call it when a connection ends in the middle of a message.
func (p *Parser) Reset() {
	if p.asm != nil {
		p.asm.release()
	}
	*p = Parser{limits: p.limits, state: p.state & (clientSide | deflateOn)}
}

// Idle reports whether p is between two messages and holds nothing: another
// Parser with the same options could continue in its place.
func (p *Parser) Idle() bool {
	return p.asm == nil && p.msg == 0 && p.state&(inFrame|peerClosed) == 0 && p.err == nil
}

// Next consumes n bytes of b, unmasking them in place, up to and with the next
// event. If ok, ev is that event; call again with b[n:]. If not ok and err is nil,
// more bytes are needed: the caller keeps b[n:] (a part of a frame header, at most
// 13 bytes) and calls again with more appended. err is a *ProtocolError; it is
// final.
//
// Calling Next until it is not ok also returns every buffer a past event lay in.
// After a close event all further bytes are swallowed (RFC 6455 §5.5.1).
func (p *Parser) Next(b []byte) (ev Event, n int, ok bool, err error) {
	if p.state&(pendingMessage|pendingControl) != 0 {
		p.letGo()
	}
	for p.err == nil {
		if p.state&peerClosed != 0 {
			return Event{}, len(b), false, nil
		}
		if p.state&inFrame == 0 {
			h := p.header(b[n:])
			if h == 0 {
				if p.err != nil {
					break
				}
				return Event{}, n, false, nil
			}
			n += h
		}
		chunk := b[n:]
		if uint64(len(chunk)) > p.left {
			chunk = chunk[:p.left]
		}
		n += len(chunk)
		p.left -= uint64(len(chunk))
		if p.state&clientSide == 0 {
			p.key = Mask(chunk, p.key)
		}
		if ev, ok = p.payload(chunk[:len(chunk):len(chunk)]); ok {
			return ev, n, true, nil
		}
		if p.left > 0 && p.err == nil {
			return Event{}, n, false, nil
		}
	}
	return Event{}, n, false, p.err
}

// header reads a frame header and returns its length, or 0 when it is refused or
// not complete. Each byte is evaluated as soon as it is there.
func (p *Parser) header(b []byte) int {
	if len(b) == 0 || !p.firstByte(b[0]) || len(b) < 2 {
		return 0
	}
	masked := b[1]&0x80 != 0
	if masked == (p.state&clientSide != 0) {
		if masked {
			return p.fail(errMasked)
		}
		return p.fail(errUnmasked)
	}
	h, n := 2, uint64(b[1]&0x7F)
	op := Opcode(b[0] & 0x0F)
	if op.control() && n > maxControl {
		return p.fail(errLongControl)
	}
	switch n {
	case 126:
		if len(b) < 4 {
			return 0
		}
		h, n = 4, uint64(binary.BigEndian.Uint16(b[2:]))
		if n < 126 {
			return p.fail(errLength)
		}
	case 127:
		if len(b) < 10 {
			return 0
		}
		h, n = 10, binary.BigEndian.Uint64(b[2:])
		if n <= 0xFFFF || n>>63 != 0 {
			return p.fail(errLength)
		}
	}
	if !op.control() && !p.fits(n, b[0]&0x40 != 0) {
		return p.fail(errTooBig)
	}
	if masked {
		if len(b) < h+4 {
			return 0
		}
		p.key = [4]byte(b[h:])
		h += 4
	}
	p.begin(b[0], n)
	return h
}

// firstByte checks FIN, RSV and opcode against the message under way.
func (p *Parser) firstByte(b byte) bool {
	op := Opcode(b & 0x0F)
	fin, rsv1 := b&0x80 != 0, b&0x40 != 0
	switch {
	case b&0x30 != 0, rsv1 && p.state&deflateOn == 0:
		p.fail(errReservedBits)
	case op > OpPong, op > OpBinary && op < OpClose:
		p.fail(errReservedOpcode)
	case rsv1 && (op.control() || op == OpContinuation):
		p.fail(errReservedBits)
	case op.control() && !fin:
		p.fail(errFragmentedControl)
	case op == OpContinuation && p.msg == 0:
		p.fail(errNoMessage)
	case (op == OpText || op == OpBinary) && p.msg != 0:
		p.fail(errInMessage)
	default:
		return true
	}
	return false
}

// fits reports whether a data frame of n bytes stays within the limit. first reports
// whether it opens a compressed message.
func (p *Parser) fits(n uint64, first bool) bool {
	have := 0
	if p.asm != nil {
		have = len(p.asm.buf)
	}
	most := p.limits.maxMessage()
	if first || p.state&compressed != 0 && p.msg != 0 {
		most = compressedMost(most)
	}
	return n <= uint64(most-have)
}

// begin enters a frame whose header was accepted.
func (p *Parser) begin(b0 byte, n uint64) {
	p.op, p.left = Opcode(b0&0x0F), n
	p.state |= inFrame
	if p.op.control() {
		return
	}
	p.state &^= final
	if b0&0x80 != 0 {
		p.state |= final
	}
	if p.op != OpContinuation {
		p.msg = p.op
		p.state &^= compressed | gathering
		if b0&0x40 != 0 {
			p.state |= compressed
		}
	}
}

// payload takes the next unmasked bytes of the frame; it may return the event they
// complete. The slice points into the caller's buffer.
func (p *Parser) payload(chunk []byte) (Event, bool) {
	if len(chunk) == 0 && p.left > 0 {
		return Event{}, false
	}
	if p.left == 0 {
		p.state &^= inFrame
	}
	if p.op.control() {
		return p.control(chunk)
	}
	if p.state&final != 0 && p.left == 0 && p.state&(gathering|compressed) == 0 {
		op := p.msg
		if op == OpText && !utf8.Valid(chunk) {
			p.fail(errUTF8)
			return Event{}, false
		}
		p.msg = 0
		return Event{Op: op, Payload: chunk}, true
	}
	if !p.gather(chunk) || p.left > 0 || p.state&final == 0 {
		return Event{}, false
	}
	return p.message()
}

// gather keeps a part of a message.
func (p *Parser) gather(chunk []byte) bool {
	p.state |= gathering
	if len(chunk) == 0 {
		return true
	}
	if p.asm == nil {
		p.asm = assemblies.Get().(*assembly)
	}
	a, most := p.asm, p.limits.maxMessage()
	if p.state&compressed != 0 {
		most = compressedMost(most) + len(deflateTail)
	}
	a.buf = append(grow(a.buf, len(chunk), most), chunk...)
	if p.msg == OpText && p.state&compressed == 0 {
		n, ok := utf8Prefix(a.buf[a.checked:])
		if !ok {
			p.fail(errUTF8)
			return false
		}
		a.checked += n
	}
	return true
}

// message hands out the gathered message.
func (p *Parser) message() (Event, bool) {
	op, a := p.msg, p.asm
	p.msg = 0
	if a == nil { // nothing but empty fragments
		return Event{Op: op}, true
	}
	if p.state&compressed != 0 {
		out, err := inflate(&a.buf, p.limits.maxMessage())
		putBuf(a.buf)
		a.buf = out
		if err == nil && op == OpText && !utf8.Valid(out) {
			err = errUTF8
		}
		if err != nil {
			p.fail(err)
			return Event{}, false
		}
	} else if op == OpText && a.checked != len(a.buf) {
		p.fail(errUTF8)
		return Event{}, false
	}
	p.state |= pendingMessage
	return Event{Op: op, Payload: a.buf[:len(a.buf):len(a.buf)]}, true
}

// control hands out a control frame, which lies in chunk or was gathered apart
// from the message it interrupts.
func (p *Parser) control(chunk []byte) (Event, bool) {
	if p.left > 0 || p.asm != nil && p.asm.ncontrol > 0 {
		if p.asm == nil {
			p.asm = assemblies.Get().(*assembly)
		}
		a := p.asm
		a.ncontrol += copy(a.control[a.ncontrol:], chunk)
		if p.left > 0 {
			return Event{}, false
		}
		p.state |= pendingControl
		chunk = a.control[:a.ncontrol:a.ncontrol]
	}
	if p.op != OpClose {
		return Event{Op: p.op, Payload: chunk}, true
	}
	return p.close(chunk)
}

// close checks the payload of a close frame (RFC 6455 §5.5.1).
func (p *Parser) close(chunk []byte) (Event, bool) {
	if p.asm != nil {
		p.state |= pendingControl // the message it cuts off goes with the next call
	}
	if len(chunk) == 0 {
		p.state |= peerClosed
		return Event{Op: OpClose, Code: CloseNoStatus}, true
	}
	if len(chunk) == 1 {
		p.fail(errCloseLength)
		return Event{}, false
	}
	code := binary.BigEndian.Uint16(chunk)
	switch {
	case !ValidCloseCode(code):
		p.fail(errCloseCode)
	case !utf8.Valid(chunk[2:]):
		p.fail(errCloseReason)
	default:
		p.state |= peerClosed
		return Event{Op: OpClose, Code: code, Payload: chunk[2:]}, true
	}
	return Event{}, false
}

// letGo ends the life of the last event's payload.
func (p *Parser) letGo() {
	a := p.asm
	a.ncontrol = 0
	if p.state&pendingMessage != 0 || p.state&peerClosed != 0 || len(a.buf) == 0 {
		// A message that is handed out, or cut off by a close, is over; one that has
		// only empty fragments so far needs nothing kept.
		a.release()
		p.asm = nil
	}
	p.state &^= pendingMessage | pendingControl
}

// disown leaves the last event's payload to anyone who has it, for good.
func (p *Parser) disown() {
	if p.state&pendingMessage != 0 {
		p.asm = nil
	}
	p.state &^= pendingMessage
}

// fail ends the connection's input. It returns 0, the header that was not read.
func (p *Parser) fail(err *ProtocolError) int {
	p.err = err
	if p.asm != nil {
		p.asm.release()
		p.asm = nil
	}
	p.state &^= pendingMessage | pendingControl
	return 0
}

// What a peer can do wrong, with the section it breaks.
var (
	errReservedBits      = &ProtocolError{CloseProtocolError, "reserved bits set"}                    // §5.2
	errReservedOpcode    = &ProtocolError{CloseProtocolError, "reserved opcode"}                      // §5.2
	errFragmentedControl = &ProtocolError{CloseProtocolError, "fragmented control frame"}             // §5.5
	errLongControl       = &ProtocolError{CloseProtocolError, "control frame longer than 125 bytes"}  // §5.5
	errNoMessage         = &ProtocolError{CloseProtocolError, "continuation without a message"}       // §5.4
	errInMessage         = &ProtocolError{CloseProtocolError, "new message inside a fragmented one"}  // §5.4
	errMasked            = &ProtocolError{CloseProtocolError, "masked frame from a server"}           // §5.1
	errUnmasked          = &ProtocolError{CloseProtocolError, "unmasked frame from a client"}         // §5.1
	errLength            = &ProtocolError{CloseProtocolError, "frame length not in its minimal form"} // §5.2
	errCloseLength       = &ProtocolError{CloseProtocolError, "close frame with half a code"}         // §5.5.1
	errCloseCode         = &ProtocolError{CloseProtocolError, "close code not allowed in a frame"}    // §7.4
	errCloseReason       = &ProtocolError{CloseInvalidData, "close reason is not UTF-8"}              // §5.5.1
	errUTF8              = &ProtocolError{CloseInvalidData, "text is not UTF-8"}                      // §8.1
	errDeflate           = &ProtocolError{CloseInvalidData, "compressed data is corrupt"}             // RFC 7692 §7.2.2
	errTooBig            = &ProtocolError{CloseTooBig, "message too big"}                             // §7.4.1
)
