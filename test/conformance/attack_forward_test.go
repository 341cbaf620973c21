package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A listener of all that is said to a backend: heads as they came, byte by byte.
type recorder struct {
	addr string

	mu    sync.Mutex
	heads []string
	odd   []string // what no head of one single reading looks like
}

// oneReading is the only form of head that a backend may get: CRLF, names of letters,
// digits and hyphens, values without control bytes.
var oneReading = regexp.MustCompile(`^[!-~]{1,32} [!-~\x80-\xff]+ HTTP/1\.1\r\n(?:[A-Za-z0-9-]+: ?[^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n$`)

// newRecorder answers every request with its target, unless refuse says that the
// handshake of an upgrade is to be answered by itself.
func newRecorder(t testing.TB, upgrade func(c net.Conn, r *bufio.Reader, head string) bool) *recorder {
	t.Helper()
	rec := &recorder{}
	rec.addr = stage(t, func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		for {
			head, err := rawHead(r)
			if err != nil {
				if len(head) > 0 {
					rec.note(head, "ended within a head: ")
				}
				return
			}
			rec.note(head, "")
			if upgrade != nil && strings.Contains(head, "\r\nUpgrade: ") {
				if !upgrade(c, r, head) {
					return
				}
				continue
			}
			// The framing is read by another parser.
			req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
			if err != nil {
				rec.note(head, err.Error())
				return
			}
			if req.TransferEncoding != nil {
				req, err = http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(head), r)))
				if err == nil {
					_, err = io.Copy(io.Discard, req.Body)
				}
				if err != nil || r.Buffered() > 0 {
					return // its own buffer took too much: the connection is of no more use
				}
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(head), head)
				return
			}
			if _, err := io.CopyN(io.Discard, r, max(0, req.ContentLength)); err != nil {
				return
			}
			if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(head), head); err != nil {
				return
			}
		}
	})
	return rec
}

func (rec *recorder) note(head, odd string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.heads = append(rec.heads, head)
	lower := strings.ToLower(head)
	switch {
	case odd != "":
		rec.odd = append(rec.odd, odd+head)
	case !oneReading.MatchString(head),
		strings.Count(lower, "\r\ncontent-length:")+strings.Count(lower, "\r\ntransfer-encoding:") > 1,
		strings.Count(lower, "\r\nhost:") != 1:
		rec.odd = append(rec.odd, head)
	}
}

// drained returns what came, and forgets it.
func (rec *recorder) drained() (heads, odd []string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	heads, odd = rec.heads, rec.odd
	rec.heads, rec.odd = nil, nil
	return heads, odd
}

// rawHead reads up to an empty line in any spelling, so that nothing is missed.
func rawHead(r *bufio.Reader) (string, error) {
	var b bytes.Buffer
	for {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			return b.String(), err
		}
		if strings.Trim(line, "\r\n") == "" && b.Len() > 2 {
			return b.String(), nil
		}
	}
}

func forwardAll(addr string, more map[string]any) map[string]any {
	c := map[string]any{
		"routes":   []any{map[string]any{"path": "/*", "cluster": "b"}},
		"clusters": []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": addr}}, "outlier": map[string]any{"enabled": false}, "breaker": map[string]any{"enabled": false}}},
	}
	for k, v := range more {
		c[k] = v
	}
	return c
}

