package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
)

// A Certificate is what is used of a client's certificate. Immutable.
type Certificate struct {
	// Subject is the distinguished name as RFC 2253 writes it.
	Subject string
	// CommonName is the subject's; empty: it has none.
	CommonName string
	// DNSNames, URIs and Emails are the subject's alternative names.
	DNSNames, URIs, Emails []string
	// Fingerprint is the SHA-256 of the certificate in lower-case hexadecimal digits.
	Fingerprint string
	// DER is the certificate.
	DER []byte
}

// NewCertificate returns what is used of a certificate that was verified.
func NewCertificate(c *x509.Certificate) *Certificate {
	sum := sha256.Sum256(c.Raw)
	out := &Certificate{
		Subject: c.Subject.String(), CommonName: c.Subject.CommonName, DNSNames: c.DNSNames, Emails: c.EmailAddresses,
		Fingerprint: hex.EncodeToString(sum[:]), DER: c.Raw,
	}
	for _, u := range c.URIs {
		out.URIs = append(out.URIs, u.String())
	}
	return out
}
