package http1

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// parse parses in whole and then every prefix of it (of a long one about a
// thousand): each must be incomplete or give the same verdict. The status is 0 when in was accepted or is incomplete (n == 0).
func parse(t *testing.T, in string, lim Limits) (r Request, n, status int) {
	t.Helper()
	n, err := ParseRequest(&r, []byte(in), lim)
	want := verdict(&r, n, err)
	var p Request
	for i := 0; i < len(in); i += 1 + len(in)/1000 {
		m, e := ParseRequest(&p, []byte(in[:i]), lim)
		if m == 0 && e == nil {
			continue
		}
		if got := verdict(&p, m, e); got != want {
			t.Errorf("%q: after %d bytes %s, after all %s", in, i, got, want)
		}
		break
	}
	return r, n, statusOf(t, err)
}

// verdict writes down everything ParseRequest said.
func verdict(r *Request, n int, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case n == 0:
		return "incomplete"
	}
	return fmt.Sprintf("%d bytes, %v", n, *r)
}

func statusOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%v is no *Error", err)
	}
	return e.Status
}

// checkParse is a case per line: status 0 means accepted, whole.
func checkParse(t *testing.T, status int, in string) {
	t.Helper()
	if _, n, got := parse(t, in, Limits{}); got != status || status == 0 && n != len(in) {
		t.Errorf("%q: status %d, %d bytes, want status %d", in, got, n, status)
	}
}

func TestRequestLine(t *testing.T) {
	f := func(status int, line string) {
		t.Helper()
		checkParse(t, status, line+"\r\nHost: a\r\n\r\n")
	}
	f(0, "GET / HTTP/1.1")
	f(0, "get / HTTP/1.1") // a method has case; this is another one, and a token
	f(0, "M-SEARCH / HTTP/1.1")
	f(0, strings.Repeat("M", 32)+" / HTTP/1.1")
	f(501, strings.Repeat("M", 33)+" / HTTP/1.1")
	f(501, strings.Repeat("M", 9000))
	f(400, " / HTTP/1.1")
	f(400, "G@T / HTTP/1.1")
	f(400, "G\x00T / HTTP/1.1")
	f(400, "\x16\x03\x01\x02\x00\x01") // a TLS client hello

	f(0, "GET / HTTP/1.0")
	f(505, "GET / HTTP/1.2")
	f(505, "GET / HTTP/2.0")
	f(505, "PRI * HTTP/2.0") // the HTTP/2 preface
	f(505, "GET / HTTP/0.9")
	f(400, "GET /")
	f(400, "GET / ")
	f(400, "GET / HTTP/1")
	f(400, "GET / HTTP/1.")
	f(400, "GET / HTTP/1.10")
	f(400, "GET / HTTP/11.1")
	f(400, "GET / http/1.1")
	f(400, "GET / HTTP/1.1 ")
	f(400, "GET / HTTP/1.1\t")
	f(400, "GET / HTTPS/1.1")

	// White space: exactly one SP twice (RFC 9112 §3).
	f(400, "GET  / HTTP/1.1")
	f(400, "GET /  HTTP/1.1")
	f(400, "GET\t/ HTTP/1.1")
	f(400, "GET /\tHTTP/1.1")
	f(400, "GET /a b HTTP/1.1")
	f(400, "GET /\vHTTP/1.1")
}

