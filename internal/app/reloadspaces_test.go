package app

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// space returns the namespace of that name in c.
func space(c *config.Config, name string) *hub.Namespace {
	for i := range c.Namespaces {
		if c.Namespaces[i].Name == name {
			return &c.Namespaces[i]
		}
	}
	return nil
}

// without removes the namespace of that name.
func without(c *config.Config, name string) {
	var left []hub.Namespace
	for _, n := range c.Namespaces {
		if n.Name != name {
			left = append(left, n)
		}
	}
	c.Namespaces = left
}

func TestNamespacesComeChangeAndGo(t *testing.T) {
	g := startLive(t, withProtocols, Options{})
	h := newHolder(t, g.gateway)
	status := func(want int, channel, data string) {
		t.Helper()
		if got, body := g.post(t, "/api/publish", `{"channel":"`+channel+`","data":`+data+`}`); got != want {
			t.Errorf("publish to %s: %d %s, want %d", channel, got, body, want)
		}
	}
	other := h.open("ws", "default", "")
	status(404, "later:a", "1")
	g.change(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "later", Anonymous: true})
	})
	first := g.publish(t, "later:a", `"one"`)
	var all []*held
	for _, kind := range []string{"sse", "sse2", "ws"} {
		all = append(all, h.open(kind, "later", ""))
	}
	byToken := h.open("sse", "later", tokenFor(t, "later:*"))
	g.publish(t, "later:a", `"two"`)
	for _, c := range append(all, byToken) {
		c.wantOpen(t, "two")
	}
	status(200, "later:a", `"`+strings.Repeat("x", 3000)+`"`)
	g.change(t, func(c *config.Config) { space(c, "later").MaxMessageBytes = 2000 })
	status(413, "later:a", `"`+strings.Repeat("x", 3000)+`"`)
	g.refused(t, "queue_bytes", func(c *config.Config) { space(c, "later").QueueBytes = 1024 })
	g.refused(t, "is taken by", func(c *config.Config) { c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "later"}) })
	status(413, "later:a", `"`+strings.Repeat("x", 3000)+`"`)

	g.change(t, func(c *config.Config) { space(c, "later").Anonymous = false })
	for _, c := range all {
		c.wantEnd(t, "4403")
	}
	g.publish(t, "later:a", `"three"`)
	byToken.wantOpen(t, "three")

	done := g.change(t, func(c *config.Config) { without(c, "later") })
	if done.Closed.Connections != 1 {
		t.Errorf("closed %+v", done.Closed)
	}
	byToken.wantEnd(t, "4403")
	status(404, "later:a", "1")
	if _, body := g.get(t, "/sse?channel=later:a"); !strings.Contains(body, "unknown namespace") {
		t.Error(body)
	}
	g.change(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "later", Anonymous: true})
	})
	again := g.publish(t, "later:a", `"four"`)
	if again.Epoch != first.Epoch || again.Offset <= first.Offset {
		t.Errorf("%v, and after it was away %v: it is another log", first, again)
	}
	s := g.sse(t, "channel=later:a", first.String())
	s.block()
	for _, want := range []string{"two", "xxx", "three", "four"} {
		if got := s.block(); !strings.Contains(got, want) {
			t.Errorf("%.60q, want %s", got, want)
		}
	}
	g.publish(t, "default:a", `"to the other"`)
	other.wantOpen(t, "to the other")
}

// TestADurabilityWaitsForARestart as the number of replicas does; what else is new applies.
func TestADurabilityWaitsForARestart(t *testing.T) {
	g := startLive(t, nil, Options{})
	g.src.set(func(c *config.Config) {
		deepCopy(c)
		space(c, "orders").Durability, space(c, "orders").Anonymous = hub.None, false
	})
	done, err := g.Reload(t.Context())
	if err != nil || len(done.Waiting) != 1 || done.Waiting[0] != "namespaces[orders].durability" || len(done.Applied) != 1 {
		t.Errorf("%+v %v", done, err)
	}
	if status, _ := g.get(t, "/sse?channel=orders:a"); status != http.StatusUnauthorized {
		t.Errorf("orders: %d", status)
	}
}

