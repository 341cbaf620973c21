package auth

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config specifies which clients are accepted. Its zero value accepts none: no keys, same-origin
// browsers only.
type Config struct {
	// KeySet are the keys of clients' tokens. Protocols use it, too, unless they name
	// another of key_sets.
	KeySet
	// Cookie is the name of the cookie that may carry a token; empty means
	// "weir_token".
	Cookie string `json:"cookie" secret:"false"`
	// QueryToken accepts tokens in the query parameter "token", since EventSource and
	// WebSocket in browsers cannot set header fields.
	QueryToken setting.Switch `json:"query_token"`
	// MaxTokenBytes bounds a token; 0 means 8 KiB.
	MaxTokenBytes int `json:"max_token_bytes"`
	// TokenCache is how many verified tokens are remembered; 0 means 65,536,
	// negative none.
	TokenCache int `json:"token_cache"`
	// APIKeys let backends publish. Empty: none.
	APIKeys []APIKey `json:"api_keys"`
	// AllowedOrigins are web pages of other origins that may connect:
	// "https://app.example.com", "https://*.example.com" (any subdomain), "null"
	// (pages opened from a file, and sandboxed frames of any site) and "*" (any).
	// Pages of the same origin always may; without TLS, so may pages of localhost,
	// 127.0.0.1 and [::1] on any port that connect over loopback to one of these
	// names, without a proxy in between. What only "*", "null" or loopback lets in is
	// not allowed cookies. Empty: no others. Requests without Origin are not from a
	// web page and pass.
	AllowedOrigins []string `json:"allowed_origins"`
}

// A KeySet has the keys that verify tokens, and what tokens must have besides a good
// signature. Its zero value has no keys.
type KeySet struct {
	// HMACSecret signs and verifies HS256 tokens (HS384 and HS512 if it is long
	// enough), taken as the bytes it is written with. At least 32 bytes. Empty:
	// none.
	HMACSecret Secret `json:"hmac_secret"`
	// HMACSecretFile holds the secret instead; a newline at its end is not part of
	// it. Empty: none.
	HMACSecretFile string `json:"hmac_secret_file"`
	// HMACPreviousSecret still verifies but no longer signs: set it to the old
	// secret while you change secrets. Empty: none.
	HMACPreviousSecret Secret `json:"hmac_previous_secret"`
	// HMACPreviousSecretFile holds the previous secret instead. Empty: none.
	HMACPreviousSecretFile string `json:"hmac_previous_secret_file"`
	// AllowWeakSecrets accepts HMAC secrets under 32 bytes or with fewer than 8
	// different bytes, for HS256, HS384 and HS512, with a warning at start: for tokens
	// that another server already issues with one. False: they are errors.
	AllowWeakSecrets bool `json:"allow_weak_secrets"`
	// PublicKeys verify RS*, PS*, ES* and EdDSA tokens. Empty: none.
	PublicKeys []PublicKey `json:"public_keys"`
	// JWKSURL is where the issuer publishes its public keys (RFC 7517); https, or
	// http on loopback. Empty: none.
	JWKSURL string `json:"jwks_url"`
	// JWKSRefreshInterval is how often the keys are fetched anew; 0 means 10m.
	JWKSRefreshInterval hub.Duration `json:"jwks_refresh_interval"`
	// JWKSMinRefetchInterval is the least time between fetches that tokens with an
	// unknown key id cause; 0 means 10s.
	JWKSMinRefetchInterval hub.Duration `json:"jwks_min_refetch_interval"`
	// JWKSTimeout bounds one fetch; 0 means 5s.
	JWKSTimeout hub.Duration `json:"jwks_timeout"`
	// Algorithms narrows what the keys may verify. Empty: all that suit the keys;
	// "none" never.
	Algorithms []string `json:"algorithms"`
	// Issuer must be the token's iss. Empty: any.
	Issuer string `json:"issuer"`
	// Audience must have a value in common with the token's aud. Empty: aud is not
	// looked at. Set it if the issuer serves others too.
	Audience []string `json:"audience"`
	// Leeway is how far exp, nbf and iat may be off, at most 5m. 0 means 5s: clocks
	// under NTP differ by less than one second, and the rest lets a token that was
	// minted just now be used at once, while adding little to its life.
	Leeway hub.Duration `json:"leeway"`
	// RequireExpiry refuses tokens without exp: such a token can only be revoked by
	// changing keys.
	RequireExpiry setting.Switch `json:"require_expiry"`
}

// A PublicKey verifies tokens.
type PublicKey struct {
	// ID is the kid it answers to; empty means any.
	ID string `json:"id"`
	// PEM is the key: PUBLIC KEY, RSA PUBLIC KEY or CERTIFICATE, one or more.
	// Empty: File has it.
	PEM string `json:"pem"`
	// File is a file with the same. Empty: PEM has it.
	File string `json:"file"`
}

