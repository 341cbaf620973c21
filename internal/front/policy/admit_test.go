package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
)

func TestVerdictsOfMatch(t *testing.T) {
	s := set(t, deps(t), `{"path": "/a", "methods": ["GET", "POST"], "cluster": "c"}`, `{"path": "/s/*", "cluster": "c", "paths": {"encoded_slash": true, "semicolon": true}}`,
		`{"path": "/v1/a:b", "cluster": "c"}`)
	f := func(request string, status int, words string) {
		t.Helper()
		x := exchange(t, request)
		v := s.Match(x)
		if v.Status != status || (status == 0) != (v.Action == Forward) || !strings.Contains(v.Message+" "+string(v.Fields), words) {
			t.Errorf("%s: %+v", request, v)
		}
		if (x.Route != nil) != (status == 0) && status != 400 {
			t.Errorf("%s: route %v", request, x.Route)
		}
	}
	f("GET /a", 0, "")
	f("HEAD /a", 0, "")
	f("PUT /a", 405, "Allow: GET, HEAD, POST\r\n")
	f("GET /b", 404, "no such path")
	f("GET /../a", 400, "above the root")
	f("GET /a%2f", 404, "")
	f("GET /s/a%2fb;c", 0, "")
	f("GET /v1/a%3ab", 400, "encoded")
	f("OPTIONS *", 404, "")
	f("GET /"+strings.Repeat("a", 5000), 404, "")
}

func TestAnExchangeIsReusedForEachRequest(t *testing.T) {
	s := set(t, deps(t), `{"path": "/users/{id}", "cluster": "c"}`, `{"path": "/r", "redirect": {"to": "/x"}}`)
	x := &Exchange{}
	for _, id := range []string{"1", "%32", "a//../b"} {
		fill(t, x, "GET /users/"+id)
		v := admit(s, x, 0)
		if v.Action != Forward || x.Param("other") != nil {
			t.Fatalf("%s: %+v", id, v)
		}
		if got := string(x.Param("id")); got != id[len(id)-1:] && got != "2" {
			t.Errorf("%s: id is %q", id, got)
		}
		x.Retain()
		x.Done(Outcome{Status: 200})
		fill(t, x, "GET /r")
		if v := admit(s, x, 0); v.Action != Respond || string(v.Fields) != "Location: /x\r\n" {
			t.Errorf("%+v %s", v, v.Fields)
		}
		x.Done(Outcome{Status: 308})
	}
}

func TestAddressesAreRefusedByLongestPrefix(t *testing.T) {
	d := deps(t, "10.0.0.1")
	s := set(t, d, `{"cluster": "c", "addresses": {"allow": ["192.0.2.0/24", "2001:db8::/32"], "deny": ["192.0.2.7"]}}`)
	f := func(peer, forwardedFor string, want Action) {
		t.Helper()
		x := exchange(t, "GET /\nX-Forwarded-For: "+forwardedFor)
		x.Peer = netip.MustParseAddrPort(peer)
		if v := admit(s, x, 0); v.Action != want || want == Refuse && v.Status != 403 {
			t.Errorf("%s for %s: %+v", peer, forwardedFor, v)
		}
	}
	f("192.0.2.1:1", "", Forward)
	f("[::ffff:192.0.2.1]:1", "", Forward)
	f("192.0.2.7:1", "", Refuse)
	f("192.0.2.7:1", "192.0.2.1", Refuse) // its own word does not count
	f("198.51.100.1:1", "", Refuse)
	f("[2001:db8::1]:1", "", Forward)
	f("10.0.0.1:1", "192.0.2.1", Forward)
	f("10.0.0.1:1", "192.0.2.7", Refuse)
	f("10.0.0.1:1", "192.0.2.1, 192.0.2.7", Refuse)
	f("10.0.0.1:1", "unknown", Refuse)
}

