package upstreams

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// recordingBackend is a backend that remembers the requests it got.
type recordingBackend struct {
	address   string
	requested atomic.Int64
	last      atomic.Pointer[http.Header]
}

func newRecordingBackend(t *testing.T) *recordingBackend {
	t.Helper()
	b := &recordingBackend{}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requested.Add(1)
		h := r.Header.Clone()
		b.last.Store(&h)
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("Access-Control-Allow-Origin", "*") // what a route's own CORS replaces
		_, _ = io.WriteString(w, whole)
	}))
	t.Cleanup(ts.Close)
	b.address = strings.TrimPrefix(ts.URL, "http://")
	return b
}

// governed starts a gateway with these routes, all before one backend.
func governed(t *testing.T, more map[string]any, routes ...map[string]any) (*judge.Server, *recordingBackend) {
	t.Helper()
	b := newRecordingBackend(t)
	var all []any
	for _, r := range routes {
		if r["reply"] == nil {
			r["cluster"] = "b"
		}
		all = append(all, r)
	}
	config := map[string]any{"routes": all, "clusters": []any{map[string]any{"name": "b", "peers": []any{map[string]any{"address": b.address}}}}}
	for k, v := range more {
		config[k] = v
	}
	return judge.New(t, judge.Options{Memory: true, Config: config}), b
}

// do sends a request with fields, given as alternating names and values, and reads the
// answer.
func do(t *testing.T, g *judge.Server, method, path, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+g.Public+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := judge.HTTP.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return res, string(b)
}

func bearer(claims judge.Claims) string {
	if claims["exp"] == nil {
		claims["exp"] = time.Now().Add(time.Hour).Unix()
	}
	return "Bearer " + judge.Token(claims)
}

// TestATenantHas500PerSecond sends pipelined requests faster than that with one
// token, and some with another.
func TestATenantHas500PerSecond(t *testing.T) {
	t.Parallel()
	g, _ := governed(t, nil, map[string]any{"path": "/x", "auth": map[string]any{"required": true}, "reply": map[string]any{"status": 204}})
	const n = 3000
	ann, bob := bearer(judge.Claims{"sub": "ann"}), bearer(judge.Claims{"sub": "bob"})
	do(t, g, "GET", "/x", "", "Authorization", ann) // a token that is known is not verified again
	do(t, g, "GET", "/x", "", "Authorization", bob)
	began := time.Now()
	statuses, retry := pipeline(t, g.Public, n, "Authorization: "+ann+"\r\n")
	took := time.Since(began).Seconds()
	t.Logf("%d requests in %.2fs: %v", n, took, statuses)
	if most := 500 + 500*(took+0.1); statuses[204] < 499 || float64(statuses[204]) > most {
		t.Errorf("%d requests passed, want 500 to %.0f", statuses[204], most)
	}
	if statuses[204]+statuses[429] != n {
		t.Errorf("statuses are %v", statuses)
	}
	if statuses[429] > 0 && retry < 1 {
		t.Errorf("Retry-After is %d", retry)
	}
	if took < 3 && statuses[429] == 0 {
		t.Error("nothing was limited")
	}
	if got := g.Series("weir_requests_limited_total", `scope="tenant"`); int(got) != statuses[429] {
		t.Errorf("weir_requests_limited_total is %v, want %d", got, statuses[429])
	}
	if statuses, _ := pipeline(t, g.Public, 100, "Authorization: "+bob+"\r\n"); statuses[204] != 100 {
		t.Errorf("another tenant: %v", statuses)
	}
}

