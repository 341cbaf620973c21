package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
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
)

// access decides who comes in.
type access struct {
	// Fixed at Listen. Digests: comparing takes the same time for tokens of any length.
	token, read [sha256.Size]byte
	asks, reads bool

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

func newAccess(token, read string) *access {
	return &access{
		token: sha256.Sum256([]byte(token)), read: sha256.Sum256([]byte(read)), asks: token != "", reads: read != "",
		sessions: map[[sha256.Size]byte]time.Time{}, base: time.Now(), guesses: limit.NewTable(maxGuessers),
		quota: limit.Rate{PerSecond: maxGuesses / 60.0, Burst: maxGuesses}.Quota(), bodyTime: 30 * time.Second,
	}
}

// A role is what one may do.
type role int

const (
	stranger role = iota
	reader
	operator
)

// roleOf returns what the sender of r may do. With wait, it has sent too many wrong tokens.
func (a *access) roleOf(r *http.Request, now time.Time) (as role, wait time.Duration) {
	if !a.asks {
		return operator, 0
	}
	if c, err := r.Cookie(cookieName); err == nil && a.session(c.Value, now) {
		return operator, 0
	}
	shown, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		_, shown, ok = r.BasicAuth()
	}
	if !ok {
		return stranger, 0
	}
	return a.tried(r, shown)
}

// tried returns what the token that r shows allows. Wrong ones are counted by address.
func (a *access) tried(r *http.Request, shown string) (as role, wait time.Duration) {
	if len(shown) <= maxToken {
		if as := a.judge(shown); as != stranger {
			return as, 0
		}
	}
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	if wait, ok := a.guesses.Take(a.guesses.KeyAddr(0, peer.Addr(), 0), a.quota, int64(time.Since(a.base))); !ok {
		return stranger, wait
	}
	return stranger, 0
}

// judge tells what a token allows, in a time that does not depend on it.
func (a *access) judge(shown string) role {
	d := sha256.Sum256([]byte(shown))
	all := subtle.ConstantTimeCompare(d[:], a.token[:])
	some := subtle.ConstantTimeCompare(d[:], a.read[:])
	switch {
	case all == 1:
		return operator
	case some == 1 && a.reads:
		return reader
	}
	return stranger
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

// forReaders reports whether who may only read may ask for it: numbers, not contents,
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
		if r.URL.Path == "/login" || r.URL.Path == "/logout" || r.URL.Path == "/login.css" {
			next.ServeHTTP(w, r)
			return
		}
		as, wait := a.roleOf(r, time.Now())
		switch {
		case wait > 0:
			tooMany(w, wait)
		case as == operator, as == reader && forReaders(r):
			next.ServeHTTP(w, r)
		case as == reader:
			writeError(w, http.StatusForbidden, "the read token is not for this")
		case r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html"):
			http.Redirect(w, r, "/login", http.StatusSeeOther)
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
			writeError(w, http.StatusUnauthorized, "show the admin token: Authorization: Bearer, or the password of HTTP Basic")
		}
	})
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

const loginPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>weir: log in</title><link rel="stylesheet" href="/login.css"></head>
<body><main><h1>weir</h1><form method="post" action="/login">
<input type="text" name="user" value="admin" autocomplete="username" hidden>
<label for="token">Admin token</label>
<input id="token" type="password" name="token" required autofocus autocomplete="current-password">
<button>Log in</button></form><p role="alert">NOTE</p></main></body></html>
`

const loginStyle = `:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;display:grid;place-items:center;min-height:100vh;margin:0}
main{width:min(22rem,90vw)}form{display:grid;gap:.5rem}input,button{font:inherit;padding:.5rem}p{color:#c33;min-height:1.5em}
`

func (a *access) login(w http.ResponseWriter, r *http.Request) {
	page := func(status int, note string) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(strings.Replace(loginPage, "NOTE", note, 1)))
	}
	if r.Method != http.MethodPost {
		page(http.StatusOK, "")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 8<<10)
	shown := r.PostFormValue("token")
	as, wait := operator, time.Duration(0)
	if a.asks {
		as, wait = a.tried(r, shown)
	}
	switch {
	case as == operator:
		http.SetCookie(w, a.begin(time.Now(), r.TLS != nil))
		http.Redirect(w, r, "/", http.StatusSeeOther)
	case wait > 0:
		w.Header().Set("Retry-After", strconv.FormatInt(limit.RetryAfter(wait), 10))
		page(http.StatusTooManyRequests, "Too many wrong tokens from your address. Wait a minute.")
	default:
		page(http.StatusForbidden, "That is not the admin token.")
	}
}

func (a *access) logout(w http.ResponseWriter, r *http.Request) {
	a.end(r)
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// contentPolicy lets pages load and ask this listener, and nothing else.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
	"manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// sameOrigin keeps web pages of others away: a browser says where a page is from, and a
// name that a page made resolve to this machine shows in Host.
func (a *access) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", contentPolicy)
		// Without any referrer browsers send "Origin: null" with forms, and nobody could log in.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if r.ContentLength != 0 { // who sends a body may not take for ever
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.bodyTime)) // every connection here has one
		}
		switch name := http1.RepeatedIn(r.Header); {
		case name != "":
			writeError(w, http.StatusBadRequest, "repeated field: "+name)
		case !hostFits(r):
			writeError(w, http.StatusForbidden, "reach it as localhost or by its address: the name in Host could be anyone's")
		case !ownPage(r):
			writeError(w, http.StatusForbidden, "not for web pages of other origins")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownPage reports whether r comes from no page, or one of this listener.
func ownPage(r *http.Request) bool {
	if origin, given := r.Header["Origin"]; given {
		if len(origin) != 1 || !strings.EqualFold(origin[0], "http://"+r.Host) && !strings.EqualFold(origin[0], "https://"+r.Host) {
			return false
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	case "cross-site", "same-site":
		// A link from elsewhere to the page itself is harmless: it changes nothing and
		// the other page sees nothing of it.
		return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && (r.URL.Path == "/" || r.URL.Path == "/login")
	}
	return false
}

// hostFits reports whether Host is an address or localhost. Names are let through
// only where others than this machine's programs could connect anyway.
func hostFits(r *http.Request) bool {
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
