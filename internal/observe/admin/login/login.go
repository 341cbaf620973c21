// Package login lets operators log in to the admin listener through an OpenID provider:
// authorization code flow with PKCE (OpenID Connect Core §3.1, RFC 7636), state and nonce.
//
// Nothing is stored here between requests. What a login under way needs, and then the
// session, is in cookies that only this process, or others with the same session key, can
// read and make.
package login

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/weir-gateway/weir/internal/front/auth"
)

// Purposes of sealed values.
const (
	purposeLogin   = "login"
	purposeSession = "session"
)

const (
	// loginTime is how long a user may take at the provider.
	loginTime = 10 * time.Minute
	// maxLogins bounds the callbacks that are answered at once, each of which makes the
	// provider work; others are answered 503.
	maxLogins = 8
	// maxSpent bounds the sessions and states that are remembered as ended.
	maxSpent = 4096
)

// An OIDC is the login through one provider. Make one with [New]. All methods may be
// called by any goroutine.
type OIDC struct {
	// Fixed at New.
	cfg    Config
	secure bool // cookies are for TLS alone
	log    *slog.Logger
	client *http.Client
	sealer *sealer
	logins chan struct{} // as many as may be under way

	// Any goroutine.
	provider discoverer
	counts   [results]atomic.Uint64
	spent    spentIDs // sessions that were logged out, states that were used
}

// New prepares the login that cfg describes, or returns nil if that is none. It does not
// ask the provider: Run does, and each login until the provider is known.
func New(cfg Config, log *slog.Logger) (*OIDC, error) {
	if !cfg.Enabled() {
		return nil, nil
	}
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	secret, key, err := cfg.secrets()
	if err != nil {
		return nil, err
	}
	s, err := newSealer(key, fmt.Sprintf("%q %q %q %q %q", cfg.Issuer, cfg.ClientID, cfg.RolesClaim, cfg.Operators, cfg.Readers))
	if err != nil {
		return nil, err
	}
	o := &OIDC{
		cfg: cfg, secure: strings.HasPrefix(cfg.RedirectURL, "https:"), log: log, client: newClient(), sealer: s,
		logins: make(chan struct{}, maxLogins), spent: spentIDs{ids: map[string]time.Time{}},
	}
	o.provider.cfg, o.provider.secret, o.provider.client, o.provider.turn = &o.cfg, secret, o.client, make(chan struct{}, 1)
	return o, nil
}

