package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/authz"
	"github.com/weir-gateway/weir/internal/front/extension"
	"github.com/weir-gateway/weir/internal/front/http1"
)

// extend has the extensions decide on x, which was authorized.
func extend(r *admission, x *Exchange) Verdict {
	all := r.deps.Extensions
	if !all.Handles(extension.Request, r.cfg.Name) {
		return r.passed(x)
	}
	e := x.event(extension.Request)
	if d := all.Cached(e); d != nil {
		return extended(r, x, d)
	}
	return Verdict{Action: Authorize, Query: extensionQuery{all, e}, Own: true}
}

// extensionQuery has extensions decide.
type extensionQuery struct {
	all *extension.Extensions
	e   *extension.Event
}

// Do implements authz.Query.
func (q extensionQuery) Do(ctx context.Context) *authz.Decision { return q.all.Decide(ctx, q.e) }

// extended continues with what the extensions decided.
func extended(r *admission, x *Exchange, d *authz.Decision) Verdict {
	switch {
	case d.Admit:
		x.extension = d
		if d.Identity != nil {
			x.Identity = d.Identity
		}
		return r.passed(x)
	case d.Unavailable:
		v := r.later(x, unavailableRetry, d.Message)
		v.Status, v.Hint = d.Status, "try again later"
		return v
	case d.Body == nil:
		v := r.refuse(x, d.Status, d.Message, "")
		x.lines = append(x.lines, d.Fields...)
		v.Fields = x.lines
		return v
	}
	return respond(r, x, d)
}

// event describes x to extensions. It shares nothing with x.
func (x *Exchange) event(k extension.Kind) *extension.Event {
	scheme, host := x.scheme(x.Route.deps.Trust, x.Peer.Addr().Unmap())
	e := &extension.Event{
		Kind: k, Route: x.Route.cfg.Name, Connection: x.Connection, Client: x.Client, User: x.Identity.Subject,
		Method: string(x.Method), Scheme: scheme, Host: string(host), Path: string(x.path),
	}
	if x.Query != nil {
		e.Path += "?" + string(x.Query)
	}
	e.Headers = EventHeaders(x.Fields)
	return e
}

// EventHeaders returns the fields of a head that extensions get: those of the connection and
// Weir's own admin cookie are not among them.
func EventHeaders(fields []http1.Field) []extension.Field {
	out := make([]extension.Field, 0, len(fields))
	perHop := listsNames(fields)
	for i := range fields {
		f := &fields[i]
		if slices.ContainsFunc(hopNames, func(n string) bool { return http1.EqualFold(f.Name, n) }) || perHop && listed(fields, f.Name) {
			continue
		}
		value := string(f.Value)
		if http1.EqualFold(f.Name, "cookie") {
			if value = string(http1.AppendWithoutCookie(nil, f.Value, auth.AdminCookie)); value == "" {
				continue
			}
		}
		out = append(out, extension.Field{Name: string(f.Name), Value: value})
	}
	return out
}

// ResponseEvent describes the head of a backend's response to extensions; nil: none is called.
// It may be called after Retain.
func (r *Route) ResponseEvent(x *Exchange, status int, fields []http1.Field) *extension.Event {
	if !r.deps.Extensions.Handles(extension.Response, r.cfg.Name) || x.request == nil {
		return nil
	}
	e := *x.request
	e.Kind, e.Status, e.Headers = extension.Response, status, EventHeaders(fields)
	return &e
}

// Extensions are those that decide on the responses of r's backends.
func (r *Route) Extensions() *extension.Extensions { return r.deps.Extensions }

// Responded notes what extensions decided on the response, before AppendResponseHead.
func (x *Exchange) Responded(d *authz.Decision) { x.response = d }

// removed reports whether d replaces or removes a field.
func removed(d *authz.Decision, name []byte) bool {
	return d != nil && slices.ContainsFunc(d.Removed, func(n string) bool { return http1.EqualFold(name, n) })
}

// MayChange returns why neither authorization servers nor extensions may set or remove a field.
func MayChange(name string) error {
	switch low := strings.ToLower(name); {
	case slices.Contains(untouchable, low):
		return fmt.Errorf("%s belongs to the connection and cannot be changed", name)
	case strings.HasPrefix(low, "x-weir-"):
		return errors.New("names that start with X-Weir- are Weir's own")
	case !plainName([]byte(low)):
		return fmt.Errorf("invalid name %q: want letters, digits and hyphens, as backends read no others in one way", name)
	}
	return nil
}
