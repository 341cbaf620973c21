package downstream_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/downstream"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
)

// echoServer answers with what it got: the method, the body's length and sum, in the
// framing that the path names.
func echoServer(t *testing.T) string {
	return backend(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		w.Header().Set("X-Method", r.Method)
		w.Header().Set("X-Framing", fmt.Sprint(r.ContentLength))
		w.Header().Set("X-Body", string(body[:min(len(body), 20)]))
		text := strings.Repeat("reply ", 5)
		switch r.URL.Path {
		case "/empty":
			w.WriteHeader(http.StatusNoContent)
		case "/unchanged":
			w.WriteHeader(http.StatusNotModified)
		case "/length":
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			_, _ = io.WriteString(w, text)
		case "/chunked":
			for _, word := range strings.SplitAfter(text, " ") {
				_, _ = io.WriteString(w, word)
				w.(http.Flusher).Flush()
			}
		case "/close":
			w.Header().Set("Connection", "close")
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			_, _ = io.WriteString(w, text)
		case "/big":
			_, _ = io.Copy(w, bytes.NewReader(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)))
		}
	})
}

func TestEveryFramingMethodAndVersionPasses(t *testing.T) {
	g := start(t, settings{}, echoServer(t))
	for _, path := range []string{"/length", "/chunked", "/empty", "/unchanged", "/close", "/big"} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"} {
			for _, version := range []string{"HTTP/1.1", "HTTP/1.0", "HTTP/1.0 kept"} {
				for _, body := range []string{"none", "length", "chunked"} {
					if body == "chunked" && version != "HTTP/1.1" {
						continue
					}
					passes(t, g, method, path, version, body)
				}
			}
		}
	}
}

func passes(t *testing.T, g *gateway, method, path, version, body string) {
	t.Helper()
	what := fmt.Sprintf("%s %s %s body %s", method, path, version, body)
	w := g.dial()
	defer w.Close()
	version, kept, _ := strings.Cut(version, " ")
	head := fmt.Sprintf("%s %s %s\r\nHost: a.example\r\n", method, path, version)
	if kept != "" {
		head += "Connection: keep-alive\r\n"
	}
	switch body {
	case "none":
		head += "\r\n"
	case "length":
		head += "Content-Length: 11\r\n\r\nhello world"
	case "chunked":
		head += "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n"
	}
	w.Send(head)
	res, got := w.Answer(method)
	wantBody, framing := "hello world", "11"
	switch body {
	case "none":
		wantBody, framing = "", "0"
	case "chunked":
		framing = "-1"
	}
	if h := res.Header; h.Get("X-Method") != method || h.Get("X-Body") != wantBody || h.Get("X-Framing") != framing {
		t.Errorf("%s: arrived as %s %q framed %s", what, h.Get("X-Method"), h.Get("X-Body"), h.Get("X-Framing"))
	}
	want, status := strings.Repeat("reply ", 5), http.StatusOK
	switch path {
	case "/empty":
		want, status = "", http.StatusNoContent
	case "/unchanged":
		want, status = "", http.StatusNotModified
	case "/big":
		want = strings.Repeat("0123456789abcdef", 1<<16)
	}
	if method == "HEAD" {
		want = ""
	}
	if res.StatusCode != status || got != want {
		t.Errorf("%s: %d with %d bytes %.30q, want %d with %d", what, res.StatusCode, len(got), got, status, len(want))
	}
	if path == "/length" && res.ContentLength != 30 {
		t.Errorf("%s: Content-Length %d", what, res.ContentLength)
	}
	// The connection lives on, unless the body ended with it.
	if untilClose := version == "HTTP/1.0" && (kept == "" || path == "/chunked" && method != "HEAD" || path == "/big" && method != "HEAD"); untilClose {
		w.EOF()
		return
	}
	w.Send("GET /length HTTP/1.1\r\nHost: a\r\n\r\n")
	if res, got := w.Answer("GET"); res.StatusCode != 200 || len(got) != 30 {
		t.Errorf("%s: the next request on the connection got %d %q", what, res.StatusCode, got)
	}
}

