// Package acme obtains certificates from a certificate authority that speaks ACME (RFC 8555)
// and renews them.
//
// A Manager keeps one certificate per configured name. It is due for renewal at a time that the
// CA suggests (ARI, RFC 9773), or when a third of its life is left. Failed orders are retried
// with exponential back-off and jitter; the failures are stored, so that neither a restart nor
// another node of the cluster retries earlier. Account, certificates and pending challenges are
// kept in a Store: a directory, or one that all nodes share, whose lock makes one node order
// while the others wait for the result.
//
// The ACME protocol itself is github.com/mholt/acmez.
package acme

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/auth"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of certificates from an ACME CA. The zero value obtains none.
type Config struct {
	// Names are the DNS names and IP addresses to obtain certificates for, one
	// certificate each, at most 100. Wildcards need the DNS-01 challenge, which is not
	// supported. Empty: ACME is off.
	Names []string `json:"names"`
	// AcceptTerms agrees to the CA's terms of service, which every CA requires.
	AcceptTerms bool `json:"accept_terms"`
	// Directory is the CA: "letsencrypt", "letsencrypt-staging" (certificates that clients
	// do not trust, with generous rate limits, for trying a configuration) or the https
	// URL of an ACME directory. Empty means letsencrypt.
	Directory string `json:"directory"`
	// DirectoryCAFile is a PEM file with the authorities to trust for the connection to
	// the directory. Empty means the system's.
	DirectoryCAFile string `json:"directory_ca_file"`
	// Email is the account's contact address. Empty: none.
	Email string `json:"email"`
	// ExternalAccount binds the account to one that exists at the CA (RFC 8555 §7.3.4).
	// Its zero value binds none.
	ExternalAccount ExternalAccount `json:"external_account"`
	// Challenges are the challenge types to use: "tls-alpn-01" on the public listener,
	// "http-01" on http_listen. Empty means tls-alpn-01, and http-01 if http_listen is set.
	Challenges []string `json:"challenges"`
	// HTTPListen is the "host:port" of a plaintext listener for HTTP-01 challenges, which
	// the CA sends to port 80. It redirects all other requests to https. Empty: none.
	HTTPListen string `json:"http_listen"`
	// KeyType is the type of the certificates' keys: "p256", "p384" or "rsa2048". Empty
	// means p256.
	KeyType string `json:"key_type"`
	// MustStaple requests certificates that clients accept only with a stapled OCSP
	// response (RFC 7633). CAs without OCSP refuse such orders.
	MustStaple bool `json:"must_staple"`
	// Profile is one of the CA's certificate profiles, such as "shortlived". Empty means
	// the CA's default.
	Profile string `json:"profile"`
	// RenewBefore is how long before its expiry a certificate is renewed. 0 means a third
	// of its lifetime.
	RenewBefore hub.Duration `json:"renew_before"`
	// RenewalInfo renews at the time that the CA suggests, if it suggests one (ARI,
	// RFC 9773), in place of renew_before.
	RenewalInfo setting.Switch `json:"renewal_info"`
	// RetryMin is the pause after a failed order; it doubles with each further failure, up
	// to retry_max, with jitter. 0 means 1m.
	RetryMin hub.Duration `json:"retry_min"`
	// RetryMax bounds the pause between failed orders; 0 means 6h.
	RetryMax hub.Duration `json:"retry_max"`
	// Dir is the directory for account, keys and certificates, readable by this user
	// only. Nodes that share a broker keep them in its key-value bucket
	// PREFIX_certificates besides, in plaintext: read access to that bucket gives the
	// private keys. Empty means acme below broker.nats.dir, or weir-data/acme.
	Dir string `json:"dir"`
}

// ExternalAccount identifies an account that exists at the CA.
type ExternalAccount struct {
	// KeyID is the key identifier from the CA. Empty: no binding.
	KeyID string `json:"key_id"`
	// HMACKey is the MAC key from the CA, in base64url. Needed with key_id.
	HMACKey auth.Secret `json:"hmac_key"`
}

// The challenge types.
const (
	tlsALPN01 = "tls-alpn-01"
	http01    = "http-01"
)

const (
	letsEncrypt        = "https://acme-v02.api.letsencrypt.org/directory"
	letsEncryptStaging = "https://acme-staging-v02.api.letsencrypt.org/directory"
	maxNames           = 100
)

// Enabled reports whether certificates are to be obtained.
func (c Config) Enabled() bool { return len(c.Names) > 0 }

