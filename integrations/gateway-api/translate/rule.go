package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/front/router"
)

// A rule is one of a route's, as Weir has it.
type rule struct {
	name    string // of its route, with its number
	matches []match
	to      policy.RouteConfig // without name, host, path, methods and match
	// redirectPrefix, if to redirects with the matched prefix replaced, is what replaces it;
	// "/" for nothing.
	redirectPrefix string
	// rewritePrefix, likewise, of a rewrite.
	rewritePrefix string

	// unsupported is why it cannot be programmed, unresolved which of its references fails;
	// what fails then answers 500 or 503.
	unsupported, unresolved problem
}

// refuse notes the first thing that Weir cannot express.
func (r *rule) refuse(reason gw.RouteConditionReason, format string, args ...any) {
	if r.unsupported.none() {
		r.unsupported = problem{string(reason), fmt.Sprintf(format, args...)}
	}
}

// fail notes the first reference that fails.
func (r *rule) fail(reason gw.RouteConditionReason, format string, args ...any) {
	if r.unresolved.none() {
		r.unresolved = problem{string(reason), fmt.Sprintf(format, args...)}
	}
}

// validHost reports whether Weir takes h as the host of a route.
func validHost(h string) bool {
	_, err := policy.New([]policy.RouteConfig{{Host: h, Reply: policy.Reply{Status: 404}}}, policy.Deps{})
	return err == nil
}

// pathKind reports how a path is compared.
type pathKind uint8

const (
	prefix  pathKind = iota // whole segments; the path is without a slash at its end
	service                 // any gRPC service, this method: "/{service}/Method"
	exact
)

// A match is what a request must be for a rule.
type match struct {
	kind    pathKind
	path    string // "" is the prefix of all
	method  string // "" is any
	headers []policy.Condition
	query   []policy.Condition
}

// pattern returns the path as Weir's routes have it.
func (m *match) pattern() string {
	if m.kind == prefix {
		return m.path + "/*"
	}
	return m.path
}

// takes reports whether every path of the place p is one of m's.
func (m *match) takes(p place) bool {
	switch m.kind {
	case exact:
		return p.kind == exact && p.path == m.path
	case service:
		method := strings.TrimPrefix(m.path, "/{service}")
		first, rest, _ := strings.Cut(strings.TrimPrefix(p.path, "/"), "/")
		return p.kind == service && p.path == m.path || p.kind == exact && first != "" && "/"+rest == method
	}
	return p.path == m.path || strings.HasPrefix(p.path, m.path+"/")
}

func (m *match) unconditional() bool { return len(m.headers)+len(m.query) == 0 }

// precedence orders matches as the specification says: the smaller one is tried first.
func (m *match) precedence(o *match) int {
	method := func(m *match) int { return min(len(m.method), 1) }
	return cmp.Or(cmp.Compare(o.kind, m.kind), cmp.Compare(len(o.path), len(m.path)), cmp.Compare(method(o), method(m)),
		cmp.Compare(len(o.headers), len(m.headers)), cmp.Compare(len(o.query), len(m.query)))
}

// httpRules translates the rules of an HTTPRoute.
func (t *translation) httpRules(o *gw.HTTPRoute) []rule {
	rules := make([]rule, len(o.Spec.Rules))
	for i := range o.Spec.Rules {
		in, r := &o.Spec.Rules[i], &rules[i]
		r.name = fmt.Sprintf("http/%s/%s/%d", o.Namespace, o.Name, i)
		r.matches = httpMatches(r, in.Matches)
		switch {
		case in.Retry != nil:
			r.refuse(gw.RouteReasonUnsupportedValue, "retry is not supported: Weir retries requests that failed before the first byte by itself")
		case in.SessionPersistence != nil:
			r.refuse(gw.RouteReasonUnsupportedValue, "sessionPersistence is not supported")
		}
		f := r.filters(in.Filters)
		var backends []backend
		for _, b := range in.BackendRefs {
			if len(b.Filters) > 0 {
				r.refuse(gw.RouteReasonUnsupportedValue, "backendRefs[].filters are not supported: write filters of the rule")
			}
			backends = append(backends, backend{ref: b.BackendObjectReference, weight: or(b.Weight, 1)})
		}
		t.lead(r, "HTTPRoute", o.Namespace, f, backends)
		r.timeouts(in.Timeouts)
		r.check()
	}
	return rules
}

