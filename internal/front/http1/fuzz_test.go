package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// requestSeeds are heads from RFC 9112 and what smugglers send.
var requestSeeds = []string{
	"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /hello.txt HTTP/1.1\r\nUser-Agent: curl/7.64.1\r\nHost: www.example.com\r\nAccept-Language: en, mi\r\n\r\n",
	"GET /where?q=now HTTP/1.1\r\nHost: www.example.org\r\n\r\n",
	"GET http://www.example.org/pub/WWW/TheProject.html HTTP/1.1\r\nHost: www.example.org\r\n\r\n",
	"GET HTTPS://A:?%zz HTTP/1.1\r\nhost: a:443\r\n\r\n",
	"OPTIONS * HTTP/1.1\r\nHost: www.example.org:8001\r\n\r\n",
	"OPTIONS http://www.example.org:8001 HTTP/1.1\r\nHost: www.example.org:8001\r\n\r\n",
	"CONNECT server.example.com:80 HTTP/1.1\r\nHost: server.example.com\r\n\r\n",
	"\r\nPOST /a%20b HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
	"GET / HTTP/1.0\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
	"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
	"GET / HTTP/1.1\nHost: a\n\n",
	"GET //a;b/..?c HTTP/1.1\r\nHost: a\r\nPragma: no-cache\r\nCookie: a=b; c=\"d\"\r\n\r\n",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}

// FuzzParseRequest holds the parser to three promises: the split of the bytes
// does not matter, what it accepts net/http understands in the same way, and a
// head written from what was parsed parses to the same.
func FuzzParseRequest(f *testing.F) {
	for _, s := range requestSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2000 {
			return
		}
		for _, lim := range []Limits{{}, {MaxLine: 30, MaxHead: 80, MaxFields: 2}} {
			r, n, _ := parse(t, string(b), lim)
			if n > 0 {
				agreeOnRequest(t, &r, b[:n])
				writeAgain(t, &r)
			}
		}
	})
}

// agreeOnRequest compares an accepted head with net/http's reading of it.
func agreeOnRequest(t *testing.T, r *Request, head []byte) {
	t.Helper()
	br := bufio.NewReader(bytes.NewReader(bytes.TrimPrefix(head, []byte("\r\n"))))
	req, err := http.ReadRequest(br)
	if err != nil {
		// net/http looks into Trailer, which only announces what we drop.
		if r.Chunked && r.Count("Trailer") > 0 && strings.Contains(err.Error(), "bad trailer key") {
			return
		}
		t.Fatalf("%q: accepted, net/http says %v", head, err)
	}
	if br.Buffered() > 0 && !r.Chunked && r.ContentLength < 0 {
		t.Fatalf("%q: net/http leaves %d bytes of the head", head, br.Buffered())
	}
	length, codings := max(0, r.ContentLength), 0
	if r.Chunked {
		length, codings = -1, 1
	}
	got := fmt.Sprintf("%q %q %q 1.%d %d %d %v", r.Method, r.Target, r.Host, r.Minor, length, codings, !r.KeepAlive)
	want := fmt.Sprintf("%q %q %q 1.%d %d %d %v", req.Method, req.RequestURI, req.Host, req.ProtoMinor,
		req.ContentLength, len(req.TransferEncoding), req.Close)
	if got != want {
		t.Fatalf("%q: %s, net/http %s", head, got, want)
	}
	path, err := url.PathUnescape(string(r.Path))
	if own := req.URL.Path; err != nil || path != own && (own != "" || path != "/" && path != "*") || string(r.Query) != req.URL.RawQuery {
		t.Fatalf("%q: path %q (%v) query %q, net/http %q %q", head, path, err, r.Query, own, req.URL.RawQuery)
	}
	for _, field := range r.Fields {
		name := string(field.Name)
		switch http.CanonicalHeaderKey(name) {
		case "Host", "Transfer-Encoding", "Trailer", "Cache-Control", "Pragma":
			continue // moved or changed by net/http
		}
		var own []string
		for v := range r.Values(name) {
			own = append(own, string(v))
		}
		if !slices.Equal(own, req.Header.Values(name)) {
			t.Fatalf("%q: field %q is %q, net/http %q", head, name, own, req.Header.Values(name))
		}
	}
}

// writeAgain writes r's head from its parts and parses that.
func writeAgain(t *testing.T, r *Request) {
	t.Helper()
	b := AppendRequestLine(nil, r.Method, r.Target)
	if r.Minor == 0 {
		b = bytes.Replace(b, []byte(" HTTP/1.1\r\n"), []byte(" HTTP/1.0\r\n"), 1)
	}
	for _, f := range r.Fields {
		b = AppendField(b, f.Name, f.Value)
	}
	b = AppendEnd(b)
	var again Request
	n, err := ParseRequest(&again, b, Limits{})
	if got, want := verdict(&again, n, err), verdict(r, len(b), nil); got != want {
		t.Fatalf("%q: written again %s, before %s", b, got, want)
	}
}

