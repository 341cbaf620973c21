package app

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/protocol/centrifuge"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// TestAReloadOfEverythingClosesNoOtherConnection holds more than a thousand connections, of every
// protocol over both versions of HTTP, on both engines, through a reload that changes all
// there is to change. Those whose rights it takes away are closed, and the others get what
// is published after it.
func TestAReloadOfEverythingClosesNoOtherConnection(t *testing.T) {
	for _, engine := range []string{"epoll", "io_uring"} {
		t.Run(engine, func(t *testing.T) { reloadsEverything(t, engine, 115, 5) })
	}
}

// reloadsEverything has stay clients of each kind that stay, and go of those with a token
// that go.
func reloadsEverything(t *testing.T, engine string, stay, leave int) {
	b := backend(t, "b")
	g := startLive(t, func(c *config.Config) {
		withProtocols(c)
		c.EventLoop.Engine = engine
		c.Auth.HMACPreviousSecret = newSecret
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "away", Anonymous: true})
		c.Routes = []policy.RouteConfig{{Name: "r", Path: "/r", Reply: policy.Reply{Status: 200, Body: "old"}}}
	}, Options{})
	h := newHolder(t, g.gateway)
	var stays, goes []*held
	for _, kind := range heldKinds {
		token := ""
		for i := range stay {
			if token = ""; kind != "pusher" && i%2 == 0 {
				token = tokenBy(t, newSecret, fmt.Sprint("u", i))
			}
			ns := "default"
			if token != "" {
				ns = "private"
			}
			stays = append(stays, h.open(kind, ns, token))
		}
		for i := range leave {
			switch kind {
			case "pusher":
				goes = append(goes, h.open(kind, "", "app-secret-0123456789"))
			default:
				goes = append(goes, h.open(kind, "private", tokenBy(t, oldSecret, fmt.Sprint("v", i))))
			}
		}
	}
	for _, kind := range []string{"sse", "sse2", "ws"} {
		goes = append(goes, h.open(kind, "away", ""))
	}
	accessLog := filepath.Join(t.TempDir(), "access")
	done := g.change(t, func(c *config.Config) { everythingElse(c, accessLog, b) })
	if done.Closed.Connections != len(goes) {
		t.Errorf("closed %+v, want %d", done.Closed, len(goes))
	}
	for _, c := range goes {
		c.wantEnd(t, "")
	}
	for _, channel := range []string{"default:a", "private:a", "mercure:a", "shop:a"} {
		g.publish(t, channel, `"after all"`)
	}
	for _, c := range stays {
		c.wantOpen(t, "after all")
	}
	if _, body := g.get(t, "/r"); body != "new" {
		t.Errorf("the route answers %q", body)
	}
	t.Logf("%d connections stayed, %d were closed", len(stays), len(goes))
}

// everythingElse changes something in every section that a reload applies. It takes away what
// rests on oldSecret and on the secret of the app, and the namespace away.
func everythingElse(c *config.Config, accessLog string, cluster upstream.Config) {
	c.Auth.HMACSecret, c.Auth.HMACPreviousSecret = newSecret, ""
	c.Auth.AllowedOrigins, c.Auth.TokenCache = []string{"https://app.example.com"}, 100
	c.Auth.APIKeys = append(c.Auth.APIKeys, auth.APIKey{Name: "more", Key: "0123456789abcdef"})
	c.KeySets = map[string]auth.KeySet{"more": {HMACSecret: oldSecret}}
	without(c, "away")
	for i := range c.Namespaces {
		n := &c.Namespaces[i]
		n.HistorySize, n.HistoryTTL, n.Recent, n.MaxMessageBytes = 77, hub.Duration(time.Hour), 33, 32<<10
		n.QueueMessages, n.Policy, n.Class = 99, hub.DropOldest, "market"
	}
	c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "new", Compress: true})
	c.Centrifuge.Namespaces = map[string]centrifuge.Namespace{"private": {Presence: true, AllowDelta: true}}
	c.Centrifuge.ChannelLimit, c.Centrifuge.PingInterval, c.Centrifuge.APIKey = 64, hub.Duration(20*time.Second), "an-api-key-of-the-server"
	c.Mercure.Cookie, c.Mercure.MaxTopics = "other", 50
	c.Pusher.Apps[0].ClientEvents, c.Pusher.Apps[0].Secret = true, "another-secret-0123456789"
	c.Pusher.Apps = append(c.Pusher.Apps, pusher.App{ID: "2", Key: "second", Secret: "second-secret-0123456789", Namespace: "new"})
	c.Pusher.MaxMembers = 7
	c.Limits.PerAddress = limit.AddressLimits{Connections: 5000, SubscribeRate: limit.Rate{PerSecond: 1e6}}
	c.Log.Level, c.AccessLog.File = "debug", accessLog
	c.Routes[0].Reply.Body = "new"
	c.Clusters = []upstream.Config{cluster}
	c.Splits = []upstream.SplitConfig{{Name: "s", Arms: []upstream.ArmConfig{{Cluster: "b", Weight: 1}}}}
}

// TestAReloadThatIsWrongAtTheEndChangesNothing changes all that can be, and one thing that
// shows to be wrong only when everything else has been prepared. No secret is logged.
func TestAReloadThatIsWrongAtTheEndChangesNothing(t *testing.T) {
	var out lines
	g := startLive(t, withProtocols, Options{Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	h := newHolder(t, g.gateway)
	var all []*held
	for _, kind := range heldKinds {
		token := tokenBy(t, oldSecret, "u")
		if kind == "pusher" {
			token = "app-secret-0123456789"
		}
		all = append(all, h.open(kind, "private", token))
	}
	everything := func(c *config.Config) {
		c.Auth.HMACSecret = newSecret
		c.Auth.APIKeys = []auth.APIKey{{Name: "more", Key: "a-key-that-is-not-shown"}}
		c.Pusher.Apps[0].Secret, c.Mercure.Anonymous, c.Centrifuge.AnonymousConnect = "another-secret-0123456789", false, false
		without(c, "orders")
		c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "new", Anonymous: true})
		c.Limits.PerAddress.Connections = 1
		c.Routes = []policy.RouteConfig{{Name: "r", Path: "/r", Reply: policy.Reply{Status: 200, Body: "new"}}}
	}
	g.refused(t, "no such file or directory", func(c *config.Config) {
		everything(c)
		c.AccessLog.File = filepath.Join(t.TempDir(), "missing", "access")
	})
	g.refused(t, "nowhere", func(c *config.Config) {
		everything(c)
		c.Splits = []upstream.SplitConfig{{Name: "s", Arms: []upstream.ArmConfig{{Cluster: "nowhere", Weight: 1}}}}
	})
	for _, channel := range []string{"default:a", "private:a", "mercure:a", "shop:private-a"} {
		g.publish(t, channel, `"nothing happened"`) // with the key from before
	}
	for _, c := range all {
		c.wantOpen(t, "nothing happened")
	}
	h.open("centrifuge", "private", tokenBy(t, oldSecret, "later"))
	g.publish(t, "orders:a", "1")
	if status, body := g.post(t, "/api/publish", `{"channel":"new:a","data":1}`); status != 404 {
		t.Errorf("the namespace that was refused: %d %s", status, body)
	}
	if status, _ := g.get(t, "/r"); status != 404 {
		t.Errorf("the route that was refused: %d", status)
	}
	g.change(t, everything)
	for _, c := range all {
		c.wantEnd(t, "")
	}
	for _, secret := range []string{oldSecret, newSecret, "a-key-that-is-not-shown", "another-secret-0123456789", testKey} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the log shows %q", secret)
		}
	}
}
