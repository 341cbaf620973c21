package centrifuge_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// backend answers what proxies ask, by the path.
type backend struct {
	*httptest.Server
	mu        sync.Mutex
	answers   map[string]string
	requested map[string]map[string]any
	headers   map[string]http.Header
}

func startBackend(t *testing.T) *backend {
	b := &backend{answers: map[string]string{}, requested: map[string]map[string]any{}, headers: map[string]http.Header{}}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var q map[string]any
		if err := json.Unmarshal(body, &q); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requested[r.URL.Path], b.headers[r.URL.Path] = q, r.Header
		answer := b.answers[r.URL.Path]
		if answer == "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *backend) answer(path, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers[path] = text
}

func (b *backend) question(path string) (map[string]any, http.Header) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requested[path], b.headers[path]
}

func (b *backend) proxy(path string) centrifuge.Proxy {
	return centrifuge.Proxy{
		Endpoint: b.URL + path, Timeout: hub.Duration(trial.Patience), HTTPHeaders: []string{"Cookie", "X-Tenant"},
		StaticHeaders: map[string]string{"X-Static": "s"}, IncludeMeta: true,
	}
}

// proxied is a namespace with all proxies.
var proxied = centrifuge.Namespace{SubscribeProxy: true, PublishProxy: true, SubRefreshProxy: true, AllowRecovery: true}

func (b *backend) settings() settings {
	return settings{cfg: centrifuge.Config{
		Proxies: centrifuge.Proxies{
			Connect: b.proxy("/connect"), Refresh: b.proxy("/refresh"), Subscribe: b.proxy("/subscribe"),
			Publish: b.proxy("/publish"), SubRefresh: b.proxy("/sub_refresh"), RPC: b.proxy("/rpc"),
		},
		Namespaces:        map[string]centrifuge.Namespace{"default": proxied},
		ExpiredCloseDelay: hub.Duration(200 * time.Millisecond),
	}}
}

func TestProxiesAreCalled(t *testing.T) {
	b := startBackend(t)
	n := start(t, b.settings())
	b.answer("/connect", `{"result":{"user":"42","info":{"name":"A"},"data":{"hello":1},"meta":{"m":1},"channels":["mine"],"subs":{"more":{"data":{"k":2}}}}}`)
	c := n.dialWith("/connection/websocket", http.Header{"Cookie": {"sid=1"}, "X-Other": {"no"}})
	c.send(`{"id":1,"connect":{"data":{"d":1},"name":"js","version":"2","headers":{"x-tenant":"t1","cookie":"sid=forged"}}}`)
	r := c.expect(`{"id":1,"connect":{"client":"?","version":"test","ping":25,"pong":true,"data":{"hello":1},"subs":{"mine":"?","more":"?"}}}`)
	id := r["connect"].(map[string]any)["client"].(string)
	q, h := b.question("/connect")
	if !like(q, map[string]any{"client": id, "transport": "websocket", "protocol": "json", "encoding": "json", "data": map[string]any{"d": 1.0}, "name": "js", "version": "2"}) {
		t.Errorf("asked %v", q)
	}
	if h.Get("Cookie") != "sid=1" || h.Get("X-Tenant") != "t1" || h.Get("X-Static") != "s" || h.Get("X-Other") != "" {
		t.Errorf("headers %v", h)
	}

	b.answer("/subscribe", `{"result":{"info":{"i":1},"data":{"first":1},"override":{"force_recovery":{"value":true}}}}`)
	c.send(`{"id":2,"subscribe":{"channel":"news","data":{"why":1}}}`)
	c.expect(`{"id":2,"subscribe":{"data":{"first":1},"recoverable":true,"positioned":true,"epoch":"?"}}`)
	q, _ = b.question("/subscribe")
	if !like(q, map[string]any{"client": id, "transport": "websocket", "protocol": "json", "encoding": "json", "user": "42", "channel": "news", "data": map[string]any{"why": 1.0}, "meta": map[string]any{"m": 1.0}}) {
		t.Errorf("asked %v", q)
	}
	b.answer("/subscribe", `{"error":{"code":403,"message":"not for you"}}`)
	c.send(`{"id":3,"subscribe":{"channel":"secret"}}`)
	c.expect(`{"id":3,"error":{"code":403,"message":"not for you"}}`)

	b.answer("/publish", `{"result":{"data":{"changed":true},"tags":{"a":"b"}}}`)
	c.send(`{"id":4,"publish":{"channel":"news","data":{"x":1}}}`)
	got := []string{c.next(), c.next()}
	if !strings.Contains(got[0]+got[1], `"pub":{"data":{"changed":true},"info":{"user":"42","client":"`+id+`","conn_info":{"name":"A"},"chan_info":{"i":1}},"offset":1,"tags":{"a":"b"}}`) {
		t.Errorf("got %s", got)
	}

	b.answer("/rpc", `{"result":{"data":{"bid":1.08}}}`)
	c.send(`{"id":5,"rpc":{"method":"getQuote","data":{"s":"EURUSD"}}}`)
	c.expect(`{"id":5,"rpc":{"data":{"bid":1.08}}}`)
	if q, _ = b.question("/rpc"); q["method"] != "getQuote" {
		t.Errorf("asked %v", q)
	}
	b.answer("/rpc", "") // a backend in trouble
	c.send(`{"id":6,"rpc":{"method":"getQuote"}}`)
	c.expect(`{"id":6,"error":{"code":100,"message":"internal server error","temporary":true}}`)
	b.answer("/rpc", `{"disconnect":{"code":4501,"reason":"go away"}}`)
	c.send(`{"id":7,"rpc":{"method":"getQuote"}}`)
	c.Closes(4501, "go away")
}

