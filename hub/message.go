package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	engine "github.com/weir-gateway/weir/internal/push/hub"
)

// Errors, for errors.Is.
var (
	ErrClosed           = engine.ErrClosed
	ErrUnavailable      = engine.ErrUnavailable      // the broker cannot be reached: retry later
	ErrOverloaded       = engine.ErrOverloaded       // a queue is full: retry later
	ErrStorageFull      = engine.ErrStorageFull      // the broker's storage is full
	ErrUnknownNamespace = engine.ErrUnknownNamespace // the channel's namespace is not configured
	ErrBadChannel       = engine.ErrBadChannel       // a channel name is empty, too long or has control characters
	ErrBadMessage       = engine.ErrBadAttributes    // an ID, event, tag or retry time is invalid
	ErrTooLarge         = engine.ErrTooLarge         // Data is longer than the namespace's MaxMessageBytes
	ErrBadPosition      = engine.ErrBadPosition      // a Position was not returned by this package
	ErrKeyReused        = engine.ErrKeyReused        // an idempotency key was used for another message
	// ErrUncertain means that the message may have been stored or not: publish it again with the
	// same IdempotencyKey.
	ErrUncertain = errors.New("it is not known whether the message was stored")
)

// A Position is a place in the log of one or more namespaces, as an opaque token that may be stored
// and compared for equality. Empty means none: messages of a namespace without a log have none.
type Position string

// A Message is one message of a channel. Messages may be shared by subscribers: Data and Tags must
// not be changed.
type Message struct {
	Channel string
	Data    []byte
	// ID identifies the message: the publisher's own ID or, without one, its position.
	ID string
	// Event is the publisher's event type; empty means none.
	Event string
	// Key is the conflation key; empty means none.
	Key string
	// Tags are the publisher's name and value pairs; nil means none.
	Tags map[string]string
	// Time is when the message was stored, with millisecond precision.
	Time time.Time
	// Position is the end of what was delivered up to and including this message: a subscription
	// that resumes after it misses and repeats nothing.
	Position Position
}

// message converts m.
func message(m *engine.Message) Message {
	out := Message{Channel: m.Channel, Data: m.Data, ID: m.ID(), Key: m.Key, Time: m.At()}
	if a := m.Attributes; a != nil {
		out.Event, out.Tags = a.Event, a.Tags
	}
	if m.Offset > 0 {
		out.Position = Position(m.Position().String())
	}
	return out
}

// A Publication is a message to be published.
type Publication struct {
	// Channel is the full name, 1 to 1,024 bytes.
	Channel string
	// Data is the payload, to the namespace's MaxMessageBytes. It must not be changed afterwards.
	Data []byte
	// ID is the publisher's own id of the message, to 255 bytes; empty means its position.
	ID string
	// Event is an event type (SSE's "event" field), to 255 bytes.
	Event string
	// Key is the conflation key: with the namespace policy Conflate a slow subscriber receives only
	// the newest message of a key.
	Key string
	// IdempotencyKey makes a retry harmless: within the namespace's IdempotencyWindow a second
	// publication with the same channel and key stores nothing and returns the first one's position.
	IdempotencyKey string
	// Tags are name and value pairs for subscribers, at most 64.
	Tags map[string]string
}

func (p *Publication) engine() engine.Publication {
	out := engine.Publication{Channel: p.Channel, Data: p.Data, Key: p.Key, IdempotencyKey: p.IdempotencyKey, Checked: true}
	if p.ID != "" || p.Event != "" || len(p.Tags) > 0 {
		out.Attributes = &engine.Attributes{ID: p.ID, Event: p.Event, Tags: p.Tags}
	}
	return out
}

// outcome converts the answer to a publication.
func outcome(o engine.Outcome) (Position, error) {
	var uncertain *engine.UncertainError
	switch {
	case errors.As(o.Err, &uncertain):
		return "", fmt.Errorf("%w: %w", ErrUncertain, o.Err)
	case o.Err != nil || o.At.IsZero():
		return "", o.Err
	}
	return Position(o.At.String()), nil
}

// Publish stores p and delivers it to the subscribers of its channel. It returns the position when
// the message is as safe as the namespace's Durability promises. If ctx ends first, the error is
// ErrUncertain and ctx's.
func (h *Hub) Publish(ctx context.Context, p Publication) (Position, error) {
	r := h.PublishAll(ctx, []Publication{p})[0]
	return r.Position, r.Err
}

// A Result is the outcome of one publication.
type Result struct {
	Position Position
	Err      error
}

// PublishAll publishes ps as one batch, in order, and returns a result for each. It is cheaper than
// calls of Publish one after the other, which wait for each message's storage.
func (h *Hub) PublishAll(ctx context.Context, ps []Publication) []Result {
	pubs := make([]engine.Publication, len(ps))
	for i := range ps {
		pubs[i] = ps[i].engine()
	}
	results := make([]Result, len(ps))
	for i, o := range h.engine.PublishAll(ctx, pubs) {
		if results[i].Position, results[i].Err = outcome(o); ctx.Err() != nil && errors.Is(o.Err, ctx.Err()) {
			results[i].Err = fmt.Errorf("%w: %w", ErrUncertain, o.Err)
		}
	}
	return results
}

// HistoryOptions select a part of a channel's retained messages.
type HistoryOptions struct {
	// Since is where to continue reading, exclusive; empty means the beginning, with Reverse the end.
	Since Position
	// Limit is the maximal number of messages, to 10,000; 0 means 10,000.
	Limit int
	// Reverse returns the newest message first.
	Reverse bool
}

// History is a part of a channel's log.
type History struct {
	// Messages in the order requested.
	Messages []Message
	// Top is the end of the namespace's log; empty for a namespace without a log.
	Top Position
	// More is set if there are further messages in the direction requested.
	More bool
	// Lost is set if retention removed requested messages.
	Lost bool
}

// History reads retained messages of channel.
func (h *Hub) History(ctx context.Context, channel string, o HistoryOptions) (History, error) {
	opt := engine.HistoryOptions{Limit: o.Limit, Reverse: o.Reverse}
	if o.Limit == 0 {
		opt.Limit = engine.MaxHistory
	}
	if o.Since != "" {
		var err error
		if opt.Since, err = engine.ParsePosition(string(o.Since)); err != nil {
			return History{}, err
		}
	}
	r, err := h.engine.History(ctx, channel, opt)
	if err != nil {
		return History{}, err
	}
	out := History{Messages: make([]Message, len(r.Messages)), More: r.More, Lost: r.Lost}
	if !r.Top.IsZero() {
		out.Top = Position(r.Top.String())
	}
	for i, m := range r.Messages {
		out.Messages[i] = message(m)
	}
	return out, nil
}

// Remove removes the retained messages of channel. Subscribers stay subscribed.
func (h *Hub) Remove(ctx context.Context, channel string) error { return h.engine.Remove(ctx, channel) }
