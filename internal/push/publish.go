package push

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
)

// An APIError is an answer to an API call that is not a success.
type APIError struct {
	Status  int    `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Error returns the message.
func (e *APIError) Error() string { return e.Message }

// MaxBroadcast bounds the channels of one broadcast.
const MaxBroadcast = 1000

// MaxBody bounds the body of an API call: the largest payload with room for the
// rest of the call.
const MaxBody = 1<<20 + 64<<10

// A Call is one parsed API call.
type Call struct {
	Channels  []string
	broadcast bool
	pub       hub.Publication
}

// ParsePublish reads the body of /api/publish. The result shares nothing with body.
func (p *Push) ParsePublish(body []byte) (*Call, *APIError) {
	in, bad := parseBody(body)
	switch {
	case bad != nil:
		return nil, bad
	case in.HasChannels:
		return nil, &APIError{http.StatusBadRequest, `"channels" is for /api/broadcast`, `send "channel", or post to /api/broadcast`}
	case !in.HasChannel:
		return nil, &APIError{http.StatusBadRequest, `"channel" is missing`, `send {"channel":"news","data":{"hello":"world"}}`}
	}
	return p.call(in, []string{in.Channel}, false)
}

// ParseBroadcast reads the body of /api/broadcast.
func (p *Push) ParseBroadcast(body []byte) (*Call, *APIError) {
	in, bad := parseBody(body)
	switch {
	case bad != nil:
		return nil, bad
	case in.HasChannel:
		return nil, &APIError{http.StatusBadRequest, `"channel" is for /api/publish`, `send "channels", a list`}
	case len(in.Channels) == 0:
		return nil, &APIError{http.StatusBadRequest, `"channels" is missing or empty`, `send {"channels":["a","b"],"data":{"hello":"world"}}`}
	case len(in.Channels) > MaxBroadcast:
		return nil, &APIError{http.StatusBadRequest, fmt.Sprintf("more than %d channels in one broadcast", MaxBroadcast), "split it"}
	}
	return p.call(in, in.Channels, true)
}

const maxIdempotencyKey = 128

func (p *Push) call(in *publishBody, channels []string, broadcast bool) (*Call, *APIError) {
	if len(in.IdempotencyKey) > maxIdempotencyKey || len(in.Key) > hub.MaxChannelName {
		return nil, &APIError{http.StatusBadRequest, fmt.Sprintf("idempotency_key may have %d bytes, key %d", maxIdempotencyKey, hub.MaxChannelName), ""}
	}
	if strings.ContainsFunc(in.IdempotencyKey, unicode.IsControl) {
		return nil, &APIError{http.StatusBadRequest, "idempotency_key has a control character", ""}
	}
	for _, ch := range channels {
		if err := hub.CheckChannel(ch); err != nil {
			return nil, &APIError{http.StatusBadRequest, err.Error(), ""}
		}
	}
	if !broadcast {
		if _, err := p.hub.Namespace(channels[0]); err != nil {
			return nil, apiError(err)
		}
	}
	return &Call{Channels: channels, broadcast: broadcast,
		pub: hub.Publication{Key: in.Key, Data: bytes.Clone(in.Data), IdempotencyKey: in.IdempotencyKey}}, nil
}

// apiError says in HTTP what the hub or the broker refused.
func apiError(err error) *APIError {
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(hub.ErrUnknownNamespace):
		return &APIError{http.StatusNotFound, err.Error(), "add it to namespaces in the configuration"}
	case is(hub.ErrBadChannel), is(hub.ErrTooManyChannels):
		return &APIError{http.StatusBadRequest, err.Error(), ""}
	case is(hub.ErrTooLarge):
		return &APIError{http.StatusRequestEntityTooLarge, err.Error(), "raise max_message_bytes of the namespace"}
	case is(hub.ErrStorageFull):
		return &APIError{http.StatusInsufficientStorage, "the broker's storage is full", "free space, or lower history_bytes"}
	case is(hub.ErrOverloaded):
		return &APIError{http.StatusServiceUnavailable, "overloaded, try again later", ""}
	case is(hub.ErrUnavailable), is(hub.ErrClosed):
		return &APIError{http.StatusServiceUnavailable, "the broker is not available, try again later", ""}
	}
	return &APIError{http.StatusInternalServerError, "internal error", ""}
}

// ErrorOf is apiError for callers that subscribe.
func ErrorOf(err error) *APIError { return apiError(err) }

// authorize returns why who may not publish to channel, or nil.
func authorize(who *auth.Identity, channel string) *APIError {
	if who.CanPublish(channel) {
		return nil
	}
	if who == auth.Anonymous {
		return &APIError{http.StatusUnauthorized, "publishing needs a key or a token", "send X-API-Key, or Authorization: Bearer with publish grants"}
	}
	return &APIError{http.StatusForbidden, fmt.Sprintf("publishing to %q is not granted", printable(channel, 80)), ""}
}

// Publish runs call for who and answers once, on c's loop: before it returns
// when the broker answers at once, else later. c may be closed by then. The
// answer's bytes are valid until answer returns.
func (p *Push) Publish(c *eventloop.Conn, call *Call, who *auth.Identity, answer func(status int, body []byte)) {
	if call.broadcast {
		p.broadcast(c, call, who, answer)
		return
	}
	if bad := authorize(who, call.Channels[0]); bad != nil {
		p.counters.publishErrors.Add(1)
		answer(bad.Status, appendErrorBody(nil, bad))
		return
	}
	call.pub.Channel = call.Channels[0]
	x := &publication{push: p, conn: c, channel: call.pub.Channel, answered: func(x *publication) {
		lane := p.Lane(c)
		lane.answer = x.append(lane.answer[:0])
		if x.bad != nil {
			answer(x.bad.Status, lane.answer)
			return
		}
		answer(http.StatusOK, lane.answer)
	}}
	x.publish(call.pub)
}

// publication is one call of the hub under way.
type publication struct {
	push     *Push
	conn     *eventloop.Conn
	channel  string
	answered func(*publication) // called once, on the connection's loop

	state  atomic.Uint32 // who is first: the broker's answer, or Publish's return
	pos    hub.Position
	failed error
	bad    *APIError // what failed means for the client
}

// States of a publication.
const (
	publishing uint32 = iota
	answered
	returned
)

// publish hands pub to the hub.
func (x *publication) publish(pub hub.Publication) {
	x.push.hub.Publish(pub, x.done)
	if !x.state.CompareAndSwap(publishing, returned) {
		x.tell()
	}
}

// done is what the broker calls, from any goroutine.
func (x *publication) done(at hub.Position, err error) {
	x.pos, x.failed = at, err
	if !x.state.CompareAndSwap(publishing, answered) {
		x.conn.Loop().Post(x.tell)
	}
}

// tell counts the outcome and passes it on.
func (x *publication) tell() {
	p := x.push
	if x.failed == nil {
		p.counters.published.Add(1)
		x.answered(x)
		return
	}
	if x.bad = apiError(x.failed); x.bad.Status == http.StatusInternalServerError {
		p.log.Warn("publish", "channel", x.channel, "err", x.failed)
	}
	x.refused(x.bad)
}

// refused is tell for a publication that was not let through.
func (x *publication) refused(bad *APIError) {
	x.bad = bad
	x.push.counters.publishErrors.Add(1)
	x.answered(x)
}

// append appends the JSON of the outcome.
func (x *publication) append(b []byte) []byte {
	if x.bad != nil {
		return appendErrorBody(b, x.bad)
	}
	return appendResult(b, x.pos)
}

// broadcast publishes to the channels in order and answers when all have answered.
func (p *Push) broadcast(c *eventloop.Conn, call *Call, who *auth.Identity, answer func(int, []byte)) {
	all := make([]publication, len(call.Channels))
	left := len(all)
	one := func(*publication) {
		if left--; left > 0 {
			return
		}
		lane := p.Lane(c)
		b := append(lane.answer[:0], `{"result":{"responses":[`...)
		for i := range all {
			if i > 0 {
				b = append(b, ',')
			}
			b = bytes.TrimSuffix(all[i].append(b), []byte("\n"))
		}
		b = append(b, "]}}\n"...)
		if lane.answer = b; cap(b) > 64<<10 {
			lane.answer = nil
		}
		answer(http.StatusOK, b)
	}
	for i, ch := range call.Channels {
		x := &all[i]
		x.push, x.conn, x.channel, x.answered = p, c, ch, one
		if bad := authorize(who, ch); bad != nil {
			x.refused(bad)
			continue
		}
		pub := call.pub
		pub.Channel = ch
		if pub.IdempotencyKey != "" {
			// Each channel has a copy of its own. Neither part can hold the
			// separator, and no single publication's key can begin with it.
			pub.IdempotencyKey = "\x00" + ch + "\x00" + pub.IdempotencyKey
		}
		x.publish(pub)
	}
}

func appendResult(b []byte, at hub.Position) []byte {
	if at.Offset == 0 {
		return append(b, "{\"result\":{}}\n"...)
	}
	b = append(b, `{"result":{"epoch":"`...)
	b = append(b, at.Epoch...)
	b = append(b, `","offset":`...)
	b = strconv.AppendUint(b, at.Offset, 10)
	return append(b, "}}\n"...)
}

func appendErrorBody(b []byte, e *APIError) []byte {
	body, err := json.Marshal(struct {
		Error *APIError `json:"error"`
	}{e})
	if err != nil {
		panic("an error cannot be marshalled: " + err.Error())
	}
	return append(append(b, body...), '\n')
}

// AppendError appends the JSON of an error answer.
func AppendError(b []byte, e *APIError) []byte { return appendErrorBody(b, e) }
