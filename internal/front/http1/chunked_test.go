package http1

import (
	"bytes"
	"strings"
	"testing"
	"unsafe"
)

// decode reads a whole chunked body given in pieces of size bytes (0: at once)
// and returns the data, what was consumed, and whether it ended.
func decode(body string, size int) (data string, consumed int, done bool, err error) {
	var c Chunked
	var out []byte
	for rest := []byte(body); len(rest) > 0 && !done && err == nil; {
		piece := rest
		if size > 0 {
			piece = rest[:min(size, len(rest))]
		}
		for len(piece) > 0 && !done && err == nil {
			var d []byte
			var n int
			d, n, done, err = c.Decode(piece)
			out = append(out, d...)
			consumed += n
			piece, rest = piece[n:], rest[n:]
		}
	}
	return string(out), consumed, done, err
}

// decodeAnyhow decodes body in pieces of every size; the result must be the same.
func decodeAnyhow(t *testing.T, body string) (data string, consumed int, done bool, err error) {
	t.Helper()
	data, consumed, done, err = decode(body, 0)
	for size := 1; size < min(len(body), 40); size++ {
		d, n, o, e := decode(body, size)
		if d != data || n != consumed || o != done || e != err {
			t.Errorf("%.80q by %d bytes: %q %d %v %v, at once %q %d %v %v", body, size, d, n, o, e, data, consumed, done, err)
		}
	}
	return data, consumed, done, err
}

func TestChunkedBodies(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		got, n, done, err := decodeAnyhow(t, body)
		if got != want || n != len(body) || !done || err != nil {
			t.Errorf("%.80q: %q, %d bytes, done %v, %v", body, got, n, done, err)
		}
	}
	const end = "0\r\n\r\n"
	f(end, "")
	f("3\r\nabc\r\n"+end, "abc")
	f("3\r\nabc\r\n2\r\nde\r\n"+end, "abcde")
	f("a\r\n0123456789\r\n"+end, "0123456789")
	f("A\r\n0123456789\r\n"+end, "0123456789")
	f("1A\r\n"+strings.Repeat("x", 26)+"\r\n"+end, strings.Repeat("x", 26))
	f("0003\r\nabc\r\n000\r\n\r\n", "abc")
	f("2\r\n\r\n\r\n"+end, "\r\n")
	f("5\r\n0\r\n\r\n\r\n"+end, "0\r\n\r\n")

	// Extensions (RFC 9112 §7.1.1).
	f("3;a\r\nabc\r\n"+end, "abc")
	f("3;a=b;c=\"d;\\\"\t\xe9\"\r\nabc\r\n0;x\r\n\r\n", "abc")
	f("3; a = b ;\tc = \"d\" \r\nabc\r\n"+end, "abc")
	f("3;a=\"\"\r\nabc\r\n"+end, "abc")

	// Trailers are read over.
	f("0\r\nA: b\r\n\r\n", "")
	f("0\r\nA:\r\nb-c:  d \xe9 \r\n\r\n", "")
	f("0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "")
}

// refuseChunked wants body refused however it is split.
func refuseChunked(t *testing.T, body string) {
	t.Helper()
	_, _, done, err := decodeAnyhow(t, body)
	if done || statusOf(t, err) != 400 {
		t.Errorf("%.80q: done %v, %v, want 400", body, done, err)
	}
}

func TestBrokenChunksAreRefused(t *testing.T) {
	f := func(body string) { t.Helper(); refuseChunked(t, body) }
	f("\r\n")
	f("\n")
	f(";a\r\n")
	f("g\r\n")
	f("0x3\r\nabc\r\n")
	f("+3\r\nabc\r\n")
	f("-3\r\nabc\r\n")
	f(" 3\r\nabc\r\n")
	f("3 \r\nabc\r\n")
	f("3\t\r\nabc\r\n")
	f("3 ;a\r\nabc\r\n")
	f("3,\r\nabc\r\n")
	f("3_0\r\nabc\r\n")
	f("3\nabc\r\n0\r\n\r\n")
	f("3\rabc\r\n0\r\n\r\n")
	f("3\r\rabc\r\n")
	f("3\r\nabc\n0\r\n\r\n")
	f("3\r\nabc\r0\r\n\r\n")
	f("3\r\nabc0\r\n\r\n")
	f("3\r\nabcd\r\n0\r\n\r\n")
	f("3\r\nab\r\n0\r\n\r\n")
	f("8000000000000000\r\n")
	f("ffffffffffffffff\r\n")
	f("10000000000000003\r\nabc\r\n0\r\n\r\n")
	f("00000000000000003\r\nabc\r\n0\r\n\r\n") // 17 digits
}

