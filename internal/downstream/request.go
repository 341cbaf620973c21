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
// bytes are gone when its answer has to wait for something.
type request struct {
	h        *conn
	c        *eventloop.Conn
	endpoint endpoint

	method, path string
	keepAlive    bool
	paid         int64 // bytes of the body that were given time for

	// Set by capture.
	head   *http1.Request // valid only until serve returns
	origin []byte
	access auth.Access
	body   []byte
}

func (h *conn) newRequest(c *eventloop.Conn, req *http1.Request) *request {
	return &request{h: h, c: c, method: methodName(req.Method), path: string(req.Path), keepAlive: req.KeepAlive}
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

// capture keeps of the head what an answer needs.
func (r *request) capture(req *http1.Request) {
	r.head = req
	if o := req.Get("Origin"); o != nil {
		r.origin = bytes.Clone(o)
	}
	r.access = r.h.lane.srv.auth.OriginAccess(r.origin, req.Host, false)
}

func (r *request) serve() {
	r.endpoint.serve(r)
	r.head = nil
}

// fields returns the header lines that CORS asks for.
func (r *request) fields() []byte {
	if len(r.origin) == 0 || r.access == auth.OriginRefused || !http1.ValidValue(r.origin) {
		return nil
	}
	b := append([]byte("Access-Control-Allow-Origin: "), r.origin...)
	b = append(b, "\r\nVary: Origin\r\n"...)
	if r.access == auth.OriginTrusted {
		b = append(b, "Access-Control-Allow-Credentials: true\r\n"...)
	}
	return b
}

// answer writes a complete answer and makes the connection ready for the next
// request. extra are complete header lines.
func (r *request) answer(status int, contentType string, body []byte, extra string) {
	lane := r.h.lane
	b := http1.AppendStatusLine(lane.buf[:0], status)
	if contentType != "" {
		b = http1.AppendField(b, "Content-Type", contentType)
	}
	if status != http.StatusNoContent {
		b = http1.AppendIntField(b, "Content-Length", int64(len(body)))
	}
	b = append(b, extra...)
	b = append(b, r.fields()...)
	if !r.keepAlive {
		b = append(b, "Connection: close\r\n"...)
	}
	b = http1.AppendEnd(b)
	if r.method != "HEAD" && len(body) < 16<<10 {
		b = append(b, body...)
		body = nil
	}
	lane.buf = b
	r.c.Write(b)
	if r.method != "HEAD" && len(body) > 0 {
		r.c.Write(body)
	}
	r.h.next(r.c, r.keepAlive)
}

// fail answers with an error.
func (r *request) fail(e *push.APIError) {
	srv := r.h.lane.srv
	if e.Status == http.StatusRequestEntityTooLarge || e.Status == http.StatusLengthRequired || e.Status == http.StatusRequestTimeout {
		r.keepAlive = false // what follows in the input may be the rest of this request
	}
	srv.counters.refused.Add(1)
	extra := ""
	switch e.Status {
	case http.StatusUnauthorized:
		extra = "WWW-Authenticate: Bearer\r\n"
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		extra = "Retry-After: 2\r\n"
	case http.StatusUpgradeRequired:
		extra = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
	}
	r.answer(e.Status, "application/json", push.AppendError(nil, e), extra)
}

func (r *request) notFound() {
	r.fail(&push.APIError{Status: http.StatusNotFound, Message: "no such path",
		Hint: "there are /sse, /ws, /api/publish, /api/broadcast, /healthz and /readyz"})
}

func (r *request) methodNotAllowed(allow string) {
	r.h.lane.srv.counters.refused.Add(1)
	body := push.AppendError(nil, &push.APIError{Status: http.StatusMethodNotAllowed, Message: "method not allowed", Hint: "use " + allow})
	r.answer(http.StatusMethodNotAllowed, "application/json", body, "Allow: "+allow+"\r\n")
}

// preflight answers CORS from the edge. Native EventSource sends none; clients
// built on fetch do, because they set headers.
func (r *request) preflight() {
	if r.access == auth.OriginRefused {
		r.originRefused()
		return
	}
	r.answer(http.StatusNoContent, "", nil, "Access-Control-Allow-Methods: GET, POST\r\n"+
		"Access-Control-Allow-Headers: authorization, cache-control, content-type, last-event-id, x-api-key\r\n"+
		"Access-Control-Max-Age: 7200\r\n")
}

func (r *request) originRefused() {
	r.fail(&push.APIError{Status: http.StatusForbidden, Message: "this origin is not allowed", Hint: "list it in auth.allowed_origins"})
}

func (r *request) healthz() { r.answer(http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"), "") }

func (r *request) readyz() {
	if err := r.h.lane.srv.ready(); err != nil {
		r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "not ready: " + err.Error()})
		return
	}
	r.answer(http.StatusOK, "text/plain; charset=utf-8", []byte("ready\n"), "")
}

func (s *Server) ready() error { return s.push.Ready() }

// identify finds who makes the request and goes on with then, at once or when a
// token has been verified off the loop.
func (r *request) identify(then func(*auth.Identity)) {
	srv := r.h.lane.srv
	if key := r.head.Get("X-API-Key"); key != nil {
		id, ok := srv.auth.APIKey(key)
		if !ok {
			r.fail(&push.APIError{Status: http.StatusUnauthorized, Message: "unknown API key"})
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
		r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "too many tokens to verify, try again later"})
		return
	}
	r.h.wait(r.c)
	srv.verifying.Go(func() {
		id, err := srv.auth.Verify(srv.ctx, token, time.Now())
		srv.inFlight.Add(-1)
		r.c.Loop().Post(func() {
			switch {
			case r.c.Closing():
			case err != nil:
				srv.log.Debug("token refused", "conn", r.c.ID(), "peer", r.c.Peer(), "err", err)
				r.fail(tokenError(err))
			default:
				then(id)
			}
		})
	})
}

func tokenError(err error) *push.APIError {
	switch {
	case errors.Is(err, auth.ErrKeysUnavailable), errors.Is(err, context.Canceled):
		return &push.APIError{Status: http.StatusServiceUnavailable, Message: "the keys to verify tokens are not available, try again later"}
	case errors.Is(err, auth.ErrExpired):
		return &push.APIError{Status: http.StatusUnauthorized, Message: "token expired"}
	}
	return &push.APIError{Status: http.StatusUnauthorized, Message: "token refused"}
}

// quoted returns s as it may stand in a message.
func quoted(s string) string { return strconv.Quote(s[:min(len(s), 80)]) }
