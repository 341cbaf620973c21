package udp

import (
	"encoding/binary"
	"errors"
	"strconv"
)

// Sizes of MoldUDP64 (Nasdaq, version 1.00) and of a quote, in bytes. All integers are
// big-endian.
const (
	headBytes    = 20 // session 10, sequence number of the first message 8, messages 2
	sessionBytes = 10
	quoteBytes   = 18 // type 1, time 8, symbol 8, levels 1
	levelBytes   = 24 // bid price 8, bid size 4, ask price 8, ask size 4
)

// MaxLevels bounds the price levels of a quote.
const MaxLevels = 10

// endOfSession is the number of messages in the last packets of a session.
const endOfSession = 0xffff

// A Packet is the head of one datagram.
type Packet struct {
	Session  [sessionBytes]byte
	Sequence uint64 // of the first message; of a heartbeat, of the next one
	Count    int    // 0 is a heartbeat
	End      bool   // no more messages will follow in the session
}

var (
	errShort  = errors.New("the packet ends within its head or a message")
	errLevels = errors.New("a quote has no levels, too many, or another length than they need")
	errSymbol = errors.New("a symbol has characters that are not printable ASCII")
)

// ParsePacket reads the head of b and returns the messages behind it.
func ParsePacket(b []byte) (p Packet, messages []byte, err error) {
	if len(b) < headBytes {
		return p, nil, errShort
	}
	copy(p.Session[:], b)
	p.Sequence = binary.BigEndian.Uint64(b[sessionBytes:])
	if p.Count = int(binary.BigEndian.Uint16(b[sessionBytes+8:])); p.Count == endOfSession {
		p.Count, p.End = 0, true
	}
	return p, b[headBytes:], nil
}

// NextMessage returns the first message of b and what follows it.
func NextMessage(b []byte) (message, rest []byte, err error) {
	if len(b) < 2 {
		return nil, nil, errShort
	}
	n := int(binary.BigEndian.Uint16(b))
	if len(b) < 2+n {
		return nil, nil, errShort
	}
	return b[2 : 2+n], b[2+n:], nil
}

// A Level is one price level on both sides.
type Level struct {
	Bid, Ask         uint64 // prices, in units of 10 to the power of -decimals
	BidSize, AskSize uint32 // 0 means that the side has no such level
}

// A Quote is the state of the best levels of a symbol's order book.
type Quote struct {
	Symbol [8]byte // padded with spaces
	Time   uint64  // nanoseconds since 1970
	Count  int     // levels
	Levels [MaxLevels]Level
}

// quoteType is the type of a quote's message.
const quoteType = 'Q'

// ParseQuote reads a message into q. Messages of other types are not quotes: it returns false
// for those.
func ParseQuote(message []byte, q *Quote) (bool, error) {
	if len(message) == 0 || message[0] != quoteType {
		return false, nil
	}
	if len(message) < quoteBytes {
		return false, errShort
	}
	n := int(message[17])
	if n < 1 || n > MaxLevels || len(message) != quoteBytes+n*levelBytes {
		return false, errLevels
	}
	q.Time = binary.BigEndian.Uint64(message[1:])
	copy(q.Symbol[:], message[9:17])
	for _, c := range q.Symbol {
		if c < ' ' || c > '~' {
			return false, errSymbol
		}
	}
	q.Count = n
	for i := range n {
		b := message[quoteBytes+i*levelBytes:][:levelBytes]
		q.Levels[i] = Level{
			Bid: binary.BigEndian.Uint64(b), BidSize: binary.BigEndian.Uint32(b[8:]),
			Ask: binary.BigEndian.Uint64(b[12:]), AskSize: binary.BigEndian.Uint32(b[20:]),
		}
	}
	return true, nil
}

// symbol returns the text of a padded name.
func symbol(b []byte) string {
	n := len(b)
	for n > 0 && (b[n-1] == ' ' || b[n-1] == 0) {
		n--
	}
	return string(b[:n])
}

// appendJSON appends q as subscribers receive it: prices are numbers, best levels first.
func appendJSON(dst []byte, q *Quote, sequence uint64, decimals int) []byte {
	dst = append(dst, `{"symbol":`...)
	dst = strconv.AppendQuoteToASCII(dst, symbol(q.Symbol[:]))
	dst = append(dst, `,"seq":`...)
	dst = strconv.AppendUint(dst, sequence, 10)
	dst = append(dst, `,"time":`...)
	dst = strconv.AppendUint(dst, q.Time, 10)
	side := func(name string, level func(l *Level) (uint64, uint32)) {
		dst = append(dst, `,"`...)
		dst = append(dst, name...)
		dst = append(dst, `":[`...)
		first := true
		for i := range q.Count {
			price, size := level(&q.Levels[i])
			if size == 0 {
				continue
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(dst, '[')
			dst = appendPrice(dst, price, decimals)
			dst = append(dst, ',')
			dst = strconv.AppendUint(dst, uint64(size), 10)
			dst = append(dst, ']')
		}
		dst = append(dst, ']')
	}
	side("bids", func(l *Level) (uint64, uint32) { return l.Bid, l.BidSize })
	side("asks", func(l *Level) (uint64, uint32) { return l.Ask, l.AskSize })
	return append(dst, '}')
}

// appendPrice appends price, which counts units of 10 to the power of -decimals, without
// zeros at the end of the fraction.
func appendPrice(dst []byte, price uint64, decimals int) []byte {
	unit := uint64(1)
	for range decimals {
		unit *= 10
	}
	dst = strconv.AppendUint(dst, price/unit, 10)
	rest := price % unit
	if rest == 0 {
		return dst
	}
	dst = append(dst, '.')
	for unit /= 10; rest > 0; unit /= 10 {
		dst = append(dst, byte('0'+rest/unit))
		rest %= unit
	}
	return dst
}
