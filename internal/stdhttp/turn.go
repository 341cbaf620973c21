package stdhttp

import (
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/limit"
	"github.com/weir-gateway/weir/internal/wire"
)

// turn waits for the turn of a call that publishes to channels. leave is to be called
// when it is done; bad says why it is not to be done.
func (f *Front) turn(r *http.Request, channels []string) (leave func(), bad *wire.Error) {
	if f.deps.Gate == nil {
		return func() {}, nil
	}
	class := f.deps.ClassOf(channels)
	if class == limit.Unclassed {
		return func() {}, nil
	}
	leave, expired, ok := f.deps.Gate.Enter(r.Context(), class)
	switch {
	case ok:
		return leave, nil
	case expired:
		return nil, &wire.Error{Status: http.StatusServiceUnavailable, Message: "expired, not executed", Hint: "it waited for too long; try again later"}
	}
	return nil, &wire.Error{Status: http.StatusServiceUnavailable, Message: "overloaded, try again later"}
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
	if f.deps.Limits == nil {
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
	if f.deps.Limits == nil {
		return true
	}
	wait, ok := f.deps.Limits.Subscribe(f.client(r), id.Subject, f.deps.Now())
	switch {
	case ok:
	case rawPath(r) == "/sse":
		f.cors(w, r)
		f.deps.Push.Away(w, true)
	default:
		f.tooOften(w, r, wait)
	}
	return ok
}

func (f *Front) tooOften(w http.ResponseWriter, r *http.Request, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(min(limit.RetryAfter(wait), 3600), 10))
	f.fail(w, r, &wire.Error{Status: http.StatusTooManyRequests, Message: "too many requests", Hint: "wait as long as Retry-After says"})
}