// httpMatches translates matches; none is every path.
func httpMatches(r *rule, in []gw.HTTPRouteMatch) []match {
	if len(in) == 0 {
		return []match{{}}
	}
	var all []match
	for i := range in {
		var m match
		switch path := in[i].Path; {
		case path == nil:
		case or(path.Type, gw.PathMatchPathPrefix) == gw.PathMatchPathPrefix:
			m.path = strings.TrimRight(r.path(or(path.Value, "/")), "/")
		case *path.Type == gw.PathMatchExact:
			m.kind, m.path = exact, r.path(or(path.Value, "/"))
		default:
			r.refuse(gw.RouteReasonUnsupportedValue, "matches[%d].path.type %s: write Exact or PathPrefix", i, *path.Type)
		}
		m.method = string(or(in[i].Method, ""))
		for _, h := range in[i].Headers {
			if or(h.Type, gw.HeaderMatchExact) != gw.HeaderMatchExact {
				r.refuse(gw.RouteReasonUnsupportedValue, "matches[%d].headers: type %s: write Exact", i, *h.Type)
			}
			m.headers = condense(m.headers, policy.Condition{Name: string(h.Name), Value: h.Value}, strings.EqualFold)
		}
		for _, q := range in[i].QueryParams {
			if or(q.Type, gw.QueryParamMatchExact) != gw.QueryParamMatchExact {
				r.refuse(gw.RouteReasonUnsupportedValue, "matches[%d].queryParams: type %s: write Exact", i, *q.Type)
			}
			m.query = condense(m.query, policy.Condition{Name: string(q.Name), Value: q.Value}, func(a, b string) bool { return a == b })
		}
		all = append(all, m)
	}
	return all
}

// path returns a path of a match in the one spelling in which Weir matches requests.
func (r *rule) path(p string) string {
	normal, _, err := router.Normalize(nil, []byte(p))
	switch {
	case err != nil:
		r.refuse(gw.RouteReasonUnsupportedValue, "matches: path %q: %v", p, err)
	case strings.ContainsAny(p, "{}*"):
		r.refuse(gw.RouteReasonUnsupportedValue, "matches: path %q: characters {, } and * are not supported", p)
	}
	return string(normal)
}

// condense adds c unless its name is there: of equal names the first counts.
func condense(list []policy.Condition, c policy.Condition, same func(a, b string) bool) []policy.Condition {
	if slices.ContainsFunc(list, func(o policy.Condition) bool { return same(o.Name, c.Name) }) {
		return list
	}
	return append(list, c)
}

// grpcRules translates the rules of a GRPCRoute.
func (t *translation) grpcRules(o *gw.GRPCRoute) []rule {
	rules := make([]rule, len(o.Spec.Rules))
	for i := range o.Spec.Rules {
		in, r := &o.Spec.Rules[i], &rules[i]
		r.name = fmt.Sprintf("grpc/%s/%s/%d", o.Namespace, o.Name, i)
		r.matches = grpcMatches(r, in.Matches)
		if in.SessionPersistence != nil {
			r.refuse(gw.RouteReasonUnsupportedValue, "sessionPersistence is not supported")
		}
		var filters []gw.HTTPRouteFilter
		for _, f := range in.Filters {
			filters = append(filters, gw.HTTPRouteFilter{Type: gw.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
				ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef})
		}
		f := r.filters(filters)
		var backends []backend
		for _, b := range in.BackendRefs {
			if len(b.Filters) > 0 {
				r.refuse(gw.RouteReasonUnsupportedValue, "backendRefs[].filters are not supported: write filters of the rule")
			}
			backends = append(backends, backend{ref: b.BackendObjectReference, weight: or(b.Weight, 1)})
		}
		t.lead(r, "GRPCRoute", o.Namespace, f, backends)
		r.check()
	}
	return rules
}

func grpcMatches(r *rule, in []gw.GRPCRouteMatch) []match {
	if len(in) == 0 {
		return []match{{}}
	}
	var all []match
	for i := range in {
		var m match
		if call := in[i].Method; call != nil {
			if or(call.Type, gw.GRPCMethodMatchExact) != gw.GRPCMethodMatchExact {
				r.refuse(gw.RouteReasonUnsupportedValue, "matches[%d].method.type %s: write Exact", i, *call.Type)
			}
			switch s, name := or(call.Service, ""), or(call.Method, ""); {
			case s == "" && name == "":
			case s == "":
				m.kind, m.path = service, "/{service}"+r.path("/"+name)
			case name == "":
				m.path = r.path("/" + s)
			default:
				m.kind, m.path = exact, r.path("/"+s+"/"+name)
			}
		}
		for _, h := range in[i].Headers {
			if or(h.Type, gw.GRPCHeaderMatchExact) != gw.GRPCHeaderMatchExact {
				r.refuse(gw.RouteReasonUnsupportedValue, "matches[%d].headers: type %s: write Exact", i, *h.Type)
			}
			m.headers = condense(m.headers, policy.Condition{Name: string(h.Name), Value: h.Value}, strings.EqualFold)
		}
		all = append(all, m)
	}
	return all
}