// TestNothingIsSmuggledToABackend sends what two servers may read differently through
// a route. It is refused, or reaches the backend in the one form that has no second
// reading; what an attacker hides behind it never reaches the backend in the name of
// this request.
func TestNothingIsSmuggledToABackend(t *testing.T) {
	rec := newRecorder(t, nil)
	s := judge.New(t, judge.Options{Memory: true, Config: forwardAll(rec.addr, nil)})
	const hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	f := func(name, raw string, reaches bool) {
		t.Helper()
		for _, w := range []way{atOnce, inPieces} {
			got := follow(t, s.Public, raw, "", w, 1, 3*time.Second)
			heads, odd := rec.drained()
			for _, h := range odd {
				t.Errorf("%s, %s: the backend got %q", name, w, h)
			}
			for _, h := range heads {
				if strings.HasPrefix(h, "GET /hidden") {
					t.Errorf("%s, %s: the hidden request reached the backend", name, w)
				}
			}
			switch {
			case len(got.statuses) == 0:
				t.Errorf("%s, %s: no answer", name, w)
			case reaches != (got.statuses[0] == 200 && len(heads) == 1):
				t.Errorf("%s, %s: %s, and the backend got %d requests %q", name, w, got, len(heads), heads)
			}
		}
	}
	post := func(fields, body string) string { return "POST /p HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" + body }
	length := fmt.Sprintf("Content-Length: %d\r\n", len(hidden))
	chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden)
	const te = "Transfer-Encoding: chunked\r\n"

	// The body is a request: it stays a body.
	f("CL", post(length, hidden), true)
	f("chunked", post(te, chunk), true)
	f("GET with a body", "GET /p HTTP/1.1\r\nHost: a\r\n"+length+"\r\n"+hidden, true)
	f("HEAD with a body", "DELETE /p HTTP/1.1\r\nHost: a\r\n"+te+"\r\n"+chunk, true)
	f("extension", post(te, fmt.Sprintf("%x;a=\"\\\r\"\r\n%s\r\n0\r\n\r\n", len(hidden), hidden)), false)
	f("extension that is fine", post(te, fmt.Sprintf("%x;a=\"b\"\r\n%s\r\n0\r\n\r\n", len(hidden), hidden)), true)
	f("trailer with framing", post(te, fmt.Sprintf("%x\r\n%s\r\n0\r\nTransfer-Encoding: chunked\r\nContent-Length: 50\r\nHost: evil\r\n\r\n", len(hidden), hidden)), true)
	f("Expect", post("Expect: 100-continue\r\n"+length, hidden), true)
	f("Connection lists framing", post("Connection: Content-Length\r\n"+length, hidden), true)
	f("Connection lists the coding", post("Connection: transfer-encoding, host\r\n"+te, chunk), true)
	f("TE", post("TE: trailers, chunked\r\nConnection: TE\r\n"+length, hidden), true)
	f("underscores", post("Content_Length: 0\r\nTransfer_Encoding: chunked\r\n"+length, hidden), true)
	f("names no variable may have", post("X.Forwarded-For: 1\r\nTransfer-Encoding'chunked: 1\r\n"+length, hidden), true)
	f("absolute form", strings.Replace(post(length, hidden), "/p", "http://a/p", 1), true)
	f("upper-case scheme", strings.Replace(post(length, hidden), "/p", "HTTP://a:80/p", 1), true)
	f("h2c", "GET /p HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n", true)

	both := []string{length + te, te + length, "Content-Length: 0\r\n" + te, length + "Content-Length: 0\r\n", "Content-Length: 0\r\n" + length}
	for _, fields := range both {
		f(fmt.Sprintf("%q", fields), post(fields, chunk), false)
	}
	for _, v := range []string{
		"xchunked", "chunked, identity", "identity, chunked", "chunked, chunked", "gzip, chunked", "\x0bchunked", "chunked\x00", "\"chunked\"", "", "cow",
		"chunked\r\nTransfer-Encoding: identity", "chunked;q=1", "\r\n chunked", "chunked\r\n\tx", "chunKed, ", ",chunked",
	} {
		f(fmt.Sprintf("TE %q", v), post("Transfer-Encoding: "+v+"\r\n", chunk), false)
		f(fmt.Sprintf("TE %q and CL", v), post(length+"Transfer-Encoding: "+v+"\r\n", hidden), false)
	}
	for _, line := range []string{
		"Transfer-Encoding : chunked", "\tTransfer-Encoding: chunked", "X: y\rTransfer-Encoding: chunked", "X: y\nTransfer-Encoding: chunked", "X\x00: y",
		"Transfer-Encoding\x00: chunked", "Content-Length : 0", "Content-Length:\x0b0", "Content-Length: 0,0", "Content-Length: +0", "Content-Length: 0x0", "Host: a",
		"Host : b", "X: y\x00", "X: \x7f", ":x", "X",
	} {
		f(fmt.Sprintf("%q", line), post(line+"\r\n"+length, hidden), false)
	}
	for _, size := range []string{"0x1", "-1", "+1", " 1", "1 ", "1\n", "\r\n1", "ffffffffffffffff1", "1;\n", "1;a\x00", ""} {
		f(fmt.Sprintf("chunk size %q", size), post(te, size+"\r\nx\r\n0\r\n\r\n"), false)
	}
	f("another host in the target", "GET http://b/p HTTP/1.1\r\nHost: a\r\n\r\n", false)
	f("userinfo in the target", "GET http://a@b/p HTTP/1.1\r\nHost: b\r\n\r\n", false)
	f("HTTP/1.0 and chunked", strings.Replace(post(te, chunk), "1.1", "1.0", 1), false)
}

