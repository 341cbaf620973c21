package admin

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/observe/admin/login"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

const sessionKey = "session-key-0123456789-0123456789-0123456789"

// oidcSite is an admin listener that users of o log in to.
func oidcSite(t *testing.T, o *openID, token auth.Secret, change ...func(*login.Config)) (*site, *login.OIDC) {
	t.Helper()
	var l *login.OIDC
	s := serve(t, token, "", func(srv *Server) {
		cfg := login.Config{
			Issuer: o.URL, ClientID: clientID, ClientSecret: clientSecret, RedirectURL: "http://" + srv.Addr().String() + pathCallback,
			Operators: []string{"ops"}, Readers: []string{"staff"},
		}
		for _, f := range change {
			f(&cfg)
		}
		var err error
		if l, err = login.New(cfg, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		srv.access.oidc = l
	})
	return s, l
}

// A browser keeps cookies and follows redirects; trail are the responses on the way.
type browser struct {
	*http.Client
	s     *site
	trail []*http.Response
}

func (s *site) browser(from string) *browser {
	b := &browser{Client: s.client(from), s: s}
	b.Jar, _ = cookiejar.New(nil)
	b.CheckRedirect = func(req *http.Request, _ []*http.Request) error { b.trail = append(b.trail, req.Response); return nil }
	return b
}

// get returns status and body of where path leads.
func (b *browser) get(path string) (*http.Response, string) {
	b.trail = nil
	return b.s.do(b.Client, "GET", path, "", "Accept: text/html")
}

// session returns the cookie of the session, empty if there is none.
func (b *browser) session() string {
	u, _ := url.Parse("http://" + b.s.addr + "/")
	for _, c := range b.Jar.Cookies(u) {
		if c.Name == cookieName {
			return c.Value
		}
	}
	return ""
}

func TestOpenIDLogin(t *testing.T) {
	o := newOpenID(t)
	s, l := oidcSite(t, o, rightToken)
	own := "Origin: http://" + s.addr
	b := s.browser("127.0.0.1")
	if res, body := b.get("/"); res.Request.URL.Path != "/login" || !strings.Contains(body, `href="/oidc/login"`) || !strings.Contains(body, `name="token"`) {
		t.Fatalf("without a session: %s %s", res.Request.URL, body)
	}
	res, body := b.get("/oidc/login?next=https://evil.example&redirect_uri=https://evil.example")
	if res.StatusCode != 200 || res.Request.URL.String() != "http://"+s.addr+"/" {
		t.Fatalf("%d at %s: %s", res.StatusCode, res.Request.URL, body)
	}
	o.set(func() {
		if scope := o.requested.Get("scope"); scope != "openid profile email" {
			t.Errorf("scope %q", scope)
		}
	})
	done := b.trail[len(b.trail)-1]
	var line string
	for _, c := range done.Header["Set-Cookie"] {
		if strings.HasSuffix(c, "SameSite=Lax") && strings.Contains(c, "Path=/;") {
			line = c
		}
	}
	if !strings.Contains(line, "HttpOnly") || !strings.Contains(line, "Max-Age=28800") || strings.Contains(line, "Domain") || strings.Contains(line, "ada") {
		t.Errorf("cookies %q", done.Header["Set-Cookie"])
	}
	for _, x := range changes {
		if res, _ := s.do(b.Client, "POST", x.path, x.body); res.StatusCode != 403 || s.done[x.does] != 0 {
			t.Errorf("%s without Origin: %d", x.path, res.StatusCode)
		}
		if res, _ := s.do(b.Client, "POST", x.path, x.body, "Origin: http://evil.example"); res.StatusCode != 403 || s.done[x.does] != 0 {
			t.Errorf("%s from another origin: %d", x.path, res.StatusCode)
		}
		if res, body := s.do(b.Client, "POST", x.path, x.body, own); res.StatusCode >= 300 || s.done[x.does] != 1 {
			t.Errorf("%s: %d %s", x.path, res.StatusCode, body)
		}
	}
	if res, _ := s.do(s.client("127.0.0.1"), "POST", "/api/reload", "", bearer(rightToken)); res.StatusCode != 200 {
		t.Errorf("the token beside it: %d", res.StatusCode)
	}

	cookie := "Cookie: " + cookieName + "=" + b.session()
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, _ = s.do(b.Client, "POST", "/logout?post_logout_redirect_uri=https://evil.example", "", own)
	at, err := url.Parse(res.Header.Get("Location"))
	if err != nil || res.StatusCode != 303 || at.Scheme+"://"+at.Host+at.Path != o.URL+"/logout" {
		t.Fatalf("logout: %d to %s", res.StatusCode, at)
	}
	if q := at.Query(); q.Get("post_logout_redirect_uri") != "http://"+s.addr+"/login" || q.Get("client_id") != clientID || strings.Count(q.Get("id_token_hint"), ".") != 2 {
		t.Errorf("logout at the provider: %v", q)
	}
	if b.session() != "" {
		t.Error("the cookie is still there")
	}
	if res, _ := s.do(s.client("127.0.0.1"), "GET", "/api/info", "", cookie); res.StatusCode != 401 {
		t.Errorf("the cookie after the logout: %d", res.StatusCode)
	}
	if res, _ := s.do(s.client("127.0.0.1"), "GET", "/login", ""); !strings.Contains(res.Header.Get("Content-Security-Policy"), "form-action 'self' "+o.URL+";") {
		t.Errorf("browsers would not follow the logout: %s", res.Header.Get("Content-Security-Policy"))
	}
	for result, n := range l.Results() {
		if want := map[string]uint64{"ok": 1}[result]; n != want {
			t.Errorf("%s: %d, want %d", result, n, want)
		}
	}
}

func TestOpenIDRoles(t *testing.T) {
	o := newOpenID(t)
	f := func(name string, claims jwt.MapClaims, userinfo map[string]any, read, change int, cfg func(*login.Config)) {
		t.Helper()
		o.set(func() {
			o.userinfo = userinfo
			o.claims = func(c jwt.MapClaims) {
				delete(c, "groups")
				for k, v := range claims {
					c[k] = v
				}
			}
		})
		s, _ := oidcSite(t, o, "", func(c *login.Config) {
			if cfg != nil {
				cfg(c)
			}
		})
		b := s.browser("127.0.0.1")
		b.get("/oidc/login")
		if res, _ := s.do(b.Client, "GET", "/api/snapshot", ""); res.StatusCode != read {
			t.Errorf("%s: reading is answered %d, want %d", name, res.StatusCode, read)
		}
		if res, _ := s.do(b.Client, "POST", "/api/reload", "", "Origin: http://"+s.addr); res.StatusCode != change {
			t.Errorf("%s: a change is answered %d, want %d", name, res.StatusCode, change)
		}
	}
	claim := func(name string, operators ...string) func(*login.Config) {
		return func(c *login.Config) { c.RolesClaim, c.Operators, c.Readers = name, operators, nil }
	}
	f("an operator", jwt.MapClaims{"groups": []string{"ops"}}, nil, 200, 200, nil)
	f("a reader", jwt.MapClaims{"groups": []string{"staff"}}, nil, 200, 403, nil)
	f("a reader by a text", jwt.MapClaims{"groups": "staff"}, nil, 200, 403, nil)
	f("another group", jwt.MapClaims{"groups": []string{"guests", "OPS", "ops "}}, nil, 401, 401, nil)
	f("no groups", nil, nil, 401, 401, nil)
	f("groups that are no texts", jwt.MapClaims{"groups": map[string]any{"ops": true}}, nil, 401, 401, nil)
	f("userinfo", nil, map[string]any{"sub": "user-1", "groups": []string{"ops"}}, 200, 200, nil)
	f("userinfo of another", nil, map[string]any{"sub": "user-2", "groups": []string{"ops"}}, 401, 401, nil)
	f("userinfo does not replace the ID token", jwt.MapClaims{"groups": []string{}}, map[string]any{"sub": "user-1", "groups": []string{"ops"}}, 401, 401, nil)
	f("a path", jwt.MapClaims{"realm_access": map[string]any{"roles": []string{"ops"}}}, nil, 200, 200, claim("realm_access.roles", "ops"))
	f("a claim whose name has dots", jwt.MapClaims{"https://example.com/roles": []string{"ops"}}, nil, 200, 200, claim("https://example.com/roles", "ops"))
	f("an email", jwt.MapClaims{"email": "ada@example.com", "email_verified": true}, nil, 200, 200, claim("email", "ada@example.com"))
	f("an email that nothing proves", jwt.MapClaims{"email": "ada@example.com"}, nil, 401, 401, claim("email", "ada@example.com"))
	f("every user", nil, nil, 200, 403, func(c *login.Config) { c.Operators, c.Readers = nil, []string{"*"} })
}

// Without an admin token an empty one is not it.
func TestWithOpenIDAloneNoTokenIsRight(t *testing.T) {
	s, _ := oidcSite(t, newOpenID(t), "")
	for _, field := range []string{"X-Nothing: 1", "Authorization: Bearer ", "Authorization: Basic Og==", "Cookie: " + cookieName + "=", bearer(readToken)} {
		if res, body := s.do(s.client("127.0.0.1"), "GET", "/api/info", "", field); res.StatusCode != 401 {
			t.Errorf("%s: %d %s", field, res.StatusCode, body)
		}
	}
	if res, _ := s.do(s.client("127.0.0.1"), "POST", "/login", "token=", "Content-Type: application/x-www-form-urlencoded"); res.StatusCode != 403 || len(res.Cookies()) > 0 {
		t.Errorf("an empty token in the form: %d", res.StatusCode)
	}
	if _, body := s.do(s.client("127.0.0.1"), "GET", "/login", ""); strings.Contains(body, "<form") {
		t.Error("the page prompts for a token")
	}
}

// TestOpenIDTokensThatAreNotValid: each twin of a login that succeeds.
func TestOpenIDTokensThatAreNotValid(t *testing.T) {
	o := newOpenID(t)
	s, l := oidcSite(t, o, "")
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&o.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	f := func(name string, twist func(), want int) {
		t.Helper()
		o.set(twist)
		defer o.fair()
		n++
		b := s.browser("127.0.0." + string(rune('2'+n/8))) // few from each address
		res, body := b.get("/oidc/login")
		if in := b.session() != ""; res.StatusCode != want || in != (want == 200) || strings.Contains(body, clientSecret) {
			t.Errorf("%s: %d, want %d, session %v: %s", name, res.StatusCode, want, in, body)
		}
		if res, _ := s.do(b.Client, "GET", "/api/info", ""); (res.StatusCode == 200) != (want == 200) {
			t.Errorf("%s: then /api/info is answered %d", name, res.StatusCode)
		}
	}
	claim := func(k string, v any) func() {
		return func() {
			o.claims = func(c jwt.MapClaims) {
				if v == nil {
					delete(c, k)
				} else {
					c[k] = v
				}
			}
		}
	}
	sign := func(method jwt.SigningMethod, key any) func() {
		return func() { o.sign = func(c jwt.MapClaims) string { return signedBy(method, key, c) } }
	}
	f("nothing wrong", func() {}, 200)
	f("another nonce", claim("nonce", "x"), 403)
	f("no nonce", claim("nonce", nil), 403)
	f("another audience", claim("aud", "other"), 403)
	f("no audience", claim("aud", nil), 403)
	f("audiences without an authorized party", claim("aud", []string{"other", clientID}), 403)
	f("another authorized party", claim("azp", "other"), 403)
	f("this authorized party", claim("azp", clientID), 200)
	f("expired", claim("exp", time.Now().Add(-time.Minute).Unix()), 403)
	f("no end", claim("exp", nil), 403)
	f("not valid before tomorrow", claim("nbf", time.Now().Add(24*time.Hour).Unix()), 403)
	f("another issuer", claim("iss", "https://other.example"), 403)
	f("no subject", claim("sub", nil), 403)
	f("of another access token", claim("at_hash", "AAAAAAAAAAAAAAAAAAAAAA"), 403)
	f("no signature", sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType), 403)
	f("HS256 by the client secret", sign(jwt.SigningMethodHS256, []byte(clientSecret)), 403)
	f("HS256 by the public key", sign(jwt.SigningMethodHS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})), 403)
	f("another key", sign(jwt.SigningMethodRS256, other), 403)
	f("no token", func() { o.sign = func(jwt.MapClaims) string { return "" } }, 403)
	f("half a token", func() { o.sign = func(c jwt.MapClaims) string { return o.signed(c)[:100] } }, 403)
	f("no iss in the response", func() { o.answer = func(v url.Values) { v.Del("iss") } }, 403)
	f("another iss in the response", func() { o.answer = func(v url.Values) { v.Set("iss", "https://other.example") } }, 403)
	f("no code", func() { o.answer = func(v url.Values) { v.Del("code") } }, 400)
	f("another code", func() { o.answer = func(v url.Values) { v.Set("code", "guess") } }, 403)
	f("another state", func() { o.answer = func(v url.Values) { v.Set("state", rand.Text()) } }, 403)
	f("no state", func() { o.answer = func(v url.Values) { v.Del("state") } }, 403)
	f("an error", func() { o.answer = func(v url.Values) { v.Del("code"); v.Set("error", "access_denied") } }, 403)
	f("nothing wrong again", func() {}, 200)
	for result, n := range l.Results() {
		if result == "ok" && n != 3 || result == "rejected" && n < 20 {
			t.Errorf("%s: %d", result, n)
		}
	}
}

