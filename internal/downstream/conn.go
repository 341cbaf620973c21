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
	lane *lane
	// seen is how much of an incomplete head was looked at already.
	seen int
	// The request whose body is being read.
	pending *request
	body    []byte
	left    int64 // bytes of a body with a length still to come; -1: chunked
	chunked http1.Chunked
	state   state
	later   bool // a request was answered: the next head's time begins with its first byte
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
	switch {
	case c.Closing():
		return len(b) // after the last answer nothing is a request
	case h.state == readingHead:
		return h.readHead(c, b)
	case h.state == readingBody:
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
		if h.seen == 0 && h.later {
			c.SetTimer(srv.bounds.head) // the first head's time runs since accept
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
	h.seen = 0
	h.lane.srv.counters.bad.Add(1)
	(&request{h: h, c: c, method: "GET", minor: 1}).broken(err)
}

// broken answers what breaks the rules of HTTP.
func (r *request) broken(err error) {
	status, reason := http.StatusBadRequest, "bad request"
	if e, ok := errors.AsType[*http1.Error](err); ok {
		status, reason = e.Status, e.Reason
	}
	r.keepAlive = false
	r.h.lane.srv.log.Debug("bad request", "conn", r.c.ID(), "peer", r.c.Peer(), "status", status, "err", reason)
	r.fail(&push.APIError{Status: status, Message: reason})
}

// dispatch finds the endpoint and serves, or begins to read the body that it
// wants. It returns how much of rest it used.
func (h *conn) dispatch(c *eventloop.Conn, req *http1.Request, rest []byte) int {
	r := h.newRequest(c, req)
	defer func() { r.head = nil }() // its bytes are gone with this call
	ep, known := h.lane.srv.routes[r.path]
	switch {
	case r.method == "OPTIONS" && known && len(req.Get("Access-Control-Request-Method")) > 0:
		ep = endpoint{serve: (*request).preflight}
	case !known:
		ep = endpoint{serve: (*request).notFound}
	case !allowed(ep.methods, r.method):
		allow := ep.methods
		ep = endpoint{serve: func(r *request) { r.methodNotAllowed(allow) }}
	}
	r.endpoint = ep
	if ep.maxBody > 0 {
		return h.beginBody(r, req, rest)
	}
	if req.Chunked || req.ContentLength > 0 {
		// A body nobody wants is not read: the connection ends with the answer.
		r.keepAlive, r.unread = false, true
		ep.serve(r)
		return len(rest)
	}
	ep.serve(r)
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

// beginBody judges who asks before it takes a body from them: strangers are not
// given memory. The head is at hand now and will not be when the body is there.
func (h *conn) beginBody(r *request, req *http1.Request, rest []byte) int {
	n := req.ContentLength
	whole := n >= 0 && int64(len(rest)) >= n
	r.unread = !whole
	switch {
	case !req.Chunked && n < 0:
		r.fail(&push.APIError{Status: http.StatusLengthRequired, Message: "a body is wanted", Hint: "send Content-Length, or chunks"})
		return len(rest)
	case n > int64(r.endpoint.maxBody):
		r.tooLarge()
		return len(rest)
	}
	h.pending, h.left, h.chunked, h.body = r, n, http1.Chunked{}, nil
	r.expect = req.Expect100 && len(rest) == 0
	admitted := false
	r.admit(func() {
		admitted = true
		h.takeBody(r)
	})
	switch {
	case admitted:
		return h.readBody(r.c, rest)
	case h.state == answering: // the token is being verified; the body waits
		return 0
	}
	h.pending = nil
	if whole {
		return int(n) // refused; the connection goes on after its body
	}
	return len(rest)
}

// takeBody makes the connection collect the body of r.
func (h *conn) takeBody(r *request) {
	if r.expect {
		r.c.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	}
	h.state = readingBody
	r.c.SetTimer(h.lane.srv.bounds.body)
}

// readBody collects the body and serves when all of it is there. What is kept is
// bounded by the endpoint's limit.
func (h *conn) readBody(c *eventloop.Conn, b []byte) int {
	r := h.pending
	if h.left >= 0 && h.body == nil && int64(len(b)) >= h.left {
		n := int(h.left)
		h.serveBody(r, b[:n])
		return n
	}
	used, done := 0, false
	for !done && used < len(b) {
		var data []byte
		if h.left >= 0 {
			data = b[used:min(len(b), used+int(h.left))]
			h.left -= int64(len(data))
			used += len(data)
			done = h.left == 0
		} else {
			part, n, end, err := h.chunked.Decode(b[used:])
			if err != nil {
				h.dropBody()
				h.lane.srv.counters.bad.Add(1)
				r.broken(err)
				return len(b)
			}
			data, done = part, end
			used += n
			if n == 0 && !end {
				break
			}
		}
		if len(h.body)+len(data) > r.endpoint.maxBody {
			h.dropBody()
			r.tooLarge()
			return len(b)
		}
		h.body = append(h.body, data...)
	}
	if done {
		h.serveBody(r, h.body)
	}
	return used
}

// serveBody serves r with its whole body, which is valid until this returns.
func (h *conn) serveBody(r *request, body []byte) {
	h.dropBody()
	r.unread = false
	r.body = body
	r.endpoint.serve(r)
	r.body = nil
}

func (h *conn) dropBody() { h.state, h.pending, h.body = readingHead, nil, nil }

// wait makes the connection wait for an answer that comes from elsewhere.
func (h *conn) wait(c *eventloop.Conn) {
	if h.state != answering {
		h.state = answering
		h.lane.srv.waiting.Add(1)
	}
	c.SetTimer(0) // who is waited for has bounds of its own
}

// unwait ends a wait. What comes next sets the state.
func (h *conn) unwait() {
	if h.state == answering {
		h.state = readingHead
		h.lane.srv.waiting.Add(-1)
	}
}

// next makes the connection ready for its next request, after an answer.
func (h *conn) next(c *eventloop.Conn, keepAlive bool) {
	h.unwait()
	h.state, h.later = readingHead, true
	if !keepAlive || h.ended {
		c.CloseAfterFlush()
		return
	}
	c.SetTimer(h.lane.srv.bounds.idle)
	goOn(c)
}

// goOn shows the handler what came while it waited. During a Data call that is
// not needed, and nothing happens.
func goOn(c *eventloop.Conn) {
	c.ResumeReading()
	c.Again()
}

// EndOfStream implements eventloop.Handler: a client may stop sending and still
// read its answer.
func (h *conn) EndOfStream(c *eventloop.Conn) bool {
	h.ended = true
	if h.state != answering {
		c.CloseAfterFlush() // what was answered may still be on its way
	}
	return true
}

// Drained implements eventloop.Handler.
func (h *conn) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler: the client is too slow, or idle.
func (h *conn) Timer(c *eventloop.Conn, _ int64) {
	switch {
	case h.state == answering, c.Closing():
		return
	case h.state == readingHead && h.seen == 0:
		c.Close(nil) // idle between requests: nothing was promised
		return
	case h.state == readingBody && !h.bodyLate(c):
		return
	}
	h.lane.srv.counters.timeouts.Add(1)
	r := h.pending
	if r == nil {
		r = &request{h: h, c: c, method: "GET", minor: 1}
	}
	h.dropBody()
	h.seen = 0
	r.fail(&push.APIError{Status: http.StatusRequestTimeout, Message: "the request took too long"})
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
	h.unwait()
	h.pending, h.body = nil, nil
	if err != nil {
		h.lane.srv.log.Debug("connection closed", "conn", c.ID(), "peer", c.Peer(), "err", err)
	}
}
