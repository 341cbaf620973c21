package hub

import (
	"sync/atomic"
	"time"
)

// A Format numbers one wire form of a message (SSE with the raw payload, a
// WebSocket text frame, ...). The hub knows formats only by number: the
// functions that write them are given in Config.Encoders.
type Format uint8

// MaxFormats bounds Config.Encoders: a message carries one slot per format.
const MaxFormats = 8

// A Message is one publication in its place in the namespace's log. It is
// immutable once published and shared by every subscriber, shard and ring.
type Message struct {
	// Channel is the full channel name, namespace included.
	Channel string
	// Key is the conflation key; empty means the message is never conflated.
	Key string
	// Data is the payload as the publisher gave it.
	Data []byte
	// Time is when the broker stored the message, in Unix milliseconds.
	Time int64
	// Epoch names the life of the log Offset belongs to; empty when the
	// namespace keeps no log.
	Epoch string
	// Offset is the message's place in the namespace's log, from 1; 0 means the
	// namespace keeps no log (durability none) and the message cannot be resumed from.
	Offset uint64
	// Prev is the offset of the channel's previous message. 0 means there is
	// none or it is not known; otherwise a receiver that has not seen Prev has
	// missed something.
	Prev uint64

	// Written once per format by whichever shard needs it first.
	encoded [MaxFormats]atomic.Pointer[[]byte]
}

// Position returns the message's place in its log.
func (m *Message) Position() Position { return Position{Epoch: m.Epoch, Offset: m.Offset} }

// At returns the time the message was stored.
func (m *Message) At() time.Time { return time.UnixMilli(m.Time) }

// An Encoder appends the wire form of m to dst and returns the extended slice.
// It must be pure: the result is shared by all subscribers of that format.
type Encoder func(dst []byte, m *Message) []byte

// encode returns m in format f, writing it on first use. Two shards may race to
// write it; both results are equal and one is kept.
func (m *Message) encode(f Format, enc Encoder) (b []byte, fresh bool) {
	if p := m.encoded[f].Load(); p != nil {
		return *p, false
	}
	b = enc(nil, m)
	if m.encoded[f].CompareAndSwap(nil, &b) {
		return b, true
	}
	return *m.encoded[f].Load(), false
}

// A Publication is what a publisher hands in: a message without its place.
type Publication struct {
	Channel string
	Key     string // conflation key, may be empty
	Data    []byte // kept, not copied: the caller must not change it afterwards
	// IdempotencyKey makes a retry harmless: within the namespace's window a
	// second publication with the same key stores nothing and is answered with
	// the first one's position. Empty means none.
	IdempotencyKey string
}
