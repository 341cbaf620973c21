package app

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/hub"
	"github.com/weir-gateway/weir/internal/auth"
	"github.com/weir-gateway/weir/internal/config"
	"github.com/weir-gateway/weir/internal/trial"
	"github.com/weir-gateway/weir/internal/wire/wiretest"
)

const secret = "a-secret-of-at-least-thirty-two-bytes"

func withSecret(c *config.Config) {
	c.Auth.HMACSecret = secret
	c.Auth.Leeway = hub.Duration(time.Millisecond)
}

var minted atomic.Uint64

// mint makes a token; no two are the same, so none is known before.
func mint(t *testing.T, c auth.MintClaims) string {
	t.Helper()
	c.Subject += "/" + strconv.FormatUint(minted.Add(1), 10)
	token, err := auth.Mint(auth.Config{HMACSecret: secret}, c)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestATokenIsTakenFromHeaderQueryAndCookie(t *testing.T) {
	g := start(t, func(c *config.Config) {
		withSecret(c)
		c.Auth.AllowedOrigins = []string{"https://app.example", "*"}
	})
	f := func(query, fields string, status int) {
		t.Helper()
		token := mint(t, auth.MintClaims{Subscribe: []string{"private:a"}})
		for range 2 { // verified, then known
			w := g.dial(t)
			w.Send(wiretest.CRLF(strings.ReplaceAll("GET /sse?channel=private:a"+query+" HTTP/1.1\nHost: a\n"+fields+"\n", "TOKEN", token)))
			if res := w.Response(); res.StatusCode != status {
				t.Errorf("%s %s: %d, want %d", query, fields, res.StatusCode, status)
			}
			w = g.dial(t)
			w.Send(wiretest.CRLF(strings.ReplaceAll("GET /ws?channel=private:a"+query+" HTTP/1.1\nHost: a\n"+wiretest.UpgradeFields+fields+"\n", "TOKEN", token)))
			if res := w.Response(); res.StatusCode != status && (status != 200 || res.StatusCode != 101) {
				t.Errorf("ws %s %s: %d, want %d", query, fields, res.StatusCode, status)
			}
		}
	}
	f("", "Authorization: Bearer TOKEN\n", 200)
	f("&token=TOKEN", "", 200)
	f("", "Cookie: a=b; weir_token=TOKEN\n", 200)
	f("", "Cookie: weir_token=TOKEN\nOrigin: https://app.example\n", 200)
	f("", "Cookie: weir_token=TOKEN\nOrigin: https://other.example\n", 401) // a page that is only let in by "*"
	f("&token=TOKEN", "Origin: https://other.example\n", 200)
	f("&token=TOKENx", "", 401)
	f("&channel=private:b&token=TOKEN", "", 403)
	f("", "Authorization: Basic TOKEN\n", 401)
}

func TestExpiryEndsStreams(t *testing.T) {
	g := start(t, withSecret)
	token := mint(t, auth.MintClaims{Subscribe: []string{"**"}, TTL: time.Second, Now: time.Now().Truncate(time.Second)})
	begin := time.Now()
	s := g.dial(t)
	s.Send(wiretest.CRLF("GET /sse?channel=private:a&token=" + token + " HTTP/1.1\nHost: a\n\n"))
	w := g.ws(t, "channel=private:a&token="+token, "")
	if res := s.Response(); res.StatusCode != 200 {
		t.Fatalf("%d", res.StatusCode)
	}
	s.Block()
	if got := s.Block(); !strings.Contains(got, "event: end\n") || !strings.Contains(got, `"code":4401`) || !s.Closed() {
		t.Errorf("SSE: %q, want end 4401", got)
	}
	if got := w.CloseCode(); got != 4401 {
		t.Errorf("WebSocket: %d, want 4401", got)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	trial.Eventually(t, "nobody is left", func() bool { st := g.push.Stats(); return st.SSE+st.WebSocket == 0 && st.Expired == 2 })
	late := g.dial(t)
	late.Send(wiretest.CRLF("GET /sse?channel=private:a&token=" + token + " HTTP/1.1\nHost: a\n\n"))
	res, body := late.Answer("GET")
	wantError(t, "an expired token", res, body, 401)
	if !strings.Contains(res.Header.Get("WWW-Authenticate"), "invalid_token") {
		t.Errorf("challenge %q", res.Header.Get("WWW-Authenticate"))
	}
}

func TestKeysThatCannotBeFetchedAreNotTheClientsFault(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	g := start(t, func(c *config.Config) { c.Auth.JWKSURL = down.URL })
	token := "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJzdWIiOiJhIiwiZXhwIjo5OTk5OTk5OTk5fQ." + strings.Repeat("A", 342)
	f := func(raw string) {
		t.Helper()
		w := g.dial(t)
		w.Send(wiretest.CRLF(raw))
		res, body := w.Answer("GET")
		wantError(t, raw[:20], res, body, 503)
	}
	f("GET /sse?channel=private:a&token=" + token + " HTTP/1.1\nHost: a\n\n")
	f("GET /ws?channel=private:a&token=" + token + " HTTP/1.1\nHost: a\n" + wiretest.UpgradeFields + "\n")
	f("POST /api/publish?token=" + token + " HTTP/1.1\nHost: a\nContent-Length: 100\n\n{")
}
