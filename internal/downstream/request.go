package downstream

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/push"
)

// endpoint is what a path leads to.
type endpoint struct {
	methods string // "GET, HEAD"
	maxBody int    // 0: the body is not wanted
	serve   func(*request)
}

// request is one request as far as it is needed beyond the parse: the head's
// bytes are gone when its body or its answer has to be waited for.
type request struct {
	h        *conn
	c        *eventloop.Conn
	endpoint endpoint

	method, path string
	origin       []byte
	access       auth.Access
	minor        uint8
	keepAlive    bool
	unread       bool // some of its body was not read: nothing can follow its answer
	allow        string
	expect       bool // the client waits for 100 (Continue)
	refused      bool // its token was not accepted
	paid         int64
	identity     *auth.Identity // set by admit

	head *http1.Request // nil once dispatch has returned
	body []byte         // valid until the endpoint's serve returns
}

func (h *conn) newRequest(c *eventloop.Conn, req *http1.Request) *request {
	r := &request{h: h, c: c, method: methodName(req.Method), path: string(req.Path), minor: req.Minor, keepAlive: req.KeepAlive, head: req}
	if o := req.Get("Origin"); o != nil {
		r.origin = bytes.Clone(o)
	}
	r.access = h.lane.srv.auth.OriginAccess(r.origin, req.Host, c.Filtered())
	return r
}

// methodName avoids a copy for the usual ones.
func methodName(b []byte) string {
	switch string(b) {
	case "GET":
		return "GET"
	case "POST":
		return "POST"
	case "HEAD":
		return "HEAD"
	case "OPTIONS":
		return "OPTIONS"
	}
	return string(b)
}

// fields returns the header lines that CORS asks for.
func (r *request) fields() []byte {
	if len(r.origin) == 0 || r.access == auth.OriginRefused || !http1.ValidValue(r.origin) {
		return nil
	}
	b := append([]byte("Access-Control-Allow-Origin: "), r.origin...)
	b = append(b, "\r\nAccess-Control-Expose-Headers: Retry-After\r\nVary: Origin\r\n"...)
	if r.access == auth.OriginTrusted {
		b = append(b, "Access-Control-Allow-Credentials: true\r\n"...)
	}
	return b
}

// answerFields are for answers that depend on who asks and when.
const answerFields = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"

// answer writes a complete answer and makes the connection ready for the next
// request. extra are complete header lines.
func (r *request) answer(status int, contentType string, body []byte, extra string) {
	lane := r.h.lane
	if r.unread || lane.srv.push.Draining() {
		r.keepAlive = false
	}
	b := http1.AppendStatusLine(lane.buf[:0], status)
	b = lane.appendDate(b, r.c.Loop())
	if contentType != "" {
		b = http1.AppendField(b, "Content-Type", contentType)
	}
	if status != http.StatusNoContent {
		b = http1.AppendIntField(b, "Content-Length", int64(len(body)))
	}
	b = append(b, extra...)
	b = append(b, r.fields()...)
	switch {
	case !r.keepAlive:
		b = append(b, "Connection: close\r\n"...)
	case r.minor == 0: // HTTP/1.0 closes unless told otherwise
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	b = http1.AppendEnd(b)
	if r.method == "HEAD" {
		body = nil
	}
	if len(body) < 16<<10 {
		b = append(b, body...)
		body = nil
	}
	lane.buf = b
	r.c.Write(b)
	r.c.Write(body)
	r.h.next(r.c, r.keepAlive)
}

// appendDate appends the Date field (RFC 9110 §6.6.1), written anew once a second.
func (l *lane) appendDate(b []byte, loop *eventloop.Loop) []byte {
	if now := loop.Now() / 1e9; len(l.date) == 0 || now != l.dateAt {
		l.date, l.dateAt = http1.AppendDate(l.date[:0], time.Now()), now
	}
	return append(b, l.date...)
}

// fail answers with an error.
func (r *request) fail(e *push.APIError) {
	switch e.Status {
	case http.StatusRequestEntityTooLarge, http.StatusLengthRequired, http.StatusRequestTimeout:
		r.keepAlive = false // what follows in the input may be the rest of this request
	}
	r.failWith(e.Status, push.AppendError(nil, e))
}

// failWith is fail with the JSON there already.
func (r *request) failWith(status int, body []byte) {
	r.h.lane.srv.counters.refused.Add(1)
	extra := answerFields
	switch status {
	case http.StatusUnauthorized: // RFC 6750 §3: an error code only for a token that was sent
		if r.refused {
			extra += "WWW-Authenticate: Bearer error=\"invalid_token\"\r\n"
		} else {
			extra += "WWW-Authenticate: Bearer\r\n"
		}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		extra += "Retry-After: " + strconv.FormatInt(push.RetryAfter(), 10) + "\r\n"
	case http.StatusUpgradeRequired:
		extra += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
		if r.keepAlive {
			extra += "Connection: Upgrade\r\n" // RFC 9110 §7.8
		}
	case http.StatusMethodNotAllowed:
		extra += "Allow: " + r.allow + "\r\n"
	}
	r.answer(status, "application/json", body, extra)
}

func (r *request) tooLarge() {
	r.fail(&push.APIError{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large",
		Hint: "a call may have " + strconv.Itoa(r.endpoint.maxBody) + " bytes"})
}

func (r *request) notFound() {
	r.fail(&push.APIError{Status: http.StatusNotFound, Message: "no such path",
		Hint: "there are /sse, /ws, /api/publish, /api/broadcast, /healthz and /readyz"})
}

func (r *request) methodNotAllowed(allow string) {
	r.allow = allow
	r.fail(&push.APIError{Status: http.StatusMethodNotAllowed, Message: "method not allowed", Hint: "use " + allow})
}

// preflight answers CORS from the edge. Native EventSource sends none; clients
// built on fetch do, because they set headers.
func (r *request) preflight() {
	if r.access == auth.OriginRefused {
		r.fail(errOrigin)
		return
	}
	r.answer(http.StatusNoContent, "", nil, "Access-Control-Allow-Methods: GET, POST\r\n"+
		"Access-Control-Allow-Headers: authorization, cache-control, content-type, last-event-id, x-api-key\r\n"+
		"Access-Control-Max-Age: 7200\r\n")
}

func (r *request) healthz() {
	r.answer(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"), answerFields)
}

func (r *request) readyz() {
	if err := r.h.lane.srv.ready(); err != nil {
		r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "not ready: " + err.Error()})
		return
	}
	r.answer(http.StatusOK, "text/plain; charset=utf-8", []byte("ready\n"), answerFields)
}

