package policy

import (
	"net/url"
	"strings"
	"testing"
)

func TestConditionsChooseAmongRoutesOfOnePath(t *testing.T) {
	s := set(t, deps(t),
		`{"name": "plain", "path": "/a/*", "cluster": "c"}`,
		`{"name": "v2", "path": "/a/*", "cluster": "c", "match": {"headers": [{"name": "X-Version", "value": "2"}]}}`,
		`{"name": "beta", "path": "/a/*", "cluster": "c", "match": {"headers": [{"name": "x-beta"}], "query": [{"name": "k e", "value": "v+1"}]}}`,
		`{"name": "put", "path": "/a/*", "cluster": "c", "methods": ["PUT"]}`,
		`{"name": "get", "path": "/m", "cluster": "c", "methods": ["GET"], "match": {"headers": [{"name": "X-A", "value": "1"}]}}`,
		`{"name": "head", "path": "/m", "cluster": "c", "methods": ["HEAD"], "match": {"headers": [{"name": "X-B", "value": "1"}]}}`,
		`{"name": "id", "path": "/users/{id}", "rewrite": {"path": "/u/{id}"}, "cluster": "c", "match": {"query": [{"name": "q"}]}}`)
	f := func(request, want string) {
		t.Helper()
		x := exchange(t, request)
		v := s.Match(x)
		got := ""
		if x.Route != nil {
			got = x.Route.Name()
		}
		if got != want || (v.Action == Forward) != (want != "") {
			t.Errorf("%q: route %q, %+v, want %q", request, got, v, want)
		}
	}
	f("GET /a/x", "plain")
	f("GET /a/x\nX-Version: 3", "plain")
	f("GET /a/x\nX-Version: 1\nx-version: 2", "v2")
	f("GET /a\nX-Beta: yes", "plain")
	f("GET /a?k+e=v%2B1\nX-Beta: yes", "beta")
	f("GET /a?k%20e=v%2b1\nX-Beta:", "beta")
	f("GET /a?k%20e=v+1\nX-Beta: yes", "plain")
	f("GET /a?k+e=other&k+e=v%2B1\nX-Beta: yes", "plain") // the first counts
	f("GET /a?k+e=v%2B1\nX-Beta: yes\nX-Version: 2", "v2")
	f("PUT /a\nX-Version: 2", "put") // a method comes before a condition
	f("GET /m\nX-A: 1", "get")
	f("HEAD /m\nX-A: 1", "get")
	f("HEAD /m\nX-A: 1\nX-B: 1", "head")
	f("GET /m\nX-B: 1", "")
	f("GET /users/7", "")
	f("GET /users/7?q", "id")
	x := exchange(t, "GET /m\nX-B: 1")
	if v := s.Match(x); v.Status != 404 {
		t.Errorf("no condition holds: %+v", v)
	}
	if v := s.Match(exchange(t, "POST /m\nX-A: 1")); v.Status != 405 {
		t.Errorf("another method: %+v", v)
	}
	if line, _ := forwarded(t, s, exchange(t, "GET /users/7?q=1"), Framing{Length: none}); !strings.HasPrefix(line, "GET /u/7?q=1 ") {
		t.Errorf("rewritten to %q", line)
	}
}

func TestPreflightFindsARouteWithConditions(t *testing.T) {
	s := set(t, deps(t),
		`{"name": "v2", "path": "/a", "cluster": "c", "match": {"headers": [{"name": "X-Version", "value": "2"}]}, "cors": {"allowed_origins": ["https://a.example"]}}`,
		`{"name": "plain", "path": "/a", "cluster": "c"}`)
	x := exchange(t, "OPTIONS /a\nOrigin: https://a.example\nAccess-Control-Request-Method: GET")
	if s.Match(x); x.Route == nil || x.Route.Name() != "v2" || !x.preflight {
		t.Errorf("%+v", x.Route)
	}
}

func TestConditionsThatAreRefused(t *testing.T) {
	f := func(want string, routes ...string) {
		t.Helper()
		if _, err := New(configs(t, routes...), deps(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(`match.headers: "a b" is not a field name`, `{"path": "/a", "cluster": "c", "match": {"headers": [{"name": "a b"}]}}`)
	f("write it as the route's host", `{"path": "/a", "cluster": "c", "match": {"headers": [{"name": "host", "value": "b"}]}}`)
	f("names no parameter", `{"path": "/a", "cluster": "c", "match": {"query": [{"value": "1"}]}}`)
	many := strings.Repeat(`{"name": "a"},`, maxConditions) + `{"name": "a"}`
	f("33 conditions", `{"path": "/a", "cluster": "c", "match": {"query": [`+many+`]}}`)
	with := `{"name": "w", "path": "/a", "cluster": "c", "match": {"query": [{"name": "q"}]}}`
	f(`rules "two" and "one" conflict`, with, `{"name": "one", "path": "/a", "cluster": "c"}`, `{"name": "two", "path": "/a", "cluster": "c"}`)
	f("conflict: both match PUT", with, `{"name": "one", "path": "/a", "methods": ["PUT"], "cluster": "c"}`, `{"name": "two", "path": "/a", "methods": ["PUT", "POST"], "cluster": "c"}`)
}

// Conditions are looked at for each request.
func TestMatchingConditionsAllocatesNothing(t *testing.T) {
	s := set(t, deps(t),
		`{"name": "v2", "path": "/a", "cluster": "c", "match": {"headers": [{"name": "X-Version", "value": "2"}], "query": [{"name": "q", "value": "x y"}]}}`,
		`{"name": "plain", "path": "/a", "cluster": "c"}`)
	x := exchange(t, "GET /a?q=x%20y\nX-Version: 2")
	if n := testing.AllocsPerRun(100, func() { s.Match(x) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if x.Route.Name() != "v2" {
		t.Errorf("matched %s", x.Route.Name())
	}
}

// FuzzDecodesTo compares with net/url, which refuses stray percent signs.
func FuzzDecodesTo(f *testing.F) {
	for _, s := range []string{"", "a+b", "%41", "%4", "%zz", "a%2", "%c3%A4", "%2B+"} {
		f.Add(s, "A")
	}
	f.Fuzz(func(t *testing.T, encoded, other string) {
		want, err := url.QueryUnescape(encoded)
		if err != nil {
			decodesTo([]byte(encoded), other)
			return
		}
		if !decodesTo([]byte(encoded), want) {
			t.Errorf("%q does not decode to %q", encoded, want)
		}
		if other != want && decodesTo([]byte(encoded), other) {
			t.Errorf("%q decodes to %q, too, besides %q", encoded, other, want)
		}
		if !decodesTo([]byte(url.QueryEscape(other)), other) {
			t.Errorf("%q does not come back", other)
		}
	})
}
