package policy

import (
	"bufio"
	"bytes"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/front/http1"
)

const none = -1

// without returns fields but those of our own that every head has.
func without(fields []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(fields), func(f string) bool {
		name, _, _ := strings.Cut(f, ":")
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
	})
}

var usual = []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Via", "traceparent"}

func TestHopByHopFieldsAreNotForwarded(t *testing.T) {
	s := set(t, deps(t), `{"cluster": "c"}`)
	f := func(request string, want ...string) {
		t.Helper()
		_, fields := forwarded(t, s, exchange(t, request), Framing{Length: none})
		if got := without(fields, usual...); !slices.Equal(got, append([]string{"Host: h"}, want...)) {
			t.Errorf("%q: got %q, want %q", request, got, want)
		}
	}
	f("GET /\nAccept: */*\nX-A: 1\nX-A: 2", "Accept: */*", "X-A: 1", "X-A: 2")
	f("GET /\nConnection: close\nKeep-Alive: timeout=5\nProxy-Connection: keep-alive\nA: b", "A: b")
	f("GET /\nTE: trailers, deflate\nTrailer: X\nProxy-Authorization: Basic x\nProxy-Authenticate: x")
	f("GET /\nConnection: Upgrade\nUpgrade: websocket")
	f("GET /\nConnection: x-secret, Keep-Alive ,X-Other\nX-Secret: 1\nx-other: 2\nX-Third: 3", "X-Third: 3")
	f("GET /\nConnection: close\nConnection: x-a\nX-A: 1")
	f("GET /\nConnection: x-forwarded-for\nX-Forwarded-For: 1.2.3.4") // ours is written after
	f("POST /\nContent-Length: 5\nExpect: 100-continue")
	f("POST /\nTransfer-Encoding: chunked")
	f("GET /\nHTTP2-Settings: AAMAAABk")
	f("GET /\nX_Forwarded_For: 1.2.3.4\nX.User: root\nX-Weir-User: root\nX_Weir_User: root\nx-weir-: 1\nX!: 2\nContent_Length: 5\nA: b", "A: b")
	f("GET /\nX-Real-IP: 1.2.3.4\nTrue-Client-IP: 1.2.3.4\nX-Original-URL: /admin\nX-Rewrite-URL: /admin\nProxy: evil\nX-Forwarded-Prefix: /x\nForwarded: for=1.2.3.4")
}

