package tlsterm

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/net/acme"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Terminator. The zero value means no TLS.
type Config struct {
	// Certificates are what the listener may show, chosen by the name the client
	// requests: the exact name, then a wildcard, else the first. Several for one
	// name, of different key types, are tried in order. Empty: no TLS.
	Certificates []Certificate `json:"certificates"`
	// ACME obtains and renews certificates from a certificate authority. They come after
	// those of certificates.
	ACME acme.Config `json:"acme"`
	// MinVersion is "1.2" or "1.3"; empty means 1.2.
	MinVersion string `json:"min_version"`
	// MaxVersion is "1.2" or "1.3"; empty means 1.3.
	MaxVersion string `json:"max_version"`
	// ClientAuth is "none", "request" (a certificate is verified if there is one)
	// or "require". Empty means none.
	ClientAuth string `json:"client_auth"`
	// ClientCAFiles are PEM files with the authorities of client certificates.
	// Needed unless client_auth is none.
	ClientCAFiles []string `json:"client_ca_files"`
	// ClientCRLFiles are certificate revocation lists, PEM or DER, looked at for changes
	// like the certificates. A list of an authority of client_ca_files or gm.client_ca_files
	// must be signed by it. They count for full and for resumed handshakes; established
	// connections whose certificate a new list revokes are closed. Empty: nothing is revoked.
	ClientCRLFiles []string `json:"client_crl_files"`
	// ClientCRLPolicy specifies what becomes of a client's certificate whose issuer has no list
	// that is in date: "require" refuses it, "allow" lets it in unless a list that is out
	// of date revokes it. Each certificate below the authority needs a list of its issuer.
	// Empty means require.
	ClientCRLPolicy string `json:"client_crl_policy"`
	// Tickets lets clients resume sessions by tickets. False: every handshake is a full
	// one.
	Tickets setting.Switch `json:"tickets"`
	// TicketSecret is what the keys of session tickets are derived from, at least
	// 32 bytes, the same on all nodes: then a session started on one resumes on
	// another. Anyone who has it can read recorded TLS 1.2 sessions that resumed. Empty:
	// a random one that ends with the process.
	TicketSecret Secret `json:"ticket_secret"`
	// TicketSecretFile holds the secret instead; a newline at its end is not part
	// of it. Empty: none.
	TicketSecretFile string `json:"ticket_secret_file"`
	// TicketRotation is how long one ticket key encrypts; it decrypts for two
	// such periods more. 0 means 8h. The same on all nodes.
	TicketRotation hub.Duration `json:"ticket_rotation"`
	// OCSPStapling fetches, keeps fresh and staples the answer of the OCSP responder that
	// a certificate names.
	OCSPStapling setting.Switch `json:"ocsp_stapling"`
	// ReloadInterval is how often the files are looked at for changes; 0 means 5s.
	ReloadInterval hub.Duration `json:"reload_interval"`
	// MaxHandshakes bounds the handshakes under way; 0 means 1,024. More wait. One
	// whose client says nothing for two seconds yields when others wait.
	MaxHandshakes int `json:"max_handshakes"`
	// HandshakeCPUs bounds how many of them compute at a time, so that a storm
	// leaves processors to the event loops; 0 means half of the CPUs, at least 1.
	HandshakeCPUs int `json:"handshake_cpus"`
	// MaxWaiting bounds the connections that wait for their handshake; one more is
	// closed. 0 means 16,384.
	MaxWaiting int `json:"max_waiting"`
	// HandshakeRate bounds how many handshakes start per second; more wait.
	// 0 means no bound.
	HandshakeRate int `json:"handshake_rate"`
	// HelloTimeout bounds the time from accept to the whole ClientHello; 0 means 5s.
	HelloTimeout hub.Duration `json:"hello_timeout"`
	// HandshakeTimeout bounds the time from accept to the end of the handshake,
	// waiting included, which may take three quarters of it; 0 means 10s.
	HandshakeTimeout hub.Duration `json:"handshake_timeout"`
	// GM serves the Chinese national standards TLCP (GB/T 38636) and RFC 8998 on the same
	// port, beside certificates.
	GM GMConfig `json:"gm"`
}

// A Certificate names the two files of one.
type Certificate struct {
	// CertFile is a PEM file: the certificate, then its intermediates.
	CertFile string `json:"cert_file"`
	// KeyFile is a PEM file with the private key. Empty: it is in cert_file.
	KeyFile string `json:"key_file"`
}

// A Secret is text that is not shown: it formats as "***".
type Secret string

// String hides s.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// GoString hides s.
func (s Secret) GoString() string { return s.String() }

// The values of Config.ClientAuth.
const (
	ClientAuthNone    = "none"
	ClientAuthRequest = "request"
	ClientAuthRequire = "require"
)

// Enabled reports whether there is TLS at all.
func (c Config) Enabled() bool { return len(c.Certificates) > 0 || c.ACME.Enabled() || c.GM.Enabled() }