func TestRequestTarget(t *testing.T) {
	f := func(target, path, query, host string) {
		t.Helper()
		r, n, status := parse(t, "GET "+target+" HTTP/1.1\r\nHost: a\r\n\r\n", Limits{})
		if n == 0 || string(r.Path) != path || string(r.Query) != query || string(r.Host) != host || string(r.Target) != target {
			t.Errorf("%q: status %d path %q query %q host %q target %q", target, status, r.Path, r.Query, r.Host, r.Target)
		}
	}
	f("/", "/", "", "a")
	f("/a/b?c=d&e", "/a/b", "c=d&e", "a")
	f("/a?b?c", "/a", "b?c", "a")
	f("/a?", "/a", "", "a")
	f("//a/../b;c", "//a/../b;c", "", "a")
	f("/%41%2f%00", "/%41%2f%00", "", "a") // left as it is
	f("/?q=100%", "/", "q=100%", "a")      // the query is its reader's business
	f("/a{|}^`\\\"<>", "/a{|}^`\\\"<>", "", "a")
	f("http://a/x?y", "/x", "y", "a")
	f("HTTP://A/x", "/x", "", "A")
	f("http://a:80/x", "/x", "", "a:80")
	f("https://a:443/x", "/x", "", "a:443")
	f("http://a", "/", "", "a")
	f("http://a?b", "/", "b", "a")

	r, _, _ := parse(t, "OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n", Limits{})
	if string(r.Path) != "*" {
		t.Errorf("OPTIONS without a path: path %q, want * (RFC 9112 §3.2.4)", r.Path)
	}
	r, _, _ = parse(t, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", Limits{})
	if r.Query != nil {
		t.Errorf("query %q without a question mark", r.Query)
	}
}

func TestTargetOfAnotherFormIsRefused(t *testing.T) {
	f := func(status int, line string) {
		t.Helper()
		checkParse(t, status, line+" HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	f(400, "GET a")
	f(400, "GET ?a")
	f(400, "GET /#a")
	f(400, "GET /\x00")
	f(400, "GET /\x01")
	f(400, "GET /\x7f")
	f(400, "GET /\r")
	f(400, "GET /é")
	f(400, "GET /%")
	f(400, "GET /%4")
	f(400, "GET /%zz")
	f(400, "GET http://a/%zz")
	f(400, "GET *")
	f(0, "OPTIONS *")
	f(0, "OPTIONS /")
	f(400, "OPTIONS **")
	f(501, "CONNECT a:443")
	f(501, "CONNECT /")
	f(400, "GET a:443")
	f(400, "GET ftp://a/")
	f(400, "GET http:/a/")
	f(400, "GET http:///")
	f(400, "GET http://")
	f(400, "GET http://:80/")
	f(400, "GET http://u@a/")
	f(400, "GET http://u:p@a/")
	f(400, "GET http://a\\@b/")
	f(400, "GET http://a:b/")
	f(400, "GET http://a,b/")
}

func TestHost(t *testing.T) {
	f := func(status int, fields string) {
		t.Helper()
		checkParse(t, status, "GET / HTTP/1.1\r\n"+fields+"\r\n")
	}
	f(0, "Host: a\r\n")
	f(0, "hOST:a-b.c_d~e.\r\n")
	f(0, "Host: a:8000\r\n")
	f(0, "Host: a:\r\n")
	f(0, "Host: 127.0.0.1:65535\r\n")
	f(0, "Host: [::1]\r\n")
	f(0, "Host: [2001:db8::1]:8000\r\n")
	f(400, "")
	f(400, "X: y\r\n")
	f(400, "Host:\r\n")
	f(400, "Host: \r\n")
	f(400, "Host: a\r\nHost: a\r\n")
	f(400, "Host: a\r\nX: y\r\nhost: b\r\n")
	f(400, "Host: :80\r\n")
	f(400, "Host: a:65536\r\n")
	f(400, "Host: a:000080\r\n")
	f(400, "Host: a:+80\r\n")
	f(400, "Host: a:80:80\r\n")
	f(400, "Host: a b\r\n")
	f(400, "Host: a/b\r\n")
	f(400, "Host: a?b\r\n")
	f(400, "Host: u@a\r\n")
	f(400, "Host: a,b\r\n")
	f(400, "Host: a%41\r\n")
	f(400, "Host: é\r\n")
	f(400, "Host: http://a\r\n")
	f(400, "Host: ::1\r\n")
	f(400, "Host: [::1\r\n")
	f(400, "Host: []\r\n")
	f(400, "Host: [::1]a\r\n")
	f(400, "Host: [::1]:a\r\n")
	f(400, "Host: [::1%25lo]\r\n")
	f(400, "Host: [127.0.0.1]\r\n")
	f(400, "Host: [v1.a]\r\n")

	checkParse(t, 0, "GET / HTTP/1.0\r\n\r\n")
	checkParse(t, 0, "GET / HTTP/1.0\r\nHost: a\r\n\r\n")
	checkParse(t, 400, "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n")
	checkParse(t, 400, "GET / HTTP/1.0\r\nHost: a b\r\n\r\n")
}

func TestHostMustAgreeWithAnAbsoluteTarget(t *testing.T) {
	f := func(status int, target, host string) {
		t.Helper()
		checkParse(t, status, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	}
	f(0, "http://a/", "a")
	f(0, "http://a/", "A")
	f(0, "http://a/", "a:80")
	f(0, "http://a:80/", "a")
	f(0, "http://a:/", "a")
	f(0, "https://a/", "a:443")
	f(0, "http://a:8000/", "a:8000")
	f(400, "http://a/", "b")
	f(400, "http://a/", "a:8000")
	f(400, "https://a/", "a:80")
	f(400, "http://a:81/", "a:80")
	checkParse(t, 400, "GET http://a/ HTTP/1.1\r\n\r\n")
	checkParse(t, 0, "GET http://a/ HTTP/1.0\r\n\r\n")
}

func TestIPv6LiteralsAreValidatedAsNetipDoes(t *testing.T) {
	f := func(s string) {
		t.Helper()
		addr, err := netip.ParseAddr(s)
		want := err == nil && addr.Is6() && addr.Zone() == ""
		if got := validIPv6([]byte(s)); got != want {
			t.Errorf("validIPv6(%q) = %v, want %v", s, got, want)
		}
	}
	for _, s := range []string{"", ":", "::", ":::", "::1", "1::", "1::2", "1::2::3", ":1", "1:", "1", "12345::", "g::",
		"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9", "1:2:3:4::5:6:7:8",
		"::1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4", "1.2.3.4", "::1.2.3", "::1.2.3.4.5", "::01.2.3.4",
		"::256.1.1.1", "::1.2.3.4:5", "::.1.2.3", "::1..2.3", "::a.1.2.3", "1:2:3:4:5::1.2.3.4", "1:2:3:4:5:6::1.2.3.4", "fe80::1%lo"} {
		f(s)
	}
	// All short strings over what such an address is made of.
	const alphabet = ":1.a"
	for n := range 1 << 16 {
		var s []byte
		for k := n; k > 0; k /= 4 {
			s = append(s, alphabet[k%4])
		}
		f(string(s))
	}
}

func TestFieldSyntax(t *testing.T) {
	f := func(status int, fields string) {
		t.Helper()
		checkParse(t, status, "GET / HTTP/1.1\r\nHost: a\r\n"+fields+"\r\n")
	}
	f(0, "X: y\r\n")
	f(0, "X:y\r\n")
	f(0, "X:\r\n")
	f(0, "X: \t y \t\r\n")
	f(0, "X: a\tb c\r\n")
	f(0, "X: caf\xc3\xa9 \xff\r\n") // obs-text
	f(0, "!#$%&'*+-.^_`|~09Az: y\r\n")
	f(0, "X: :\r\n")
	f(400, ": y\r\n")
	f(400, "X\r\n")
	f(400, "X : y\r\n")
	f(400, "X\t: y\r\n")
	f(400, "X Y: y\r\n")
	f(400, "X@: y\r\n")
	f(400, "X\x00: y\r\n")
	f(400, "X\xe9: y\r\n")
	f(400, "\"X\": y\r\n")
	f(400, " X: y\r\n") // after the request line or another field: folding
	f(400, "X: y\r\n z\r\n")
	f(400, "X: y\r\n\tz\r\n")
	f(400, "X: y\r\n \r\n")
	f(400, "X: y\n")
	f(400, "X: y\nZ: y\r\n")
	f(400, "X: y\r\n\n")
	f(400, "X: y\rZ: y\r\n")
	f(400, "X: y\r\r\n")
	f(400, "\rX: y\r\n")
	f(400, "X\rY: y\r\n")
	f(400, "X\n")
	for c := range 256 {
		want := 400
		if c == '\t' || c >= 0x20 && c != 0x7f {
			want = 0
		}
		for pad := range 9 { // at every place of the eight bytes looked at together
			f(want, "X: "+strings.Repeat("v", pad)+string([]byte{byte(c)})+"vvvvvvvvv\r\n")
		}
	}
	checkParse(t, 400, "GET / HTTP/1.1\r\n Host: a\r\n\r\n")
	checkParse(t, 400, "GET / HTTP/1.1\nHost: a\r\n\r\n")
	checkParse(t, 400, "GET / HTTP/1.1\r\nHost: a\r\n\n")
	checkParse(t, 400, "GET /\nHost: a\n\n")
}

func TestFieldsAreKeptInOrderAndTrimmed(t *testing.T) {
	r, _, _ := parse(t, "GET / HTTP/1.1\r\nHost: a\r\nX-a: \t1 2\t \r\nx-A:3\r\nEmpty:  \r\n\r\n", Limits{})
	if got := fmt.Sprintf("%q", r.Fields); got != `[{"Host" "a"} {"X-a" "1 2"} {"x-A" "3"} {"Empty" ""}]` {
		t.Errorf("fields %s", got)
	}
	if got := slices.Collect(r.Values("X-A")); len(got) != 2 || string(got[0]) != "1 2" || string(got[1]) != "3" {
		t.Errorf("Values = %q", got)
	}
	if string(r.Get("x-a")) != "1 2" || r.Count("X-A") != 2 || r.Count("x") != 0 || r.Get("X") != nil {
		t.Error("Get or Count is wrong")
	}
	if r.Get("empty") == nil {
		t.Error("an empty field looks absent")
	}
}

// framed checks a request by its framing fields and says what they must mean.
func framed(t *testing.T, status int, fields string, length int64, chunked bool) {
	t.Helper()
	in := "POST / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n"
	checkParse(t, status, in)
	if r, n, _ := parse(t, in, Limits{}); n > 0 && (r.ContentLength != length || r.Chunked != chunked) {
		t.Errorf("%q: length %d chunked %v, want %d %v", fields, r.ContentLength, r.Chunked, length, chunked)
	}
}

func TestContentLength(t *testing.T) {
	f := func(fields string, length int64) { t.Helper(); framed(t, 0, fields, length, false) }
	f("", -1)
	f("Content-Length: 0\r\n", 0)
	f("content-LENGTH:  42 \r\n", 42)
	f("Content-Length: 007\r\n", 7)
	f("Content-Length: 9223372036854775807\r\n", 1<<63-1)

	bad := func(fields string) { t.Helper(); framed(t, 400, fields, 0, false) }
	bad("Content-Length:\r\n")
	bad("Content-Length: 9223372036854775808\r\n")
	bad("Content-Length: 18446744073709551617\r\n")
	bad("Content-Length: 99999999999999999999999999\r\n")
	bad("Content-Length: 00000000000000000001\r\n")
	bad("Content-Length: +5\r\n")
	bad("Content-Length: -5\r\n")
	bad("Content-Length: 5 5\r\n")
	bad("Content-Length: 0x5\r\n")
	bad("Content-Length: 5.0\r\n")
	bad("Content-Length: 5e1\r\n")
	bad("Content-Length: 5, 5\r\n")
	bad("Content-Length: 5,\r\n")
	bad("Content-Length: \"5\"\r\n")
	bad("Content-Length: 5\r\nContent-Length: 5\r\n")
	bad("Content-Length: 5\r\nContent-Length: 6\r\n")
	bad("Content-Length: 5\r\nX: y\r\ncontent-length: 5\r\n")
	bad("Content-Length : 5\r\n")
	bad("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")
	bad("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n")
	bad("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n")
	checkParse(t, 0, "POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\n")
}

func TestTransferEncoding(t *testing.T) {
	framed(t, 0, "Transfer-Encoding: chunked\r\n", -1, true)
	framed(t, 0, "transfer-encoding:\tChUnKeD\t\r\n", -1, true)

	bad := func(fields string) { t.Helper(); framed(t, 400, fields, 0, false) }
	bad("Transfer-Encoding:\r\n")
	bad("Transfer-Encoding: xchunked\r\n")
	bad("Transfer-Encoding: chunkedx\r\n")
	bad("Transfer-Encoding: identity\r\n")
	bad("Transfer-Encoding: gzip\r\n")
	bad("Transfer-Encoding: chunked, gzip\r\n")
	bad("Transfer-Encoding: chunked, chunked\r\n")
	bad("Transfer-Encoding: chunked,\r\n")
	bad("Transfer-Encoding: ,chunked\r\n")
	bad("Transfer-Encoding: \"chunked\"\r\n")
	bad("Transfer-Encoding: 'chunked'\r\n")
	bad("Transfer-Encoding: chunked;q=1\r\n")
	bad("Transfer-Encoding: chunked gzip\r\n")
	bad("Transfer-Encoding: \x0bchunked\r\n")
	bad("Transfer-Encoding: \x0cchunked\r\n")
	bad("Transfer-Encoding: chunked\x00\r\n")
	bad("Transfer-Encoding: \xa0chunked\r\n")
	bad("Transfer-Encoding: ch\xc3\xbcnked\r\n")
	bad("Transfer-Encoding : chunked\r\n")
	bad("Transfer-Encoding\t: chunked\r\n")
	bad(" Transfer-Encoding: chunked\r\n")
	bad("Transfer-Encoding:\r\n chunked\r\n")
	bad("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")
	bad("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n")
	bad("X: y\rTransfer-Encoding: chunked\r\n")
	framed(t, 501, "Transfer-Encoding: gzip, chunked\r\n", 0, false)
	framed(t, 501, "Transfer-Encoding: foo , Chunked\r\n", 0, false)

	checkParse(t, 400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")
}

func TestConnectionFields(t *testing.T) {
	f := func(minor, fields string, keepAlive, expect bool, upgrade string) {
		t.Helper()
		r, n, status := parse(t, "POST / HTTP/1."+minor+"\r\nHost: a\r\n"+fields+"\r\n", Limits{})
		if n == 0 || r.KeepAlive != keepAlive || r.Expect100 != expect || string(r.Upgrade) != upgrade {
			t.Errorf("1.%s %q: status %d keep-alive %v, expect %v, upgrade %q", minor, fields, status, r.KeepAlive, r.Expect100, r.Upgrade)
		}
	}
	f("1", "", true, false, "")
	f("0", "", false, false, "")
	f("1", "Connection: close\r\n", false, false, "")
	f("1", "Connection: CLOSE\r\n", false, false, "")
	f("1", "Connection: x, close\r\n", false, false, "")
	f("1", "Connection: keep-alive\r\nConnection: close\r\n", false, false, "")
	f("1", "Connection: closed\r\n", true, false, "")
	f("0", "Connection: Keep-Alive\r\n", true, false, "")
	f("0", "Connection: keep-alive, close\r\n", false, false, "")

	f("1", "Upgrade: websocket\r\nConnection: Upgrade\r\n", true, false, "websocket")
	f("1", "Connection: keep-alive , upgrade\r\nUpgrade: websocket\r\n", true, false, "websocket")
	f("1", "Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n", true, false, "a")
	f("1", "Upgrade: websocket\r\n", true, false, "")
	f("1", "Connection: upgrade\r\n", true, false, "")
	f("1", "Connection: close, upgrade\r\nUpgrade: h2c\r\n", false, false, "h2c")
	f("0", "Connection: upgrade\r\nUpgrade: websocket\r\n", false, false, "")

	f("1", "Expect: 100-continue\r\nContent-Length: 5\r\n", true, true, "")
	f("1", "Transfer-Encoding: chunked\r\nexpect: 100-Continue\r\n", true, true, "")
	f("1", "Expect: 100-continue\r\n", true, false, "")
	f("1", "Expect: 100-continue\r\nContent-Length: 0\r\n", true, false, "")
	f("0", "Expect: 100-continue\r\nContent-Length: 5\r\n", false, false, "")
	checkParse(t, 417, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n")
}

func TestLimits(t *testing.T) {
	lim := Limits{MaxLine: 40, MaxHead: 100, MaxFields: 3}
	f := func(status int, in string) {
		t.Helper()
		if _, n, got := parse(t, in, lim); got != status || status == 0 && n != len(in) {
			t.Errorf("%q: status %d, %d bytes, want %d", in, got, n, status)
		}
	}
	line := func(n int) string { // a request line of n bytes
		return "GET /" + strings.Repeat("a", n-len("GET / HTTP/1.1")) + " HTTP/1.1"
	}
	f(0, line(40)+"\r\nHost: a\r\n\r\n")
	f(414, line(41)+"\r\nHost: a\r\n\r\n")
	f(414, line(90)+"\r\nHost: a\r\n\r\n")
	f(414, "GET /"+strings.Repeat("a", 1000)) // without a line end in sight

	head := func(n int) string { // a whole head of n bytes
		const begin = "GET / HTTP/1.1\r\nHost: a\r\nX: "
		return begin + strings.Repeat("x", n-len(begin)-4) + "\r\n\r\n"
	}
	f(0, head(100))
	f(0, "\r\n"+head(100))
	f(431, head(101))
	f(431, head(1000))
	f(431, head(1000)[:900])

	f(0, "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\n\r\n")
	f(431, "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\nX: 3\r\n\r\n")

	lim = Limits{} // the defaults
	f(0, line(8<<10)+"\r\nHost: a\r\n\r\n")
	f(414, line(8<<10+1)+"\r\nHost: a\r\n\r\n")
	f(0, head(32<<10))
	f(431, head(32<<10+1))
	f(0, "GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("X: y\r\n", 99)+"\r\n")
	f(431, "GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("X: y\r\n", 100)+"\r\n")
}

func TestOneEmptyLineBeforeARequestIsSkipped(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	checkParse(t, 0, get)
	checkParse(t, 0, "\r\n"+get)
	checkParse(t, 400, "\r\n\r\n"+get)
	checkParse(t, 400, "\n"+get)
	checkParse(t, 400, "\r"+get)
	checkParse(t, 400, " "+get)
	for _, in := range []string{"", "\r", "\r\n", "\r\nGET"} {
		if _, n, status := parse(t, in, Limits{}); n != 0 || status != 0 {
			t.Errorf("%q: %d bytes, status %d, want incomplete", in, n, status)
		}
	}
}

func TestBrokenPrefixesAreRefusedBeforeTheHeadIsWhole(t *testing.T) {
	f := func(status int, in string) {
		t.Helper()
		checkParse(t, status, in)
	}
	f(400, "\x16")
	f(400, "{")
	f(400, "GET /\x00")
	f(400, "GET / HTTP/1.1\n")
	f(505, "PRI * HTTP/2.0\r\n")
	f(400, "GET / HTTP/1.1\r\nHost: a\r\nX : ")
	f(400, "GET / HTTP/1.1\r\nHost: a\r\n ")
	f(400, "POST / HTTP/1.1\r\nContent-Length: x\r\n")
	f(501, "CONNECT a:443 HTTP/1.1\r\n")
}

func TestReasonNamesTheFault(t *testing.T) {
	f := func(fields string, want *Error) {
		t.Helper()
		var r Request
		if _, err := ParseRequest(&r, []byte("GET / HTTP/1.1\r\n"+fields+"\r\n"), Limits{}); err != want {
			t.Errorf("%q: %v, want %v", fields, err, want)
		}
	}
	f("X : y\r\n", errNameSpace)
	f("X\r\n", errNameColon)
	f("X\n", errNameColon)
	f("X@: y\r\n", errNameByte)
	f("@: y\r\n", errNameByte)
	f(": y\r\n", errNameEmpty)
	f("X: y\r\n z\r\n", errObsFold)
	f("X: y\n", errBareLF)
	f("\n", errBareLF)
	f("X: y\rz\r\n", errBareCR)
	f("X: \x01\r\n", errValueByte)
	f("X: y\r\n", errHostAbsent)
}

func TestPipelinedRequestsAreCutApart(t *testing.T) {
	heads := []string{
		"GET /1 HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n",
		"\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
		"GET /3 HTTP/1.0\r\n\r\n",
	}
	in := []byte(heads[0] + heads[1] + "abc" + heads[2])
	var r Request
	for i, head := range heads {
		n, err := ParseRequest(&r, in, Limits{})
		if n != len(head) || err != nil || string(r.Path) != fmt.Sprintf("/%d", i+1) {
			t.Fatalf("request %d: %d bytes, %v, path %q", i+1, n, err, r.Path)
		}
		in = in[n+int(max(0, r.ContentLength)):]
	}
	if len(r.Fields) != 0 || r.Host != nil || r.ContentLength != -1 || r.KeepAlive {
		t.Errorf("something of an earlier request is left: %+v", r)
	}
	if len(in) != 0 {
		t.Errorf("%q left", in)
	}
}

func TestHeadPendingSavesNoParseThatCounts(t *testing.T) {
	lim := Limits{MaxLine: 60, MaxHead: 200}
	for _, in := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nX: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n\r\n",
		"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /" + strings.Repeat("a", 100),
		"GET / HTTP/1.1\r\nX: " + strings.Repeat("a", 300),
	} {
		b, saved := []byte(in), 0
		var r Request
		for i := range len(b) {
			if n, err := ParseRequest(&r, b[:i], lim); n > 0 || err != nil {
				break
			}
			for k := i + 1; k <= len(b); k++ {
				if !HeadPending(b[:k], i, lim) {
					continue
				}
				saved++
				if n, err := ParseRequest(&r, b[:k], lim); n > 0 || err != nil {
					t.Errorf("%q is pending after %d bytes, but parses as %d, %v", b[:k], i, n, err)
				}
			}
		}
		if saved == 0 {
			t.Errorf("%q: no parse saved", in)
		}
	}
}