func tokenFor(t *testing.T, pattern string) string {
	t.Helper()
	s, err := auth.Mint(auth.Config{KeySet: auth.KeySet{HMACSecret: oldSecret}}, auth.MintClaims{Subject: "u", Subscribe: []string{pattern}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCentrifugeIsSetAnew(t *testing.T) {
	g := startLive(t, withProtocols, Options{})
	h := newHolder(t, g.gateway)
	g.change(t, func(c *config.Config) {
		c.Centrifuge.Namespaces = map[string]centrifuge.Namespace{"private": {AllowSubscribeForAnonymous: true, AllowSubscribeForClient: true}}
	})
	open, named := h.open("centrifuge", "private", ""), h.open("centrifuge", "private", tokenBy(t, oldSecret, "u"))
	plain := h.open("uni_sse", "default", tokenBy(t, oldSecret, "u"))
	g.publish(t, "private:a", `"one"`)
	open.wantOpen(t, "one")
	g.refused(t, "private.force_recovery_mode", func(c *config.Config) {
		c.Centrifuge.Namespaces["private"] = centrifuge.Namespace{ForceRecoveryMode: "no"}
	})
	g.change(t, func(c *config.Config) { c.Centrifuge.Namespaces = nil })
	open.wantOpen(t, `"unsubscribe":{"code":2000`)
	g.publish(t, "private:a", `"two"`)
	named.wantOpen(t, "two") // it has a grant
	g.change(t, func(c *config.Config) { c.Centrifuge.AnonymousConnect = false })
	open.wantEnd(t, "3507")
	named.wantOpen(t, "two")

	// The server API has another key.
	api := func(want int) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/centrifugo/api/info", strings.NewReader("{}"))
		req.Header.Set("X-API-Key", "an-api-key-of-the-server")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("server API: %d, want %d", res.StatusCode, want)
		}
	}
	api(401)
	g.change(t, func(c *config.Config) { c.Centrifuge.APIKey = "an-api-key-of-the-server" })
	api(200)
	g.change(t, func(c *config.Config) { c.Centrifuge.APIKey = "" })
	api(401)

	// Tokens of another key set count.
	g.change(t, func(c *config.Config) {
		c.KeySets = map[string]auth.KeySet{"own": {HMACSecret: newSecret}}
		c.Centrifuge.Keys = "own"
	})
	named.wantEnd(t, "3500")
	plain.wantEnd(t, "3500")
	h.open("centrifuge", "private", tokenBy(t, newSecret, "u"))
}

func TestMercureIsSetAnew(t *testing.T) {
	g := startLive(t, withProtocols, Options{})
	h := newHolder(t, g.gateway)
	open, named := h.open("mercure", "", ""), h.open("mercure2", "", tokenBy(t, oldSecret, "u"))
	g.refused(t, "heartbeat", func(c *config.Config) { c.Mercure.Heartbeat = 1 })
	g.change(t, func(c *config.Config) { c.Mercure.Anonymous = false })
	open.wantEnd(t, "")
	publish := func(want int, secret string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/.well-known/mercure", strings.NewReader(url.Values{"topic": {"a"}, "data": {"1"}}.Encode()))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "Bearer "+publisherBy(t, secret))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("publish: %d, want %d", res.StatusCode, want)
		}
	}
	publish(200, oldSecret)
	publish(401, newSecret)
	g.change(t, func(c *config.Config) {
		c.KeySets = map[string]auth.KeySet{"own": {HMACSecret: newSecret}}
		c.Mercure.PublisherKeys = "own"
	})
	publish(401, oldSecret)
	publish(200, newSecret)
	named.wantOpen(t, "1")
	g.change(t, func(c *config.Config) { c.Mercure.SubscriberKeys = "own" })
	named.wantEnd(t, "")
	h.open("mercure", "", tokenBy(t, newSecret, "u"))
}

func TestPusherAppsComeChangeAndGo(t *testing.T) {
	g := startLive(t, withProtocols, Options{})
	h := newHolder(t, g.gateway)
	stays := h.open("pusher", "", "")
	g.change(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "second"})
		c.Pusher.Apps = append(c.Pusher.Apps, pusher.App{ID: "2", Key: "second-key", Secret: "second-secret-0123456789", Namespace: "second"})
	})
	h.pusherKey = "second-key"
	second := h.open("pusher", "", "")
	signed := h.open("pusher", "", "second-secret-0123456789")
	g.publish(t, "second:a", `"x"`)
	second.wantOpen(t, `\"x\"`)
	signed.wantOpen(t, "private-a")
	g.refused(t, "secret", func(c *config.Config) { c.Pusher.Apps[1].Secret = "" })
	g.change(t, func(c *config.Config) { c.Pusher.Apps[1].Secret = "another-secret-0123456789" })
	signed.wantEnd(t, "4200")
	g.publish(t, "second:a", `"y"`)
	second.wantOpen(t, `\"y\"`)
	h.open("pusher", "", "another-secret-0123456789")
	g.change(t, func(c *config.Config) {
		c.Pusher.Apps = c.Pusher.Apps[:1]
		without(c, "second")
	})
	second.wantEnd(t, "4001")
	g.publish(t, "shop:a", `"z"`)
	stays.wantOpen(t, `\"z\"`)
}

// TestNamespacesComeAndChangeOnNATS does with an embedded broker what the broker's own suite
// does with each kind: here through all layers between it and a request.
func TestNamespacesComeAndChangeOnNATS(t *testing.T) {
	g := startLive(t, func(c *config.Config) {
		c.Broker = config.Broker{Kind: config.BrokerNATS}
		c.Broker.NATS.Dir = t.TempDir()
	}, Options{})
	g.change(t, func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "later", Anonymous: true}, hub.Namespace{Name: "plain", Anonymous: true, Durability: hub.None})
	})
	plain := g.sse(t, "channel=plain:a", "")
	plain.block()
	g.publish(t, "plain:a", `"p"`)
	if got := plain.block(); !strings.Contains(got, `"p"`) {
		t.Errorf("without a log: %q", got)
	}
	first := g.publish(t, "later:a", "0")
	for range 5 {
		g.publish(t, "later:a", "1")
	}
	g.change(t, func(c *config.Config) { space(c, "later").HistorySize = 2 })
	s := g.sse(t, "channel=later:a", first.String())
	s.block()
	if got := s.block(); !strings.Contains(got, "event: gap") {
		t.Errorf("%q, want the gap of what the smaller history has removed", got)
	}
	g.refused(t, "durability synced", func(c *config.Config) {
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "safe", Durability: hub.Synced})
	})
	if last := g.publish(t, "later:a", "2"); last.Epoch != first.Epoch {
		t.Errorf("%v and %v: another log", first, last)
	}
}
