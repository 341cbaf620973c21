package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A Transport is how a stream travels.
type Transport string

// The transports. They carry the same events.
const (
	SSE       Transport = "sse"
	WebSocket Transport = "ws"
)

// SubscribeOptions say what to follow. Channels is all that is needed.
type SubscribeOptions struct {
	// Channels to follow, on one stream; at least one.
	Channels []string
	// Since is where to start: after a position that Stream.Position gave, "0"
	// for everything the server still has, empty for what comes from now on.
	Since string
	// Transport is SSE or WebSocket; empty means SSE.
	Transport Transport
	// Raw requests the payload alone, which saves bytes: SSE with one channel
	// only. Messages then have no Time and no Key.
	Raw bool
	// Buffer is how many events may wait for Next; 0 means 64. Beyond it the
	// stream is read no further, and the server sees a slow subscriber.
	Buffer int
}

func (o SubscribeOptions) validate() error {
	if len(o.Channels) == 0 {
		return errors.New("subscribe: no channel")
	}
	for _, ch := range o.Channels {
		if err := hub.CheckChannel(ch); err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
	}
	if o.Since != "" && o.Since != "0" {
		if _, err := hub.ParsePositions(o.Since); err != nil {
			return fmt.Errorf("subscribe: since: %w", err)
		}
	}
	switch o.Transport {
	case "", SSE:
	case WebSocket:
		if o.Raw {
			return errors.New("subscribe: raw is for transport sse")
		}
	default:
		return fmt.Errorf("subscribe: transport %q: want sse or ws", o.Transport)
	}
	if o.Raw && len(o.Channels) > 1 {
		return errors.New("subscribe: raw is for one channel")
	}
	if o.Buffer < 0 {
		return fmt.Errorf("subscribe: buffer %d is under 0", o.Buffer)
	}
	return nil
}

// An Event is what Stream.Next gives: a *Message, a *Gap or a *State.
type Event interface{ event() }

// A Message is one publication on a channel.
type Message struct {
	Channel string
	// Position is its place in the log; zero in a namespace without one.
	Position Position
	// Time is when the server stored it; zero if it did not say.
	Time time.Time
	// Key is the conflation key; usually empty.
	Key string
	// Data is the JSON text as it was published. It is the receiver's to keep.
	Data json.RawMessage
}

// A Position is a place in a namespace's log. The zero Position is none.
type Position struct {
	// Epoch names the log, and changes when the log is lost or starts anew; Offset counts from 1.
	Epoch  string
	Offset uint64
	check  hub.Check
}

// String returns the token, as SubscribeOptions.Since accepts it; empty for the zero Position.
func (p Position) String() string {
	if p.IsZero() {
		return ""
	}
	return p.log().String()
}

// IsZero reports whether p is not a position.
func (p Position) IsZero() bool { return p.log().IsZero() }

func (p Position) log() hub.Position {
	return hub.Position{Epoch: p.Epoch, Offset: p.Offset, Check: p.check}
}

// parsePosition returns the zero Position for what is not a position.
func parsePosition(token string) Position {
	p, err := hub.ParsePosition(token)
	if err != nil {
		return Position{}
	}
	return Position{p.Epoch, p.Offset, p.Check}
}

// A Gap reports that messages may be missing: they were requested and the server
// has them no more.
type Gap struct {
	Namespace string
	// From is where the stream was: a position, or what was requested and not
	// understood.
	From string
	// To is from where on nothing is missing again.
	To Position
	// Reason is "retention", "epoch" or "unknown".
	Reason string
}

// A State is a change of the connection.
type State struct {
	// Connected reports that the stream runs. Otherwise it was lost or could not be
	// made, for the reason in Err, and is tried again after Retry.
	Connected bool
	Err       error
	Retry     time.Duration
}

func (*Message) event() {}
func (*Gap) event()     {}
func (*State) event()   {}

// A Stream follows channels over any number of connections. Next and Position
// belong to one goroutine; any may Close.
type Stream struct {
	// Fixed by Subscribe.
	c      *Client
	opts   SubscribeOptions
	cancel context.CancelCauseFunc
	items  chan item
	reader sync.WaitGroup

	// Owned by the reader's goroutine.
	at      cursor
	back    backoff
	retry   time.Duration // what the server wants, see hasRtr
	hasRtr  bool
	lasting bool // this connection has shown that it works

	// Written by the reader before it closes items, read afterwards.
	err error

	// Owned by the goroutine that calls Next.
	position string
}

