package tlsterm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/net/acme"
)

// Managed has certificates besides those in files. Any goroutine may call its methods.
type Managed interface {
	// Certificates returns those that there are. After they have changed Reload is called.
	Certificates() []*tls.Certificate
	// ChallengeCertificate returns the certificate for a handshake that validates control
	// over a server name (RFC 8737), an error if none is expected. It may block.
	ChallengeCertificate(ctx context.Context, serverName string) (*tls.Certificate, error)
}

var _ Managed = (*acme.Manager)(nil)

// Manage has the certificates of m served after those of files. Before Accept.
func (t *Terminator) Manage(m Managed) error {
	t.managed = m
	return t.Reload()
}

var (
	errNoCertificate = errors.New("there is no certificate yet")
	// errValidated ends a connection whose handshake validated a name: nothing follows it
	// (RFC 8737 §3).
	errValidated = errors.New("tls: the handshake validated a name for a CA")
)

// addManaged puts the certificates of m behind those of files.
func (s *shelf) addManaged(m Managed) error {
	if m == nil {
		return nil
	}
	for _, pair := range m.Certificates() {
		c, err := newCert("acme: "+nameOf(pair.Leaf), *pair)
		if err != nil {
			return err
		}
		c.managed = true
		s.add(c)
	}
	return nil
}

// nameOf returns the first name of a certificate.
func nameOf(leaf *x509.Certificate) string {
	switch {
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		return leaf.IPAddresses[0].String()
	}
	return leaf.Subject.CommonName
}

// validates answers handshakes that offer nothing but acme.Protocol with the certificate of a
// challenge. The caller has a slot of t.gate, which others get while this waits.
func (t *Terminator) validates(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if !slices.Equal(hello.SupportedProtos, []string{acme.Protocol}) {
		return nil, nil // the usual configuration
	}
	<-t.gate
	c, err := t.managed.ChallengeCertificate(hello.Context(), hello.ServerName)
	t.gate <- struct{}{}
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{acme.Protocol}, Certificates: []tls.Certificate{*c}, SessionTicketsDisabled: true}, nil
}

// CertificateInfo is a certificate in service.
type CertificateInfo struct {
	Leaf *x509.Certificate
	// File is where it was read from; empty: Managed has it.
	File string
	// StapledUntil is when the stapled OCSP response expires; zero: none is stapled.
	StapledUntil time.Time
	MustStaple   bool
}

// Certificates returns what is in service, the default certificate first. Any goroutine.
func (t *Terminator) Certificates() []CertificateInfo {
	var all []CertificateInfo
	now := time.Now()
	for _, c := range t.current.Load().shelf.certs {
		info := CertificateInfo{Leaf: c.bare.Leaf, MustStaple: c.mustStaple}
		if !c.managed {
			info.File = c.file
		}
		if s := c.stapled.Load(); s != nil && now.Before(s.until) {
			info.StapledUntil = s.until
		}
		all = append(all, info)
	}
	return all
}

// Name returns the certificate's first name.
func (c CertificateInfo) Name() string { return nameOf(c.Leaf) }

// LifetimeLeft returns the part of the certificate's lifetime that is left at a time, 0 to 1.
func (c CertificateInfo) LifetimeLeft(now time.Time) float64 {
	life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)
	if life <= 0 {
		return 0
	}
	return min(max(float64(c.Leaf.NotAfter.Sub(now))/float64(life), 0), 1)
}

// missing is the error of handshakes while there is no certificate.
func missing(serverName string) error {
	return fmt.Errorf("%w for %.80q", errNoCertificate, serverName)
}