// TestRefusedUpgradeIsNoTunnel says more behind a handshake than there may be. A
// backend that refuses it must get what follows as requests that went through the
// rules, or not at all.
func TestRefusedUpgradeIsNoTunnel(t *testing.T) {
	const early = "GET /admin/secret HTTP/1.1\r\nHost: a\r\n\r\n"
	hello := func(protocol string) string {
		return "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: " + protocol +
			"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	}
	answer := map[string]string{
		"refused":    "HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 7\r\nContent-Length: 2\r\n\r\nno",
		"other":      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"optionless": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
		"length":     "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
		"fine":       "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	}
	recs, routes, clusters := map[string]*recorder{}, []any{}, []any{}
	for name, text := range answer {
		recs[name] = newRecorder(t, func(c net.Conn, r *bufio.Reader, _ string) bool {
			if _, err := io.WriteString(c, text); err != nil || name != "fine" {
				return err == nil
			}
			b := make([]byte, 4)
			if _, err := io.ReadFull(r, b); err == nil {
				_, _ = fmt.Fprintf(c, "raw %q", b)
			}
			return false
		})
		routes = append(routes, map[string]any{"path": "/" + name + "/*", "cluster": name},
			map[string]any{"path": "/" + name + "/admin/*", "cluster": name, "addresses": map[string]any{"deny": []string{"127.0.0.0/8"}}})
		clusters = append(clusters, map[string]any{"name": name, "peers": []any{map[string]any{"address": recs[name].addr}}})
	}
	s := judge.New(t, judge.Options{Memory: true, Config: map[string]any{"routes": routes, "clusters": clusters}})
	for name := range answer {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := said(t, s.Public, strings.ReplaceAll(hello("websocket")+early, " /", " /"+name+"/"), 1500*time.Millisecond)
			heads, _ := recs[name].drained()
			for _, h := range heads {
				if strings.Contains(h, "/admin") {
					t.Errorf("the backend got %q", h)
				}
			}
			switch name {
			case "fine":
				if !strings.HasPrefix(said, "HTTP/1.1 101 ") || !strings.HasSuffix(said, `raw "GET "`) {
					t.Errorf("a tunnel: %q", said)
				}
			case "refused":
				if !strings.HasPrefix(said, "HTTP/1.1 426 ") || !strings.Contains(said, "HTTP/1.1 403 ") {
					t.Errorf("%q", said)
				}
			default:
				if !strings.HasPrefix(said, "HTTP/1.1 502 ") {
					t.Errorf("%q", said)
				}
			}
		})
	}
}

// said sends raw and returns all that comes within a time, or until the end.
func said(t testing.TB, addr, raw string, within time.Duration) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(within))
	_, _ = io.WriteString(c, raw) // it may have been refused before all of it was there
	b, _ := io.ReadAll(c)         // what came counts, however it ended
	return string(b)
}

