package downstream_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// token is a new one each time, so that it has to be verified off the loop.
func token(t *testing.T, subject string) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": subject, "exp": time.Now().Add(time.Hour).Unix(), "jti": t.Name() + subject}).SignedString([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// identityEcho answers with the identity fields that a backend receives.
func identityEcho(t *testing.T) string {
	return backend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "user %q by %q authorization %q body %q", r.Header.Get("X-Weir-User"), r.Header.Get("X-Weir-Auth"), r.Header.Get("Authorization"), body)
	})
}

func TestRoutesAskForTokens(t *testing.T) {
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", Auth: policy.Auth{Required: true, APIKeys: true, Forward: true}}}}, identityEcho(t))
	f := func(fields, body string, status int, want string) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s", fields, len(body), body)
		w.Send(request + request) // a second one waits behind a verification
		for range 2 {
			res, got := w.Answer("POST")
			if res.StatusCode != status || !strings.Contains(got, want) {
				t.Errorf("%.60q: %d %q, want %d %q", fields, res.StatusCode, got, status, want)
			}
			if res.Close {
				return
			}
		}
	}
	f("", "hello", 401, "")
	f("Authorization: Bearer x\r\n", "hello", 401, "")
	f("Authorization: Bearer "+token(t, "ann")+"\r\n", "hello", 200, `user "ann" by "token" authorization "" body "hello"`)
	f("Authorization: Bearer "+token(t, "bob")+"\r\n", "", 200, `user "bob" by "token" authorization "" body ""`)
	f("Authorization: Bearer "+token(t, "cyd")+"\r\nX-Weir-User: root\r\n", strings.Repeat("x", 100_000), 200, `user "cyd"`)
	f("X-API-Key: "+testKey+"\r\n", "hello", 200, `user "test" by "api_key"`)
	f("X-API-Key: wrong\r\n", "hello", 401, "")
}

// A request without a body whose token had to be verified was treated as one with
// chunks: what followed on the connection went to the backend as it was, past every
// rule.
func TestARequestWithoutBodyHasNoneAfterItsToken(t *testing.T) {
	seen := make(chan string, 10)
	release := make(chan struct{}, 10)
	g := start(t, settings{routes: []policy.RouteConfig{
		{Cluster: "main", Auth: policy.Auth{Required: true}},
		{Path: "/hidden", Reply: policy.Reply{Status: 403}},
	}}, backend(t, func(_ http.ResponseWriter, r *http.Request) {
		seen <- r.Method + " " + r.URL.Path
		<-release
	}))
	const hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	for i, fields := range []string{"", "Content-Length: 0\r\n"} {
		w := g.dial()
		w.Send("GET / HTTP/1.1\r\nHost: a\r\n" + fields + "Authorization: Bearer " + token(t, fmt.Sprint(i)) + "\r\n\r\n")
		if got := <-seen; got != "GET /" {
			t.Errorf("the backend got %s", got)
		}
		w.Send(fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden))
		release <- struct{}{}
		if res, _ := w.Answer("GET"); res.StatusCode != 200 {
			t.Errorf("%d", res.StatusCode)
		}
		if res, _ := w.Answer("GET"); res.StatusCode != 400 { // chunks are no request
			t.Errorf("what follows: %d", res.StatusCode)
		}
		w = g.dial()
		w.Send("GET / HTTP/1.1\r\nHost: a\r\n" + fields + "Authorization: Bearer " + token(t, fmt.Sprint("again", i)) + "\r\n\r\n" + hidden)
		if got := <-seen; got != "GET /" {
			t.Errorf("the backend got %s", got)
		}
		release <- struct{}{}
		if res, _ := w.Answer("GET"); res.StatusCode != 200 {
			t.Errorf("pipelined: %d", res.StatusCode)
		}
		if res, _ := w.Answer("GET"); res.StatusCode != 403 {
			t.Errorf("pipelined behind it: %d", res.StatusCode)
		}
	}
	if len(seen) > 0 {
		t.Errorf("the backend got %s", <-seen)
	}
}

