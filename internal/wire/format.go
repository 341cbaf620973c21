// Package wire is what clients and publishers read and write, whatever carries it:
// the forms of a message, the bodies of API calls and their errors. It is pure.
package wire

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// The wire formats. Each message is written at most once in each, and the bytes
// are shared by all its subscribers. Those of SSE come in rows of three, one row
// per coding.
const (
	SSE         hub.Format = iota // id line, raw payload
	SSEEnvelope                   // id line, envelope
	SSEData                       // envelope without id line: the subscriber has an id of its own
	sseGzip                       // as SSE, a deflate block of its own
	_
	_
	sseZstd // as SSE, a zstd frame of its own
	_
	_
	Recorded         // id line, the block that a backend sent: see Record
	WebSocket        // envelope in a text frame
	WebSocketDeflate // the same, compressed for itself
	formats
)

// In returns SSE format f in coding c.
func (c Coding) In(f hub.Format) hub.Format { return f + 3*hub.Format(c) }

// CodingOf returns the coding of an SSE format.
func CodingOf(f hub.Format) Coding {
	if f >= Recorded {
		return Plain
	}
	return Coding(f / 3)
}

// Formats writes messages for the wire.
type Formats struct {
	compressor *compressor
	// compressFrom is the payload size from which on a namespace's messages are
	// compressed, for those that are at all.
	compressFrom map[string]int
}

// NewFormats returns the formats for channels of the given namespaces.
func NewFormats(namespaces []hub.Namespace) (*Formats, error) {
	c, err := newCompressor()
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	f := &Formats{compressor: c, compressFrom: map[string]int{}}
	for _, n := range namespaces {
		if n = n.WithDefaults(); n.Compress {
			f.compressFrom[n.Name] = n.CompressMinBytes
		}
	}
	return f, nil
}

// Compresses reports whether clients of all channels may have them compressed.
func (f *Formats) Compresses(channels []string) bool {
	for _, ch := range channels {
		if _, ok := f.compressFrom[hub.NamespaceOf(ch)]; !ok {
			return false
		}
	}
	return true
}

// worth reports whether m is large enough to be compressed.
func (f *Formats) worth(m *hub.Message) bool {
	from, ok := f.compressFrom[hub.NamespaceOf(m.Channel)]
	return ok && len(m.Data) >= from
}

// Encoders returns the functions for hub.Config.
func (f *Formats) Encoders() []hub.Encoder {
	list := make([]hub.Encoder, formats)
	for i, enc := range []hub.Encoder{appendSSE, appendSSEEnvelope, appendSSEData} {
		list[i] = enc
		list[Gzip.In(hub.Format(i))] = func(dst []byte, m *hub.Message) []byte {
			return f.Encode(Gzip, dst, enc(nil, m), f.worth(m))
		}
		list[Zstd.In(hub.Format(i))] = func(dst []byte, m *hub.Message) []byte {
			return f.Encode(Zstd, dst, enc(nil, m), f.worth(m))
		}
	}
	list[WebSocket], list[Recorded] = appendWS, appendRecorded
	list[WebSocketDeflate] = func(dst []byte, m *hub.Message) []byte {
		if !f.worth(m) {
			return appendWS(dst, m)
		}
		return appendDeflateFrame(dst, appendEnvelope(nil, m))
	}
	return list
}

// Encode appends text in coding c, compressed if that is worth it.
func (f *Formats) Encode(c Coding, dst, text []byte, compress bool) []byte {
	switch {
	case c == Plain:
		return append(dst, text...)
	case c == Zstd:
		return f.compressor.appendZstd(dst, text)
	case compress:
		return f.compressor.appendGzip(dst, text)
	default:
		return appendStored(dst, text)
	}
}

