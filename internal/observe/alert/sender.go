package alert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/redact"
)

const (
	// queueSize bounds the events that wait for a webhook. Beyond, the new one is dropped.
	queueSize  = 256
	firstPause = time.Second // doubled each time
	lastPause  = time.Minute // and no more than that
	// mostPause bounds what a webhook may request with Retry-After.
	mostPause = 5 * time.Minute
)

// A sender posts events to one webhook, in order.
type sender struct {
	Webhook
	key            []byte
	node, runbooks string
	log            *slog.Logger
	client         *http.Client
	queue          chan *event

	sent, retried, failed, dropped atomic.Uint64
}

// offer queues e if the webhook is for its level. It does not block.
func (s *sender) offer(e *event) {
	if !slices.Contains(s.Levels, e.rule.Level) {
		return
	}
	select {
	case s.queue <- e:
	default:
		s.dropped.Add(1)
		s.log.Warn("an alert is dropped: too many wait for the webhook", "webhook", s.Name, "alert", e.rule.Name, "status", e.status(), "bound", queueSize)
	}
}

// run posts until ctx is done. What waits then is lost.
func (s *sender) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-s.queue:
			s.deliver(ctx, e)
		}
	}
}

// deliver posts e until the webhook takes or rejects it, or its time is over.
func (s *sender) deliver(ctx context.Context, e *event) {
	b, err := e.encode(&s.Webhook, s.node, s.runbooks)
	end := time.Now().Add(time.Duration(s.GiveUp))
	for wait := firstPause; err == nil; wait = min(2*wait, lastPause) {
		var again time.Duration // what the webhook requests
		var lasting bool
		if again, lasting, err = s.post(ctx, e, b); err == nil {
			s.sent.Add(1)
			return
		}
		pause := max(wait/2+rand.N(wait/2), again)
		if ctx.Err() != nil {
			return
		}
		if lasting || time.Now().Add(pause).After(end) {
			break
		}
		s.retried.Add(1)
		s.log.Debug("an alert is posted again", "webhook", s.Name, "alert", e.rule.Name, "pause", pause, "err", err)
		select {
		case <-time.After(pause):
			err = nil
		case <-ctx.Done():
			return
		}
	}
	s.failed.Add(1)
	s.log.Warn("an alert is not delivered", "webhook", s.Name, "url", redact.Endpoint(s.URL), "alert", e.rule.Name, "status", e.status(), "err", err)
}

// post sends a body once. With lasting, the answer would be the same again.
func (s *sender) post(ctx context.Context, e *event, b []byte) (again time.Duration, lasting bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.Timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(b))
	if err != nil {
		return 0, true, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "weir")
	req.Header.Set("Idempotency-Key", e.id(s.node)+"-"+e.status())
	if s.Authorization != "" {
		req.Header.Set("Authorization", string(s.Authorization))
	}
	if len(s.key) > 0 {
		req.Header.Set("Weir-Signature", sign(s.key, b, time.Now()))
	}
	res, err := s.client.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		return 0, false, u.Err // without the URL, whose path may be a secret
	}
	if err != nil {
		return 0, false, err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
	if res.StatusCode/100 == 2 {
		return 0, false, nil
	}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
		again = min(time.Duration(n)*time.Second, mostPause)
	}
	later := res.StatusCode/100 == 5 || res.StatusCode == http.StatusRequestTimeout || res.StatusCode == http.StatusTooEarly || res.StatusCode == http.StatusTooManyRequests
	return again, !later, fmt.Errorf("the webhook answered %d", res.StatusCode)
}
