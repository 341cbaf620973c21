package fronts

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// A way is a version of HTTP in which a gateway is spoken to.
type way struct {
	name string
	addr string
	h2   bool
}

// ways starts a gateway with cfg, for both versions.
func ways(t *testing.T, cfg config.Config) []way {
	t.Helper()
	ours := loopsWith(t, func(c *config.Config) {
		c.Routes, c.Clusters, c.Trusted = cfg.Routes, cfg.Clusters, cfg.Trusted
		c.Namespaces[0].Anonymous = true
	})
	return []way{{"HTTP/1.1", ours, false}, {"HTTP/2", ours, true}}
}

// an answer to send.
type answer struct {
	status   int
	header   http.Header
	body     string
	interims int
}

// got is what the echoing backend saw.
func (a *answer) got(t *testing.T) (r struct {
	Method, Target string
	Header         http.Header
},
) {
	t.Helper()
	if a.status != 200 || json.Unmarshal([]byte(a.body), &r) != nil {
		t.Errorf("the request did not come to the backend: %d %s", a.status, a.body)
	}
	return r
}

// send sends a request with fields, "Name: value" each, in their order.
func (w way) send(t *testing.T, method, target string, fields ...string) (a answer) {
	t.Helper()
	if w.h2 {
		return w.send2(t, method, target, fields)
	}
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(trial.Patience))
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: site.example\r\n%s\r\n", method, target, strings.Join(append(fields, ""), "\r\n"))
	for r := bufio.NewReader(c); ; a.interims++ {
		res, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%s: %s %s %q: %v", w.name, method, target, fields, err)
		}
		if res.StatusCode >= 200 {
			b, _ := io.ReadAll(res.Body)
			a.status, a.header, a.body = res.StatusCode, res.Header, string(b)
			return a
		}
	}
}

func (w way) send2(t *testing.T, method, target string, fields []string) (a answer) {
	t.Helper()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p}
	defer tr.CloseIdleConnections()
	path, query, _ := strings.Cut(target, "?")
	req := &http.Request{Method: method, URL: &url.URL{Scheme: "http", Host: w.addr, Path: path, RawQuery: query}, Host: "site.example", Header: http.Header{}}
	if target == "*" {
		req.URL.Path, req.URL.Opaque = "", "*"
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Add(name, value)
	}
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { a.interims++; return nil }})
	res, err := tr.RoundTrip(req.WithContext(ctx))
	if err != nil {
		t.Fatalf("%s: %s %s %q: %v", w.name, method, target, fields, err)
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	a.status, a.header, a.body = res.StatusCode, res.Header, string(b)
	return a
}

// echo is a backend that answers with the whole head it got. seen counts its requests.
func echo(t *testing.T) (addr string, seen *atomic.Int64) {
	t.Helper()
	seen = &atomic.Int64{}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		w.Header().Add("Set-Cookie", "weir_admin=of-the-backend; Path=/")
		w.Header().Add("Set-Cookie", "mine=1")
		_ = json.NewEncoder(w).Encode(map[string]any{"Method": r.Method, "Target": r.RequestURI, "Header": r.Header}) // the proxy may be gone
	}))
	t.Cleanup(ts.Close)
	return strings.TrimPrefix(ts.URL, "http://"), seen
}

func everything(to string, more ...policy.RouteConfig) config.Config {
	var cfg config.Config
	cfg.Routes, cfg.Clusters = routes(to)
	cfg.Routes = append(cfg.Routes, more...)
	return cfg
}

func TestRepeatedFieldsAreRefused(t *testing.T) {
	to, seen := echo(t)
	for _, w := range ways(t, everything(to)) {
		for _, name := range []string{
			"Origin", "Authorization", "Proxy-Authorization", "X-API-Key", "Last-Event-ID", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Cookie", "Content-Type",
			"Idempotency-Key", "Max-Forwards", "Access-Control-Request-Method",
		} {
			if name == "Cookie" && w.h2 {
				continue // RFC 9113 §8.2.3: it may be split
			}
			for _, target := range []string{"/x", "/sse?channel=a", "/healthz"} {
				before := seen.Load()
				a := w.send(t, "GET", target, name+": 1", strings.ToLower(name)+": 2")
				if a.status != 400 || !strings.Contains(a.body, "repeated") || seen.Load() != before {
					t.Errorf("%s: two %s for %s: %d %s", w.name, name, target, a.status, a.body)
				}
			}
		}
		if a := w.send(t, "GET", "/x", "Accept: a", "Accept: b", "X-Own: 1", "X-Own: 2"); len(a.got(t).Header["X-Own"]) != 2 {
			t.Errorf("%s: lists over several lines: %d %s", w.name, a.status, a.body)
		}
	}
}

