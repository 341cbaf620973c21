package downstream

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/push"
)

// known finds who makes the request, as far as that takes no time. If not known, a
// token has to be verified; or, without a token, the request was answered already.
func (r *request) known() (id *auth.Identity, token string, known bool) {
	srv := r.h.loopState.srv
	if r.head.Count("X-API-Key") > 1 {
		r.fail(&push.APIError{Status: http.StatusBadRequest, Message: "repeated X-API-Key header"})
		return nil, "", false
	}
	if key := r.head.Get("X-API-Key"); key != nil {
		id, ok := srv.auth.APIKey(key)
		if !ok {
			r.fail(&push.APIError{Status: http.StatusUnauthorized, Message: "unknown API key", Hint: "it must be listed in auth.api_keys"})
		}
		return id, "", ok
	}
	if r.head.Count("Authorization") > 1 || r.head.Count("Cookie") > 1 {
		r.fail(&push.APIError{Status: http.StatusBadRequest, Message: "repeated Authorization or Cookie header"})
		return nil, "", false
	}
	query, _ := http1.QueryValue(r.head.Query, "token")
	token, source := srv.auth.Token(r.head.Get("Authorization"), r.head.Get("Cookie"), query)
	if source == auth.NoToken || source == auth.FromCookie && r.access != auth.OriginTrusted {
		return auth.Anonymous, "", true
	}
	id, known = srv.auth.Cached(token)
	return id, token, known
}

// identify finds who makes the request and continues with then, at once or when a
// token has been verified off the loop.
func (r *builtin) identify(then func(*request, *auth.Identity)) {
	id, token, known := r.known()
	switch {
	case known:
		then(r.request, id)
	case token != "":
		r.verify(token, then)
	}
}

// verify verifies a token and continues with then, if it holds.
func (r *builtin) verify(token string, then func(*request, *auth.Identity)) {
	r.verifyWith(token, func(r *request, id *auth.Identity, err error) {
		if err == nil {
			then(r, id)
			return
		}
		r.h.dropBody()
		if r.builtin.eventful && r.builtin.refuseEvents(err) {
			return
		}
		e := tokenError(err)
		r.refused = e.Status == http.StatusUnauthorized
		r.fail(e)
	})
}

// verifyWith checks a token on a goroutine of the server's.
func (r *request) verifyWith(token string, then func(*request, *auth.Identity, error)) {
	srv := r.h.loopState.srv
	if srv.inFlight.Add(1) > int64(srv.cfg.MaxVerifying) {
		srv.inFlight.Add(-1)
		r.overloaded()
		return
	}
	r.h.wait(r.c)
	r.unread = r.unread || r.h.pending == r && r.h.left != 0 // its body stays where it is meanwhile
	srv.working.Go(func() {
		id, err := srv.auth.Verify(srv.ctx, token, time.Now())
		srv.inFlight.Add(-1)
		r.c.Loop().Post(func() {
			if r.c.Closing() {
				return
			}
			r.h.unwait()
			if err == nil {
				err = srv.auth.Revoked().Refuse(id) // since
			}
			if err != nil {
				srv.log.Debug("token refused", "conn", r.c.ID(), "peer", r.c.Peer(), "err", err)
			}
			then(r, id, err)
		})
	})
}

// overloaded refuses what would be served at another time. A browser's
// EventSource would give up for good after a status other than 200.
func (r *request) overloaded() {
	if r.endpoint.stream {
		r.h.loopState.srv.push.RejectSSE(r.c, r.fields())
		return
	}
	r.fail(&push.APIError{Status: http.StatusServiceUnavailable, Message: "too many tokens to verify, try again later"})
}

// refuseEvents answers a client of events whose token cannot be accepted now, in a way
// that keeps a browser's EventSource trying.
func (r *builtin) refuseEvents(err error) bool {
	switch {
	case errors.Is(err, auth.ErrExpired):
		r.h.loopState.counters.refused.Add(1)
		r.h.loopState.srv.push.SendExpiredSSE(r.c, r.fields())
	case errors.Is(err, auth.ErrKeysUnavailable):
		r.h.loopState.srv.push.RejectSSE(r.c, r.fields())
	default:
		return false
	}
	r.release()
	return true
}

func tokenError(err error) *push.APIError {
	const hint = "get a new token and connect with that"
	switch {
	case errors.Is(err, auth.ErrKeysUnavailable), errors.Is(err, context.Canceled):
		return &push.APIError{Status: http.StatusServiceUnavailable, Message: "the keys to verify tokens are not available, try again later"}
	case errors.Is(err, auth.ErrExpired):
		return &push.APIError{Status: http.StatusUnauthorized, Message: "token expired", Hint: hint}
	case errors.Is(err, auth.ErrRevoked):
		return &push.APIError{Status: http.StatusUnauthorized, Message: "token revoked", Hint: "log in again"}
	}
	return &push.APIError{Status: http.StatusUnauthorized, Message: "token refused", Hint: hint}
}
