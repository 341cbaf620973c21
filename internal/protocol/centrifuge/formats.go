package centrifuge

import (
	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// Formats are the numbers of the protocol's wire forms among the hub's.
type Formats struct {
	wsJSON, wsProtobuf hub.Format // a reply in a frame
	sse, lines, stream hub.Format // a reply as an event, a line of JSON, Protobuf with its length
	uniWS, uniStream   hub.Format // a bare push in JSON
	uniSSE, uniSSEOne  hub.Format // an event, the second with the message's position as its id
	set                bool
}

// AddFormats makes the protocol's wire forms known to add, which is wire.Formats.Add,
// before the hub is made.
func AddFormats(add func(hub.Encoder) hub.Format) Formats {
	form := func(k *kind) hub.Format { return add(k.appendMessage) }
	return Formats{
		wsJSON: form(&kind{socket: true}), wsProtobuf: form(&kind{socket: true, enc: protocol.Protobuf}),
		sse: form(&kind{sse: true}), lines: form(&kind{}), stream: form(&kind{enc: protocol.Protobuf}),
		uniWS: form(&kind{socket: true, uni: true}), uniStream: form(&kind{uni: true}),
		uniSSE: form(&kind{sse: true, uni: true}), uniSSEOne: form(&kind{sse: true, uni: true, ids: true}),
		set: true,
	}
}

// A kind is what the clients of an endpoint have in common: how they are spoken with.
type kind struct {
	srv       *Server
	name      string // as the protocol calls the transport
	enc       protocol.Encoding
	socket    bool // WebSocket; otherwise a stream
	sse       bool
	uni       bool // pushes go bare, and there are no commands
	ids       bool // publications have an id line
	format    hub.Format
	anonymous *account // of clients that are not connected yet, or have no user
}

// newKind returns a kind of s's endpoints.
func newKind(s *Server, k kind) *kind {
	k.srv = s
	k.anonymous = &account{kind: &k}
	return &k
}

// appendWrapped appends what body appends as the transport has it.
func (k *kind) appendWrapped(dst []byte, size int, body func(dst []byte) []byte) []byte {
	switch {
	case k.socket && k.enc == protocol.Protobuf:
		return wire.AppendFrame(dst, websocket.OpBinary, size, body)
	case k.socket:
		return wire.AppendFrame(dst, websocket.OpText, size, body)
	case k.sse:
		return append(body(append(dst, "data: "...)), '\n', '\n')
	case k.enc == protocol.JSON:
		return append(body(dst), '\n')
	default:
		return body(dst)
	}
}

// appendMessage is the hub's encoder of the kind.
func (k *kind) appendMessage(dst []byte, m *hub.Message) []byte {
	p := publicationOf(m, k.enc)
	if k.ids {
		dst = appendEventID(dst, m)
	}
	return k.appendPublication(dst, m.Channel, &p)
}

func (k *kind) appendPublication(dst []byte, channel string, p *protocol.Publication) []byte {
	return k.appendWrapped(dst, len(p.Data)+len(channel)+pushRoom, func(dst []byte) []byte {
		return protocol.AppendPush(dst, k.enc, k.uni, wireName(channel), p)
	})
}

// appendPush appends any other push.
func (k *kind) appendPush(dst []byte, channel string, body protocol.PushBody) []byte {
	return k.appendWrapped(dst, pushRoom, func(dst []byte) []byte {
		return protocol.AppendPush(dst, k.enc, k.uni, wireName(channel), body)
	})
}

// pushRoom is what a push adds to channel and payload at most, in the usual case.
const pushRoom = 96

// appendEventID appends the id line that a browser's EventSource sends back when it
// comes again: the position, behind which the channels' are found.
func appendEventID(dst []byte, m *hub.Message) []byte {
	if m.Offset == 0 {
		return dst
	}
	dst = append(dst, "id: "...)
	dst = m.Position().AppendTo(dst)
	return append(dst, '\n')
}

// publicationOf returns m as the protocol has it. Protobuf carries payloads as they
// are; in JSON text is a string, and bytes are a string of base64.
func publicationOf(m *hub.Message, enc protocol.Encoding) protocol.Publication {
	p := protocol.Publication{Data: m.Data, Offset: m.Offset}
	a := m.Attributes
	if a == nil {
		if len(p.Data) == 0 && enc == protocol.JSON {
			p.Data = null
		}
		return p
	}
	p.Tags, p.Info = a.Tags, protocol.ParseInfo(a.Info)
	if enc == protocol.JSON && (a.Payload != hub.JSON || len(m.Data) == 0) {
		p.Data = wire.AppendPayload(nil, m)
	}
	return p
}

var null = []byte("null")