func TestTheAdminCookieReachesNoBackend(t *testing.T) {
	to, _ := echo(t)
	for _, w := range ways(t, everything(to)) {
		f := func(sent, want string) {
			t.Helper()
			a := w.send(t, "GET", "/x", "Cookie: "+sent)
			if got := a.got(t).Header.Get("Cookie"); got != want {
				t.Errorf("%s: of %q the backend gets %q, want %q", w.name, sent, got, want)
			}
			if set := a.header.Values("Set-Cookie"); !slices.Equal(set, []string{"mine=1"}) {
				t.Errorf("%s: the client gets %q", w.name, set)
			}
		}
		f("a=1; weir_admin=ABCDEFGHIJKLMNOPQRSTUVWXYZ; b=2", "a=1; b=2")
		f("weir_admin=ABCDEFGHIJKLMNOPQRSTUVWXYZ", "")
		f("weir_admin=1;weir_admin=2; c=weir_admin", "c=weir_admin")
		f("my_weir_admin=1; weir_admins=2", "my_weir_admin=1; weir_admins=2")
	}
}

func TestTraceIsRefusedUnlessARouteNamesIt(t *testing.T) {
	to, seen := echo(t)
	cfg := everything(to, policy.RouteConfig{Path: "/trace/*", Methods: []string{"GET", "TRACE"}, Cluster: "b"}, policy.RouteConfig{Path: "/fixed", Reply: policy.Reply{Status: 200}})
	secrets := []string{"Authorization: Bearer canary-1", "Cookie: a=canary-2", "X-API-Key: canary-3", "X-Vault-Token: canary-4", "X-Plain: stays"}
	for _, w := range ways(t, cfg) {
		for _, target := range []string{"/x", "/fixed"} {
			before := seen.Load()
			if a := w.send(t, "TRACE", target, secrets...); a.status != 405 || !strings.Contains(a.header.Get("Allow"), "GET") || strings.Contains(a.header.Get("Allow"), "TRACE") ||
				strings.Contains(a.body, "canary") || seen.Load() != before {
				t.Errorf("%s: TRACE %s: %d %v %s", w.name, target, a.status, a.header, a.body)
			}
		}
		f := func(forwards, want string) {
			t.Helper()
			a := w.send(t, "TRACE", "/trace/a?token=canary-5&b=c", append(secrets, "Max-Forwards: "+forwards)...)
			if strings.Contains(a.body, "canary") || !strings.Contains(a.body, "stays") || !strings.Contains(a.body, "b=c") {
				t.Errorf("%s: TRACE shows %s", w.name, a.body)
			}
			if got := a.got(t); got.Method != "TRACE" || got.Header.Get("Max-Forwards") != want {
				t.Errorf("%s: Max-Forwards: %s is forwarded as %q", w.name, forwards, got.Header.Get("Max-Forwards"))
			}
		}
		f("1", "0")
		f("10", "9")
		f("99999999999999999999999999", "255")
		before := seen.Load()
		a := w.send(t, "TRACE", "/trace/a?token=canary-5&b=c", append(secrets, "Max-Forwards: 0")...)
		if a.status != 200 || a.header.Get("Content-Type") != "message/http" || !strings.HasPrefix(a.body, "TRACE /trace/a?token=[redacted]&b=c HTTP/") ||
			strings.Contains(a.body, "canary") || !strings.Contains(strings.ToLower(a.body), "x-plain: stays") {
			t.Errorf("%s: the last hop answers %d %v %s", w.name, a.status, a.header, a.body)
		}
		for _, bad := range []string{"-1", "1 2", "0x1", "1.5"} {
			if a := w.send(t, "TRACE", "/trace/a", "Max-Forwards: "+bad); a.status != 400 {
				t.Errorf("%s: Max-Forwards: %s: %d", w.name, bad, a.status)
			}
		}
		if seen.Load() != before {
			t.Errorf("%s: some of these came to the backend", w.name)
		}
	}
}

