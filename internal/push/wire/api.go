package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// An Error is an answer to an API call that is not a success.
type Error struct {
	Status  int    `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Text returns message and hint in one line, for protocols whose errors have one text.
func (e *Error) Text() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + "; " + e.Hint
}

// ExposedFields are the header fields of answers that pages of other origins may read
// besides those that CORS gives them anyway (Fetch §4.9): when to come again, why a
// token is refused, and how Mercure's clients find the hub, resume and look again.
const ExposedFields = "ETag, Last-Event-ID, Link, Mercure-Last-Event-ID, Retry-After, WWW-Authenticate"

// MaxBroadcast bounds the channels of one broadcast.
const MaxBroadcast = 1000

// MaxBody bounds the body of an API call: the largest payload with room for the
// rest of the call.
const MaxBody = 1<<20 + 64<<10

const maxIdempotencyKey = 128

// A Call is one parsed API call.
type Call struct {
	// Channels to publish to: one, or those of a broadcast.
	Channels  []string
	Broadcast bool
	// Publication lacks its channel.
	Publication hub.Publication

	one [1]string // Channels of a publish
}

// ParsePublish reads the body of /api/publish. The result shares nothing with body.
func ParsePublish(h *hub.Hub, body []byte) (*Call, *Error) {
	var in Body
	bad := in.parse(body)
	switch {
	case bad != nil:
		return nil, bad
	case in.HasChannels:
		return nil, &Error{http.StatusBadRequest, `"channels" is for /api/broadcast`, `send "channel", or post to /api/broadcast`}
	case !in.HasChannel:
		return nil, &Error{http.StatusBadRequest, `"channel" is missing`, `send {"channel":"news","data":{"hello":"world"}}`}
	}
	c := &Call{one: [1]string{in.Channel}}
	c.Channels = c.one[:]
	if bad := c.copyBody(&in); bad != nil {
		return nil, bad
	}
	if _, err := h.Namespace(in.Channel); err != nil {
		return nil, ErrorOf(err)
	}
	return c, nil
}

// ParseBroadcast reads the body of /api/broadcast.
func ParseBroadcast(body []byte) (*Call, *Error) {
	var in Body
	bad := in.parse(body)
	switch {
	case bad != nil:
		return nil, bad
	case in.HasChannel:
		return nil, &Error{http.StatusBadRequest, `"channel" is for /api/publish`, `send "channels", a list`}
	case len(in.Channels) == 0:
		return nil, &Error{http.StatusBadRequest, `"channels" is missing or empty`, `send {"channels":["a","b"],"data":{"hello":"world"}}`}
	case len(in.Channels) > MaxBroadcast:
		return nil, &Error{http.StatusBadRequest, fmt.Sprintf("more than %d channels in one broadcast", MaxBroadcast), "split it"}
	}
	c := &Call{Channels: in.Channels, Broadcast: true}
	if bad := c.copyBody(&in); bad != nil {
		return nil, bad
	}
	return c, nil
}

// copyBody validates in and copies it.
func (c *Call) copyBody(in *Body) *Error {
	if len(in.IdempotencyKey) > maxIdempotencyKey || len(in.Key) > hub.MaxChannelName {
		return &Error{http.StatusBadRequest, fmt.Sprintf("idempotency_key may have %d bytes, key %d", maxIdempotencyKey, hub.MaxChannelName), ""}
	}
	if strings.ContainsFunc(in.IdempotencyKey, unicode.IsControl) {
		return &Error{http.StatusBadRequest, "idempotency_key has a control character", ""}
	}
	for _, ch := range c.Channels {
		if err := hub.CheckChannel(ch); err != nil {
			return &Error{http.StatusBadRequest, err.Error(), ""}
		}
	}
	c.Publication = hub.Publication{Key: in.Key, Data: in.Data, IdempotencyKey: in.IdempotencyKey}
	if !in.IsText {
		c.Publication.Data = bytes.Clone(in.Data)
	}
	a, bad := in.attributes()
	c.Publication.Attributes = a
	return bad
}

// attributes returns what in says of the message besides its payload, nil for nothing.
func (in *Body) attributes() (*hub.Attributes, *Error) {
	if !in.IsText && !in.Private && in.ID == "" && in.Event == "" && len(in.Tags) == 0 {
		return nil, nil
	}
	a := &hub.Attributes{ID: in.ID, Event: in.Event, Private: in.Private, Tags: in.Tags}
	if in.IsText {
		a.Payload = hub.Text
	}
	if err := a.Validate(); err != nil {
		return nil, ErrorOf(err)
	}
	return a, nil
}

// For returns the call's publication to its i-th channel, in the name of who.
func (c *Call) For(i int, who *auth.Identity) hub.Publication {
	p := c.Publication
	p.Channel = c.Channels[i]
	p.Publisher = who.Publisher() // also without a key: the broker may give one, which a retry carries
	return p
}

// ErrorOf says in HTTP what the hub or the broker refused.
func ErrorOf(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(hub.ErrUnknownNamespace):
		return &Error{http.StatusNotFound, err.Error(), "add it to namespaces in the configuration"}
	case is(hub.ErrBadChannel), is(hub.ErrTooManyChannels), is(hub.ErrBadAttributes):
		return &Error{http.StatusBadRequest, err.Error(), ""}
	case is(hub.ErrTooLarge):
		return &Error{http.StatusRequestEntityTooLarge, err.Error(), "raise max_message_bytes of the namespace"}
	case is(hub.ErrKeyReused):
		return &Error{http.StatusConflict, hub.ErrKeyReused.Error(), "nothing was stored: send another idempotency_key, or the same message as the first time"}
	case is(hub.ErrStorageFull):
		return uncertain(err, &Error{http.StatusInsufficientStorage, "the broker's storage is full", "nothing was stored, reading works: free space on its disk, or lower history_bytes; publishing resumes by itself"})
	case is(hub.ErrOverloaded):
		return &Error{http.StatusServiceUnavailable, "overloaded, try again later", "nothing was stored"}
	case is(hub.ErrUnavailable), is(hub.ErrClosed):
		return uncertain(err, &Error{http.StatusServiceUnavailable, "the broker is not available, try again later", "nothing was stored"})
	}
	return &Error{http.StatusInternalServerError, "internal error", ""}
}

// uncertain returns e, which says that nothing was stored, unless err says that this is
// not known: then with that, and how to retry.
func uncertain(err error, e *Error) *Error {
	u, ok := errors.AsType[*hub.UncertainError](err)
	if !ok {
		return e
	}
	if e.Status == http.StatusServiceUnavailable {
		e.Message = "the broker did not answer"
	}
	e.Message += ": it is not known whether the message is stored"
	e.Hint = "a retry may store it twice"
	if u.Key != "" {
		e.Hint = "retry with idempotency_key " + strconv.Quote(u.Key) + ": then it is stored once"
	}
	return e
}

// AppendResult appends the answer to a publish.
func AppendResult(b []byte, at hub.Position) []byte {
	if at.Offset == 0 {
		return append(b, "{\"result\":{}}\n"...)
	}
	b = append(b, `{"result":{"epoch":"`...)
	b = append(b, at.Epoch...)
	b = append(b, `","offset":`...)
	b = strconv.AppendUint(b, at.Offset, 10)
	return append(b, "}}\n"...)
}

// AppendConflated appends the answer to a publish whose place a newer one took, which
// is at at.
func AppendConflated(b []byte, at hub.Position) []byte {
	if at.Offset == 0 {
		return append(b, "{\"result\":{\"conflated\":true}}\n"...)
	}
	b = append(b, `{"result":{"epoch":"`...)
	b = append(b, at.Epoch...)
	b = append(b, `","offset":`...)
	b = strconv.AppendUint(b, at.Offset, 10)
	return append(b, ",\"conflated\":true}}\n"...)
}

// AppendError appends the JSON of an error answer.
func AppendError(b []byte, e *Error) []byte {
	body, err := json.Marshal(struct {
		Error *Error `json:"error"`
	}{e})
	if err != nil {
		panic("an error cannot be marshalled: " + err.Error())
	}
	return append(append(b, body...), '\n')
}

// Printable returns at most n bytes of s with everything but plain ASCII replaced.
func Printable(s string, n int) string {
	b := []byte(s[:min(len(s), n)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

// ParseCall reads the body of either call: with "channels" it is a broadcast.
func ParseCall(h *hub.Hub, body []byte) (*Call, *Error) {
	in, bad := ParseBody(body)
	if bad == nil && in.HasChannels && !in.HasChannel {
		return ParseBroadcast(body)
	}
	return ParsePublish(h, body)
}