func TestABodyWaitsForItsTokenInPieces(t *testing.T) {
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", Auth: policy.Auth{Required: true}}}}, identityEcho(t))
	w := g.dial()
	w.Send("POST / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + token(t, "ann") + "\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe")
	w.Send("llo\r\n6\r\n world\r\n0\r\n\r\n")
	if res, got := w.Answer("POST"); res.StatusCode != 200 || !strings.Contains(got, `body "hello world"`) {
		t.Errorf("%d %q", res.StatusCode, got)
	}
}

func TestRoutesLimit(t *testing.T) {
	g := start(t, settings{routes: []policy.RouteConfig{
		{Path: "/few", Cluster: "main", Limits: policy.Limits{PerAddress: limit.Rate{PerSecond: 0.001, Burst: 2}}},
		{Path: "/one", Cluster: "main", Limits: policy.Limits{MaxConcurrent: 1}},
		{Path: "/far", Cluster: "main", Addresses: limit.Lists{Allow: []string{"192.0.2.0/24"}}},
	}}, backend(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") }))
	w := g.dial()
	f := func(path string, status int) *http.Response {
		t.Helper()
		w.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		res, _ := w.Answer("GET")
		if res.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, status)
		}
		return res
	}
	f("/few", 200)
	f("/few", 200)
	if res := f("/few", 429); res.Header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	f("/far", 403)
	for range 20 { // a place is given back each time
		f("/one", 200)
	}
}

func TestPlacesAreGivenBackHoweverItEnds(t *testing.T) {
	cut := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		if req, err := http.ReadRequest(w.R); err == nil && req.URL.Path == "/hang" {
			_, _ = io.Copy(io.Discard, w.R)
		} else if err == nil {
			w.TrySend("HTTP/1.1 200 OK\nContent-Length: 5\n\nab")
		}
	})
	g := start(t, settings{cluster: upstream.Config{Outlier: upstream.OutlierConfig{Enabled: setting.Off}, Breaker: upstream.BreakerConfig{Enabled: setting.Off}},
		routes: []policy.RouteConfig{
			{Path: "/reply", Reply: policy.Reply{Status: 200}, Limits: policy.Limits{MaxConcurrent: 1}},
			{Cluster: "main", Limits: policy.Limits{MaxConcurrent: 1, MaxBody: 10}},
		}}, cut)
	try := func(request string) int {
		w := g.dial()
		defer w.Close()
		_, _ = io.WriteString(w, request)
		res, err := http.ReadResponse(w.R, nil)
		if err != nil {
			return 0
		}
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	for _, request := range []string{
		"GET /reply HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /cut HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST /cut HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"POST /cut HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + strings.Repeat("x", 255),
		"POST /cut HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n",
	} {
		for range 3 {
			trial.Eventually(t, fmt.Sprintf("%.20q finds a place", request), func() bool { return try(request) != 503 })
		}
	}
	var w *wiretest.Conn
	trial.Eventually(t, "the place is taken", func() bool {
		if w != nil {
			_ = w.Close() // it found the place still taken by the try before
		}
		w = g.dial()
		w.Send("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")
		for range 20 {
			if try("GET /cut HTTP/1.1\r\nHost: a\r\n\r\n") == 503 {
				return true
			}
		}
		return false
	})
	_ = w.Close()
	trial.Eventually(t, "the place is free", func() bool { return try("GET /cut HTTP/1.1\r\nHost: a\r\n\r\n") == 200 })
}

func TestCORSIsAnsweredAtTheEdge(t *testing.T) {
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", CORS: policy.CORS{AllowedOrigins: []string{"https://app.example"}}}}}, identityEcho(t))
	w := g.dial()
	w.Send("OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: PUT\r\n\r\n")
	if res, _ := w.Answer("OPTIONS"); res.StatusCode != 204 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	w.Send("PUT / HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\nContent-Length: 0\r\n\r\n")
	if res, _ := w.Answer("PUT"); res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	w.Send("PUT / HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	if res, _ := w.Answer("PUT"); res.StatusCode != 400 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("a page cannot read its error: %d %v", res.StatusCode, res.Header)
	}
	if s := g.proxy.Stats().Clusters["main"]; s.Requests["2xx"] != 1 {
		t.Errorf("the backend saw the preflight: %+v", s)
	}
}

const document = `
openapi: 3.0.3
info: {title: test, version: "1"}
paths:
  /orders:
    post:
      requestBody:
        required: true
        content:
          application/json:
            schema:
              type: object
              required: [amount]
              properties: {amount: {type: integer}}
      responses: {"200": {description: fine}}
    get:
      parameters: [{name: page, in: query, schema: {type: integer}}]
      responses: {"200": {description: fine}}
`

