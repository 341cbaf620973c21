package pusher

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

func TestBadConfigurationsAreNamed(t *testing.T) {
	good := App{ID: "1", Key: "k", Secret: "s"}
	f := func(change func(*Config, *App), want string) {
		t.Helper()
		c, a := Config{Enabled: true}, good
		change(&c, &a)
		if c.Apps == nil {
			c.Apps = []App{a}
		}
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(func(*Config, *App) {}, "")
	f(func(c *Config, _ *App) { c.Apps = []App{} }, "apps: there is none")
	f(func(c *Config, _ *App) { c.MaxSubscriptions = 1 << 62 }, "max_subscriptions: 4611686018427387904 is more than")
	f(func(c *Config, _ *App) { c.ActivityTimeout = 1 << 62 }, "activity_timeout")
	f(func(c *Config, _ *App) { c.MaxSubscriptions, c.ActivityTimeout = 1_000_000, hub.Duration(time.Hour) }, "")
	f(func(c *Config, a *App) { c.Apps = []App{good, good} }, `apps[1].id: "1" is another app's`)
	f(func(c *Config, a *App) { c.Apps = []App{good, {ID: "2", Key: "l", Secret: "s"}} }, `apps[1].namespace: "default" is another app's`)
	f(func(c *Config, a *App) { c.Apps = []App{good, {ID: "2", Key: "l", Secret: "s", Namespace: "other"}} }, "")
	f(func(_ *Config, a *App) { a.ID = "a/b" }, "apps[0].id")
	f(func(_ *Config, a *App) { a.Key = "" }, "apps[0].key")
	f(func(_ *Config, a *App) { a.Secret = "" }, "apps[0].secret")
	f(func(_ *Config, a *App) { a.Namespace = "A b" }, "apps[0].namespace")
	f(func(_ *Config, a *App) { a.MaxConnections = -1 }, "max_connections")
	f(func(_ *Config, a *App) { a.AuthorizeWithin = -1 }, "authorize_within")
	f(func(_ *Config, a *App) { a.AllowedOrigins = []string{"https://a"} }, "allowed_origins[0]")
	f(func(_ *Config, a *App) { a.AllowedOrigins = []string{"*", "a.b", "*.c"} }, "")
	f(func(_ *Config, a *App) { a.Webhooks = []Webhook{{URL: "x"}} }, "webhooks[0].url")
	f(func(_ *Config, a *App) { a.Webhooks = []Webhook{{URL: "http://a", Events: []string{"all"}}} }, "webhooks[0].events")
	f(func(_ *Config, a *App) {
		a.Webhooks = []Webhook{{URL: "http://a", Headers: map[string]string{"A": "b\nc"}}}
	}, "webhooks[0].headers")
	f(func(c *Config, _ *App) { c.MaxBatch = -1 }, "max_batch")
	f(func(c *Config, _ *App) { c.ActivityTimeout = 1 }, "activity_timeout")
	f(func(c *Config, _ *App) { c.MaxEventData = 2 << 20 }, "max_event_data")
	f(func(c *Config, _ *App) { c.MaxMemberData = 1 << 20 }, "max_member_data")
	f(func(c *Config, _ *App) { c.DefaultEvent = "pusher:x" }, "default_event")
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
}

// Anyone who reads webhooks may be away while clients continue.
func TestWebhooksWaitWithinBytes(t *testing.T) {
	s := &Server{log: slog.New(slog.DiscardHandler)}
	h := &hook{s: s, queue: make(chan hookEvent, 100)}
	a := &app{hooks: []*hook{h}, hooked: map[string]bool{hookClientEvent: true}}
	for range 20 {
		a.hook(hookEvent{Name: hookClientEvent, Data: strings.Repeat("x", 1<<20)})
	}
	if n, dropped := len(h.queue), s.counts.hooksD.Load(); n != 16 || dropped != 4 {
		t.Errorf("%d wait, %d dropped; want 16 and 4", n, dropped)
	}
	for range 16 {
		h.dequeued(<-h.queue)
	}
	if n := h.bytes.Load(); n != 0 {
		t.Errorf("%d bytes left, want 0", n)
	}
}

func TestOriginsOfPages(t *testing.T) {
	a := &app{App: App{AllowedOrigins: []string{"example.com", "*.example.org"}}}
	f := func(origin string, want bool) {
		t.Helper()
		if got := a.allows(origin); got != want {
			t.Errorf("%q: %v", origin, got)
		}
	}
	f("", true)
	f("https://example.com", true)
	f("http://EXAMPLE.com:8080", true)
	f("https://www.example.com", false)
	f("https://a.example.org", true)
	f("https://example.org", false)
	f("https://evilexample.org", false)
	f("null", false)
	f("https://exa mple.com", false)
	if !(&app{}).allows("https://anywhere") || !(&app{App: App{AllowedOrigins: []string{"*"}}}).allows("https://anywhere") {
		t.Error("without a list every origin may connect")
	}
}

func TestAFrameIsWhatSubscribersGet(t *testing.T) {
	f := func(m *hub.Message, want string) {
		t.Helper()
		if got := string(appendEvent(nil, m, "message")); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(&hub.Message{Channel: "a", Data: []byte("1")}, `{"event":"message","channel":"a","data":"1"}`)
	f(&hub.Message{Channel: "ns:a"}, `{"event":"message","channel":"a","data":""}`)
	f(&hub.Message{Channel: "ns:" + protocol.Topic("#server-to-user-a:b"), Data: []byte(`{"x":"\n"}`), Attributes: &hub.Attributes{Event: "e"}},
		`{"event":"e","channel":"#server-to-user-a:b","data":"{\"x\":\"\\n\"}"}`)
	f(&hub.Message{Channel: "a", Attributes: &hub.Attributes{Event: "client-e", Info: []byte(`{"user":"u","client":"1.2"}`)}},
		`{"event":"client-e","channel":"a","data":"","user_id":"u"}`)
	f(&hub.Message{Channel: "a", Attributes: &hub.Attributes{Event: "e", Info: []byte(`{"user":"u"}`)}}, `{"event":"e","channel":"a","data":""}`)
	f(&hub.Message{Channel: "a", Attributes: &hub.Attributes{Event: "client-e", Info: []byte(`[]`)}}, `{"event":"client-e","channel":"a","data":""}`)
	f(&hub.Message{Channel: "a", Attributes: &hub.Attributes{Event: "pusher_internal:member_added"}}, `{"event":"message","channel":"a","data":""}`)
}