func TestOptionsCountsHops(t *testing.T) {
	to, seen := echo(t)
	cfg := everything(to, policy.RouteConfig{Path: "/some", Methods: []string{"GET", "OPTIONS"}, Cluster: "b"})
	for _, w := range ways(t, cfg) {
		if a := w.send(t, "OPTIONS", "/x", "Max-Forwards: 3"); a.got(t).Header.Get("Max-Forwards") != "2" {
			t.Errorf("%s: %s", w.name, a.body)
		}
		if a := w.send(t, "GET", "/x", "Max-Forwards: 0"); a.got(t).Header.Get("Max-Forwards") != "0" {
			t.Errorf("%s: of a GET it counts for nothing: %s", w.name, a.body)
		}
		before := seen.Load()
		f := func(target, allow string) {
			t.Helper()
			a := w.send(t, "OPTIONS", target, "Max-Forwards: 0")
			if a.status != 204 || a.header.Get("Allow") != allow || a.body != "" {
				t.Errorf("%s: OPTIONS %s: %d %v %s", w.name, target, a.status, a.header, a.body)
			}
		}
		f("/x", policy.UsualMethods)
		f("/some", "GET, OPTIONS")
		f("*", policy.UsualMethods)
		if a := w.send(t, "OPTIONS", "*"); a.status != 204 || a.header.Get("Allow") != policy.UsualMethods {
			t.Errorf("%s: OPTIONS *: %d %v", w.name, a.status, a.header)
		}
		if a := w.send(t, "GET", "*"); a.status != 400 {
			t.Errorf("%s: GET *: %d", w.name, a.status)
		}
		if seen.Load() != before {
			t.Errorf("%s: some of these came to the backend", w.name)
		}
	}
}

// talkative is a backend that sends so many 103 before its answer as the path says.
func talkative(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				var n int
				_, _ = fmt.Sscanf(req.URL.Path, "/%d", &n)
				var b bytes.Buffer
				b.WriteString(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n", n))
				b.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
				_, _ = c.Write(b.Bytes())
			}()
		}
	}()
	return l.Addr().String()
}

func TestInterimRepliesAreBounded(t *testing.T) {
	for _, w := range ways(t, everything(talkative(t))) {
		if a := w.send(t, "GET", "/32"); a.status != 200 || a.interims != 32 {
			t.Errorf("%s: 32 interim replies: %d after %d", w.name, a.status, a.interims)
		}
		if a := w.send(t, "GET", "/33"); a.status != 502 || a.interims > 32 {
			t.Errorf("%s: 33 interim replies: %d after %d", w.name, a.status, a.interims)
		}
		if a := w.send(t, "GET", "/20000"); a.status != 502 || a.interims > 32 {
			t.Errorf("%s: 20,000 interim replies: %d after %d", w.name, a.status, a.interims)
		}
	}
}

// addressFields are what CDNs and load balancers report to backends about the client.
var addressFields = []string{
	"CF-Connecting-IP", "CF-Connecting-IPv6", "True-Client-IP", "X-Real-IP", "X-Client-IP", "Fastly-Client-IP", "X-Cluster-Client-IP", "Fly-Client-IP",
	"X-Envoy-External-Address", "X-Envoy-Internal", "X-Forwarded-Client-Cert", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded", "X-Original-Forwarded-For",
	"X-Azure-ClientIP", "X-Vercel-Forwarded-For", "Client-IP", "X-Remote-IP", "X-ProxyUser-Ip",
}

func TestAddressesOfClientsComeFromTrustedProxiesOnly(t *testing.T) {
	to, _ := echo(t)
	var fields []string
	for _, name := range addressFields {
		fields = append(fields, name+": 203.0.113.7")
	}
	fields = append(fields, "Client-Cert: :AAAA:", "X-SSL-Client-Verify: SUCCESS", "X-Plain: stays")
	f := func(trusted limit.Trusted, want []string) {
		t.Helper()
		cfg := everything(to)
		cfg.Trusted = trusted
		for _, w := range ways(t, cfg) {
			a := w.send(t, "GET", "/x", fields...)
			h := a.got(t).Header
			for _, field := range fields {
				name, _, _ := strings.Cut(field, ":")
				if has := h.Get(name) != ""; has != (slices.Contains(want, name) || name == "X-Plain") {
					t.Errorf("%s, %+v: the backend gets %s: %q", w.name, trusted, name, h.Get(name))
				}
			}
		}
	}
	f(limit.Trusted{}, nil)
	f(limit.Trusted{Proxies: []string{"127.0.0.1"}}, nil)
	f(limit.Trusted{Proxies: []string{"127.0.0.1"}, Pass: []string{"CF-Connecting-IP", "x-forwarded-client-cert"}}, []string{"CF-Connecting-IP", "X-Forwarded-Client-Cert"})
	f(limit.Trusted{Proxies: []string{"192.0.2.1"}, Pass: []string{"CF-Connecting-IP"}}, nil)
}