// lax reads a path as the most careless of backends would.
func lax(target string) string {
	p, _, _ := strings.Cut(target, "?")
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		if v, err := strconv.ParseUint(p[min(len(p), i+1):min(len(p), i+3)], 16, 8); err == nil && p[i] == '%' {
			b.WriteByte(byte(v))
			i += 2
		} else {
			b.WriteByte(p[i])
		}
	}
	p = b.String()
	p = strings.ReplaceAll(p, `\`, "/")
	p = strings.NewReplacer("\xc0\xaf", "/", "\xe0\x80\xaf", "/", "\xc0\xae", ".").Replace(p)
	var segments []string
	for s := range strings.SplitSeq(p, "/") {
		s, _, _ = strings.Cut(s, ";")
		segments = append(segments, strings.TrimRight(s, "\x00"))
	}
	return path.Clean("/" + strings.Join(segments, "/"))
}

// TestProtectedPathHasNoOtherSpelling requests /admin/x in spellings that backends
// take for it, over both versions.
func TestProtectedPathHasNoOtherSpelling(t *testing.T) {
	rec := newRecorder(t, nil)
	route := func(p string, more map[string]any) map[string]any {
		more["path"], more["cluster"] = p, "b"
		return more
	}
	no := map[string]any{"deny": []string{"0.0.0.0/0", "::/0"}}
	s := judge.New(t, judge.Options{Memory: true, Config: forwardAll(rec.addr, map[string]any{"routes": []any{
		route("/*", map[string]any{}),
		route("/pub/*", map[string]any{}),
		route("/admin/*", map[string]any{"addresses": no}),
		route("/only/post", map[string]any{"methods": []string{"POST"}, "addresses": no}),
		route("/*", map[string]any{"host": "secret.example", "addresses": no}),
	}})})
	judgeHeads := func(what string) {
		t.Helper()
		heads, odd := rec.drained()
		for _, h := range odd {
			t.Errorf("%s: the backend got %q", what, h)
		}
		for _, h := range heads {
			_, rest, _ := strings.Cut(h, " ")
			target, _, _ := strings.Cut(rest, " ")
			host := strings.ToLower(h[strings.Index(h, "Host: ")+6:])
			if p := lax(target); p == "/admin" || strings.HasPrefix(p, "/admin/") {
				t.Errorf("%s: the backend got %q, which it may take for %s", what, target, p)
			}
			if strings.HasPrefix(host, "secret.example") {
				t.Errorf("%s: the backend got Host: %.30q", what, host)
			}
		}
	}
	c := http2Client()
	defer c.CloseIdleConnections()
	for _, p := range []string{
		"/admin/x", "/admin", "/admin/", "//admin/x", "/./admin/x", "/a/../admin/x", "/a/..;/admin/x", "/a/%2e%2e/admin/x", "/a/.%2E/admin/x", "/%61dmin/x", "/%41dmin/../admin",
		"/admin%2fx", "/admin%2Fx", "/admin;/x", "/admin;a=b/x", "/admin%3bx/y", "/;/admin/x", "/a%2f..%2fadmin/x", "/a/%2e%2e%2fadmin", `/a\..\admin\x`, `/\admin`, "/a%5c..%5cadmin",
		"/%c0%afadmin/x", "/%e0%80%afadmin", "/%c0%ae%c0%ae/admin", "/admin%00/x", "/admin/%2e", "/admin/.", "/admin/..;/x", "/%2fadmin/x", "/.//admin", "/a//..//admin/x",
		"/admin?x", "/admin#x", "/pub/../admin/x", "/pub/%2e%2e/admin", "/pub%2fadmin", "/pub/..%2fadmin/x", "/pub/;/admin", "/pub/.;/admin", "http://a/admin/x",
		"/admin\t/x", "/%", "/%4", "/%zz", "/..", "/../admin", "/a/../../admin",
	} {
		raw := strings.NewReplacer(" ", "%20").Replace(p)
		for _, method := range []string{"GET", "HEAD", "PATCH"} {
			_ = said(t, s.Public, method+" "+raw+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 2*time.Second)
			judgeHeads(method + " " + p)
		}
		// A stream that is reset is queried again by the library, for a minute.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		req, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.Public, nil)
		if err != nil {
			t.Fatal(err)
		}
		if req.URL.Opaque = raw; strings.HasPrefix(raw, "//") || !strings.HasPrefix(raw, "/") {
			req.URL.Opaque = "//" + s.Public + raw // a path that starts so
		}
		if res, err := c.Do(req); err == nil {
			_ = res.Body.Close()
		}
		cancel()
		judgeHeads("HTTP/2 " + p)
	}
	for _, host := range []string{"secret.example", "SECRET.EXAMPLE", "secret.example.", "secret.example:80", "secret.example.:443", "Secret.Example:"} {
		for _, raw := range []string{"GET / HTTP/1.1\r\nHost: " + host, "GET http://" + host + "/ HTTP/1.1\r\nHost: " + host, "GET http://" + host + "/ HTTP/1.0\r\nX: y"} {
			_ = said(t, s.Public, raw+"\r\nConnection: close\r\n\r\n", 2*time.Second)
			judgeHeads(raw)
		}
	}
	for _, name := range []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x_http_method_override"} {
		got := exchange(t, s.Public, "GET /only/get HTTP/1.1\r\nHost: a\r\n"+name+": POST\r\nX-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nConnection: close\r\n\r\n", 1, 2*time.Second)
		if heads, _ := rec.drained(); len(heads) != 1 || strings.Contains(heads[0], "POST") || strings.Contains(heads[0], "/admin") {
			t.Errorf("%s: %s, the backend got %q", name, got, heads)
		}
	}
}
