// Package router_test plays the same table of routes and the same requests at
// Weir's router, at httprouter and at chi. It is a module of its own, so that Weir
// itself depends on neither.
package router_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/julienschmidt/httprouter"

	"github.com/weir-gateway/weir/internal/front/router"
)

// A line is a method and a path with {parameters}.
type line struct{ method, path string }

// collections and subs make a table like that of GitHub's API: collections below
// an owner and a repository, below a user, below an organisation.
var (
	repoParts = []string{"issues", "pulls", "commits", "branches", "tags", "releases", "labels", "milestones", "hooks", "keys", "forks", "deployments"}
	userParts = []string{"repos", "orgs", "gists", "followers", "following", "starred", "subscriptions", "events", "received_events", "keys"}
	orgParts  = []string{"members", "teams", "repos", "events", "hooks", "issues", "public_members", "projects"}
	topParts  = []string{"feeds", "notifications", "emojis", "meta", "rate_limit", "events", "licenses", "codes_of_conduct", "gitignore", "markdown", "zen", "octocat"}
)

func routes() (all []line) {
	add := func(path string, methods ...string) {
		for _, m := range methods {
			all = append(all, line{m, path})
		}
	}
	for _, p := range topParts {
		add("/"+p, "GET")
	}
	for _, p := range repoParts {
		base := "/repos/{owner}/{repo}/" + p
		add(base, "GET", "POST")
		add(base+"/{id}", "GET", "PATCH", "DELETE")
		add(base+"/{id}/comments", "GET", "POST")
		add(base+"/{id}/comments/{comment}", "GET")
		add(base+"/{id}/events", "GET")
	}
	for _, p := range userParts {
		add("/users/{user}/"+p, "GET")
		add("/user/"+p, "GET")
		add("/users/{user}/"+p+"/{target}", "GET")
	}
	for _, p := range orgParts {
		add("/orgs/{org}/"+p, "GET", "POST")
		add("/orgs/{org}/"+p+"/{id}", "GET", "PUT", "DELETE")
	}
	add("/repos/{owner}/{repo}", "GET", "PATCH", "DELETE")
	add("/users/{user}", "GET")
	add("/orgs/{org}", "GET")
	add("/user", "GET")
	add("/gists", "GET", "POST")
	add("/gists/{id}", "GET", "PATCH", "DELETE")
	return all
}

// filled replaces the parameters by values of usual length.
func filled(path string) string {
	return strings.NewReplacer("{owner}", "weir-gateway", "{repo}", "weir", "{user}", "octocat", "{org}", "weir-gateway",
		"{id}", "4711", "{comment}", "81921", "{target}", "torvalds").Replace(path)
}

// A request in the form that each router takes, made before the clock runs.
type request struct {
	method, path   []byte
	methodS, path2 string
	std            *http.Request
	rule           int
}

func requests(all []line, keep func(line) bool) (out []request) {
	for i, l := range all {
		if !keep(l) {
			continue
		}
		p := filled(l.path)
		out = append(out, request{
			method: []byte(l.method), path: []byte(p), methodS: l.method, path2: p, rule: i,
			std: &http.Request{Method: l.method, URL: &url.URL{Path: p}, RequestURI: p},
		})
	}
	return out
}

func weir(tb testing.TB, all []line) *router.Router {
	rules := make([]router.Rule, len(all))
	for i, l := range all {
		rules[i] = router.Rule{Name: fmt.Sprint(i), Path: l.path, Methods: []string{l.method}}
	}
	r, err := router.New(rules)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func julien(all []line, hit func(int)) *httprouter.Router {
	r := httprouter.New()
	for i, l := range all {
		p := strings.NewReplacer("{", ":", "}", "").Replace(l.path)
		r.Handle(l.method, p, func(http.ResponseWriter, *http.Request, httprouter.Params) { hit(i) })
	}
	return r
}

func chiMux(all []line, hit func(int)) *chi.Mux {
	r := chi.NewRouter()
	for i, l := range all {
		r.MethodFunc(l.method, l.path, func(http.ResponseWriter, *http.Request) { hit(i) })
	}
	return r
}

// kinds are the requests that are timed.
var kinds = []struct {
	name string
	keep func(line) bool
}{
	{"all", func(line) bool { return true }},
	{"static", func(l line) bool { return !strings.Contains(l.path, "{") }},
	{"one", func(l line) bool { return strings.Count(l.path, "{") == 1 }},
	{"four", func(l line) bool { return strings.Count(l.path, "{") == 4 }},
}

func TestTheRoutersAgree(t *testing.T) {
	all := routes()
	got := -1
	hit := func(i int) { got = i }
	w, j, c := weir(t, all), julien(all, hit), chiMux(all, hit)
	for _, q := range requests(all, kinds[0].keep) {
		var p router.Params
		if i, o := w.Match(nil, q.path, q.method, &p); o != router.Found || i != q.rule {
			t.Errorf("weir: %s %s is %d", q.method, q.path, i)
		}
		got = -1
		if j.ServeHTTP(nil, q.std); got != q.rule {
			t.Errorf("httprouter: %s %s is %d", q.method, q.path, got)
		}
		got = -1
		if c.ServeHTTP(nil, q.std); got != q.rule {
			t.Errorf("chi: %s %s is %d", q.method, q.path, got)
		}
	}
	if len(all) < 200 {
		t.Errorf("%d routes", len(all))
	}
}

var sink int

func BenchmarkMatch(b *testing.B) {
	all := routes()
	w := weir(b, all)
	j := julien(all, func(int) {})
	c := chiMux(all, func(int) {})
	for _, k := range kinds {
		list := requests(all, k.keep)
		each := func(name string, f func(q *request)) {
			b.Run(k.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					f(&list[i])
					if i++; i == len(list) {
						i = 0
					}
				}
			})
		}
		buf := make([]byte, 0, 256)
		each("weir", func(q *request) {
			var p router.Params
			sink, _ = w.Match(nil, q.path, q.method, &p)
		})
		each("weir+normalize", func(q *request) {
			var p router.Params
			path, _, _ := router.Normalize(buf, q.path)
			sink, _ = w.Match(nil, path, q.method, &p)
		})
		each("httprouter", func(q *request) {
			h, p, _ := j.Lookup(q.methodS, q.path2)
			if h != nil {
				sink = len(p)
			}
		})
		each("chi", func(q *request) { c.ServeHTTP(nil, q.std) })
		ctx := chi.NewRouteContext()
		each("chi.Match", func(q *request) {
			ctx.Reset()
			if c.Match(ctx, q.methodS, q.path2) {
				sink = len(ctx.URLParams.Keys)
			}
		})
	}
}
