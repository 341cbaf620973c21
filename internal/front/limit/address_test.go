package limit

import (
	"net/netip"
	"strings"
	"testing"
)

func TestTheLongestPrefixDecides(t *testing.T) {
	a, err := NewAddresses(Lists{
		Allow: []string{"10.0.0.0/8", "10.1.2.3", "2001:db8::/32", "::ffff:192.0.2.0/120"},
		Deny:  []string{"10.1.0.0/16", "2001:db8:1::/48", "2001:db8:1::7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := func(addr string, want bool) {
		t.Helper()
		if got := a.Allowed(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	f("10.0.0.1", true)
	f("10.1.0.1", false)
	f("10.1.2.3", true)
	f("::ffff:10.1.2.3", true)
	f("::ffff:10.1.2.4", false)
	f("11.0.0.1", false)
	f("192.0.2.9", true)
	f("2001:db8::1", true)
	f("2001:db8::1%eth0", true)
	f("2001:db8:1::1", false)
	f("2001:db9::1", false)
	f("::a00:1", false) // not the IPv4 address of these bits
	if a.Allowed(netip.Addr{}) {
		t.Error("an address that is none is allowed")
	}
}

func TestWithoutAllowAllOthersMayCome(t *testing.T) {
	a, err := NewAddresses(Lists{Deny: []string{"0.0.0.0/0", "2001:db8::/32"}})
	if err != nil || a.Allowed(netip.MustParseAddr("1.2.3.4")) || a.Allowed(netip.MustParseAddr("2001:db8::1")) || !a.Allowed(netip.MustParseAddr("2001:db9::1")) {
		t.Errorf("%v", err)
	}
	if a, err = NewAddresses(Lists{}); a != nil || err != nil || !a.Allowed(netip.MustParseAddr("1.2.3.4")) {
		t.Errorf("%v, %v", a, err)
	}
}

func TestABadNetworkSaysWhatToWrite(t *testing.T) {
	f := func(l Lists, want string) {
		t.Helper()
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", l, err, want)
		}
	}
	f(Lists{Allow: []string{"10.0.0.1/8"}}, `allow: "10.0.0.1/8" has bits after its prefix: write 10.0.0.0/8`)
	f(Lists{Deny: []string{"example.com"}}, `deny: "example.com" is not a network`)
	f(Lists{Deny: []string{"10.0.0.0/33"}}, "is not a network")
	f(Lists{Deny: []string{"fe80::1%eth0"}}, "no zone")
	f(Lists{Deny: []string{"::ffff:0:0/90"}}, "at least 96")
	f(Lists{Allow: []string{"10.0.0.0/8"}, Deny: []string{"10.0.0.0/8"}}, "is in allow as well")
	if err := (Trusted{Proxies: []string{"x"}, Header: "x-real-ip"}).Validate(); err == nil || !strings.Contains(err.Error(), "neither") || !strings.Contains(err.Error(), `proxies: "x"`) {
		t.Errorf("%v", err)
	}
}

func TestTheClientIsTheOneTrustedProxiesName(t *testing.T) {
	xff, err := NewTrust(Trusted{Proxies: []string{"10.0.0.0/8", "2001:db8::/32"}})
	if err != nil {
		t.Fatal(err)
	}
	fwd, err := NewTrust(Trusted{Proxies: []string{"10.0.0.0/8", "2001:db8::/32"}, Header: "forwarded"})
	if err != nil {
		t.Fatal(err)
	}
	f := func(trust *Trust, peer, want string, lines ...string) {
		t.Helper()
		if got := trust.Client(netip.MustParseAddr(peer), fieldLines(lines...)); got.String() != want {
			t.Errorf("%s %q: %v, want %s", peer, lines, got, want)
		}
	}
	f(nil, "10.0.0.1", "10.0.0.1", "X-Forwarded-For: 1.1.1.1")
	f(xff, "192.0.2.1", "192.0.2.1", "X-Forwarded-For: 1.1.1.1")
	f(xff, "10.0.0.1", "10.0.0.1")
	f(xff, "10.0.0.1", "1.1.1.1", "X-Forwarded-For: 1.1.1.1")
	f(xff, "::ffff:10.0.0.1", "1.1.1.1", "x-forwarded-for: 1.1.1.1")
	f(xff, "10.0.0.1", "1.1.1.1", "X-Forwarded-For: 6.6.6.6, 1.1.1.1,10.0.0.2 , 2001:db8::1")
	f(xff, "10.0.0.1", "1.1.1.1", "X-Forwarded-For: 6.6.6.6", "Other: 7.7.7.7", "X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 10.0.0.2")
	f(xff, "10.0.0.1", "10.0.0.3", "X-Forwarded-For: 10.0.0.3, 10.0.0.2") // all are proxies: the first
	f(xff, "10.0.0.1", "10.0.0.2", "X-Forwarded-For: 1.1.1.1, unknown, 10.0.0.2")
	f(xff, "10.0.0.1", "10.0.0.1", "X-Forwarded-For: 1.1.1.1, 010.0.0.2")
	f(xff, "10.0.0.1", "1.1.1.1", "X-Forwarded-For: ,1.1.1.1, ,")
	f(xff, "10.0.0.1", "1.1.1.1", "X-Forwarded-For: 1.1.1.1:8080")
	f(xff, "10.0.0.1", "2001:db9::1", "X-Forwarded-For: [2001:db9::1]:8080")
	f(xff, "10.0.0.1", "2001:db9::1", "X-Forwarded-For: 2001:db9::1")
	f(xff, "10.0.0.1", "1.1.1.1", "X-Forwarded-For: ::ffff:1.1.1.1")
	f(xff, "10.0.0.1", "10.0.0.1", "X-Forwarded-For: 1.1.1.1:99999")
	f(xff, "10.0.0.1", "10.0.0.1", "X-Forwarded-For: [1.1.1.1]")
	f(xff, "10.0.0.1", "10.0.0.1", "X-Forwarded-For: fe80::1%eth0")
	f(xff, "10.0.0.1", "10.0.0.1", "Forwarded: for=1.1.1.1")
	f(xff, "10.0.0.1", "10.0.0.2", "X-Forwarded-For: 1.1.1.1"+strings.Repeat(", 10.0.0.2", 100)) // a loop
	f(fwd, "10.0.0.1", "10.0.0.1", "X-Forwarded-For: 1.1.1.1")
	f(fwd, "10.0.0.1", "1.1.1.1", "Forwarded: for=1.1.1.1")
	f(fwd, "10.0.0.1", "1.1.1.1", `Forwarded: for=6.6.6.6;by=x, For="1.1.1.1:80" ; proto=https, for="[2001:db8::1]:4711"`)
	f(fwd, "10.0.0.1", "1.1.1.1", "Forwarded: for=6.6.6.6, for=1.1.1.1", "Forwarded: for=10.0.0.2")
	f(fwd, "10.0.0.1", "10.0.0.2", "Forwarded: for=1.1.1.1, for=unknown, for=10.0.0.2")
	f(fwd, "10.0.0.1", "10.0.0.2", "Forwarded: for=1.1.1.1, for=_hidden, for=10.0.0.2")
	f(fwd, "10.0.0.1", "10.0.0.2", "Forwarded: for=1.1.1.1, proto=http, for=10.0.0.2")
	f(fwd, "10.0.0.1", "10.0.0.1", `Forwarded: for="1.1.1.1, for=10.0.0.2`)
	f(fwd, "10.0.0.1", "6.6.6.6", `Forwarded: for=6.6.6.6;by=", for=7.7.7.7", for=10.0.0.2`) // a comma inside quotes parts nothing
	f(fwd, "10.0.0.1", "10.0.0.1", `Forwarded: for="1.1.1\.1"`)
	f(fwd, "10.0.0.1", "10.0.0.1", "Forwarded: for=1.1.1.1;for=2.2.2.2")
	f(fwd, "10.0.0.1", "10.0.0.1", "Forwarded: for 1.1.1.1")
	f(fwd, "10.0.0.1", "10.0.0.1", "Forwarded: for=1.1.1.1"+strings.Repeat(", for=10.0.0.2", 100))
}

func TestTheNearestProxySaysTheOrigin(t *testing.T) {
	f := func(header, want string, lines ...string) {
		t.Helper()
		trust, err := NewTrust(Trusted{Proxies: []string{"10.0.0.0/8"}, Header: header})
		if err != nil {
			t.Fatal(err)
		}
		scheme, host := trust.Origin(fieldLines(lines...))
		if got := string(scheme) + " " + string(host); got != want {
			t.Errorf("%q: %q, want %q", lines, got, want)
		}
	}
	f("", " ")
	f("", "https a:80", "X-Forwarded-Proto: http, https", "X-Forwarded-Host: b", "X-Forwarded-Host: a:80")
	f("", " ", "Forwarded: proto=https;host=a")
	f("forwarded", "https a:80", `Forwarded: proto=http;host=b;for=x, Host="a:80"; PROTO=https`)
	f("forwarded", " ", "Forwarded: proto=https, for=1.1.1.1")
	f("forwarded", " ", `Forwarded: proto=https;host="a`)
	f("forwarded", " ", "X-Forwarded-Proto: https")
}

func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{"1.2.3.4", "::", "::1", "1::", "2001:db8::1", "::ffff:1.2.3.4", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:1.2.3.4", "01.2.3.4", "1.2.3", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "fe80::1%a", ":1", "1:", "::1.2.3.4.5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := ParseAddr([]byte(s))
		want, err := netip.ParseAddr(s)
		if err == nil && want.Zone() != "" {
			if ok {
				t.Fatalf("%q has a zone", s)
			}
			return
		}
		if ok != (err == nil) || ok && got != want.Unmap() {
			t.Fatalf("%q: %v, %v; netip says %v, %v", s, got, ok, want, err)
		}
	})
}

// Whatever the fields, the client is the peer or an address that is in them,
// and no field moves a peer that is not trusted.
func FuzzClient(f *testing.F) {
	f.Add("1.1.1.1, 10.0.0.2", "10.0.0.3")
	f.Add(`for=1.1.1.1;proto=x, for="[2001:db8::1]:80"`, `for="10.0.0.1", for=_x`)
	f.Add(`for="\"", for=10.1.1.1,,;;`, "")
	peer := netip.MustParseAddr("10.0.0.1")
	f.Fuzz(func(t *testing.T, first, second string) {
		for _, header := range []string{HeaderXForwardedFor, HeaderForwarded} {
			trust, err := NewTrust(Trusted{Proxies: []string{"10.0.0.0/8"}, Header: header})
			if err != nil {
				t.Fatal(err)
			}
			fields := fieldLines(header+": "+first, header+": "+second)
			trust.Origin(fields)
			got := trust.Client(peer, fields)
			if !got.IsValid() || got.Is4In6() || got.Zone() != "" {
				t.Fatalf("%q %q: %v", first, second, got)
			}
			if other := netip.MustParseAddr("192.0.2.1"); trust.Client(other, fields) != other {
				t.Fatalf("%q %q move an untrusted peer", first, second)
			}
			if got.Is4() && got != peer && !strings.Contains(first+" "+second, got.String()) && !strings.Contains(strings.ToLower(first+second), ":") {
				t.Fatalf("%q %q: %v is in none of them", first, second, got)
			}
			// What a client wrote, left of what the proxy added, does not count.
			appended := append(fields, fieldLines(header+": "+map[string]string{HeaderXForwardedFor: "1.2.3.4", HeaderForwarded: "for=1.2.3.4"}[header])...)
			if got := trust.Client(peer, appended); got.String() != "1.2.3.4" {
				t.Fatalf("%q %q: the proxy's word is lost, %v", first, second, got)
			}
		}
	})
}