func TestLimitsAnswer429WithTheExactWait(t *testing.T) {
	d := deps(t)
	s := set(t, d, `{"name": "a", "path": "/a", "cluster": "c", "limits": {"per_address": {"per_second": 0.1, "burst": 2}}}`,
		`{"name": "r", "path": "/r", "cluster": "c", "limits": {"per_route": {"per_second": 1, "burst": 1}}}`)
	f := func(path string, at time.Duration, peer string, retryAfter int64) {
		t.Helper()
		x := exchange(t, "GET "+path)
		x.Peer = netip.MustParseAddrPort(peer)
		v := admit(s, x, at)
		if v.RetryAfter != retryAfter || (retryAfter > 0) != (v.Status == 429) || (retryAfter == 0) != (v.Action == Forward) {
			t.Errorf("%s at %v from %s: %+v, want Retry-After %d", path, at, peer, v, retryAfter)
		}
	}
	f("/a", 0, "192.0.2.1:1", 0)
	f("/a", 0, "192.0.2.1:2", 0)
	f("/a", 0, "192.0.2.1:3", 10)
	f("/a", 3*time.Second, "192.0.2.1:3", 7)
	f("/a", 9999*time.Millisecond, "192.0.2.1:3", 1)
	f("/a", 10*time.Second, "192.0.2.1:3", 0)
	f("/a", 10*time.Second, "192.0.2.2:3", 0)
	f("/a", 10*time.Second, "[2001:db8::1]:3", 0)
	f("/a", 10*time.Second, "[2001:db8::2]:3", 0)
	f("/a", 10*time.Second, "[2001:db8::3]:3", 10) // of the same /64
	f("/a", 10*time.Second, "[2001:db8:0:1::3]:3", 0)
	f("/r", 0, "192.0.2.1:1", 0)
	f("/r", 0, "192.0.2.2:1", 1)
	f("/r", time.Second, "192.0.2.3:1", 0)
}

// admitAs admits with a token or key that the front verifies where it has to.
func admitAs(t *testing.T, d Deps, s *Set, request string, at time.Duration) Verdict {
	t.Helper()
	x := exchange(t, request)
	v := admit(s, x, at)
	if v.Action == Identify {
		id, err := d.Auth.Verify(t.Context(), v.Token, now())
		v = x.Route.AdmitIdentity(x, id, err, int64(at))
	}
	return v
}

func TestATenantHas500RequestsPerSecondInAll(t *testing.T) {
	d := deps(t)
	s := set(t, d, `{"path": "/a", "cluster": "c", "auth": {"required": true, "api_keys": true}}`, `{"path": "/b", "cluster": "c", "auth": {"forward": true, "api_keys": true}}`,
		`{"path": "/own", "cluster": "c", "auth": {"required": true, "api_keys": true}, "limits": {"per_tenant": {"per_second": 1}}}`)
	ann, bob := token(t, "ann", 0), token(t, "bob", 0)
	f := func(path, credentials string, want Action) {
		t.Helper()
		if v := admitAs(t, d, s, "GET "+path+"\n"+credentials, 0); v.Action != want || want == Refuse && (v.Status != 429 || v.RetryAfter != 1) {
			t.Errorf("%s: %+v", path, v)
		}
	}
	for range 250 {
		f("/a", "Authorization: Bearer "+ann, Forward)
		f("/b", "Authorization: Bearer "+ann, Forward)
	}
	f("/a", "Authorization: Bearer "+ann, Refuse)
	f("/b", "Authorization: Bearer "+token(t, "ann", time.Minute), Refuse) // another token of the same tenant
	f("/a", "Authorization: Bearer "+bob, Forward)
	f("/own", "Authorization: Bearer "+ann, Forward)
	f("/own", "Authorization: Bearer "+ann, Refuse)
	f("/own", "Authorization: Bearer "+bob, Forward)
	f("/own", "X-API-Key: a-key-of-sixteen-bytes", Forward)
	f("/own", "Authorization: Bearer "+token(t, "backend", 0), Forward) // a subject called like a key is another identity
	f("/own", "X-API-Key: a-key-of-sixteen-bytes", Refuse)
	f("/b", "X-None: 1", Forward)
}

