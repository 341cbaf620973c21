package push

import (
	"encoding/json"
	"strconv"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/sse"
	"github.com/weir-gateway/weir/websocket"
)

// The wire formats. Each message is written at most once in each, and the bytes
// are shared by all its subscribers.
const (
	formatSSE         hub.Format = iota // id line, raw payload
	formatSSEEnvelope                   // id line, envelope
	formatSSEData                       // envelope without id line: the subscriber has an id of its own
	formatWS                            // envelope in a text frame
	formats
)

// Encoders returns the functions for hub.Config.
func Encoders() []hub.Encoder {
	return []hub.Encoder{
		formatSSE: func(dst []byte, m *hub.Message) []byte {
			dst = grow(dst, len(m.Data)+48)
			dst = appendID(dst, m)
			return sse.AppendEnd(sse.AppendData(dst, m.Data))
		},
		formatSSEEnvelope: func(dst []byte, m *hub.Message) []byte {
			env := appendEnvelope(nil, m)
			dst = grow(dst, len(env)+48)
			dst = appendID(dst, m)
			return sse.AppendEnd(sse.AppendData(dst, env))
		},
		formatSSEData: func(dst []byte, m *hub.Message) []byte {
			return sse.AppendEnd(sse.AppendData(dst, appendEnvelope(nil, m)))
		},
		formatWS: func(dst []byte, m *hub.Message) []byte {
			env := appendEnvelope(nil, m)
			return websocket.AppendFrame(grow(dst, len(env)+10), websocket.OpText, env)
		},
	}
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
	dst = grow(dst, len(m.Data)+len(m.Channel)+112)
	dst = append(dst, `{"channel":`...)
	dst = appendJSONString(dst, m.Channel)
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
		dst = appendJSONString(dst, m.Key)
	}
	dst = append(dst, `,"data":`...)
	if len(m.Data) == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, m.Data...)
	}
	return append(dst, '}')
}

// appendJSONString writes s as a JSON string; plain ASCII goes as it is.
func appendJSONString(dst []byte, s string) []byte {
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

func appendGap(dst []byte, kind string, g hub.Gap, id string) []byte {
	b, err := json.Marshal(gapNotice{Type: kind, Namespace: g.Namespace, From: g.From, To: g.To.String(), ID: id, Reason: g.Reason})
	if err != nil {
		panic("a gap notice cannot be marshalled: " + err.Error())
	}
	return append(dst, b...)
}
