package admin

import (
	"errors"
	"html"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/observe/admin/login"
)

// Paths of the login by OpenID Connect.
const (
	pathOIDC     = "/oidc/login"
	pathCallback = "/oidc/callback"
)

const loginPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>weir: log in</title><link rel="stylesheet" href="/login.css"></head>
<body><main><h1>weir</h1>OIDC
TOKEN<p role="alert">NOTE</p></main></body></html>
`

const tokenForm = `<form method="post" action="/login">
<input type="text" name="user" value="admin" autocomplete="username" hidden>
<label for="token">Admin token</label>
<input id="token" type="password" name="token" required autofocus autocomplete="current-password">
<button>Log in</button></form>`

const loginStyle = `:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;display:grid;place-items:center;min-height:100vh;margin:0}
main{width:min(22rem,90vw)}form{display:grid;gap:.5rem}input,button,.oidc{font:inherit;padding:.5rem}p{color:#c33;min-height:1.5em;overflow-wrap:anywhere}
.oidc{display:block;text-align:center;border:1px solid;border-radius:.25rem;margin-bottom:1.5rem;text-decoration:none;color:inherit}
`

// loginPages are the pages and redirects of logging in and out.
type loginPages struct{ *access }

// page answers with the login page and a note, which may be of anyone's making.
func (a loginPages) page(w http.ResponseWriter, status int, note string) {
	oidc, form := "", tokenForm
	if a.oidc != nil {
		oidc = `<a class="oidc" href="` + pathOIDC + `">Log in with ` + html.EscapeString(a.oidc.Name()) + `</a>`
		if why := a.oidc.Trouble(); why != "" && note == "" {
			note = "Logging in with " + a.oidc.Name() + " does not work now: " + why
		}
		if !a.tokens {
			form = ""
		}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(strings.NewReplacer("OIDC", oidc, "TOKEN", form, "NOTE", html.EscapeString(note)).Replace(loginPage))) // the client may be gone
}

// show shows the page.
func (a loginPages) show(w http.ResponseWriter, _ *http.Request) { a.page(w, http.StatusOK, "") }

// login is the page's form with a token.
func (a loginPages) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 8<<10)
	shown := r.PostFormValue("token")
	as, credential, wait := login.Operator, credentialNone, time.Duration(0)
	if a.guarded() {
		credential = credentialToken
		as, wait = a.tried(r, shown)
	}
	switch {
	case as == login.Operator:
		a.log.Info("admin login", "credential", credential, "role", as.String(), "peer", r.RemoteAddr)
		http.SetCookie(w, a.begin(time.Now(), r.TLS != nil))
		http.Redirect(w, r, "/", http.StatusSeeOther)
	case wait > 0:
		a.pageTooMany(w, wait, "Too many wrong tokens from your address. Wait a minute.")
	default:
		a.page(w, http.StatusForbidden, "That is not the admin token.")
	}
}

func (a loginPages) pageTooMany(w http.ResponseWriter, wait time.Duration, note string) {
	w.Header().Set("Retry-After", strconv.FormatInt(limit.RetryAfter(wait), 10))
	a.page(w, http.StatusTooManyRequests, note)
}

// withOIDC answers with step unless there is no login by OpenID Connect, or the address has
// sent too many. The page shows why step failed.
func (a loginPages) withOIDC(step func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.oidc == nil {
			writeError(w, http.StatusNotFound, "there is no login by OpenID Connect: set admin.oidc")
			return
		}
		if wait := a.throttle(r, scopeLogins); wait > 0 {
			a.oidc.Throttled()
			a.pageTooMany(w, wait, "Too many logins from your address. Wait a minute.")
			return
		}
		err := step(w, r)
		if refused, ok := errors.AsType[*login.Refused](err); ok {
			a.page(w, refused.Status, refused.Text)
		} else if err != nil {
			a.page(w, http.StatusInternalServerError, "The login failed.")
		}
	}
}

// beginOIDC sends the browser to the provider.
func (a loginPages) beginOIDC(w http.ResponseWriter, r *http.Request) error {
	return a.oidc.Begin(w, r)
}

// finishOIDC is where the provider sends it back to. It leads to the page and nowhere else.
func (a loginPages) finishOIDC(w http.ResponseWriter, r *http.Request) error {
	if _, err := a.oidc.Finish(w, r); err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return nil
}

// logout ends the session here, and then at the provider if the session is from there.
func (a loginPages) logout(w http.ResponseWriter, r *http.Request) {
	a.end(r)
	next := "/login"
	if a.oidc != nil {
		if at := a.oidc.End(r); at != "" {
			next = at
		}
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, next, http.StatusSeeOther)
}
