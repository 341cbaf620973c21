package downstream

import (
	"net/http"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// endpoint is what a path of Weir's own leads to.
type endpoint struct {
	methods string // "GET, HEAD"
	maxBody int    // 0: the body is not wanted
	serve   func(*request)
	stream  bool // its clients give up for good after a status other than 200
	// mounted: it is a protocol's, and its connections are counted as that one's.
	mounted  bool
	protocol uint8
}

// request is one request as far as it is needed beyond the parse: the head's
// bytes are gone when its body or its answer has to be waited for. It is the
// loop's again once it is answered, and seq has another value then.
type request struct {
	perRequest

	// Kept for the next request.
	seq       uint32
	origin    []byte
	savedHead []byte                        // a head that is needed for longer than it is in the input
	trailer   []byte                        // the fields behind the body, as far as they have come
	own       http1.Request                 // what held says
	policy    policy.Exchange               // what routes make of it
	published func(status int, body []byte) // answers a call of the API
}

// builtin is what a request for one of Weir's own endpoints has besides.
type builtin struct {
	*request
	eventful bool                 // it is for a stream of events, from a client that expects one
	waits    *waitingSubscription // while it is queued; nil otherwise
	identity *auth.Identity       // set before the body is read
	trace    []byte               // traceparent of a call of the API, where traces are kept
}

// perRequest is the part of a request that is empty for each.
type perRequest struct {
	h        *conn
	c        *eventloop.Conn
	endpoint *endpoint

	method    string
	access    auth.Access
	cors      bool // origin and access were looked at
	minor     uint8
	keepAlive bool
	unread    bool // some of its body was not read: nothing can follow its answer
	allow     string
	expect    bool // the client waits for 100 (Continue)
	refused   bool // its token was not accepted
	paid      int64
	status    int
	sent      int64  // bytes of the answer's body
	reason    string // of a refusal

	head *http1.Request // nil once dispatch has returned, unless it is own
	body []byte         // valid until the endpoint's serve returns

	builtin    builtin
	forwarding forwarding
}

// newRequest returns a request on h's connection. Before it is known what it says,
// it is a GET of HTTP/1.1.
func (l *loopState) newRequest(h *conn, c *eventloop.Conn) *request {
	var r *request
	if n := len(l.free); n > 0 {
		r = l.free[n-1]
		l.free[n-1] = nil
		l.free = l.free[:n-1]
	} else {
		r = &request{}
		r.clear()
		r.published = r.builtin.answerCall
	}
	r.h, r.c, r.method, r.minor = h, c, "GET", 1
	return r
}

const (
	spareRequests = 1024
	keepBytes     = 4 << 10
)

// page is what is known of the web page that makes the request. Its head must be there.
func (r *request) page() auth.Page {
	p := auth.Page{Origin: r.origin, Host: r.head.Host, TLS: r.c.Filtered(), Peer: r.c.Peer().Addr()}
	if len(p.Origin) > 0 {
		for _, name := range auth.ForwardingFields {
			p.Forwarded = p.Forwarded || r.head.Get(name) != nil
		}
	}
	return p
}

// admitPage reports whether the page may connect at all; a refusal is logged.
func (r *request) admitPage() bool {
	if r.access != auth.OriginRefused {
		return true
	}
	r.h.loopState.srv.auth.LogRefusedOrigin(r.page(), r.head.Path, "")
	return false
}

// release gives r back after its answer. No reference to it may remain.
func (r *request) release() {
	r.forwarding.over()
	l := r.h.loopState
	r.clear()
	r.seq++
	r.origin, r.trailer = r.origin[:0], r.trailer[:0]
	if cap(r.trailer) > keepBytes {
		r.trailer = nil
	}
	if cap(r.savedHead) > keepBytes {
		r.savedHead, r.own = nil, http1.Request{}
	}
	if len(l.free) < spareRequests {
		l.free = append(l.free, r)
	}
}

// clear empties all that is of one request.
func (r *request) clear() {
	r.perRequest = perRequest{}
	r.builtin.request = r
	r.forwarding.request = r
	r.forwarding.reply.forwarding = &r.forwarding
}

// over reports to the route how the request ended, and the event stream of a backend is no
// longer counted. Calls after the first have no effect.
func (r *forwarding) over() {
	if r.reply.events != nil {
		r.reply.events = nil
		r.h.loopState.streams.Add(-1)
	}
	if m := r.mirror; m != nil {
		m.drop()
	}
	r.batching.leave()
	if !r.matched {
		return
	}
	r.matched = false
	r.policy.Done(policy.Outcome{Status: r.status, BytesIn: r.h.got, BytesOut: r.sent, DurationNS: r.c.Loop().Now() - r.start, FirstByteNS: r.reply.firstByte,
		Upstream: r.upstream, Retries: r.retries, GRPC: r.grpc && r.reply.grpcCode >= 0, GRPCStatus: r.reply.grpcCode})
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

// fields returns the header lines that CORS requires.
func (r *request) fields() []byte {
	if r.forwarding.matched && r.policy.Route != nil {
		return r.policy.Route.AppendCORS(nil, &r.policy)
	}
	if !r.cors || len(r.origin) == 0 || r.access == auth.OriginRefused || !http1.ValidValue(r.origin) {
		return nil
	}
	b := append([]byte("Access-Control-Allow-Origin: "), r.origin...)
	b = append(b, "\r\nAccess-Control-Expose-Headers: "+wire.ExposedFields+"\r\nVary: Origin\r\n"...)
	if r.access == auth.OriginTrusted {
		b = append(b, "Access-Control-Allow-Credentials: true\r\n"...)
	}
	return b
}

// answerFields are for answers that depend on the client and the time.
const answerFields = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"

// answer writes a complete answer and makes the connection ready for the next
// request. extra are complete header lines. r is over then.
func (r *request) answer(status int, contentType string, body []byte, extra string) {
	r.answerWith(status, contentType, body, extra, r.fields())
}

// answerWith is answer with further header lines.
func (r *request) answerWith(status int, contentType string, body []byte, extra string, fields []byte) {
	if r.forwarding.grpc && status != http.StatusOK {
		r.forwarding.answerGRPC(status, fields)
		return
	}
	loopState := r.h.loopState
	if r.unread || loopState.srv.push.Draining() {
		r.keepAlive = false
	}
	b := appendStatus(loopState.buf[:0], status)
	b = loopState.appendDate(b, r.c.Loop())
	if contentType != "" {
		b = append(b, "Content-Type: "...)
		b = append(b, contentType...)
		b = append(b, "\r\n"...)
	}
	if status != http.StatusNoContent && status != http.StatusNotModified {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, extra...)
	b = append(b, fields...)
	switch {
	case !r.keepAlive:
		b = append(b, "Connection: close\r\n"...)
	case r.minor == 0: // HTTP/1.0 closes by default
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	b = append(b, "\r\n"...)
	if r.method == "HEAD" {
		body = nil
	}
	r.sent = int64(len(body))
	if len(body) < 16<<10 {
		b = append(b, body...)
		body = nil
	}
	loopState.buf = b
	h, c, keepAlive := r.h, r.c, r.keepAlive
	c.Write(b)
	c.Write(body)
	r.status = status
	r.release()
	h.next(c, keepAlive)
}

// appendStatus is http1.AppendStatusLine, shorter for the usual one.
func appendStatus(b []byte, status int) []byte {
	if status == http.StatusOK {
		return append(b, "HTTP/1.1 200 OK\r\n"...)
	}
	return http1.AppendStatusLine(b, status)
}

// appendDate appends the Date field (RFC 9110 §6.6.1), written anew once a second, and
// Alt-Svc if there is one.
func (l *loopState) appendDate(b []byte, loop *eventloop.Loop) []byte {
	return append(append(b, l.dateLine(loop)...), l.srv.altSvc...)
}

func (l *loopState) dateLine(loop *eventloop.Loop) []byte {
	if now := loop.Now() / 1e9; len(l.date) == 0 || now != l.dateAt {
		l.date, l.dateAt = http1.AppendDate(l.date[:0], time.Now()), now
	}
	return l.date
}

// fail answers with an error.
func (r *request) fail(e *push.APIError) {
	switch e.Status {
	case http.StatusRequestEntityTooLarge, http.StatusLengthRequired, http.StatusRequestTimeout:
		r.keepAlive = false // what follows in the input may be the rest of this request
	}
	r.reason = e.Message
	r.failWith(e.Status, push.AppendError(nil, e))
}

// failWith is fail with the JSON there already.
func (r *request) failWith(status int, body []byte) {
	r.h.loopState.counters.refused.Add(1)
	extra := answerFields
	switch status {
	case http.StatusUnauthorized: // RFC 6750 §3: an error code only for a token that was sent
		if r.refused {
			extra += "WWW-Authenticate: Bearer error=\"invalid_token\"\r\n"
		} else {
			extra += "WWW-Authenticate: Bearer\r\n"
		}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		extra = retryFields[min(r.h.loopState.srv.push.LoopState(r.c).RetryAfter(), maxRetryAfter)]
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

func notFound(r *request) {
	r.fail(&push.APIError{Status: http.StatusNotFound, Message: "no such path", Hint: r.h.loopState.srv.paths + "; other paths need a route"})
}

func methodNotAllowed(r *request) {
	r.fail(&push.APIError{Status: http.StatusMethodNotAllowed, Message: "method not allowed", Hint: "use " + r.allow})
}

// preflight answers CORS from the edge. Native EventSource sends none; clients
// built on fetch do, because they set headers.
func preflight(r *request) {
	if !r.admitPage() {
		r.fail(errOrigin)
		return
	}
	r.answer(http.StatusNoContent, "", nil, "Access-Control-Allow-Methods: "+r.allow+"\r\n"+
		"Access-Control-Allow-Headers: authorization, cache-control, content-type, last-event-id, x-api-key\r\n"+
		"Access-Control-Max-Age: 7200\r\n")
}

func healthz(r *request) {
	r.answer(http.StatusOK, "text/plain; charset=utf-8", okBody, answerFields)
}

func readyz(r *request) {
	if err := r.h.loopState.srv.ready(); err != nil {
		r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "not ready: " + err.Error()})
		return
	}
	r.answer(http.StatusOK, "text/plain; charset=utf-8", readyBody, answerFields)
}

func (s *Server) ready() error { return s.push.Ready() }

var okBody, readyBody = []byte("ok\n"), []byte("ready\n")