func TestBodiesAreHeldAgainstADocument(t *testing.T) {
	file := filepath.Join(t.TempDir(), "api.yaml")
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", OpenAPI: policy.OpenAPI{File: file, MaxBody: 1000}}}}, identityEcho(t))
	f := func(head, body string, status int, want string) {
		t.Helper()
		w := g.dial()
		defer w.Close()
		w.Send(head + "\r\nHost: a\r\nContent-Type: application/json\r\n" + body)
		if strings.Contains(body, "Expect") && status == 200 {
			if got := w.Head(); got != "HTTP/1.1 100 Continue\r\n\r\n" {
				t.Errorf("the client receives %q", got)
			}
			w.Send(`{"amount":1}`)
		}
		res, got := w.Answer("POST")
		if res.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%s %q: %d %q, want %d %q", head, body, res.StatusCode, got, status, want)
		}
	}
	const post = "POST /orders HTTP/1.1"
	f(post, "Content-Length: 12\r\n\r\n{\"amount\":1}", 200, `body "{\"amount\":1}"`)
	f(post, "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"amo\r\n7\r\nunt\":1}\r\n0\r\n\r\n", 200, `body "{\"amount\":1}"`)
	f(post, "Content-Length: 12\r\nExpect: 100-continue\r\n\r\n", 200, `body "{\"amount\":1}"`)
	f(post, "Content-Length: 14\r\n\r\n{\"amount\":\"a\"}", 422, "")
	f(post, "Content-Length: 2\r\n\r\n{}", 422, "amount")
	f(post, "Content-Length: 2000\r\n\r\n", 413, "")
	f(post, "Transfer-Encoding: chunked\r\n\r\n7d0\r\n"+strings.Repeat(" ", 2000), 413, "")
	f("GET /orders?page=1 HTTP/1.1", "\r\n", 200, "")
	f("GET /orders?page=x HTTP/1.1", "\r\n", 400, "")
	f("DELETE /orders HTTP/1.1", "\r\n", 405, "")
}

const replyDocument = `
openapi: 3.0.3
info: {title: test, version: "1"}
paths:
  /{kind}:
    get:
      parameters: [{name: kind, in: path, required: true, schema: {type: string}}]
      responses:
        "200":
          description: fine
          content:
            application/json:
              schema: {type: object, required: [n], properties: {n: {type: integer}}}
            text/event-stream: {schema: {type: string}}
`

func TestRepliesAreHeldAgainstADocument(t *testing.T) {
	file := filepath.Join(t.TempDir(), "api.yaml")
	if err := os.WriteFile(file, []byte(replyDocument), 0o600); err != nil {
		t.Fatal(err)
	}
	long := `{"n":1,"pad":"` + strings.Repeat("x", 5000) + `"}`
	peer := wiretest.Peer(t, func(_ int, w *wiretest.Conn) {
		for {
			req, _, ok := w.Request()
			if !ok {
				return
			}
			body, kind := `{"n":1}`, "application/json"
			switch req.URL.Path {
			case "/bad":
				body = `{"n":"one"}`
			case "/long":
				body = long
			case "/cut":
				w.TrySend("HTTP/1.1 200 OK\nContent-Type: application/json\nContent-Length: 100\n\n{")
				return
			case "/events":
				body, kind = "data: x\n\n", "text/event-stream"
			}
			if req.URL.Path == "/chunked" {
				w.TrySend(fmt.Sprintf("HTTP/1.1 200 OK\nContent-Type: %s\nTransfer-Encoding: chunked\n\n3\n%s\n%x\n%s\n0\n\n", kind, body[:3], len(body)-3, body[3:]))
				continue
			}
			w.TrySend(fmt.Sprintf("HTTP/1.1 200 OK\nContent-Type: %s\nContent-Length: %d\n\n", kind, len(wiretest.CRLF(body))) + body)
		}
	})
	g := start(t, settings{routes: []policy.RouteConfig{{Cluster: "main", OpenAPI: policy.OpenAPI{File: file, ValidateRequests: setting.Off, ValidateResponses: true, MaxBody: 1000}}}}, peer)
	w := g.dial()
	f := func(path string, status int, want string) {
		t.Helper()
		w.Send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		if res, got := w.Answer("GET"); res.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%s: %d %.100q, want %d %.100q", path, res.StatusCode, got, status, want)
		}
	}
	for range 2 {
		f("/good", 200, `{"n":1}`)
		f("/chunked", 200, `{"n":1}`)
		f("/bad", 502, "not what it should be")
		f("/long", 200, long) // not validated, and whole
		f("/cut", 502, "incomplete")
		f("/events", 200, "data: x")
	}
}