func TestWhatTheProviderSendsIsNoMarkup(t *testing.T) {
	o := newOpenID(t)
	s, _ := oidcSite(t, o, "")
	const markup = `<img src=x onerror=alert(1)>`
	o.set(func() {
		o.answer = func(v url.Values) { v.Del("code"); v.Set("error", markup); v.Set("error_description", markup+"TOKEN") }
	})
	if res, body := s.browser("127.0.0.1").get("/oidc/login"); res.StatusCode != 403 || strings.Contains(body, "<img") || !strings.Contains(body, "&lt;img") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	o.fair()
	o.set(func() { o.claims = func(c jwt.MapClaims) { c["preferred_username"], c["groups"] = markup, nil } })
	if res, body := s.browser("127.0.0.1").get("/oidc/login"); res.StatusCode != 403 || strings.Contains(body, "<img") || !strings.Contains(body, "&lt;img") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// A response of the provider is for one use, in the browser that requested it.
func TestOpenIDResponsesAreNotReplayed(t *testing.T) {
	o := newOpenID(t)
	s, _ := oidcSite(t, o, "")
	b := s.browser("127.0.0.1")
	held := ""
	b.CheckRedirect = func(req *http.Request, _ []*http.Request) error {
		if req.URL.Path == pathCallback {
			held = req.URL.RequestURI()
			return http.ErrUseLastResponse
		}
		return nil
	}
	b.get("/oidc/login")
	u, _ := url.Parse("http://" + s.addr + pathCallback)
	flow := "Cookie: " + cookieName + "=" + b.Jar.Cookies(u)[0].Value
	if res, _ := s.do(s.client("127.0.0.1"), "GET", held, ""); res.StatusCode != 403 {
		t.Errorf("in another browser: %d", res.StatusCode)
	}
	again := s.browser("127.0.0.1")
	again.get("/oidc/login") // a login of its own
	if res, _ := s.do(again.Client, "GET", held, ""); res.StatusCode != 403 {
		t.Errorf("in another browser that logs in: %d", res.StatusCode)
	}
	res, _ := s.do(s.client("127.0.0.1"), "GET", held, "", flow)
	if res.StatusCode != 303 || res.Header.Get("Location") != "/" {
		t.Fatalf("in its browser: %d %s", res.StatusCode, res.Header.Get("Location"))
	}
	if res, _ := s.do(s.client("127.0.0.1"), "GET", held, "", flow); res.StatusCode != 403 || len(res.Cookies()) != 1 || res.Cookies()[0].Value != "" {
		t.Errorf("once more: %d %v", res.StatusCode, res.Cookies())
	}
	if res, _ := s.do(s.client("127.0.0.1"), "GET", "/api/info", "", flow); res.StatusCode != 401 {
		t.Errorf("the cookie of a login as that of a session: %d", res.StatusCode)
	}
	// A code that was used, with a login's own state and cookie.
	used := ""
	o.set(func() {
		o.answer = func(v url.Values) {
			if used == "" {
				used = v.Get("code")
			} else {
				v.Set("code", used)
			}
		}
	})
	if res, _ := s.browser("127.0.0.1").get("/oidc/login"); res.StatusCode != 200 {
		t.Fatalf("the first use of a code: %d", res.StatusCode)
	}
	if res, body := s.browser("127.0.0.1").get("/oidc/login"); res.StatusCode != 403 || !strings.Contains(body, "invalid_grant") {
		t.Errorf("the second use of a code: %d %s", res.StatusCode, body)
	}
}

func TestNoRedirectLeadsElsewhere(t *testing.T) {
	o := newOpenID(t)
	s, _ := oidcSite(t, o, "")
	const evil = "https://evil.example"
	query := url.Values{}
	for _, k := range []string{"next", "url", "return_to", "rd", "redirect", "redirect_uri", "target_link_uri", "iss", "login_hint", "post_logout_redirect_uri"} {
		query.Set(k, evil)
	}
	own := "Origin: http://" + s.addr
	for _, host := range []string{s.addr, "evil.example", "evil.example:80"} {
		for method, path := range map[string]string{"GET": "/oidc/login?" + query.Encode(), "POST": "/logout?" + query.Encode()} {
			res, _ := s.do(s.client("127.0.0.1"), method, path, "", "Host: "+host, own)
			if at := res.Header.Get("Location"); strings.Contains(at, "evil") || host == s.addr && at == "" {
				t.Errorf("%s %s of %s: %d to %s", method, path, host, res.StatusCode, at)
			}
		}
	}
	o.set(func() { o.answer = func(v url.Values) { v.Set("next", evil); v.Set("redirect_uri", evil) } })
	if res, _ := s.browser("127.0.0.1").get("/oidc/login"); res.Request.URL.Host != s.addr || res.StatusCode != 200 {
		t.Errorf("it ends at %s", res.Request.URL)
	}
}

// The listener serves without its provider, shows why no user can log in, and lets them in
// when the provider is back.
func TestOpenIDProviderThatIsUnavailable(t *testing.T) {
	o := newOpenID(t)
	o.set(func() { o.down = true })
	s, l := oidcSite(t, o, rightToken)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	trial.Eventually(t, "the page shows why", func() bool {
		_, body := s.do(s.client("127.0.0.1"), "GET", "/login", "")
		return strings.Contains(body, "does not work now") && strings.Contains(body, "503")
	})
	if res, body := s.browser("127.0.0.1").get("/oidc/login"); res.StatusCode != 502 || !strings.Contains(body, "503") {
		t.Errorf("a login: %d %s", res.StatusCode, body)
	}
	if res, _ := s.do(s.client("127.0.0.1"), "GET", "/api/info", "", bearer(rightToken)); res.StatusCode != 200 {
		t.Errorf("the token: %d", res.StatusCode)
	}
	o.set(func() { o.down = false })
	trial.Eventually(t, "it is known", func() bool { return l.Trouble() == "" })
	if res, _ := s.browser("127.0.0.2").get("/oidc/login"); res.StatusCode != 200 {
		t.Errorf("a login when it is back: %d", res.StatusCode)
	}
}

func TestOpenIDProvidersThatAreNotUsed(t *testing.T) {
	f := func(text string, document func(map[string]any)) {
		t.Helper()
		o := newOpenID(t)
		o.set(func() { o.document = document })
		s, _ := oidcSite(t, o, "")
		if res, body := s.browser("127.0.0.1").get("/oidc/login"); res.StatusCode != 502 || !strings.Contains(body, text) {
			t.Errorf("%s: %d %s", text, res.StatusCode, body)
		}
	}
	f("admin.oidc.issuer is", func(d map[string]any) { d["issuer"] = "https://other.example" })
	f("authorization_endpoint", func(d map[string]any) { d["authorization_endpoint"] = "javascript:alert(1)" })
	f("token_endpoint", func(d map[string]any) { delete(d, "token_endpoint") })
	f("PKCE", func(d map[string]any) { d["code_challenge_methods_supported"] = []string{"plain"} })
	f("discover", func(d map[string]any) { d["filler"] = strings.Repeat("x", 2<<20) })
}

func TestLoginsAreLimitedByAddress(t *testing.T) {
	o := newOpenID(t)
	s, _ := oidcSite(t, o, rightToken)
	c := s.client("127.0.0.1")
	for i := range maxGuesses + 1 {
		res, _ := s.do(c, "GET", "/oidc/login", "")
		if want := map[bool]int{true: 303, false: 429}[i < maxGuesses]; res.StatusCode != want || want == 429 && res.Header.Get("Retry-After") == "" {
			t.Fatalf("login %d: %d, want %d", i, res.StatusCode, want)
		}
	}
	if res, _ := s.do(c, "GET", pathCallback+"?state=x&code=y", ""); res.StatusCode != 429 {
		t.Errorf("a callback: %d", res.StatusCode)
	}
	if res, _ := s.do(c, "GET", "/api/info", "", bearer(rightToken)); res.StatusCode != 200 {
		t.Errorf("the token: %d", res.StatusCode)
	}
	if res, _ := s.do(s.client("127.0.0.2"), "GET", "/oidc/login", ""); res.StatusCode != 303 {
		t.Errorf("another address: %d", res.StatusCode)
	}
}

// With the same key a session is valid on every node and after a restart, until its end.
func TestOpenIDSessionsOfOtherProcesses(t *testing.T) {
	o := newOpenID(t)
	keyed := func(c *login.Config) { c.SessionKey = sessionKey }
	s, l := oidcSite(t, o, "", keyed)
	b := s.browser("127.0.0.1")
	b.get("/oidc/login")
	r, err := http.NewRequest("GET", "http://"+s.addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(&http.Cookie{Name: cookieName, Value: b.session()})
	now := time.Now()
	f := func(name string, l *login.OIDC, at time.Time, want bool) {
		t.Helper()
		if _, ok := l.Session(r, at); ok != want {
			t.Errorf("%s: %v, want %v", name, ok, want)
		}
	}
	other := func(change ...func(*login.Config)) *login.OIDC {
		_, l := oidcSite(t, o, "", change...)
		return l
	}
	f("this process", l, now, true)
	f("near its end", l, now.Add(8*time.Hour-time.Minute), true)
	f("after its end", l, now.Add(8*time.Hour+time.Minute), false)
	f("another process with the key", other(keyed), now, true)
	f("another process without one", other(), now, false)
	f("another key", other(func(c *login.Config) { c.SessionKey = sessionKey + "x" }), now, false)
	f("other operators", other(keyed, func(c *login.Config) { c.Operators = []string{"admins"} }), now, false)
	f("another client", other(keyed, func(c *login.Config) { c.ClientID = "other" }), now, false)
	r.Header.Set("Cookie", cookieName+"="+b.session()[:len(b.session())-4]+"AAAA")
	f("a changed cookie", l, now, false)
}

// The name of the redirect URL is one that browsers may use on loopback, as behind a proxy
// that terminates TLS on this machine.
func TestTheNameOfTheRedirectURLIsTrusted(t *testing.T) {
	o := newOpenID(t)
	s, _ := oidcSite(t, o, rightToken, func(c *login.Config) { c.RedirectURL = "https://weir.example.com" + pathCallback })
	c := s.client("127.0.0.1")
	res, _ := s.do(c, "GET", "/oidc/login", "", "Host: weir.example.com")
	if res.StatusCode != 303 || !res.Cookies()[0].Secure {
		t.Errorf("%d %v", res.StatusCode, res.Cookies())
	}
	if res, _ := s.do(c, "POST", "/api/reload", "", bearer(rightToken), "Host: weir.example.com", "Origin: https://weir.example.com"); res.StatusCode != 200 {
		t.Errorf("a change: %d", res.StatusCode)
	}
	if res, _ := s.do(c, "GET", "/oidc/login", "", "Host: evil.example.com"); res.StatusCode != 403 {
		t.Errorf("another name: %d", res.StatusCode)
	}
	if res, body := s.do(c, "GET", pathCallback+"?state=x", "", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"); res.StatusCode != 403 || !strings.Contains(body, "not started in this browser") {
		t.Errorf("the redirect of a provider, without a login: %d %s", res.StatusCode, body)
	}
}