// An APIKey is a shared secret that is sent as it is, in X-API-Key. One of Key,
// KeyFile and SHA256 is set.
type APIKey struct {
	// Name is who uses the key; it becomes the identity's subject. Required.
	Name string `json:"name"`
	// Key is the key itself; under 16 bytes only for a server that listens on
	// loopback alone. Empty: see the others.
	Key Secret `json:"key"`
	// KeyFile holds the key; a newline at its end is not part of it.
	KeyFile string `json:"key_file"`
	// SHA256 is the hex SHA-256 of a key, so that the config holds no secret.
	SHA256 string `json:"sha256"`
	// Publish are the channel patterns it may publish to; empty means "**", all.
	Publish []string `json:"publish"`
	// Subscribe are the channel patterns it may subscribe to; empty means none.
	Subscribe []string `json:"subscribe"`
}

// Defaults of Config.
const (
	defaultRefresh       = hub.Duration(10 * time.Minute)
	defaultMinRefetch    = hub.Duration(10 * time.Second)
	defaultTimeout       = hub.Duration(5 * time.Second)
	defaultLeeway        = hub.Duration(5 * time.Second)
	defaultCookie        = "weir_token"
	defaultMaxTokenBytes = 8 << 10
	defaultTokenCache    = 1 << 16

	minSecretBytes = 32 // RFC 7518 §3.2: no shorter than the hash
	shortKeyBytes  = 16
	maxAPIKeyBytes = 1 << 10
	maxLeeway      = hub.Duration(5 * time.Minute)

	secretHint = "make one with: head -c 48 /dev/urandom | base64 -w0"
)

// HasTokenKeys reports whether c names any key that verifies tokens.
func (c KeySet) HasTokenKeys() bool {
	return c.HMACSecret != "" || c.HMACSecretFile != "" || c.HMACPreviousSecret != "" || c.HMACPreviousSecretFile != "" ||
		len(c.PublicKeys) > 0 || c.JWKSURL != ""
}

// ShortKeys names the API keys under 16 bytes: someone who can reach the server
// could guess them. Keys that cannot be read are not among them.
func (c Config) ShortKeys() []string {
	var short []string
	for i, ak := range c.APIKeys {
		at := fmt.Sprintf("auth.api_keys[%d]", i)
		if secret, _ := readSecret(at+".key", ak.Key, ak.KeyFile, &problems{}); secret != nil && len(secret) < shortKeyBytes {
			short = append(short, at)
		}
	}
	return short
}

// Validate returns all that is wrong with c, joined *ConfigErrors, as Config.Validate
// does. A set without keys is wrong, too.
func (c KeySet) Validate() error {
	if !c.HasTokenKeys() {
		return &ConfigError{Msg: "there are no keys", Fix: "set hmac_secret, public_keys or jwks_url"}
	}
	_, err := Config{KeySet: c}.WithDefaults().load()
	var p problems
	for _, err := range unjoin(err) {
		if e, ok := errors.AsType[*ConfigError](err); ok {
			err = &ConfigError{Key: strings.TrimPrefix(e.Key, "auth."), Msg: e.Msg, Fix: e.Fix}
		}
		p.list = append(p.list, err)
	}
	return p.err()
}

func unjoin(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return nil
}

// WithDefaults returns c with every zero replaced by what it means.
func (c KeySet) WithDefaults() KeySet {
	c.JWKSRefreshInterval = cmp.Or(c.JWKSRefreshInterval, defaultRefresh)
	c.JWKSMinRefetchInterval = cmp.Or(c.JWKSMinRefetchInterval, defaultMinRefetch)
	c.JWKSTimeout = cmp.Or(c.JWKSTimeout, defaultTimeout)
	c.Leeway = cmp.Or(c.Leeway, defaultLeeway)
	return c
}

// WeakSecrets specifies what is wrong with each HMAC secret that can be guessed, as "hmac_secret:
// 6 bytes can be guessed". Without AllowWeakSecrets there is none in a valid c.
func (c KeySet) WeakSecrets() []string {
	var weak []string
	for _, s := range c.secrets(&problems{}) {
		if msg, guessable := weakSecret(s.bytes); guessable {
			weak = append(weak, s.from+": "+msg)
		}
	}
	return weak
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.KeySet = c.KeySet.WithDefaults()
	c.Cookie = cmp.Or(c.Cookie, defaultCookie)
	c.MaxTokenBytes = cmp.Or(c.MaxTokenBytes, defaultMaxTokenBytes)
	c.TokenCache = cmp.Or(c.TokenCache, defaultTokenCache)
	return c
}

// Validate returns all that is wrong with c, joined *ConfigErrors; it reads the
// files that c names. What passes here is what New accepts.
func (c Config) Validate() error {
	_, err := c.WithDefaults().load()
	return err
}

// A ConfigError is one thing wrong with a Config.
type ConfigError struct {
	Key string // path of the key, as in "auth.hmac_secret"; empty: the section as a whole
	Msg string
	Fix string // what to do about it; may be empty
}

