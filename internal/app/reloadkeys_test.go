package app

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/protocol/pusher"
	"github.com/weir-gateway/weir/internal/push/hub"
)

const (
	oldSecret = "the-old-secret-of-thirty-two-bytes-and-more"
	newSecret = "the-new-secret-of-thirty-two-bytes-and-more"
)

// withProtocols speaks all of them.
func withProtocols(c *config.Config) {
	c.Auth.HMACSecret = oldSecret
	c.Namespaces = append(c.Namespaces, hub.Namespace{Name: "mercure", Anonymous: true}, hub.Namespace{Name: "shop"})
	c.Mercure.Enabled, c.Mercure.Anonymous = true, true
	c.Centrifuge.Enabled, c.Centrifuge.AnonymousConnect = true, true
	c.Pusher.Enabled, c.Pusher.Apps = true, []pusher.App{{ID: "1", Key: "app-key", Secret: "app-secret-0123456789", Namespace: "shop"}}
}

// tokenBy is a token of every protocol for the namespace private.
func tokenBy(t *testing.T, secret, user string) string {
	t.Helper()
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": user, "exp": time.Now().Add(time.Hour).Unix(), "weir": map[string]any{"subscribe": []string{"private:*"}}, "mercure": map[string]any{"subscribe": []string{"*"}},
	}).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// publisherBy is the token of a publisher of updates.
func publisherBy(t *testing.T, secret string) string {
	t.Helper()
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"exp": time.Now().Add(time.Hour).Unix(), "mercure": map[string]any{"publish": []string{"*"}},
	}).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSessionsEndWithTheKeyOfTheirToken rotates the secret: with the old one as previous
// no session ends, and when that goes its sessions end in their protocol's words.
func TestSessionsEndWithTheKeyOfTheirToken(t *testing.T) {
	g := startLive(t, withProtocols, Options{})
	h := newHolder(t, g.gateway)
	byOld, byNew, without := map[string]*held{}, map[string]*held{}, map[string]*held{}
	for _, kind := range heldKinds {
		if kind != "pusher" {
			byOld[kind] = h.open(kind, "private", tokenBy(t, oldSecret, "old"))
		}
		without[kind] = h.open(kind, "default", "")
	}
	rotated := g.change(t, func(c *config.Config) { c.Auth.HMACSecret, c.Auth.HMACPreviousSecret = newSecret, oldSecret })
	if rotated.Closed.Connections != 0 {
		t.Errorf("closed %+v", rotated.Closed)
	}
	for kind := range byOld {
		byNew[kind] = h.open(kind, "private", tokenBy(t, newSecret, "new"))
	}
	late := h.open("ws", "private", tokenBy(t, oldSecret, "late"))

	without["sse"].wantOpen(t, "")
	wanted := g.change(t, func(c *config.Config) { c.Auth.HMACPreviousSecret = "" })
	if n := len(byOld) + 1; wanted.Closed.Connections != n {
		t.Errorf("closed %+v, want %d", wanted.Closed, n)
	}
	for kind, words := range map[string]string{
		"sse": `"code":4401,"reason":"credentials revoked"`, "sse2": `"code":4401,"reason":"credentials revoked"`, "ws": "4401 credentials revoked",
		"mercure": ":", "mercure2": ":", "centrifuge": "3500 invalid token", "uni_sse": `"code":3500`, "uni_sse2": `"code":3500`,
	} {
		byOld[kind].wantEnd(t, words)
	}
	late.wantEnd(t, "4401")
	g.publish(t, "private:a", `"still-here"`)
	g.publish(t, "default:a", `"still-here"`)
	g.publish(t, "mercure:a", `"still-here"`)
	g.publish(t, "shop:a", `"still-here"`)
	for _, m := range []map[string]*held{byNew, without} {
		for _, c := range m {
			c.wantOpen(t, "still-here")
		}
	}
	if got := g.push.Stats().Revoked; got != uint64(wanted.Closed.Connections) {
		t.Errorf("counted %d", got)
	}
}

