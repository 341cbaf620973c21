package loadgen

import "bytes"

// A stamp is what a message carries about itself: fixed-width text that needs no
// quoting in JSON, a form or an event stream, found by its first four bytes.
//
//	wl1:RRRRRRRR.PPPPCCCCCCSSSSSSSSSSTTTTTTTTTTTTTTTTLLLLLLLL-
//
// run, publisher, channel, sequence of the publisher on the channel, intended time
// (nanoseconds since 1970) and how much later it was really sent (microseconds),
// all in lower-case hexadecimal.
type stamp struct {
	run       uint32
	publisher uint32 // 16 bits
	channel   uint32 // 24 bits
	seq       uint64 // 40 bits
	intended  int64
	late      uint32 // saturates
}

const (
	stampMagic = "wl1:"
	stampLen   = len(stampMagic) + 8 + 1 + 4 + 6 + 10 + 16 + 8 + 1
	// minPayload is the least size of a payload: a stamp and some room.
	minPayload = 64
)

var magicBytes = []byte(stampMagic) // never changed

func putHex(b []byte, v uint64) {
	const digits = "0123456789abcdef"
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = digits[v&15]
		v >>= 4
	}
}

// put writes s at the beginning of b, which has room.
func (s *stamp) put(b []byte) {
	copy(b, stampMagic)
	putHex(b[4:12], uint64(s.run))
	b[12] = '.'
	putHex(b[13:17], uint64(s.publisher))
	putHex(b[17:23], uint64(s.channel))
	putHex(b[23:33], s.seq)
	putHex(b[33:49], uint64(s.intended))
	putHex(b[49:57], uint64(s.late))
	b[57] = '-'
}

// hexValue is the value of a lower-case hexadecimal digit, above 15 if it is none.
var hexValue = func() (t [256]uint8) { // never changed
	for i := range t {
		t[i] = 0xff
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = uint8(i)
	}
	return t
}()

func getHex(b []byte) (v uint64, ok bool) {
	var bad uint8
	for _, c := range b {
		d := hexValue[c]
		bad |= d
		v = v<<4 | uint64(d&15)
	}
	return v, bad < 16
}

// nextStamp finds the first stamp in b and returns what follows it. What only
// looks like one is passed over.
func nextStamp(b []byte) (s stamp, rest []byte, ok bool) {
	for {
		i := bytes.Index(b, magicBytes)
		if i < 0 || len(b)-i < stampLen {
			return stamp{}, nil, false
		}
		b = b[i:]
		if s, ok = parseStamp(b); ok {
			return s, b[stampLen:], true
		}
		b = b[len(stampMagic):]
	}
}

func parseStamp(b []byte) (stamp, bool) {
	if b[12] != '.' || b[57] != '-' {
		return stamp{}, false
	}
	run, ok1 := getHex(b[4:12])
	pub, ok2 := getHex(b[13:17])
	ch, ok3 := getHex(b[17:23])
	seq, ok4 := getHex(b[23:33])
	at, ok5 := getHex(b[33:49])
	late, ok6 := getHex(b[49:57])
	return stamp{
		run: uint32(run), publisher: uint32(pub), channel: uint32(ch), seq: seq, intended: int64(at), late: uint32(late),
	}, ok1 && ok2 && ok3 && ok4 && ok5 && ok6
}

// newPayload is a payload of n bytes with room for the stamp at its beginning.
func newPayload(n int) []byte {
	const filler = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, n)
	for i := range b {
		b[i] = filler[i%len(filler)]
	}
	return b
}
