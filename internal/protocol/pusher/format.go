package pusher

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// AddFormat makes f write messages as this protocol's frames. It comes before
// f.Encoders; the result is for Deps.
func AddFormat(f *wire.Formats, cfg Config) hub.Format {
	def := cfg.WithDefaults().DefaultEvent
	return f.Add(func(dst []byte, m *hub.Message) []byte { return appendMessage(dst, m, def) })
}

// appendMessage writes m as a text frame. It is the same for every subscriber.
func appendMessage(dst []byte, m *hub.Message, defaultEvent string) []byte {
	return wire.AppendFrame(dst, websocket.OpText, len(m.Data)+len(m.Data)/8+len(m.Channel)+64, func(dst []byte) []byte {
		return appendEvent(dst, m, defaultEvent)
	})
}

func appendEvent(dst []byte, m *hub.Message, defaultEvent string) []byte {
	event, user := defaultEvent, ""
	if a := m.Attributes; a != nil {
		// What other APIs let a publisher name must not pass for the protocol's own.
		if protocol.CheckEvent(a.Event) == nil {
			event = a.Event
		}
		if a.Info != nil && protocol.IsClientEvent(a.Event) {
			user = publisher(a.Info)
		}
	}
	return protocol.AppendEvent(dst, event, channelOf(m.Channel), text(m), user)
}

// text is the payload as clients get it.
func text(m *hub.Message) []byte {
	switch {
	case wire.PayloadOf(m) == hub.Binary:
		return base64.StdEncoding.AppendEncode(nil, m.Data)
	case m.Data == nil:
		return []byte{}
	}
	return m.Data
}

// channelOf returns the protocol's name of a hub channel.
func channelOf(channel string) string {
	if i := strings.IndexByte(channel, ':'); i >= 0 {
		channel = channel[i+1:]
	}
	return protocol.ChannelOf(channel)
}

// info is Attributes.Info of a client event: who sent it, in the words of the
// Centrifuge protocol, whose clients may be subscribed as well.
type info struct {
	User   string `json:"user"`
	Client string `json:"client"`
	// Member is who that is, as member_added says it, of one who has just come.
	Member json.RawMessage `json:"member,omitempty"`
}

func publisher(b []byte) string {
	var i info
	_ = json.Unmarshal(b, &i) // what is of another form names no user
	return i.User
}
