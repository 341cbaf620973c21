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
	wire [MaxFormats][]byte
}

// Bytes returns all messages in format f, one after the other. The slice is
// shared and immutable and stays valid after Deliver returns. Only the shard's
// goroutine may call it.
func (b *Batch) Bytes(f Format) []byte {
	if w := b.wire[f]; w != nil {
		return w
	}
	var w []byte
	if len(b.Messages) == 1 {
		w = b.Message(0, f)
	} else {
		n := 0
		for i := range b.Messages {
			n += len(b.Message(i, f))
		}
		w = make([]byte, 0, n)
		for i := range b.Messages {
			w = append(w, b.Message(i, f)...)
		}
	}
	b.wire[f] = w
	return w
}

// Encode returns m in format f, shared and immutable. Any goroutine.
func (h *Hub) Encode(m *Message, f Format) []byte {
	w, fresh := m.encode(f, h.encoders[f])
	if fresh {
		h.stats.encoded.Add(1)
	}
	return w
}

// Message returns message i in format f, shared and immutable.
func (b *Batch) Message(i int, f Format) []byte {
	return b.hub.Encode(b.Messages[i], f)
}
