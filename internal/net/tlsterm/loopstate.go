package tlsterm

import (
	"crypto/cipher"
	"encoding/binary"
)

// A loopState holds what the connections of one loop share. It belongs to that loop.
type loopState struct {
	scratch []byte // records put together from pieces
	nonce   [12]byte
	aad     [13]byte
	// read and write hold the ciphers that are ready for use.
	read, write warmth
}

// How many ciphers of each direction are kept ready per loop. A cipher takes
// 800 bytes, five times its key, and 0.4 µs to make: one that is in use should
// stay, one of a client that is silent should not. Reading is rarer.
const (
	warmReading = 1 << 10
	warmWriting = 1 << 13
	// Each new connection has agePerConn ciphers of each direction looked at, while
	// there are more than warmLeast: at worst they are made again for a thousandth of
	// what a handshake costs.
	agePerConn = 3
	warmLeast  = 64
)

// A warmth lists the halves of a loop that have their cipher made.
type warmth struct {
	halves []*half
	limit  int
	gone   int // of them, those whose connection is closed
	hand   int // where age continues
}

// admit lists h, whose cipher was just made.
func (w *warmth) admit(h *half) {
	if h.listed {
		return
	}
	if len(w.halves) >= w.limit {
		w.cool()
	}
	h.listed = true
	w.halves = append(w.halves, h)
}

// dismiss takes h's cipher. The list is cleaned when half of it is of no use.
func (w *warmth) dismiss(h *half) {
	h.aead = nil
	if !h.listed {
		return
	}
	if w.gone++; w.gone > len(w.halves)/2 {
		w.keep(func(h *half) bool { return h.aead != nil })
	}
}

// cool makes room: halves that were not used since the last time give their
// cipher back, and when all were used every second one does.
func (w *warmth) cool() {
	w.keep(func(h *half) bool {
		used := h.used
		h.used = false
		return used && h.aead != nil
	})
	if len(w.halves) >= w.limit {
		odd := false
		w.keep(func(*half) bool { odd = !odd; return odd })
	}
}

// age takes back the ciphers, of the next few, that were not used since the last time
// round.
func (w *warmth) age() {
	for range agePerConn {
		last := len(w.halves) - 1
		if last < warmLeast {
			return
		}
		if w.hand > last {
			w.hand = 0
		}
		h := w.halves[w.hand]
		if h.used && h.aead != nil {
			h.used = false
			w.hand++
			continue
		}
		h.aead, h.listed = nil, false
		w.halves[w.hand], w.halves[last] = w.halves[last], nil
		w.halves = w.halves[:last]
	}
}

func (w *warmth) keep(wanted func(*half) bool) {
	n := 0
	for _, h := range w.halves {
		if wanted(h) {
			w.halves[n] = h
			n++
		} else {
			h.aead, h.listed = nil, false
		}
	}
	clear(w.halves[n:])
	w.halves, w.gone = w.halves[:n], 0
}

func newLoopState() *loopState {
	return &loopState{read: warmth{limit: warmReading}, write: warmth{limit: warmWriting}}
}

// connected is called for each new connection.
func (l *loopState) connected() {
	l.read.age()
	l.write.age()
}

// cipher returns h's cipher, made anew when it was given back.
func (r *records) cipher(h *half, reading bool) cipher.AEAD {
	if h.aead == nil {
		h.aead = r.suite.aead(h)
		if reading {
			r.loopState.read.admit(h)
		} else {
			r.loopState.write.admit(h)
		}
	}
	h.used = true
	return h.aead
}

// nonceOf returns the nonce of h's next record: the sequence number over the IV
// (RFC 8446 §5.3). A TLS 1.2 nonce that travels is written over its tail.
func (l *loopState) nonceOf(h *half) []byte {
	l.nonce = h.iv
	seq := binary.BigEndian.Uint64(l.nonce[4:]) ^ h.seq
	binary.BigEndian.PutUint64(l.nonce[4:], seq)
	return l.nonce[:]
}

// additional returns what TLS 1.2 and TLCP authenticate besides the data (RFC 5246 §6.2.3.3).
func (l *loopState) additional(seq uint64, typ uint8, version uint16, n int) []byte {
	binary.BigEndian.PutUint64(l.aad[:], seq)
	l.aad[8] = typ
	binary.BigEndian.PutUint16(l.aad[9:], version)
	binary.BigEndian.PutUint16(l.aad[11:], uint16(n))
	return l.aad[:]
}
