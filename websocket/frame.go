package websocket

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// MaxHeader is the longest frame header: two bytes, eight of length, four of key.
const MaxHeader = 14

// maxControl is the longest payload of a control frame (RFC 6455 §5.5).
const maxControl = 125

// AppendFrame appends a whole unfragmented server frame: FIN, not masked. The
// result may be shared by any number of connections.
func AppendFrame(dst []byte, op Opcode, payload []byte) []byte {
	dst = AppendHeader(dst, true, false, op, len(payload))
	return append(dst, payload...)
}

// AppendHeader appends the header of a server frame whose payload is n bytes and
// follows as it is. rsv1 marks the first frame of a compressed message
// (RFC 7692 §6) and may only be set where that was negotiated.
func AppendHeader(dst []byte, fin, rsv1 bool, op Opcode, n int) []byte {
	return appendHeader(dst, fin, rsv1, op, n, 0)
}

// AppendMaskedHeader appends the header of a client frame. The caller masks the
// n bytes that follow with the same key (see Mask).
func AppendMaskedHeader(dst []byte, fin, rsv1 bool, op Opcode, n int, key [4]byte) []byte {
	dst = appendHeader(dst, fin, rsv1, op, n, 0x80)
	return append(dst, key[:]...)
}

// AppendMaskedFrame appends a whole unfragmented client frame. key must be fresh
// and not to be guessed for each frame (RFC 6455 §10.3). payload is not changed.
func AppendMaskedFrame(dst []byte, op Opcode, payload []byte, key [4]byte) []byte {
	dst = AppendMaskedHeader(dst, true, false, op, len(payload), key)
	start := len(dst)
	dst = append(dst, payload...)
	Mask(dst[start:], key)
	return dst
}

func appendHeader(dst []byte, fin, rsv1 bool, op Opcode, n int, mask byte) []byte {
	b0 := byte(op)
	if fin {
		b0 |= 0x80
	}
	if rsv1 {
		b0 |= 0x40
	}
	switch {
	case n <= 125:
		return append(dst, b0, mask|byte(n))
	case n <= 0xFFFF:
		return append(dst, b0, mask|126, byte(n>>8), byte(n))
	}
	dst = append(dst, b0, mask|127)
	return binary.BigEndian.AppendUint64(dst, uint64(n))
}

// AppendClose appends a whole server close frame. The reason is cut to 123 bytes
// on a rune border. Codes that must not be sent (0, CloseNoStatus, CloseAbnormal
// and 1015) give an empty frame, which is also the answer to an empty one.
func AppendClose(dst []byte, code uint16, reason string) []byte {
	n := closeLen(code, &reason)
	dst = AppendHeader(dst, true, false, OpClose, n)
	return appendCloseBody(dst, code, reason, n)
}

// AppendMaskedClose is AppendClose for the client side.
func AppendMaskedClose(dst []byte, code uint16, reason string, key [4]byte) []byte {
	n := closeLen(code, &reason)
	dst = AppendMaskedHeader(dst, true, false, OpClose, n, key)
	start := len(dst)
	dst = appendCloseBody(dst, code, reason, n)
	Mask(dst[start:], key)
	return dst
}

// closeLen is the length of the close payload; it cuts the reason to what fits.
func closeLen(code uint16, reason *string) int {
	switch code {
	case 0, CloseNoStatus, CloseAbnormal, 1015:
		return 0
	}
	if r := *reason; len(r) > maxControl-2 {
		cut := maxControl - 2
		for cut > maxControl-2-utf8.UTFMax && !utf8.RuneStart(r[cut]) {
			cut--
		}
		*reason = r[:cut]
	}
	return 2 + len(*reason)
}

func appendCloseBody(dst []byte, code uint16, reason string, n int) []byte {
	if n == 0 {
		return dst
	}
	dst = append(dst, byte(code>>8), byte(code))
	return append(dst, reason...)
}

// Mask XORs b with the key, in place; doing it twice undoes it (RFC 6455 §5.3).
// It returns the key turned so that it fits the byte after b, for a payload that
// comes in parts.
func Mask(b []byte, key [4]byte) [4]byte {
	k32 := binary.LittleEndian.Uint32(key[:])
	turned := bits.RotateLeft32(k32, -8*(len(b)&3))
	k := uint64(k32)<<32 | uint64(k32)
	le := binary.LittleEndian
	for len(b) >= 64 {
		w := b[:64:64]
		le.PutUint64(w[0:], le.Uint64(w[0:])^k)
		le.PutUint64(w[8:], le.Uint64(w[8:])^k)
		le.PutUint64(w[16:], le.Uint64(w[16:])^k)
		le.PutUint64(w[24:], le.Uint64(w[24:])^k)
		le.PutUint64(w[32:], le.Uint64(w[32:])^k)
		le.PutUint64(w[40:], le.Uint64(w[40:])^k)
		le.PutUint64(w[48:], le.Uint64(w[48:])^k)
		le.PutUint64(w[56:], le.Uint64(w[56:])^k)
		b = b[64:]
	}
	for len(b) >= 8 {
		le.PutUint64(b, le.Uint64(b)^k)
		b = b[8:]
	}
	if len(b) >= 4 {
		le.PutUint32(b, le.Uint32(b)^k32)
		b = b[4:]
	}
	for i := range b {
		b[i] ^= key[i&3]
	}
	var out [4]byte
	le.PutUint32(out[:], turned)
	return out
}