func TestBodiesOverTheBoundAreRefused(t *testing.T) {
	s := set(t, deps(t), `{"path": "/d", "cluster": "c"}`, `{"path": "/s", "cluster": "c", "limits": {"max_body": 10}}`, `{"path": "/n", "cluster": "c", "limits": {"max_body": -1}}`)
	f := func(request string, status int) {
		t.Helper()
		if v := admit(s, exchange(t, request), 0); v.Status != status {
			t.Errorf("%q: %+v", request, v)
		}
	}
	f("POST /d\nContent-Length: 2097152", 0)
	f("POST /d\nContent-Length: 2097153", 413)
	f("POST /s\nContent-Length: 10", 0)
	f("POST /s\nContent-Length: 11", 413)
	f("POST /s\nTransfer-Encoding: chunked", 0) // the front counts
	f("POST /n\nContent-Length: 99999999999", 0)
	f("GET /s\nConnection: "+strings.Repeat("a,", 200), 400)
}

func TestAtMostSoManyAreUnderWay(t *testing.T) {
	d := deps(t)
	route := `{"name": "r", "cluster": "c", "limits": {"max_concurrent": 2}}`
	s := set(t, d, route)
	enter := func(s *Set) (*Exchange, Verdict) {
		x := exchange(t, "GET /")
		return x, admit(s, x, 0)
	}
	a, _ := enter(s)
	b, _ := enter(set(t, d, route)) // a reload keeps count
	c, v := enter(s)
	if v.Status != 503 || v.RetryAfter == 0 || a.Route.UnderWay() != 2 {
		t.Errorf("the third: %+v, %d under way", v, a.Route.UnderWay())
	}
	c.Done(Outcome{Status: 503})
	a.Done(Outcome{Status: 200})
	a.Done(Outcome{Status: 200}) // reported twice: counted once
	if a, v = enter(s); v.Action != Forward {
		t.Errorf("after one has ended: %+v", v)
	}
	a.Done(Outcome{})
	b.Done(Outcome{})
	if n := s.Routes()[0].UnderWay(); n != 0 {
		t.Errorf("%d under way at the end", n)
	}
}

