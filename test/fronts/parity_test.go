package fronts

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

const key = "X-API-Key: " + judge.APIKey

// The first argument of add are the parts in which HTTP/2 and HTTP/3 differ, each for a reason.

func push() []row {
	var rows []row
	add := func(differs part, name string, do func(*client) string) {
		rows = append(rows, row{name: name, do: do, differs: differs})
	}
	add(0, "healthz", one("GET", "/healthz", ""))
	add(0, "readyz", one("GET", "/readyz", ""))
	add(0, "HEAD of a built-in", one("HEAD", "/healthz", ""))
	add(0, "no such path", one("GET", "/nowhere", ""))
	add(0, "OPTIONS", one("OPTIONS", "/api/publish", "", "Origin: https://a.example", "Access-Control-Request-Method: POST"))
	add(0, "publish", one("POST", "/api/publish", `{"channel":"a","data":1}`, key))
	add(0, "publish without a key", one("POST", "/api/publish", `{"channel":"a","data":1}`))
	add(0, "publish with another key", one("POST", "/api/publish", `{"channel":"a","data":1}`, "X-API-Key: wrong"))
	add(0, "publish what is not JSON", one("POST", "/api/publish", `{"channel":`, key))
	add(0, "publish to no namespace", one("POST", "/api/publish", `{"channel":"nowhere:a","data":1}`, key))
	add(0, "publish too much", one("POST", "/api/publish", `{"channel":"a","data":"`+strings.Repeat("x", 2<<20)+`"}`, key))
	add(0, "GET of the publish endpoint", one("GET", "/api/publish", "", key))
	add(0, "broadcast", one("POST", "/api/broadcast", `{"channels":["a","b","nowhere:c"],"data":1}`, key))
	add(0, "publish twice under one key", then(one("POST", "/api/publish", `{"channel":"a","data":1}`, key, "Idempotency-Key: k1"), one("POST", "/api/publish", `{"channel":"a","data":1}`, key, "Idempotency-Key: k1")))
	add(0, "SSE", stream("/sse?channel=live", "data: ", publish("live")))
	add(0, "SSE with history", then(one("POST", "/api/publish", `{"channel":"past","data":1}`, key), stream("/sse?channel=past", "data: ", nil, "Last-Event-ID: 0")))
	add(0, "SSE from a position of another epoch", stream("/sse?channel=past", "gap", nil, "Last-Event-ID: AAAAAAAA-5"))
	add(0, "SSE of no channel", one("GET", "/sse", ""))
	add(0, "SSE of no namespace", one("GET", "/sse?channel=nowhere:a", ""))
	add(0, "SSE of a namespace that is closed", one("GET", "/sse?channel=closed:a", ""))
	add(0, "SSE with a token that is none", one("GET", "/sse?channel=a&token=nonsense", ""))
	add(0, "SSE of a page that may not", one("GET", "/sse?channel=a", "", "Origin: https://evil.example"))
	add(0, "SSE with a page's origin that may", stream("/sse?channel=o", "data: ", publish("o"), "Origin: https://a.example"))
	add(0, "gzip SSE", beginning("/sse?channel=z", "Accept-Encoding: gzip"))
	add(0, "WebSocket", socket("/ws?channel=w&hello=1", "", `"data"`, publish("w")))
	add(0, "WebSocket that pings", socket("/ws?channel=w", `{"type":"ping"}`, "pong", nil))
	add(0, "WebSocket of no channel", socket("/ws?channel=nowhere:a", "", "x", nil))
	add(0, "GET of the WebSocket endpoint", one("GET", "/ws?channel=a", ""))
	add(0, "Mercure's publisher without a token", one("POST", "/.well-known/mercure", "topic=t&data=1", "Content-Type: application/x-www-form-urlencoded"))
	add(0, "Mercure without a topic", one("GET", "/.well-known/mercure", ""))
	return rows
}

// replayed reports how much of a recording was there when its reader came, which the
// scheduler decides.
const replayed = "weir_messages_replayed_total"