func (s *Server) ready() error { return s.push.Ready() }

// identify finds who makes the request and goes on with then, at once or when a
// token has been verified off the loop.
func (r *request) identify(then func(*auth.Identity)) {
	srv := r.h.lane.srv
	if r.head.Count("X-API-Key") > 1 {
		r.fail(&push.APIError{Status: http.StatusBadRequest, Message: "repeated X-API-Key header"})
		return
	}
	if key := r.head.Get("X-API-Key"); key != nil {
		id, ok := srv.auth.APIKey(key)
		if !ok {
			r.fail(&push.APIError{Status: http.StatusUnauthorized, Message: "unknown API key", Hint: "it must be listed in auth.api_keys"})
			return
		}
		then(id)
		return
	}
	if r.head.Count("Authorization") > 1 || r.head.Count("Cookie") > 1 {
		r.fail(&push.APIError{Status: http.StatusBadRequest, Message: "repeated Authorization or Cookie header"})
		return
	}
	query, _ := http1.QueryValue(r.head.Query, "token")
	token, source := srv.auth.Token(r.head.Get("Authorization"), r.head.Get("Cookie"), query)
	switch {
	case source == auth.NoToken, source == auth.FromCookie && r.access != auth.OriginTrusted:
		then(auth.Anonymous)
		return
	}
	if id, ok := srv.auth.Cached(token); ok {
		then(id)
		return
	}
	r.verify(token, then)
}

// verify checks a token on a goroutine of the server's.
func (r *request) verify(token string, then func(*auth.Identity)) {
	srv := r.h.lane.srv
	if srv.inFlight.Add(1) > int64(srv.cfg.MaxVerifying) {
		srv.inFlight.Add(-1)
		r.overloaded()
		return
	}
	r.h.wait(r.c)
	r.unread = r.unread || r.h.pending == r // its body stays where it is meanwhile
	srv.verifying.Go(func() {
		id, err := srv.auth.Verify(srv.ctx, token, time.Now())
		srv.inFlight.Add(-1)
		r.c.Loop().Post(func() {
			if r.c.Closing() {
				return
			}
			r.h.unwait()
			if err == nil {
				then(id)
				return
			}
			srv.log.Debug("token refused", "conn", r.c.ID(), "peer", r.c.Peer(), "err", err)
			r.h.dropBody()
			e := tokenError(err)
			r.refused = e.Status == http.StatusUnauthorized
			r.fail(e)
		})
	})
}

// overloaded refuses what would be served at another time. A browser's
// EventSource would give up for good after a status other than 200.
func (r *request) overloaded() {
	if r.path == "/sse" {
		r.h.lane.srv.push.SendAwaySSE(r.c, r.fields())
		return
	}
	r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "too many tokens to verify, try again later"})
}

func tokenError(err error) *push.APIError {
	const hint = "get a new token and connect with that"
	switch {
	case errors.Is(err, auth.ErrKeysUnavailable), errors.Is(err, context.Canceled):
		return &push.APIError{Status: http.StatusServiceUnavailable, Message: "the keys to verify tokens are not available, try again later"}
	case errors.Is(err, auth.ErrExpired):
		return &push.APIError{Status: http.StatusUnauthorized, Message: "token expired", Hint: hint}
	}
	return &push.APIError{Status: http.StatusUnauthorized, Message: "token refused", Hint: hint}
}

// quoted returns s as it may stand in a message.
func quoted(s string) string { return strconv.Quote(s[:min(len(s), 80)]) }
