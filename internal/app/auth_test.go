package app

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
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
	token, err := auth.Mint(auth.Config{KeySet: auth.KeySet{HMACSecret: secret}}, c)
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
	t.Parallel() // it mostly waits
	g := start(t, withSecret)
	// Claims count whole seconds: it lives for two to three.
	token := mint(t, auth.MintClaims{Subscribe: []string{"**"}, TTL: 3 * time.Second, Now: time.Now().Truncate(time.Second)})
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
	trial.Eventually(t, "no stream is left", func() bool { st := g.push.Stats(); return st.SSE+st.WebSocket == 0 && st.Expired == 2 })
	late := g.dial(t)
	late.Send(wiretest.CRLF("GET /sse?channel=private:a&token=" + token + " HTTP/1.1\nHost: a\n\n"))
	res, body := late.Answer("GET")
	wantError(t, "an expired token", res, body, 401)
	if !strings.Contains(res.Header.Get("WWW-Authenticate"), "invalid_token") {
		t.Errorf("challenge %q", res.Header.Get("WWW-Authenticate"))
	}
}

// TestAnEventSourceIsNotifiedThatItsTokenHasExpired connects as browsers do: after a 401 they
// would never come back, and their pages not learn why.
func TestAnEventSourceIsNotifiedThatItsTokenHasExpired(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		g := start(t, func(c *config.Config) {
			withSecret(c)
			c.Auth.AllowedOrigins = []string{"https://app.example"}
		})
		p := paged{g, &http.Client{Transport: &http.Transport{}, Timeout: trial.Patience}}
		if version == "HTTP/2" {
			p.client = overHTTP2(t, nil)
		}
		token := mint(t, auth.MintClaims{Subscribe: []string{"**"}, TTL: time.Second, Now: time.Now().Add(-time.Minute)})
		const accept, origin = "text/event-stream", "https://app.example"
		for range 2 {
			req, _ := http.NewRequestWithContext(t.Context(), "GET", g.url+"/sse?channel=private:a&token="+token, nil)
			req.Header.Set("Accept", accept)
			req.Header.Set("Origin", origin)
			res, err := p.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body) // it ends by itself
			_ = res.Body.Close()
			var retry int
			n, _ := fmt.Sscanf(string(body), "retry: %d\nevent: end\ndata: {\"code\":4401,\"reason\":\"token expired\"}\n\n", &retry)
			if err != nil || n != 1 || retry < 30_000 || retry > 60_000 {
				t.Errorf("%s: %q, %v", version, body, err)
			}
			if h := res.Header; res.StatusCode != 200 || h.Get("Content-Type") != accept || h.Get("Access-Control-Allow-Origin") != origin || h.Get("WWW-Authenticate") != "" {
				t.Errorf("%s: %d %v", version, res.StatusCode, h)
			}
		}
		f := func(method, path, token, accept string) {
			t.Helper()
			if res := p.request(t, method, path+token, "{}", "", origin, "Accept", accept); res.StatusCode != 401 {
				t.Errorf("%s %s %s with %s: %d, want 401", version, method, path, accept, res.StatusCode)
			}
		}
		f("GET", "/sse?channel=private:a&token=", token, "*/*")
		f("GET", "/sse?channel=private:a&token=", token+"x", accept) // not a token of ours
		f("GET", "/sse?channel=private:a", "", accept)               // no token
		f("POST", "/api/publish?token=", token, accept)
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
	// An EventSource comes back after a while.
	for _, c := range []*http.Client{{Transport: &http.Transport{}}, overHTTP2(t, nil)} {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", g.url+"/sse?channel=private:a&token="+token, nil)
		req.Header.Set("Accept", "text/event-stream")
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		c.CloseIdleConnections()
		if res.StatusCode != 200 || !strings.Contains(string(body), `"code":1013`) {
			t.Errorf("%s: %d %q", res.Proto, res.StatusCode, body)
		}
	}
}
