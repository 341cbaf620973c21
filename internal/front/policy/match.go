package policy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/router"
)

// Match are conditions on a request besides host, path and method. All must hold.
type Match struct {
	// Headers of the request. Of a repeated one any may match.
	Headers []Condition `json:"headers"`
	// Query parameters of the request. Of a repeated one the first counts.
	Query []Condition `json:"query"`
}

// Condition compares one header or query parameter.
type Condition struct {
	// Name of the header, in any case, or of the parameter, in its own.
	Name string `json:"name"`
	// Value is what it must be, byte for byte; of a parameter, after decoding. Empty: it
	// must be there.
	Value string `json:"value"`
}

// maxConditions bounds the conditions of a route.
const maxConditions = 32

// conditional reports whether m has any condition.
func (m *Match) conditional() bool { return len(m.Headers)+len(m.Query) > 0 }

func (m *Match) validate() error {
	var errs []error
	if n := len(m.Headers) + len(m.Query); n > maxConditions {
		errs = append(errs, fmt.Errorf("match: %d conditions: write %d at most", n, maxConditions))
	}
	for _, c := range m.Headers {
		if !http1.ValidName(c.Name) {
			errs = append(errs, fmt.Errorf("match.headers: %q is not a field name", c.Name))
		}
		if strings.EqualFold(c.Name, "Host") {
			errs = append(errs, errors.New("match.headers: Host: write it as the route's host"))
		}
	}
	for _, c := range m.Query {
		if c.Name == "" {
			errs = append(errs, errors.New("match.query: a condition names no parameter"))
		}
	}
	return errors.Join(errs...)
}

// matches reports whether x meets the conditions.
func (m *Match) matches(x *Exchange) bool { return m.matchesHeaders(x) && m.matchesQuery(x) }

func (m *Match) matchesHeaders(x *Exchange) bool {
	for i := range m.Headers {
		c := &m.Headers[i]
		if !slices.ContainsFunc(x.Fields, func(f http1.Field) bool {
			return len(f.Name) == len(c.Name) && http1.EqualFold(f.Name, c.Name) && (c.Value == "" || string(f.Value) == c.Value)
		}) {
			return false
		}
	}
	return true
}

func (m *Match) matchesQuery(x *Exchange) bool {
	for i := range m.Query {
		if c := &m.Query[i]; !c.matches(x.Query) {
			return false
		}
	}
	return true
}

// matches looks at the first parameter of c's name.
func (c *Condition) matches(query []byte) bool {
	for len(query) > 0 {
		var pair []byte
		pair, query, _ = bytes.Cut(query, []byte{'&'})
		name, value, _ := bytes.Cut(pair, []byte{'='})
		if decodesTo(name, c.Name) {
			return c.Value == "" || decodesTo(value, c.Value)
		}
	}
	return false
}

// decodesTo reports whether b, a part of a query, is text once it is decoded (WHATWG URL
// §5.1). A percent sign without two digits represents itself.
func decodesTo(b []byte, text string) bool {
	i := 0
	for k := range len(text) {
		if i == len(b) {
			return false
		}
		c := b[i]
		i++
		switch {
		case c == '+':
			c = ' '
		case c == '%' && i+1 < len(b) && isHex(b[i]) && isHex(b[i+1]):
			c = unhex(b[i])<<4 | unhex(b[i+1])
			i += 2
		}
		if c != text[k] {
			return false
		}
	}
	return i == len(b)
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// A table is what a router's rules lead to. Routes of one host and path of which some have
// conditions share rules, one for each of their methods.
type table struct {
	rules  []router.Rule
	chains [][]*Route // by rule: tried in this order
}

// newTable lays routes out. A rule that would have two routes without conditions is left to
// the router twice, which reports the conflict.
func newTable(routes []*Route) *table {
	t := &table{}
	type place struct{ host, path string }
	groups := map[place][]*Route{}
	at := func(r *Route) place { return place{strings.ToLower(r.cfg.Host), r.cfg.Path} }
	conditional := map[place]bool{}
	for _, r := range routes {
		p := at(r)
		groups[p] = append(groups[p], r)
		conditional[p] = conditional[p] || r.cfg.Match.conditional()
	}
	for _, r := range routes {
		switch p := at(r); {
		case !conditional[p]:
			t.add(r.cfg.Methods, r, r)
		case groups[p] != nil:
			t.share(groups[p])
			groups[p] = nil
		}
	}
	return t
}

// add adds the rule for methods of the place of named, which errors name.
func (t *table) add(methods []string, named *Route, chain ...*Route) {
	c := &named.cfg
	t.rules = append(t.rules, router.Rule{Name: c.Name, Host: c.Host, Path: c.Path, Methods: methods})
	t.chains = append(t.chains, chain)
}

// share adds the rules of routes that have one host and path. Those for a method go before
// those for any, and among them those with conditions first, in the order of the file.
func (t *table) share(routes []*Route) {
	var methods []string
	var all []*Route
	for _, r := range routes {
		if len(r.cfg.Methods) == 0 {
			all = append(all, r)
		}
		methods = append(methods, r.cfg.Methods...)
		if slices.Contains(r.cfg.Methods, "GET") {
			methods = append(methods, "HEAD")
		}
	}
	all = t.ordered(nil, all)
	slices.Sort(methods)
	for _, m := range slices.Compact(methods) {
		var own, asGet []*Route
		for _, r := range routes {
			switch has := r.cfg.Methods; {
			case slices.Contains(has, m):
				own = append(own, r)
			case m == "HEAD" && slices.Contains(has, "GET"):
				asGet = append(asGet, r)
			}
		}
		one := []string{m}
		chain := slices.Concat(t.ordered(one, own), t.ordered(one, asGet))
		t.add(one, chain[len(chain)-1], slices.Concat(chain, all)...)
	}
	if len(all) > 0 {
		t.add(nil, all[len(all)-1], all...)
	}
}

// ordered returns routes with those that have no condition last. There may be one of these:
// another one gets a rule of its own for methods, which then conflicts.
func (t *table) ordered(methods []string, routes []*Route) []*Route {
	var with, without []*Route
	for _, r := range routes {
		switch {
		case r.cfg.Match.conditional():
			with = append(with, r)
		case len(without) > 0:
			t.add(methods, r, r)
		default:
			without = append(without, r)
		}
	}
	return append(with, without...)
}

// choose returns the first route of chain whose conditions x meets, or nil.
func choose(chain []*Route, x *Exchange) *Route {
	for _, r := range chain {
		if r.cfg.Match.matches(x) {
			return r
		}
	}
	return nil
}

// chooseCORS returns the first route of chain that answers the preflight x, which has the
// query of the request to come but not its headers, or nil.
func chooseCORS(chain []*Route, x *Exchange) *Route {
	for _, r := range chain {
		if r.cors != nil && r.cfg.Match.matchesQuery(x) {
			return r
		}
	}
	return nil
}
