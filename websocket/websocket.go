// Package websocket speaks RFC 6455 (WebSocket) and RFC 7692 without context
// takeover (permessage-deflate), as server and as client.
//
// It has two layers. Which one do I want?
//
// The codec is pure: [AppendFrame] and its kin append to the caller's slice,
// [Parser] turns bytes into whole messages, [CheckUpgrade] checks a handshake.
// It has no I/O, no clock and no goroutine, so an event loop, a load generator
// and a test can all drive it. A message that lies whole in the caller's buffer
// costs no copy and no allocation.
//
// [Conn] is the codec on any net.Conn, for programs that have a goroutine per
// connection: [Accept] (or [Handler]) takes one over from net/http, [Dial] opens
// one, [NewConn] wraps one whose handshake is done.
//
// What a peer may make this package do is bounded: a message has a limit that
// counts after inflation, a length is evaluated before a byte is stored for it, and
// memory grows with the bytes that came, never with the length that was claimed.
package websocket

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// Opcode reports what a frame carries (RFC 6455 §5.2). Other values are reserved
// and refused.
type Opcode byte

// The opcodes of RFC 6455 §11.8.
const (
	OpContinuation Opcode = 0x0
	OpText         Opcode = 0x1
	OpBinary       Opcode = 0x2
	OpClose        Opcode = 0x8
	OpPing         Opcode = 0x9
	OpPong         Opcode = 0xA
)

// String is the RFC's word for the opcode.
func (o Opcode) String() string {
	switch o {
	case OpContinuation:
		return "continuation"
	case OpText:
		return "text"
	case OpBinary:
		return "binary"
	case OpClose:
		return "close"
	case OpPing:
		return "ping"
	case OpPong:
		return "pong"
	}
	return fmt.Sprintf("reserved(%d)", byte(o))
}

// control reports whether o is a control opcode, reserved ones included.
func (o Opcode) control() bool { return o&0x8 != 0 }

// Close codes (RFC 6455 §7.4.1 and the IANA registry).
const (
	CloseNormal        uint16 = 1000
	CloseGoingAway     uint16 = 1001
	CloseProtocolError uint16 = 1002
	CloseUnsupported   uint16 = 1003
	CloseNoStatus      uint16 = 1005 // never sent: a close frame without a code
	CloseAbnormal      uint16 = 1006 // never sent: the connection ended without a close frame
	CloseInvalidData   uint16 = 1007
	ClosePolicy        uint16 = 1008
	CloseTooBig        uint16 = 1009
	CloseInternal      uint16 = 1011
	CloseRestart       uint16 = 1012
	CloseTryLater      uint16 = 1013
	CloseBadGateway    uint16 = 1014
)

// ValidCloseCode reports whether code may appear in a close frame: 1000-1003 and
// 1007-1014 have a meaning there, 3000-3999 are registered by libraries and
// 4000-4999 are for private use. All others are reserved or only for use inside
// a program (RFC 6455 §7.4).
func ValidCloseCode(code uint16) bool {
	switch {
	case code >= 1000 && code <= 1003, code >= 1007 && code <= 1014:
		return true
	}
	return code >= 3000 && code <= 4999
}

// Event is one thing a peer said. Payload is valid until the next call on the
// Parser it came from (or the next Read on the Conn); anyone who keeps it, copies it.
type Event struct {
	// Op is OpText or OpBinary with a whole message in Payload, or OpPing, OpPong
	// or OpClose. Fragments never show: OpContinuation does not occur.
	Op Opcode

	// Payload of a close is the reason, without the code.
	Payload []byte

	// Code is set for OpClose only: what the peer sent, or CloseNoStatus if its
	// frame was empty. AppendClose(dst, ev.Code, "") is the right answer to both.
	Code uint16
}

// DefaultMaxMessage is the limit of a message where Limits names none.
const DefaultMaxMessage = 64 << 10

// Limits bounds what a peer may send. One value may serve any number of parsers;
// it must not change while they use it.
type Limits struct {
	// MaxMessage is the most bytes of one message, all fragments together and
	// after inflation. A frame that would pass it is refused when its header is
	// read, an inflating message at the byte that passes it. 0 means
	// DefaultMaxMessage.
	MaxMessage int
}

// maxMessage is the limit in force; l may be nil.
func (l *Limits) maxMessage() int {
	if l == nil || l.MaxMessage <= 0 {
		return DefaultMaxMessage
	}
	return min(l.MaxMessage, math.MaxInt/2) // room to add to it
}

// ProtocolError is why a peer must be left. Code and Reason are what to send in
// the close frame; then the connection is closed. Values are shared: read only.
type ProtocolError struct {
	Code   uint16
	Reason string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("websocket: %s (close code %d)", e.Reason, e.Code)
}

// CloseError is what Conn.Read returns when the peer closed: its code and reason.
// An empty close frame has code CloseNoStatus.
type CloseError struct {
	Code   uint16
	Reason string
}

func (e *CloseError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("websocket: closed by peer with code %d", e.Code)
	}
	return fmt.Sprintf("websocket: closed by peer with code %d: %s", e.Code, e.Reason)
}

// ErrClosed is returned by the methods of a Conn that was closed on this side,
// and by writes after a close frame went out.
var ErrClosed = errors.New("websocket: connection closed")

// utf8Prefix reports how many bytes of b are complete runes, and whether the rest
// (at most three bytes) can still become one. ok is false at the first byte that
// no continuation can fix, so bad text is refused when that byte arrives and not
// when the message ends (RFC 6455 §8.1).
func utf8Prefix(b []byte) (n int, ok bool) {
	n = len(b)
	for back := 1; back <= min(3, len(b)); back++ {
		if tail := b[len(b)-back:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) { // what nothing can complete is full
				n -= back
			}
			break
		}
	}
	return n, utf8.Valid(b[:n])
}
