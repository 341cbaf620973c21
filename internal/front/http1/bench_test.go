package http1

import (
	"bytes"
	"testing"
	"time"
)

// typicalRequest is what a browser's EventSource sends: eight fields.
var typicalRequest = []byte("GET /sse?channel=orders.42&channel=market HTTP/1.1\r\n" +
	"Host: push.example.com\r\n" +
	"Connection: keep-alive\r\n" +
	"Cache-Control: no-cache\r\n" +
	"Accept: text/event-stream\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36\r\n" +
	"Referer: https://www.example.com/tracking/shipments\r\n" +
	"Accept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Last-Event-ID: b7f2k-18231\r\n" +
	"\r\n")

var typicalResponse = []byte("HTTP/1.1 200 OK\r\n" +
	"Date: Mon, 02 Jan 2006 15:04:05 GMT\r\n" +
	"Content-Type: application/json\r\n" +
	"Content-Length: 37\r\n" +
	"Cache-Control: no-store\r\n" +
	"Server: example\r\n" +
	"\r\n")

// free wants fn to allocate nothing.
func free(t *testing.T, name string, fn func()) {
	t.Helper()
	if n := testing.AllocsPerRun(200, fn); n != 0 {
		t.Errorf("%s: %v allocations, want 0", name, n)
	}
}

func TestParsingDoesNotAllocate(t *testing.T) {
	f := func(name string, fn func()) { t.Helper(); free(t, name, fn) }
	var req Request
	var resp Response
	f("ParseRequest", func() {
		if n, err := ParseRequest(&req, typicalRequest, Limits{}); n != len(typicalRequest) || err != nil {
			t.Fatal(n, err)
		}
	})
	f("ParseRequest of half a head", func() {
		if n, err := ParseRequest(&req, typicalRequest[:200], Limits{}); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	})
	bad := []byte("GET / HTTP/1.1\r\nHost : a\r\n\r\n")
	f("a refusal", func() {
		if _, err := ParseRequest(&req, bad, Limits{}); err == nil {
			t.Fatal("accepted")
		}
	})
	ipv6 := []byte("GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n")
	f("an IPv6 Host", func() {
		if _, err := ParseRequest(&req, ipv6, Limits{}); err != nil {
			t.Fatal(err)
		}
	})
	absolute := []byte("GET http://a:80/x HTTP/1.1\r\nHost: a\r\n\r\n")
	f("an absolute target", func() {
		if _, err := ParseRequest(&req, absolute, Limits{}); err != nil {
			t.Fatal(err)
		}
	})
	f("Get and Count", func() {
		if req.Get("HOST") == nil || req.Count("x") != 0 {
			t.Fatal("lost")
		}
		for range req.Values("host") {
		}
	})
	f("ParseResponse", func() {
		if n, err := ParseResponse(&resp, typicalResponse, Limits{}, "GET"); n != len(typicalResponse) || err != nil {
			t.Fatal(n, err)
		}
	})
}

func TestWritingAndBodiesDoNotAllocate(t *testing.T) {
	f := func(name string, fn func()) { t.Helper(); free(t, name, fn) }
	buf := make([]byte, 0, 4096)
	data := make([]byte, 100)
	f("chunk out and in", func() {
		b := AppendLastChunk(AppendChunk(buf[:0], data), nil)
		var c Chunked
		for {
			_, n, done, err := c.Decode(b)
			if b = b[n:]; err != nil {
				t.Fatal(err)
			} else if done {
				break
			}
		}
	})
	now := time.Now()
	f("a response out", func() {
		b := AppendStatusLine(buf[:0], 200)
		b = AppendField(b, "X-One", "two")
		b = AppendField(b, "X-Two", data[:0])
		b = AppendDate(b, now)
		_ = AppendBodyHead(b, 200, false, "text/plain", 12)
		_ = AppendResponse(buf[:0], 404, true, "text/plain", "not here\n")
		_ = AppendRequestLine(buf[:0], "GET", "/x")
	})
	query := []byte("channel=orders.42&channel=market&envelope=1")
	f("query without escapes", func() {
		pairs := 0
		for p, err := range Query(query) {
			if err != nil || len(p.Value) == 0 {
				t.Fatal(err)
			}
			pairs++
		}
		if v, ok := QueryValue(query, "envelope"); pairs != 3 || !ok || string(v) != "1" {
			t.Fatal("lost")
		}
	})
}

func BenchmarkParseRequest(b *testing.B) {
	f := func(name string, head []byte) {
		b.Run(name, func(b *testing.B) {
			var r Request
			b.SetBytes(int64(len(head)))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := ParseRequest(&r, head, Limits{}); n != len(head) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
	f("typical", typicalRequest)
	f("smallest", []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f("large", append(append([]byte("GET / HTTP/1.1\r\nHost: a\r\n"),
		bytes.Repeat([]byte("X-Custom-Name: some value of ordinary length\r\n"), 90)...), "\r\n"...))
}

func BenchmarkParseResponse(b *testing.B) {
	var r Response
	b.SetBytes(int64(len(typicalResponse)))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := ParseResponse(&r, typicalResponse, Limits{}, "GET"); n == 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	var r Request
	if _, err := ParseRequest(&r, typicalRequest, Limits{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if r.Get("Last-Event-ID") == nil {
			b.Fatal("lost")
		}
	}
}

func BenchmarkChunkedDecode(b *testing.B) {
	f := func(name string, size int) {
		var body []byte
		for range 64 {
			body = AppendChunk(body, make([]byte, size))
		}
		body = AppendLastChunk(body, nil)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var c Chunked
				rest := body
				for done := false; !done; {
					_, n, d, err := c.Decode(rest)
					if err != nil {
						b.Fatal(err)
					}
					rest, done = rest[n:], d
				}
			}
		})
	}
	f("16B", 16)
	f("1KiB", 1024)
}

func BenchmarkQueryValue(b *testing.B) {
	query := []byte("channel=orders.42&channel=market&envelope=1&token=abcdef")
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := QueryValue(query, "token"); !ok {
			b.Fatal("lost")
		}
	}
}
