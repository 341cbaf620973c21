package downstream

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/socket"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/websocket"
)

// mountedRequest is a request for an endpoint of a protocol's, as the protocol sees it. It has an
// end of its own, so that who holds it for too long does not get at the next request.
type mountedRequest struct {
	requestView
	seq uint32
	ep  *endpoint
	// raw is the head in the input; nil once the head lasts.
	raw []byte
	// waiting: the handler has returned without an answer, which comes later.
	waiting bool
	// identity is what extensions chose for the client; nil: nothing.
	identity *auth.Identity
}

var _ socket.Request = (*mountedRequest)(nil)

// serveMounted lets a protocol serve r.
func serveMounted(r *request, ep *endpoint, serve socket.Handler) {
	a := &mountedRequest{requestView: requestView{r}, seq: r.seq, ep: ep, raw: r.h.loopState.raw}
	r.h.loopState.raw = nil
	h := r.h
	serve(a)
	if a.live() && !a.waiting {
		h.loopState.srv.log.Error("a protocol did not answer", "path", a.Path())
		r.fail(&push.APIError{Status: http.StatusInternalServerError, Message: "internal error"})
	}
}

// live reports whether the request waits for its answer, and its client is connected.
func (a *mountedRequest) live() bool { return a.r.seq == a.seq && !a.r.c.Closing() }

// later makes what the client said last until the answer, which does not come in this
// call, and the connection wait for it.
func (a *mountedRequest) later() {
	r := a.r
	if a.waiting {
		return
	}
	a.waiting = true
	if a.raw != nil {
		r.keepHead(a.raw)
		a.raw = nil
	}
	r.body = bytes.Clone(r.body)
	r.h.pending, r.h.left = r, 0
	r.h.wait(r.c)
}

// resume runs f, which was waited for, if the request still waits. A panic ends the client.
func (a *mountedRequest) resume(f func()) {
	if !a.live() {
		return
	}
	c := a.r.c
	defer func() {
		if r := recover(); r != nil {
			c.Close(fmt.Errorf("panic: %v", r))
			panic(r) // the loop counts it and logs it
		}
	}()
	f()
}

// requestView is what the client requested: the part of a socket.Request that is to read.
type requestView struct{ r *request }

// Method implements socket.Request.
func (a requestView) Method() string { return a.r.method }

// Path implements socket.Request.
func (a requestView) Path() string { return string(a.r.head.Path) }

// Query implements socket.Request.
func (a requestView) Query() string { return string(a.r.head.Query) }

// Header implements socket.Request.
func (a requestView) Header(name string) string { return string(a.r.header(name)) }

// Body implements socket.Request.
func (a requestView) Body() []byte { return a.r.body }

// Secure implements socket.Request.
func (a requestView) Secure() bool { return a.r.c.Filtered() }

// Host implements socket.Request.
func (a requestView) Host() string { return string(a.r.head.Host) }

// Origin implements socket.Request.
func (a requestView) Origin() (string, auth.Access) { return string(a.r.origin), a.r.access }

// AdmitPage implements socket.Request.
func (a requestView) AdmitPage() bool { return a.r.admitPage() }

// LogRefusedOrigin implements socket.Request.
func (a requestView) LogRefusedOrigin(hint string) {
	a.r.h.loopState.srv.auth.LogRefusedOrigin(a.r.page(), a.r.head.Path, hint)
}

// Peer implements socket.Request.
func (a requestView) Peer() netip.AddrPort { return a.r.c.Peer() }

// HeartbeatInterval implements socket.Request.
func (a requestView) HeartbeatInterval(every time.Duration) time.Duration {
	d, bad := a.r.maxBackoff()
	if bad != nil {
		return every // the protocols have errors of their own
	}
	cfg := a.r.h.loopState.srv.push.Config()
	return cfg.HeartbeatInterval(every, d)
}

// Identify implements socket.Request.
func (a *mountedRequest) Identify(then func(*auth.Identity)) {
	if !a.live() {
		return
	}
	id, token, known := a.r.known()
	switch {
	case known:
		then(id)
	case token != "":
		a.later()
		a.r.builtin.verify(token, func(r *request, id *auth.Identity) { // only if the client is still there
			if r.seq == a.seq {
				r.h.pending = r
				r.h.wait(r.c)
				a.resume(func() { then(id) })
			}
		})
	}
}

