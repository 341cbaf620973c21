package http1

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// parseReply is parse for responses.
func parseReply(t *testing.T, in, method string, lim Limits) (r Response, n, status int) {
	t.Helper()
	n, err := ParseResponse(&r, []byte(in), lim, method)
	want := replyVerdict(&r, n, err)
	var p Response
	for i := 0; i < len(in); i += 1 + len(in)/1000 {
		m, e := ParseResponse(&p, []byte(in[:i]), lim, method)
		if m == 0 && e == nil {
			continue
		}
		if got := replyVerdict(&p, m, e); got != want {
			t.Errorf("%q: after %d bytes %s, after all %s", in, i, got, want)
		}
		break
	}
	return r, n, statusOf(t, err)
}

func replyVerdict(r *Response, n int, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case n == 0:
		return "incomplete"
	}
	return fmt.Sprintf("%d bytes, %v", n, *r)
}

func TestStatusLine(t *testing.T) {
	f := func(line string, status int, reason string) {
		t.Helper()
		in := line + "\r\nContent-Length: 0\r\n\r\n"
		r, n, bad := parseReply(t, in, "GET", Limits{})
		if n != len(in) || r.Status != status || string(r.Reason) != reason {
			t.Errorf("%q: %d bytes, error %d, status %d, reason %q", line, n, bad, r.Status, r.Reason)
		}
	}
	f("HTTP/1.1 200 OK", 200, "OK")
	f("HTTP/1.0 200 OK", 200, "OK")
	f("HTTP/1.1 404 Not  Found\tat all \xe9", 404, "Not  Found\tat all \xe9")
	f("HTTP/1.1 200 ", 200, "")
	f("HTTP/1.1 200", 200, "")
	f("HTTP/1.1 999 x", 999, "x")

	g := func(line string) {
		t.Helper()
		in := line + "\r\nContent-Length: 0\r\n\r\n"
		if _, n, bad := parseReply(t, in, "GET", Limits{}); bad != 502 {
			t.Errorf("%q: %d bytes, error %d, want 502", line, n, bad)
		}
	}
	g("HTTP/1.2 200 OK")
	g("HTTP/2.0 200 OK")
	g("HTTP/1.1  200 OK")
	g("HTTP/1.1 20 OK")
	g("HTTP/1.1 2000 OK")
	g("HTTP/1.1 099 OK")
	g("HTTP/1.1 +20 OK")
	g("HTTP/1.1 200OK")
	g("HTTP/1.1 200 O\x00K")
	g("HTTP/1.1 200 O\rK")
	g("HTTP/1.1 200 OK\n")
	g("HTTP/1.1 200\tOK")
	g("http/1.1 200 OK")
	g(" HTTP/1.1 200 OK")
	g("\r\nHTTP/1.1 200 OK")
	g("ICY 200 OK")
	g("HTTP/1.1 200 " + strings.Repeat("x", 9000))
}

func TestResponseBody(t *testing.T) {
	f := func(method, status, fields string, body Body, length int64, keepAlive bool) {
		t.Helper()
		in := "HTTP/1.1 " + status + " X\r\n" + fields + "\r\n"
		r, n, bad := parseReply(t, in, method, Limits{})
		if n != len(in) || r.Body != body || r.ContentLength != length || r.KeepAlive != keepAlive {
			t.Errorf("%s, %q: error %d, body %d, length %d, keep-alive %v", method, in, bad, r.Body, r.ContentLength, r.KeepAlive)
		}
	}
	f("GET", "200", "Content-Length: 5\r\n", BodyLength, 5, true)
	f("GET", "200", "Content-Length: 5\r\nConnection: close\r\n", BodyLength, 5, false)
	f("GET", "200", "Transfer-Encoding: Chunked\r\n", BodyChunked, -1, true)
	f("GET", "200", "", BodyUntilClose, -1, false)
	f("HEAD", "200", "Content-Length: 5\r\n", BodyNone, 5, true)
	f("HEAD", "200", "Transfer-Encoding: chunked\r\n", BodyNone, -1, true)
	f("HEAD", "200", "", BodyNone, -1, true)
	f("head", "200", "", BodyUntilClose, -1, false) // another method
	f("GET", "304", "Content-Length: 5\r\n", BodyNone, 5, true)
	f("GET", "304", "Transfer-Encoding: chunked\r\n", BodyNone, -1, true)
	f("GET", "204", "", BodyNone, -1, true)
	f("GET", "204", "Content-Length: 0\r\n", BodyNone, 0, true)
	f("GET", "100", "", BodyNone, -1, true)
	f("GET", "103", "Link: x\r\n", BodyNone, -1, true)
	f("GET", "101", "Upgrade: websocket\r\nConnection: upgrade\r\n", BodyTunnel, -1, false)
	f("CONNECT", "200", "", BodyTunnel, -1, false)
	f("CONNECT", "200", "Content-Length: 5\r\n", BodyTunnel, 5, false)
	f("CONNECT", "407", "Content-Length: 5\r\n", BodyLength, 5, true)
	f("GET", "500", "Content-Length: 0\r\n", BodyLength, 0, true)
}