// Run discovers the provider, again and again until that succeeds or ctx is done. Each
// login attempts it too, so that it need not be waited for.
func (o *OIDC) Run(ctx context.Context) error {
	for pause := retryEvery; ; pause = min(2*pause, retryMost) {
		p, err := o.provider.get(ctx)
		if err == nil {
			o.log.Info("the OpenID provider is known: operators can log in", "issuer", o.cfg.Issuer, "logout", p.endSession != "")
			return nil
		}
		o.log.Warn("the OpenID provider cannot be used yet; tokens of the admin listener work as ever", "issuer", o.cfg.Issuer, "err", err, "next", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// Trouble returns why users cannot log in now; empty if they can, as far as is known.
func (o *OIDC) Trouble() string {
	if o.provider.found.Load() != nil {
		return ""
	}
	if t := o.provider.trouble.Load(); t != nil {
		return *t
	}
	return ""
}

// Name is how the login page calls the provider: the host of its issuer.
func (o *OIDC) Name() string { return hostOf(o.cfg.Issuer) }

// Host is the name under which browsers reach the admin listener, with the port if the
// redirect URL has one.
func (o *OIDC) Host() string { return hostOf(o.cfg.RedirectURL) }

func hostOf(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Host
}

// LogoutOrigin is the origin that a browser is sent to at logout; empty if the provider
// offers no logout or is not known yet.
func (o *OIDC) LogoutOrigin() string {
	p := o.provider.found.Load()
	if p == nil || p.endSession == "" {
		return ""
	}
	u, err := url.Parse(p.endSession)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// A started login is what has to be known when the provider sends the browser back.
type started struct {
	State    string    `json:"s"`
	Nonce    string    `json:"n"`
	Verifier string    `json:"v"`
	Expires  time.Time `json:"e"`
}

// A Session is a user who has logged in.
type Session struct {
	ID      string    `json:"i"`
	Role    Role      `json:"r"`
	Subject string    `json:"s"`
	Name    string    `json:"n"`
	Expires time.Time `json:"e"`
	// Token is the ID token, for the provider's logout; empty where a cookie has no room
	// for it.
	Token string `json:"t,omitempty"`
}

// Begin starts a login: it sets a cookie and sends the browser to the provider.
func (o *OIDC) Begin(w http.ResponseWriter, r *http.Request) error {
	p, err := o.provider.get(r.Context())
	if err != nil {
		return o.refuse(resultProvider, http.StatusBadGateway, "The provider cannot be used: "+err.Error(), err)
	}
	s := started{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Expires: time.Now().Add(loginTime)}
	value, err := o.sealer.seal(purposeLogin, s)
	if err != nil {
		return o.refuse(resultProvider, http.StatusInternalServerError, "The login cannot be started.", err)
	}
	http.SetCookie(w, o.cookie(callbackPath, value, loginTime))
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, p.oauth.AuthCodeURL(s.State, oidc.Nonce(s.Nonce), oauth2.S256ChallengeOption(s.Verifier)), http.StatusSeeOther)
	return nil
}

// Finish completes the login that the provider has sent the browser back with: it sets
// the cookie of the session. The caller leads the browser on.
func (o *OIDC) Finish(w http.ResponseWriter, r *http.Request) (*Session, error) {
	http.SetCookie(w, o.cookie(callbackPath, "", -time.Second)) // whatever comes of it, it is used
	select {
	case o.logins <- struct{}{}:
		defer func() { <-o.logins }()
	default:
		return nil, o.refuse(resultThrottled, http.StatusServiceUnavailable, "Too many logins at once. Try again.", errors.New("too many logins at once"))
	}
	now := time.Now()
	st, err := o.resumed(r, now)
	if err != nil {
		return nil, err
	}
	p, err := o.provider.get(r.Context())
	if err != nil {
		return nil, o.refuse(resultProvider, http.StatusBadGateway, "The provider cannot be used: "+err.Error(), err)
	}
	if err := o.checkResponse(p, r.URL.Query()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(r.Context(), o.client), requestTime)
	defer cancel()
	s, err := o.exchange(ctx, p, r.URL.Query().Get("code"), st)
	if err != nil {
		return nil, err
	}
	s.ID, s.Expires = rand.Text(), now.Add(time.Duration(o.cfg.Session))
	value, err := o.sealer.seal(purposeSession, s)
	if err == nil && len(value) > maxSealed {
		s.Token = ""
		value, err = o.sealer.seal(purposeSession, s)
	}
	if err == nil && len(value) > maxSealed {
		err = fmt.Errorf("the session of %d bytes does not fit into a cookie", len(value))
	}
	if err != nil {
		return nil, o.refuse(resultRejected, http.StatusBadGateway, "The session cannot be made.", err)
	}
	http.SetCookie(w, o.cookie("/", value, time.Duration(o.cfg.Session)))
	o.counts[resultOK].Add(1)
	o.log.Info("admin login", "user", s.Name, "subject", s.Subject, "role", s.Role.String())
	return s, nil
}

// resumed returns the login under way that r continues, which it cannot do twice.
func (o *OIDC) resumed(r *http.Request, now time.Time) (st started, err error) {
	state := r.URL.Query().Get("state")
	for _, c := range r.CookiesNamed(auth.AdminCookie) {
		var s started
		if o.sealer.open(purposeLogin, c.Value, &s) && s.Expires.After(now) && subtle.ConstantTimeCompare([]byte(s.State), []byte(state)) == 1 {
			st = s
		}
	}
	if st.State == "" {
		return st, o.refuse(resultRejected, http.StatusForbidden, "This login was not started in this browser, or it took longer than 10 minutes. Log in again.", errors.New("state does not match the browser's cookie"))
	}
	if !o.spent.add(st.State, st.Expires, now) {
		return st, o.refuse(resultRejected, http.StatusForbidden, "This login was completed before. Log in again.", errors.New("state was used before"))
	}
	return st, nil
}

// checkResponse wants an authorization response that has a code and is the provider's
// (RFC 6749 §4.1.2, RFC 9207).
func (o *OIDC) checkResponse(p *provider, q url.Values) error {
	if iss := q.Get("iss"); iss != o.cfg.Issuer && (iss != "" || p.sendsIssuer) {
		return o.refuse(resultRejected, http.StatusForbidden, "The response is not this provider's.", fmt.Errorf("iss is %.100q, not the issuer", iss))
	}
	if e := q.Get("error"); e != "" {
		return o.refuse(resultProvider, http.StatusForbidden, fmt.Sprintf("The provider did not log you in: %.100s %.200s", e, q.Get("error_description")), fmt.Errorf("the provider answered %.100q", e))
	}
	if q.Get("code") == "" {
		return o.refuse(resultRejected, http.StatusBadRequest, "The provider's response has no code.", errors.New("no code"))
	}
	return nil
}

// exchange turns the code into a session without ID and end (OpenID Connect Core §3.1.3).
func (o *OIDC) exchange(ctx context.Context, p *provider, code string, st started) (*Session, error) {
	token, err := p.oauth.Exchange(ctx, code, oauth2.VerifierOption(st.Verifier))
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return nil, o.refuse(resultProvider, http.StatusForbidden, fmt.Sprintf("The provider rejected the code: %.100s", answer.ErrorCode), fmt.Errorf("exchange the code: status %d, %.100q", answer.Response.StatusCode, answer.ErrorCode))
	}
	if err != nil {
		return nil, o.refuse(resultProvider, http.StatusBadGateway, "The provider cannot be asked for the token.", fmt.Errorf("exchange the code: %w", err))
	}
	raw, _ := token.Extra("id_token").(string)
	claims, err := o.verify(ctx, p, token, raw, st.Nonce)
	if err != nil {
		return nil, o.refuse(resultRejected, http.StatusForbidden, "The provider's ID token is not valid. The log has the reason.", err)
	}
	role, has := o.cfg.roleOf(claims)
	if !has && p.oidc.UserInfoEndpoint() != "" {
		if role, err = o.userInfo(ctx, p, token, claims); err != nil {
			return nil, o.refuse(resultProvider, http.StatusBadGateway, "The provider cannot be asked for the user's claims. The log has the reason.", err)
		}
	}
	name := nameOf(claims)
	if role == None {
		return nil, o.refuse(resultNoRole, http.StatusForbidden, "You are logged in at the provider as "+name+", who may not use this page: request a group that admin.oidc lists.", fmt.Errorf("user %q has no role: no value of claim %q is listed", name, o.cfg.RolesClaim))
	}
	sub, _ := claims["sub"].(string)
	return &Session{Role: role, Subject: sub, Name: name, Token: raw}, nil
}

// verify returns the claims of an ID token that passes OpenID Connect Core §3.1.3.7.
func (o *OIDC) verify(ctx context.Context, p *provider, token *oauth2.Token, raw, nonce string) (map[string]any, error) {
	if raw == "" {
		return nil, errors.New("the token response has no id_token")
	}
	id, err := p.verifier.Verify(ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("verify the ID token: %w", err)
	}
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return nil, fmt.Errorf("ID token: claims: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(nonce)) != 1 {
		return nil, errors.New("ID token: nonce is not that of this login")
	}
	if azp, has := claims["azp"]; has && azp != o.cfg.ClientID || !has && len(id.Audience) > 1 {
		return nil, fmt.Errorf("ID token: it is for several audiences and its authorized party is %.100v, not this client", azp)
	}
	if id.Subject == "" {
		return nil, errors.New("ID token: it has no subject")
	}
	if id.AccessTokenHash != "" {
		if err := id.VerifyAccessToken(token.AccessToken); err != nil {
			return nil, fmt.Errorf("ID token: at_hash: %w", err)
		}
	}
	return claims, nil
}

// userInfo returns the role that the userinfo response gives, and adds its claims to those
// of the ID token. It has to be about the same subject (OpenID Connect Core §5.3.2).
func (o *OIDC) userInfo(ctx context.Context, p *provider, token *oauth2.Token, claims map[string]any) (Role, error) {
	info, err := p.oidc.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return None, fmt.Errorf("userinfo: %w", err)
	}
	if info.Subject != claims["sub"] {
		return None, errors.New("userinfo: it is about another subject than the ID token")
	}
	more := map[string]any{}
	if err := info.Claims(&more); err != nil {
		return None, fmt.Errorf("userinfo: claims: %w", err)
	}
	for k, v := range more {
		if _, has := claims[k]; !has {
			claims[k] = v
		}
	}
	role, _ := o.cfg.roleOf(claims)
	return role, nil
}

// Session returns the session that the cookies of r hold, if there is one at now.
func (o *OIDC) Session(r *http.Request, now time.Time) (s Session, ok bool) {
	for _, c := range r.CookiesNamed(auth.AdminCookie) {
		s = Session{}
		if o.sealer.open(purposeSession, c.Value, &s) && s.Expires.After(now) && !o.spent.has(s.ID) {
			return s, true
		}
	}
	return Session{}, false
}

// End ends the session of r, if it has one, on this node, and returns where the browser
// is sent to end that of the provider too (OpenID Connect RP-Initiated Logout §2): empty
// if there was no session or the provider offers no logout.
func (o *OIDC) End(r *http.Request) (location string) {
	now := time.Now()
	s, ok := o.Session(r, now)
	if !ok {
		return ""
	}
	o.spent.add(s.ID, s.Expires, now)
	o.log.Info("admin logout", "user", s.Name, "subject", s.Subject)
	p := o.provider.found.Load()
	if p == nil || p.endSession == "" {
		return ""
	}
	u, err := url.Parse(p.endSession)
	if err != nil {
		return ""
	}
	q := u.Query()
	q.Set("client_id", o.cfg.ClientID)
	q.Set("post_logout_redirect_uri", strings.TrimSuffix(o.cfg.RedirectURL, callbackPath)+"/login")
	if s.Token != "" {
		q.Set("id_token_hint", s.Token)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// cookie returns one that lasts for d. SameSite is Lax, as the provider's redirect to the
// callback, and from there to the page, is a navigation from another site.
func (o *OIDC) cookie(path, value string, d time.Duration) *http.Cookie {
	return &http.Cookie{
		Name: auth.AdminCookie, Value: value, Path: path, MaxAge: int(d / time.Second),
		HttpOnly: true, Secure: o.secure, SameSite: http.SameSiteLaxMode,
	}
}