// Do implements socket.Request.
func (a *mountedRequest) Do(work func(ctx context.Context), then func()) {
	if !a.live() {
		return
	}
	a.later()
	loop := a.r.c.Loop()
	if !a.r.h.loopState.srv.push.Workers().Do(work, func() { loop.Post(func() { a.resume(then) }) }) {
		a.Away(a.ep.stream)
	}
}

// Publish implements socket.Request.
func (a *mountedRequest) Publish(p hub.Publication, done func(hub.Position, error)) {
	a.publish(done, func(done func(hub.Position, error)) { a.r.h.loopState.srv.push.PublishFor(a.r.c, p, done) })
}

// PublishTopics implements socket.Request.
func (a *mountedRequest) PublishTopics(topics []string, p hub.Publication, done func(hub.Position, error)) {
	a.publish(done, func(done func(hub.Position, error)) {
		a.r.h.loopState.srv.push.PublishTopicsFor(a.r.c, topics, p, done)
	})
}

func (a *mountedRequest) publish(done func(hub.Position, error), publish func(func(hub.Position, error))) {
	if !a.live() {
		return
	}
	returned, answered := false, false
	publish(func(at hub.Position, err error) {
		answered = true
		if !returned {
			done(at, err)
			return
		}
		a.resume(func() { done(at, err) })
	})
	if returned = true; !answered && a.live() {
		a.later()
	}
}

// Answer implements socket.Request.
func (a *mountedRequest) Answer(status int, contentType string, body []byte, fields ...socket.Field) {
	if !a.live() {
		return
	}
	if status >= http.StatusBadRequest {
		a.r.h.loopState.counters.refused.Add(1)
	}
	a.r.answer(status, contentType, body, string(appendFields(nil, fields)))
}

// appendFields appends fields as header lines, and those that every answer has unless
// they are among them. What would not be one line is left out.
func appendFields(b []byte, fields []socket.Field) []byte {
	caching := false
	for _, f := range fields {
		if !http1.ValidName(f.Name) || !http1.ValidValue(f.Value) {
			continue
		}
		caching = caching || http1.EqualFold([]byte(f.Name), "Cache-Control")
		b = http1.AppendField(b, f.Name, f.Value)
	}
	if !caching {
		b = append(b, "Cache-Control: no-store\r\n"...)
	}
	return append(b, "X-Content-Type-Options: nosniff\r\n"...)
}

// Fail implements socket.Request.
func (a *mountedRequest) Fail(e *wire.Error) {
	if a.live() {
		a.r.fail(e)
	}
}

// Away implements socket.Request.
func (a *mountedRequest) Away(stream bool) {
	switch {
	case !a.live():
	case stream:
		a.hijack(func(c *eventloop.Conn) { a.r.h.loopState.srv.push.Away(c, a.r.fields()) })
	default:
		a.r.fail(errTooMuchWork)
	}
}

// WebSocket implements socket.Request.
func (a *mountedRequest) WebSocket(o socket.WebSocketOptions, open func(socket.Transport) socket.Session) {
	if !a.live() {
		return
	}
	if _, bad := a.r.handshake(o.AnyOrigin); bad != nil {
		a.r.fail(bad)
		return
	}
	extend(a, nil, "", func() { upgrade(a, &o, open) }, func(d *authz.Decision) {
		if o.RefusedCode == 0 {
			a.r.answerRefusal(d)
			return
		}
		upgrade(a, &o, func(t socket.Transport) socket.Session {
			t.Close(o.RefusedCode, shortened(d.Message))
			return socket.Refused{}
		})
	})
}

// shortened is a reason as a close frame can have it (RFC 6455 §5.5).
func shortened(reason string) string {
	if len(reason) > 120 {
		reason = strings.ToValidUTF8(reason[:120], "")
	}
	return reason
}

// extend has extensions decide on the client, and on channels that it subscribes to at once.
func extend(a *mountedRequest, channels []string, user string, allowed func(), refused func(*authz.Decision)) {
	var id *auth.Identity
	if user != "" {
		id = &auth.Identity{Subject: user}
	}
	r := a.r
	q := r.clientEvents(a.ep.protocol, id, channels)
	if q == nil {
		allowed()
		return
	}
	a.later()
	r.decideAside(q, true, func(d *authz.Decision) {
		a.resume(func() {
			if !d.Admit {
				refused(d)
				return
			}
			a.identity = d.Identity
			allowed()
		})
	})
}