// pipeline sends n requests at once and counts the answers' statuses.
func pipeline(t *testing.T, addr string, n int, fields string) (statuses map[int]int, retryAfter int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	sent := make(chan error, 1)
	go func() {
		request := "GET /x HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n"
		var err error
		for i := 0; i < n && err == nil; i += 50 {
			_, err = io.WriteString(c, strings.Repeat(request, min(50, n-i)))
		}
		sent <- err
	}()
	statuses = map[int]int{}
	r := bufio.NewReader(c)
	for range n {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("after %v: %v", statuses, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		statuses[res.StatusCode]++
		if res.StatusCode == 429 {
			retryAfter, _ = strconv.Atoi(res.Header.Get("Retry-After"))
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	return statuses, retryAfter
}

func TestWhatARouteRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	document := filepath.Join(dir, "api.yaml")
	if err := os.WriteFile(document, []byte(orders), 0o600); err != nil {
		t.Fatal(err)
	}
	g, b := governed(t, nil,
		map[string]any{"path": "/open"},
		map[string]any{"path": "/few", "limits": map[string]any{"per_address": map[string]any{"per_second": 0.01, "burst": 3}}},
		map[string]any{"path": "/small", "limits": map[string]any{"max_body": 1000}},
		map[string]any{"path": "/far", "addresses": map[string]any{"allow": []string{"192.0.2.0/24"}}},
		map[string]any{"path": "/near", "addresses": map[string]any{"deny": []string{"127.0.0.0/8"}}},
		map[string]any{"path": "/signed", "auth": map[string]any{"required": true}},
		map[string]any{"path": "/keys", "auth": map[string]any{"required": true, "api_keys": true}},
		map[string]any{"path": "/admins", "auth": map[string]any{"scopes": []string{"admin"}}},
		map[string]any{"path": "/eu", "auth": map[string]any{"claims": map[string]any{"region": "eu"}}},
		map[string]any{"path": "/reads", "methods": []string{"GET"}},
		map[string]any{"path": "/orders", "openapi": map[string]any{"file": document}},
	)
	f := func(method, path, body string, status int, want string, fields ...string) {
		t.Helper()
		before := b.requested.Load()
		res, got := do(t, g, method, path, body, fields...)
		if res.StatusCode != status || !strings.Contains(got, want) {
			t.Errorf("%s %s %.40q: %d %.200s, want %d with %q", method, path, body, res.StatusCode, got, status, want)
		}
		if passed := b.requested.Load() - before; (status == 200) != (passed == 1) {
			t.Errorf("%s %s %.40q: the backend was asked %d times", method, path, body, passed)
		}
		if (status == 429) != (res.Header.Get("Retry-After") != "") {
			t.Errorf("%s %s: %d and Retry-After %q", method, path, status, res.Header.Get("Retry-After"))
		}
	}
	f("GET", "/open", "", 200, "")
	f("GET", "/nowhere", "", 404, "route")
	for range 3 {
		f("GET", "/few", "", 200, "")
	}
	f("GET", "/few", "", 429, "address")

	f("POST", "/small", strings.Repeat("x", 1000), 200, "")
	f("POST", "/small", strings.Repeat("x", 1001), 413, "too large")
	f("POST", "/open", strings.Repeat("x", 2<<20), 200, "")
	announced(t, g, 2<<20+1, 413)

	f("GET", "/far", "", 403, "address")
	f("GET", "/near", "", 403, "address")
	f("GET", "/far", "", 403, "address", "X-Forwarded-For", "192.0.2.1") // no peer is trusted to say that
	f("POST", "/reads", "x", 405, "method")

	f("GET", "/signed", "", 401, "")
	f("GET", "/signed", "", 401, "", "Authorization", "Bearer nonsense")
	f("GET", "/signed", "", 401, "", "Authorization", bearer(judge.Claims{"sub": "ann", "exp": time.Now().Add(-time.Hour).Unix()}))
	f("GET", "/signed", "", 401, "", "Authorization", "Bearer "+judge.Sign(map[string]any{"alg": "none"}, judge.Claims{"sub": "ann"}, ""))
	f("GET", "/signed", "", 401, "", "X-API-Key", judge.APIKey)
	f("GET", "/signed", "", 200, "", "Authorization", bearer(judge.Claims{"sub": "ann"}))
	f("GET", "/keys", "", 200, "", "X-API-Key", judge.APIKey)
	f("GET", "/keys", "", 401, "", "X-API-Key", judge.APIKey+"x")
	f("GET", "/admins", "", 401, "")
	f("GET", "/admins", "", 403, "", "Authorization", bearer(judge.Claims{"sub": "ann", "scope": "read write"}))
	f("GET", "/admins", "", 200, "", "Authorization", bearer(judge.Claims{"sub": "ann", "scope": "read admin"}))
	f("GET", "/eu", "", 403, "", "Authorization", bearer(judge.Claims{"sub": "ann", "region": "us"}))
	f("GET", "/eu", "", 200, "", "Authorization", bearer(judge.Claims{"sub": "ann", "region": "eu"}))

	const kind, js = "Content-Type", "application/json"
	f("POST", "/orders", `{"lines":[{"amount":1}]}`, 200, "", kind, js)
	f("POST", "/orders", `{"lines":[{"amount":1},{"amount":"two"}]}`, 422, "/lines/1/amount", kind, js)
	f("POST", "/orders", `{"lines":[{}]}`, 422, "amount", kind, js)
	f("POST", "/orders", `{"lines":`, 400, "", kind, js)
	f("GET", "/orders?page=1", "", 200, "")
	f("GET", "/orders?page=one", "", 400, "page")
	f("DELETE", "/orders", "", 405, "")
}

// announced reports that a body of n bytes is to come, and reads the answer before it
// does.
func announced(t *testing.T, g *judge.Server, n, status int) {
	t.Helper()
	c, err := net.Dial("tcp", g.Public)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(c, "POST /open HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", n); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != status {
		t.Errorf("a body of %d bytes: %v %v, want %d", n, res, err, status)
	}
}

const orders = `
openapi: 3.0.3
info: {title: orders, version: "1"}
paths:
  /orders:
    get:
      parameters: [{name: page, in: query, schema: {type: integer}}]
      responses: {"200": {description: fine}}
    post:
      requestBody:
        required: true
        content:
          application/json:
            schema:
              type: object
              required: [lines]
              properties:
                lines:
                  type: array
                  items: {type: object, required: [amount], properties: {amount: {type: integer}}}
      responses: {"200": {description: fine}}
`

func TestCORSIsAnsweredAtTheEdge(t *testing.T) {
	t.Parallel()
	g, b := governed(t, nil, map[string]any{"path": "/x", "auth": map[string]any{"required": true},
		"cors": map[string]any{"allowed_origins": []string{"https://app.example"}, "headers": []string{"authorization"}, "max_age": "5m", "credentials": true}})
	ask := func(method, origin string, fields ...string) *http.Response {
		t.Helper()
		res, _ := do(t, g, method, "/x", "", append(fields, "Origin", origin)...)
		return res
	}
	res := ask("OPTIONS", "https://app.example", "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization")
	h := res.Header
	if res.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Access-Control-Max-Age") != "300" ||
		!strings.Contains(strings.ToLower(h.Get("Access-Control-Allow-Headers")), "authorization") || h.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("the preflight: %d %v", res.StatusCode, h)
	}
	if res := ask("OPTIONS", "https://evil.example", "Access-Control-Request-Method", "GET"); res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin's preflight: %d %v", res.StatusCode, res.Header)
	}
	if n := b.requested.Load(); n != 0 {
		t.Errorf("the backend saw %d preflights", n)
	}
	token := bearer(judge.Claims{"sub": "ann"})
	if res := ask("GET", "https://app.example", "Authorization", token); res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" ||
		len(res.Header.Values("Access-Control-Allow-Origin")) != 1 {
		t.Errorf("the request: %d %v", res.StatusCode, res.Header)
	}
	if res := ask("GET", "https://evil.example", "Authorization", token); res.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin's request: %d %v", res.StatusCode, res.Header)
	}
	if res := ask("GET", "https://app.example"); res.StatusCode != 401 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("a refusal must be readable for the page: %d %v", res.StatusCode, res.Header)
	}
}

