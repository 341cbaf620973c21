package auth

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func TestOrigins(t *testing.T) {
	var a *Authenticator
	allow := func(list ...string) { a = newAuth(t, Config{AllowedOrigins: list}) }
	f := func(origin, host string, tls bool, want Access) {
		t.Helper()
		if got := a.OriginAccess(Page{Origin: []byte(origin), Host: []byte(host), TLS: tls}); got != want {
			t.Errorf("OriginAccess(%q, %q, %v) = %v, want %v", origin, host, tls, got, want)
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
	// What is not an origin is refused, even when it has the host in it.
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

func TestLoopbackPagesMayConnectOverLoopback(t *testing.T) {
	a := newAuth(t, Config{})
	local, local6, mapped := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("::ffff:127.0.0.1")
	f := func(origin, host string, peer netip.Addr, want Access) {
		t.Helper()
		p := Page{Origin: []byte(origin), Host: []byte(host), Peer: peer}
		if got := a.OriginAccess(p); got != want {
			t.Errorf("OriginAccess(%q, %q, %v) = %v, want %v", origin, host, peer, got, want)
		}
		for _, q := range []Page{{p.Origin, p.Host, true, peer, false}, {p.Origin, p.Host, false, peer, true}} {
			if got := a.OriginAccess(q); got != OriginRefused {
				t.Errorf("OriginAccess(%q, %q, %v, TLS %v, forwarded %v) = %v, want it refused", origin, host, peer, q.TLS, q.Forwarded, got)
			}
		}
	}
	f("http://localhost:3000", "127.0.0.1:8000", local, OriginOpen)
	f("http://localhost", "localhost:8000", local6, OriginOpen)
	f("https://localhost:5173", "127.0.0.1:8000", local, OriginOpen)
	f("http://127.0.0.1:3000", "LOCALHOST:8000", mapped, OriginOpen)
	f("http://[::1]:3000", "[::1]:8000", local6, OriginOpen)
	f("http://LocalHost:3000", "[::1]", local, OriginOpen)

	// DNS rebinding: the browser connects to loopback and shows another name.
	f("http://localhost:3000", "rebound.example:8000", local, OriginRefused)
	f("http://localhost:3000", "localhost.evil.com:8000", local, OriginRefused)
	f("http://localhost:3000", "127.0.0.1.evil.com", local, OriginRefused)
	f("http://localhost:3000", "", local, OriginRefused)
	// The page is not of this machine.
	f("http://evil.com", "127.0.0.1:8000", local, OriginRefused)
	f("http://localhost.evil.com", "127.0.0.1:8000", local, OriginRefused)
	f("http://x.localhost:3000", "127.0.0.1:8000", local, OriginRefused)
	f("http://127.0.0.1.evil.com", "127.0.0.1:8000", local, OriginRefused)
	f("http://[::2]:3000", "127.0.0.1:8000", local, OriginRefused)
	f("http://127.0.0.2:3000", "127.0.0.1:8000", local, OriginRefused)
	f("ftp://localhost", "127.0.0.1:8000", local, OriginRefused)
	f("capacitor://localhost", "127.0.0.1:8000", local, OriginRefused)
	f("null", "127.0.0.1:8000", local, OriginRefused) // a sandboxed frame of any site
	f("file://", "127.0.0.1:8000", local, OriginRefused)
	// The client is not on this machine.
	f("http://localhost:3000", "127.0.0.1:8000", netip.MustParseAddr("192.0.2.1"), OriginRefused)
	f("http://localhost:3000", "127.0.0.1:8000", netip.Addr{}, OriginRefused)
}

func TestRefusedOriginsAreLoggedWithTheLineToAdd(t *testing.T) {
	var out bytes.Buffer
	a, err := New(Config{AllowedOrigins: []string{"https://app.example.com"}}, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	at := now
	a.now = func() time.Time { return at }
	refuse := func(origin string) string {
		t.Helper()
		out.Reset()
		a.LogRefusedOrigin(Page{Origin: []byte(origin), Host: []byte("127.0.0.1:8000")}, []byte("/sse"), "")
		return out.String()
	}
	has := func(got string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(got, want) {
				t.Errorf("%q does not have %q", got, want)
			}
		}
	}
	quiet := func(got string) {
		t.Helper()
		if got != "" {
			t.Errorf("logged %q", got)
		}
	}
	has(refuse("http://localhost:3000"), "level=WARN", "origin refused", "http://localhost:3000", "path=/sse",
		"auth: {allowed_origins: ['https://app.example.com', 'http://localhost:3000']}")
	at = at.Add(59 * time.Second)
	quiet(refuse("http://localhost:3000"))
	has(refuse("null"), "allowed_origins: ['https://app.example.com', 'null']}", "sandboxed")
	has(refuse("evil' \\n"), "is not an origin")
	at = at.Add(time.Second)
	has(refuse("http://localhost:3000"), "origin refused")

	// However many there are, no more than maxRefusedPages are remembered and logged.
	lines := 0
	for i := range 10 * maxRefusedPages {
		if refuse(fmt.Sprintf("https://%d.example", i)) != "" {
			lines++
		}
	}
	if len(a.pages.logged) > maxRefusedPages || lines >= maxRefusedPages {
		t.Errorf("%d remembered, %d logged", len(a.pages.logged), lines)
	}
	at = at.Add(time.Minute)
	has(refuse("https://late.example"), "https://late.example", fmt.Sprintf("unlogged=%d", 10*maxRefusedPages-lines))
	if len(a.pages.logged) != 1 {
		t.Errorf("%d remembered after a minute", len(a.pages.logged))
	}
	if n := a.Stats().Origins; n != uint64(10*maxRefusedPages+6) {
		t.Errorf("%d refusals counted", n)
	}
	// What is logged can be pasted.
	line := refuse("https://paste.example:8443")
	_, line, _ = strings.Cut(line, "hint=\"")
	line, _, _ = strings.Cut(line, "\"")
	var parsed struct {
		Auth struct {
			AllowedOrigins []string `yaml:"allowed_origins"`
		}
	}
	if err := yaml.Unmarshal([]byte(line), &parsed); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if b := newAuth(t, Config{AllowedOrigins: parsed.Auth.AllowedOrigins}); b.OriginAccess(Page{Origin: []byte("https://paste.example:8443"), Host: []byte("a")}) != OriginTrusted {
		t.Errorf("%q does not let it in", line)
	}
}

func TestOriginAllocatesNothing(t *testing.T) {
	a := newAuth(t, Config{AllowedOrigins: []string{"https://x.example.com", "https://*.example.com"}})
	o, h := []byte("https://a.b.example.com"), []byte("weir.example.com:8000")
	if n := testing.AllocsPerRun(100, func() { a.OriginAccess(Page{Origin: o, Host: h, TLS: true}) }); n != 0 {
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
		if o == "" || a.OriginAccess(Page{Origin: []byte(o), Host: []byte(host)}) == OriginRefused {
			return
		}
		p, ok := parseOrigin([]byte(o))
		if !ok {
			t.Fatalf("%q was allowed and is not an origin", o)
		}
		sub := len(p.host) > 12 && equalFold(p.host[len(p.host)-12:], []byte(".example.com"))
		if name, _, _ := parseHost([]byte(host)); !sub && !equalFold(p.host, name) {
			t.Errorf("%q was allowed for host %q", o, host)
		}
	})
}
