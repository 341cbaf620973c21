package downstream

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"unsafe"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// conn is a connection while it speaks HTTP/1.1: one request after the other,
// each read, answered, and only then the next. It is dropped when a wing takes
// the connection over.
type conn struct {
	loopState *loopState
	// seen is how much of an incomplete head was looked at already.
	seen int
	// The request whose body is being read, or whose answer is waited for.
	pending *request
	x       *proxy.Exchange // that request at an upstream; nil: it is not there
	body    []byte
	got     int64 // bytes of the body so far
	left    int64 // bytes of a body with a length still to come; -1: chunked
	chunked http1.Chunked
	state   state
	later   bool // a request was answered: the next head's time starts with its first byte
	ended   bool // the peer sends no more: close after the answer
	waiting bool // counted in the loop's waiting
	late    bool // and in the loop's late
	paused  bool // reading is paused because the upstream takes no more for now
	// cancel ends the calls of extensions for the request; nil: there are none.
	cancel context.CancelFunc
	// private is the client address sent to upstreams, which may keep connections for
	// it alone; nil: none was sent.
	private *netip.AddrPort
}

type state uint8

const (
	readingHead state = iota
	readingBody
	relaying  // the body continues to the upstream as it comes
	answering // a verification, a broker or an upstream is waited for
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
		return h.readBody(b)
	case h.state == relaying:
		return h.pending.forwarding.relay(c, b)
	}
	c.PauseReading() // pipelined: it is queued
	return 0
}

