package auth

import "testing"

func TestOrigins(t *testing.T) {
	var a *Authenticator
	allow := func(list ...string) { a = newAuth(t, Config{AllowedOrigins: list}) }
	f := func(origin, host string, tls bool, want Access) {
		t.Helper()
		got := a.OriginAccess([]byte(origin), []byte(host), tls)
		if got != want {
			t.Errorf("OriginAccess(%q, %q, %v) = %v, want %v", origin, host, tls, got, want)
		}
		if ok := a.OriginAllowed([]byte(origin), []byte(host), tls); ok != (want != OriginRefused) {
			t.Errorf("OriginAllowed(%q, %q, %v) = %v", origin, host, tls, ok)
		}
	}
	const host = "weir.example.com"

	allow() // same origin only
	f("", host, false, OriginTrusted)
	f("http://weir.example.com", host, false, OriginTrusted)
	f("http://weir.example.com:80", host, false, OriginTrusted)
	f("http://weir.example.com", host+":80", false, OriginTrusted)
	f("https://weir.example.com", host, true, OriginTrusted)
	f("https://weir.example.com", host+":443", true, OriginTrusted)
	f("HTTP://Weir.Example.COM", "wEIR.example.com", false, OriginTrusted)
	f("http://127.0.0.1:8000", "127.0.0.1:8000", false, OriginTrusted)
	f("http://[::1]:8000", "[::1]:8000", false, OriginTrusted)
	f("https://weir.example.com", host, false, OriginRefused) // scheme
	f("http://weir.example.com", host, true, OriginRefused)
	f("http://weir.example.com:8000", host, false, OriginRefused) // port
	f("http://weir.example.com", host+":8000", false, OriginRefused)
	f("http://127.0.0.1:8001", "127.0.0.1:8000", false, OriginRefused)
	f("http://[::1]:8000", "[::2]:8000", false, OriginRefused)
	f("http://example.com", host, false, OriginRefused) // host
	f("http://evil.com", host, false, OriginRefused)
	f("http://weir.example.com.", host, false, OriginRefused)
	f("http://weir.example.com.evil.com", host, false, OriginRefused)
	f("http://weir.example.comevil", host, false, OriginRefused)
	f("null", host, false, OriginRefused)
	f("null", "null", false, OriginRefused)
	f("NULL", host, false, OriginRefused)
	// What is no origin is refused, even when it has the host in it.
	f("http://", "", false, OriginRefused)
	f("http:///", host, false, OriginRefused)
	f("weir.example.com", host, false, OriginRefused)
	f("//weir.example.com", host, false, OriginRefused)
	f("http:weir.example.com", host, false, OriginRefused)
	f("http://weir.example.com/", host, false, OriginRefused)
	f("http://weir.example.com/x", host, false, OriginRefused)
	f("http://weir.example.com?x", host, false, OriginRefused)
	f("http://weir.example.com#", host, false, OriginRefused)
	f("http://weir.example.com@evil.com", host, false, OriginRefused)
	f("http://evil.com@weir.example.com", host, false, OriginRefused)
	f("http://evil.com http://weir.example.com", host, false, OriginRefused)
	f("http://weir.example.com http://evil.com", host, false, OriginRefused)
	f(" http://weir.example.com", host, false, OriginRefused)
	f("http://weir.example.com\x00", host, false, OriginRefused)
	f("http://weir%2eexample.com", host, false, OriginRefused)
	f("http://weir\uff0eexample.com", host, false, OriginRefused)
	f("http://\u212aweir.example.com", "kweir.example.com", false, OriginRefused)
	f("http://weir.example.com:", host, false, OriginRefused)
	f("http://weir.example.com:080", host, false, OriginRefused)
	f("http://weir.example.com:+80", host, false, OriginRefused)
	f("http://weir.example.com:80:80", host, false, OriginRefused)
	f("http://weir.example.com:999999", host, false, OriginRefused)
	f("http://weir.example.com:65616", host, false, OriginRefused) // 80 + 65536
	f("http://[::1", "[::1", false, OriginRefused)
	f("http://[::1]x", "[::1]x", false, OriginRefused)
	f("http://[evil]", "[evil]", false, OriginRefused)
	f("1http://weir.example.com", host, false, OriginRefused)
	f("http://weir.example.com", "", false, OriginRefused)
	f("http://weir.example.com", "weir.example.com/x", false, OriginRefused)

	allow("https://App.example.com", "http://localhost:3000", "capacitor://localhost")
	f("https://app.example.com", host, false, OriginTrusted)
	f("https://APP.example.com:443", host, false, OriginTrusted)
	f("http://localhost:3000", host, false, OriginTrusted)
	f("capacitor://localhost", host, false, OriginTrusted)
	f("http://weir.example.com", host, false, OriginTrusted)
	f("http://app.example.com", host, false, OriginRefused)
	f("https://app.example.com:8443", host, false, OriginRefused)
	f("https://x.app.example.com", host, false, OriginRefused)
	f("https://appxexample.com", host, false, OriginRefused)
	f("http://localhost", host, false, OriginRefused)
	f("null", host, false, OriginRefused)

	allow("https://*.example.com", "http://*.localhost:3000")
	f("https://a.example.com", host, false, OriginTrusted)
	f("https://a.b.Example.com", host, false, OriginTrusted)
	f("http://x.localhost:3000", host, false, OriginTrusted)
	f("https://example.com", host, false, OriginRefused)
	f("https://.example.com", host, false, OriginRefused)
	f("https://evilexample.com", host, false, OriginRefused)
	f("https://a.example.com.evil.com", host, false, OriginRefused)
	f("http://a.example.com", host, false, OriginRefused)
	f("https://a.example.com:444", host, false, OriginRefused)
	f("https://evil.com/.example.com", host, false, OriginRefused)
	f("https://evil.com#.example.com", host, false, OriginRefused)
	f("https://evil.com:1.example.com", host, false, OriginRefused)
	f("https://*.example.com", host, false, OriginRefused)

	allow("null", "https://app.example.com")
	f("null", host, false, OriginOpen)
	f("https://evil.com", host, false, OriginRefused)

	// "*" lets in, but does not trust; what is also listed is trusted.
	allow("*", "https://app.example.com")
	f("https://evil.com", host, false, OriginOpen)
	f("null", host, false, OriginOpen)
	f("https://app.example.com", host, false, OriginTrusted)
	f("http://weir.example.com", host, false, OriginTrusted)
	f("evil.com", host, false, OriginRefused)
	f("nulll", host, false, OriginRefused)
}

func TestOriginAllocatesNothing(t *testing.T) {
	a := newAuth(t, Config{AllowedOrigins: []string{"https://x.example.com", "https://*.example.com"}})
	o, h := []byte("https://a.b.example.com"), []byte("weir.example.com:8000")
	if n := testing.AllocsPerRun(100, func() { a.OriginAllowed(o, h, true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzOrigin(f *testing.F) {
	f.Add("https://a.example.com", "weir.example.com")
	f.Add("http://[::1]:80", "[::1]")
	f.Add("null", "")
	f.Add("https://evil.com:1.example.com", "x")
	a := newAuth(f, Config{AllowedOrigins: []string{"https://*.example.com"}})
	f.Fuzz(func(t *testing.T, o, host string) {
		if o == "" || !a.OriginAllowed([]byte(o), []byte(host), false) {
			return
		}
		p, ok := parseOrigin([]byte(o))
		if !ok {
			t.Fatalf("%q was allowed and is no origin", o)
		}
		sub := len(p.host) > 12 && equalFold(p.host[len(p.host)-12:], []byte(".example.com"))
		if name, _, _ := parseHost([]byte(host)); !sub && !equalFold(p.host, name) {
			t.Errorf("%q was allowed for host %q", o, host)
		}
	})
}