func TestCredentials(t *testing.T) {
	d := deps(t)
	s := set(t, d, `{"path": "/open", "cluster": "c"}`, `{"path": "/opt", "cluster": "c", "auth": {"forward": true}}`, `{"path": "/req", "cluster": "c", "auth": {"required": true}}`,
		`{"path": "/key", "cluster": "c", "auth": {"required": true, "api_keys": true}}`, `{"path": "/scope", "cluster": "c", "auth": {"scopes": ["read"], "api_keys": true}}`,
		`{"path": "/claim", "cluster": "c", "auth": {"claims": {"org": "acme"}}}`,
		`{"path": "/cors", "cluster": "c", "auth": {"required": true}, "cors": {"allowed_origins": ["https://app.example"], "credentials": true}}`)
	tok := token(t, "ann", 0)
	f := func(request string, status int, fields string) {
		t.Helper()
		v := admitAs(t, d, s, request, 0)
		if v.Status != status || (status == 0) != (v.Action == Forward) || string(v.Fields) != fields {
			t.Errorf("%q: %+v %q", request, v, v.Fields)
		}
	}
	const bare, bad, low = "WWW-Authenticate: Bearer\r\n", "WWW-Authenticate: Bearer error=\"invalid_token\"\r\n", "WWW-Authenticate: Bearer error=\"insufficient_scope\"\r\n"
	f("GET /open\nAuthorization: Bearer x", 0, "")
	f("GET /opt", 0, "")
	f("GET /opt\nAuthorization: Bearer x", 401, bad)
	f("GET /req", 401, bare)
	f("GET /req\nAuthorization: Basic dTpw", 401, bare)
	f("GET /req\nAuthorization: Bearer "+tok, 0, "")
	f("GET /req\nAuthorization: Bearer "+tok+"x", 401, bad)
	f("GET /req?token="+tok, 0, "")
	f("GET /req\nCookie: weir_token="+tok, 0, "")
	f("GET /req\nCookie: weir_token="+tok+"\nOrigin: https://evil.example", 401, bare)
	f("GET /cors\nCookie: weir_token="+tok+"\nOrigin: https://app.example", 0, "")
	f("GET /req\nAuthorization: Bearer "+tok+"\nAuthorization: Bearer x", 400, "")
	f("GET /req\nX-API-Key: a-key-of-sixteen-bytes", 401, bare)
	f("GET /key\nX-API-Key: a-key-of-sixteen-bytes", 0, "")
	f("GET /key\nX-API-Key: another", 401, "")
	f("GET /scope\nAuthorization: Bearer "+tok, 403, low)
	f("GET /scope\nX-API-Key: a-key-of-sixteen-bytes", 403, low)
	f("GET /claim\nAuthorization: Bearer "+tok, 403, low)
	f("GET /cors\nOrigin: https://app.example", 401,
		"Access-Control-Allow-Origin: https://app.example\r\nAccess-Control-Allow-Credentials: true\r\nVary: Origin\r\n"+bare)

	x := exchange(t, "GET /req\nAuthorization: Bearer x")
	if v := admit(s, x, 0); v.Action != Identify || v.Token != "x" {
		t.Fatalf("%+v", v)
	}
	for err, want := range map[error]int{auth.ErrKeysUnavailable: 503, auth.ErrExpired: 401, auth.ErrBadToken: 401, errors.New("other"): 401} {
		if v := x.Route.AdmitIdentity(x, nil, err, 0); v.Status != want || (want == 503) != (v.RetryAfter > 0) {
			t.Errorf("%v: %+v", err, v)
		}
	}
	if v := x.Route.AdmitIdentity(x, auth.Anonymous, nil, 0); v.Status != 401 {
		t.Errorf("anonymous passes: %+v", v)
	}
}

