package downstream

import (
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
)

var (
	_ push.Job = (*forwarding)(nil)
	_ push.Job = (*builtin)(nil)
)

// waitingSubscription is a subscription that requests history and is queued.
type waitingSubscription struct {
	sub   *push.Subscription
	serve func(*eventloop.Conn, *push.Subscription) error
}

// lateIn reports whether a request that came now on this loop would have to wait,
// if some of t's have a class.
func (r *forwarding) lateIn(t *table) bool {
	if !t.classed || !r.h.loopState.srv.push.Admits() {
		return false
	}
	late, _ := r.h.loopState.srv.push.LoopState(r.c).Late()
	return late
}

// forwardQueued is forward for a route whose requests have a class.
func (r *forwarding) forwardQueued(class limit.Class, rest []byte) int {
	loopState := r.h.loopState.srv.push.LoopState(r.c)
	late, now := loopState.Late()
	late = late && r.head == &r.own // a head that does not last cannot wait
	switch v, _ := loopState.Offer(class, limit.Key{}, r, late, now); v {
	case limit.Go:
		used := r.forward(rest)
		loopState.Served(class, 0, now)
		return used
	case limit.Refuse:
		used := r.skip(rest)
		r.Shed(false)
		return used
	case limit.Wait, limit.Replaced:
	}
	r.h.pending = r.request
	r.h.wait(r.c) // its body stays where it is meanwhile
	return 0
}

// subscribeQueued is subscribed for a client that requests history.
func (r *builtin) subscribeQueued(class limit.Class, w *waitingSubscription) {
	loopState := r.h.loopState.srv.push.LoopState(r.c)
	late, now := loopState.Late()
	r.waits = w
	switch v, _ := loopState.Offer(class, limit.Key{}, r, late, now); v {
	case limit.Go:
		r.waits = nil
		r.subscribed(w)
		loopState.Served(class, 0, now)
	case limit.Refuse:
		r.Shed(false)
	case limit.Wait, limit.Replaced:
		r.h.pending = r.request
		r.h.wait(r.c)
	}
}

// Serve implements push.Job.
func (r *forwarding) Serve() {
	c := r.c
	r.h.unwait()
	r.forward(nil)
	if !c.Closing() {
		resumeInput(c)
	}
}

// Serve implements push.Job.
func (r *builtin) Serve() {
	w := r.waits
	r.h.unwait()
	r.waits, r.h.pending = nil, nil
	r.subscribed(w)
}

// Shed implements push.Job.
func (r *request) Shed(expired bool) {
	r.h.unwait()
	body := shedBody
	if expired {
		body = expiredBody
	}
	r.failWith(http.StatusServiceUnavailable, body)
}

// Shed implements push.Job.
func (r *builtin) Shed(expired bool) {
	if !r.endpoint.stream {
		r.request.Shed(expired)
		return
	}
	c, h := r.c, r.h
	h.unwait()
	h.pending = nil
	h.loopState.srv.push.RejectSSE(c, r.fields())
	r.release()
}

// What is shed is answered: made once.
var (
	_, shedBody = push.ShedAnswer()
	expiredBody = push.AppendError(nil, &push.APIError{Status: http.StatusServiceUnavailable, Message: "expired, not executed", Hint: "it waited for too long; try again later"})
)

// Gone implements push.Job.
func (r *request) Gone() bool { return r.c.Closing() }

// Conn implements push.Job.
func (r *request) Conn() *eventloop.Conn { return r.c }

// Fanout implements push.Job.
func (r *request) Fanout() (n int, channel string) { return 0, "" }

// skip returns how much of rest a request used that is not served: its body, if all of
// it is there.
func (r *request) skip(rest []byte) int {
	if !r.unread {
		return 0
	}
	if n := r.head.ContentLength; n >= 0 && int64(len(rest)) >= n {
		r.unread = false
		return int(n)
	}
	return len(rest)
}

// client is the client's address, where there are limits for it; the zero address otherwise.
func (r *request) client() netip.Addr {
	f := r.h.loopState.srv.front
	if f == nil {
		return netip.Addr{}
	}
	return f.Client(r.c.Peer().Addr(), r.head.Fields)
}

// mayPublish takes what a publication costs its client and identity, or answers.
func (r *builtin) mayPublish(client netip.Addr, id *auth.Identity) bool {
	f := r.h.loopState.srv.front
	if f == nil {
		return true
	}
	wait, ok := f.Publish(client, id.Subject, r.c.Loop().Now())
	if !ok {
		r.tooOften(wait)
	}
	return ok
}

// maySubscribe is mayPublish for a subscription.
func (r *builtin) maySubscribe(client netip.Addr, id *auth.Identity) bool {
	f := r.h.loopState.srv.front
	if f == nil {
		return true
	}
	wait, ok := f.Subscribe(client, id.Subject, r.c.Loop().Now())
	switch {
	case ok:
	case r.endpoint.stream:
		c := r.c
		r.h.loopState.srv.push.RejectSSE(c, r.fields())
		r.release()
	default:
		r.tooOften(wait)
	}
	return ok
}

// tooOften refuses until wait has passed.
func (r *request) tooOften(wait time.Duration) {
	r.h.loopState.counters.refused.Add(1)
	var line [64]byte // without CORS that is room for all
	fields := strconv.AppendInt(append(line[:0], "Retry-After: "...), min(limit.RetryAfter(wait), 3600), 10)
	fields = append(append(fields, "\r\n"...), r.fields()...)
	r.answerWith(http.StatusTooManyRequests, "application/json", tooOftenBody, answerFields, fields)
}

var tooOftenBody = push.AppendError(nil, &push.APIError{Status: http.StatusTooManyRequests, Message: "too many requests", Hint: "wait as long as Retry-After says"})

// retryFields are answerFields with each of the times that clients are asked to wait:
// who refuses much must not make them every time.
var retryFields = func() (lines [maxRetryAfter + 1]string) {
	for i := range lines {
		lines[i] = answerFields + "Retry-After: " + strconv.Itoa(i) + "\r\n"
	}
	return lines
}()

const maxRetryAfter = 8