func TestAMethodIsOverriddenOnlyWhereTheRouteSaysSo(t *testing.T) {
	s := set(t, deps(t), `{"cluster": "c"}`, `{"path": "/o", "cluster": "c", "method_override": true}`)
	f := func(path string, want int) {
		t.Helper()
		_, fields := forwarded(t, s, exchange(t, "POST "+path+"\nX-HTTP-Method-Override: DELETE\nx-http-method: PUT\nX-Method-Override: PUT"), Framing{Length: none})
		if got := without(fields, append(usual, "Host")...); len(got) != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	f("/", 0)
	f("/o", 3)
}

func TestTheFramingIsTheProxysAlone(t *testing.T) {
	s := set(t, deps(t), `{"cluster": "c"}`)
	f := func(framing Framing, want ...string) {
		t.Helper()
		_, fields := forwarded(t, s, exchange(t, "POST /\nContent-Length: 5\nConnection: close\nTrailer: X-Sum,X-Weir-User, ,X-Api-Key\nTrailer: X-Forwarded-For"), framing)
		if got := without(fields, append(usual, "Host")...); !slices.Equal(got, want) {
			t.Errorf("%+v: got %q, want %q", framing, got, want)
		}
	}
	f(Framing{Length: none})
	f(Framing{Length: 0}, "Content-Length: 0")
	f(Framing{Length: 7}, "Content-Length: 7")
	f(Framing{Length: none, Chunked: true}, "Transfer-Encoding: chunked")
	f(Framing{Length: 7, Chunked: true}, "Transfer-Encoding: chunked") // never both
	f(Framing{Length: none, Chunked: true, Trailers: true}, "Trailer: X-Sum", "Transfer-Encoding: chunked")
	f(Framing{Length: 7, Trailers: true}, "Content-Length: 7")
	f(Framing{Length: none, Upgrade: []byte("websocket")}, "Connection: Upgrade", "Upgrade: websocket")
	f(Framing{Length: none, Close: true}, "Connection: close")
	f(Framing{Length: 1, Expect: true, Extra: []byte("X-E: 1\r\n")}, "Content-Length: 1", "X-E: 1", "Expect: 100-continue")
}

func TestTargetAndHostGoOutInOneForm(t *testing.T) {
	s := set(t, deps(t), `{"path": "/users/{id}/x", "cluster": "c", "rewrite": {"path": "/v2/u-{id}.json", "host": "backend:8080"}}`,
		`{"path": "/api/*", "cluster": "c", "rewrite": {"strip_prefix": "/api"}}`,
		`{"path": "/old/*", "cluster": "c", "rewrite": {"strip_prefix": "/old", "add_prefix": "/new/v1"}}`,
		`{"path": "/tail/{a}/*", "cluster": "c", "rewrite": {"path": "/{*}/{a}", "host": "$upstream"}}`,
		`{"path": "/dot/{a}", "cluster": "c", "rewrite": {"path": "/x/.{a}/y"}}`,
		`{"path": "/*", "cluster": "c"}`)
	f := func(request, want string) {
		t.Helper()
		line, fields := forwarded(t, s, exchange(t, request), Framing{Length: none, Host: "10.0.0.1:80"})
		if got := line + " | " + fields[0]; got != want {
			t.Errorf("%q: got %q, want %q", request, got, want)
		}
	}
	f("GET /%61/./b//c?q=%61&&x", "GET /a/b/c?q=%61&&x HTTP/1.1 | Host: h")
	f("GET /a?", "GET /a? HTTP/1.1 | Host: h")
	f("GET http://EXAMPLE.com:80/a\nHost: example.com", "GET /a HTTP/1.1 | Host: example.com:80")
	f("GET /a\nHost: Example.COM.:8080", "GET /a HTTP/1.1 | Host: example.com:8080")
	f("GET /a\nHost: [2001:DB8::1]:80", "GET /a HTTP/1.1 | Host: [2001:db8::1]:80")
	f("GET /users/7/x?a=b", "GET /v2/u-7.json?a=b HTTP/1.1 | Host: backend:8080")
	f("GET /api/a/b", "GET /a/b HTTP/1.1 | Host: h")
	f("GET /api", "GET / HTTP/1.1 | Host: h")
	f("GET /api/", "GET / HTTP/1.1 | Host: h")
	f("GET /apix", "GET /apix HTTP/1.1 | Host: h")
	f("GET /old/a", "GET /new/v1/a HTTP/1.1 | Host: h")
	f("GET /old", "GET /new/v1 HTTP/1.1 | Host: h")
	f("GET /tail/x/y/z", "GET /y/z/x HTTP/1.1 | Host: 10.0.0.1:80")
	f("GET /tail/x", "GET /x HTTP/1.1 | Host: 10.0.0.1:80")
	f("GET /dot/a", "GET /x/.a/y HTTP/1.1 | Host: h")
}

// A dot before a parameter does not become a dot segment with it.
func TestARewriteCannotMakeDotSegments(t *testing.T) {
	s := set(t, deps(t), `{"path": "/dot/{a}/{b}/{c}", "cluster": "c", "rewrite": {"path": "/.{a}/{b}"}}`)
	x := exchange(t, "GET /dot/.x/y/z")
	if v := admit(s, x, 0); v.Action != Forward || string(x.TargetPath()) != "/..x/y" {
		t.Errorf("%+v %q", v, x.TargetPath())
	}
}

func TestTheClientsIdentityComesFromTrustedProxiesOnly(t *testing.T) {
	d := deps(t, "10.0.0.0/8", "2001:db8::/32")
	s := set(t, d, `{"path": "/f", "cluster": "c", "forwarding": "both"}`, `{"path": "/n", "cluster": "c", "forwarding": "none"}`, `{"cluster": "c"}`)
	f := func(peer, request string, tls bool, want ...string) {
		t.Helper()
		x := exchange(t, request)
		x.Peer, x.TLS = netip.MustParseAddrPort(peer), tls
		_, fields := forwarded(t, s, x, Framing{Length: none})
		if got := without(fields, "Host", "Via", "traceparent"); !slices.Equal(got, want) {
			t.Errorf("%s %q: got %q, want %q", peer, request, got, want)
		}
	}
	f("203.0.113.7:1", "GET /", false, "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: http", "X-Forwarded-Host: h")
	f("[::ffff:203.0.113.7]:1", "GET /", true, "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https", "X-Forwarded-Host: h")
	f("203.0.113.7:1", "GET /\nX-Forwarded-For: 1.1.1.1\nX-Forwarded-Proto: https\nX-Forwarded-Host: evil\nForwarded: for=1.1.1.1", false,
		"X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: http", "X-Forwarded-Host: h")
	f("10.0.0.1:1", "GET /\nX-Forwarded-For: 6.6.6.6, 1.1.1.1, 10.0.0.2\nX-Forwarded-Proto: https\nX-Forwarded-Host: Public.Example", false,
		"X-Forwarded-For: 1.1.1.1, 10.0.0.1", "X-Forwarded-Proto: https", "X-Forwarded-Host: public.example")
	f("10.0.0.1:1", "GET /\nX-Forwarded-Proto: gopher\nX-Forwarded-Host: a b", false,
		"X-Forwarded-For: 10.0.0.1", "X-Forwarded-Proto: http", "X-Forwarded-Host: h")
	f("[2001:db8::1]:1", "GET /f\nX-Forwarded-For: 2001:DB9::7\nHost: h:80", true,
		"X-Forwarded-For: 2001:db9::7, 2001:db8::1", "X-Forwarded-Proto: https", "X-Forwarded-Host: h:80",
		`Forwarded: for="[2001:db9::7]";host="h:80";proto=https, for="[2001:db8::1]"`)
	f("203.0.113.7:1", "GET /n\nX-Forwarded-For: 1.1.1.1", false)
}

func TestHeaderRules(t *testing.T) {
	s := set(t, deps(t), `{"cluster": "c",
		"request_headers": {"remove": ["Cookie", "Via"], "set": {"X-A": "1", "X-Forwarded-Proto": "https"}, "add": {"X-B": "2"}},
		"response_headers": {"remove": ["Server"], "set": {"Cache-Control": "no-store"}, "add": {"Link": "<x>"}}}`)
	x := exchange(t, "GET /\nCookie: a=b\nx-a: 9\nX-B: 1\nVia: 1.1 other")
	_, fields := forwarded(t, s, x, Framing{Length: none})
	want := []string{"Host: h", "X-B: 1", "X-A: 1", "X-Forwarded-Proto: https", "X-B: 2", "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Host: h"}
	if got := without(fields, "traceparent"); !slices.Equal(got, want) {
		t.Errorf("request: got %q, want %q", got, want)
	}
	x.Retain()
	got := string(x.Route.AppendResponseHead(nil, x, 200, []http1.Field{
		{Name: []byte("Server"), Value: []byte("x")}, {Name: []byte("cache-control"), Value: []byte("public")}, {Name: []byte("Link"), Value: []byte("<a>")},
		{Name: []byte("Connection"), Value: []byte("close, X-Hop")}, {Name: []byte("X-Hop"), Value: []byte("1")}, {Name: []byte("X-Weir-Hold"), Value: []byte("1")},
		{Name: []byte("Transfer-Encoding"), Value: []byte("chunked")}, {Name: []byte("Set-Cookie"), Value: []byte("a=b")}, {Name: []byte("Set-Cookie"), Value: []byte("c=d")},
	}, Framing{Length: 3, Date: []byte("Date: now\r\n")}))
	if want := "HTTP/1.1 200 OK\r\nLink: <a>\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nCache-Control: no-store\r\nLink: <x>\r\nDate: now\r\nContent-Length: 3\r\n\r\n"; got != want {
		t.Errorf("response: got %q, want %q", got, want)
	}
	got = string(x.Route.AppendResponseHead(nil, x, 304, []http1.Field{{Name: []byte("date"), Value: []byte("then")}}, Framing{Length: none, Date: []byte("Date: now\r\n")}))
	if !strings.Contains(got, "date: then") || strings.Contains(got, "Date: now") {
		t.Errorf("the upstream's Date is not kept: %q", got)
	}
}

func TestADateThatARuleSetsIsTheOnlyOne(t *testing.T) {
	s := set(t, deps(t), `{"cluster": "c", "response_headers": {"set": {"date": "then"}}}`)
	x := exchange(t, "GET /")
	admit(s, x, 0)
	got := string(x.Route.AppendResponseHead(nil, x, 200, []http1.Field{{Name: []byte("Date"), Value: []byte("once")}}, Framing{Length: 0, Date: []byte("Date: now\r\n")}))
	if want := "HTTP/1.1 200 OK\r\ndate: then\r\nContent-Length: 0\r\n\r\n"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestTheUpstreamReceivesTheClientsIdentity(t *testing.T) {
	d := deps(t)
	s := set(t, d, `{"path": "/f", "cluster": "c", "auth": {"forward": true, "api_keys": true}}`, `{"path": "/p", "cluster": "c"}`)
	f := func(request string, want ...string) {
		t.Helper()
		x := exchange(t, request)
		v := admit(s, x, 0)
		if v.Action == Identify {
			id, err := d.Auth.Verify(t.Context(), v.Token, now())
			v = x.Route.AdmitIdentity(x, id, err, 0)
		}
		if v.Action != Forward {
			t.Fatalf("%q: %+v", request, v)
		}
		head := string(x.Route.AppendRequestHead(nil, x, Framing{Length: none}))
		lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
		got := append(lines[:1:1], without(lines[1:], append(usual, "Host")...)...)
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", request, got, want)
		}
	}
	tok := token(t, "ann", 0)
	f("GET /f?a=1\nAuthorization: Bearer "+tok+"\nX-Weir-User: root", "GET /f?a=1 HTTP/1.1", "X-Weir-User: ann", "X-Weir-Auth: token")
	f("GET /f?a=1&token="+tok+"&b=2", "GET /f?a=1&b=2 HTTP/1.1", "X-Weir-User: ann", "X-Weir-Auth: token")
	f("GET /f?a=1&%74oken="+tok+"&b=2", "GET /f?a=1&b=2 HTTP/1.1", "X-Weir-User: ann", "X-Weir-Auth: token")
	f("GET /f\nX-API-Key: a-key-of-sixteen-bytes", "GET /f HTTP/1.1", "X-Weir-User: backend", "X-Weir-Auth: api_key")
	f("GET /f\nX-Weir-User: root\nAuthorization: Basic x", "GET /f HTTP/1.1", "Authorization: Basic x")
	f("GET /p?token=x\nAuthorization: Bearer "+tok+"\nX-API-Key: k", "GET /p?token=x HTTP/1.1", "Authorization: Bearer "+tok, "X-API-Key: k")
}

// What leaves is read by net/http as we meant it: one request, same method, host,
// path, and no field more.
func FuzzRequestHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /%61//b/../c;d?x=%zz#y HTTP/1.1\r\nHost: A.b.:80\r\nConnection: x-a, close\r\nX-A: 1\r\nX_B: 2\r\nContent-Length: 3\r\n\r\n",
		"PURGE http://h:80/a{b}|c HTTP/1.1\r\nHost: h\r\nForwarded: for=\"[::1]\"\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n\r\n",
		"GET /a HTTP/1.0\r\nX: \xff\xfe\r\nX-Forwarded-For: 1.1.1.1\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n",
		"OPTIONS /a?\" HTTP/1.1\r\nHost: [::1]\r\nOrigin: http://x\r\nTransfer-Encoding: chunked\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\n",
	} {
		f.Add([]byte(s), int64(-1), false)
		f.Add([]byte(s), int64(5), false)
		f.Add([]byte(s), int64(-1), true)
	}
	d := deps(f, "203.0.113.0/24")
	s := set(f, d, `{"path": "/a/{x}/*", "cluster": "c", "forwarding": "both", "rewrite": {"path": "/b.{x}/{*}"}, "paths": {"encoded_slash": true}}`,
		`{"cluster": "c", "forwarding": "both", "request_headers": {"set": {"X-Set": "1"}}, "paths": {"semicolon": true}}`)
	f.Fuzz(func(t *testing.T, input []byte, length int64, chunked bool) {
		var req http1.Request
		n, err := http1.ParseRequest(&req, input, http1.Limits{})
		if err != nil || n == 0 {
			return
		}
		x := &Exchange{}
		allow(x, &req)
		if v := admit(s, x, 0); v.Action != Forward {
			return
		}
		fr := Framing{Length: max(length, -1), Chunked: chunked, Host: "upstream"}
		head := x.Route.AppendRequestHead(nil, x, fr)
		sameAsNetHTTP(t, head, x, fr)
		again := &Exchange{}
		var back http1.Request
		if n, err := http1.ParseRequest(&back, head, http1.Limits{MaxLine: 1 << 20, MaxHead: 1 << 20, MaxFields: 1000}); err != nil || n != len(head) {
			t.Fatalf("our own parser reads %d of %q: %v", n, head, err)
		}
		allow(again, &back)
		if v := s.Match(again); v.Action != Forward {
			t.Fatalf("what went out of %q does not come in again: %+v", input, v)
		}
		if string(again.NormalPath()) != string(x.TargetPath()) {
			t.Fatalf("%q: path %q goes out and is %q", input, x.TargetPath(), again.NormalPath())
		}
	})
}