func TestBrokenChunkExtensionsAndTrailersAreRefused(t *testing.T) {
	f := func(body string) { t.Helper(); refuseChunked(t, body) }
	f("3;\r\nabc\r\n")
	f("3;a;\r\nabc\r\n")
	f("3;;a\r\nabc\r\n")
	f("3;=b\r\nabc\r\n")
	f("3;a=\r\nabc\r\n")
	f("3;a=b=c\r\nabc\r\n")
	f("3;a b\r\nabc\r\n")
	f("3;a=b c\r\nabc\r\n")
	f("3;a=\"b\"c\r\nabc\r\n")
	f("3;\"a\"\r\nabc\r\n")
	f("3;a\nabc\r\n0\r\n\r\n") // a lone LF ends no line, in an extension neither
	f("3;a=\"\n\"\r\nabc\r\n")
	f("3;a=\"\\\n\"\r\nabc\r\n")
	f("3;a=\"\r\n\"\r\nabc\r\n")
	f("3;a\x00\r\nabc\r\n")
	f("3;a\rabc\r\n")

	f("0\r\n\n")
	f("0\r\nA\r\n\r\n")
	f("0\r\nA : b\r\n\r\n")
	f("0\r\n: b\r\n\r\n")
	f("0\r\nA: b\n\r\n")
	f("0\r\nA: b\r\r\n")
	f("0\r\nA: b\r\n c\r\n\r\n")
	f("0\r\nA: \x00\r\n\r\n")
	f("0\r\n\rx")
	f("0\r\nGET / HTTP/1.1\r\n\r\n")
}

func TestChunkedLimits(t *testing.T) {
	f := func(body string, want error) {
		t.Helper()
		if _, _, done, err := decodeAnyhow(t, body); err != want || done != (want == nil) {
			t.Errorf("%.60q… (%d bytes): done %v, %v, want %v", body, len(body), done, err, want)
		}
	}
	const end = "0\r\n\r\n"
	long := func(n int) string { return "1;" + strings.Repeat("a", n-2) } // a line of n bytes
	f(long(maxChunkLine-1)+"\r\nx\r\n"+end, nil)
	f(long(maxChunkLine)+"\r\nx\r\n"+end, errChunkLine)
	f("1;"+strings.Repeat("a", 100_000), error(errChunkLine))

	f(strings.Repeat(long(500)+"\r\nx\r\n", 16)+end, nil)
	f(strings.Repeat(long(500)+"\r\nx\r\n", 18)+end, errChunkLine)
	data := strings.Repeat("x", 1000) // data excuses extensions
	f(strings.Repeat("3e8;"+strings.Repeat("a", 500)+"\r\n"+data+"\r\n", 100)+end, nil)
	f(strings.Repeat("1\r\nx\r\n", 5000)+end, nil) // small chunks are no abuse by themselves

	trailer := func(n int) string { return "0\r\n" + "A:" + strings.Repeat("b", n-len("A:\r\n\r\n")) + "\r\n\r\n" }
	f(trailer(maxTrailer), nil)
	f(trailer(maxTrailer+1), errTrailerLen)
	f("0\r\n"+strings.Repeat("A: b\r\n", 4000), errTrailerLen)
}

func TestChunkedStopsBeforeTheNextMessage(t *testing.T) {
	const body = "3\r\nabc\r\n0\r\nT: x\r\n\r\n"
	data, n, done, err := decodeAnyhow(t, body+"GET / HTTP/1.1\r\n")
	if data != "abc" || n != len(body) || !done || err != nil {
		t.Errorf("%q, %d bytes, done %v, %v", data, n, done, err)
	}
	var c Chunked
	b := []byte(body)
	for done := false; !done; {
		var n int
		if _, n, done, err = c.Decode(b); err != nil {
			t.Fatal(err)
		}
		b = b[n:]
	}
	if _, n, done, err := c.Decode([]byte("5\r\n")); n != 0 || !done || err != nil {
		t.Errorf("after the end: %d bytes, done %v, %v", n, done, err)
	}
}

func TestRefusedChunkedBodyStaysRefused(t *testing.T) {
	var c Chunked
	if _, _, _, err := c.Decode([]byte("x")); err == nil {
		t.Fatal("accepted")
	}
	if _, n, done, err := c.Decode([]byte("0\r\n\r\n")); n != 0 || done || statusOf(t, err) != 400 {
		t.Errorf("then %d bytes, done %v, %v", n, done, err)
	}
}

func TestCutChunkedBodyIsNotDone(t *testing.T) {
	const body = "3;a=\"b\"\r\nabc\r\n0\r\nT: x\r\n\r\n"
	for i := range len(body) {
		if _, n, done, err := decode(body[:i], 0); n != i || done || err != nil {
			t.Errorf("%q: %d bytes, done %v, %v", body[:i], n, done, err)
		}
	}
}

func TestChunkedIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(Chunked{}); n > 16 {
		t.Errorf("%d bytes, want at most 16", n)
	}
}

func TestAppendChunkOfNothingDoesNotEndTheBody(t *testing.T) {
	if b := AppendChunk([]byte("x"), nil); string(b) != "x" {
		t.Errorf("%q", b)
	}
	b := AppendLastChunk(AppendChunk(nil, bytes.Repeat([]byte("x"), 300)), nil)
	if got, _, done, err := decodeAnyhow(t, string(b)); len(got) != 300 || !done || err != nil {
		t.Errorf("%d bytes of data, done %v, %v", len(got), done, err)
	}
}
