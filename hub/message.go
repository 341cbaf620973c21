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

// MaxFormats bounds Config.Encoders: a message carries one slot per format.
const MaxFormats = 12

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
	// Prev is the offset of the channel's previous message. 0 means there is
	// none or it is not known; otherwise a receiver that has not seen Prev has
	// missed something.
	Prev uint64

	// Written once per format by whichever shard needs it first, kept while the
	// message is in its channel's ring and the hub's budget allows.
	// Most messages of channels that live on one shard never have any.
	forms   atomic.Pointer[wireForms]
	mu      sync.Mutex
	kept    int64  // bytes of them in the hub's budget
	pending int32  // shards that have yet to deliver it
	budget  uint16 // bit f: format f is counted in kept
	inRing  bool
	// to is where deliver will look for the channel first; nil when it must find it.
	to *channel
}

// wireForms are a message in the formats somebody wanted.
type wireForms [MaxFormats]atomic.Pointer[[]byte]

// encoded returns the wire form in format f, or nil. Any goroutine.
func (m *Message) encoded(f Format) *[]byte {
	if w := m.forms.Load(); w != nil {
		return w[f].Load()
	}
	return nil
}

// keep stores a wire form. m.mu is held.
func (m *Message) keep(f Format, b *[]byte) {
	w := m.forms.Load()
	if w == nil {
		w = new(wireForms)
		m.forms.Store(w)
	}
	w[f].Store(b)
}

// Position returns the message's place in its log.
func (m *Message) Position() Position { return Position{Epoch: m.Epoch, Offset: m.Offset} }

// At returns the time the message was stored.
func (m *Message) At() time.Time { return time.UnixMilli(m.Time) }

// An Encoder appends the wire form of m to dst and returns the extended slice.
// It must be pure: the result is shared by all subscribers of that format.
type Encoder func(dst []byte, m *Message) []byte

// encode returns m in format f, writing it on first use. Of two shards that need
// it at once one waits for the other, the time of one encoding. budget counts
// what is kept by messages in rings; past limit nothing more is.
func (m *Message) encode(f Format, enc Encoder, budget *atomic.Int64, limit int64) (b []byte, fresh bool) {
	if p := m.encoded(f); p != nil {
		return *p, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.encoded(f); p != nil {
		return *p, false
	}
	b = enc(nil, m)
	switch {
	case m.inRing && budget.Load() < limit:
		m.kept += int64(len(b))
		m.budget |= 1 << f
		budget.Add(int64(len(b)))
		m.keep(f, &b)
	case m.pending > 0:
		m.keep(f, &b) // until the last shard has it
	}
	return b, true
}

// enter notes that m is in its channel's ring.
func (m *Message) enter() {
	m.mu.Lock()
	m.inRing = true
	m.mu.Unlock()
}

// evict takes a message that leaves its ring out of the budget. Its wire forms
// go when the last shard has sent them.
func (m *Message) evict(budget *atomic.Int64) {
	m.mu.Lock()
	budget.Add(-m.kept)
	m.kept, m.budget, m.inRing = 0, 0, false
	m.forget()
	m.mu.Unlock()
}

// await notes how many shards will deliver m; sent, that one has.
func (m *Message) await(shards int) {
	m.mu.Lock()
	m.pending = int32(shards)
	m.mu.Unlock()
}

func (m *Message) sent() {
	m.mu.Lock()
	m.pending--
	m.forget()
	m.mu.Unlock()
}

// forget drops the wire forms that nobody is expected to want and that the
// budget does not count. m.mu is held.
func (m *Message) forget() {
	w := m.forms.Load()
	switch {
	case w == nil || m.pending > 0:
		return
	case m.budget == 0:
		m.forms.Store(nil)
		return
	}
	for f := range w {
		if m.budget&(1<<f) == 0 {
			w[f].Store(nil)
		}
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
	// second publication with the same key stores nothing and is answered with
	// the first one's position. Empty means none.
	IdempotencyKey string
	// Handle is the Snapshot.Handle of the channel, if this node has it subscribed
	// and its broker gave one. The hub fills it in.
	Handle any

	to *channel
}

// Fill makes m the message of p but for its place and time: brokers that deliver
// within Publish spare the hub a search that way. m must be new.
func (p *Publication) Fill(m *Message) {
	m.Channel, m.Key, m.Data, m.Attributes, m.to = p.Channel, p.Key, p.Data, p.Attributes, p.to
}