func (h *conn) readHead(c *eventloop.Conn, b []byte) int {
	loopState := h.loopState
	srv := loopState.srv
	if h.seen > 0 && h.seen <= len(b) && http1.HeadPending(b, h.seen, srv.limits) {
		h.seen = len(b)
		return 0
	}
	n, err := http1.ParseRequest(&loopState.req, b, srv.limits)
	if err != nil {
		if n, yes := h.speaksHTTP2(c, b); yes {
			return n
		}
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
	loopState.counters.requests.Add(1)
	return n + h.dispatch(c, &loopState.req, b[:n], b[n:])
}

// bad answers a request that is not HTTP and closes: where the next one would
// begin is not known.
func (h *conn) bad(c *eventloop.Conn, err error) {
	h.seen = 0
	h.loopState.counters.bad.Add(1)
	h.loopState.newRequest(h, c).broken(err)
}

// broken answers what breaks the rules of HTTP.
func (r *request) broken(err error) {
	status, reason := http.StatusBadRequest, "bad request"
	if e, ok := errors.AsType[*http1.Error](err); ok {
		status, reason = e.Status, e.Reason
	}
	r.keepAlive = false
	r.h.loopState.srv.log.Debug("bad request", "conn", r.c.ID(), "peer", r.c.Peer(), "status", status, "err", reason)
	r.fail(&push.APIError{Status: status, Message: reason})
}

// dispatch finds what serves a request and lets it, or starts to read the body that
// it wants. head are the bytes of req. It returns how much of rest it used.
func (h *conn) dispatch(c *eventloop.Conn, req *http1.Request, head, rest []byte) int {
	srv := h.loopState.srv
	r := h.loopState.newRequest(h, c)
	r.method, r.minor, r.keepAlive, r.head = methodName(req.Method), req.Minor, req.KeepAlive && !c.Shared(), req
	if used, done := r.answered(rest); done {
		return used
	}
	seq := r.seq
	var used int
	ep, _ := srv.endpoints.Find(req.Path)
	if ep != nil && !socket.BuiltinHost(srv.cfg.BuiltinHosts, req.Host) {
		ep = nil
	}
	if t := srv.routes.Load(); ep == nil && t != nil {
		used = r.forwarding.route(t, head, rest)
	} else {
		used = r.serveBuiltin(ep, head, rest)
	}
	if r.seq == seq && r.head == req {
		r.head = nil // its bytes are gone with this call
	}
	return used
}

// answered answers what is the same on every path: requests of two readings, and
// OPTIONS *. It returns how much of rest that used.
func (r *request) answered(rest []byte) (used int, done bool) {
	req := r.head
	if name := http1.Repeated(req.Fields); name != "" {
		r.h.loopState.counters.bad.Add(1)
		r.broken(&http1.Error{Status: http.StatusBadRequest, Reason: "repeated field: " + name})
		return len(rest), true
	}
	if !r.h.later && !r.c.Shared() && !r.h.speaksAgreed(r.c, false) {
		r.h.loopState.counters.bad.Add(1)
		r.broken(&http1.Error{Status: http.StatusBadRequest, Reason: "HTTP/1.1 where the TLS handshake agreed on HTTP/2"})
		return len(rest), true
	}
	if len(req.Path) != 1 || req.Path[0] != '*' {
		return 0, false
	}
	r.unread = req.Chunked || req.ContentLength > 0
	used = r.skip(rest)
	r.answer(http.StatusNoContent, "", nil, "Allow: "+policy.UsualMethods+"\r\n")
	return used, true
}

// serveBuiltin serves what is Weir's own, or a protocol's.
func (r *request) serveBuiltin(ep *endpoint, head, rest []byte) int {
	req := r.head
	if o := req.Get("Origin"); o != nil {
		r.origin = append(r.origin[:0], o...)
	}
	r.cors = true
	r.access = r.h.loopState.srv.auth.OriginAccess(r.page())
	switch {
	case r.method == "OPTIONS" && ep != nil && len(req.Get("Access-Control-Request-Method")) > 0:
		r.allow, ep = ep.methods, preflightEndpoint
	case ep == nil:
		ep = notFoundEndpoint
	case !allowed(ep.methods, r.method):
		r.allow, ep = ep.methods, notAllowedEndpoint
	}
	r.endpoint = ep
	r.builtin.eventful = ep.stream && !ep.mounted && wire.AcceptsEvents(r.header("Accept"))
	if ep.mounted {
		return r.h.beginMounted(r, head, rest)
	}
	if ep.maxBody > 0 {
		if v := req.Get("traceparent"); v != nil && r.h.loopState.srv.traces != nil {
			r.builtin.trace = bytes.Clone(v)
		}
		return r.h.beginBody(r, req, rest)
	}
	if req.Chunked || req.ContentLength > 0 {
		// An unneeded body is not read: the connection ends with the answer.
		r.keepAlive, r.unread = false, true
		ep.serve(r)
		return len(rest)
	}
	ep.serve(r)
	return 0
}

var (
	preflightEndpoint  = &endpoint{serve: preflight}
	notFoundEndpoint   = &endpoint{serve: notFound}
	notAllowedEndpoint = &endpoint{serve: methodNotAllowed}
)

// allowed reports whether method is one of methods, a list like "GET, HEAD".
func allowed(methods, method string) bool {
	for methods != "" {
		var m string
		m, methods, _ = strings.Cut(methods, ", ")
		if m == method {
			return true
		}
	}
	return false
}

// wait makes the connection wait for an answer that comes from elsewhere.
func (h *conn) wait(c *eventloop.Conn) {
	h.state = answering
	if !c.Closing() {
		h.count()
	}
	c.SetTimer(0) // who is waited for has bounds of its own
}

// ConnBytes is what a connection between two requests takes, without the loop's part.
const ConnBytes = int(unsafe.Sizeof(conn{}))

// count counts the request as one whose answer is waited for.
func (h *conn) count() {
	if !h.waiting {
		h.waiting = true
		if h.late = h.loopState.marked; h.late {
			h.loopState.late.Add(1)
		}
		h.loopState.waiting.Add(1)
	}
}

// unwait ends a wait. What comes next sets the state.
func (h *conn) unwait() {
	if h.waiting {
		h.waiting = false
		h.loopState.waiting.Add(-1)
		if h.late {
			h.loopState.late.Add(-1)
		}
	}
	if h.state == answering {
		h.state = readingHead
	}
}

// next makes the connection ready for its next request, after an answer.
func (h *conn) next(c *eventloop.Conn, keepAlive bool) {
	h.unwait()
	h.state, h.later, h.pending, h.paused = readingHead, true, nil, false
	if !keepAlive || h.ended {
		c.CloseAfterFlush()
		return
	}
	c.SetTimer(h.loopState.srv.bounds.idle)
	resumeInput(c)
}

// resumeInput shows the handler what came while it waited. During a Data call that is
// not needed, and nothing happens.
func resumeInput(c *eventloop.Conn) {
	c.ResumeReading()
	c.Redeliver()
}

// EndOfStream implements eventloop.Handler: a client may stop sending and still
// read its answer.
func (h *conn) EndOfStream(c *eventloop.Conn) bool {
	h.ended = true
	switch {
	case h.x != nil && (h.state == relaying || !h.loopState.srv.cfg.HalfClose), h.cancel != nil && !h.loopState.srv.cfg.HalfClose:
		return false // it vanished: see Closed
	case h.state == answering && h.pending != nil && (h.pending.forwarding.recording != nil || h.pending.forwarding.batching != nil) && !h.loopState.srv.cfg.HalfClose:
		return false
	case h.state != answering:
		c.CloseAfterFlush() // what was answered may still be on its way
	}
	return true
}

// Drained implements eventloop.Handler.
func (h *conn) Drained(*eventloop.Conn) {
	if h.x != nil && (h.pending == nil || h.pending.forwarding.reply.extended == nil) {
		h.x.Resume()
	}
}

// Timer implements eventloop.Handler: the client is too slow, or idle.
func (h *conn) Timer(c *eventloop.Conn, now int64) {
	switch {
	case h.pending != nil && h.pending.forwarding.reply.events.leaves(now):
		return
	case h.state == answering, c.Closing():
		return
	case h.state == readingHead && h.seen == 0:
		c.Close(nil) // idle between requests: nothing was promised
		return
	case h.state != readingHead && !h.bodyLate(c):
		return
	}
	h.loopState.counters.timeouts.Add(1)
	r := h.pending
	if r == nil {
		r = h.loopState.newRequest(h, c)
	}
	h.dropBody()
	h.seen = 0
	if h.x != nil {
		h.abandon()
		if reply := &r.forwarding.reply; reply.began {
			reply.cut()
			return
		}
	}
	r.fail(&push.APIError{Status: http.StatusRequestTimeout, Message: "the request took too long"})
}

// bodyLate reports whether a body is slower than a KiB per second; if not, it
// gets the time that what came has earned. While the upstream takes no more, the
// client is not late.
func (h *conn) bodyLate(c *eventloop.Conn) bool {
	if h.paces(c) {
		return false
	}
	r := h.pending
	if h.paused {
		c.SetTimer(h.loopState.srv.bounds.body)
		return false
	}
	earned := h.got - r.paid
	if earned < 1<<10 {
		return true
	}
	r.paid = h.got
	c.SetTimer(min(earned>>10, 10) * 1e9)
	return false
}

// Closed implements eventloop.Handler.
func (h *conn) Closed(c *eventloop.Conn, err error) {
	h.unwait()
	if h.cancel != nil {
		h.cancel()
	}
	if h.x != nil {
		h.abandon()
	}
	if h.private != nil {
		h.loopState.srv.proxy.LoopState(c.Loop()).Forget(*h.private)
	}
	if r := h.pending; r != nil {
		r.forwarding.recording.detach()
		r.forwarding.over() // not for reuse: someone may still hold it
	}
	h.pending, h.body = nil, nil
	if err != nil {
		h.loopState.srv.log.Debug("connection closed", "conn", c.ID(), "peer", c.Peer(), "err", err)
	}
}

// abandon ends the exchange of a client that has gone.
func (h *conn) abandon() {
	x := h.x
	h.x = nil
	if x != nil { // it shares a call with others, and leaves that when it is over
		x.Cancel()
	}
}
