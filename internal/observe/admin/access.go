package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/observe/admin/login"
	"github.com/weir-gateway/weir/internal/observe/audit"
)

// access decides who comes in.
type access struct {
	// Fixed at Listen. Digests: comparing takes the same time for tokens of any length.
	token, read   [sha256.Size]byte
	tokens, reads bool        // there is a token, there is a read token
	oidc          *login.OIDC // nil: no login by OpenID Connect
	log           *slog.Logger
	records       *audit.Log // of changes; nil: no audit log

	base     time.Time
	guesses  *limit.Table // by address
	quota    limit.Quota
	bodyTime time.Duration // how long a body may take

	mu       sync.Mutex
	sessions map[[sha256.Size]byte]time.Time // when they end, by digest of the cookie
}

const (
	cookieName  = auth.AdminCookie
	sessionTime = 12 * time.Hour
	maxSessions = 256
	// maxGuesses wrong tokens may come from an address at once, and so many a minute in the
	// long run: beyond that it is answered 429 until it waits. A right token always passes,
	// or any program on the operator's machine could lock the operator out; tokens have at
	// least 128 bits, which no rate of guesses finds. Of IPv6 the first 64 bits count.
	maxGuesses = 30
	// maxGuessers is how many addresses are remembered.
	maxGuessers = 4096
	// maxToken is how long what is shown may be.
	maxToken = 1 << 10
)

func newAccess(token, read string, oidc *login.OIDC, log *slog.Logger) *access {
	return &access{
		log: log, token: sha256.Sum256([]byte(token)), read: sha256.Sum256([]byte(read)), tokens: token != "", reads: read != "", oidc: oidc,
		sessions: map[[sha256.Size]byte]time.Time{}, base: time.Now(), guesses: limit.NewTable(maxGuessers),
		quota: limit.Rate{PerSecond: maxGuesses / 60.0, Burst: maxGuesses}.Quota(), bodyTime: 30 * time.Second,
	}
}

// guarded reports whether callers need a token or a session.
func (a *access) guarded() bool { return a.tokens || a.oidc != nil }

// shownToken returns the token that r shows, as Bearer or as the password of HTTP Basic.
func shownToken(r *http.Request) (shown string, ok bool) {
	if shown, ok = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); !ok {
		_, shown, ok = r.BasicAuth()
	}
	return shown, ok
}

// sessionOf returns the caller whose session's cookie r has.
func (a *access) sessionOf(r *http.Request, now time.Time) caller {
	if c, err := r.Cookie(cookieName); err == nil && a.session(c.Value, now) {
		return caller{role: login.Operator, credential: credentialSession}
	}
	if a.oidc != nil {
		if s, ok := a.oidc.Session(r, now); ok {
			return caller{role: s.Role, credential: credentialOIDC, user: s.Name, subject: s.Subject}
		}
	}
	return caller{}
}

// tried returns what the token that r shows allows. Wrong ones are counted by address.
func (a *access) tried(r *http.Request, shown string) (as login.Role, wait time.Duration) {
	if len(shown) <= maxToken {
		if as := a.roleOf(shown); as != login.None {
			return as, 0
		}
	}
	return login.None, a.throttle(r, scopeTokens)
}

// Scopes of what is counted by address.
const (
	scopeTokens = iota // wrong tokens
	scopeLogins        // logins by OpenID Connect, started or completed
)

// throttle counts a request of scope by its address and returns how long that address has
// to wait: 0 if it has not sent too many.
func (a *access) throttle(r *http.Request, scope uint64) (wait time.Duration) {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	if wait, ok := a.guesses.Allow(a.guesses.KeyAddr(scope, peer.Addr(), 0), a.quota, int64(time.Since(a.base))); !ok {
		return wait
	}
	return 0
}

// roleOf returns the role of a token, in a time that does not depend on it.
func (a *access) roleOf(shown string) login.Role {
	d := sha256.Sum256([]byte(shown))
	all := subtle.ConstantTimeCompare(d[:], a.token[:])
	some := subtle.ConstantTimeCompare(d[:], a.read[:])
	switch {
	case all == 1 && a.tokens:
		return login.Operator
	case some == 1 && a.reads:
		return login.Reader
	}
	return login.None
}

// cookieLength is that of rand.Text.
const cookieLength = 26

func (a *access) session(cookie string, now time.Time) bool {
	if len(cookie) != cookieLength {
		return false
	}
	d := sha256.Sum256([]byte(cookie))
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sessions[d].After(now)
}

// begin makes a session and returns its cookie.
func (a *access) begin(now time.Time, secure bool) *http.Cookie {
	value := rand.Text()
	a.mu.Lock()
	defer a.mu.Unlock()
	for d, end := range a.sessions {
		if !end.After(now) || len(a.sessions) >= maxSessions { // at the bound any may go
			delete(a.sessions, d)
		}
	}
	a.sessions[sha256.Sum256([]byte(value))] = now.Add(sessionTime)
	return &http.Cookie{Name: cookieName, Value: value, Path: "/", MaxAge: int(sessionTime / time.Second), HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode}
}

func (a *access) end(r *http.Request) {
	if c, err := r.Cookie(cookieName); err == nil {
		a.mu.Lock()
		delete(a.sessions, sha256.Sum256([]byte(c.Value)))
		a.mu.Unlock()
	}
}