func TestCORSIsAnsweredAtTheEdge(t *testing.T) {
	s := set(t, deps(t), `{"path": "/a", "methods": ["GET", "PUT"], "cluster": "c",
		"cors": {"allowed_origins": ["https://app.example", "http://*.dev.example:8080"], "headers": ["X-A"], "expose_headers": ["X-B"], "credentials": true, "max_age": "1m"}}`,
		`{"path": "/any", "cluster": "c", "cors": {"allowed_origins": ["*"]}}`, `{"path": "/off", "cluster": "c"}`)
	f := func(request string, action Action, status int, fields string) {
		t.Helper()
		v := admit(s, exchange(t, request), 0)
		if v.Action != action || v.Status != status || string(v.Fields) != fields {
			t.Errorf("%q: %+v %q", request, v, v.Fields)
		}
	}
	const ask = "\nAccess-Control-Request-Method: PUT"
	const vary = "Vary: Access-Control-Request-Method, Access-Control-Request-Headers\r\n"
	app := func(origin string) string {
		return "Access-Control-Allow-Origin: " + origin + "\r\nAccess-Control-Allow-Credentials: true\r\nAccess-Control-Allow-Methods: GET, PUT\r\n" +
			"Access-Control-Allow-Headers: X-A\r\nAccess-Control-Max-Age: 60\r\n" + vary
	}
	f("OPTIONS /a\nOrigin: https://app.example"+ask, Respond, 204, app("https://app.example"))
	f("OPTIONS /a\nOrigin: http://x.y.dev.example:8080"+ask, Respond, 204, app("http://x.y.dev.example:8080"))
	f("OPTIONS /a\nOrigin: https://app.example.evil"+ask, Refuse, 403, "")
	f("OPTIONS /a\nOrigin: http://evil/.dev.example:8080"+ask, Refuse, 403, "")
	f("OPTIONS /a\nOrigin: http://dev.example:8080"+ask, Refuse, 403, "")
	f("OPTIONS /a\nOrigin: null"+ask, Refuse, 403, "")
	f("OPTIONS /a\nOrigin: https://app.example", Refuse, 405, "Allow: GET, HEAD, PUT\r\n")
	f("OPTIONS /a\nOrigin: https://app.example\nAccess-Control-Request-Method: DELETE", Refuse, 405, "Allow: GET, HEAD, PUT\r\n")
	f("OPTIONS /any\nOrigin: https://x\nAccess-Control-Request-Headers: x-a,x-b"+ask, Respond, 204,
		"Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Methods: PUT\r\nAccess-Control-Allow-Headers: x-a,x-b\r\nAccess-Control-Max-Age: 600\r\n"+vary)
	f("OPTIONS /off\nOrigin: https://x"+ask, Forward, 0, "")
	f("GET /a\nOrigin: https://evil", Forward, 0, "")

	g := func(request, want string) {
		t.Helper()
		x := exchange(t, request)
		if v := admit(s, x, 0); v.Action != Forward {
			t.Fatalf("%q: %+v", request, v)
		}
		x.Retain()
		upstream := []http1.Field{{Name: []byte("Access-Control-Allow-Origin"), Value: []byte("upstream")}}
		got := string(x.Route.AppendResponseHead(nil, x, 200, upstream, Framing{Length: none}))
		if got != "HTTP/1.1 200 OK\r\n"+want+"\r\n" {
			t.Errorf("%q: got %q", request, got)
		}
	}
	g("GET /a\nOrigin: https://app.example", "Access-Control-Allow-Origin: https://app.example\r\nAccess-Control-Allow-Credentials: true\r\nAccess-Control-Expose-Headers: X-B\r\nVary: Origin\r\n")
	g("GET /a\nOrigin: https://evil", "Vary: Origin\r\n")
	g("GET /a", "Vary: Origin\r\n")
	g("GET /any\nOrigin: https://x", "Access-Control-Allow-Origin: *\r\n")
	g("GET /off\nOrigin: https://x", "Access-Control-Allow-Origin: upstream\r\n")
}

func TestRedirectsAndReplies(t *testing.T) {
	s := set(t, deps(t), `{"path": "/u/{id}/*", "redirect": {"to": "/users/{id}?rest={*}", "status": 302}}`,
		`{"host": "plain.example", "redirect": {"to": "https://$host$path$query"}}`,
		`{"path": "/teapot", "reply": {"status": 418, "body": "short and stout", "headers": {"X-B": "2", "X-A": "1"}}}`)
	f := func(request, want string) {
		t.Helper()
		v := admit(s, exchange(t, request), 0)
		if got := string(v.Fields); v.Action != Respond || got != want {
			t.Errorf("%q: %+v %q", request, v, got)
		}
	}
	f("GET /u/7/a/b", "Location: /users/7?rest=a/b\r\n")
	f("GET /u/7", "Location: /users/7?rest=\r\n")
	f("GET /a//b?c=d\nHost: Plain.Example", "Location: https://plain.example/a/b?c=d\r\n")
	f("GET /\nHost: plain.example:80", "Location: https://plain.example/\r\n")
	f("GET /teapot", "X-A: 1\r\nX-B: 2\r\n")
	v := admit(s, exchange(t, "GET /teapot"), 0)
	if v.Status != 418 || string(v.Body) != "short and stout" || v.ContentType != "text/plain; charset=utf-8" {
		t.Errorf("%+v", v)
	}
}

