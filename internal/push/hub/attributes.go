package hub

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Payload reports what the bytes of a message are, for formats that embed them.
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
	// Topics, if there are any); anyone who reads because the namespace is open does not
	// get them.
	Private bool `json:"private,omitempty"`
	// Payload reports what Data is.
	Payload Payload `json:"payload,omitempty"`
	// Topics are all channels of a publication to several of them, the first is the
	// canonical one; nil for a publication to one. There is a message on each, the
	// one of Topics[i] with Index i; a subscriber of several gets the first.
	// Hub.PublishTopics writes both.
	Topics []string `json:"topics,omitempty"`
	Index  int      `json:"index,omitempty"`
	// First is the offset of the message with Index 0, for those that follow it.
	First uint64 `json:"first,omitempty"`
	// Origin is the connection that published and does not want it back; empty
	// means that everybody gets it.
	Origin string `json:"origin,omitempty"`
	// Info is who published, as JSON that goes to subscribers; nil means unsaid.
	Info []byte `json:"info,omitempty"`
	// Tags are name and value pairs for subscribers.
	Tags map[string]string `json:"tags,omitempty"`
	// Version makes Hub.Publish store the message only if it is newer than what its
	// channel has: than its newest retained message with a version. What is not is
	// answered with the end of the log, as if it had been stored. A version of another
	// VersionEpoch than the newest one's is newer, but for an empty VersionEpoch, which
	// fits all. 0 means no version. Without a log it does nothing.
	Version      uint64 `json:"version,omitempty"`
	VersionEpoch string `json:"version_epoch,omitempty"`
	// SkipHistory makes Hub.Publish bring the message to those who follow the channel
	// now, on all nodes, and not store it: it has no offset, and neither
	// IdempotencyKey nor Version counts. Without a log it does nothing.
	SkipHistory bool `json:"-"`
}

// Bounds of Attributes.
const (
	// MaxAttribute bounds ID, Event, Origin and VersionEpoch in bytes.
	MaxAttribute = 255
	// MaxTopics bounds the channels of one publication.
	MaxTopics = 128
	// MaxTags bounds the tags of a message.
	MaxTags = 64
)

// Validate returns ErrBadAttributes, in words, for what a publisher may not say.
// nil is in order.
func (a *Attributes) Validate() error {
	if a == nil {
		return nil
	}
	bad := func(format string, x ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrBadAttributes}, x...)...)
	}
	if strings.HasPrefix(a.ID, "#") {
		return bad("id: %.40q starts with #", a.ID)
	}
	for name, v := range map[string]string{"id": a.ID, "event": a.Event, "origin": a.Origin, "version_epoch": a.VersionEpoch} {
		if why := badText(v); why != "" {
			return bad("%s: %.40q: %s", name, v, why)
		}
	}
	switch {
	case a.Retry < 0:
		return bad("retry: %d is negative", a.Retry)
	case a.Payload > Binary:
		return bad("payload: %d is not a kind of payload", a.Payload)
	case a.Info != nil && !json.Valid(a.Info):
		return bad("info: it is not JSON text")
	case len(a.Tags) > MaxTags:
		return bad("tags: %d, at most %d", len(a.Tags), MaxTags)
	case len(a.Topics) > MaxTopics:
		return bad("topics: %d, at most %d", len(a.Topics), MaxTopics)
	case a.Index < 0 || a.Index > max(0, len(a.Topics)-1):
		return bad("index: %d of %d topics", a.Index, len(a.Topics))
	}
	for k, v := range a.Tags {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return bad("tags: %.40q is %.40q: want UTF-8", k, v)
		}
	}
	for _, topic := range a.Topics {
		if err := CheckChannel(topic); err != nil {
			return bad("topics: %w", err)
		}
	}
	return nil
}

// badText reports why v can be no line of an event, or "".
func badText(v string) string {
	switch {
	case len(v) > MaxAttribute:
		return fmt.Sprintf("%d bytes, at most %d", len(v), MaxAttribute)
	case strings.ContainsAny(v, "\r\n\x00"):
		return "a line end or NUL in it"
	case !utf8.ValidString(v):
		return "it is not UTF-8"
	}
	return ""
}

// Size is what a counts for in Namespace.MaxMessageBytes, beside the payload.
func (a *Attributes) Size() int {
	if a == nil {
		return 0
	}
	n := len(a.ID) + len(a.Event) + len(a.Origin) + len(a.Info) + len(a.VersionEpoch)
	for k, v := range a.Tags {
		n += len(k) + len(v)
	}
	for _, t := range a.Topics {
		n += len(t)
	}
	return n
}

// AppendTo appends a to dst as ParseAttributes reads it: one line of UTF-8 without
// control characters. nil appends nothing.
func (a *Attributes) AppendTo(dst []byte) []byte {
	if a == nil {
		return dst
	}
	b, err := json.Marshal(a)
	if err != nil {
		panic("attributes that are no JSON: " + err.Error()) // strings, numbers and bytes always are
	}
	return append(dst, b...)
}

// ParseAttributes reads what AppendTo wrote; of nothing it returns nil. It keeps
// nothing of b. Fields that it does not know are skipped.
func ParseAttributes(b []byte) (*Attributes, error) {
	if len(b) == 0 {
		return nil, nil
	}
	a := &Attributes{}
	if err := json.Unmarshal(b, a); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadAttributes, err)
	}
	return a, nil
}

// isCopy reports whether m is of a publication to several channels, and not the
// first of them.
func (m *Message) isCopy() bool { return m.Attributes != nil && m.Attributes.Index > 0 }

// isPrivate reports whether m is for those alone whose grants cover it.
func (m *Message) isPrivate() bool { return m.Attributes != nil && m.Attributes.Private }
