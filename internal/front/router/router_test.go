package router

import (
	"strings"
	"testing"
)

// table compiles lines of "name [methods] host/path".
func table(t testing.TB, lines ...string) (*Router, []Rule) {
	t.Helper()
	rules := make([]Rule, len(lines))
	for i, line := range lines {
		words := strings.Fields(line)
		rules[i].Name = words[0]
		target := words[len(words)-1]
		if len(words) == 3 {
			rules[i].Methods = strings.Split(words[1], ",")
		}
		host, path, _ := strings.Cut(target, "/")
		rules[i].Host, rules[i].Path = host, "/"+path
	}
	r, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return r, rules
}

// match matches "GET host/path" and returns "name a=1 *=rest", "405 Allow" or "404".
func match(t testing.TB, r *Router, rules []Rule, request string) string {
	t.Helper()
	method, target, _ := strings.Cut(request, " ")
	host, path, _ := strings.Cut(target, "/")
	norm, _, err := Normalize(nil, []byte("/"+path))
	if err != nil {
		return err.Error()
	}
	var p Params
	i, outcome := r.Match([]byte(host), norm, []byte(method), &p)
	switch outcome {
	case NotFound:
		return "404"
	case MethodNotAllowed:
		return "405 " + r.Allow(i)
	}
	got := rules[i].Name
	for k, name := range r.names[i] {
		if r.Param(i, name) != k {
			t.Errorf("Param(%d, %q) is not %d", i, name, k)
		}
		got += " " + name + "=" + string(p.Value(norm, k))
	}
	if p.Len() != len(r.names[i]) {
		t.Errorf("%s: %d parameters, the rule has %d", request, p.Len(), len(r.names[i]))
	}
	if rest := p.Rest(norm); rest != nil {
		got += " *=" + string(rest)
	}
	return got
}