func TestOldVersionResponse(t *testing.T) {
	f := func(fields string, body Body, keepAlive bool, upgrade string) {
		t.Helper()
		r, n, bad := parseReply(t, "HTTP/1.0 200 OK\r\n"+fields+"\r\n", "GET", Limits{})
		if n == 0 || r.Body != body || r.KeepAlive != keepAlive || string(r.Upgrade) != upgrade {
			t.Errorf("%q: error %d, body %d, keep-alive %v, upgrade %q", fields, bad, r.Body, r.KeepAlive, r.Upgrade)
		}
	}
	f("", BodyUntilClose, false, "")
	f("Content-Length: 1\r\n", BodyLength, false, "")
	f("Content-Length: 1\r\nConnection: keep-alive\r\n", BodyLength, true, "")
	f("Content-Length: 1\r\nConnection: upgrade\r\nUpgrade: x\r\n", BodyLength, false, "")
	f("Connection: keep-alive\r\n", BodyUntilClose, false, "")
}

func TestResponseFramingInTwoWaysIsRefused(t *testing.T) {
	f := func(status, fields string) {
		t.Helper()
		in := "HTTP/1.1 " + status + " X\r\n" + fields + "\r\n"
		if _, n, bad := parseReply(t, in, "GET", Limits{}); bad != 502 {
			t.Errorf("%q: %d bytes, error %d, want 502", in, n, bad)
		}
	}
	f("200", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")
	f("200", "Content-Length: 5\r\nContent-Length: 5\r\n")
	f("200", "Content-Length: 5, 5\r\n")
	f("200", "Content-Length: -1\r\n")
	f("200", "Transfer-Encoding: gzip, chunked\r\n")
	f("200", "Transfer-Encoding: gzip\r\n")
	f("200", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")
	f("200", "X: y\r\n z\r\n")
	f("200", "X : y\r\n")
	f("200", "X: y\n")
	f("204", "Content-Length: 5\r\n")
	f("204", "Transfer-Encoding: chunked\r\n")
	f("100", "Content-Length: 5\r\n")
	f("101", "Transfer-Encoding: chunked\r\n")
	f("200", strings.Repeat("X: y\r\n", 101))
	f("200", "X: "+strings.Repeat("y", 40_000)+"\r\n")
	if _, _, bad := parseReply(t, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", Limits{}); bad != 502 {
		t.Errorf("chunked in HTTP/1.0: error %d, want 502", bad)
	}
}

func TestResponseFieldsAndUpgrade(t *testing.T) {
	r, _, _ := parseReply(t, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nA: 1\r\na: 2\r\n\r\n", "GET", Limits{})
	if string(r.Upgrade) != "websocket" || string(r.Get("A")) != "1" || r.Count("A") != 2 || len(slices.Collect(r.Values("a"))) != 2 {
		t.Errorf("%q: upgrade %q", r.Fields, r.Upgrade)
	}
}