func sameAsNetHTTP(t *testing.T, head []byte, x *Exchange, fr Framing) {
	t.Helper()
	br := bufio.NewReader(bytes.NewReader(append(bytes.Clone(head), "GET /smuggled HTTP/1.1\r\n"...)))
	got, err := http.ReadRequest(br)
	if err != nil {
		// net/http requires more of a query or a host than RFC 9112 does; never less.
		if strings.Contains(err.Error(), "malformed Host") || strings.Contains(err.Error(), "invalid port") || strings.Contains(err.Error(), "invalid host") {
			return
		}
		t.Fatalf("net/http refuses %q: %v", head, err)
	}
	if got.Method != string(x.Method) || got.URL.EscapedPath() != string(x.TargetPath()) || got.Proto != "HTTP/1.1" {
		t.Fatalf("%q: net/http reads %s %s %s", head, got.Method, got.URL.EscapedPath(), got.Proto)
	}
	if want := string(appendHost(nil, x.Host)); got.Host != want && len(x.Host) > 0 {
		t.Fatalf("%q: net/http reads host %q", head, got.Host)
	}
	switch {
	case fr.Chunked && (got.ContentLength != -1 || len(got.TransferEncoding) != 1):
		t.Fatalf("%q: not chunked to net/http", head)
	case !fr.Chunked && fr.Length >= 0 && got.ContentLength != fr.Length, !fr.Chunked && fr.Length < 0 && got.ContentLength != 0:
		t.Fatalf("%q: length %d to net/http", head, got.ContentLength)
	}
	for name := range got.Header {
		for i := range len(name) {
			if !plainBytes[name[i]] {
				t.Fatalf("%q: field %q went out", head, name)
			}
		}
		switch name {
		case "Connection", "Te", "Keep-Alive", "Proxy-Connection", "Upgrade", "Expect", "X-Weir-User":
			t.Fatalf("%q: field %s went out", head, name)
		case "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "Traceparent":
			if len(got.Header[name]) != 1 {
				t.Fatalf("%q: several %s", head, name)
			}
		}
	}
	if strings.Count(strings.ToLower(string(head)), "\r\nhost:") != 1 {
		t.Fatalf("%q: not one Host", head)
	}
}

func TestTheForwardedPathIsFreeOfSecondReadings(t *testing.T) {
	s := set(t, deps(t), `{"name": "admin", "path": "/admin/*", "reply": {"status": 403}}`, `{"name": "all", "cluster": "c"}`)
	f := func(path string, status int) {
		t.Helper()
		v := admit(s, exchange(t, "GET "+path), 0)
		if v.Status != status {
			t.Errorf("%s: %+v", path, v)
		}
	}
	for _, p := range []string{"/admin", "/%61dmin/x", "/x/../admin", "//admin", "/./admin/x", "/x/%2e%2e/admin/x"} {
		f(p, 403)
	}
	for _, p := range []string{"/x/..;/admin", "/x/..%2fadmin", "/admin%2fx", "/admin;x", "/../admin", `/x\..\admin`, "/x/%5c", "/%00"} {
		f(p, 400)
	}
	f("/ok", 0)
}
