package conformance

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// whoami answers with what a request says of who made it, and of where it came from.
func whoami(t testing.TB) string {
	return stage(t, func(_ int, c net.Conn) {
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			b := fmt.Sprintf("%s|%s|%s|%s|%s|%v", req.URL.Path, strings.Join(req.Header.Values("X-Weir-User"), ","), strings.Join(req.Header.Values("X-Forwarded-For"), ","),
				strings.Join(req.Header.Values("Forwarded"), ","), req.Header.Get("Authorization"), req.Trailer)
			for name := range req.Header {
				if l := strings.ToLower(name); strings.Contains(l, "user") && name != "X-Weir-User" && name != "User-Agent" || l == "x-real-ip" || strings.Contains(l, "_") {
					b += "|" + name
				}
			}
			if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(b), b); err != nil {
				return
			}
		}
	})
}

// TestClientsCannotImpersonateOthers has clients of several identities take turns on the same
// connections, pipelined and over HTTP/2, each saying in all ways that it is root.
func TestClientsCannotImpersonateOthers(t *testing.T) {
	s := judge.New(t, judge.Options{Memory: true, Config: forwardAll(whoami(t), map[string]any{
		"log": map[string]any{"level": "info"},
		"routes": []any{
			map[string]any{"path": "/who/*", "cluster": "b", "auth": map[string]any{"forward": true}},
			map[string]any{"path": "/must/*", "cluster": "b", "auth": map[string]any{"required": true, "forward": true}},
			map[string]any{"path": "/open/*", "cluster": "b"},
		}})})
	bearer := func(sub string) string {
		return judge.Token(judge.Claims{"sub": sub, "exp": time.Now().Add(time.Hour).Unix()})
	}
	const lies = "X-Weir-User: root\r\nx-weir-user: root\r\nX_Weir_User: root\r\nX.Weir.User: root\r\nX-Weir-Scopes: root\r\nX-Forwarded-For: 6.6.6.6\r\n" +
		"Forwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nConnection: X-Weir-User, X-Forwarded-For\r\n"
	want := func(path, sub string) string { return fmt.Sprintf("%s|%s|127.0.0.1|||map[]", path, sub) }
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(3, uint64(n)))
			c, err := net.Dial("tcp", s.Public)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			r := bufio.NewReader(c)
			for round := range 40 {
				var raw strings.Builder
				var expected []string
				for k := range 1 + dice.IntN(4) {
					sub := fmt.Sprintf("u%d-%d", n, dice.IntN(3))
					if dice.IntN(3) == 0 {
						sub = ""
					}
					path := fmt.Sprintf("/who/%d.%d.%d", n, round, k)
					token := ""
					switch {
					case sub == "":
					case dice.IntN(2) == 0:
						token = "Authorization: Bearer " + bearer(sub) + "\r\n"
					}
					if sub != "" && token == "" {
						fmt.Fprintf(&raw, "GET %s?token=%s HTTP/1.1\r\nHost: a\r\n%s\r\n", path, bearer(sub), lies)
					} else {
						fmt.Fprintf(&raw, "POST %s HTTP/1.1\r\nHost: a\r\n%s%sTrailer: X-Weir-User\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Weir-User: root\r\n\r\n", path, token, lies)
					}
					expected = append(expected, want(path, sub))
				}
				if _, err := io.WriteString(c, raw.String()); err != nil {
					t.Error(err)
					return
				}
				for _, want := range expected {
					res, err := http.ReadResponse(r, nil)
					if err != nil {
						t.Error(err)
						return
					}
					if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(b) != want {
						t.Errorf("%d %q, want %q", res.StatusCode, b, want)
						return
					}
				}
			}
		})
	}
	c := http2Client()
	defer c.CloseIdleConnections()
	for n := range 40 {
		all.Go(func() {
			sub := []string{"", "h0", "h1", "h2"}[n%4]
			path := fmt.Sprintf("/who/h%d", n)
			req, _ := http.NewRequest("POST", "http://"+s.Public+path, io.MultiReader(strings.NewReader("x")))
			for line := range strings.SplitSeq(strings.TrimSuffix(lies, "\r\n"), "\r\n") {
				if name, value, _ := strings.Cut(line, ": "); name != "Connection" {
					req.Header.Add(name, value)
				}
			}
			req.Trailer = http.Header{"X-Weir-User": {"root"}}
			if sub != "" {
				req.Header.Set("Authorization", "Bearer "+bearer(sub))
			}
			res, err := c.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if b, _ := io.ReadAll(res.Body); string(b) != want(path, sub) {
				t.Errorf("HTTP/2: %d %q, want %q", res.StatusCode, b, want(path, sub))
			}
		})
	}
	all.Wait()

	f := func(name, fields string, status int) {
		t.Helper()
		got := said(t, s.Public, "GET /must/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"+fields+"\r\n", 3*time.Second)
		if !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", status)) {
			t.Errorf("%s: %.200q, want %d", name, got, status)
		}
		if strings.Contains(got, "root") {
			t.Errorf("%s: %q", name, got)
		}
	}
	good := bearer("me")
	f("a token", "Authorization: Bearer "+good+"\r\n", 200)
	f("nothing", "", 401)
	f("what a client says of itself", lies, 401)
	f("two tokens", "Authorization: Bearer "+good+"\r\nAuthorization: Bearer x\r\n", 400)
	f("alg none", "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.\r\n", 401)
	f("another key", "Authorization: Bearer "+judge.Sign(map[string]any{"alg": "HS256"}, judge.Claims{"sub": "root"}, "x")+"\r\n", 401)
	f("expired", "Authorization: Bearer "+judge.Token(judge.Claims{"sub": "root", "exp": 1})+"\r\n", 401)
	f("a cookie of another page", "Origin: https://evil.example\r\nCookie: weir_token="+good+"\r\n", 401)
	f("listed by Connection", "Connection: Authorization\r\n", 401)
}