// upgrade completes a handshake that was checked before.
func upgrade(a *mountedRequest, o *socket.WebSocketOptions, open func(socket.Transport) socket.Session) {
	r := a.r
	key, bad := r.handshake(o.AnyOrigin)
	if bad != nil {
		r.fail(bad)
		return
	}
	chosen := ""
	if len(o.Subprotocols) > 0 {
		chosen = websocket.SelectSubprotocol(r.header("Sec-WebSocket-Protocol"), o.Subprotocols...)
	}
	if o.Chosen != nil {
		*o.Chosen = chosen
	}
	if o.Identity != nil {
		*o.Identity = a.identity
	}
	a.hijack(func(c *eventloop.Conn) {
		so := &push.SocketOptions{
			Key: key, Subprotocol: chosen, Fields: r.fields(), Protocol: a.ep.protocol, MaxMessage: o.MaxMessage,
			DrainCode: o.DrainCode, DrainReason: o.DrainReason,
		}
		r.h.loopState.srv.push.ServeSocket(c, so, open)
	})
}

// Stream implements socket.Request.
func (a *mountedRequest) Stream(o socket.StreamOptions, open func(socket.Transport) socket.Session) {
	if !a.live() {
		return
	}
	r := a.r
	if r.method == http.MethodHead {
		a.Answer(http.StatusOK, o.ContentType, nil, o.Fields...)
		return
	}
	extend(a, nil, "", func() {
		if o.Identity != nil {
			*o.Identity = a.identity
		}
		fields := append(r.fields(), fieldLines(o.Fields)...)
		a.hijack(func(c *eventloop.Conn) {
			so := &push.StreamOptions{ContentType: o.ContentType, Fields: fields, Protocol: a.ep.protocol, Chunked: r.chunks()}
			r.h.loopState.srv.push.ServeStream(c, so, open)
		})
	}, r.answerRefusal)
}

// Subscribe implements socket.Request.
func (a *mountedRequest) Subscribe(s *socket.Subscription) {
	if !a.live() {
		return
	}
	r := a.r
	if r.method == http.MethodHead {
		a.Answer(http.StatusOK, "text/event-stream", nil, s.Fields...)
		return
	}
	user := ""
	if s.Identity != nil {
		user = s.Identity.Subject
	}
	extend(a, s.Options.Channels, user, func() { subscribe(a, s) }, r.answerRefusal)
}

// subscribe starts a stream of events that is allowed.
func subscribe(a *mountedRequest, s *socket.Subscription) {
	r := a.r
	sub := &push.Subscription{Identity: s.Identity, Fields: append(r.fields(), fieldLines(s.Fields)...), Accept: r.header("Accept-Encoding"),
		Custom: s, Protocol: a.ep.protocol, Chunked: r.chunks()}
	var bad *push.APIError
	if sub.MaxBackoff, bad = r.maxBackoff(); bad != nil {
		r.fail(bad)
		return
	}
	if r.h.ended {
		r.c.Close(nil) // the client went meanwhile
		return
	}
	c, h := r.c, r.h
	was := h.waiting
	h.unwait()
	if err := h.loopState.srv.push.ServeEvents(c, sub); err != nil {
		if was {
			h.pending = r
			h.wait(c)
		}
		r.fail(push.ErrorOf(err))
		return
	}
	r.release()
	resumeInput(c)
}

// hijack hands the connection over. What the client said meanwhile follows.
func (a *mountedRequest) hijack(serve func(*eventloop.Conn)) {
	r, c := a.r, a.r.c
	if r.h.ended {
		c.Close(nil) // the client went meanwhile
		return
	}
	r.h.unwait()
	serve(c)
	r.release()
	resumeInput(c)
}

// fieldLines are fields as header lines.
func fieldLines(fields []socket.Field) (b []byte) {
	for _, f := range fields {
		if http1.ValidName(f.Name) && http1.ValidValue(f.Value) {
			b = http1.AppendField(b, f.Name, f.Value)
		}
	}
	return b
}
