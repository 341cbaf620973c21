package centrifuge_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestAPIPublishes(t *testing.T) {
	n := start(t, settings{spaces: []hub.Namespace{{Name: "default"}}})
	c := n.connect("{}")
	c.subscribe(`{"channel":"news"}`)
	n.wantAPI("publish", `{"channel":"news","data":{"x":1},"tags":{"lang":"en"},"idempotency_key":"k1"}`, `{"result":{"offset":1,"epoch":"?"}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":{"x":1},"offset":1,"tags":{"lang":"en"}}}}`)
	n.wantAPI("publish", `{"channel":"news","data":{"x":1},"tags":{"lang":"en"},"idempotency_key":"k1"}`, `{"result":{"offset":1,"epoch":"?"}}`)
	n.wantAPI("publish", `{"channel":"news","b64data":"`+base64.StdEncoding.EncodeToString([]byte(`{"y":2}`))+`"}`, `{"result":{"offset":2,"epoch":"?"}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":{"y":2},"offset":2}}}`)
	n.wantAPI("publish", `{"channel":"nowhere:x","data":1}`, `{"error":{"code":102,"message":"unknown channel"}}`)
	n.wantAPI("publish", `{"channel":"news","data":1,"tags":{"`+strings.Repeat("x", 1<<20)+`":"y"}}`, `{"error":{"code":107,"message":"bad request"}}`)
	n.wantAPI("publish", `{"channel":"news","data":1,"idempotency_key":"`+strings.Repeat("x", 5000)+`"}`, `{"error":{"code":107,"message":"bad request"}}`)
	n.wantAPI("publish", `{"channel":"news"}`, `{"error":{"code":107,"message":"bad request"}}`)
	n.wantAPI("broadcast", `{"channels":["news","nowhere:x"],"data":3}`,
		`{"result":{"responses":[{"result":{"offset":3,"epoch":"?"}},{"error":{"code":102,"message":"unknown channel"}}]}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":3,"offset":3}}}`)
	n.wantAPI("batch", `{"commands":[{"publish":{"channel":"news","data":4}},{"nothing":{}},{"history":{"channel":"news","limit":1,"reverse":true}}]}`,
		`{"replies":[{"publish":{"offset":4,"epoch":"?"}},{"error":{"code":104,"message":"not found"}},
			{"history":{"publications":[{"data":4,"offset":4}],"epoch":"?","offset":4}}]}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":4,"offset":4}}}`)
	n.wantAPI("history_remove", `{"channel":"news"}`, `{"result":{}}`)
	n.wantAPI("history", `{"channel":"news","limit":-1}`, `{"result":{"publications":[],"epoch":"?","offset":4}}`)
	n.wantAPI("rpc", `{"method":"x"}`, `{"error":{"code":104,"message":"not found"}}`)
}

func TestAPIKeys(t *testing.T) {
	n := start(t, settings{})
	f := func(want int, method, body, query string, fields ...string) {
		t.Helper()
		status, got := n.api(method+query, body, append([]string{"X-API-Key", ""}, fields...)...)
		if status != want {
			t.Errorf("%s %s: %d %s, want %d", method, fields, status, got, want)
		}
	}
	const publish = `{"channel":"own.x","data":1}`
	f(401, "publish", publish, "")
	f(401, "publish", publish, "", "X-API-Key", "wrong")
	f(200, "publish", publish, "", "Authorization", "apikey "+apiKey)
	f(200, "publish", publish, "?api_key="+apiKey)
	f(404, "nothing", `{}`, "?api_key="+apiKey)
	f(400, "publish", `[]`, "?api_key="+apiKey)
	f(400, "publish", "{\"channel\":\"x\",\"data\":\"\xff\"}", "?api_key="+apiKey)
	f(404, "publish", `{"channel":"nowhere:x","data":1}`, "", "X-API-Key", apiKey, "X-Centrifugo-Error-Mode", "transport")
	// Weir's own keys publish where they may, and do nothing else.
	f(200, "publish", publish, "", "X-API-Key", ownKey, "X-Centrifugo-Error-Mode", "transport")
	f(403, "publish", `{"channel":"other","data":1}`, "", "X-API-Key", ownKey, "X-Centrifugo-Error-Mode", "transport")
	f(403, "broadcast", `{"channels":["own.x","other"],"data":1}`, "", "X-API-Key", ownKey, "X-Centrifugo-Error-Mode", "transport")
	f(403, "disconnect", `{"user":"42"}`, "", "X-API-Key", ownKey, "X-Centrifugo-Error-Mode", "transport")
	f(403, "info", `{}`, "", "X-API-Key", ownKey, "X-Centrifugo-Error-Mode", "transport")
}

