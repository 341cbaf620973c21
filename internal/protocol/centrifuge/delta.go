package centrifuge

import (
	"sync"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// delta is where a subscription is that gets differences.
type delta struct{ before *hub.Message }

// deltas keeps the newest frames with differences: subscribers of a channel get the
// same ones. Any goroutine.
type deltas struct {
	mu   sync.Mutex
	ring [64]deltaFrame
	at   int
}

type deltaFrame struct {
	from, to *hub.Message
	format   hub.Format
	frame    []byte
}

// next returns the frame of m for a subscription that has got d.before, and moves it
// on to m.
func (ds *deltas) next(k *kind, d *delta, m *hub.Message) []byte {
	before := d.before
	d.before = m
	ds.mu.Lock()
	for _, f := range ds.ring {
		if f.to == m && f.from == before && f.format == k.format {
			ds.mu.Unlock()
			return f.frame
		}
	}
	ds.mu.Unlock()
	frame := appendDelta(k, before, m)
	ds.mu.Lock()
	ds.ring[ds.at] = deltaFrame{before, m, k.format, frame}
	ds.at = (ds.at + 1) % len(ds.ring)
	ds.mu.Unlock()
	return frame
}

// appendDelta writes m as the difference to before, or whole where that is shorter.
func appendDelta(k *kind, before, m *hub.Message) []byte {
	p := publicationOf(m, k.enc)
	p.Data, p.Text = payloadOf(m, k.enc), true
	if before != nil {
		if patch := protocol.AppendDelta(nil, payloadOf(before, k.enc), p.Data); len(patch) < len(p.Data) {
			p.Data, p.Delta = patch, true
		}
	}
	return k.appendPublication(nil, m.Channel, &p)
}

// payloadOf returns the text that differences are made of: in JSON the value that
// would appear there, in Protobuf the bytes.
func payloadOf(m *hub.Message, enc protocol.Encoding) []byte {
	if enc == protocol.Protobuf {
		return m.Data
	}
	return wire.AppendPayload(nil, m)
}
