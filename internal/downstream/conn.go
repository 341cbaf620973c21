package downstream

import (
	"errors"
	"net/http"
	"strings"

	"github.com/weir-gateway/weir/internal/eventloop"
	"github.com/weir-gateway/weir/internal/http1"
	"github.com/weir-gateway/weir/internal/push"
)

// conn is a connection while it speaks HTTP/1.1: one request after the other,
// each read, answered, and only then the next. It is dropped when a wing takes
// the connection over.
type conn struct {
	lane  *lane
	state state
	// seen is how much of an incomplete head was looked at already.
	seen int
	// The request whose body is being read.
	pending *request
	body    []byte
	left    int64 // bytes of a body with a length still to come
	chunked http1.Chunked
	ended   bool // the peer sends no more: close after the answer
}

type state uint8

const (
	readingHead state = iota
	readingBody
	answering // a verification or a broker is waited for
)

var _ eventloop.Handler = (*conn)(nil)

// Data implements eventloop.Handler.
func (h *conn) Data(c *eventloop.Conn, b []byte) int {
	switch h.state {
	case readingHead:
		return h.readHead(c, b)
	case readingBody:
		return h.readBody(c, b)
	}
	c.PauseReading() // pipelined: it waits its turn
	return 0
}

func (h *conn) readHead(c *eventloop.Conn, b []byte) int {
	srv := h.lane.srv
	if h.seen > 0 && h.seen <= len(b) && http1.HeadPending(b, h.seen, srv.limits) {
		h.seen = len(b)
		return 0
	}
	n, err := http1.ParseRequest(&h.lane.req, b, srv.limits)
	if err != nil {
		h.bad(c, err)
		return len(b)
	}
	if n == 0 {
		if h.seen == 0 {
			c.SetTimer(srv.bounds.head)
		}
		h.seen = len(b)
		return 0
	}
	h.seen = 0
	srv.counters.requests.Add(1)
	return n + h.dispatch(c, &h.lane.req, b[n:])
}

// bad answers a request that is no HTTP and closes: where the next one would
// begin is not known.
func (h *conn) bad(c *eventloop.Conn, err error) {
	srv := h.lane.srv
	srv.counters.bad.Add(1)
	status, reason := http.StatusBadRequest, "bad request"
	if e, ok := errors.AsType[*http1.Error](err); ok {
		status, reason = e.Status, e.Reason
	}
	srv.log.Debug("bad request", "conn", c.ID(), "peer", c.Peer(), "status", status, "err", reason)
	r := &request{h: h, c: c, method: "GET"}
	r.fail(&push.APIError{Status: status, Message: reason})
}