// postAs publishes with a key.
func (g *gateway) postAs(t *testing.T, key string) (int, string) {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/api/publish", strings.NewReader(`{"channel":"news","data":1}`))
	req.Header.Set("X-API-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func TestAnAPIKeyIsAddedNarrowedAndRemoved(t *testing.T) {
	const second = "second-key-0123456789"
	g := startLive(t, withProtocols, Options{})
	h := newHolder(t, g.gateway)
	if status, _ := g.postAs(t, second); status != 401 {
		t.Errorf("an unknown key: %d", status)
	}
	g.change(t, func(c *config.Config) {
		c.Auth.APIKeys = append(c.Auth.APIKeys, auth.APIKey{Name: "second", Key: second, Subscribe: []string{"private:*", "orders:*"}})
	})
	if status, body := g.postAs(t, second); status != 200 {
		t.Errorf("the new key: %d %s", status, body)
	}
	kinds := []string{"sse", "sse2", "ws"}
	private, open := map[string]*held{}, map[string]*held{}
	for _, kind := range kinds {
		private[kind], open[kind] = h.open(kind, "private", "key "+second), h.open(kind, "orders", "key "+second)
	}
	g.refused(t, "there twice", func(c *config.Config) { c.Auth.APIKeys[1].Name = c.Auth.APIKeys[0].Name })
	g.change(t, func(c *config.Config) { c.Auth.APIKeys[1].Subscribe = []string{"orders:*"} })
	for _, kind := range kinds {
		private[kind].wantEnd(t, "4403")
	}
	g.publish(t, "orders:a", `"first"`)
	for _, c := range open {
		c.wantOpen(t, "first")
	}
	g.change(t, func(c *config.Config) { c.Auth.APIKeys = c.Auth.APIKeys[:1] })
	for _, kind := range kinds {
		open[kind].wantEnd(t, "4401")
	}
	if status, _ := g.postAs(t, second); status != 401 {
		t.Errorf("a removed key: %d", status)
	}
}

func TestAReloadSetsTheAllowedOrigins(t *testing.T) {
	g := startLive(t, nil, Options{})
	ask := func(want int) {
		t.Helper()
		for name, c := range map[string]paged{"loops": {g.gateway, http.DefaultClient}, "net/http": {g.gateway, overHTTP2(t, nil)}} {
			res := c.request(t, "GET", "/sse?channel=a", "", g.Addr().String(), "https://app.example.com")
			if res.StatusCode != want {
				t.Errorf("%s: %d, want %d", name, res.StatusCode, want)
			}
		}
	}
	ask(403)
	g.change(t, func(c *config.Config) { c.Auth.AllowedOrigins = []string{"https://*.example.com"} })
	ask(200)
	g.refused(t, "not an origin", func(c *config.Config) { c.Auth.AllowedOrigins = []string{"nonsense"} })
	ask(200)
	g.change(t, func(c *config.Config) { c.Auth.AllowedOrigins = nil })
	ask(403)
}

// TestAPreviewCountsConnectionsToClose closes no connection.
func TestAPreviewCountsConnectionsToClose(t *testing.T) {
	g := startLive(t, withProtocols, Options{})
	h := newHolder(t, g.gateway)
	var all []*held
	for _, kind := range []string{"sse", "sse2", "ws", "mercure", "centrifuge"} {
		all = append(all, h.open(kind, "private", tokenBy(t, oldSecret, "u")), h.open(kind, "default", ""))
	}
	wanted := *g.reload.now()
	deepCopy(&wanted)
	wanted.Auth.HMACSecret = newSecret
	p, err := g.Preview(t.Context(), []byte(wanted.File()))
	if err != nil {
		t.Fatal(err)
	}
	if c := p.Closing; c == nil || c.Connections != 5 || c.Protocols["sse"] != 2 || c.Protocols["websocket"] != 1 || c.Protocols["mercure"] != 1 || c.Protocols["centrifuge"] != 1 {
		t.Errorf("%+v", p.Closing)
	}
	for _, c := range p.Changes {
		if strings.Contains(c.Old+c.New, "secret-of") {
			t.Errorf("a secret is shown: %+v", c)
		}
	}
	g.publish(t, "private:a", `"all"`)
	g.publish(t, "default:a", `"all"`)
	g.publish(t, "mercure:a", `"all"`)
	for _, c := range all {
		c.wantOpen(t, "all")
	}
}