// Error returns key, message and fix in one line.
func (e *ConfigError) Error() string {
	text := e.Msg
	if e.Key != "" {
		text = e.Key + ": " + text
	}
	if e.Fix != "" {
		text += " (" + e.Fix + ")"
	}
	return text
}

// Hint returns what to do about it; may be empty.
func (e *ConfigError) Hint() string { return e.Fix }

// problems collects ConfigErrors.
type problems struct{ list []error }

func (p *problems) add(key, fix, format string, a ...any) {
	p.list = append(p.list, &ConfigError{Key: "auth." + key, Msg: fmt.Sprintf(format, a...), Fix: fix})
}

func (p *problems) err() error { return errors.Join(p.list...) }

// loaded is a Config turned into what verifies.
type loaded struct {
	keys    []*key
	algs    map[string]bool
	apiKeys []apiKey
	origins origins
}

// load checks and reads everything. c has its defaults.
func (c Config) load() (loaded, error) {
	var (
		l loaded
		p problems
	)
	c.loadSecrets(&l, &p)
	c.loadPublicKeys(&l, &p)
	c.loadAPIKeys(&l, &p)
	l.algs = c.algorithms(l.keys, &p)
	l.origins = compileOrigins(c.AllowedOrigins, &p)
	c.checkJWKS(&p)
	c.checkLimits(&p)
	return l, p.err()
}

func (c Config) checkLimits(p *problems) {
	if c.Leeway < 0 || c.Leeway > maxLeeway {
		p.add("leeway", "", "%v is not within 0s..%v", c.Leeway, maxLeeway)
	}
	if c.MaxTokenBytes < 256 || c.MaxTokenBytes > 64<<10 {
		p.add("max_token_bytes", "", "%d is not within 256..65536", c.MaxTokenBytes)
	}
	if c.TokenCache > 1<<24 {
		p.add("token_cache", "", "%d is over %d", c.TokenCache, 1<<24)
	}
	if !validCookieName(c.Cookie) {
		p.add("cookie", "", "%q is not a cookie name", c.Cookie)
	}
	if slices.Contains(c.Audience, "") {
		p.add("audience", "", "a value is empty")
	}
}

func (c KeySet) checkJWKS(p *problems) {
	within := func(key string, d, lo, hi hub.Duration) {
		if d < lo || d > hi {
			p.add(key, "", "%v is not within %v..%v", d, lo, hi)
		}
	}
	within("jwks_refresh_interval", c.JWKSRefreshInterval, hub.Duration(time.Second), hub.Duration(7*24*time.Hour))
	within("jwks_min_refetch_interval", c.JWKSMinRefetchInterval, hub.Duration(time.Second), hub.Duration(time.Hour))
	within("jwks_timeout", c.JWKSTimeout, hub.Duration(10*time.Millisecond), hub.Duration(time.Minute))
	if c.JWKSURL == "" {
		return
	}
	u, err := url.Parse(c.JWKSURL)
	switch {
	case err != nil || u.Host == "":
		p.add("jwks_url", "", "is not an absolute URL")
	case !safeKeyURL(u):
		p.add("jwks_url", "anyone who can change the response in transit can sign tokens",
			"%s: want https, or http on loopback", u.Redacted())
	}
}

// safeKeyURL reports whether keys fetched from u are those of its host.
func safeKeyURL(u *url.URL) bool {
	if u.Scheme == "https" {
		return true
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())
}

// algorithms returns what may be verified at all.
func (c KeySet) algorithms(keys []*key, p *problems) map[string]bool {
	implied := make(map[string]bool)
	for _, k := range keys {
		for _, alg := range k.algs {
			implied[alg] = true
		}
	}
	if c.JWKSURL != "" {
		for _, alg := range asymmetricAlgs {
			implied[alg] = true
		}
	}
	if len(c.Algorithms) == 0 {
		return implied
	}
	allowed := make(map[string]bool)
	for i, alg := range c.Algorithms {
		key := fmt.Sprintf("algorithms[%d]", i)
		switch {
		case strings.EqualFold(alg, "none"):
			p.add(key, "", "%q would accept unsigned tokens; it is never allowed", alg)
		case !slices.Contains(asymmetricAlgs, alg) && !slices.Contains(symmetricAlgs, alg):
			p.add(key, "", "%.20q is none of %s", alg, strings.Join(slices.Concat(symmetricAlgs, asymmetricAlgs), ", "))
		case !implied[alg]:
			p.add(key, "", "no configured key can verify %s", alg)
		default:
			allowed[alg] = true
		}
	}
	return allowed
}

// Secret is text that is read but never shown: it prints and marshals as
// "(secret)".
type Secret string

const hidden = "(secret)"

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// MarshalText hides the secret. What it writes is refused where a secret is read.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes b as it is.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = Secret(b)
	return nil
}