func routed() []row {
	var rows []row
	add := func(differs part, name string, do func(*client) string) {
		rows = append(rows, row{name: name, do: do, differs: differs})
	}
	for _, status := range []int{200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 418, 429, 500, 501, 502, 503, 504} {
		add(0, fmt.Sprintf("the backend answers %d", status), one("GET", fmt.Sprintf("/b/status/%d", status), ""))
	}
	add(0, "HEAD", one("HEAD", "/b/x", ""))
	add(0, "POST", one("POST", "/b/x?q=1", "hello", "Content-Type: text/plain"))
	add(0, "PUT of much", one("PUT", "/b/x", strings.Repeat("x", 300_000)))
	add(0, "cookies", one("GET", "/b/x", "", "Cookie: a=b; c=d"))
	add(0, "hop-by-hop fields and addresses", one("GET", "/b/x", "", "X-Forwarded-For: 203.0.113.9", "TE: trailers", "X-Weir-User: me"))
	add(0, "trailers", one("GET", "/b/trailers", "", "TE: trailers"))
	add(0, "retry", one("GET", "/b/flaky", ""))
	add(0, "no retry of POST", one("POST", "/b/flaky", "x"))
	add(0, "a reply that is cut", fails("/b/cut"))
	add(0, "first_byte", one("GET", "/impatient/slow", ""))
	add(0, "no backend", one("GET", "/gone/x", ""))
	add(0, "no peer by its name", one("GET", "/unknown/x", ""))
	add(0, "a redirect of ours", one("GET", "/old/x?y", ""))
	add(0, "a reply of ours", one("GET", "/fixed", ""))
	add(0, "a method that is not the route's", one("DELETE", "/get/x", ""))
	add(0, "authentication", one("GET", "/private/x", ""))
	add(0, "authenticated", one("GET", "/private/x", "", key))
	add(0, "an address that is denied", one("GET", "/denied/x", ""))
	add(0, "CORS preflight", one("OPTIONS", "/cors/x", "", "Origin: https://a.example", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-one"))
	add(0, "CORS", one("GET", "/cors/x", "", "Origin: https://a.example"))
	add(0, "CORS of another origin", one("GET", "/cors/x", "", "Origin: https://evil.example"))
	add(0, "a body that is too large", one("POST", "/small/x", strings.Repeat("x", 20)))
	add(0, "a rate by address", then(one("GET", "/rated/x", ""), one("GET", "/rated/x", ""), one("GET", "/rated/x", "")))
	add(0, "a rate by tenant", then(one("GET", "/tenant/x", "", key), one("GET", "/tenant/x", "", key), one("GET", "/tenant/x", "", key)))
	add(0, "a class", one("GET", "/order/x", ""))
	add(0, "fields that are changed", one("GET", "/fields/x", "", "X-Gone: 1"))
	add(0, "a rewritten path", one("GET", "/rewritten/a/b", ""))
	add(0, "a mirror", then(one("POST", "/mirrored/x", "copy me"), mirrored))
	add(0, "an event stream of the backend", stream("/b/tokens", "[DONE]", nil))
	rows = append(rows, row{"recording", stream("/recorded/tokens", "[DONE]", nil, key), 0, replayed})
	rows = append(rows, row{"recording of a POST", one("POST", "/recorded/tokens", "{}", key), 0, replayed})
	add(0, "hold", stream("/held/hold?on=h1", `"n":1`, publish("h1")))
	add(0, "hold that is not allowed", one("GET", "/held/hold?on=private:x", ""))
	add(0, "a hold of a route that holds nothing", one("GET", "/b/hold?on=h1", ""))
	add(0, "WebSocket of a route", socket("/sockets/echo", "hello", "hello", nil))
	// A 2xx would say there that the tunnel is open (RFC 8441 §5): it is a 502.
	add(saw, "WebSocket that the backend refuses", socket("/b/x", "", "x", nil))
	add(0, "a route chosen by header and query", one("GET", "/chosen/x?q=a+b", "", "X-Version: 2"))
	add(0, "a route chosen by query", one("GET", "/chosen/x?q=a+b", "", "X-Version: 1"))
	add(0, "a route whose conditions fail", one("GET", "/chosen/x", "", "X-Version: 2"))
	add(0, "dot segments", one("GET", "/b/%2e%2e/b/x", ""))
	add(0, "an escaped slash", one("GET", "/b/a%2Fb", ""))
	add(0, "an underscore in a name", one("GET", "/b/x", "", "X_Under: 1"))
	add(0, "many fields", one("GET", "/b/x", "", many(120)...))
	add(0, "a long field", one("GET", "/b/x", "", "X-Long: "+strings.Repeat("a", 20_000)))
	add(0, "a client that leaves", leaves)
	return rows
}

func many(n int) (fields []string) {
	for i := range n {
		fields = append(fields, fmt.Sprintf("X-Field-%d: 1", i))
	}
	return fields
}

// mirrored reports whether the copy came.
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
			cluster("b", to, nil), cluster("gone", "127.0.0.1:1", nil), cluster("unknown", "no-such-host.invalid:80", nil),
			cluster("m", mirror, nil), cluster("s", sockets, nil),
		},
		"splits": []any{m{"name": "split", "arms": []any{m{"cluster": "b", "weight": 1}}, "mirror": m{"cluster": "m", "share": 1}}},
		"routes": []any{
			route("/b/*", nil), route("/gone/*", m{"cluster": "gone"}), route("/unknown/*", m{"cluster": "unknown"}), route("/impatient/*", m{"timeouts": m{"first_byte": "200ms"}, "retry": m{"attempts": -1}}),
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
			route("/chosen/*", m{"name": "by-both", "cluster": "", "reply": m{"status": 201, "body": "chosen"}, "match": m{"headers": []any{m{"name": "X-Version", "value": "2"}}, "query": []any{m{"name": "q", "value": "a b"}}}}),
			route("/chosen/*", m{"name": "by-query", "methods": []string{"GET"}, "match": m{"query": []any{m{"name": "q"}}}}),
			route("/held/*", m{"hold": m{"channels": []string{"h*"}}}), route("/sockets/*", m{"cluster": "s"}),
		},
	}
}

