package hub

// Payload says what the bytes of a message are, for formats that embed them.
type Payload uint8

const (
	// JSON is a JSON text. Formats that are JSON embed it as it is.
	JSON Payload = iota
	// Text is UTF-8 that need not be JSON. Formats that are JSON embed it as a string.
	Text
	// Binary is any bytes. Formats that are JSON embed it as a base64 string
	// (RFC 4648 §4), those that are text send that string.
	Binary
)

// Attributes are what a publisher said about a message besides its payload. Most
// messages have none. They are immutable once published and may be shared.
type Attributes struct {
	// ID is the publisher's own id of the message; empty means that it goes by its
	// position. It is kept verbatim and can be resumed from: see Broker.Lookup.
	ID string `json:"id,omitempty"`
	// Event is the publisher's event type; empty means a plain message.
	Event string `json:"event,omitempty"`
	// Retry is the reconnection time for SSE clients in milliseconds; 0 means none.
	Retry int `json:"retry,omitempty"`
	// Private messages are for subscribers whose grants cover the channel (one of
	// Topics, if there are any); who reads because the namespace is open does not
	// get them.
	Private bool `json:"private,omitempty"`
	// Payload says what Data is.
	Payload Payload `json:"payload,omitempty"`
	// Topics are all channels of a publication to several of them, the first is the
	// canonical one; nil for a publication to one. There is a message on each, the
	// one of Topics[i] with Index i; a subscriber of several gets the first.
	Topics []string `json:"topics,omitempty"`
	Index  int      `json:"index,omitempty"`
	// Origin is the connection that published and does not want it back; empty
	// means that everybody gets it.
	Origin string `json:"origin,omitempty"`
	// Info is who published, as JSON that goes to subscribers; nil means unsaid.
	Info []byte `json:"info,omitempty"`
	// Tags are name and value pairs for subscribers.
	Tags map[string]string `json:"tags,omitempty"`
}