const shopDocument = `openapi: 3.0.3
info: {title: shop, version: "1"}
paths:
  /shop/order:
    post:
      parameters: [{name: limit, in: query, schema: {type: integer, maximum: 10}}]
      requestBody:
        required: true
        content:
          application/json:
            schema: {type: object, required: [n], additionalProperties: false, properties: {n: {type: integer, maximum: 10}}}
      responses: {"200": {description: ok}}
`

// TestDocumentHasNoWayAround sends what validator and backend may read differently.
func TestDocumentHasNoWayAround(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(shopDocument), 0o600); err != nil {
		t.Fatal(err)
	}
	s := judge.New(t, judge.Options{Memory: true, Config: forwardAll(whoami(t), map[string]any{"routes": []any{
		map[string]any{"path": "/*", "cluster": "b", "openapi": map[string]any{"file": file}}}})})
	c := http2Client()
	defer c.CloseIdleConnections()
	f := func(name, target, fields, body string, passes bool) {
		t.Helper()
		got := said(t, s.Public, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s", target, fields, len(body), body), 3*time.Second)
		if passes != strings.HasPrefix(got, "HTTP/1.1 200 ") {
			t.Errorf("%s: %.300q", name, got)
		}
		req, _ := http.NewRequest("POST", "http://"+s.Public+target, strings.NewReader(body))
		for line := range strings.SplitSeq(strings.TrimSuffix(fields, "\r\n"), "\r\n") {
			if field, value, ok := strings.Cut(line, ": "); ok {
				req.Header.Add(field, value)
			}
		}
		res, err := c.Do(req)
		if err != nil {
			t.Errorf("%s over HTTP/2: %v", name, err)
			return
		}
		_ = res.Body.Close()
		if passes != (res.StatusCode == 200) {
			t.Errorf("%s over HTTP/2: %d", name, res.StatusCode)
		}
	}
	const path, typed = "/shop/order", "Content-Type: application/json\r\n"
	f("a good one", path+"?limit=5", typed, `{"n":1}`, true)
	f("a bad one", path, typed, `{"n":100}`, false)
	f("no type", path, "", `{"n":100}`, false)
	f("another type", path, "Content-Type: text/plain\r\n", `{"n":100}`, false)
	f("two types", path, typed+"Content-Type: application/x-www-form-urlencoded\r\n", `{"n":1}`, false)
	f("two types the other way", path, "Content-Type: text/plain\r\n"+typed, `{"n":1}`, false)
	f("a list of types", path, "Content-Type: application/json, text/plain\r\n", `{"n":1}`, false)
	f("a name twice", path, typed, `{"n":1,"n":100}`, false)
	f("two values", path, typed, `{"n":1}{"n":100}`, false)
	f("a coding", path, typed+"Content-Encoding: gzip\r\n", `{"n":1}`, false)
	f("no body", path, typed, ``, false)
	f("a parameter twice", path+"?limit=5&limit=500", typed, `{"n":1}`, false)
	f("a parameter twice the other way", path+"?limit=500&limit=5", typed, `{"n":1}`, false)
	f("a parameter encoded", path+"?%6cimit=500", typed, `{"n":1}`, false)
	f("another spelling of the path", "/shop/./order", typed, `{"n":100}`, false)
	f("a slash more", path+"/", typed, `{"n":100}`, false)
}
