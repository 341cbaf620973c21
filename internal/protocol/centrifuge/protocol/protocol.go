// Package protocol is the codec of the Centrifuge client protocol, JSON and
// Protobuf. It is pure: bytes in, values out.
//
// A client sends Commands and a server sends replies: the answer to a command, or
// a push. Both encodings hold the same values. In JSON every object is on a
// line of its own, in Protobuf every message follows its length as a varint; one
// WebSocket frame or body may hold several.
//
//	for len(b) > 0 {
//		b, err = protocol.Next(b, protocol.JSON, &cmd)
//	}
//	out = protocol.AppendReply(out, protocol.JSON, cmd.ID, &protocol.PublishResult{})
//
// The appenders write no newline after an object of JSON: transports differ in what
// is between objects. Protobuf messages always have their length in front.
package protocol

import "errors"

// Encoding is one of the two forms.
type Encoding uint8

// The encodings.
const (
	JSON Encoding = iota
	Protobuf
)

// String is the name that clients and proxies use.
func (e Encoding) String() string {
	if e == Protobuf {
		return "protobuf"
	}
	return "json"
}

// ErrMalformed is returned, wrapped in what is wrong, for bytes that are no commands.
var ErrMalformed = errors.New("malformed command")

// Kind reports which request a Command holds.
type Kind uint8

// The requests, in the order of the schema.
const (
	// None is the empty command: a pong.
	None Kind = iota
	Connect
	Subscribe
	Unsubscribe
	Publish
	Presence
	PresenceStats
	History
	Ping
	Send
	RPC
	Refresh
	SubRefresh
	kinds
)

// kindNames are the fields of a command in JSON.
var kindNames = [kinds]string{
	"", "connect", "subscribe", "unsubscribe", "publish", "presence", "presence_stats", "history",
	"ping", "send", "rpc", "refresh", "sub_refresh",
}

// String is the name of the request's field.
func (k Kind) String() string { return kindNames[k] }

// firstKind is the field number of Connect; the others follow.
const firstKind = 4

// A Command is what a client sends. Byte slices are parts of what was decoded,
// strings are copies.
type Command struct {
	// ID is what the reply will carry; 0 for commands without one.
	ID   uint32
	Kind Kind
	// Connect is set for that kind only.
	Connect *ConnectRequest
	// Sub is the request of Subscribe. Its Channel and Token, and Data, are also those
	// of the other kinds.
	Sub SubscribeRequest
	// Method is the procedure of RPC.
	Method string
	// Limit, Since and Reverse belong to History; HasSince says that there is one.
	Limit    int32
	Since    Position
	HasSince bool
	Reverse  bool
	// Type is not 0 for variants of Publish and SubRefresh that are not served here.
	Type int32
}

// A Position is an offset in an epoch.
type Position struct {
	Offset uint64
	Epoch  string
}

// A ConnectRequest starts a connection.
type ConnectRequest struct {
	Token   string
	Data    []byte
	Subs    []SubscribeRequest // by channel, in the order they came
	Name    string
	Version string
	Headers map[string]string
	Flag    int64
}

// A SubscribeRequest subscribes to a channel.
type SubscribeRequest struct {
	Channel     string
	Token       string
	Data        []byte
	Recover     bool
	Epoch       string
	Offset      uint64
	Positioned  bool
	Recoverable bool
	JoinLeave   bool
	Delta       string
	Filter      *Filter
	Flag        int64
	// Type is 0 for a stream. Others are not served here.
	Type int32
}

// FlagRejectUnrecovered in SubscribeRequest.Flag requests an error in place of a
// subscription that starts after a gap.
const FlagRejectUnrecovered = 2

// Next decodes the first command of b into c and returns what follows it. What
// is between JSON commands is skipped: b is empty when there are no more.
func Next(b []byte, e Encoding, c *Command) ([]byte, error) {
	*c = Command{}
	if e == Protobuf {
		return nextProtobuf(b, c)
	}
	return nextJSON(b, c)
}