// FuzzParseResponse is FuzzParseRequest for responses.
func FuzzParseResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nDate: Mon, 27 Jul 2009 12:28:53 GMT\r\nContent-Length: 51\r\nContent-Type: text/plain\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.0 200\r\nConnection: keep-alive\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 OK\nX: y\n\n",
	} {
		f.Add([]byte(s), uint8(0))
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 51\r\n\r\n"), uint8(1))
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n"), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, m uint8) {
		if len(b) > 2000 {
			return
		}
		method := []string{"GET", "HEAD", "CONNECT"}[m%3]
		parseReply(t, string(b), method, Limits{MaxLine: 30, MaxHead: 80, MaxFields: 2})
		if r, n, _ := parseReply(t, string(b), method, Limits{}); n > 0 {
			agreeOnResponse(t, &r, b[:n], method)
		}
	})
}

func agreeOnResponse(t *testing.T, r *Response, head []byte, method string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: method})
	if err != nil {
		if r.Body == BodyChunked && r.Count("Trailer") > 0 && strings.Contains(err.Error(), "bad trailer key") {
			return
		}
		t.Fatalf("%q: accepted, net/http says %v", head, err)
	}
	if r.Status != resp.StatusCode || int(r.Minor) != resp.ProtoMinor {
		t.Fatalf("%q: status %d minor %d, net/http %d %d", head, r.Status, r.Minor, resp.StatusCode, resp.ProtoMinor)
	}
	var want Body
	switch {
	case method == "CONNECT" && r.Status/100 == 2 || r.Status == 101:
		return // net/http leaves tunnels to its Transport
	case len(resp.TransferEncoding) > 0 && method != "HEAD" && r.Status != 304:
		want = BodyChunked
	case method == "HEAD" || r.Status == 304 || r.Status == 204 || r.Status < 200:
		want = BodyNone
	case resp.ContentLength >= 0:
		want = BodyLength
	default:
		want = BodyUntilClose
	}
	if r.Body != want {
		t.Fatalf("%q: body %d, net/http %d", head, r.Body, want)
	}
	if r.Body == BodyLength && r.ContentLength != resp.ContentLength {
		t.Fatalf("%q: length %d, net/http %d", head, r.ContentLength, resp.ContentLength)
	}
	// net/http may close where we would not, never the other way round.
	if r.Body != BodyNone && r.KeepAlive && resp.Close {
		t.Fatalf("%q: kept alive, net/http closes", head)
	}
}

// FuzzChunked cuts data into chunks and bytes into reads at places drawn from
// cuts, and must get the data back.
func FuzzChunked(f *testing.F) {
	f.Add([]byte(""), []byte(""))
	f.Add([]byte("hello, world"), []byte{3, 1, 1, 5, 2})
	f.Add(bytes.Repeat([]byte("\r\n0"), 100), []byte{1, 17, 200, 4, 9, 1})
	f.Fuzz(func(t *testing.T, data, cuts []byte) {
		next := func() int {
			if len(cuts) == 0 {
				return 1 << 20
			}
			n := int(cuts[0])
			cuts = cuts[1:]
			return n
		}
		var body []byte
		for rest := data; len(rest) > 0; {
			k := min(next(), len(rest))
			body = AppendChunk(body, rest[:k])
			rest = rest[k:]
		}
		body = AppendLastChunk(body, nil)
		body = append(body, "GET"...)
		var c Chunked
		var got []byte
		for done := false; !done; {
			piece := body[:min(1+next(), len(body))]
			for len(piece) > 0 && !done {
				d, n, end, err := c.Decode(piece)
				if err != nil {
					t.Fatal(err)
				}
				got, piece, body, done = append(got, d...), piece[n:], body[n:], end
			}
		}
		if !bytes.Equal(got, data) || string(body) != "GET" {
			t.Fatalf("%q, left %q, want %q", got, body, data)
		}
	})
}

// FuzzChunkedDecode gives the decoder anything: the split must not matter, and
// what it accepts net/http must read as the same data with the same end.
func FuzzChunkedDecode(f *testing.F) {
	for _, s := range []string{
		"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\nGET", "A;b=\"c;d\\\"\"\r\n0123456789\r\n0;x\r\nT: y\r\n\r\n",
		"3\nabc\n0\n\n", "0x3\r\nabc\r\n0\r\n\r\n", "3 \r\nabc\r\n0\r\n\r\n", "ffffffffffffffff\r\n", "3;\n\r\nabc\r\n0\r\n\r\n",
	} {
		f.Add(s)
	}
	const head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	f.Fuzz(func(t *testing.T, body string) {
		if len(body) > 4000 {
			return
		}
		data, n, done, err := decodeAnyhow(t, body)
		if err != nil || !done {
			return
		}
		br := bufio.NewReaderSize(strings.NewReader(head+body), 64<<10)
		req, err := http.ReadRequest(br)
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(req.Body)
		if err != nil {
			t.Fatalf("%q: accepted, net/http says %v", body, err)
		}
		left, _ := io.ReadAll(br)
		if data != string(want) || body[n:] != string(left) {
			t.Fatalf("%q: %q left %q, net/http %q left %q", body, data, body[n:], want, left)
		}
	})
}