func TestTheMostSpecificRuleWins(t *testing.T) {
	r, rules := table(t,
		"root /", "all /*", "users /users", "new /users/new", "user /users/{id}", "orders /users/{id}/orders",
		"order /users/{uid}/orders/{oid}", "files /files/*", "deep /files/a/b/*", "exactfile /files/a",
		"x /{x}/one", "xs /{x}/two/*", "userfiles /users/{id}/files/*")
	f := func(request, want string) {
		t.Helper()
		if got := match(t, r, rules, request); got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
	f("GET h/", "root")
	f("GET h/users", "users")
	f("GET h/users/new", "new")
	f("GET h/users/news", "user id=news")
	f("GET h/users/ne", "user id=ne")
	f("GET h/users/new/orders", "orders id=new")
	f("GET h/users/7/orders", "orders id=7")
	f("GET h/users/7/orders/8", "order uid=7 oid=8")
	f("GET h/users/7/orders/8/9", "all *=users/7/orders/8/9")
	f("GET h/users/", "all *=users/")
	f("GET h/users/7/", "all *=users/7/")
	f("GET h/files", "files *=")
	f("GET h/files/", "files *=")
	f("GET h/files/x/y", "files *=x/y")
	f("GET h/files/a", "exactfile")
	f("GET h/files/a/", "files *=a/")
	f("GET h/files/a/b", "deep *=")
	f("GET h/files/a/b/c/d", "deep *=c/d")
	f("GET h/files/one", "files *=one") // a literal on the left takes precedence over one on the right
	f("GET h/filer/one", "x x=filer")
	f("GET h/q/one", "x x=q")
	f("GET h/q/two", "xs x=q *=")
	f("GET h/q/two/3/4", "xs x=q *=3/4")
	f("GET h/q/three", "all *=q/three")
	f("GET h/users/two/files/two", "userfiles id=two *=two")
	f("GET h/users/two/x", "xs x=users *=x") // the literal on the left was a dead end
	f("GET h/nothing", "all *=nothing")
}

func TestAPathWithoutARuleIsNotFound(t *testing.T) {
	r, rules := table(t, "a /a", "b /b/{x}", "c c.example/c/*")
	f := func(request, want string) {
		t.Helper()
		if got := match(t, r, rules, request); got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
	f("GET h/", "404")
	f("GET h/a", "a")
	f("GET h/aa", "404")
	f("GET h/a/", "404")
	f("GET h/A", "404")
	f("GET h/b", "404")
	f("GET h/b/", "404")
	f("GET h/b/x/", "404")
	f("GET h/c/x", "404")
	f("GET c.example/c/x", "c *=x")
	f("GET c.example/cc", "404")
	var p Params
	for _, path := range []string{"", "*", "a", strings.Repeat("/a", 1<<16)} {
		if _, o := r.Match([]byte("h"), []byte(path), []byte("GET"), &p); o != NotFound {
			t.Errorf("%.10q: outcome %d", path, o)
		}
	}
}

func TestAPrefixMatchesItsOwnPathUnlessARuleDoes(t *testing.T) {
	r, rules := table(t, "below /a/*", "itself /a", "only /b/*", "param /{x}", "under /{x}/*", "slash /c/", "c /c/*")
	f := func(request, want string) {
		t.Helper()
		if got := match(t, r, rules, request); got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
	f("GET h/a", "itself")
	f("GET h/a/", "below *=")
	f("GET h/b", "only *=")
	f("GET h/d", "param x=d")
	f("GET h/d/", "under x=d *=")
	f("GET h/c/", "slash")
	f("GET h/c", "c *=")
}

func TestHostsFromTheMostSpecific(t *testing.T) {
	r, rules := table(t, "any /*", "health /healthz", "exact www.example.com/*", "wild *.example.com/*",
		"deep *.eu.example.com/only", "v6 [2001:db8::1]/*", "v4 192.0.2.1/*")
	f := func(request, want string) {
		t.Helper()
		if got, _, _ := strings.Cut(match(t, r, rules, request), " "); got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
	f("GET www.example.com/x", "exact")
	f("GET WWW.Example.COM:8443/x", "exact")
	f("GET www.example.com./x", "exact")
	f("GET www.example.com.:80/x", "exact")
	f("GET a.example.com/x", "wild")
	f("GET a.b.example.com/x", "wild")
	f("GET a.eu.example.com/only", "deep")
	f("GET a.eu.example.com/x", "wild") // the longer wildcard has no rule for it
	f("GET example.com/x", "any")
	f("GET .example.com/x", "any")
	f("GET xexample.com/x", "any")
	f("GET www.example.com.evil/x", "any")
	f("GET [2001:DB8::1]:80/x", "v6")
	f("GET [2001:db8::1]/x", "v6")
	f("GET 192.0.2.1:80/x", "v4")
	f("GET /x", "any")
	f("GET "+strings.Repeat("a", 300)+".example.com/x", "any")
	f("GET other/healthz", "health")
	f("GET www.example.com/healthz", "exact") // a host's "/*" takes precedence over anything without a host
}

func TestMethodsAreDecidedLast(t *testing.T) {
	r, rules := table(t, "all /*", "get GET /admin/*", "a GET /a", "apost POST,PURGE,LOCK /a", "b GET /b", "bhead HEAD /b", "bany /b",
		"c POST /c")
	f := func(request, want string) {
		t.Helper()
		if got := match(t, r, rules, request); got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
	f("GET h/a", "a")
	f("HEAD h/a", "a")
	f("POST h/a", "apost")
	f("PURGE h/a", "apost")
	f("LOCK h/a", "apost")
	f("LOC h/a", "405 GET, HEAD, POST, LOCK, PURGE")
	f("get h/a", "405 GET, HEAD, POST, LOCK, PURGE")
	f("DELETE h/a", "405 GET, HEAD, POST, LOCK, PURGE")
	f("GET h/b", "b")
	f("HEAD h/b", "bhead")
	f("PUT h/b", "bany")
	f("XYZ h/b", "bany")
	f("HEAD h/c", "405 POST")
	f("POST h/admin/x", "405 GET, HEAD") // not "all": a method does not open a way around
	f("POST h/admin", "405 GET, HEAD")
	f("POST h/d", "all *=d")
}

func TestConflictsNameBothRules(t *testing.T) {
	f := func(want string, rules ...Rule) {
		t.Helper()
		_, err := New(rules)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", rules, err, want)
		}
	}
	f(`rules "a" and "b" conflict: both match any method of /x`, Rule{Name: "a", Path: "/x"}, Rule{Name: "b", Path: "/x"})
	f(`rules "a" and "b" conflict: both match GET h/x/{i}`, Rule{"a", "h", "/x/{i}", []string{"GET"}}, Rule{"b", "H.", "/x/{other}", []string{"PUT", "GET"}})
	f(`rules "a" and number 2 conflict: both match any method of /*`, Rule{Name: "a", Host: "*"}, Rule{Path: "/*"})
	f(`rules "a" and "b" conflict`, Rule{Name: "a", Path: "/%61"}, Rule{Name: "b", Path: "/a"})
	f(`rules "a" and "b" conflict`, Rule{Name: "a", Path: "/é"}, Rule{Name: "b", Path: "/%c3%a9"})
	f(`rules number 2 and number 3 conflict`, Rule{Path: "/x"}, Rule{Path: "/y"}, Rule{Path: "/y"})
	if _, err := New([]Rule{{Path: "/x"}, {Path: "/x", Methods: []string{"GET"}}, {Path: "/x/*"}, {Path: "/x/{a}"}, {Host: "h", Path: "/x"}}); err != nil {
		t.Errorf("none of these conflict: %v", err)
	}
}

func TestABadRuleSaysWhatToWrite(t *testing.T) {
	f := func(rule Rule, want string) {
		t.Helper()
		if _, err := New([]Rule{rule}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", rule, err, want)
		}
	}
	f(Rule{Name: "a", Path: "x"}, `rule "a": path "x": a path starts with a slash`)
	f(Rule{Path: "/a//b"}, "empty segment")
	f(Rule{Path: "/a/../b"}, "dot segments")
	f(Rule{Path: "/a/%2e%2E/b"}, "dot")
	f(Rule{Path: "/a*"}, "* is accepted only at the end")
	f(Rule{Path: "/*/a"}, "* is accepted only at the end")
	f(Rule{Path: "/a{b}"}, "a parameter is a whole segment")
	f(Rule{Path: "/{}"}, "needs a name")
	f(Rule{Path: "/{1}"}, "letters, digits")
	f(Rule{Path: "/{a}/{a}"}, "is used twice")
	f(Rule{Path: strings.Repeat("/{a}", 1) + "/{b}/{c}/{d}/{e}/{f}/{g}/{h}/{i}/{j}/{k}/{l}/{m}/{n}/{o}/{p}/{q}"}, "more than 16")
	f(Rule{Path: strings.Repeat("/a", 65)}, "too long")
	f(Rule{Path: "/a?b"}, "no query")
	f(Rule{Path: "/a%2Fb"}, "encoded slashes")
	f(Rule{Path: "/a;b"}, "semicolons")
	f(Rule{Path: "/a%3Ab"}, "not encoded")
	f(Rule{Path: "/a%zz"}, "bad percent-encoding")
	f(Rule{Path: `/a\b`}, "backslash")
	f(Rule{Host: "a..b"}, "empty label")
	f(Rule{Host: "a.*.b"}, "only before the first dot")
	f(Rule{Host: "a:80"}, "no port")
	f(Rule{Host: "exämple.com"}, "xn--")
	f(Rule{Host: strings.Repeat("a", 254)}, "longer than")
	f(Rule{Host: "[x]"}, "not an address")
	f(Rule{Methods: []string{"GET "}}, "a method is a word")
	f(Rule{Methods: []string{""}}, "a method is a word")
}

func TestMatchAllocatesNothing(t *testing.T) {
	r, _ := table(t, "a /users/{id}/orders/{oid}", "b *.example.com/a/*", "c www.example.com/{x}", "d POST /users/{id}/x", "e /*")
	var p Params
	buf := make([]byte, 0, 256)
	host := []byte("WWW.example.com:443")
	f := func(path string) {
		t.Helper()
		raw := []byte(path)
		if n := testing.AllocsPerRun(100, func() {
			norm, _, err := Normalize(buf[:0], raw)
			if err == nil {
				r.Match(host, norm, []byte("GET"), &p)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", path, n)
		}
	}
	f("/users/1/orders/2")
	f("/users/%31/./orders//2")
	f("/a/b/c")
	f("/users/1/x")
	f("/%2e%2e/x")
	f("/nothing/here")
}
