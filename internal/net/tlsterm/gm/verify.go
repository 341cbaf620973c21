package gm

import (
	"crypto/x509"
	"errors"
	"time"

	"github.com/emmansun/gmsm/smx509"
)

// verifyFor reports what certificates of a peer are verified for.
type verifyFor struct {
	roots *smx509.CertPool
	name  string // of a server
	use   smx509.ExtKeyUsage
	at    time.Time
}

func (v verifyFor) verify(leaf *smx509.Certificate, others []*smx509.Certificate) ([][]*smx509.Certificate, error) {
	chains, err := verify(leaf, others, v.roots, v.name, v.use, v.at)
	if err == nil {
		return chains, nil
	}
	alert := uint8(alertBadCertificate)
	invalid, isInvalid := errors.AsType[smx509.CertificateInvalidError](err)
	if _, ok := errors.AsType[smx509.UnknownAuthorityError](err); ok {
		alert = alertUnknownCA
	} else if isInvalid && invalid.Reason == smx509.Expired {
		alert = alertCertificateExpired
	}
	return nil, failWith(alert, err, "certificate "+leaf.Subject.String())
}

// clientFor is for the clients of a server.
func (c *ServerConfig) clientFor() verifyFor {
	return verifyFor{roots: c.ClientCAs, use: smx509.ExtKeyUsageClientAuth, at: now(c.Time)}
}

// serverFor is for the server of a client.
func (c *ClientConfig) serverFor() verifyFor {
	return verifyFor{roots: c.RootCAs, name: c.ServerName, use: smx509.ExtKeyUsageServerAuth, at: now(c.Time)}
}

// admitClient verifies a client's certificates for one of the protocols, and lets the
// configuration refuse them.
func (c *ServerConfig) admitClient(version uint16, certs []*smx509.Certificate) ([][]*smx509.Certificate, error) {
	sign, enc, err := c.verifyClient(version, certs)
	if err != nil {
		return nil, err
	}
	for _, chains := range [][][]*smx509.Certificate{sign, enc} {
		if c.VerifyClient == nil || len(chains) == 0 {
			continue
		}
		if err := c.VerifyClient(chains); err != nil {
			return nil, failWith(alertBadCertificate, err, "the client's certificate")
		}
	}
	return sign, nil
}

// verifyClient returns the chains of the signing certificate and, in TLCP, of the encryption one.
func (c *ServerConfig) verifyClient(version uint16, certs []*smx509.Certificate) (sign, enc [][]*smx509.Certificate, err error) {
	if version == VersionTLCP {
		if err := checkRoles(certs); err != nil {
			return nil, nil, err
		}
		return verifyPair(certs, c.clientFor())
	}
	if err := CheckSigning(certs[0]); err != nil {
		return nil, nil, failWith(alertUnsupportedCertificate, err, "the client's certificate")
	}
	sign, err = c.clientFor().verify(certs[0], certs[1:])
	return sign, nil, err
}

// Readmit verifies certificates that a client sent in an earlier handshake of a version,
// by the authorities of now. VerifyClient is the caller's affair.
func (c *ServerConfig) Readmit(version uint16, ders [][]byte) (peer []*smx509.Certificate, chains [][]*smx509.Certificate, err error) {
	for _, der := range ders {
		x, err := smx509.ParseCertificate(der)
		if err != nil {
			return nil, nil, err
		}
		peer = append(peer, x)
	}
	if len(peer) == 0 {
		return nil, nil, errNoPair
	}
	chains, _, err = c.verifyClient(version, peer)
	return peer, chains, err
}

// admitServer verifies a server's certificates for one of the protocols.
func (c *ClientConfig) admitServer(certs []*smx509.Certificate) ([][]*smx509.Certificate, error) {
	if c.Version == VersionTLCP {
		if err := checkRoles(certs); err != nil {
			return nil, err
		}
		if c.InsecureSkipVerify {
			return nil, nil
		}
		chains, _, err := verifyPair(certs, c.serverFor())
		return chains, err
	}
	if err := CheckSigning(certs[0]); err != nil {
		return nil, failWith(alertUnsupportedCertificate, err, "the server's certificate")
	}
	if c.InsecureSkipVerify {
		return nil, nil
	}
	return c.serverFor().verify(certs[0], certs[1:])
}

// CheckRevocationList returns an error unless the certificate issuer signed list with SM2 and
// SM3. Both are in DER.
func CheckRevocationList(list, issuer []byte) error {
	c, err := smx509.ParseCertificate(issuer)
	if err != nil {
		return err
	}
	if err := CheckCurve(c); err != nil {
		return err
	}
	l, err := smx509.ParseRevocationList(list)
	if err != nil {
		return err
	}
	return l.CheckSignatureFrom(c)
}

// X509 returns c as the standard library's type, which cannot parse keys on curve SM2: with
// what identifies c and its holder, and without what verifies signatures.
func X509(c *smx509.Certificate) *x509.Certificate {
	return &x509.Certificate{
		Raw: c.Raw, RawTBSCertificate: c.RawTBSCertificate, RawSubjectPublicKeyInfo: c.RawSubjectPublicKeyInfo, RawSubject: c.RawSubject,
		RawIssuer: c.RawIssuer, PublicKey: c.PublicKey, Version: c.Version, SerialNumber: c.SerialNumber, Issuer: c.Issuer, Subject: c.Subject,
		NotBefore: c.NotBefore, NotAfter: c.NotAfter, IsCA: c.IsCA, KeyUsage: x509.KeyUsage(c.KeyUsage), SubjectKeyId: c.SubjectKeyId,
		AuthorityKeyId: c.AuthorityKeyId, DNSNames: c.DNSNames, EmailAddresses: c.EmailAddresses, IPAddresses: c.IPAddresses, URIs: c.URIs,
	}
}

// X509Chains is X509 for chains.
func X509Chains(chains [][]*smx509.Certificate) (list [][]*x509.Certificate) {
	for _, chain := range chains {
		var l []*x509.Certificate
		for _, c := range chain {
			l = append(l, X509(c))
		}
		list = append(list, l)
	}
	return list
}