func TestConnectionsLiveAsLongAsTheProxySays(t *testing.T) {
	b := startBackend(t)
	n := start(t, b.settings())
	b.answer("/connect", fmt.Sprintf(`{"result":{"user":"42","expire_at":%d}}`, time.Now().Unix()+1))
	b.answer("/refresh", fmt.Sprintf(`{"result":{"expire_at":%d,"info":{"new":1}}}`, time.Now().Unix()+2))
	c := n.connect("{}")
	trial.Eventually(t, "the proxy is asked", func() bool { q, _ := b.question("/refresh"); return q["user"] == "42" })
	b.answer("/refresh", `{"result":{"expired":true}}`)
	c.Closes(3005, "connection expired")
}

func TestTokensExpire(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{
		ExpiredCloseDelay: hub.Duration(200 * time.Millisecond), Namespaces: map[string]centrifuge.Namespace{"default": {}},
	}})
	soon := time.Now().Unix() + 2
	c := n.dial("/connection/websocket")
	c.send(`{"id":1,"connect":{"token":"` + token(t, map[string]any{"sub": "42", "exp": soon}) + `"}}`)
	c.expect(`{"id":1,"connect":{"client":"?","version":"test","expires":true,"ttl":"?","ping":25,"pong":true}}`)
	kept := n.connect(`{"token":"` + token(t, map[string]any{"sub": "7"}) + `"}`)
	kept.send(`{"id":2,"subscribe":{"channel":"x","token":"` + token(t, map[string]any{"sub": "7", "channel": "x", "exp": soon}) + `"}}`)
	kept.expect(`{"id":2,"subscribe":{"expires":true,"ttl":"?"}}`)
	kept.send(`{"id":3,"subscribe":{"channel":"y","token":"` + token(t, map[string]any{"sub": "7", "channel": "y", "exp": soon}) + `"}}`)
	kept.expect(`{"id":3,"subscribe":{"expires":true,"ttl":"?"}}`)
	kept.send(`{"id":4,"sub_refresh":{"channel":"y","token":"` + token(t, map[string]any{"sub": "7", "channel": "y"}) + `"}}`)
	kept.expect(`{"id":4,"sub_refresh":{}}`)
	kept.send(`{"id":5,"sub_refresh":{"channel":"z","token":"x"}}`)
	kept.expect(`{"id":5,"error":{"code":103,"message":"permission denied"}}`)
	kept.send(`{"id":6,"sub_refresh":{"channel":"y","token":"` + token(t, map[string]any{"sub": "7", "channel": "y", "exp": 1}) + `"}}`)
	kept.expect(`{"id":6,"error":{"code":110,"message":"expired"}}`)
	kept.expect(`{"push":{"channel":"x","unsubscribe":{"code":2501,"reason":"subscription expired"}}}`)
	c.Closes(3005, "connection expired")
	n.publish("y", "1")
	kept.expect(`{"push":{"channel":"y","pub":{"data":1,"offset":1}}}`)
	kept.send(`{"id":7,"refresh":{"token":"` + token(t, map[string]any{"sub": "another user"}) + `"}}`)
	kept.Closes(3500, "invalid token")
}

// dialWith is dial with header fields.
func (n *node) dialWith(path string, h http.Header) *client {
	n.T.Helper()
	return n.dialOptions(path, websocket.DialOptions{Header: h})
}
