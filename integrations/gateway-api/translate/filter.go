package translate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// filters are those that need more than the rule itself.
type filters struct {
	redirect *gw.HTTPRequestRedirectFilter
	mirror   *gw.HTTPRequestMirrorFilter
}

// filters translates what changes requests and responses.
func (r *rule) filters(in []gw.HTTPRouteFilter) (f filters) {
	rewrites := false
	for i := range in {
		switch in := &in[i]; {
		case in.Type == gw.HTTPRouteFilterRequestHeaderModifier && in.RequestHeaderModifier != nil:
			r.modify(&r.to.RequestHeaders, in.RequestHeaderModifier)
		case in.Type == gw.HTTPRouteFilterResponseHeaderModifier && in.ResponseHeaderModifier != nil:
			r.modify(&r.to.ResponseHeaders, in.ResponseHeaderModifier)
		case in.Type == gw.HTTPRouteFilterRequestRedirect && in.RequestRedirect != nil:
			f.redirect = in.RequestRedirect
		case in.Type == gw.HTTPRouteFilterURLRewrite && in.URLRewrite != nil:
			rewrites = true
			r.rewrite(in.URLRewrite)
		case in.Type == gw.HTTPRouteFilterRequestMirror && in.RequestMirror != nil:
			if f.mirror != nil {
				r.refuse(gw.RouteReasonUnsupportedValue, "filters: Weir copies requests to one backend: write one RequestMirror")
			}
			f.mirror = in.RequestMirror
		default:
			r.refuse(gw.RouteReasonUnsupportedValue, "filters: type %s is not supported", in.Type)
		}
	}
	if f.redirect != nil && (rewrites || f.mirror != nil) {
		r.refuse(gw.RouteReasonIncompatibleFilters, "filters: RequestRedirect cannot be together with URLRewrite and RequestMirror")
	}
	return f
}

func (r *rule) modify(to *policy.HeaderRules, in *gw.HTTPHeaderFilter) {
	put := func(m *map[string]string, headers []gw.HTTPHeader) {
		for _, h := range headers {
			if *m == nil {
				*m = map[string]string{}
			}
			if !slices.ContainsFunc(sortedKeys(*m), func(name string) bool { return strings.EqualFold(name, string(h.Name)) }) {
				(*m)[string(h.Name)] = h.Value
			}
		}
	}
	put(&to.Set, in.Set)
	put(&to.Add, in.Add)
	to.Remove = append(to.Remove, in.Remove...)
}

func (r *rule) rewrite(in *gw.HTTPURLRewriteFilter) {
	r.to.Rewrite.Host = string(or(in.Hostname, ""))
	switch p := in.Path; {
	case p == nil:
	case p.Type == gw.FullPathHTTPPathModifier:
		r.to.Rewrite.Path = r.literal("filters: urlRewrite.path.replaceFullPath", or(p.ReplaceFullPath, "/"))
	case p.Type == gw.PrefixMatchHTTPPathModifier:
		r.rewritePrefix = r.literal("filters: urlRewrite.path.replacePrefixMatch", or(p.ReplacePrefixMatch, "/"))
		r.needsPrefixes("urlRewrite")
	default:
		r.refuse(gw.RouteReasonUnsupportedValue, "filters: urlRewrite.path.type %s is not supported", p.Type)
	}
}

// literal returns path, which must not read as a template of Weir's.
func (r *rule) literal(field, path string) string {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if strings.ContainsAny(path, "{}$?#") {
		r.refuse(gw.RouteReasonUnsupportedValue, "%s: %q: characters {, }, $, ? and # are not supported", field, path)
	}
	return path
}

// needsPrefixes refuses a replaced prefix where a match has none.
func (r *rule) needsPrefixes(filter string) {
	for _, m := range r.matches {
		if m.kind != prefix {
			r.refuse(gw.RouteReasonIncompatibleFilters, "filters: %s.path.replacePrefixMatch needs matches of type PathPrefix", filter)
		}
	}
}

// redirects makes r answer with another place. port and https are those of the listener.
func (r *rule) redirects(in *gw.HTTPRequestRedirectFilter, port gw.PortNumber, https bool) {
	scheme := "http"
	if https {
		scheme = "https"
	}
	known := map[string]gw.PortNumber{"http": 80, "https": 443}
	if in.Scheme != nil {
		scheme = strings.ToLower(*in.Scheme)
		if port = known[scheme]; port == 0 {
			r.refuse(gw.RouteReasonUnsupportedValue, "filters: requestRedirect.scheme %q: write http or https", *in.Scheme)
		}
	}
	host := string(or(in.Hostname, "$host"))
	if port = or(in.Port, port); port != known[scheme] {
		host = fmt.Sprintf("%s:%d", host, port)
	}
	path := "$path"
	switch p := in.Path; {
	case p == nil:
	case p.Type == gw.FullPathHTTPPathModifier:
		path = r.literal("filters: requestRedirect.path.replaceFullPath", or(p.ReplaceFullPath, "/"))
	case p.Type == gw.PrefixMatchHTTPPathModifier:
		path = ""
		r.redirectPrefix = r.literal("filters: requestRedirect.path.replacePrefixMatch", or(p.ReplacePrefixMatch, "/"))
		r.needsPrefixes("requestRedirect")
	default:
		r.refuse(gw.RouteReasonUnsupportedValue, "filters: requestRedirect.path.type %s is not supported", p.Type)
	}
	r.to.Redirect = policy.Redirect{To: scheme + "://" + host + path, Status: or(in.StatusCode, 302)}
	if r.redirectPrefix == "" {
		r.to.Redirect.To += "$query"
	}
}

// timeouts translates the timeouts of a rule. backendRequest bounds an attempt until its
// response is complete: with one attempt that is the whole.
func (r *rule) timeouts(in *gw.HTTPRouteTimeouts) {
	if in == nil || r.to.Cluster == "" {
		return
	}
	read := func(field string, d *gw.Duration) hub.Duration {
		if d == nil {
			return 0
		}
		v, err := time.ParseDuration(string(*d))
		if err != nil || v < 0 {
			r.refuse(gw.RouteReasonUnsupportedValue, "timeouts.%s: %q is not a duration", field, *d)
		}
		return hub.Duration(v)
	}
	request, backend := read("request", in.Request), read("backendRequest", in.BackendRequest)
	r.to.Timeouts.Total = request
	if backend > 0 {
		r.to.Retry.Attempts = -1
		if request == 0 || backend < request {
			r.to.Timeouts.Total = backend
		}
	}
	if total := r.to.Timeouts.Total; total > 0 {
		r.to.Timeouts.FirstByte = total // the cluster's own is shorter than a long bound
	}
}

// check has Weir validate what the rule amounts to, at each path it is for.
func (r *rule) check() {
	if !r.unsupported.none() {
		return
	}
	for i := range r.matches {
		m := &r.matches[i]
		c := r.at(m, place{kind: m.kind, path: m.path})
		c.Path, c.Match = m.pattern(), policy.Match{Headers: m.headers, Query: m.query}
		if _, err := policy.New([]policy.RouteConfig{c}, policy.Deps{}); err != nil {
			message := strings.TrimPrefix(err.Error(), fmt.Sprintf("route %q: ", c.Name))
			r.refuse(gw.RouteReasonUnsupportedValue, "matches[%d]: %s", i, message)
		}
	}
}
