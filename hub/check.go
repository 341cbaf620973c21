package hub

import "time"

// A Check proves a Position: it is made of the time at which the message at the
// offset was stored. After a log was truncated, restored from a backup or split, the
// messages at its offsets are others, which were stored at other times. Two
// messages stored at one offset within the same 34 seconds have equal checks with
// a probability of 1 in 866,702, messages of other times less than 26 days apart never.
//
// 0 means that there is none: of a position that a publisher was answered with,
// of one that an older version wrote, and of brokers whose logs cannot come back
// changed. Others are less than 62 to the power of 6.
type Check uint64

const (
	checkLen   = 6           // characters on the wire
	checkEnd   = 56800235584 // 62^checkLen
	checkUnit  = 35          // a window of time is 2^35 ns, 34.4 s
	checkSpan  = 1 << 16     // windows until their numbers begin again, 26 days
	checkMarks = checkEnd / checkSpan
)

// NewCheck returns the check of the message at offset, stored at the given time.
func NewCheck(offset uint64, stored time.Time) Check {
	ns := uint64(stored.UnixNano())
	x := (ns ^ offset*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9 // the finaliser of splitmix64
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return max(1, Check(ns>>checkUnit%checkSpan*checkMarks+x%checkMarks))
}

// Latest returns the end of the window of time in which the message of c was
// stored: of those that its number may mean, the last that begins before t.
func (c Check) Latest(t time.Time) time.Time {
	now := uint64(t.UnixNano()) >> checkUnit
	back := (now - uint64(c/checkMarks)) % checkSpan
	return time.Unix(0, int64((now-back+1)<<checkUnit))
}

const checkDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func (c Check) appendTo(dst []byte) []byte {
	var b [checkLen]byte
	for i := range b {
		b[checkLen-1-i] = checkDigits[c%62]
		c /= 62
	}
	return append(dst, b[:]...)
}

// parseCheck reads what appendTo wrote.
func parseCheck(s string) (c Check, ok bool) {
	if len(s) != checkLen {
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
