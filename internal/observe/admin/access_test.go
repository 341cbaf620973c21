package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe/admin/login"
	"github.com/weir-gateway/weir/internal/observe/governor"
)

const (
	rightToken = "right-token-0123456789"
	readToken  = "read-token-0123456789"
)

// site is a running admin listener.
type site struct {
	t      *testing.T
	addr   string
	done   map[string]int // what was done, by name
	server *Server
}

// serve runs the admin listener; evidence is where its bundles are.
func serve(t *testing.T, token auth.Secret, evidence string, change ...func(*Server)) *site {
	t.Helper()
	s := &site{t: t, done: map[string]int{}}
	did := func(what string) { s.done[what]++ } // requests of the tests come one after the other
	stream := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "data: 1\n\n") })
	cfg := Config{Listen: "127.0.0.1:0", Token: token}
	if token != "" {
		cfg.ReadToken = readToken
	}
	g, err := governor.New(governor.Config{Evidence: governor.EvidenceConfig{Dir: evidence}}, governor.Sources{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := New(cfg, l, Sources{
		Metrics:  prometheus.NewRegistry(),
		Info:     func() any { return map[string]string{"version": "test"} },
		Snapshot: func(context.Context) *Snapshot { return &Snapshot{} },
		Live:     stream, Subscribe: stream,
		Connections: func(_ context.Context, sort string, limit int) (*Connections, error) {
			did("connections " + sort + " " + fmt.Sprint(limit))
			return &Connections{}, nil
		},
		Connection: func(context.Context, uint64) (*ConnectionDetail, error) { return nil, ErrNotFound },
		Disconnect: func(context.Context, uint64) error { did("disconnect"); return nil },
		Channels:   func(context.Context, string, int) (*Channels, error) { return &Channels{}, nil },
		Messages: func(_ context.Context, channel string, _ int) (*Messages, error) {
			return &Messages{Channel: channel}, nil
		},
		Publish:    func(context.Context, []byte) (int, []byte) { did("publish"); return 200, []byte("{}") },
		BeginTrace: func(*TraceRequest) (*Trace, error) { did("trace"); return &Trace{ID: "1"}, nil },
		Trace: func(_ context.Context, id string, _ bool) (*Trace, error) {
			return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
		},
		Bundles: func() *Bundles { return &Bundles{Bundles: g.Bundles()} },
		Capture: func(_ context.Context, reason string) (*governor.Bundle, error) {
			did("capture")
			return &governor.Bundle{ID: "x", Reason: reason}, nil
		},
		OpenBundle:  func(id string) (io.ReadCloser, error) { return g.Open(id) },
		Upstreams:   func() any { return nil },
		SteerCanary: func(string, string) error { did("steer"); return nil },
		Reload:      func(context.Context) (any, error) { did("reload"); return "ok", nil },
		Diff:        func(context.Context, []byte) (any, error) { did("diff"); return "ok", nil },
		Sorts:       []string{"lag", "bytes"}, ChannelSorts: []string{"rate"},
		Page: fstest.MapFS{"index.html": {Data: []byte("<!doctype html>")}},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(srv)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(context.Background()) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	s.addr, s.server = srv.Addr().String(), srv
	return s
}

// client is one whose connections are its own, from a loopback address of its own.
func (s *site) client(from string) *http.Client {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	tr := &http.Transport{DialContext: d.DialContext}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (s *site) do(c *http.Client, method, path, body string, fields ...string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	res, err := c.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res, string(b)
}

func bearer(token string) string { return "Authorization: Bearer " + token }

func TestWrongTokensAreLimitedAndRightOnesAreNot(t *testing.T) {
	s := serve(t, rightToken, "")
	c := s.client("127.0.0.1")
	f := func(who string, c *http.Client, token string, want int) *http.Response {
		t.Helper()
		res, _ := s.do(c, "GET", "/api/info", "", bearer(token))
		if res.StatusCode != want {
			t.Errorf("%s with %.30s: %d, want %d", who, token, res.StatusCode, want)
		}
		return res
	}
	for range maxGuesses {
		f("a guess", c, "guess", 401)
	}
	for range 3 * maxGuesses {
		res := f("one guess too many", c, "guess", 429)
		if after := res.Header.Get("Retry-After"); after == "" || after == "0" {
			t.Errorf("it may come back after %q", after)
		}
	}
	f("the right one among them", c, rightToken, 200)
	f("the right one on a connection of its own", s.client("127.0.0.1"), rightToken, 200)
	f("the token for reading", s.client("127.0.0.1"), readToken, 200)
	f("a guess after the right one", c, "guess", 429)
	f("another address", s.client("127.0.0.2"), "guess", 401)
	form := "Content-Type: application/x-www-form-urlencoded"
	if res, _ := s.do(c, "POST", "/login", url.Values{"token": {"guess"}}.Encode(), form); res.StatusCode != 429 || len(res.Cookies()) != 0 {
		t.Errorf("a guess by the form: %d", res.StatusCode)
	}
	if res, _ := s.do(c, "POST", "/login", url.Values{"token": {rightToken}}.Encode(), form); res.StatusCode != 303 || len(res.Cookies()) != 1 {
		t.Errorf("the right one by the form: %d", res.StatusCode)
	}
}

func TestRepeatedCredentialsAreRefused(t *testing.T) {
	s := serve(t, rightToken, "")
	for _, fields := range []string{
		"Authorization: Bearer " + rightToken + "\r\nAuthorization: Bearer x", "Origin: http://" + s.addr + "\r\nOrigin: http://evil.example",
		"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site", "Cookie: a=b\r\nCookie: c=d",
	} {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(conn, "GET /api/info HTTP/1.1\r\nHost: localhost\r\n%s\r\nConnection: close\r\n\r\n", fields)
		b, _ := io.ReadAll(conn)
		_ = conn.Close()
		if !bytes.HasPrefix(b, []byte("HTTP/1.1 400")) {
			t.Errorf("%q: %.100s", fields, b)
		}
	}
}

func TestTheRightTokenIsNeverTooMany(t *testing.T) {
	s := serve(t, rightToken, "")
	c := s.client("127.0.0.1")
	for range 3 * maxGuesses {
		if res, _ := s.do(c, "GET", "/api/info", "", bearer(rightToken), "Connection: close"); res.StatusCode != 200 {
			t.Fatal(res.StatusCode)
		}
	}
}

func TestGuessersAreRememberedInLittleRoom(t *testing.T) {
	a := newAccess(rightToken, "", nil, slog.New(slog.DiscardHandler))
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	for i := range 20 * maxGuessers {
		r.RemoteAddr = fmt.Sprintf("[2001:db8:%x:%x::1]:1", i>>16, i&0xffff)
		if as, _ := a.tried(r, "guess"); as != login.None {
			t.Fatal("a guess is let in")
		}
	}
	if st := a.guesses.Stats(int64(time.Since(a.base))); st.Buckets > maxGuessers {
		t.Errorf("%+v", st)
	}
	r.RemoteAddr = "[2001:db8:ffff:1::1]:1"
	for i := range maxGuesses + 1 { // another address of the same 64 bits is the same guesser
		r.RemoteAddr = fmt.Sprintf("[2001:db8:ffff:1::%x]:1", i)
		if _, wait := a.tried(r, "guess"); (wait > 0) != (i == maxGuesses) {
			t.Fatalf("guess %d: wait %v", i, wait)
		}
	}
}

func TestWhatIsNotLookedAtCostsLittle(t *testing.T) {
	a := newAccess(rightToken, "", nil, slog.New(slog.DiscardHandler))
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Authorization", "Bearer "+strings.Repeat("x", 30<<10))
	for range maxGuesses {
		a.callerOf(r, time.Now())
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, wait := a.callerOf(r, time.Now()); wait == 0 {
			t.Fatal("it is looked at")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCookiesOfSessions(t *testing.T) {
	s := serve(t, rightToken, "")
	c := s.client("127.0.0.1")
	own, form := "Origin: http://"+s.addr, "Content-Type: application/x-www-form-urlencoded"
	res, _ := s.do(c, "POST", "/login", url.Values{"token": {rightToken}}.Encode(), form, own)
	line := res.Header.Get("Set-Cookie")
	for _, flag := range []string{"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="} {
		if !strings.Contains(line, flag) {
			t.Errorf("%s is not in %q", flag, line)
		}
	}
	if strings.Contains(line, "Domain=") {
		t.Errorf("other hosts get %q", line)
	}
	cookie := "Cookie: " + strings.SplitN(line, ";", 2)[0]
	if res, _ := s.do(c, "GET", "/api/info", "", cookie); res.StatusCode != 200 {
		t.Errorf("with the cookie: %d", res.StatusCode)
	}
	for _, bad := range []string{"Cookie: weir_admin=", "Cookie: weir_admin=" + strings.Repeat("A", 26), "Cookie: weir_admin=" + strings.Repeat("A", 20_000), cookie[:len(cookie)-1]} {
		if res, _ := s.do(c, "GET", "/api/info", "", bad); res.StatusCode != 401 {
			t.Errorf("%.40s: %d", bad, res.StatusCode)
		}
	}
	if b := newAccess(rightToken, "", nil, slog.New(slog.DiscardHandler)).begin(time.Now(), true); !b.Secure {
		t.Error("over TLS the cookie is not for TLS alone")
	}
	// Sessions are bounded.
	a := newAccess(rightToken, "", nil, slog.New(slog.DiscardHandler))
	for range 3 * maxSessions {
		a.begin(time.Now(), false)
	}
	if len(a.sessions) > maxSessions {
		t.Errorf("%d sessions", len(a.sessions))
	}
}

// changes are all requests that change something.
var changes = []struct{ path, body, does string }{
	{"/api/connections/1/disconnect", "", "disconnect"}, {"/api/publish", "{}", "publish"}, {"/api/trace", `{"channel":"a"}`, "trace"},
	{"/api/bundles", "", "capture"}, {"/api/canary/a/restart", "", "steer"}, {"/api/reload", "", "reload"},
}

func TestPagesOfOthersChangeNothing(t *testing.T) {
	for _, token := range []auth.Secret{"", rightToken} {
		s := serve(t, token, "")
		c := s.client("127.0.0.1")
		how := "X-Nothing: 1"
		if token != "" {
			res, _ := s.do(c, "POST", "/login", url.Values{"token": {rightToken}}.Encode(), "Content-Type: application/x-www-form-urlencoded")
			how = "Cookie: " + strings.SplitN(res.Header.Get("Set-Cookie"), ";", 2)[0]
		}
		port := s.addr[strings.LastIndex(s.addr, ":"):]
		for _, from := range []string{
			"Origin: http://evil.example", "Origin: null", "Origin: http://" + s.addr + ".evil.example", "Origin: http://127.0.0.1:1", "Origin: file://",
			"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Sec-Fetch-Site: something", "Host: evil.example" + port, "Host: localhost.evil.example" + port,
		} {
			for _, x := range changes {
				if res, _ := s.do(c, "POST", x.path, x.body, how, from); res.StatusCode != 403 {
					t.Errorf("%s by %s: %d", x.path, from, res.StatusCode)
				}
			}
			if res, body := s.do(c, "GET", "/api/info", "", how, from); res.StatusCode != 403 || strings.Contains(body, "version") {
				t.Errorf("read by %s: %d %s", from, res.StatusCode, body)
			}
		}
		for _, x := range changes {
			for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS"} {
				s.do(c, method, x.path, "", how)
			}
			if s.done[x.does] != 0 {
				t.Errorf("%s was done", x.does)
			}
			if res, _ := s.do(c, "POST", x.path, x.body, how, "Origin: http://"+s.addr, "Sec-Fetch-Site: same-origin"); res.StatusCode >= 300 || s.done[x.does] != 1 {
				t.Errorf("%s by the page itself: %d", x.path, res.StatusCode)
			}
		}
		if res, _ := s.do(c, "GET", "/api/info", "", how, "Origin: http://"+s.addr); res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Error("others may read it")
		}
	}
}

func TestEvidenceIsReadFromItsDirectoryAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	evidence := filepath.Join(dir, "evidence")
	if err := os.Mkdir(evidence, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(evidence, "stray"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "", evidence)
	for _, id := range []string{
		"../secret", "..%2Fsecret", "..%2fsecret", "%2e%2e%2fsecret", "..%5Csecret", "%2Fetc%2Fpasswd", "stray", "..%00", "x%00.tar.gz", ".", "..", "%2e%2e",
		"....%2F%2Fsecret", strings.Repeat("a", 10_000), "a%0d%0aX-Injected:%201", "weir%22%3B%20filename=%22x",
	} {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(conn, "GET /api/bundles/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", id)
		b, _ := io.ReadAll(conn)
		_ = conn.Close()
		head, body, _ := bytes.Cut(b, []byte("\r\n\r\n"))
		if bytes.Contains(body, []byte("root:")) || bytes.HasPrefix(body, []byte("secret")) || !bytes.HasPrefix(head, []byte("HTTP/1.1 4")) && !bytes.HasPrefix(head, []byte("HTTP/1.1 3")) {
			t.Errorf("%.60s: %.200s", id, b)
		}
		if bytes.Contains(head, []byte("X-Injected")) || bytes.Contains(head, []byte("attachment")) {
			t.Errorf("%.60s: %.300s", id, head)
		}
	}
}

func TestQueriesAreBounded(t *testing.T) {
	s := serve(t, "", "")
	c := s.client("127.0.0.1")
	f := func(path string, want int) {
		t.Helper()
		res, body := s.do(c, "GET", path, "")
		if res.StatusCode != want || len(body) > 1<<10 {
			t.Errorf("%.60s: %d and %d bytes, want %d", path, res.StatusCode, len(body), want)
		}
	}
	long := strings.Repeat("9", 20_000)
	for _, bad := range []string{long, "-1", "0", "10001", "1e3", "0x10", "9223372036854775808", "%00", "1%0d%0a"} {
		f("/api/connections?limit="+bad, 400)
		f("/api/channels?limit="+bad, 400)
		f("/api/channels/a/messages?limit="+bad, 400)
	}
	f("/api/connections?sort="+long, 400)
	f("/api/channels?sort=name%20desc", 400)
	f("/api/connections/"+long, 400)
	f("/api/connections/-1", 400)
	f("/debug/pprof/profile?seconds=301", 400)
	f("/debug/pprof/profile?seconds="+long, 400)
	f("/debug/pprof/trace?seconds=NaN", 400)
	f("/debug/pprof/trace?seconds=1e300", 400)
	f("/debug/pprof/heap?seconds=99999999", 400)
	f("/api/info?x="+strings.Repeat("x", 60_000), 431)
	if res, _ := s.do(c, "POST", "/api/publish", strings.Repeat("x", maxBody+1)); res.StatusCode != 413 {
		t.Errorf("a body that is too long: %d", res.StatusCode)
	}
	res, body := s.do(c, "POST", "/api/bundles?reason="+url.QueryEscape("a\r\nX-Injected: 1\x1b[2J"+strings.Repeat("é", 5000)), "")
	if res.StatusCode != 201 || len(body) > 4<<10 || res.Header.Get("X-Injected") != "" || strings.ContainsAny(body, "\x1b\r") {
		t.Errorf("a long reason: %d, %d bytes", res.StatusCode, len(body))
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	s := serve(t, rightToken, "")
	c := s.client("127.0.0.1")
	for _, path := range []string{"/", "/login", "/api/info", "/api/none", "/metrics", "/debug/pprof/", "/login.css"} {
		for _, how := range []string{"X-Nothing: 1", bearer(rightToken)} {
			res, _ := s.do(c, "GET", path, "", how)
			h := res.Header
			if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" ||
				!strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") || strings.Contains(h.Get("Content-Security-Policy"), "unsafe") {
				t.Errorf("%s %s: %v", path, how, h)
			}
		}
	}
}

func TestABodyMayNotTakeForEver(t *testing.T) {
	s := serve(t, rightToken, "", func(srv *Server) { srv.access.bodyTime = 300 * time.Millisecond })
	for _, path := range []string{"/login", "/api/publish", "/api/reload", "/nothing"} {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\ntoken=", path)
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.ReadAll(conn); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is still open", path)
		}
		_ = conn.Close()
	}
}
