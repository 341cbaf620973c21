package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrClosed is what a Stream's Next returns after Close.
var ErrClosed = errors.New("closed")

// Codes with which a server ends a stream, besides those of RFC 6455.
const (
	CodeTokenExpired     = 4401
	CodeNotAllowed       = 4403
	CodeUnknownNamespace = 4404
	CodeTooSlow          = 4408
)

// Codes of RFC 6455 and the IANA registry that decide how a stream continues.
const (
	codePolicy   = 1008
	codeTryLater = 1013
)

// An Error is what the server said: the answer to a request, or the reason for
// which it ended a stream. Find it with errors.AsType[*Error].
type Error struct {
	// Status is the HTTP status of the answer; 0 for the end of a stream.
	Status int
	// Code is the error's code in the answer's body, which is the status unless
	// the server says more, or the close code of a stream.
	Code    int
	Message string
	// Hint reports what to do about it; may be empty.
	Hint string
	// RetryAfter is how long the server requests to wait; 0 means it did not say.
	RetryAfter time.Duration
}

// Error returns the error in words.
func (e *Error) Error() string {
	s := "the server ended the stream"
	code := e.Code
	if e.Status != 0 {
		s, code = "the server answered", e.Status
	}
	s = fmt.Sprintf("%s: %d", s, code)
	if e.Message != "" {
		s += " " + e.Message
	}
	return s
}

// Final reports whether trying again is of no use: the request itself is
// refused, not its time.
func (e *Error) Final() bool {
	switch e.Status {
	case 0:
		return e.Code == CodeNotAllowed || e.Code == CodeUnknownNamespace || e.Code == codePolicy
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	case http.StatusNoContent: // the stream's off switch (WHATWG HTML §9.2.3)
		return true
	}
	return e.Status >= 400 && e.Status < 500
}

// expired reports whether err says that the token has expired: at the end of a stream, or
// in the answer to a request.
func expired(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Code == CodeTokenExpired || e.Status == http.StatusUnauthorized && e.Message == tokenExpired)
}

// tokenExpired is the message of a 401 for a token that was good once.
const tokenExpired = "token expired"

// final reports whether err makes any further attempt useless.
func final(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Final()
}

// retryAfter returns what the server requested, if err says so.
func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// maxErrorBody bounds what is read of an answer that is an error.
const maxErrorBody = 64 << 10

type errorBody struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// refusal makes an Error of an answer. It reads the body and leaves closing it
// to the caller.
func refusal(resp *http.Response) *Error {
	e := &Error{Status: resp.StatusCode, Code: resp.StatusCode, RetryAfter: parseRetryAfter(resp.Header.Get("Retry-After"), time.Now())}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var answer struct {
		Error errorBody `json:"error"`
	}
	if json.Unmarshal(body, &answer) == nil && answer.Error.Message != "" {
		e.Message, e.Hint = answer.Error.Message, answer.Error.Hint
		e.Code = cmp.Or(answer.Error.Code, e.Status)
		return e
	}
	// An intermediary has answered: keep the start of its answer.
	e.Message = strings.ToValidUTF8(strings.TrimSpace(string(body[:min(len(body), 200)])), "")
	e.Message = cmp.Or(e.Message, http.StatusText(e.Status))
	return e
}

// parseRetryAfter reads seconds or an HTTP date (RFC 9110 §10.2.3).
func parseRetryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(t.Sub(now), 0)
	}
	return 0
}
