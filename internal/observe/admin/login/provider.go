package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	// requestTime bounds each request to the provider, maxAnswer each of its responses.
	requestTime = 10 * time.Second
	maxAnswer   = 1 << 20
	// retryEvery is the least time between two attempts at discovery, retryMost the most.
	retryEvery = 2 * time.Second
	retryMost  = time.Minute
)

// algorithms are those that an ID token may be signed with: with a key pair. "none" and
// HMAC, whose key would be the client secret, are not among them.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// A provider is what discovery has found. It does not change.
type provider struct {
	oidc     *oidc.Provider
	verifier *oidc.IDTokenVerifier
	oauth    oauth2.Config

	endSession  string // empty: the provider offers no logout
	sendsIssuer bool   // RFC 9207: every authorization response has iss
}

// A discoverer finds the provider once, when it is first needed.
type discoverer struct {
	// Fixed at New.
	cfg    *Config
	secret string
	client *http.Client

	// Owned by the goroutine that has put into turn.
	turn      chan struct{}
	attempted time.Time
	failed    error

	// Any goroutine.
	found   atomic.Pointer[provider] // nil: not yet
	trouble atomic.Pointer[string]   // why the last attempt failed; nil: there was none
}

// get returns the provider, after an attempt at discovery if it is not known. Of
// many callers one attempts it, and the others wait for that.
func (d *discoverer) get(ctx context.Context) (*provider, error) {
	if p := d.found.Load(); p != nil {
		return p, nil
	}
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p := d.found.Load(); p != nil {
		return p, nil
	}
	if now := time.Now(); now.Sub(d.attempted) < retryEvery/2 {
		return nil, d.failed
	}
	p, err := d.discover(ctx)
	d.attempted, d.failed = time.Now(), err
	if err != nil {
		text := err.Error()
		d.trouble.Store(&text)
		return nil, err
	}
	d.found.Store(p)
	return p, nil
}

func (d *discoverer) discover(ctx context.Context) (*provider, error) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, d.client), requestTime)
	defer cancel()
	p, err := oidc.NewProvider(ctx, d.cfg.Issuer)
	if mismatch, ok := errors.AsType[*oidc.IssuerMismatchError](err); ok {
		return nil, fmt.Errorf("discover the OpenID provider: its issuer is %q and admin.oidc.issuer is %q: set it to the former", mismatch.Discovered, mismatch.Provided)
	}
	if err != nil {
		return nil, fmt.Errorf("discover the OpenID provider: %.300s", err.Error())
	}
	var more struct {
		JWKS        string   `json:"jwks_uri"`
		EndSession  string   `json:"end_session_endpoint"`
		SendsIssuer bool     `json:"authorization_response_iss_parameter_supported"`
		Challenges  []string `json:"code_challenge_methods_supported"`
		AuthMethods []string `json:"token_endpoint_auth_methods_supported"`
	}
	if err := p.Claims(&more); err != nil {
		return nil, fmt.Errorf("discover the OpenID provider: %w", err)
	}
	found := &provider{oidc: p, sendsIssuer: more.SendsIssuer, oauth: oauth2.Config{
		ClientID: d.cfg.ClientID, ClientSecret: d.secret, Endpoint: p.Endpoint(), RedirectURL: d.cfg.RedirectURL,
		Scopes: append([]string{oidc.ScopeOpenID}, slices.DeleteFunc(slices.Clone(d.cfg.Scopes), func(s string) bool { return s == oidc.ScopeOpenID })...),
	}}
	for name, endpoint := range map[string]string{"authorization_endpoint": p.Endpoint().AuthURL, "token_endpoint": p.Endpoint().TokenURL, "jwks_uri": more.JWKS} {
		if err := d.checkEndpoint(endpoint); err != nil {
			return nil, fmt.Errorf("discover the OpenID provider: %s: %w", name, err)
		}
	}
	if len(more.Challenges) > 0 && !slices.Contains(more.Challenges, "S256") {
		return nil, fmt.Errorf("discover the OpenID provider: it offers PKCE by %v: want S256", more.Challenges)
	}
	if more.EndSession != "" && d.checkEndpoint(more.EndSession) == nil {
		found.endSession = more.EndSession
	}
	found.oauth.Endpoint.AuthStyle = d.authStyle(more.AuthMethods)
	found.verifier = p.Verifier(&oidc.Config{ClientID: d.cfg.ClientID, SupportedSigningAlgs: algorithms})
	return found, nil
}

// checkEndpoint wants what checkURL wants, but for a query, which endpoints may have (RFC
// 6749 §3.1). Plain http is only for a provider that is reached so itself.
func (d *discoverer) checkEndpoint(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !strings.HasPrefix(d.cfg.Issuer, "http:")) {
		return fmt.Errorf("invalid URL %.200q: want https://host/path", s)
	}
	return nil
}

// authStyle is how the client secret is sent: by HTTP Basic unless the provider offers
// only the form (OpenID Connect Core §9). One that is not given goes nowhere.
func (d *discoverer) authStyle(methods []string) oauth2.AuthStyle {
	if d.secret == "" || len(methods) > 0 && !slices.Contains(methods, "client_secret_basic") {
		return oauth2.AuthStyleInParams
	}
	return oauth2.AuthStyleInHeader
}

// newClient returns the client for requests to the provider. It follows no redirect:
// what the configuration names is what is asked.
func newClient() *http.Client {
	return &http.Client{
		Timeout:       requestTime,
		Transport:     bounded{http.DefaultTransport.(*http.Transport).Clone()}, // it is one, unless the program replaces it
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bounded cuts responses off at maxAnswer.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(res.Body, maxAnswer), res.Body}
	return res, nil
}
