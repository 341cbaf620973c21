package hub

import (
	"hash/crc32"
	"time"
)

// A Check proves a Position. After a log was truncated, restored from a backup or
// split, the messages at its offsets are others. There are three kinds:
//
// That of a message (NewCheck) is made of the time at which it was stored. Two messages
// stored at one offset within the same 34 seconds have equal checks with a probability
// of 1 in 866,702, messages of other times less than 26 days apart never. On the wire it
// has 6 characters.
//
// That of a publisher's answer (NewContentCheck) is made of what was published, and of
// about when, because the exact time is known to the log alone. Messages with other
// content are confused with each other with a probability of 1 in 3,466,811, those with the
// same content only if they were stored within 7 minutes. It has 7 characters.
//
// That of a client whose protocol has no room for one (NewBeforeCheck) is a bound on the
// time at which the message was stored. It is never on the wire.
//
// 0 means that there is none: of one that an older version wrote, and of brokers whose
// logs cannot come back changed.
type Check uint64

const (
	checkLen   = 6           // characters on the wire
	checkEnd   = 56800235584 // 62^checkLen
	checkUnit  = 35          // a window of time is 2^35 ns, 34.4 s
	checkSpan  = 1 << 16     // windows until their numbers start again, 26 days
	checkMarks = checkEnd / checkSpan

	contentUnit  = 37      // 2^37 ns, 137 s
	contentSpan  = 1 << 14 // 26 days
	contentMarks = checkEnd / contentSpan

	beforeBit Check = 1 << 63 // Unix milliseconds follow
)

// NewCheck returns the check of the message at offset, stored at the given time.
func NewCheck(offset uint64, stored time.Time) Check {
	ns := uint64(stored.UnixNano())
	return max(1, Check(ns>>checkUnit%checkSpan*checkMarks+mix(ns, offset)%checkMarks))
}

// mix is the finaliser of splitmix64.
func mix(x, offset uint64) uint64 {
	x = (x ^ offset*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// NewContentCheck returns the check for the publisher of a message that has key and data
// and was stored at offset, at about the given time: within two minutes.
func NewContentCheck(offset uint64, stored time.Time, key string, data []byte) Check {
	window := uint64(stored.UnixNano()) >> contentUnit % contentSpan
	return Check(checkEnd + window*contentMarks + contentMark(offset, key, data))
}

var contentTable = crc32.MakeTable(crc32.Castagnoli)

func contentMark(offset uint64, key string, data []byte) uint64 {
	sum := crc32.Update(0, contentTable, data)
	if key != "" {
		sum = crc32.Update(sum, contentTable, []byte(key))
	}
	return mix(uint64(sum)|uint64(len(data))<<32, offset) % contentMarks
}

// NewBeforeCheck returns a check of every message that was stored before t.
func NewBeforeCheck(t time.Time) Check { return beforeBit | Check(t.UnixMilli()) }

// Exact reports whether c is of the kind that messages have.
func (c Check) Exact() bool { return c != 0 && c < checkEnd }

func (c Check) onWire() bool { return c != 0 && c < beforeBit }

// Proves reports whether c, if it is not 0, is a check of the message with key and data
// that was stored at offset at the given time.
func (c Check) Proves(offset uint64, stored time.Time, key string, data []byte) bool {
	switch {
	case c >= beforeBit:
		return stored.UnixMilli() < int64(c&^beforeBit)
	case c < checkEnd:
		return c == NewCheck(offset, stored)
	}
	window := uint64(stored.UnixNano()) >> contentUnit
	about := (window - uint64(c-checkEnd)/contentMarks + 1) % contentSpan // 0, 1 or 2
	return about <= 2 && uint64(c-checkEnd)%contentMarks == contentMark(offset, key, data)
}

// Latest returns the end of the window of time in which the message of c was
// stored: of those that its number may mean, the last that starts before t.
func (c Check) Latest(t time.Time) time.Time {
	if c >= beforeBit {
		return time.UnixMilli(int64(c &^ beforeBit))
	}
	unit, span, number := checkUnit, uint64(checkSpan), uint64(c/checkMarks)
	if c >= checkEnd {
		unit, span, number = contentUnit, contentSpan, uint64(c-checkEnd)/contentMarks-1 // it may have been the one before
	}
	now := uint64(t.UnixNano()) >> unit
	back := (now - number) % span
	end := now - back + 1
	if c >= checkEnd {
		end += 2
	}
	return time.Unix(0, int64(end<<unit))
}

const checkDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func (c Check) appendTo(dst []byte) []byte {
	var b [checkLen + 1]byte
	for i := checkLen; i >= 0; i-- {
		b[i] = checkDigits[c%62]
		c /= 62
	}
	if b[0] == '0' {
		return append(dst, b[1:]...)
	}
	return append(dst, b[:]...)
}

// parseCheck reads what appendTo wrote.
func parseCheck(s string) (c Check, ok bool) {
	if n := len(s); n != checkLen && (n != checkLen+1 || s[0] != '1') {
		return 0, false
	}
	for i := range len(s) {
		switch b := s[i]; {
		case b >= '0' && b <= '9':
			c = c*62 + Check(b-'0')
		case b >= 'A' && b <= 'Z':
			c = c*62 + Check(b-'A'+10)
		case b >= 'a' && b <= 'z':
			c = c*62 + Check(b-'a'+36)
		default:
			return 0, false
		}
	}
	return c, c != 0
}