// WithDefaults returns c with zeros replaced by what they mean, but for Dir.
func (c Config) WithDefaults() Config {
	if c.Directory == "" {
		c.Directory = "letsencrypt"
	}
	if len(c.Challenges) == 0 && c.Enabled() {
		c.Challenges = []string{tlsALPN01}
		if c.HTTPListen != "" {
			c.Challenges = append(c.Challenges, http01)
		}
	}
	if c.KeyType == "" {
		c.KeyType = "p256"
	}
	if c.RetryMin == 0 {
		c.RetryMin = hub.Duration(time.Minute)
	}
	if c.RetryMax == 0 {
		c.RetryMax = max(hub.Duration(6*time.Hour), c.RetryMin)
	}
	return c
}

// directoryURL returns the directory's URL.
func (c Config) directoryURL() string {
	switch c.Directory {
	case "", "letsencrypt":
		return letsEncrypt
	case "letsencrypt-staging":
		return letsEncryptStaging
	}
	return c.Directory
}

// Validate returns all that is wrong with c, joined. It opens no file.
func (c Config) Validate() error {
	if !c.Enabled() {
		return nil
	}
	c = c.WithDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Names) > maxNames {
		bad("names: %d names: want at most %d", len(c.Names), maxNames)
	}
	for i, name := range c.Names {
		if err := checkName(name); err != nil {
			bad("names[%d]: %w", i, err)
		} else if slices.Contains(c.Names[:i], name) {
			bad("names[%d]: duplicate name %q", i, name)
		}
	}
	if !c.AcceptTerms {
		bad("accept_terms: is false: read the CA's terms of service, then set it to true")
	}
	if u, err := url.Parse(c.directoryURL()); err != nil || u.Scheme != "https" || u.Host == "" {
		bad("directory: invalid value %.80q: want letsencrypt, letsencrypt-staging or an https URL", c.Directory)
	}
	if c.Email != "" && !strings.Contains(c.Email, "@") {
		bad("email: invalid address %.80q", c.Email)
	}
	if (c.ExternalAccount.KeyID == "") != (c.ExternalAccount.HMACKey == "") {
		bad("external_account: want both key_id and hmac_key, or neither")
	}
	if !slices.Contains([]string{"p256", "p384", "rsa2048"}, c.KeyType) {
		bad("key_type: invalid value %.40q: want p256, p384 or rsa2048", c.KeyType)
	}
	errs = append(errs, c.validateChallenges()...)
	for _, d := range []struct {
		key    string
		d      hub.Duration
		lo, hi time.Duration
	}{
		{"renew_before", c.RenewBefore, 0, 365 * 24 * time.Hour},
		{"retry_min", c.RetryMin, 100 * time.Millisecond, 24 * time.Hour},
		{"retry_max", c.RetryMax, time.Duration(c.RetryMin), 7 * 24 * time.Hour},
	} {
		if time.Duration(d.d) < d.lo || time.Duration(d.d) > d.hi {
			bad("%s: %v is not within %v..%v", d.key, d.d, d.lo, d.hi)
		}
	}
	return errors.Join(errs...)
}

func (c Config) validateChallenges() (errs []error) {
	for i, name := range c.Challenges {
		switch {
		case name != tlsALPN01 && name != http01:
			errs = append(errs, fmt.Errorf("challenges[%d]: invalid value %.40q: want tls-alpn-01 or http-01", i, name))
		case name == http01 && c.HTTPListen == "":
			errs = append(errs, fmt.Errorf("challenges[%d]: http-01 needs a plaintext listener: set http_listen, such as \":80\"", i))
		}
	}
	return errs
}

// checkName wants a DNS name without wildcard, in lower case and A-labels, or an IP address.
func checkName(name string) error {
	if ip, err := netip.ParseAddr(name); err == nil {
		if ip.Zone() != "" || ip.Is4In6() {
			return fmt.Errorf("invalid address %.80q: want it without zone and not IPv4-mapped", name)
		}
		return nil
	}
	switch {
	case strings.HasPrefix(name, "*."):
		return fmt.Errorf("wildcard %.80q needs the DNS-01 challenge, which is not supported: list the names, or obtain it elsewhere and set tls.certificates", name)
	case name == "" || len(name) > 253:
		return fmt.Errorf("invalid name %.80q: want 1 to 253 bytes", name)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return fmt.Errorf("invalid name %.80q: want lower-case letters, digits and hyphens between dots; write international names as xn--", name)
		}
	}
	return nil
}
