package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/weir-gateway/weir/sse"
)

// errSilent is why a stream ends that has shown no sign of life for too long.
var errSilent = errors.New("no heartbeat from the server")

// errNoAnswer is the same before the answer to the request.
var errNoAnswer = errors.New("no answer from the server")

// sseLink is a stream over text/event-stream.
type sseLink struct {
	s      *Stream
	body   io.ReadCloser
	events *sse.Reader
	cancel context.CancelCauseFunc
}

// openSSE requests the stream and waits for its head.
func (s *Stream) openSSE(ctx context.Context) (link, error) {
	query := url.Values{"channel": s.opts.Channels}
	if !s.opts.Raw {
		query.Set("envelope", "1")
	}
	s.c.setBackoff(query)
	ctx, cancel := context.WithCancelCause(ctx)
	resp, err := s.request(ctx, cancel, s.c.endpoint("sse", query).String())
	if err != nil {
		cancel(nil)
		return nil, err
	}
	idle := &idleReader{src: resp.Body, ctx: ctx, limit: s.c.cfg.IdleTimeout, cancel: cancel}
	l := &sseLink{s: s, body: resp.Body, events: sse.NewReader(idle), cancel: cancel}
	l.events.Parser.MaxEvent = s.c.cfg.MaxMessage
	// The standard carries the last event id over from one connection to the next.
	l.events.Parser.Reset(s.at.token)
	return l, nil
}

// request sends the request and checks the answer's head.
func (s *Stream) request(ctx context.Context, cancel context.CancelCauseFunc, url string) (*http.Response, error) {
	timer := time.AfterFunc(s.c.cfg.ConnectTimeout, func() { cancel(errNoAnswer) })
	defer timer.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", sse.ContentType)
	if s.at.token != "" {
		req.Header.Set("Last-Event-ID", s.at.token)
	}
	if err := s.c.authorize(ctx, req.Header); err != nil {
		return nil, because(ctx, err)
	}
	resp, err := s.c.http.Do(req)
	if err != nil {
		return nil, because(ctx, err)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode != http.StatusOK:
		err = refusal(resp)
	case kind != sse.ContentType:
		err = fmt.Errorf("the answer is %q and not %s: is this a Weir server?", kind, sse.ContentType)
	case timer.Stop():
		return resp, nil
	default:
		err = errNoAnswer
	}
	_ = resp.Body.Close()
	return nil, err
}

// because returns why ctx was cancelled, where that is what err comes from.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (l *sseLink) next(context.Context) (Event, error) {
	for {
		block, err := l.events.Next()
		// A reconnection time counts at once, even if its block was cut off.
		if ms, ok := l.events.Parser.Retry(); ok {
			l.s.retry, l.s.hasRtr = time.Duration(min(int64(ms), maxRequested.Milliseconds()))*time.Millisecond, true
		}
		if err != nil {
			return nil, err
		}
		ev, err := l.event(block)
		if err != nil {
			return nil, err
		}
		// Only now: an event that could not be read is requested again.
		moved := l.s.at.token != string(block.ID)
		l.s.at.set(string(block.ID))
		if ev != nil || moved {
			return ev, nil
		}
	}
}

// event makes an event of a block, or none of one that only moves the cursor or
// is of a kind that did not exist when this was written.
func (l *sseLink) event(block sse.Event) (Event, error) {
	if !block.HasData {
		return nil, nil
	}
	kind := string(block.Type)
	switch kind {
	case "", "message":
		if l.s.opts.Raw {
			return l.raw(block), nil
		}
	case "gap", "end":
	default:
		return nil, nil
	}
	e, err := parseEnvelope(block.Data)
	switch {
	case err != nil:
		return nil, err
	case kind == "gap":
		return e.gap(), nil
	case kind == "end":
		return nil, &Error{Code: e.Code, Message: e.Reason}
	}
	return e.message()
}

func (l *sseLink) raw(block sse.Event) *Message {
	m := &Message{Channel: l.s.opts.Channels[0], Data: bytes.Clone(block.Data)}
	if block.HasID {
		m.Position = parsePosition(string(block.ID))
	}
	return m
}

func (l *sseLink) close() {
	l.cancel(nil)
	_ = l.body.Close()
}

// idleReader ends a request whose body is silent for too long. Time in which
// the caller does not read does not count: there the server waits for us.
type idleReader struct {
	src    io.Reader
	ctx    context.Context // of the request, which lives as long as its body
	limit  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (r *idleReader) Read(b []byte) (int, error) {
	if r.timer == nil {
		r.timer = time.AfterFunc(r.limit, func() { r.cancel(errSilent) })
	} else {
		r.timer.Reset(r.limit)
	}
	n, err := r.src.Read(b)
	r.timer.Stop()
	if err != nil && err != io.EOF { //nolint:errorlint // a Reader returns io.EOF itself
		err = because(r.ctx, err)
	}
	return n, err
}
