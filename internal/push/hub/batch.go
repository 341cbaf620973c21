package hub

// A Batch is what a sink gets at a time: messages in order, with their wire
// form shared by all subscribers that get the same batch.
type Batch struct {
	// Messages, oldest first; at least one. Sinks must not change it.
	Messages []*Message
	// Replay is true when the messages come from history.
	Replay bool

	hub  *Hub
	size int // payload bytes
	// shared reports that other shards have these messages too: their wire form is
	// then kept with the message. Otherwise it lives as long as the batch, and
	// the ring of recent messages holds payloads only.
	shared bool
	wire   wired
	more   []wired // other formats, of which there are seldom any
	// scratch is for Once, nil when several subscribers get the batch.
	scratch *[]byte
}

// wired is a batch in one format.
type wired struct {
	format Format
	bytes  []byte
}

// Once returns what Bytes does, in memory that is used again when Deliver has
// returned, if no other subscriber gets this batch: then nothing is left of it to be
// shared, or to be collected. Otherwise ok is false.
func (b *Batch) Once(f Format) (w []byte, ok bool) {
	if b.scratch == nil {
		return nil, false
	}
	w = (*b.scratch)[:0]
	for _, m := range b.Messages {
		w = b.hub.encoders[f](w, m)
	}
	b.hub.stats.encoded.Add(uint64(len(b.Messages)))
	if cap(w) > maxBatchBytes {
		*b.scratch = nil
	} else if cap(w) > cap(*b.scratch) { // else w may be a part of it that starts later
		*b.scratch = w
	}
	return w, true
}

// Bytes returns all messages in format f, one after the other. The slice is
// shared and immutable and stays valid after Deliver returns. Only the shard's
// goroutine may call it.
func (b *Batch) Bytes(f Format) []byte {
	if b.wire.format == f && b.wire.bytes != nil {
		return b.wire.bytes
	}
	return b.other(f)
}

// other is Bytes for all but the format that was requested first.
func (b *Batch) other(f Format) []byte {
	for i := range b.more {
		if b.more[i].format == f {
			return b.more[i].bytes
		}
	}
	var w []byte
	if len(b.Messages) == 1 {
		w = b.append(nil, b.Messages[0], f)
	} else {
		w = make([]byte, 0, b.size+len(b.Messages)*frameOverhead)
		for _, m := range b.Messages {
			w = b.append(w, m, f)
		}
	}
	if b.wire.bytes == nil {
		b.wire = wired{f, w}
	} else {
		b.more = append(b.more, wired{f, w})
	}
	return w
}

// Encode returns m in format f, shared and immutable. Any goroutine.
func (h *Hub) Encode(m *Message, f Format) []byte {
	w, fresh := m.encode(f, h.encoders[f], &h.wire, h.wireBudget)
	if fresh {
		h.stats.encoded.Add(1)
	}
	return w
}

// frameOverhead is a guess at what a format adds to a payload.
const frameOverhead = 128

// append appends m in format f to w, or returns the shared bytes if w is nil.
func (b *Batch) append(w []byte, m *Message, f Format) []byte {
	if !b.shared && m.forms.get(f) == nil {
		b.hub.stats.encoded.Add(1)
		return b.hub.encoders[f](w, m)
	}
	frame := b.hub.Encode(m, f)
	if w == nil {
		return frame
	}
	return append(w, frame...)
}
