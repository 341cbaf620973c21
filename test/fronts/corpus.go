package fronts

import (
	"fmt"
	"strings"
)

// A question is one request as bytes, and what is known of how servers differ on it.
type question struct {
	name string
	raw  string
	// method is what the answer is to; empty means GET.
	method string
	// http2 and nginx are why the same over HTTP/2, and nginx, may be answered in another
	// way; empty means that they may not.
	http2, nginx string
}

// crlf writes heads as one would read them.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

// get requests target with further fields, each ending with a newline.
func get(target, fields string) string {
	return crlf("GET " + target + " HTTP/1.1\nHost: site.example\n" + fields + "\n")
}

func post(fields, body string) string {
	return crlf("POST /p HTTP/1.1\nHost: site.example\n"+fields+"\n") + body
}

// chunks frames the pieces.
func chunks(pieces ...string) string {
	var b strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String() + "0\r\n\r\n"
}

const (
	laxer      = "nginx lets it pass; the loops refuse what could be read in two ways"
	normalises = "nginx normalises the path before it is matched and passes the original on"
)

// corpus is what is played at every front.
func corpus() []question {
	long := strings.Repeat("a", 4000)
	return append(wellFormed(long), malformed()...)
}

// wellFormed are requests that every front passes on, and must pass on alike.
func wellFormed(long string) []question {
	return []question{
		{name: "plain", raw: get("/", "")},
		{name: "query", raw: get("/a/b?c=d&e=%20f", "")},
		{name: "empty query", raw: get("/a?", "")},
		{name: "question marks in the query", raw: get("/a?b?c=d?", "")},
		{name: "escapes that must stay", raw: get("/a%20b/%C3%A9", "")},
		{name: "colon and at in the path", raw: get("/a:b/@c/!$&'()*+,=", "")},
		{name: "trailing slash", raw: get("/dir/", "")},
		{name: "long path", raw: get("/"+long, "")},
		{name: "long field", raw: get("/", "X-Long: "+long+"\n")},
		{name: "fields in odd case", raw: get("/", "x-OdD-cAsE: Value\nACCEPT: */*\n")},
		{name: "empty field", raw: get("/", "X-Empty:\n")},
		{name: "spaces around a value", raw: get("/", "X-Space:   a  b \t\n")},
		{name: "the same field twice", raw: get("/", "X-Twice: one\nX-Twice: two\n")},
		{name: "UTF-8 in a value", raw: get("/", "X-Text: grüße\n")},
		{name: "host with a port", raw: crlf("GET / HTTP/1.1\nHost: site.example:8080\n\n")},
		{name: "host in capitals", raw: crlf("GET / HTTP/1.1\nHost: SITE.example\n\n"), nginx: "nginx passes it on in lower case"},
		{name: "absolute form", raw: crlf("GET http://site.example/abs?x HTTP/1.1\nHost: site.example\n\n")},
		{name: "HEAD", method: "HEAD", raw: crlf("HEAD / HTTP/1.1\nHost: site.example\n\n")},
		{name: "OPTIONS", raw: crlf("OPTIONS /o HTTP/1.1\nHost: site.example\n\n")},
		{name: "DELETE", raw: crlf("DELETE /o HTTP/1.1\nHost: site.example\n\n")},
		{name: "a method of one's own", raw: crlf("PURGE /o HTTP/1.1\nHost: site.example\n\n")},
		{name: "length", raw: post("Content-Length: 5\n", "hello")},
		{name: "length 0", raw: post("Content-Length: 0\n", "")},
		{name: "GET with a body", raw: get("/b", "Content-Length: 5\n") + "hello"},
		{name: "chunks", raw: post("Transfer-Encoding: chunked\n", chunks("hel", "lo"))},
		{name: "no chunks", raw: post("Transfer-Encoding: chunked\n", chunks())},
		{name: "chunk extension", raw: post("Transfer-Encoding: chunked\n", "5;a=b\r\nhello\r\n0\r\n\r\n")},
		{name: "trailer", raw: post("Transfer-Encoding: chunked\nTrailer: X-Sum\n", "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"), nginx: "nginx passes Trailer on and drops the trailer"},
		{name: "large body", raw: post("Content-Length: 100000\n", strings.Repeat("0123456789", 10000))},
		{name: "expect", raw: post("Expect: 100-continue\nContent-Length: 5\n", "hello")},
		{name: "HTTP/1.0", raw: crlf("GET /old HTTP/1.0\nHost: site.example\n\n")},
		{name: "HTTP/1.0 keep-alive", raw: crlf("GET /old HTTP/1.0\nHost: site.example\nConnection: keep-alive\n\n")},
		{name: "connection close", raw: get("/", "Connection: close\n")},
		{name: "hop-by-hop field named", raw: get("/", "Connection: X-Hop\nX-Hop: 1\nX-Stays: 2\n"), nginx: "nginx passes on what Connection names"},
		{name: "keep-alive field", raw: get("/", "Connection: keep-alive\nKeep-Alive: timeout=5\n")},
		{name: "proxy-connection", raw: get("/", "Proxy-Connection: keep-alive\n"), nginx: "nginx passes it on"},
		{name: "cookies", raw: get("/", "Cookie: a=b; c=d\n")},
		{name: "authorization", raw: get("/", "Authorization: Basic YTpi\n")},
		{name: "range", raw: get("/", "Range: bytes=0-3\n")},
		{name: "accept-encoding", raw: get("/", "Accept-Encoding: gzip, br\n")},
		{name: "no user agent", raw: get("/", "")},
		{name: "user agent", raw: get("/", "User-Agent: test/1\n")},
		{name: "two requests at once", raw: get("/1", "") + get("/2", "")},
		{name: "empty line before", raw: "\r\n" + get("/", "")},
		{name: "204", raw: get("/status/204", "")},
		{name: "304", raw: get("/status/304", "")},
		{name: "404", raw: get("/status/404", "")},
		{name: "500", raw: get("/status/500", "")},
		{name: "redirect of the backend", raw: get("/status/302", "")},
	}
}

