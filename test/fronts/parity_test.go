package fronts

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

const key = "X-API-Key: " + judge.APIKey

// The first argument of add is what the front on net/http does otherwise: it counts no
// request and no outcome at a backend (moved), logs no size of a request's body (logged),
// and words some refusals itself, records and holds nothing, and offers no WebSocket (saw).

func push() []row {
	var rows []row
	add := func(differs part, name string, do func(*client) string) {
		rows = append(rows, row{name: name, do: do, differs: differs})
	}
	add(moved, "healthz", one("GET", "/healthz", ""))
	add(moved, "readyz", one("GET", "/readyz", ""))
	add(moved, "HEAD of a built-in", one("HEAD", "/healthz", ""))
	add(saw|moved, "no such path", one("GET", "/nowhere", ""))
	add(moved, "OPTIONS", one("OPTIONS", "/api/publish", "", "Origin: https://a.example", "Access-Control-Request-Method: POST"))
	add(moved, "publish", one("POST", "/api/publish", `{"channel":"a","data":1}`, key))
	add(moved, "publish without a key", one("POST", "/api/publish", `{"channel":"a","data":1}`))
	add(moved, "publish with another key", one("POST", "/api/publish", `{"channel":"a","data":1}`, "X-API-Key: wrong"))
	add(moved, "publish what is no JSON", one("POST", "/api/publish", `{"channel":`, key))
	add(moved, "publish to no namespace", one("POST", "/api/publish", `{"channel":"nowhere:a","data":1}`, key))
	add(saw|moved, "publish too much", one("POST", "/api/publish", `{"channel":"a","data":"`+strings.Repeat("x", 2<<20)+`"}`, key))
	add(moved, "GET of the publish endpoint", one("GET", "/api/publish", "", key))
	add(moved, "broadcast", one("POST", "/api/broadcast", `{"channels":["a","b","nowhere:c"],"data":1}`, key))
	add(moved, "publish twice under one key", then(one("POST", "/api/publish", `{"channel":"a","data":1}`, key, "Idempotency-Key: k1"), one("POST", "/api/publish", `{"channel":"a","data":1}`, key, "Idempotency-Key: k1")))
	add(moved, "SSE", stream("/sse?channel=live", "data: ", publish("live")))
	add(moved, "SSE with history", then(one("POST", "/api/publish", `{"channel":"past","data":1}`, key), stream("/sse?channel=past", "data: ", nil, "Last-Event-ID: 0")))
	add(moved, "SSE from a position of another epoch", stream("/sse?channel=past", "gap", nil, "Last-Event-ID: AAAAAAAA-5"))
	add(moved, "SSE of no channel", one("GET", "/sse", ""))
	add(moved, "SSE of no namespace", one("GET", "/sse?channel=nowhere:a", ""))
	add(moved, "SSE of a namespace that is closed", one("GET", "/sse?channel=closed:a", ""))
	add(moved, "SSE with a token that is none", one("GET", "/sse?channel=a&token=nonsense", ""))
	add(moved, "SSE of a page that may not", one("GET", "/sse?channel=a", "", "Origin: https://evil.example"))
	add(moved, "SSE with a page's origin that may", stream("/sse?channel=o", "data: ", publish("o"), "Origin: https://a.example"))
	add(moved, "gzip SSE", beginning("/sse?channel=z", "Accept-Encoding: gzip"))
	add(saw|moved, "WebSocket", socket("/ws?channel=w&hello=1", "", `"data"`, publish("w")))
	add(saw|moved, "WebSocket that pings", socket("/ws?channel=w", `{"type":"ping"}`, "pong", nil))
	add(saw|moved, "WebSocket of no channel", socket("/ws?channel=nowhere:a", "", "x", nil))
	add(moved, "GET of the WebSocket endpoint", one("GET", "/ws?channel=a", ""))
	add(moved, "Mercure's publisher without a token", one("POST", "/.well-known/mercure", "topic=t&data=1", "Content-Type: application/x-www-form-urlencoded"))
	add(moved, "Mercure without a topic", one("GET", "/.well-known/mercure", ""))
	return rows
}

// replayed says how much of a recording was there when its reader came, which the
// scheduler decides.
const replayed = "weir_messages_replayed_total"