// appendWS writes the envelope where the longest frame header leaves it, and
// then the header that its length asks for, right before it.
func appendWS(dst []byte, m *hub.Message) []byte {
	const room = 10
	dst = grow(dst, len(m.Data)+len(m.Channel)+len(m.Key)+envelopeRoom+room)
	at := len(dst)
	dst = append(dst, make([]byte, room)...)
	dst = appendEnvelope(dst, m)
	var head [room]byte
	h := websocket.AppendHeader(head[:0], true, false, websocket.OpText, len(dst)-at-room)
	if at == 0 {
		copy(dst[room-len(h):], h)
		return dst[room-len(h):]
	}
	copy(dst[at:], h)
	n := copy(dst[at+len(h):], dst[at+room:])
	return dst[:at+len(h)+n]
}

// envelopeRoom is what an envelope adds to channel, key and payload at most, in
// the usual case.
const envelopeRoom = 128

func appendSSE(dst []byte, m *hub.Message) []byte {
	dst = appendID(grow(dst, len(m.Data)+48), m)
	return sse.AppendEnd(sse.AppendData(dst, m.Data))
}

func appendSSEEnvelope(dst []byte, m *hub.Message) []byte {
	env := appendEnvelope(nil, m)
	dst = appendID(grow(dst, len(env)+48), m)
	return sse.AppendEnd(sse.AppendData(dst, env))
}

func appendSSEData(dst []byte, m *hub.Message) []byte {
	env := appendEnvelope(nil, m)
	return sse.AppendEnd(sse.AppendData(grow(dst, len(env)+8), env))
}

func grow(dst []byte, n int) []byte {
	if dst == nil {
		return make([]byte, 0, n)
	}
	return dst
}

// appendID writes the id line of m, unless its namespace keeps no log.
func appendID(dst []byte, m *hub.Message) []byte {
	if m.Offset == 0 {
		return dst
	}
	dst = append(dst, "id: "...)
	dst = m.Position().AppendTo(dst)
	return append(dst, '\n')
}

// appendEnvelope writes m as one JSON object with its payload as it is.
func appendEnvelope(dst []byte, m *hub.Message) []byte {
	dst = grow(dst, len(m.Data)+len(m.Channel)+len(m.Key)+envelopeRoom)
	dst = append(dst, `{"channel":`...)
	dst = AppendJSONString(dst, m.Channel)
	if m.Offset != 0 {
		dst = append(dst, `,"id":"`...)
		dst = m.Position().AppendTo(dst)
		dst = append(dst, `","offset":`...)
		dst = strconv.AppendUint(dst, m.Offset, 10)
	}
	dst = append(dst, `,"time":`...)
	dst = strconv.AppendInt(dst, m.Time, 10)
	if m.Key != "" {
		dst = append(dst, `,"key":`...)
		dst = AppendJSONString(dst, m.Key)
	}
	dst = append(dst, `,"data":`...)
	if len(m.Data) == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, m.Data...)
	}
	return append(dst, '}')
}

// AppendJSONString writes s as a JSON string; plain ASCII goes as it is.
func AppendJSONString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b, err := json.Marshal(s)
			if err != nil {
				panic("a string cannot be marshalled: " + err.Error())
			}
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// gapNotice is what a subscriber is told about a hub.Gap.
type gapNotice struct {
	Type      string        `json:"type,omitempty"` // WebSocket only: SSE has its event field
	Namespace string        `json:"namespace"`
	From      string        `json:"from"`
	To        string        `json:"to"`
	ID        string        `json:"id,omitempty"`
	Reason    hub.GapReason `json:"reason"`
}

// AppendGap appends what a subscriber is told about g as JSON. kind is its "type"
// and id where the stream stands, both left out if empty.
func AppendGap(dst []byte, kind string, g hub.Gap, id string) []byte {
	n := gapNotice{Type: kind, Namespace: g.Namespace, From: g.From, ID: id, Reason: g.Reason}
	if !g.To.IsZero() {
		n.To = g.To.String()
	}
	b, err := json.Marshal(n)
	if err != nil {
		panic("a gap notice cannot be marshalled: " + err.Error())
	}
	return append(dst, b...)
}
