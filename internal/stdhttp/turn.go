package stdhttp

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/limit"
	"github.com/weir-gateway/weir/internal/wire"
)

// classes say which requests wait for their turn: push.Push, where there are loops.
type classes interface {
	LeastOf(channels []string) limit.Class
	ReplayClass(channels []string) limit.Class
}

// A carrier is a connection on a loop, in whose queue requests wait.
type carrier interface {
	awaitTurn(ctx context.Context, c limit.Class) (served, expired bool)
	call(ctx context.Context, call *wire.Call, id *auth.Identity) (status int, body []byte, ok bool)
}

// carrierOf is what carries r, if requests wait there for their turn; nil otherwise.
func (f *Front) carrierOf(r *http.Request) carrier {
	if f.classes == nil {
		return nil
	}
	c, _ := r.Context().Value(connKey{}).(carrier)
	return c
}

var (
	errShed    = &wire.Error{Status: http.StatusServiceUnavailable, Message: "overloaded, try again later", Hint: "nothing was stored"}
	errExpired = &wire.Error{Status: http.StatusServiceUnavailable, Message: "expired, not executed", Hint: "it waited for too long; try again later"}
)

// turn waits for the turn of a request of class c, and returns why it is not to be served.
func (f *Front) turn(r *http.Request, class limit.Class) *wire.Error {
	c := f.carrierOf(r)
	if c == nil || class == limit.Unclassed {
		return nil
	}
	switch served, expired := c.awaitTurn(r.Context(), class); {
	case served:
		return nil
	case expired:
		return errExpired
	}
	return errShed
}

// call carries out a call of the API, in its turn if it has a class.
func (f *Front) call(r *http.Request, call *wire.Call, id *auth.Identity) (status int, body []byte) {
	if c := f.carrierOf(r); c != nil && f.classes.LeastOf(call.Channels) != limit.Unclassed {
		status, body, ok := c.call(r.Context(), call, id)
		if !ok {
			return errShed.Status, wire.AppendError(nil, errShed)
		}
		return status, body
	}
	return f.deps.Push.Publish(r.Context(), call, id)
}

// replays waits for the turn of a subscription that asks for history, or answers.
func (f *Front) replays(w http.ResponseWriter, r *http.Request, sub *wire.Subscription) bool {
	if f.classes == nil || sub.Since == "" {
		return true
	}
	bad := f.turn(r, f.classes.ReplayClass(sub.Channels))
	switch {
	case bad == nil:
		return true
	case f.ownPath(r) == "/sse":
		f.deps.Push.SendAwaySSE(w)
	default:
		f.fail(w, r, bad)
	}
	return false
}

// client is who asks, where there are limits for it.
func (f *Front) client(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return f.deps.Limits.Client(peer.Addr(), fieldsOf(r.Header))
}

// mayPublish takes what a publication costs its client and identity, or answers.
func (f *Front) mayPublish(w http.ResponseWriter, r *http.Request, id *auth.Identity) bool {
	if !f.deps.Limits.Limits() {
		return true
	}
	wait, ok := f.deps.Limits.Publish(f.client(r), id.Subject, f.deps.Now())
	if !ok {
		f.tooOften(w, r, wait)
	}
	return ok
}

// maySubscribe is mayPublish for a subscription. A browser's EventSource would give up
// for good after another status than 200.
func (f *Front) maySubscribe(w http.ResponseWriter, r *http.Request, id *auth.Identity) bool {
	if !f.deps.Limits.Limits() {
		return true
	}
	wait, ok := f.deps.Limits.Subscribe(f.client(r), id.Subject, f.deps.Now())
	switch {
	case ok:
	case f.ownPath(r) == "/sse":
		f.deps.Push.SendAwaySSE(w)
	default:
		f.tooOften(w, r, wait)
	}
	return ok
}

func (f *Front) tooOften(w http.ResponseWriter, r *http.Request, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(min(limit.RetryAfter(wait), 3600), 10))
	f.fail(w, r, &wire.Error{Status: http.StatusTooManyRequests, Message: "too many requests", Hint: "wait as long as Retry-After says"})
}