// An item is an event and the stream's position after it. Without an event it
// is a checkpoint: the stream has moved past messages of other channels.
type item struct {
	ev Event
	at string
}

const defaultBuffer = 64

// Subscribe starts to follow channels. The stream lives until ctx ends, Close,
// or an answer that no retry can change. It connects in the background: a wrong
// token or channel comes out of the first Next.
func (c *Client) Subscribe(ctx context.Context, o SubscribeOptions) (*Stream, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Transport = cmp.Or(o.Transport, SSE)
	o.Buffer = cmp.Or(o.Buffer, defaultBuffer)
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Stream{
		c: c, opts: o, cancel: cancel,
		items:    make(chan item, o.Buffer),
		at:       newCursor(o.Since),
		back:     backoff{min: c.cfg.MinBackoff, max: c.cfg.MaxBackoff},
		position: o.Since,
	}
	s.reader.Go(func() { s.run(ctx) })
	return s, nil
}

// Next waits for the next event. Its error is final (an *Error of the server,
// ErrClosed, the end of Subscribe's context), except that of ctx itself: then
// nothing is lost and Next may be called again.
func (s *Stream) Next(ctx context.Context) (Event, error) {
	for {
		select {
		case it, ok := <-s.items:
			if !ok {
				return nil, s.err
			}
			s.position = it.at
			if it.ev != nil {
				return it.ev, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Position is the stream's position: everything up to here has come out of
// Next. As SubscribeOptions.Since it continues there, also in another process.
// It is empty as long as the server has not said where the stream began.
func (s *Stream) Position() string { return s.position }

// Close ends the stream and waits for its connection to be gone. Events that
// Next has not given out are dropped; Position is where to continue.
func (s *Stream) Close() {
	s.cancel(ErrClosed)
	s.reader.Wait()
}

// A link is one connection of a stream.
type link interface {
	// next returns the next event, or nil for a checkpoint, having moved the
	// stream's cursor. The error says why the connection ended.
	next(ctx context.Context) (Event, error)
	close()
}

// run connects again and again.
func (s *Stream) run(ctx context.Context) {
	defer close(s.items)
	defer s.cancel(nil)
	for {
		err := s.follow(ctx)
		switch {
		case ctx.Err() != nil:
			s.err = context.Cause(ctx)
			return
		case s.final(err):
			s.err = err
			return
		}
		wait := s.wait(err)
		if s.emit(ctx, &State{Err: err, Retry: wait}) == nil {
			_ = sleep(ctx, wait) // the next turn sees the end of ctx
		}
	}
}

// final reports whether err ends the stream. A token that has expired does only where
// there is no TokenFunc to request another.
func (s *Stream) final(err error) bool {
	if expired(err) {
		return s.c.cfg.TokenFunc == nil
	}
	return final(err)
}

// follow makes one connection and reads it to its end.
func (s *Stream) follow(ctx context.Context) error {
	s.lasting = false
	open := s.openSSE
	if s.opts.Transport == WebSocket {
		open = s.openWS
	}
	began := time.Now()
	l, err := open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	if err := s.emit(ctx, &State{Connected: true}); err != nil {
		return err
	}
	for {
		ev, err := l.next(ctx)
		if err != nil {
			s.lasting = s.lasting || time.Since(began) > s.c.cfg.MaxBackoff
			return err
		}
		if _, ok := ev.(*Message); ok {
			s.lasting = true
		}
		if err := s.emit(ctx, ev); err != nil {
			return err
		}
	}
}

// wait returns how long to stay away after a connection ended with err. Only a
// connection that was of use starts the backoff anew: a server that accepts and
// closes at once is not to be asked ever faster.
func (s *Stream) wait(err error) time.Duration {
	if s.lasting {
		s.back.failed = 0
	}
	if expired(err) {
		return s.back.next(0, false) // the server's wait is for clients without another token
	}
	e, _ := errors.AsType[*Error](err)
	if e != nil && e.Code == codeTryLater {
		s.back.failed = max(s.back.failed, 3)
	}
	if e != nil && e.RetryAfter > 0 {
		return s.back.next(e.RetryAfter, true)
	}
	return s.back.next(s.retry, s.hasRtr)
}

// emit hands an event to Next, or waits until there is room for it.
func (s *Stream) emit(ctx context.Context, ev Event) error {
	select {
	case s.items <- item{ev, s.at.token}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