// TestTheAccessLogKeepsSecrets plants secrets wherever requests carry them, and
// wants none of them in the access log nor in the program's own, at level debug.
func TestTheAccessLogKeepsSecrets(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.log")
	g, b := governed(t, map[string]any{"access_log": map[string]any{"file": file}},
		map[string]any{"name": "plain", "path": "/plain"},
		map[string]any{"name": "signed", "path": "/signed", "auth": map[string]any{"required": true, "api_keys": true},
			"access_log": map[string]any{"headers": []string{"authorization", "cookie", "x-api-key", "user-agent"}, "redact": []string{"pin"}}},
		map[string]any{"name": "broken", "path": "/broken", "openapi": map[string]any{"file": writeOrders(t)}})
	token := judge.Token(judge.Claims{"sub": "ann", "exp": time.Now().Add(time.Hour).Unix()})
	const secret = "s3cr3t-do-not-write"
	all := func(path string) string {
		return path + "?a=1&token=" + secret + "&api_key=" + secret + "&access_token=" + secret + "&p%69n=" + secret + "&b=%22%0a\\"
	}
	fields := []string{"Cookie", "session=" + secret, "X-API-Key", secret, "Authorization", "Bearer " + secret, "User-Agent", "he said \"hi\"\\"}
	do(t, g, "GET", "/plain?token="+secret, "", fields...)
	do(t, g, "GET", all("/signed"), "", fields...)
	do(t, g, "GET", "/signed?code="+secret, "", "Authorization", "Bearer "+token, "Cookie", "session="+secret)
	do(t, g, "GET", "/signed?x=1", "", "X-API-Key", judge.APIKey)
	do(t, g, "POST", "/broken?password="+secret, `{"password":"`+secret+`"`, "Content-Type", "application/json")
	do(t, g, "GET", "/nowhere?token="+secret, "", fields...)

	var lines []string
	judge.Eventually(t, 10*time.Second, "six lines", func() bool {
		text, _ := os.ReadFile(file)
		lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		return len(lines) >= 6
	})
	if len(lines) != 6 {
		t.Errorf("6 requests, %d lines", len(lines))
	}
	byRoute := map[string][]map[string]any{}
	for _, line := range lines {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Errorf("%v: %s", err, line)
			continue
		}
		name, _ := v["route"].(string)
		byRoute[name] = append(byRoute[name], v)
	}
	for what, text := range map[string]string{"access log": strings.Join(lines, "\n"), "program's log": g.Log()} {
		for name, s := range map[string]string{"a planted secret": secret, "a token": token, "a token's signature": token[strings.LastIndexByte(token, '.'):], "the API key": judge.APIKey} {
			if i := strings.Index(text, s); i >= 0 {
				t.Errorf("the %s has %s: %s", what, name, text[max(0, i-200):min(len(text), i+60)])
			}
		}
	}
	if len(byRoute["signed"]) != 3 {
		t.Fatalf("lines are %v", lines)
	}
	for i, want := range []struct {
		status float64
		sub    any
	}{{401, nil}, {200, "ann"}, {200, "judge"}} {
		l := byRoute["signed"][i]
		if l["status"] != want.status || l["sub"] != want.sub || l["method"] != "GET" || l["path"] != "/signed" || want.status == 200 && l["upstream"] != b.address {
			t.Errorf("line %v", l)
		}
	}
	if q, _ := byRoute["signed"][0]["query"].(string); !strings.Contains(q, "a=1") {
		t.Errorf("what is no secret is lost: %q", q)
	}
}

