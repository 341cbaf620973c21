// Package wire is what clients and publishers read and write, whatever carries it:
// the forms of a message, the bodies of API calls and their errors. It is pure.
package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/protocol/jsontext"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// The wire formats. Each message is written at most once in each, and the bytes
// are shared by all its subscribers. Those of SSE come in rows, one row per coding.
const (
	SSE         hub.Format = iota // id line, event line where one may stand, raw payload
	SSEEnvelope                   // id line, envelope
	SSEData                       // envelope without id line: the subscriber has an id of its own
	Mercure                       // event, retry and id line as the publisher said, raw payload
	rowLength
)

// The rows are those of Plain, Gzip (a deflate block of its own for each message) and
// Zstd (a frame of its own).
const (
	Recorded         = rowLength*codings + iota // id line, the block that a backend sent: see Record
	WebSocket                                   // envelope in a text frame
	WebSocketDeflate                            // the same, compressed for itself
	builtinFormats                              // what follows was added: see Formats.Add
)

// In returns SSE format f in coding c. One that was added comes in Plain alone.
func (c Coding) In(f hub.Format) hub.Format {
	if f >= rowLength {
		return f
	}
	return f + rowLength*hub.Format(c)
}

// CodingOf returns the coding of an SSE format, in chunks or not.
func CodingOf(f hub.Format) Coding {
	if f &^= chunked; f >= Recorded {
		return Plain
	}
	return Coding(f / rowLength)
}

// IsFrame reports whether f is one of Weir's own for WebSocket clients.
func IsFrame(f hub.Format) bool { return f == WebSocket || f == WebSocketDeflate }

// Formats writes messages for the wire.
type Formats struct {
	compressor *compressor
	// compressFrom is the payload size from which on a namespace's messages are
	// compressed, for those that are at all.
	compressFrom atomic.Pointer[map[string]int]
	// added are further encoders, whose formats follow builtinFormats.
	added []hub.Encoder
}

// NewFormats returns the formats for channels of the given namespaces.
func NewFormats(namespaces []hub.Namespace) (*Formats, error) {
	c, err := newCompressor()
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	f := &Formats{compressor: c}
	f.SetNamespaces(namespaces)
	return f, nil
}

// SetNamespaces makes the options of namespaces count from now on. Streams that were opened
// compressed stay in that coding. Any goroutine.
func (f *Formats) SetNamespaces(namespaces []hub.Namespace) {
	from := map[string]int{}
	for _, n := range namespaces {
		if n = n.WithDefaults(); n.Compress {
			from[n.Name] = n.CompressMinBytes
		}
	}
	f.compressFrom.Store(&from)
}

// Compresses reports whether clients of all channels may have them compressed.
func (f *Formats) Compresses(channels []string) bool {
	compressed := *f.compressFrom.Load()
	for _, ch := range channels {
		if _, ok := compressed[hub.NamespaceOf(ch)]; !ok {
			return false
		}
	}
	return true
}

// worth reports whether m is large enough to be compressed.
func (f *Formats) worth(m *hub.Message) bool {
	from, ok := (*f.compressFrom.Load())[hub.NamespaceOf(m.Channel)]
	return ok && len(m.Data) >= from
}

// Add makes enc one of the encoders and returns its format. It is for protocols whose
// frames or events are not Weir's, and comes before Encoders. There may be half of
// hub.MaxFormats in all, for each has its twin in chunks.
func (f *Formats) Add(enc hub.Encoder) hub.Format {
	f.added = append(f.added, enc)
	return builtinFormats + hub.Format(len(f.added)-1)
}