// forReaders reports whether who may only read may request it: numbers, not contents,
// and nothing that costs.
func forReaders(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	p := r.URL.Path
	switch {
	case p == "/metrics", p == "/debug/vars", p == "/api/bundles":
		return true
	case strings.HasPrefix(p, "/api/channels/"), strings.HasPrefix(p, "/api/bundles/"), strings.HasPrefix(p, "/api/trace"), p == "/api/subscribe":
		return false
	}
	return strings.HasPrefix(p, "/api/") || !strings.HasPrefix(p, "/debug/")
}

// guard lets in whom next is for.
func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loginPaths[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		c, wait := a.callerOf(r, time.Now())
		switch {
		case wait > 0:
			tooMany(w, wait)
		case c.role == login.None:
			a.unauthenticated(w, r)
		case c.role == login.Reader && !forReaders(r):
			a.refuse(w, r, c, "not for readers: log in as an operator, or send the admin token")
		case !ownChange(r, c):
			a.refuse(w, r, c, "a change with the cookie of a login needs the field Origin or Sec-Fetch-Site, as browsers send it; programs send a token")
		default:
			a.audited(w, r, c, next)
		}
	})
}

// refuse answers 403 to a caller that is known.
func (a *access) refuse(w http.ResponseWriter, r *http.Request, c caller, why string) {
	writeError(w, http.StatusForbidden, why)
	if isChange(r) {
		a.audit(r, c, http.StatusForbidden)
	}
}

// loginPaths are those that need no role.
var loginPaths = map[string]bool{"/login": true, "/logout": true, "/login.css": true, pathOIDC: true, pathCallback: true}

// unauthenticated sends browsers to the login page and answers others 401.
func (a *access) unauthenticated(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
	if !a.tokens {
		writeError(w, http.StatusUnauthorized, "log in with a browser at /login; there is no admin token")
		return
	}
	writeError(w, http.StatusUnauthorized, "show the admin token: Authorization: Bearer, or the password of HTTP Basic")
}

// ownChange reports whether r is not a change that another site may have a browser make
// with the cookie of an OpenID login. That cookie is SameSite=Lax, where sameOrigin alone
// would let through a browser that says nothing of where the request is from.
func ownChange(r *http.Request, c caller) bool {
	return c.credential != credentialOIDC || r.Method == http.MethodGet || r.Method == http.MethodHead ||
		r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}

// tooMany refuses a wrong token after many: with a body that is there already.
func tooMany(w http.ResponseWriter, wait time.Duration) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Retry-After", strconv.FormatInt(limit.RetryAfter(wait), 10))
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(tooManyBody) // the client may be gone
}

var tooManyBody = []byte(`{"error":{"code":429,"message":"too many wrong tokens from this address: wait as long as Retry-After says, or send the right one"}}` + "\n")

// contentPolicy lets pages load and ask this listener, and nothing else. Its FORM is for
// the origin where logging out ends.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
	"manifest-src 'self'; form-action 'self'FORM; base-uri 'none'; frame-ancestors 'none'"

// sameOrigin keeps web pages of others away: a browser says where a page is from, and a
// name that a page made resolve to this machine shows in Host.
func (a *access) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", a.contentPolicy())
		// Without any referrer browsers send "Origin: null" with forms, and no user could log in.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if r.ContentLength != 0 { // who sends a body may not take for ever
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.bodyTime)) // every connection here has one
		}
		switch name := http1.RepeatedIn(r.Header); {
		case name != "":
			writeError(w, http.StatusBadRequest, "repeated field: "+name)
		case !a.hostFits(r):
			writeError(w, http.StatusForbidden, "reach it as localhost or by its address: the name in Host could be anyone's")
		case !a.isSameOrigin(r):
			writeError(w, http.StatusForbidden, "not for web pages of other origins")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// contentPolicy is the policy with the origin that a logout's form is redirected to.
func (a *access) contentPolicy() string {
	form := ""
	if a.oidc != nil {
		if origin := a.oidc.LogoutOrigin(); origin != "" {
			form = " " + origin
		}
	}
	return strings.Replace(contentPolicy, "FORM", form, 1)
}

// isSameOrigin reports whether r comes from no page, or one of this listener.
func (a *access) isSameOrigin(r *http.Request) bool {
	if origin, given := r.Header["Origin"]; given {
		if len(origin) != 1 || !originOf(origin[0], r.Host) && (a.oidc == nil || !originOf(origin[0], a.oidc.Host())) {
			return false
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	case "cross-site", "same-site":
		// A link from elsewhere to the page itself is harmless: it changes nothing and
		// the other page sees nothing of it.
		// The provider's redirect is one that state protects.
		return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
			(r.URL.Path == "/" || r.URL.Path == "/login" || r.URL.Path == pathCallback)
	}
	return false
}

// originOf reports whether origin is that of pages of host.
func originOf(origin, host string) bool {
	return strings.EqualFold(origin, "http://"+host) || strings.EqualFold(origin, "https://"+host)
}

// hostFits reports whether Host is an address, localhost, or the name of the redirect URL.
// Other names are let through only where others than this machine's programs could connect
// anyway.
func (a *access) hostFits(r *http.Request) bool {
	if a.oidc != nil && strings.EqualFold(r.Host, a.oidc.Host()) {
		return true
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !local.IP.IsLoopback() {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return host == "" || strings.EqualFold(host, "localhost")
}