func TestABadRouteSaysWhatToWrite(t *testing.T) {
	f := func(want string, routes ...string) {
		t.Helper()
		d := deps(t)
		d.Cluster = func(name string) bool { return name == "c" }
		if _, err := New(configs(t, routes...), d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", routes, err, want)
		}
	}
	f(`route "a": leads nowhere`, `{"name": "a"}`)
	f(`route "/*": has cluster and reply: give it one`, `{"cluster": "c", "reply": {"status": 200}}`)
	f(`there is no cluster "d"`, `{"cluster": "d"}`)
	f(`another route has the same name`, `{"name": "a", "path": "/a", "cluster": "c"}`, `{"name": "a", "path": "/b", "cluster": "c"}`)
	f(`rules "a" and "b" conflict`, `{"name": "a", "path": "/a", "cluster": "c"}`, `{"name": "b", "path": "/a", "cluster": "c"}`)
	f(`rewrite.path`, `{"path": "/{a}", "cluster": "c", "rewrite": {"path": "/{b}"}}`)
	f(`{*} is what`, `{"path": "/{a}", "cluster": "c", "rewrite": {"path": "/{*}"}}`)
	f(`nothing goes to an upstream`, `{"reply": {"status": 200}, "rewrite": {"path": "/a"}}`)
	f(`leave strip_prefix`, `{"cluster": "c", "rewrite": {"path": "/a", "strip_prefix": "/b"}}`)
	f(`without a slash at the end`, `{"cluster": "c", "rewrite": {"strip_prefix": "/b/"}}`)
	f(`a client could choose`, `{"path": "/*", "redirect": {"to": "https://x.example{*}"}}`)
	f(`a client could choose`, `{"path": "/*", "redirect": {"to": "https://x.example@$host/"}}`)
	f(`neither a path nor`, `{"path": "/*", "redirect": {"to": "//x/{*}"}}`)
	f(`neither a path nor`, `{"path": "/*", "redirect": {"to": "javascript://x"}}`)
	f(`there are $path`, `{"redirect": {"to": "/$foo"}}`)
	f(`redirect.status: 200`, `{"redirect": {"to": "/x", "status": 200}}`)
	f(`reply.status: 99`, `{"reply": {"status": 99}}`)
	f(`reply.headers.set: Content-Length belongs`, `{"reply": {"status": 200, "headers": {"Content-Length": "3"}}}`)
	f(`request_headers.set: Host belongs`, `{"cluster": "c", "request_headers": {"set": {"Host": "x"}}}`)
	f(`bytes that a field may not`, `{"cluster": "c", "request_headers": {"add": {"A": "b\r\nC: d"}}}`)
	f(`Weir's own`, `{"cluster": "c", "request_headers": {"set": {"X-Weir-User": "x"}}}`)
	f(`not with the origin "*"`, `{"cluster": "c", "cors": {"allowed_origins": ["*"], "credentials": true}}`)
	f(`is not an origin`, `{"cluster": "c", "cors": {"allowed_origins": ["app.example"]}}`)
	f(`without allowed_origins`, `{"cluster": "c", "cors": {"credentials": true}}`)
	f(`limits.per_tenant.per_second`, `{"cluster": "c", "limits": {"per_tenant": {"per_second": -1}}}`)
	f(`has bits after its prefix: write 10.0.0.0/8`, `{"cluster": "c", "addresses": {"deny": ["10.0.0.1/8"]}}`)
	f(`class: "x" is not a class`, `{"cluster": "c", "class": "x"}`)
	f(`forwarding: "x" is none`, `{"cluster": "c", "forwarding": "x"}`)
	f(`access_log.sample: 2`, `{"cluster": "c", "access_log": {"sample": 2}}`)
	f(`nowhere.yaml`, `{"cluster": "c", "openapi": {"file": "nowhere.yaml"}}`)
	d := deps(t)
	d.Auth = nil
	if _, err := New(configs(t, `{"cluster": "c", "auth": {"required": true}}`), d); err == nil || !strings.Contains(err.Error(), "fill in the auth section") {
		t.Errorf("got %v", err)
	}
}

func TestSameReportsWhetherAReloadChangesARoute(t *testing.T) {
	d := deps(t)
	a := set(t, d, `{"name": "a", "path": "/a", "cluster": "c"}`, `{"name": "b", "path": "/b", "cluster": "c"}`).Routes()
	b := set(t, d, `{"name": "b", "path": "/b", "cluster": "c"}`, `{"name": "a", "path": "/a", "cluster": "c", "limits": {"max_body": 1}}`).Routes()
	if !a[1].Same(b[0]) || a[0].Same(b[1]) || a[0].Same(a[1]) || a[0].Same(nil) {
		t.Error("Same")
	}
	if c := a[0].Class(); c != limit.Unclassed {
		t.Errorf("class %v", c)
	}
}

