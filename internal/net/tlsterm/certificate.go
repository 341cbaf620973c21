package tlsterm

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/emmansun/gmsm/smx509"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// A cert is one certificate in service.
type cert struct {
	// Immutable.
	file       string
	managed    bool     // no file has it
	id         [32]byte // of the chain
	bare       *tls.Certificate
	issuer     *x509.Certificate // nil when the file does not have it
	mustStaple bool

	// Any goroutine. The certificate with a good answer of its responder, or nil.
	stapled atomic.Pointer[stapled]
}

// stapled is a certificate with an answer that may be shown until a time.
type stapled struct {
	cert  *tls.Certificate
	until time.Time
}

// current returns the certificate as it is to be shown at a time: with a staple
// that is still good, or without any.
func (c *cert) current(now time.Time) *tls.Certificate {
	if s := c.stapled.Load(); s != nil && now.Before(s.until) {
		return s.cert
	}
	return c.bare
}

// complete reports whether nothing is missing that the certificate promises: one
// that says "must staple" is refused by clients without a staple (RFC 7633).
func (c *cert) complete(now time.Time) bool {
	return !c.mustStaple || c.current(now) != c.bare
}

// loadCert reads and checks one certificate.
func loadCert(f Certificate) (*cert, error) {
	certPEM, err := os.ReadFile(f.CertFile)
	if err != nil {
		return nil, fmt.Errorf("cert_file: %w", err)
	}
	keyPEM := certPEM
	if f.KeyFile != "" {
		if keyPEM, err = os.ReadFile(f.KeyFile); err != nil {
			return nil, fmt.Errorf("key_file: %w", err)
		}
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.CertFile, err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s: expired on %s", f.CertFile, pair.Leaf.NotAfter.Format(time.DateOnly))
	}
	return newCert(f.CertFile, pair)
}

// newCert makes a cert of a chain and its key, from file.
func newCert(file string, pair tls.Certificate) (*cert, error) {
	c := &cert{file: file, bare: &pair, id: sha256.Sum256(bytes.Join(pair.Certificate, nil)), mustStaple: mustStaple(pair.Leaf)}
	if len(pair.Certificate) > 1 {
		issuer, err := x509.ParseCertificate(pair.Certificate[1])
		if err != nil {
			return nil, fmt.Errorf("%s: the second certificate: %w", file, err)
		}
		if pair.Leaf.CheckSignatureFrom(issuer) == nil {
			c.issuer = issuer
		}
	}
	return c, nil
}

var (
	oidTLSFeature = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}
	statusRequest = 5
)

// mustStaple reports whether leaf has the TLS feature status_request (RFC 7633).
func mustStaple(leaf *x509.Certificate) bool {
	for _, e := range leaf.Extensions {
		var features []int
		if e.Id.Equal(oidTLSFeature) {
			if _, err := asn1.Unmarshal(e.Value, &features); err == nil && slices.Contains(features, statusRequest) {
				return true
			}
		}
	}
	return false
}

// A shelf is a set of certificates, arranged by the names they are for. Immutable.
type shelf struct {
	certs  []*cert
	byName map[string][]*cert // "a.example.com" and "*.example.com", lower case
}

// loadShelf reads all files. On any error there is none: half of a
// configuration is not what was asked for.
func loadShelf(files []Certificate) (*shelf, error) {
	s := &shelf{byName: map[string][]*cert{}}
	var errs []error
	for i, f := range files {
		c, err := loadCert(f)
		if err != nil {
			errs = append(errs, fmt.Errorf("certificates[%d]: %w", i, err))
			continue
		}
		s.add(c)
	}
	return s, errors.Join(errs...)
}

func (s *shelf) add(c *cert) {
	s.certs = append(s.certs, c)
	for _, name := range c.bare.Leaf.DNSNames {
		name = strings.ToLower(name)
		s.byName[name] = append(s.byName[name], c)
	}
}

// pick returns the certificate for a ClientHello: by the exact name, then by a
// wildcard for its first label, else the first. Of several for the same name the
// first that the client can use and that lacks nothing.
func (s *shelf) pick(hello *tls.ClientHelloInfo, now time.Time) *cert {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if c := first(s.byName[name], hello, now); c != nil {
		return c
	}
	if _, parent, ok := strings.Cut(name, "."); ok {
		if c := first(s.byName["*."+parent], hello, now); c != nil {
			return c
		}
	}
	return first(s.certs, hello, now)
}

// first of cs that suits hello; when none suits, the first: crypto/tls then says
// what the client lacks.
func first(cs []*cert, hello *tls.ClientHelloInfo, now time.Time) *cert {
	var usable *cert
	for _, c := range cs {
		if len(cs) == 1 {
			return c
		}
		if !usableFor(c, hello) {
			continue
		}
		if c.complete(now) {
			return c
		}
		if usable == nil {
			usable = c
		}
	}
	if usable == nil && len(cs) > 0 {
		return cs[0]
	}
	return usable
}

// usableFor reports whether the client understands c's kind of key. The name was
// checked by the caller.
func usableFor(c *cert, hello *tls.ClientHelloInfo) bool {
	h := *hello
	h.ServerName = ""
	return h.SupportsCertificate(c.bare) == nil
}

// A clientTrust is what client certificates are verified with.
type clientTrust struct {
	pool    *x509.CertPool // nil: none
	digest  []byte
	gm      *smx509.CertPool // on curve SM2; nil: none
	gmCAs   []*smx509.Certificate
	revoked *revocations // nil: there are no lists
}

// loadTrust reads the authorities of client certificates and the revocation lists.
func (c Config) loadTrust() (*clientTrust, error) {
	pool, cas, digest, err := loadCAs(c.ClientCAFiles)
	if err != nil {
		return nil, err
	}
	t := &clientTrust{pool: pool, digest: digest}
	if c.GM.Enabled() && c.ClientAuth != ClientAuthNone {
		if t.gm, t.gmCAs, err = gm.LoadPool(c.GM.ClientCAFiles); err != nil {
			return nil, fmt.Errorf("gm.client_ca_files: %w", err)
		}
		for _, ca := range t.gmCAs {
			cas = append(cas, gm.X509(ca))
		}
	}
	t.revoked, err = loadRevocations(c.ClientCRLFiles, cas, c.ClientCRLPolicy == "allow")
	return t, err
}

// loadCAs reads the authorities of client certificates. digest distinguishes them from
// others.
func loadCAs(files []string) (pool *x509.CertPool, cas []*x509.Certificate, digest []byte, err error) {
	if len(files) == 0 {
		return nil, nil, nil, nil
	}
	pool = x509.NewCertPool()
	sum := sha256.New()
	for i, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("client_ca_files[%d]: %w", i, err)
		}
		if !pool.AppendCertsFromPEM(b) {
			return nil, nil, nil, fmt.Errorf("client_ca_files[%d]: %s: no certificate in it", i, f)
		}
		sum.Write(b)
		for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
			if c, err := x509.ParseCertificate(block.Bytes); err == nil {
				cas = append(cas, c)
			}
		}
	}
	return pool, cas, sum.Sum(nil), nil
}