func routed() []row {
	var rows []row
	add := func(differs part, name string, do func(*client) string) {
		rows = append(rows, row{name: name, do: do, differs: differs})
	}
	for _, status := range []int{200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 418, 429, 500, 501, 502, 503, 504} {
		add(moved, fmt.Sprintf("the backend answers %d", status), one("GET", fmt.Sprintf("/b/status/%d", status), ""))
	}
	add(moved, "HEAD", one("HEAD", "/b/x", ""))
	add(moved|logged, "POST", one("POST", "/b/x?q=1", "hello", "Content-Type: text/plain"))
	add(moved|logged, "PUT of much", one("PUT", "/b/x", strings.Repeat("x", 300_000)))
	add(moved, "cookies", one("GET", "/b/x", "", "Cookie: a=b; c=d"))
	add(moved, "hop-by-hop fields and addresses", one("GET", "/b/x", "", "X-Forwarded-For: 203.0.113.9", "TE: trailers", "X-Weir-User: me"))
	add(moved, "trailers", one("GET", "/b/trailers", "", "TE: trailers"))
	add(moved|logged, "retry", one("GET", "/b/flaky", ""))
	add(saw|moved|logged, "no retry of POST", one("POST", "/b/flaky", "x"))
	add(moved, "a reply that is cut", fails("/b/cut"))
	add(saw|moved|logged, "first_byte", one("GET", "/impatient/slow", ""))
	add(saw|moved|logged, "no backend", one("GET", "/gone/x", ""))
	add(saw|moved|logged, "no peer by its name", one("GET", "/nobody/x", ""))
	add(moved, "a redirect of ours", one("GET", "/old/x?y", ""))
	add(moved, "a reply of ours", one("GET", "/fixed", ""))
	add(moved, "a method that is not the route's", one("DELETE", "/get/x", ""))
	add(moved, "authentication", one("GET", "/private/x", ""))
	add(moved, "authenticated", one("GET", "/private/x", "", key))
	add(moved, "an address that is denied", one("GET", "/denied/x", ""))
	add(moved, "CORS preflight", one("OPTIONS", "/cors/x", "", "Origin: https://a.example", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-one"))
	add(moved, "CORS", one("GET", "/cors/x", "", "Origin: https://a.example"))
	add(moved, "CORS of another origin", one("GET", "/cors/x", "", "Origin: https://evil.example"))
	add(moved, "a body that is too large", one("POST", "/small/x", strings.Repeat("x", 20)))
	add(moved, "a rate by address", then(one("GET", "/rated/x", ""), one("GET", "/rated/x", ""), one("GET", "/rated/x", "")))
	add(moved, "a rate by tenant", then(one("GET", "/tenant/x", "", key), one("GET", "/tenant/x", "", key), one("GET", "/tenant/x", "", key)))
	add(moved, "a class", one("GET", "/order/x", ""))
	add(moved, "fields that are changed", one("GET", "/fields/x", "", "X-Gone: 1"))
	add(moved, "a rewritten path", one("GET", "/rewritten/a/b", ""))
	add(moved|logged, "a mirror", then(one("POST", "/mirrored/x", "copy me"), mirrored))
	add(moved, "an event stream of the backend", stream("/b/tokens", "[DONE]", nil))
	rows = append(rows, row{"recording", stream("/recorded/tokens", "[DONE]", nil, key), saw | moved | logged, replayed})
	rows = append(rows, row{"recording of a POST", one("POST", "/recorded/tokens", "{}", key), saw | moved | logged, replayed})
	add(saw|moved, "hold", stream("/held/hold?on=h1", `"n":1`, publish("h1")))
	add(saw|moved|logged, "hold that is not allowed", one("GET", "/held/hold?on=private:x", ""))
	add(moved, "a hold of a route that holds nothing", one("GET", "/b/hold?on=h1", ""))
	add(saw|moved|logged, "WebSocket of a route", socket("/sockets/echo", "hello", "hello", nil))
	add(saw|moved|logged, "WebSocket that the backend refuses", socket("/b/x", "", "x", nil))
	add(moved, "dot segments", one("GET", "/b/%2e%2e/b/x", ""))
	add(moved, "an escaped slash", one("GET", "/b/a%2Fb", ""))
	add(moved, "an underscore in a name", one("GET", "/b/x", "", "X_Under: 1"))
	add(saw|moved|logged, "many fields", one("GET", "/b/x", "", many(120)...))
	add(moved, "a long field", one("GET", "/b/x", "", "X-Long: "+strings.Repeat("a", 20_000)))
	add(moved|logged, "a client that leaves", leaves)
	return rows
}

func many(n int) (fields []string) {
	for i := range n {
		fields = append(fields, fmt.Sprintf("X-Field-%d: 1", i))
	}
	return fields
}

// mirrored says whether the copy came.
func mirrored(c *client) string {
	judge.Eventually(c.t, 10*time.Second, "the mirror gets a copy", func() bool {
		c.to.mu.Lock()
		defer c.to.mu.Unlock()
		return c.to.copy == 1
	})
	return "copied"
}

// leaves ends a request before it is answered.
func leaves(c *client) string {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := c.ask(ctx, http.MethodGet, "/b/slow", nil); err == nil {
			_ = res.Body.Close()
		}
	}()
	judge.Eventually(c.t, 10*time.Second, "the backend has it", func() bool {
		c.to.mu.Lock()
		defer c.to.mu.Unlock()
		return c.to.n == 1
	})
	cancel()
	<-done
	return "left"
}

// everyRoute is the configuration that the rows of routed are for.
func everyRoute(to, mirror, sockets string) map[string]any {
	type m = map[string]any
	route := func(path string, more m) m {
		r := m{"name": strings.Trim(path, "/*"), "path": path, "cluster": "b", "access_log": m{"enabled": true}}
		for k, v := range more {
			r[k] = v
		}
		return r
	}
	off := m{"enabled": false}
	cluster := func(name, addr string, more m) m {
		c := m{"name": name, "peers": []any{m{"address": addr}}, "breaker": off, "outlier": off}
		for k, v := range more {
			c[k] = v
		}
		return c
	}
	slow := m{"per_second": 0.001, "burst": 2}
	return m{
		"namespaces": []any{m{"name": "default", "anonymous": true, "history_size": 1000}, m{"name": "private", "history_size": 10},
			m{"name": "llm", "durability": "stored", "history_size": 20_000}},
		"clusters": []any{
			cluster("b", to, nil), cluster("gone", "127.0.0.1:1", nil), cluster("nobody", "no-such-host.invalid:80", nil),
			cluster("m", mirror, nil), cluster("s", sockets, nil),
		},
		"splits": []any{m{"name": "split", "arms": []any{m{"cluster": "b", "weight": 1}}, "mirror": m{"cluster": "m", "share": 1}}},
		"routes": []any{
			route("/b/*", nil), route("/gone/*", m{"cluster": "gone"}), route("/nobody/*", m{"cluster": "nobody"}), route("/impatient/*", m{"timeouts": m{"first_byte": "200ms"}, "retry": m{"attempts": -1}}),
			route("/old/*", m{"cluster": "", "redirect": m{"to": "/b/{*}$query"}}), route("/fixed", m{"cluster": "", "reply": m{"status": 203, "body": "fixed", "headers": m{"X-One": "1"}}}),
			route("/get/*", m{"methods": []string{"GET"}}), route("/private/*", m{"auth": m{"required": true, "api_keys": true, "forward": true}}),
			route("/denied/*", m{"addresses": m{"deny": []string{"127.0.0.1"}}}),
			route("/cors/*", m{"cors": m{"allowed_origins": []string{"https://a.example"}, "credentials": true}}),
			route("/small/*", m{"limits": m{"max_body": 10}}), route("/rated/*", m{"limits": m{"per_address": slow}}),
			route("/tenant/*", m{"auth": m{"required": true, "api_keys": true}, "limits": m{"per_tenant": slow}}),
			route("/order/*", m{"class": "order"}),
			route("/fields/*", m{"request_headers": m{"remove": []string{"X-Gone"}, "set": m{"X-Set": "1"}}, "response_headers": m{"remove": []string{"X-Backend"}, "add": m{"X-Added": "1"}}}),
			route("/rewritten/*", m{"rewrite": m{"strip_prefix": "/rewritten", "add_prefix": "/b"}}), route("/mirrored/*", m{"cluster": "split"}),
			route("/recorded/*", m{"record": m{"namespace": "llm", "outlive": "10s"}, "auth": m{"required": true, "api_keys": true}}),
			route("/held/*", m{"hold": m{"channels": []string{"h*"}}}), route("/sockets/*", m{"cluster": "s"}),
		},
	}
}

// TestVersionsOfHTTPAreAlike plays each row over HTTP/1.1 and HTTP/2, each with a gateway
// and clients of its own.
func TestVersionsOfHTTPAreAlike(t *testing.T) {
	type m = map[string]any
	t.Run("push", func(t *testing.T) {
		alike(t, push(), m{
			"namespaces": []any{m{"name": "default", "anonymous": true, "history_size": 1000}, m{"name": "closed", "history_size": 10},
				m{"name": "mercure", "anonymous": true, "history_size": 1000}},
			"mercure": m{"enabled": true, "anonymous": true},
			"auth":    m{"allowed_origins": []string{"https://a.example"}},
		})
	})
	t.Run("routes", func(t *testing.T) { alike(t, routed(), nil) })
}

// alike plays rows at two gateways with the same configuration, everyRoute's if it is
// nil.
func alike(t *testing.T, rows []row, config map[string]any) {
	t.Helper()
	var clients [2]*client
	for i := range clients {
		b := &changeable{}
		to, copies, sockets := httptest.NewServer(b), httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // a copy that does not come is what counts
			b.count(true)
		})), httptest.NewServer(http.HandlerFunc(echoSocket))
		for _, ts := range []*httptest.Server{to, copies, sockets} {
			t.Cleanup(ts.Close)
		}
		cfg := map[string]any{}
		for k, v := range config {
			cfg[k] = v
		}
		if config == nil {
			cfg = everyRoute(to.Listener.Addr().String(), copies.Listener.Addr().String(), sockets.Listener.Addr().String())
		}
		log := filepath.Join(t.TempDir(), "access.log")
		cfg["access_log"] = map[string]any{"file": log}
		clients[i] = newClient(t, i+1, judge.New(t, judge.Options{Build: judge.Plain, Memory: true, Config: cfg}), b, log)
	}
	var differing []string
	for _, r := range rows {
		differ, how := compareRow(clients[0].play(r), clients[1].play(r))
		if differ != r.differs {
			t.Errorf("%s: differs in (%s), want (%s)\n%s", r.name, differ, r.differs, how)
		} else if differ != 0 {
			t.Logf("%s:\n%s", r.name, how)
		}
		if differ != 0 {
			differing = append(differing, r.name)
		}
	}
	t.Logf("%d of %d rows are alike; not: %s", len(rows)-len(differing), len(rows), strings.Join(differing, ", "))
}