// malformed are requests that no proxy should pass on.
func malformed() []question {
	return []question{
		{name: "no host", raw: crlf("GET / HTTP/1.1\n\n")},
		{name: "two hosts", raw: crlf("GET / HTTP/1.1\nHost: a\nHost: b\n\n")},
		{name: "host with a slash", raw: crlf("GET / HTTP/1.1\nHost: a/b\n\n")},
		{name: "host with user", raw: crlf("GET / HTTP/1.1\nHost: u@a\n\n")},
		{name: "space in the target", raw: crlf("GET /a b HTTP/1.1\nHost: site.example\n\n")},
		{name: "control character in the target", raw: crlf("GET /a\x01b HTTP/1.1\nHost: site.example\n\n")},
		{name: "bad escape", raw: get("/a%zz", "")},
		{name: "cut escape", raw: get("/a%2", "")},
		{name: "NUL escaped", raw: get("/a%00b", "")},
		{name: "dot segments", raw: get("/a/../b", ""), nginx: normalises},
		{name: "escaped dot segments", raw: get("/a/%2e%2e/b", ""), nginx: normalises},
		{name: "dot segments out", raw: get("/../etc/passwd", "")},
		{name: "double slash", raw: get("/a//b", ""), nginx: normalises},
		{name: "escaped slash", raw: get("/a%2Fb", ""), nginx: laxer},
		{name: "backslash", raw: get("/a\\b", ""), nginx: laxer},
		{name: "semicolon", raw: get("/a;b=c", ""), nginx: laxer},
		{name: "fragment", raw: get("/a#b", ""), nginx: laxer},
		{name: "no version", raw: crlf("GET /\n\n"), nginx: "nginx speaks HTTP/0.9"},
		{name: "unknown version", raw: crlf("GET / HTTP/3.7\nHost: a\n\n")},
		{name: "lower-case version", raw: crlf("GET / http/1.1\nHost: a\n\n")},
		{name: "lower-case method", raw: crlf("get / HTTP/1.1\nHost: site.example\n\n"), nginx: "nginx refuses methods in lower case"},
		{name: "field without colon", raw: get("/", "Nonsense\n"), nginx: "nginx drops the line without a word"},
		{name: "space before the colon", raw: get("/", "X-Bad : 1\n")},
		{name: "space in a name", raw: get("/", "X Bad: 1\n")},
		{name: "control character in a value", raw: get("/", "X-Bad: a\x01b\n")},
		{name: "NUL in a value", raw: get("/", "X-Bad: a\x00b\n")},
		{name: "folded field", raw: get("/", "X-Fold: a\n b\n")},
		{name: "bare LF", raw: "GET / HTTP/1.1\nHost: site.example\n\n", nginx: laxer},
		{name: "bare CR in a value", raw: get("/", "X-Bad: a\rb\n")},
		{name: "underscore in a name", raw: get("/", "X_Under: 1\n")},
		{name: "length and chunks", raw: post("Content-Length: 5\nTransfer-Encoding: chunked\n", chunks("hello"))},
		{name: "two lengths", raw: post("Content-Length: 5\nContent-Length: 6\n", "hello!")},
		{name: "the same length twice", raw: post("Content-Length: 5\nContent-Length: 5\n", "hello")},
		{name: "list of lengths", raw: post("Content-Length: 5, 5\n", "hello")},
		{name: "signed length", raw: post("Content-Length: +5\n", "hello")},
		{name: "negative length", raw: post("Content-Length: -5\n", "hello")},
		{name: "huge length", raw: post("Content-Length: 99999999999999999999\n", "hello")},
		{name: "unknown coding", raw: post("Transfer-Encoding: gzip, chunked\n", chunks("hello"))},
		{name: "identity", raw: post("Transfer-Encoding: identity\n", "")},
		{name: "chunked twice", raw: post("Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n", chunks("hello"))},
		{name: "obfuscated chunked", raw: post("Transfer-Encoding: xchunked\n", chunks("hello"))},
		{name: "encoding with a space before the colon", raw: post("Transfer-Encoding : chunked\n", chunks("hello"))},
		{name: "encoding in HTTP/1.0", raw: crlf("POST /p HTTP/1.0\nHost: a\nTransfer-Encoding: chunked\n\n") + chunks("hello")},
		{name: "bad chunk size", raw: post("Transfer-Encoding: chunked\n", "x\r\nhello\r\n0\r\n\r\n")},
		{name: "signed chunk size", raw: post("Transfer-Encoding: chunked\n", "+5\r\nhello\r\n0\r\n\r\n")},
		{name: "chunk longer than said", raw: post("Transfer-Encoding: chunked\n", "4\r\nhello\r\n0\r\n\r\n")},
		{name: "upgrade to h2c", raw: get("/", "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\n"), nginx: "nginx passes on what Connection names"},
		{name: "CONNECT", raw: crlf("CONNECT site.example:443 HTTP/1.1\nHost: site.example:443\n\n"), method: "CONNECT"},
		{name: "TRACE", raw: crlf("TRACE / HTTP/1.1\nHost: site.example\n\n")},
		{name: "asterisk", raw: crlf("OPTIONS * HTTP/1.1\nHost: site.example\n\n"), nginx: "nginx does not know this form"},
		{name: "garbage", raw: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"},
		{name: "a very long line", raw: get("/"+strings.Repeat("a", 40000), "")},
	}
}
