package app

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-gateway/weir/internal/app/config"
)

const (
	adminToken = "admin-token-0123456789"
	readToken  = "read-token-0123456789"
)

func withTokens(c *config.Config) {
	c.Admin.Token, c.Admin.ReadToken = adminToken, readToken
}

func basic(password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("any:"+password))
}

func TestAdminRequiresItsToken(t *testing.T) {
	g := start(t, withTokens)
	f := func(status int, method, path string, fields ...string) {
		t.Helper()
		if res, body := g.do(t, method, path, "", fields...); res.StatusCode != status {
			t.Errorf("%s %s %v: %d %.100s, want %d", method, path, fields, res.StatusCode, body, status)
		}
	}
	for _, path := range []string{"/", "/metrics", "/debug/vars", "/debug/pprof/", "/api/info", "/api/snapshot", "/api/live", "/api/bundles", "/api/nothing"} {
		f(401, "GET", path)
		f(401, "GET", path, "Authorization: Bearer "+adminToken+"x")
		f(401, "GET", path, "Cookie: weir_admin=guess")
	}
	f(401, "POST", "/api/reload")
	for _, how := range []string{"Authorization: Bearer " + adminToken, basic(adminToken)} {
		for _, path := range []string{"/metrics", "/debug/vars", "/debug/pprof/", "/api/info", "/api/snapshot"} {
			f(200, "GET", path, how)
		}
		f(200, "POST", "/api/reload", how)
	}
	for _, how := range []string{"Authorization: Bearer " + readToken, basic(readToken)} {
		for _, path := range []string{"/metrics", "/debug/vars", "/api/info", "/api/snapshot", "/api/connections", "/api/bundles", "/api/upstreams"} {
			f(200, "GET", path, how)
		}
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/api/channels/a/messages", "/api/bundles/x", "/api/subscribe?channel=a", "/api/trace/x"} {
			f(403, "GET", path, how)
		}
		for _, path := range []string{"/api/reload", "/api/publish", "/api/trace", "/api/bundles", "/api/connections/1/disconnect", "/api/canary/a/restart"} {
			f(403, "POST", path, how)
		}
	}
}

func TestBrowsersLogIn(t *testing.T) {
	g := start(t, withTokens)
	own := "Origin: http://" + g.AdminAddr().String()
	form := "Content-Type: application/x-www-form-urlencoded"
	res, _ := g.do(t, "GET", "/", "", "Accept: text/html")
	if res.StatusCode != 303 || res.Header.Get("Location") != "/login" {
		t.Errorf("a browser is sent to %s with %d", res.Header.Get("Location"), res.StatusCode)
	}
	res, body := g.do(t, "GET", "/login", "")
	if res.StatusCode != 200 || !strings.Contains(string(body), `type="password"`) || strings.Contains(string(body), "<script") || strings.Contains(string(body), "style=") {
		t.Errorf("the page: %d %s", res.StatusCode, body)
	}
	if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("policy %q", csp)
	}
	if res, _ := g.do(t, "POST", "/login", url.Values{"token": {readToken}}.Encode(), form, own); res.StatusCode != 403 || len(res.Cookies()) != 0 {
		t.Errorf("the read token logs in: %d", res.StatusCode)
	}
	if res, _ := g.do(t, "POST", "/login", url.Values{"token": {adminToken}}.Encode(), form, "Origin: http://evil.example"); res.StatusCode != 403 || len(res.Cookies()) != 0 {
		t.Errorf("from another origin: %d", res.StatusCode)
	}
	res, _ = g.do(t, "POST", "/login", url.Values{"token": {adminToken}}.Encode(), form, own)
	if res.StatusCode != 303 || len(res.Cookies()) != 1 {
		t.Fatalf("log in: %d, %v", res.StatusCode, res.Cookies())
	}
	c := res.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || strings.Contains(c.Value, adminToken) {
		t.Errorf("cookie %+v", c)
	}
	session := "Cookie: " + c.Name + "=" + c.Value
	if res, _ := g.do(t, "GET", "/api/snapshot", "", session); res.StatusCode != 200 {
		t.Errorf("with the cookie: %d", res.StatusCode)
	}
	if res, _ := g.do(t, "POST", "/api/reload", "", session, own, "Sec-Fetch-Site: same-origin"); res.StatusCode != 200 {
		t.Errorf("a change from the page: %d", res.StatusCode)
	}
	for _, from := range []string{"Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: "} {
		if res, _ := g.do(t, "POST", "/api/reload", "", session, from); res.StatusCode != 403 {
			t.Errorf("a change by %s: %d", from, res.StatusCode)
		}
	}
	if res, _ := g.do(t, "GET", "/api/snapshot", "", session, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"); res.StatusCode != 403 {
		t.Errorf("read by another page: %d", res.StatusCode)
	}
	if res, _ := g.do(t, "POST", "/logout", "", session, own); res.StatusCode != 303 {
		t.Errorf("log out: %d", res.StatusCode)
	}
	if res, _ := g.do(t, "GET", "/api/snapshot", "", session); res.StatusCode != 401 {
		t.Errorf("after that: %d", res.StatusCode)
	}
}

func TestGuessingIsSlowedDown(t *testing.T) {
	g := start(t, withTokens)
	slowed := false
	for range 100 {
		if res, _ := g.do(t, "GET", "/api/info", "", "Authorization: Bearer guess"); res.StatusCode == 429 {
			slowed = res.Header.Get("Retry-After") != ""
			break
		}
	}
	if !slowed {
		t.Error("a hundred guesses were answered")
	}
	// Failed attempts from the same address do not lock the operator out.
	if res, _ := g.do(t, "GET", "/api/info", "", "Authorization: Bearer "+adminToken); res.StatusCode != 200 {
		t.Errorf("the right token after wrong ones: %d", res.StatusCode)
	}
}

func TestAdminStaysOnLoopbackWithoutAToken(t *testing.T) {
	f := func(listen, token string, ok bool) {
		t.Helper()
		c := config.Default()
		c.Listen, c.Admin.Listen, c.Broker = "127.0.0.1:0", listen, config.Broker{Kind: config.BrokerMemory}
		if token != "" {
			c.Admin.TokenFile = filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(c.Admin.TokenFile, []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, err := New(c, Options{})
		if (err == nil) != ok {
			t.Errorf("admin on %s with token %q: %v", listen, token, err)
		}
		if err == nil {
			a.loops.Release()
			_ = a.close()
		}
	}
	f("127.0.0.1:0", "", true)
	f("[::1]:0", "", true)
	f("localhost:0", "", true)
	f("0.0.0.0:0", "", false)
	f(":0", "", false)
	f("0.0.0.0:0", adminToken, true)
	f("0.0.0.0:0", "short", false)
}