// Encoders returns the functions for hub.Config.
func (f *Formats) Encoders() []hub.Encoder {
	if n := int(builtinFormats) + len(f.added); n > int(chunked) {
		panic(fmt.Sprintf("%d wire formats, at most %d", n, chunked))
	}
	list := make([]hub.Encoder, builtinFormats, hub.MaxFormats)
	for i, enc := range []hub.Encoder{appendSSE, appendSSEEnvelope, appendSSEData, appendMercure} {
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
	list = append(list, f.added...)
	whole := len(list)
	list = list[:int(chunked)+whole]
	for i, enc := range list[:whole] {
		list[InChunks(hub.Format(i))] = inChunks(enc)
	}
	for i := whole; i < int(chunked); i++ {
		list[i] = appendNothing
	}
	return list
}

// appendNothing is used where there is no format.
func appendNothing(dst []byte, _ *hub.Message) []byte { return dst }

// Encode appends text in coding c, compressed if that is worth it.
func (f *Formats) Encode(c Coding, dst, text []byte, compress bool) []byte {
	switch {
	case c == Plain:
		return append(dst, text...)
	case c == Zstd && compress:
		return f.compressor.appendZstd(dst, text)
	case c == Zstd:
		return appendZstdStored(dst, text)
	case compress:
		return f.compressor.appendGzip(dst, text)
	default:
		return appendStored(dst, text)
	}
}

func appendWS(dst []byte, m *hub.Message) []byte {
	return AppendFrame(dst, websocket.OpText, len(m.Data)+len(m.Channel)+len(m.Key)+envelopeRoom, func(dst []byte) []byte {
		return appendEnvelope(dst, m)
	})
}

// AppendFrame appends a whole unfragmented server frame whose payload is what write
// appends. size is a guess at that. The payload is written where the longest header
// leaves it, and then the header that its length needs right before it: so an
// encoder, which starts with an empty dst, copies nothing.
func AppendFrame(dst []byte, op websocket.Opcode, size int, write func(dst []byte) []byte) []byte {
	const room = 10
	dst = grow(dst, size+room)
	at := len(dst)
	dst = append(dst, make([]byte, room)...)
	dst = write(dst)
	var head [room]byte
	h := websocket.AppendHeader(head[:0], true, false, op, len(dst)-at-room)
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
	if a := m.Attributes; a != nil && mayName(a.Event) {
		dst = sse.AppendType(dst, a.Event)
	}
	return sse.AppendEnd(appendRaw(dst, m))
}

// mayName reports whether an event of a publisher may have that type on a plain stream:
// gap and end are Weir's own, and open, error and message are what a browser's
// EventSource says by itself. Messages of such a type go without one.
func mayName(event string) bool {
	switch event {
	case "", "gap", "end", "open", "error", "message":
		return false
	}
	return true
}

// appendMercure writes m as the Mercure protocol has it: event and retry as they were
// published, and an id always, the publisher's own before the position.
func appendMercure(dst []byte, m *hub.Message) []byte {
	dst = grow(dst, len(m.Data)+96)
	a := m.Attributes
	if a == nil {
		a = &plainAttributes
	}
	if a.Event != "" {
		dst = sse.AppendType(dst, a.Event)
	}
	if a.Retry > 0 {
		dst = sse.AppendRetry(dst, a.Retry)
	}
	if a.ID != "" && sse.CheckField(a.ID) == nil {
		dst = sse.AppendID(dst, a.ID)
	} else {
		dst = appendID(dst, m)
	}
	return sse.AppendEnd(appendRaw(dst, m))
}

var plainAttributes hub.Attributes

// appendRaw writes the payload as data lines: what is binary as base64.
func appendRaw(dst []byte, m *hub.Message) []byte {
	if PayloadOf(m) == hub.Binary {
		dst = base64.StdEncoding.AppendEncode(append(dst, "data: "...), m.Data)
		return append(dst, '\n')
	}
	return sse.AppendData(dst, m.Data)
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

// appendEnvelope writes m as one JSON object.
func appendEnvelope(dst []byte, m *hub.Message) []byte {
	dst = grow(dst, len(m.Data)+len(m.Channel)+len(m.Key)+envelopeRoom)
	dst = append(dst, `{"channel":`...)
	dst = jsontext.AppendString(dst, m.Channel)
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
		dst = jsontext.AppendString(dst, m.Key)
	}
	if m.Attributes != nil {
		dst = appendAttributes(dst, m.Attributes)
	}
	dst = append(dst, `,"data":`...)
	return append(AppendPayload(dst, m), '}')
}

// appendAttributes writes what of a is for clients, as further members of an object.
func appendAttributes(dst []byte, a *hub.Attributes) []byte {
	if a.ID != "" {
		dst = jsontext.AppendString(append(dst, `,"message_id":`...), a.ID)
	}
	if a.Event != "" {
		dst = jsontext.AppendString(append(dst, `,"event":`...), a.Event)
	}
	if len(a.Tags) > 0 {
		dst = AppendTags(append(dst, `,"tags":`...), a.Tags)
	}
	return dst
}

// AppendTags appends tags as a JSON object, in order of their names.
func AppendTags(dst []byte, tags map[string]string) []byte {
	dst = append(dst, '{')
	for i, name := range slices.Sorted(maps.Keys(tags)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsontext.AppendString(dst, name), ':')
		dst = jsontext.AppendString(dst, tags[name])
	}
	return append(dst, '}')
}

// PayloadOf reports what the bytes of m are.
func PayloadOf(m *hub.Message) hub.Payload {
	if m.Attributes == nil {
		return hub.JSON
	}
	return m.Attributes.Payload
}

// AppendPayload appends the payload of m as a JSON value: JSON as it is, text as a
// string, anything else as a string of base64.
func AppendPayload(dst []byte, m *hub.Message) []byte {
	switch PayloadOf(m) {
	case hub.Text:
		return jsontext.AppendString(dst, m.Data)
	case hub.Binary:
		dst = base64.StdEncoding.AppendEncode(append(dst, '"'), m.Data)
		return append(dst, '"')
	}
	if len(m.Data) == 0 {
		return append(dst, "null"...)
	}
	return append(dst, m.Data...)
}

// gapNotice is what a subscriber receives about a hub.Gap.
type gapNotice struct {
	Type      string        `json:"type,omitempty"` // WebSocket only: SSE has its event field
	Namespace string        `json:"namespace"`
	From      string        `json:"from"`
	To        string        `json:"to"`
	ID        string        `json:"id,omitempty"`
	Reason    hub.GapReason `json:"reason"`
}

// AppendGap appends what a subscriber receives about g as JSON. kind is its "type"
// and id the stream's position, both left out if empty.
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
