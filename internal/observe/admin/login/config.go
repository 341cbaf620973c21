package login

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config is how operators log in through an OpenID provider. The zero value is off.
type Config struct {
	// Issuer is the provider's issuer URL, exactly as its discovery document has it:
	// <issuer>/.well-known/openid-configuration must exist. https, or http on a loopback
	// address. Empty: no login by OpenID Connect.
	Issuer string `json:"issuer"`
	// ClientID is the name under which Weir is registered with the provider.
	ClientID string `json:"client_id"`
	// ClientSecret authenticates Weir to the provider. Empty: a public client, which PKCE
	// alone protects.
	ClientSecret auth.Secret `json:"client_secret"`
	// ClientSecretFile holds the secret instead; a newline at its end is not part of it.
	// Empty: none.
	ClientSecretFile string `json:"client_secret_file"`
	// RedirectURL is the address of the admin listener as browsers see it, with the path
	// /oidc/callback, as it is registered with the provider. With https, cookies are
	// Secure.
	RedirectURL string `json:"redirect_url"`
	// Scopes are requested besides openid. Empty means profile and email.
	Scopes []string `json:"scopes"`
	// RolesClaim is the claim that operators and readers are compared with: a text or a
	// list of texts, in the ID token or, if it is not there, in the userinfo response.
	// Dots lead into objects, as in realm_access.roles. An email counts only with
	// email_verified. Empty means groups.
	RolesClaim string `json:"roles_claim"`
	// Operators are the values of the claim that allow everything; "*" is every user of
	// the provider. Empty: none.
	Operators []string `json:"operators"`
	// Readers are the values that allow what admin.read_token allows. Empty: none.
	Readers []string `json:"readers"`
	// Session is how long a login lasts, 1m to 168h; the role is that of the login until
	// then. 0 means 8h.
	Session hub.Duration `json:"session"`
	// SessionKey encrypts session cookies, at least 32 bytes. The same key on every node
	// makes a login valid on all of them and across restarts and upgrades. Empty: a random
	// key per process, so that logins end with the process.
	SessionKey auth.Secret `json:"session_key"`
	// SessionKeyFile holds the key instead; a newline at its end is not part of it.
	// Empty: none.
	SessionKeyFile string `json:"session_key_file"`
}

const (
	callbackPath  = "/oidc/callback"
	minSessionKey = 32
	minSession    = hub.Duration(time.Minute)
	maxSession    = hub.Duration(7 * 24 * time.Hour)
)

// Enabled reports whether operators can log in this way.
func (c Config) Enabled() bool { return c.Issuer != "" }

// WithDefaults returns c with zeros replaced by what they mean.
func (c Config) WithDefaults() Config {
	if len(c.Scopes) == 0 {
		c.Scopes = []string{"profile", "email"}
	}
	c.RolesClaim = cmp.Or(c.RolesClaim, "groups")
	c.Session = cmp.Or(c.Session, hub.Duration(8*time.Hour))
	return c
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	c = c.WithDefaults()
	if !c.Enabled() {
		if c.ClientID != "" || c.RedirectURL != "" {
			return errors.New("issuer: it is missing: want the provider's issuer URL, such as https://login.example.com")
		}
		return nil
	}
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkURL(c.Issuer); err != nil {
		add("issuer: %w", err)
	}
	if u, err := url.Parse(c.RedirectURL); err != nil || checkURL(c.RedirectURL) != nil {
		add("redirect_url: %w", checkURL(c.RedirectURL))
	} else if u.Path != callbackPath {
		add("redirect_url: the path of %q is %q: want %s", c.RedirectURL, u.Path, callbackPath)
	}
	if c.ClientID == "" {
		add("client_id: it is missing: want the name under which Weir is registered with the provider")
	}
	if c.ClientSecret != "" && c.ClientSecretFile != "" {
		add("client_secret, client_secret_file: one of them, not both")
	}
	if c.SessionKey != "" && c.SessionKeyFile != "" {
		add("session_key, session_key_file: one of them, not both")
	}
	if n := len(c.SessionKey); n > 0 && n < minSessionKey {
		add("session_key: %d bytes, at least %d: make one with: head -c 48 /dev/urandom | base64 -w0", n, minSessionKey)
	}
	if len(c.Operators) == 0 && len(c.Readers) == 0 {
		add("operators: with neither operators nor readers no user may log in: list values of the claim %q", c.RolesClaim)
	}
	if slices.Contains(c.Operators, "") || slices.Contains(c.Readers, "") {
		add("operators, readers: an empty value would match users without one")
	}
	if c.Session < minSession || c.Session > maxSession {
		add("session: %v is not within %v..%v", c.Session, minSession, maxSession)
	}
	return errors.Join(errs...)
}

// checkURL wants an absolute URL that eavesdroppers cannot read: https, or http on this
// machine.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("invalid URL %.200q: want https://host/path without a query", s)
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fmt.Errorf("%.200q is plain http, which only loopback addresses may use: want https", s)
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// secrets returns the client secret and the session key, from their files if these are
// set.
func (c Config) secrets() (client, session string, err error) {
	if client, err = secretOf(c.ClientSecret, "client_secret_file", c.ClientSecretFile, 1); err != nil {
		return "", "", err
	}
	session, err = secretOf(c.SessionKey, "session_key_file", c.SessionKeyFile, minSessionKey)
	return client, session, err
}

func secretOf(s auth.Secret, key, file string, least int) (string, error) {
	if file == "" {
		return string(s), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	v := strings.TrimRight(string(b), "\r\n")
	if len(v) < least {
		return "", fmt.Errorf("%s: %s: %d bytes, at least %d", key, file, len(v), least)
	}
	return v, nil
}
