package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// A Publication is one message on its way to the publish API.
type Publication struct {
	Channel string          `json:"channel"`
	Data    json.RawMessage `json:"data"`
	Key     string          `json:"key,omitempty"`
	// IdempotencyKey is the same for every attempt, so that a retry after a lost
	// answer stores nothing twice.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// A PublishFunc hands p to the server once and returns after the answer. It is
// called by several goroutines, for one channel by one at a time. An error is
// retried unless it has a method Final() bool that says true.
type PublishFunc func(ctx context.Context, p Publication) error

// A PublishError is an answer other than 200.
type PublishError struct {
	Status int
	// Message and Hint are what the server said, if it said anything.
	Message, Hint string
	// RetryAfter is how long the server requests to wait; 0 means it did not say.
	RetryAfter time.Duration
}

// Error reports what the server answered.
func (e *PublishError) Error() string {
	s := fmt.Sprintf("the server answered %d %s", e.Status, http.StatusText(e.Status))
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Final reports whether trying again cannot help.
func (e *PublishError) Final() bool {
	return e.Status >= 400 && e.Status < 500 && e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout
}

// isFinal reports what err says; an error that cannot say is worth another try.
func isFinal(err error) bool {
	var answer interface{ Final() bool }
	return errors.As(err, &answer) && answer.Final()
}

// post returns a PublishFunc over net/http.
func post(client *http.Client, baseURL, apiKey string) PublishFunc {
	return func(ctx context.Context, p Publication) error {
		body, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("encode publication: %w", err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, baseURL+"/api/publish", bytes.NewReader(body))
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		req.Header.Set("Content-Type", "application/json")
		if apiKey != "" {
			req.Header.Set("X-API-Key", apiKey)
		}
		res, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("publish to %s: %w", p.Channel, answerOf(res))
		}
		// Read to the end, or the connection is not used again.
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return fmt.Errorf("publish: read answer: %w", err)
		}
		return nil
	}
}

// maxAnswer bounds what is read of an answer that is an error.
const maxAnswer = 8 << 10

func answerOf(res *http.Response) *PublishError {
	e := &PublishError{Status: res.StatusCode}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	var body struct {
		Error struct{ Message, Hint string }
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && json.Unmarshal(b, &body) == nil {
		e.Message, e.Hint = body.Error.Message, body.Error.Hint
	}
	return e
}

// A backoff spaces retries: it doubles from 50ms to 1s. The zero backoff is
// ready for use.
type backoff struct{ last time.Duration }

const (
	firstWait = 50 * time.Millisecond
	maxWait   = time.Second
	// maxRequested bounds what the server may request with Retry-After or retry.
	maxRequested = 2 * time.Second
)

// wait sleeps before the next try, at least as long as the server asked, and
// reports whether ctx still allows one.
func (b *backoff) wait(ctx context.Context, requested time.Duration) bool {
	b.last = min(max(firstWait, 2*b.last), maxWait)
	t := time.NewTimer(max(b.last, min(requested, maxRequested)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
