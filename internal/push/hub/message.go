package hub

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Format numbers one wire form of a message (SSE with the raw payload, a
// WebSocket text frame, ...). The hub knows formats only by number: the
// functions that write them are given in Config.Encoders.
type Format uint8

// MaxFormats bounds Config.Encoders. A message pays for those that were needed.
const MaxFormats = 64

// A Message is one publication in its place in the namespace's log. It is
// immutable once published and shared by every subscriber, shard and ring.
type Message struct {
	// Channel is the full channel name, namespace included.
	Channel string
	// Key is the conflation key; empty means the message is never conflated.
	Key string
	// Data is the payload as the publisher gave it.
	Data []byte
	// Attributes are what else the publisher said; nil for most messages.
	Attributes *Attributes
	// Time is when the broker stored the message, in Unix milliseconds.
	Time int64
	// Epoch names the life of the log Offset belongs to; empty when the
	// namespace keeps no log.
	Epoch string
	// Offset is the message's place in the namespace's log, from 1; 0 means the
	// namespace keeps no log (durability none) and the message cannot be resumed from.
	Offset uint64
	// Prev is the offset of the channel's previous message in the same epoch. 0 means
	// there is none or it is not known; otherwise a receiver that has not seen Prev
	// has missed something, and the hub sends its subscribers a gap.
	Prev uint64
	// Missing means that this is not a message: the broker could not deliver what
	// Channel, which may be a Whole, has up to Offset. Only a Broker sets it.
	Missing bool
	// Damaged, with Missing, means that messages which Channel had up to Offset cannot be read
	// any more, and that replays of this broker may have passed them: subscribers get a
	// gap, and so do those that resume from a position which they may have come to so.
	Damaged bool
	// Check proves the message's position; see Check.
	Check Check

	// Written once per format by whichever shard needs it first, kept while the
	// message is in a ring and the hub's budget allows.
	// Most messages of channels that live on one shard never have any.
	forms   forms
	mu      sync.Mutex
	kept    int32 // bytes of them in the hub's budget
	pending int16 // deliveries by shards that are yet to come
	rings   int16 // that hold it: its channel's, and the one of the whole namespace
	// to is where deliver will look for the channel first; nil when it must find it.
	to *channel
}

// Position returns the message's place in its log.
func (m *Message) Position() Position { return Position{m.Epoch, m.Offset, m.Check} }

// proves reports whether c is a check of m.
func (m *Message) proves(c Check) bool {
	if m.Check == 0 || c.Exact() {
		return m.Check == c
	}
	return c.Proves(m.Offset, m.At(), m.Key, m.Data)
}

// ID returns what the message goes by: the publisher's own id, or the token of its
// position, or "" if it has neither.
func (m *Message) ID() string {
	switch {
	case m.Attributes != nil && m.Attributes.ID != "":
		return m.Attributes.ID
	case m.Offset == 0:
		return ""
	}
	return m.Position().String()
}

// size is what m counts for in the bounds of queues and rings.
func (m *Message) size() int {
	if m.Attributes == nil {
		return len(m.Data)
	}
	return len(m.Data) + m.Attributes.Size()
}

// At returns the time the message was stored.
func (m *Message) At() time.Time { return time.UnixMilli(m.Time) }

// An Encoder appends the wire form of m to dst and returns the extended slice.
// It must be pure: the result is shared by all subscribers of that format.
type Encoder func(dst []byte, m *Message) []byte

// encode returns m in format f, using enc on first use. Of two shards that need
// it at once one waits for the other, the time of one encoding. budget counts
// what is kept by messages in rings; past limit nothing more is.
func (m *Message) encode(f Format, enc Encoder, budget *atomic.Int64, limit int64) (b []byte, fresh bool) {
	if p := m.forms.get(f); p != nil {
		return p.bytes, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.forms.get(f); p != nil {
		return p.bytes, false
	}
	b = enc(nil, m)
	switch {
	case m.rings > 0 && budget.Load() < limit:
		m.kept += int32(len(b))
		budget.Add(int64(len(b)))
		m.forms.add(f, b, true)
	case m.pending > 0:
		m.forms.add(f, b, false) // until the last shard has it
	}
	return b, true
}

// enter notes that m is in a ring.
func (m *Message) enter() {
	m.mu.Lock()
	m.rings++
	m.mu.Unlock()
}

// evict notes that m left a ring, and takes it out of the budget with the last.
// Its wire forms go when the last shard has sent them.
func (m *Message) evict(budget *atomic.Int64) {
	m.mu.Lock()
	if m.rings--; m.rings == 0 {
		budget.Add(-int64(m.kept))
		m.kept = 0
		m.forget()
	}
	m.mu.Unlock()
}

// await notes that so many shards more will deliver m; sent, that one has.
func (m *Message) await(shards int) {
	m.mu.Lock()
	m.pending += int16(shards)
	m.mu.Unlock()
}

func (m *Message) sent() {
	m.mu.Lock()
	m.pending--
	m.forget()
	m.mu.Unlock()
}

// forget drops the wire forms that are not expected to be needed and that the
// budget does not count. m.mu is held.
func (m *Message) forget() {
	if m.pending == 0 {
		m.forms.keep(m.rings > 0)
	}
}

// A Publication is what a publisher hands in: a message without its place.
type Publication struct {
	Channel string
	Key     string // conflation key, may be empty
	Data    []byte // kept, not copied: the caller must not change it afterwards
	// Attributes are what else there is to say; nil means nothing. Kept, not copied.
	Attributes *Attributes
	// IdempotencyKey makes a retry harmless: within the namespace's window a
	// second publication with the same Publisher, Channel and key stores nothing. It
	// is answered with the first one's position if it is the same message, otherwise
	// with a *KeyReusedError. Empty means none.
	IdempotencyKey string
	// Publisher is in whose name IdempotencyKey counts, as <kind>:<name>: publishers
	// never meet each other's keys. Weir's servers set it to who was authenticated;
	// the kind "weir" is for what Weir itself publishes. Empty is the embedding program.
	Publisher string
	// Handle is the Snapshot.Handle of the channel, if this node has it subscribed
	// and its broker gave one. The hub fills it in.
	Handle any
	// Checked has the publisher answered with the check that the message has, so that the
	// answer reads as the message's ID does. It may cost a read.
	Checked bool
	// Now is when it was handed in, for brokers that store here; the zero Time means that
	// they look at the clock. Hub.Prefetch fills it in for many at once.
	Now time.Time

	to *channel
}

// Time returns Now, or the time.
func (p *Publication) Time() time.Time {
	if p.Now.IsZero() {
		return time.Now()
	}
	return p.Now
}

// Fill makes m the message of p but for its place and time: brokers that deliver
// within Publish spare the hub a search that way. m must be new.
func (p *Publication) Fill(m *Message) {
	m.Channel, m.Key, m.Data, m.Attributes, m.to = p.Channel, p.Key, p.Data, p.Attributes, p.to
}