func TestARequestIsForwardedInOneReading(t *testing.T) {
	heads := make(chan string, 1)
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		for {
			var b strings.Builder
			for {
				line, err := w.R.ReadString('\n')
				if err != nil {
					return
				}
				b.WriteString(line)
				if line == "\r\n" {
					break
				}
			}
			heads <- b.String()
			w.TrySend("HTTP/1.1 200 OK\nContent-Length: 2\nConnection: X-Hop\nX-Hop: 1\nX-End: 2\nKeep-Alive: timeout=5\n\nok")
		}
	})
	g := start(t, settings{}, peer)
	f := func(head string, has, hasNot []string) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send(wiretest.CRLF(head))
		res, _ := w.Answer("GET")
		got := <-heads
		for _, s := range has {
			if !strings.Contains(got, s) {
				t.Errorf("%q arrives as %q, without %q", head, got, s)
			}
		}
		for _, s := range hasNot {
			if strings.Contains(strings.ToLower(got), strings.ToLower(s)) {
				t.Errorf("%q arrives as %q, with %q", head, got, s)
			}
		}
		if res.Header.Get("X-Hop") != "" || res.Header.Get("X-End") != "2" || res.Header.Get("Keep-Alive") != "" {
			t.Errorf("the reply's fields are %v", res.Header)
		}
	}
	f("GET /a HTTP/1.1\nHost: h\nConnection: close, X-Hop\nX-Hop: secret\nX-End: 1\n\n", []string{"GET /a HTTP/1.1\r\n", "X-End: 1\r\n"}, []string{"X-Hop", "close"})
	f("GET http://h/a?b=c HTTP/1.1\nHost: h\n\n", []string{"GET /a?b=c HTTP/1.1\r\n", "Host: h\r\n"}, nil)
	f("GET /a HTTP/1.1\nHost: h\nTE: gzip\nConnection: TE\n\n", nil, []string{"TE:"})
	f("GET /a HTTP/1.1\nHost: h\nUpgrade: h2c\nConnection: Upgrade, HTTP2-Settings\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\n\n", nil, []string{"Upgrade", "HTTP2-Settings"})
	f("GET /a HTTP/1.0\n\n", []string{"\r\nHost: " + peer + "\r\n"}, nil)
	f("GET /a HTTP/1.1\nHost: h\nTE: trailers, deflate\nConnection: TE\n\n", []string{"\r\nTE: trailers\r\nConnection: TE\r\n"}, []string{"deflate"})
	f("GET /a HTTP/1.1\nHost: h\nKeep-Alive: 5\nProxy-Connection: keep-alive\n\n", nil, []string{"Keep-Alive"})
}

func TestTrailersPassOnlyWhenWanted(t *testing.T) {
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		for {
			if _, _, ok := w.Request(); !ok {
				return
			}
			w.TrySend("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nTrailer: X-Sum, Set-Cookie\n\n2\nok\n0\nX-Sum: 42\nSet-Cookie: a=b\nContent-Length: 7\n\n")
		}
	})
	g := start(t, settings{}, peer)
	f := func(fields, want string) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send("GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")
		res, body := w.Answer("GET")
		if got := res.Trailer.Get("X-Sum"); got != want || body != "ok" {
			t.Errorf("with %q the trailer is %q, want %q", fields, got, want)
		}
		if res.Trailer.Get("Set-Cookie") != "" || res.Header.Get("X-Sum") != "" || res.Trailer.Get("Content-Length") != "" {
			t.Errorf("with %q: header %v, trailer %v", fields, res.Header, res.Trailer)
		}
	}
	f("", "")
	f("TE: trailers\r\nConnection: TE\r\n", "42")
}

func TestInterimReplies(t *testing.T) {
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		for {
			req, err := http.ReadRequest(w.R)
			if err != nil {
				return
			}
			if req.Header.Get("Expect") != "" && req.URL.Path != "/no" {
				w.TrySend("HTTP/1.1 100 Continue\n\n")
			}
			if req.URL.Path == "/no" {
				w.TrySend("HTTP/1.1 417 No\nContent-Length: 0\n\n")
				return
			}
			body, _ := io.ReadAll(req.Body)
			w.TrySend("HTTP/1.1 103 Early Hints\nLink: </a.css>\nConnection: X-Hop\nX-Hop: 1\n\n")
			w.TrySend("HTTP/1.1 100 Continue\n\n") // unasked
			w.TrySend(fmt.Sprintf("HTTP/1.1 200 OK\nContent-Length: %d\n\n%s", len(body), body))
		}
	})
	g := start(t, settings{}, peer)
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if got := w.Head(); !strings.HasPrefix(got, "HTTP/1.1 103 Early Hints\r\n") || !strings.Contains(got, "Link: </a.css>\r\n") || strings.Contains(got, "X-Hop") {
		t.Errorf("the hint is %q", got)
	}
	if got := w.Head(); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("after the hint comes %q", got)
	}
	// HTTP/1.0 knows no interim replies.
	w = g.dial()
	w.Send("GET / HTTP/1.0\r\n\r\n")
	if got := w.Head(); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("an HTTP/1.0 client gets %q", got)
	}
	// The backend is queried whether it wants the body.
	w = g.dial()
	w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	if got := w.Head(); got != "HTTP/1.1 100 Continue\r\n\r\n" {
		t.Errorf("the client receives %q", got)
	}
	w.Send("hello")
	w.Head()                                                      // 103
	if got := w.Head(); !strings.HasPrefix(got, "HTTP/1.1 100") { // requested, said twice
		t.Errorf("then %q", got)
	}
	if res, body := w.Answer("POST"); res.StatusCode != 200 || body != "hello" {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	w = g.dial()
	w.Send("POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	if res, _ := w.Answer("POST"); res.StatusCode != 417 || !res.Close {
		t.Errorf("an unneeded body: %d, close %v", res.StatusCode, res.Close)
	}
	w.EOF()
}

