package centrifuge_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestRPCsGoToASubject(t *testing.T) {
	n := start(t, settings{
		cfg: centrifuge.Config{RPCSubject: "backend.rpc", AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{}},
		deps: func(d *centrifuge.Deps) {
			d.Request = func(_ context.Context, subject string, data []byte) ([]byte, error) {
				if subject == "backend.rpc.fail" {
					return nil, errors.New("no one answers")
				}
				return []byte(`{"subject":"` + subject + `","data":` + string(data) + `}`), nil
			}
		},
	})
	c := n.connect("{}")
	f := func(request, want string) {
		t.Helper()
		c.send(`{"id":2,"rpc":` + request + `}`)
		c.expect(`{"id":2,` + want + `}`)
	}
	f(`{"method":"a.b","data":{"x":1}}`, `"rpc":{"data":{"subject":"backend.rpc.a.b","data":{"x":1}}}`)
	f(`{"data":1}`, `"rpc":{"data":{"subject":"backend.rpc","data":1}}`)
	f(`{"method":"fail"}`, `"error":{"code":100,"message":"internal server error","temporary":true}`)
	for _, bad := range []string{"a b", "*", ">", ".a", "a.", "a..b", strings.Repeat("a", 200)} {
		f(`{"method":"`+bad+`"}`, `"error":{"code":104,"message":"method not found"}`)
	}
}

func TestServerAPIBesideWeirsOwn(t *testing.T) {
	n := start(t, settings{cfg: centrifuge.Config{APIPrefix: "/api", AnonymousConnect: true, Namespaces: map[string]centrifuge.Namespace{"default": open}}})
	call := func(method, key, body string) string {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, "http://"+n.Addr+"/api/"+method, strings.NewReader(body))
		n.Must(err)
		req.Header.Set("X-API-Key", key)
		res, err := http.DefaultClient.Do(req)
		n.Must(err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		n.Must(err)
		return string(b)
	}
	// Fields that Weir's own API refuses, its keys, and errors with status 200.
	if got := call("publish", ownKey, `{"channel":"own.x","data":1,"more":true}`); !strings.HasPrefix(got, `{"result":{"offset":1,`) {
		t.Errorf("publish: %s", got)
	}
	if got := call("publish", apiKey, `{"channel":"nowhere:x","data":1}`); got != `{"error":{"code":102,"message":"unknown channel"}}` {
		t.Errorf("publish to an unknown channel: %s", got)
	}
	if got := call("broadcast", apiKey, `{"channels":["own.x"],"data":1}`); !strings.HasPrefix(got, `{"result":{"responses":[{"result":{"offset":2,`) {
		t.Errorf("broadcast: %s", got)
	}
	if got := call("history", apiKey, `{"channel":"own.x","limit":1}`); !strings.Contains(got, `"publications":[{"data":1,"offset":1}]`) {
		t.Errorf("history: %s", got)
	}
}

func TestConfigsThatCannotBe(t *testing.T) {
	f := func(cfg centrifuge.Config, want string) {
		t.Helper()
		err := cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(centrifuge.Config{PingInterval: 1, PongTimeout: 2}, "pong_timeout")
	f(centrifuge.Config{APIPrefix: "api"}, "api_prefix")
	f(centrifuge.Config{APIKey: "a", APIKeyFile: "b"}, "api_key_file")
	f(centrifuge.Config{APIErrorMode: "x"}, "api_error_mode")
	f(centrifuge.Config{ChannelLimit: -1}, "channel_limit")
	f(centrifuge.Config{EventsChannel: "a b"}, "events_channel")
	f(centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"x": {ForceRecoveryMode: "y"}}}, "force_recovery_mode")
	f(centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"x": {DataFormat: "y"}}}, "publication_data_format")
	f(centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"x": {ChannelRegex: "("}}}, "channel_regex")
	f(centrifuge.Config{Namespaces: map[string]centrifuge.Namespace{"x": {PublishProxy: true}}}, "proxies.publish.endpoint")
	f(centrifuge.Config{Proxies: centrifuge.Proxies{RPC: centrifuge.Proxy{Endpoint: "ftp://x"}}}, "proxies.rpc.endpoint")
	f(centrifuge.Config{Proxies: centrifuge.Proxies{RPC: centrifuge.Proxy{Endpoint: "http://x", Timeout: -1}}}, "proxies.rpc.timeout")
	f(centrifuge.Config{PingInterval: hub.Duration(time.Hour)}, "ping_interval")
	f(centrifuge.Config{Proxies: centrifuge.Proxies{RPC: centrifuge.Proxy{Endpoint: "http://x", HTTPHeaders: []string{"a b"}}}}, "proxies.rpc.http_headers")
	f(centrifuge.Config{Proxies: centrifuge.Proxies{RPC: centrifuge.Proxy{Endpoint: "http://x", StaticHeaders: map[string]string{"A\r\nB": "c"}}}}, "proxies.rpc.static_headers")
	f(centrifuge.Config{Proxies: centrifuge.Proxies{RPC: centrifuge.Proxy{Endpoint: "http://x", StaticHeaders: map[string]string{"A": "c\r\nd: e"}}}}, "proxies.rpc.static_headers")
	if err := (centrifuge.Config{PingInterval: hub.Duration(50 * time.Minute)}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (centrifuge.Config{}).Validate(); err != nil {
		t.Error(err)
	}
	if d := (centrifuge.Config{}).WithDefaults(); d.Proxies.RPC.Timeout != hub.Duration(1e9) || d.ChannelLimit != 128 {
		t.Errorf("defaults %+v", d)
	}
}