// TestVersionsOfHTTPAreAlike plays each row over HTTP/1.1, HTTP/2 and HTTP/3, the last with
// either engine, each with a gateway and clients of its own.
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

// fronts are what the rows are played over; the first is what the others are compared with.
var fronts = [...]struct {
	version int
	engine  string
}{{1, "auto"}, {2, "auto"}, {3, "io_uring"}, {3, "epoll"}}

// alike plays rows at one gateway for each of fronts, with the same configuration,
// everyRoute's if it is nil.
func alike(t *testing.T, rows []row, config map[string]any) {
	t.Helper()
	var clients [len(fronts)]*client
	for i, front := range fronts {
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
		cfg["eventloop"] = map[string]any{"engine": front.engine}
		if front.version == 3 {
			cfg["downstream"] = map[string]any{"http3": true}
		}
		cfg["access_log"] = map[string]any{"file": log}
		clients[i] = newClient(t, front.version, judge.New(t, judge.Options{Build: judge.Plain, Memory: true, TLS: front.version == 3, Config: cfg}), b, log)
	}
	var differing []string
	for _, r := range rows {
		var records [len(clients)]record
		var all sync.WaitGroup
		for i, c := range clients {
			all.Go(func() { records[i] = c.play(r) })
		}
		all.Wait()
		for i, got := range records[1:] {
			over := fmt.Sprintf("HTTP/%d, %s", fronts[i+1].version, fronts[i+1].engine)
			differ, how := compareRow(records[0], got, over)
			if differ != r.differs {
				t.Errorf("%s: %s differs in (%s), want (%s)\n%s", r.name, over, differ, r.differs, how)
			} else if differ != 0 {
				t.Logf("%s:\n%s", r.name, how)
			}
			if differ != 0 {
				differing = append(differing, r.name+" over "+over)
			}
		}
	}
	t.Logf("%d rows; not alike: %s", len(rows), strings.Join(differing, ", "))
}