func TestBadRepliesAre502(t *testing.T) {
	var reply string
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, _, ok := w.Request(); ok {
			w.TrySend(reply)
		}
	})
	g := start(t, settings{cluster: upstream.Config{Retry: upstream.RetryConfig{Attempts: 1}, Outlier: upstream.OutlierConfig{Enabled: setting.Off},
		Breaker: upstream.BreakerConfig{Enabled: setting.Off}}}, peer)
	f := func(says string) {
		t.Helper()
		reply = says
		w := g.dial()
		defer w.Close()
		w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
		res, body := w.Answer("POST")
		if res.StatusCode != 502 || !strings.Contains(body, `"code":502`) || strings.Contains(body, "127.0.0.1") {
			t.Errorf("%q is answered %d %q", says, res.StatusCode, body)
		}
		if res.Close {
			t.Errorf("%q ends the client's connection", says)
		}
	}
	f("")
	f("garbage\n\n")
	f("HTTP/1.1 200 OK\nContent-Length: 1\nContent-Length: 2\n\nab")
	f("HTTP/1.1 200 OK\nContent-Length: 1\nTransfer-Encoding: chunked\n\n0\n\n")
	f("HTTP/1.1 200 OK\nTransfer-Encoding: gzip, chunked\n\n0\n\n")
	f("HTTP/1.1 204 No Content\nContent-Length: 5\n\nhello")
	f("HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: websocket\n\n")
	f("HTTP/1.1 200 OK\nX: a\n b\n\n")
	f("HTTP/2 200 OK\n\n")
	f("HTTP/1.1 200 OK\nContent-Le")
}

func TestACutReplyIsNotTakenForWhole(t *testing.T) {
	var reply string
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, _, ok := w.Request(); ok {
			w.TrySend(reply)
		}
	})
	g := start(t, settings{}, peer)
	f := func(version, says string) {
		t.Helper()
		reply = says
		w := g.dial()
		defer w.Close()
		w.Send("GET / " + version + "\r\nHost: a\r\n\r\n")
		res, err := http.ReadResponse(w.R, nil)
		if err != nil {
			return // reset at once
		}
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: %q was cut, and looks whole: %q", version, says, b)
		}
	}
	f("HTTP/1.1", "HTTP/1.1 200 OK\nContent-Length: 10\n\nabc")
	f("HTTP/1.1", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\nabc")
	f("HTTP/1.1", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\nzz")
	f("HTTP/1.0", "HTTP/1.1 200 OK\nContent-Length: 10\n\nabc")
	f("HTTP/1.0", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n")
}

func TestBodiesUntilCloseAreChunked(t *testing.T) {
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if _, _, ok := w.Request(); ok {
			w.TrySend("HTTP/1.0 200 OK\n\nall of it")
		}
	})
	g := start(t, settings{}, peer)
	w := g.dial()
	for range 3 {
		w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		res, body := w.Answer("GET")
		if body != "all of it" || len(res.TransferEncoding) != 1 || res.Close {
			t.Errorf("%q, %v, close %v", body, res.TransferEncoding, res.Close)
		}
	}
}

func TestBuiltinPathsMayBeKeptToSomeHosts(t *testing.T) {
	g := start(t, settings{front: downstream.Config{BuiltinHosts: []string{"push.example"}},
		routes: []policy.RouteConfig{{Reply: policy.Reply{Status: 200, Body: "a route's"}}}})
	f := func(host, want string) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send("GET /healthz HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		if _, got := w.Answer("GET"); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	f("push.example", "ok\n")
	f("PUSH.example:8000", "ok\n")
	f("[::1]:8000", "a route's")
	f("[::1]", "a route's")
	f("api.example", "a route's")
	f("push.example.com", "a route's")
}

func TestRoutesThatAnswerThemselves(t *testing.T) {
	g := start(t, settings{routes: []policy.RouteConfig{
		{Path: "/hello", Reply: policy.Reply{Status: 200, Body: "Hello, World!"}},
		{Path: "/old/*", Redirect: policy.Redirect{To: "/new/{*}"}},
		{Path: "/sse", Reply: policy.Reply{Status: 200, Body: "not ours"}},
	}})
	f := func(req string, status int, body string) *http.Response {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send(wiretest.CRLF(req))
		res, got := w.Answer(strings.Fields(req)[0])
		if res.StatusCode != status || !strings.Contains(got, body) {
			t.Errorf("%q: %d %q, want %d %q", req, res.StatusCode, got, status, body)
		}
		return res
	}
	f("GET /hello HTTP/1.1\nHost: a\n\n", 200, "Hello, World!")
	f("HEAD /hello HTTP/1.1\nHost: a\n\n", 200, "")
	if res := f("GET /old/a/b HTTP/1.1\nHost: a\n\n", 308, ""); res.Header.Get("Location") != "/new/a/b" {
		t.Errorf("Location %q", res.Header.Get("Location"))
	}
	f("GET /nowhere HTTP/1.1\nHost: a\n\n", 404, "routes")
	f("GET /sse HTTP/1.1\nHost: a\n\n", 400, "channel")
	f("GET /healthz HTTP/1.1\nHost: a\n\n", 200, "ok")
	// A body that is complete is skipped; one that is not ends the connection.
	w := g.dial()
	w.Send("POST /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
	w.Answer("POST")
	w.Answer("GET")
}
