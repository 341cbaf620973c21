package admin

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/weir-gateway/weir/internal/observe/admin/login"
)

// A caller is who sends a request: what it may do, and as whom it is logged.
type caller struct {
	role login.Role
	// credential is what gives the role: one of the constants below, empty if there is none.
	credential string
	// user and subject are those of the OpenID session, also where a token gives the role.
	user, subject string
}

// Credentials, as they are logged.
const (
	credentialNone      = "none required" // loopback without a token
	credentialToken     = "token"
	credentialReadToken = "read_token"
	credentialSession   = "token session" // the cookie of a login with the token
	credentialOIDC      = "oidc session"
)

// changesNothing are the paths of unsafe methods that only read.
var changesNothing = map[string]bool{"/api/config/diff": true, "/api/observe": true, "/debug/pprof/symbol": true}

// isChange reports whether r changes what the process does or what clients receive.
func isChange(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead && !changesNothing[r.URL.Path]
}

// audit logs a change that c requested, with the status that answered it. Bodies and
// queries are not logged: they may hold payloads.
func (a *access) audit(r *http.Request, c caller, status int) {
	message := "admin change"
	if status >= http.StatusBadRequest {
		message = "admin change refused"
	}
	a.log.LogAttrs(r.Context(), slog.LevelInfo, message,
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", status),
		slog.String("role", c.role.String()), slog.String("credential", c.credential),
		slog.String("user", c.user), slog.String("subject", c.subject), slog.String("peer", r.RemoteAddr))
}

// audited serves r with next and logs it if it is a change. With an audit log it is on record
// before it is made, and its answer before the client has it; what cannot be recorded is not made.
func (a *access) audited(w http.ResponseWriter, r *http.Request, c caller, next http.Handler) {
	if !isChange(r) {
		next.ServeHTTP(w, r)
		return
	}
	n, err := a.recorded(r, c)
	if err != nil {
		a.log.Error("a change is refused: it cannot be recorded", "err", err)
		writeError(w, http.StatusServiceUnavailable, "the change cannot be recorded in the audit log and is not made")
		a.audit(r, c, http.StatusServiceUnavailable)
		return
	}
	s := &statusWriter{ResponseWriter: w}
	defer func() { // also after a panic
		status := cmp.Or(s.status, http.StatusInternalServerError)
		a.audit(r, c, status)
		if a.records != nil {
			if err := a.records.Answer(n, status); err != nil {
				a.log.Error("the answer to a change cannot be recorded", "change", n, "err", err)
			}
		}
	}()
	next.ServeHTTP(s, r)
	s.status = cmp.Or(s.status, http.StatusOK)
}

// recorded puts a change on record and returns its number; 0 without an audit log.
func (a *access) recorded(r *http.Request, c caller) (n uint64, err error) {
	if a.records == nil {
		return 0, nil
	}
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		from = r.RemoteAddr
	}
	return a.records.Begin(r.Method+" "+r.URL.Path, from, cmp.Or(c.subject, c.credential))
}

// A statusWriter remembers the status of an answer; 0 until there is one.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader sends the head with status.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// callerOf returns who sends r. A request with several credentials has the highest role that
// one of them gives: anyone who has the admin token may do everything, also in a browser with a
// reader's session. With wait, it shows a wrong token, its address has sent too many of
// these, and there is no session.
func (a *access) callerOf(r *http.Request, now time.Time) (c caller, wait time.Duration) {
	if !a.guarded() {
		return caller{role: login.Operator, credential: credentialNone}, 0
	}
	c = a.sessionOf(r, now)
	if c.role == login.Operator {
		return c, 0
	}
	shown, ok := shownToken(r)
	if !ok {
		return c, 0
	}
	as, wait := a.tried(r, shown)
	switch {
	case as > c.role && as == login.Operator:
		c.role, c.credential = as, credentialToken
	case as > c.role:
		c.role, c.credential = as, credentialReadToken
	}
	if c.role != login.None {
		wait = 0
	}
	return c, wait
}