// dispatch finds the endpoint, reads what body is there already, and serves. It
// returns how much of rest it used.
func (h *conn) dispatch(c *eventloop.Conn, req *http1.Request, rest []byte) int {
	r := h.newRequest(c, req)
	ep, known := h.lane.srv.routes[r.path]
	hasBody := req.Chunked || req.ContentLength > 0
	switch {
	case r.method == "OPTIONS" && known && len(req.Get("Access-Control-Request-Method")) > 0:
		ep = endpoint{serve: (*request).preflight, methods: "OPTIONS"}
	case !known:
		ep = endpoint{serve: (*request).notFound}
	case !allowed(ep.methods, r.method):
		allow := ep.methods
		ep = endpoint{serve: func(r *request) { r.methodNotAllowed(allow) }}
	}
	r.endpoint = ep
	if hasBody && ep.maxBody == 0 || req.ContentLength > int64(ep.maxBody) {
		// A body nobody wants is not read: the answer says so and the connection ends.
		r.keepAlive = false
		if ep.maxBody > 0 {
			r.fail(&push.APIError{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large"})
			return len(rest)
		}
	}
	if ep.maxBody == 0 {
		r.capture(req)
		r.serve()
		return h.after(r, hasBody, rest)
	}
	return h.beginBody(c, r, req, rest)
}

// after returns what of rest was used when the request did not want its body.
func (h *conn) after(_ *request, hasBody bool, rest []byte) int {
	if hasBody {
		return len(rest)
	}
	return 0
}

func allowed(methods, method string) bool {
	for m := range strings.SplitSeq(methods, ", ") {
		if m == method {
			return true
		}
	}
	return false
}

// beginBody serves at once when the whole body is there, and otherwise begins
// to collect it.
func (h *conn) beginBody(c *eventloop.Conn, r *request, req *http1.Request, rest []byte) int {
	n := req.ContentLength
	if !req.Chunked && n >= 0 && int64(len(rest)) >= n {
		r.capture(req)
		r.body = rest[:n]
		r.serve()
		r.body = nil
		return int(n)
	}
	if !req.Chunked && n < 0 {
		r.fail(&push.APIError{Status: http.StatusLengthRequired, Message: "a body is wanted", Hint: "send Content-Length, or chunks"})
		return 0
	}
	r.capture(req)
	if req.Expect100 && len(rest) == 0 {
		c.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	}
	h.state, h.pending, h.left, h.chunked = readingBody, r, n, http1.Chunked{}
	h.body = nil
	c.SetTimer(h.lane.srv.bounds.body)
	return h.readBody(c, rest)
}

// readBody collects the body; all of it is bounded by the endpoint's limit.
func (h *conn) readBody(c *eventloop.Conn, b []byte) int {
	used := 0
	done := false
	for !done && used < len(b) {
		var data []byte
		if h.left >= 0 {
			data = b[used:min(len(b), used+int(min(h.left, 1<<30)))]
			h.left -= int64(len(data))
			used += len(data)
			done = h.left == 0
		} else {
			part, n, end, err := h.chunked.Decode(b[used:])
			if err != nil {
				h.state, h.pending, h.body = readingHead, nil, nil
				h.bad(c, err)
				return len(b)
			}
			if n == 0 && !end {
				break
			}
			data, done = part, end
			used += n
		}
		if len(h.body)+len(data) > h.pending.endpoint.maxBody {
			r := h.pending
			h.state, h.pending, h.body = readingHead, nil, nil
			r.keepAlive = false
			r.fail(&push.APIError{Status: http.StatusRequestEntityTooLarge, Message: "the body is too large"})
			return len(b)
		}
		h.body = append(h.body, data...)
	}
	if done {
		r := h.pending
		r.body, h.body, h.pending, h.state = h.body, nil, nil, readingHead
		r.serve()
		r.body = nil
	}
	return used
}

// wait makes the connection wait for an answer that comes from elsewhere.
func (h *conn) wait(c *eventloop.Conn) {
	h.state = answering
	c.SetTimer(0)
}

// next makes the connection ready for its next request, after an answer.
func (h *conn) next(c *eventloop.Conn, keepAlive bool) {
	if !keepAlive || h.ended {
		c.CloseAfterFlush()
		return
	}
	waited := h.state == answering
	h.state = readingHead
	c.SetTimer(h.lane.srv.bounds.idle)
	if waited {
		c.ResumeReading()
		c.Again()
	}
}

// EndOfStream implements eventloop.Handler: a client may stop sending and still
// read its answer.
func (h *conn) EndOfStream(*eventloop.Conn) bool {
	h.ended = true
	return h.state == answering
}

// Drained implements eventloop.Handler.
func (h *conn) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler: the client is too slow, or idle.
func (h *conn) Timer(c *eventloop.Conn, _ int64) {
	srv := h.lane.srv
	switch {
	case h.state == readingHead && h.seen == 0:
		c.Close(nil) // idle between requests: nothing was promised
	case h.state == readingBody && !h.bodyLate(c):
	default:
		srv.counters.timeouts.Add(1)
		r := &request{h: h, c: c, method: "GET"}
		r.fail(&push.APIError{Status: http.StatusRequestTimeout, Message: "the request took too long"})
	}
}

// bodyLate reports whether a body is slower than a KiB per second; if not, it
// gets the time that what came has earned.
func (h *conn) bodyLate(c *eventloop.Conn) bool {
	r := h.pending
	got := int64(len(h.body))
	earned := got - r.paid
	if earned < 1<<10 {
		return true
	}
	r.paid = got
	c.SetTimer(min(earned>>10, 10) * 1e9)
	return false
}

// Closed implements eventloop.Handler.
func (h *conn) Closed(c *eventloop.Conn, err error) {
	h.pending, h.body = nil, nil
	if err != nil {
		h.lane.srv.log.Debug("connection closed", "conn", c.ID(), "peer", c.Peer(), "err", err)
	}
}