// The chain of the event loops' front costs no allocation.
func TestARequestAllocatesNothing(t *testing.T) {
	d := deps(t, "203.0.113.0/24")
	s := set(t, d, `{"path": "/users/{id}/orders/*", "cluster": "c", "forwarding": "both", "rewrite": {"strip_prefix": "/users"},
		"request_headers": {"set": {"X-A": "1"}, "remove": ["Cookie"]}, "auth": {"required": true, "api_keys": true, "forward": true},
		"limits": {"per_tenant": {"per_second": 1e9}, "per_address": {"per_second": 1e9}, "per_route": {"per_second": 1e9}, "max_concurrent": 5},
		"addresses": {"deny": ["192.0.2.0/24"]}, "cors": {"allowed_origins": ["https://app.example"]}}`,
		`{"path": "/plain", "cluster": "c"}`, `{"path": "/r", "redirect": {"to": "https://$host/x$query"}}`)
	x, buf := &Exchange{}, make([]byte, 0, 4096)
	f := func(request string) {
		t.Helper()
		text := []byte(strings.ReplaceAll(request, "\n", "\r\n") + "\r\n\r\n")
		var req http1.Request
		resp := []http1.Field{{Name: []byte("Content-Type"), Value: []byte("text/plain")}, {Name: []byte("Connection"), Value: []byte("keep-alive")}}
		status := 0
		if n := testing.AllocsPerRun(100, func() {
			if _, err := http1.ParseRequest(&req, text, http1.Limits{}); err != nil {
				panic(err)
			}
			allow2(x, &req)
			v := s.Match(x)
			if v.Action == Forward {
				v = x.Route.Admit(x, 1)
			}
			if v.Action == Forward {
				buf = x.Route.AppendRequestHead(buf[:0], x, Framing{Length: 5})
				x.Retain()
				buf = x.Route.AppendResponseHead(buf[:0], x, 200, resp, Framing{Length: 3})
			}
			status = v.Status
			x.Done(Outcome{Status: 200})
		}); n != 0 {
			t.Errorf("%q: %v allocations (status %d)", request, n, status)
		}
	}
	f("GET /plain HTTP/1.1\nHost: h\nAccept: */*\nUser-Agent: x")
	f("GET /users/7/orders/%61/..?x=y HTTP/1.1\nHost: WWW.example.com\nX-API-Key: a-key-of-sixteen-bytes\nCookie: a=b\nConnection: close, x-a\nX-A: 2\n" +
		"Origin: https://app.example\nX-Forwarded-For: 1.2.3.4, 203.0.113.9\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate: a=b")
	tok := token(t, "ann", time.Hour)
	if _, err := d.Auth.Verify(t.Context(), tok, now()); err != nil {
		t.Fatal(err)
	}
	f("GET /users/1/orders/2 HTTP/1.1\nHost: h\nAuthorization: Bearer " + tok)
	f("GET /users/1/orders/2?a=b&token=" + tok + " HTTP/1.1\nHost: h")
	f("GET /r?a HTTP/1.1\nHost: h")
	f("GET /nothing HTTP/1.1\nHost: h")
	f("GET /%2e%2e HTTP/1.1\nHost: h")
	f("GET /users/1/orders/2 HTTP/1.1\nHost: h")
}

var allocPeer = netip.MustParseAddrPort("203.0.113.7:4711")

func allow2(x *Exchange, req *http1.Request) {
	x.Reset()
	x.Method, x.Path, x.Query, x.Host, x.Fields, x.Minor = req.Method, req.Path, req.Query, req.Host, req.Fields, req.Minor
	x.Length, x.Peer = req.ContentLength, allocPeer
}
