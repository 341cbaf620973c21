package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/policy"
)

// An entry is one match of a rule on one host.
type entry struct {
	host  string
	match *match
	rule  *rule
	order int // of older routes and earlier rules and matches first
}

// entries returns what the table gets of r on hosts.
func (r *route) entries(hosts []string) []entry {
	var all []entry
	for _, host := range hosts {
		for i := range r.rules {
			if u := &r.rules[i]; u.unsupported.none() {
				for k := range u.matches {
					all = append(all, entry{host: host, match: &u.matches[k], rule: u})
				}
			}
		}
	}
	return all
}

// A place is a path of a route of Weir's.
type place struct {
	kind pathKind
	path string
}

// tabulate lays entries, the oldest first, out as routes of Weir's, which choose the most
// specific path and then among the routes of that path alone. So each path has, after its
// own, the entries of all less specific paths that cover it, until one accepts everything.
// What none takes is answered 404.
func tabulate(entries []entry) []policy.RouteConfig {
	byHost := map[string][]entry{}
	for i, e := range entries {
		e.order = i
		byHost[e.host] = append(byHost[e.host], e)
	}
	var routes []policy.RouteConfig
	for _, host := range sortedKeys(byHost) {
		list := byHost[host]
		slices.SortFunc(list, func(a, b entry) int { return cmp.Or(a.match.precedence(b.match), cmp.Compare(a.order, b.order)) })
		for _, p := range places(list) {
			routes = append(routes, fill(host, p, list)...)
		}
	}
	return routes
}

// places are the paths that list needs, in a fixed order.
func places(list []entry) []place {
	set := map[place]bool{}
	for _, e := range list {
		set[place{e.match.kind, e.match.path}] = true
	}
	for _, e := range list {
		for p := range set {
			switch {
			case e.rule.redirectPrefix != "" && p.kind == prefix && p.path != "" && e.match.takes(p):
				set[place{exact, p.path}] = true // "/a" has no slash that its Location could have
			case e.match.kind == service && p.kind == prefix && p.path != "" && !strings.Contains(p.path[1:], "/"):
				set[place{exact, p.path + strings.TrimPrefix(e.match.path, "/{service}")}] = true
			}
		}
	}
	all := make([]place, 0, len(set))
	for p := range set {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b place) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.kind, b.kind)) })
	return all
}

// fill returns the routes of one path of a host.
func fill(host string, p place, list []entry) []policy.RouteConfig {
	var here []entry
	methods := map[string]bool{}
	for _, e := range list {
		if e.match.takes(p) {
			here = append(here, e)
			if e.match.method != "" {
				methods[e.match.method] = true
			}
		}
	}
	if methods["GET"] {
		methods["HEAD"] = true // GET does not match HEAD here, as it does in Weir
	}
	at := match{kind: p.kind, path: p.path}
	var routes []policy.RouteConfig
	add := func(method string) {
		whole := false
		for _, e := range here {
			if whole || e.match.method != "" && e.match.method != method {
				continue
			}
			c := e.rule.at(e.match, p)
			c.Host, c.Path, c.Match = host, at.pattern(), policy.Match{Headers: e.match.headers, Query: e.match.query}
			if method != "" {
				c.Methods = []string{method}
			}
			routes = append(routes, c)
			whole = e.match.unconditional()
		}
		if !whole {
			c := policy.RouteConfig{Host: host, Path: at.pattern(), Reply: policy.Reply{Status: 404, Body: "no route\n"}}
			if method != "" {
				c.Methods = []string{method}
			}
			routes = append(routes, c)
		}
	}
	for _, m := range sortedKeys(methods) {
		add(m)
	}
	add("")
	for i := range routes {
		c := &routes[i]
		label := "none"
		if c.Name != "" {
			label = c.Name
		}
		c.Name = fmt.Sprintf("gateway-api/%s %s%s #%d", label, cmp.Or(host, "*"), at.pattern(), i)
	}
	return routes
}

// at returns r's route for what match matches at p, which it covers. Name is the rule's.
func (r *rule) at(m *match, p place) policy.RouteConfig {
	c := r.to
	c.Name = r.name
	if r.rewritePrefix != "" {
		c.Rewrite.StripPrefix, c.Rewrite.AddPrefix = m.path, strings.TrimRight(r.rewritePrefix, "/")
	}
	if r.redirectPrefix != "" {
		to := strings.TrimRight(r.redirectPrefix, "/") + strings.TrimPrefix(p.path, m.path)
		if p.kind == prefix {
			to += "/{*}"
		}
		c.Redirect.To += cmp.Or(to, "/") + "$query"
	}
	return c
}
