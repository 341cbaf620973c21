package policy

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/authz"
)

// unavailableRetry is how long clients are asked to wait when there was no decision.
const unavailableRetry = 2

// authorize has the authorization server decide on x.
func (r *admission) authorize(x *Exchange) Verdict {
	scheme, host := x.scheme(r.deps.Trust, x.Peer.Addr().Unmap())
	d, query := r.forward.Decide(&authz.Request{
		Method: x.Method, Host: host, Path: x.path, Query: x.Query, Scheme: scheme, Client: x.Client, Fields: x.Fields,
	}, time.Now())
	if query != nil {
		return Verdict{Action: Authorize, Query: query}
	}
	return r.AdmitDecision(x, d)
}

// AdmitDecision continues after Authorize: d is what the query returned. As for AdmitIdentity, x
// must be as it was.
func (r *admission) AdmitDecision(x *Exchange, d *authz.Decision) Verdict {
	if d.Extension {
		return extended(r, x, d)
	}
	x.decision = d
	switch {
	case d.Admit:
		return extend(r, x)
	case d.Unavailable:
		v := r.later(x, unavailableRetry, "the authorization server is not available")
		v.Status = http.StatusServiceUnavailable
		return v
	}
	return respond(r, x, d)
}

// respond is a refusal that others have written.
func respond(r *admission, x *Exchange, d *authz.Decision) Verdict {
	x.lines = append(x.lines[:0], d.Fields...)
	x.lines = r.AppendCORS(x.lines, x)
	return Verdict{Action: Respond, Status: d.Status, Fields: x.lines, ContentType: d.ContentType, Body: d.Body}
}

// Forward returns the client of the route's authorization server; nil: there is none.
func (r *admission) Forward() *authz.Forward { return r.forward }

// Forwarding returns the counters of the routes with an authorization server, by the route's name.
// Any goroutine.
func (s *State) Forwarding() map[string]authz.Stats {
	all := map[string]authz.Stats{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.routes {
		r.mu.Lock()
		if r.forward != nil {
			all[name] = r.forward.Stats()
		}
		r.mu.Unlock()
	}
	return all
}

// forwardTo returns the client of cfg's server. It stays over reloads that leave cfg alone,
// and with it what is cached.
func (s *routeState) forwardTo(cfg authz.ForwardConfig) *authz.Forward {
	cfg = cfg.WithDefaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forward == nil || !reflect.DeepEqual(s.forward.Config(), cfg) {
		s.forward = authz.NewForward(cfg)
	}
	return s.forward
}

// validateForwardAuth checks what ForwardConfig.Validate cannot know.
func (c *RouteConfig) validateForwardAuth() error {
	var errs []error
	if err := c.ForwardAuth.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("forward_auth.%w", err))
	}
	for i, name := range c.ForwardAuth.ResponseHeaders {
		if err := MayChange(name); err != nil {
			errs = append(errs, fmt.Errorf("forward_auth.response_headers[%d]: %w", i, err))
		}
		for rule := range c.RequestHeaders.Set {
			if strings.EqualFold(rule, name) {
				errs = append(errs, fmt.Errorf("forward_auth.response_headers[%d]: request_headers.set sets %s as well: remove one of them", i, name))
			}
		}
	}
	return errors.Join(errs...)
}