func writeOrders(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "api.yaml")
	if err := os.WriteFile(file, []byte(orders), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

var traceparent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-(0[0-3])$`)

func TestATraceIsPropagated(t *testing.T) {
	t.Parallel()
	g, b := governed(t, nil, map[string]any{"path": "/*"})
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	f := func(given, wantID, wantFlags, wantState string) {
		t.Helper()
		fields := []string{"tracestate", "vendor=1"}
		if given != "" {
			fields = append(fields, "traceparent", given)
		}
		do(t, g, "GET", "/x", "", fields...)
		h := *b.last.Load()
		m := traceparent.FindStringSubmatch(h.Get("traceparent"))
		if m == nil || len(h.Values("traceparent")) != 1 {
			t.Fatalf("%q: the backend got %q", given, h.Values("traceparent"))
		}
		if wantID != "" && m[1] != wantID || wantID == "" && (m[1] == id || m[1] == strings.Repeat("0", 32)) || m[2] == span || m[3] != wantFlags {
			t.Errorf("%q is forwarded as %q", given, m[0])
		}
		if got := h.Get("tracestate"); got != wantState {
			t.Errorf("%q: tracestate is %q, want %q", given, got, wantState)
		}
	}
	f("00-"+id+"-"+span+"-01", id, "01", "vendor=1")
	f("00-"+id+"-"+span+"-00", id, "00", "vendor=1")
	const sampledAndRandom = "03"
	f("", "", sampledAndRandom, "")                                           // a state without a parent is dropped
	f("00-"+strings.Repeat("0", 32)+"-"+span+"-01", "", sampledAndRandom, "") // Trace Context §3.2.2: not valid, start anew
	f("00-"+id+"-"+strings.Repeat("0", 16)+"-01", "", sampledAndRandom, "")
	f("ff-"+id+"-"+span+"-01", "", sampledAndRandom, "")
	f("nonsense", "", sampledAndRandom, "")
}

// TestIdentityIsForwardedAndCannotBeForged is about X-Weir- and forwarding fields.
func TestIdentityIsForwardedAndCannotBeForged(t *testing.T) {
	t.Parallel()
	g, b := governed(t, nil, map[string]any{"path": "/open"}, map[string]any{"path": "/who", "auth": map[string]any{"required": true, "forward": true}})
	lies := []string{"X-Weir-User", "root", "X-Weir-Auth", "token", "X-Forwarded-For", "192.0.2.7", "X-Forwarded-Host", "evil", "X-Real-IP", "192.0.2.7", "Forwarded", "for=192.0.2.7", "X_Weir_User", "root"}
	do(t, g, "GET", "/open", "", lies...)
	h := *b.last.Load()
	if text := fmt.Sprint(h); strings.Contains(text, "root") || strings.Contains(text, "192.0.2.7") || strings.Contains(text, "evil") || h.Get("X-Forwarded-For") != "127.0.0.1" {
		t.Errorf("the backend receives %v", h)
	}
	do(t, g, "GET", "/who", "", append(lies, "Authorization", bearer(judge.Claims{"sub": "ann", "scope": "a b"}))...)
	h = *b.last.Load()
	if h.Get("X-Weir-User") != "ann" || h.Get("X-Weir-Auth") != "token" || h.Get("Authorization") != "" || h.Get("X-Weir-Scopes") != "a b" {
		t.Errorf("the backend receives %v", h)
	}
}