func TestAPIReachesClientsOnAllNodes(t *testing.T) {
	a, b := pair(t, settings{})
	request := `{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}`
	x, y := a.connect(request), b.connect(request)
	other := b.connect(`{"token":"` + token(t, map[string]any{"sub": "7"}) + `"}`)

	a.wantAPI("subscribe", `{"user":"42","channel":"news","data":{"k":1}}`, `{"result":{}}`)
	for _, c := range []*client{x, y} {
		c.expect(`{"push":{"channel":"news","subscribe":{"recoverable":true,"positioned":true,"epoch":"?","data":{"k":1}}}}`)
	}
	b.publish("news", "1")
	y.expect(`{"push":{"channel":"news","pub":{"data":1,"offset":1}}}`)
	trial.Eventually(t, "both are counted", func() bool {
		_, got := a.api("presence_stats", `{"channel":"news"}`)
		return got == `{"result":{"num_clients":2,"num_users":1}}`
	})
	a.wantAPI("presence", `{"channel":"news"}`, fmt.Sprintf(`{"result":{"presence":{"%s":{"user":"42","client":"%s"},"%s":{"user":"42","client":"%s"}}}}`, x.id, x.id, y.id, y.id))
	a.wantAPI("channels", `{"pattern":"n*s"}`, `{"result":{"channels":{"news":{"num_clients":2}}}}`)
	a.wantAPI("channels", `{"pattern":"x*"}`, `{"result":{"channels":{}}}`)
	r := a.wantAPI("info", `{}`, `{"result":{"nodes":["?","?"]}}`)
	if s := fmt.Sprint(r); !strings.Contains(s, "num_clients:2") || !strings.Contains(s, "num_clients:1") {
		t.Errorf("info: %v", s)
	}

	a.wantAPI("unsubscribe", `{"user":"42","channel":"news","client":"`+y.id+`"}`, `{"result":{}}`)
	y.expect(`{"push":{"channel":"news","unsubscribe":{"code":2000,"reason":"server unsubscribe"}}}`)
	a.wantAPI("disconnect", `{"user":"42","whitelist":["`+x.id+`"],"disconnect":{"code":4100,"reason":"moved"}}`, `{"result":{}}`)
	y.Closes(4100, "moved")
	a.wantAPI("disconnect", `{"user":"42"}`, `{"result":{}}`)
	x.Closes(3503, "force disconnect")
	a.wantAPI("disconnect", `{"user":"7","disconnect":{"code":1,"reason":"x"}}`, `{"error":{"code":107,"message":"bad request"}}`)
	a.wantAPI("refresh", `{"user":"7","expired":true}`, `{"result":{}}`)
	other.Closes(3005, "connection expired")
}

func TestAPISubscribesFromAPosition(t *testing.T) {
	n := start(t, settings{})
	first := n.publish("news", "1")
	n.publish("news", "2")
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}`)
	n.wantAPI("subscribe", fmt.Sprintf(`{"user":"42","channel":"news","recover_since":{"offset":1,"epoch":%q},"override":{"force_positioning":{"value":true}}}`, first.Epoch), `{"result":{}}`)
	c.expect(`{"push":{"channel":"news","subscribe":{"recoverable":true,"positioned":true,"epoch":"?","offset":1}}}`)
	c.expect(`{"push":{"channel":"news","pub":{"data":2,"offset":2}}}`)
}

func TestEventsOfClientsAreMessages(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{
		EventsChannel: "log", Namespaces: map[string]centrifuge.Namespace{"default": open}, AnonymousConnect: true,
	}})
	c := n.connect(`{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}`)
	c.subscribe(`{"channel":"news"}`)
	c.send(`{"id":3,"unsubscribe":{"channel":"news"}}`)
	c.expect(`{"id":3,"unsubscribe":{}}`)
	c.send(`nonsense`)
	c.Closes(3501, "bad request")
	trial.Eventually(t, "four events", func() bool {
		_, got := n.api("history", `{"channel":"log","limit":-1}`)
		return strings.Contains(got, `"event":"connect"`) && strings.Contains(got, `"event":"subscribe"`) && strings.Contains(got, `"event":"unsubscribe"`) &&
			strings.Contains(got, `"event":"disconnect"`) && strings.Contains(got, `"code":3501`) && strings.Contains(got, `"user":"42"`)
	})
}

func TestConnectionsOfAUserAreBounded(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{UserConnectionLimit: 1, Namespaces: map[string]centrifuge.Namespace{"default": open}, AnonymousConnect: true}})
	request := `{"token":"` + token(t, map[string]any{"sub": "42"}) + `"}`
	a := n.connect(request)
	b := n.dial("/connection/websocket")
	b.send(`{"id":1,"connect":` + request + `}`)
	b.Closes(3504, "connection limit")
	a.conn.CloseNow()
	trial.Eventually(t, "there is room again", func() bool {
		c := n.dial("/connection/websocket")
		c.send(`{"id":1,"connect":` + request + `}`)
		select {
		case line := <-c.C:
			return strings.Contains(line, `"client"`)
		case <-c.Ended:
			return false
		}
	})
}

func TestStaleClientsAreClosed(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{StaleTimeout: hub.Duration(200 * time.Millisecond), AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{}}})
	n.dial("/connection/websocket").Closes(3502, "stale")
}

func TestPings(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{
		PingInterval: hub.Duration(time.Second), PongTimeout: hub.Duration(300 * time.Millisecond), AnonymousConnect: true,
		Namespaces: map[string]centrifuge.Namespace{},
	}})
	c := n.connect("{}")
	for range 2 {
		if line := <-c.C; line != "{}" {
			t.Fatalf("got %s", line)
		}
		c.send("{}")
	}
	if line := <-c.C; line != "{}" {
		t.Fatalf("got %s", line)
	}
	c.Closes(3012, "no pong")
}

func TestMethodsAreThoseThatAreServed(t *testing.T) {
	n := start(t, settings{})
	for _, path := range []string{"/connection/http_stream", "/emulation", "/centrifugo/api/publish"} {
		res, err := http.Get("http://" + n.Addr + path)
		n.Must(err)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, res.StatusCode)
		}
	}
}
