package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// second is what an attacker hides behind a request that two servers
// understand differently. It must never be answered.
const second = "GET /healthz HTTP/1.1\r\nHost: hidden\r\n\r\n"

// publish is the head of a publish request up to where its framing is said.
const publish = "POST /api/publish HTTP/1.1\r\nHost: a\r\nX-API-Key: " + judge.APIKey + "\r\nContent-Type: application/json\r\n"

// body is the smallest publication.
const body = `{"channel":"a","data":1}`

func chunked(chunks string) string {
	return publish + "Transfer-Encoding: chunked\r\n\r\n" + chunks
}

// whole is body as a single chunk.
var whole = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)

func framed(fields, payload string) string { return publish + fields + "\r\n" + payload }

func TestSmugglingIsRefused(t *testing.T) {
	s := judge.New(t, judge.Options{Memory: true})
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	f := func(name, raw string, allowed ...int) {
		t.Helper()
		if len(allowed) == 0 {
			allowed = []int{400, 501}
		}
		for _, w := range []way{atOnce, inPieces, afterwards} {
			got := follow(t, s.Public, raw, second, w, 0, 3*time.Second)
			if len(got.statuses) != 1 || !slices.Contains(allowed, got.statuses[0]) || !got.closed {
				t.Errorf("%s, %s: got %s; want one answer of %d and the end", name, w, got, allowed)
			}
		}
	}

	// Both lengths (RFC 9112 §6.1, §6.3).
	f("length then encoding", framed(length+"Transfer-Encoding: chunked\r\n", whole))
	f("encoding then length", framed("Transfer-Encoding: chunked\r\n"+length, whole))
	f("length 0 and encoding", framed("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", whole))
	f("encoding in HTTP/1.0", strings.Replace(framed("Transfer-Encoding: chunked\r\n", whole), "HTTP/1.1", "HTTP/1.0", 1))

	// Obfuscated encodings.
	for _, te := range []string{
		"Transfer-Encoding: xchunked", "Transfer-Encoding: chunkedx", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity",
		"Transfer-Encoding: chunked, chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: gzip", "Transfer-Encoding: \x0bchunked",
		"Transfer-Encoding: \"chunked\"", "Transfer-Encoding: 'chunked'", "Transfer-Encoding:", "Transfer-Encoding: chunked\x00",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding : chunked", "Transfer-Encoding\t: chunked",
		" Transfer-Encoding: chunked", "X: y\r\n\tTransfer-Encoding: chunked", "Transfer-Encoding\x0b: chunked", "Transfer-Encoding:\r\n chunked",
		"Transfer-Encoding: chunked;q=1", "Transfer-Encoding: chun\x80ked", "Transfer-Encoding: ch\x00unked", "\x00Transfer-Encoding: chunked",
	} {
		f(fmt.Sprintf("%q", te), framed(te+"\r\n", whole))
		f(fmt.Sprintf("%q with a length", te), framed(length+te+"\r\n", body))
	}

	// Lengths that two parsers read differently.
	for _, cl := range []string{
		"+24", "-24", "024x", "24, 24", "24,25", "0x18", "", " ", "24 24", "2 4", "24.0", "99999999999999999999", "18446744073709551640", "２４", "24\x00", "\x0b24", "1e1", "24;",
	} {
		f(fmt.Sprintf("length %q", cl), framed("Content-Length: "+cl+"\r\n", body))
	}
	f("two lengths", framed(length+"Content-Length: 5\r\n", body))
	f("the same length twice", framed(length+length, body))
	f("two lengths in two cases", framed(length+"content-length: 5\r\n", body))
	f("space before the colon of a length", framed(strings.Replace(length, ":", " :", 1), body))
	f("folded length", framed("Content-Length:\r\n 24\r\n", body))

	// Lines (RFC 9112 §2.2, §5.1, §5.2).
	f("bare LF after the request line", "GET /healthz HTTP/1.1\nHost: a\r\n\r\n")
	f("bare LF after a field", "GET /healthz HTTP/1.1\r\nHost: a\nX: y\r\n\r\n")
	f("bare LF at the end of the head", "GET /healthz HTTP/1.1\r\nHost: a\r\n\n")
	f("bare LF everywhere", "GET /healthz HTTP/1.1\nHost: a\n\n")
	f("bare CR in a value", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n")
	f("bare CR as a line end", "GET /healthz HTTP/1.1\rHost: a\r\n\r\n")
	f("NUL in a value", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n")
	f("fold", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n")
	f("fold with a tab", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n")
	f("fold of the first field", "GET /healthz HTTP/1.1\r\n Host: a\r\n\r\n")
	f("space before a colon", "GET /healthz HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n")
	f("field without a colon", "GET /healthz HTTP/1.1\r\nHost: a\r\nX\r\n\r\n")
	f("field without a name", "GET /healthz HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n")
	f("space in a name", "GET /healthz HTTP/1.1\r\nHost: a\r\nX Y: a\r\n\r\n")
	f("octet over 127 in a name", "GET /healthz HTTP/1.1\r\nHost: a\r\nX\x80: a\r\n\r\n")
	f("two spaces in the request line", "GET  /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("tab in the request line", "GET\t/healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("space before the method", " GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("space in the target", "GET /health z HTTP/1.1\r\nHost: a\r\n\r\n")
	f("something after the version", "GET /healthz HTTP/1.1 x\r\nHost: a\r\n\r\n")
	f("no version", "GET /healthz\r\nHost: a\r\n\r\n")
	f("lower-case version", "GET /healthz http/1.1\r\nHost: a\r\n\r\n", 400, 505)
	f("version 1.10", "GET /healthz HTTP/1.10\r\nHost: a\r\n\r\n", 400, 505)
	f("version 2.0", "GET /healthz HTTP/2.0\r\nHost: a\r\n\r\n", 400, 505)
	f("version 0.9", "GET /healthz HTTP/0.9\r\nHost: a\r\n\r\n", 400, 505)
	f("NUL in the target", "GET /heal\x00thz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("method that is not a token", "G(T /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("target without a slash", "GET healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("a TLS greeting", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")

	// Host (RFC 9112 §3.2).
	f("no host", "GET /healthz HTTP/1.1\r\nX: y\r\n\r\n")
	f("two hosts", "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
	f("the same host twice", "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n")
	for _, host := range []string{"a b", "a@b", "a/b", "a:b", "a\tb", "[::1"} {
		f(fmt.Sprintf("host %q", host), "GET /healthz HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	}

	// Chunks (RFC 9112 §7.1).
	for _, size := range []string{
		"0x18", "+18", "-18", " 18", "", "g", "1 8", "18_", "ffffffffffffffff", "10000000000000000", "fffffffffffffffff18", "18\x00", "\x0b18",
		"18;a\nb", "18;a\rb", "１８",
	} {
		f(fmt.Sprintf("chunk size %q", size), chunked(size+"\r\n"+body+"\r\n0\r\n\r\n"))
	}
	f("chunk size ended by LF", chunked("18\n"+body+"\r\n0\r\n\r\n"))
	f("chunk longer than its size", chunked("17\r\n"+body+"\r\n0\r\n\r\n"))
	f("chunk ended by LF", chunked("18\r\n"+body+"\n0\r\n\r\n"))
	f("chunk not ended", chunked("18\r\n"+body+"0\r\n\r\n"))
	f("last chunk ended by LF", chunked("18\r\n"+body+"\r\n0\n\n"))
	f("bare LF in a trailer", chunked("18\r\n"+body+"\r\n0\r\nX: y\n\r\n"))
	f("fold in a trailer", chunked("18\r\n"+body+"\r\n0\r\nX: y\r\n z\r\n\r\n"))
	f("trailer without a colon", chunked("18\r\n"+body+"\r\n0\r\nX\r\n\r\n"))

	// Methods that turn a server into something else.
	f("CONNECT", "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 400, 405, 501)
	f("TRACE", "TRACE /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400, 405, 501)
}

// The twins of the refused ones: near to them, allowed, and what follows them on
// the connection is a request of its own.
func TestWhatLooksLikeSmugglingButIsNotPasses(t *testing.T) {
	s := judge.New(t, judge.Options{Memory: true})
	f := func(name, raw string) {
		t.Helper()
		for _, w := range []way{atOnce, inPieces, afterwards} {
			got := follow(t, s.Public, raw, second, w, 2, 5*time.Second)
			if !slices.Equal(got.statuses, []int{200, 200}) {
				t.Errorf("%s, %s: got %s %.200q; want 200 and 200", name, w, got, got.bodies)
			}
		}
	}
	f("length", framed(fmt.Sprintf("Content-Length: %d\r\n", len(body)), body))
	f("length with a leading zero", framed(fmt.Sprintf("Content-Length: 0%d\r\n", len(body)), body))
	f("length with space around it", framed(fmt.Sprintf("Content-Length: \t %d \t \r\n", len(body)), body))
	f("no space after the colon", framed(fmt.Sprintf("content-length:%d\r\n", len(body)), body))
	f("chunked", chunked(whole))
	f("chunked in capitals", framed("TRANSFER-ENCODING: CHUNKED\r\n", whole))
	f("several chunks", chunked("1\r\n{\r\n16\r\n"+body[1:23]+"\r\n1\r\n}\r\n0\r\n\r\n"))
	f("leading zeros of a chunk size", chunked("00018\r\n"+body+"\r\n000\r\n\r\n"))
	f("chunk extension", chunked("18;a=b\r\n"+body+"\r\n0;c\r\n\r\n"))
	f("quoted chunk extension", chunked("18;a=\"b;c\"\r\n"+body+"\r\n0\r\n\r\n"))
	f("trailer", chunked("18\r\n"+body+"\r\n0\r\nX: y\r\n\r\n"))
	f("a length of 0", "GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
	f("absolute form", "GET http://a/healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("host with a port", "GET /healthz HTTP/1.1\r\nHost: a:80\r\n\r\n")
	f("IPv6 host", "GET /healthz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n")
	f("tab and octets over 127 in a value", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\tb\xc3\xa9\r\n\r\n")
	f("empty value", "GET /healthz HTTP/1.1\r\nHost: a\r\nX:\r\n\r\n")
	f("odd but allowed name", "GET /healthz HTTP/1.1\r\nHost: a\r\n!#$%&'*+-.^_`|~: a\r\n\r\n")
	f("empty line before the request", "\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
	f("an upgrade that is not offered", "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")

	// A body that is not read: answered, and then the end, so that it is never
	// taken for a request.
	got := exchange(t, s.Public, "GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"+second, 0, 3*time.Second)
	if !slices.Equal(got.statuses, []int{200}) || !got.closed {
		t.Errorf("a body behind GET: got %s; want 200 and the end", got)
	}
}

func TestHeadLimits(t *testing.T) {
	s := judge.New(t, judge.Options{Memory: true})
	f := func(name, raw string, want int) {
		t.Helper()
		got := exchange(t, s.Public, raw, 1, 5*time.Second)
		if !slices.Equal(got.statuses, []int{want}) {
			t.Errorf("%s: got %s, want %d", name, got, want)
		}
	}
	fields := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "X-%d: y\r\n", i)
		}
		return b.String()
	}
	f("target of 7 KiB", "GET /healthz?"+strings.Repeat("a", 7<<10)+" HTTP/1.1\r\nHost: a\r\n\r\n", 200)
	f("target of 9 KiB", "GET /healthz?"+strings.Repeat("a", 9<<10)+" HTTP/1.1\r\nHost: a\r\n\r\n", 414)
	f("target without an end", "GET /"+strings.Repeat("a", 64<<10), 414)
	f("100 fields", "GET /healthz HTTP/1.1\r\nHost: a\r\n"+fields(99)+"\r\n", 200)
	f("101 fields", "GET /healthz HTTP/1.1\r\nHost: a\r\n"+fields(100)+"\r\n", 431)
	f("fields of 7 KiB", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("a", 7<<10)+"\r\n\r\n", 200)
	f("fields of 40 KiB", "GET /healthz HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("X: "+strings.Repeat("a", 4000)+"\r\n", 10)+"\r\n", 431)
	f("a field without an end", "GET /healthz HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("a", 64<<10), 431)
	f("a body over the limit", publish+"Content-Length: 104857600\r\n\r\n", 413)
	f("a chunked body over the limit", chunked(strings.Repeat("10000\r\n"+strings.Repeat(" ", 1<<16)+"\r\n", 64)), 413)
}