// WithDefaults returns c with zeros replaced by what they mean, but for the one
// that depends on the machine.
func (c Config) WithDefaults() Config {
	c.MinVersion = cmp.Or(c.MinVersion, "1.2")
	c.MaxVersion = cmp.Or(c.MaxVersion, "1.3")
	c.ClientAuth = cmp.Or(c.ClientAuth, ClientAuthNone)
	c.TicketRotation = cmp.Or(c.TicketRotation, hub.Duration(8*time.Hour))
	c.ReloadInterval = cmp.Or(c.ReloadInterval, hub.Duration(5*time.Second))
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, 1024)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 16384)
	c.HelloTimeout = cmp.Or(c.HelloTimeout, hub.Duration(5*time.Second))
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, hub.Duration(10*time.Second))
	return c
}

// Validate returns all that is wrong with c, joined. It opens no file.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, f := range c.Certificates {
		if f.CertFile == "" {
			bad("certificates[%d]: cert_file: is empty", i)
		}
	}
	for _, v := range []struct{ key, text string }{{"min_version", c.MinVersion}, {"max_version", c.MaxVersion}} {
		if version(v.text) == 0 {
			bad("%s: %.40q is neither 1.2 nor 1.3", v.key, v.text)
		}
	}
	if c.MinVersion == "1.3" && c.MaxVersion == "1.2" {
		bad("max_version: 1.2 is below min_version 1.3")
	}
	if !slices.Contains([]string{ClientAuthNone, ClientAuthRequest, ClientAuthRequire}, c.ClientAuth) {
		bad("client_auth: %.40q is none of none, request, require", c.ClientAuth)
	} else if c.ClientAuth != ClientAuthNone && len(c.ClientCAFiles) == 0 && !c.GM.Enabled() {
		bad("client_ca_files: client_auth %s needs an authority to verify with", c.ClientAuth)
	}
	if !slices.Contains([]string{"", "require", "allow"}, c.ClientCRLPolicy) {
		bad("client_crl_policy: invalid value %.40q: want require or allow", c.ClientCRLPolicy)
	}
	if len(c.ClientCRLFiles) > 0 && c.ClientAuth == ClientAuthNone {
		bad("client_crl_files: client_auth is none: set it to request or require")
	}
	if c.TicketSecret != "" && len(c.TicketSecret) < minTicketSecret {
		bad("ticket_secret: %d bytes, at least %d are needed", len(c.TicketSecret), minTicketSecret)
	}
	if c.TicketSecret != "" && c.TicketSecretFile != "" {
		bad("ticket_secret_file: ticket_secret is set, too")
	}
	if err := c.ACME.Validate(); err != nil {
		for _, err := range joined(err) {
			bad("acme.%w", err)
		}
	}
	errs = append(errs, c.validateBounds()...)
	errs = append(errs, c.validateGM()...)
	return errors.Join(errs...)
}

// joined returns the errors that errors.Join put together.
func joined(err error) []error {
	if e, ok := err.(interface{ Unwrap() []error }); ok {
		return e.Unwrap()
	}
	return []error{err}
}

func (c Config) validateBounds() (errs []error) {
	within := func(key string, v, lo, hi int) {
		if v < lo || v > hi {
			errs = append(errs, fmt.Errorf("%s: %d is not within %d..%d", key, v, lo, hi))
		}
	}
	within("max_handshakes", c.MaxHandshakes, 1, 1<<16)
	within("handshake_cpus", c.HandshakeCPUs, 0, 1<<10)
	within("max_waiting", c.MaxWaiting, 1, 1<<24)
	within("handshake_rate", c.HandshakeRate, 0, 1<<24)
	span := func(key string, d hub.Duration, lo, hi time.Duration) {
		if time.Duration(d) < lo || time.Duration(d) > hi {
			errs = append(errs, fmt.Errorf("%s: %v is not within %v..%v", key, d, lo, hi))
		}
	}
	span("ticket_rotation", c.TicketRotation, time.Second, 48*time.Hour) // three periods: within the 7 days of RFC 8446 §4.6.1
	span("reload_interval", c.ReloadInterval, time.Millisecond, 24*time.Hour)
	span("hello_timeout", c.HelloTimeout, time.Millisecond, time.Minute)
	span("handshake_timeout", c.HandshakeTimeout, time.Millisecond, 5*time.Minute)
	return errs
}

// version returns the number of a version in words, or 0.
func version(s string) uint16 {
	switch s {
	case "1.2":
		return tls.VersionTLS12
	case "1.3":
		return tls.VersionTLS13
	}
	return 0
}

// suites12 are the suites for TLS 1.2: forward secret and authenticated, no CBC
// (RFC 9325 §4.2). The key exchange of TLS 1.3 is not configurable.
var suites12 = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// ticketSecret returns the configured secret, or nil when there is none.
func (c Config) ticketSecret() ([]byte, error) {
	if c.TicketSecretFile == "" {
		return []byte(c.TicketSecret), nil
	}
	b, err := os.ReadFile(c.TicketSecretFile)
	if err != nil {
		return nil, fmt.Errorf("ticket_secret_file: %w", err)
	}
	if n := len(b); n > 0 && b[n-1] == '\n' {
		b = b[:n-1]
	}
	if len(b) < minTicketSecret {
		return nil, fmt.Errorf("ticket_secret_file: %d bytes, at least %d are needed", len(b), minTicketSecret)
	}
	return b, nil
}
