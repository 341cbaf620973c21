package tlsterm

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// revocations are the certificate revocation lists of a service. Immutable but for what is
// known of signatures.
type revocations struct {
	lists   map[string][]*revocationList // by the issuer's name, in DER
	lenient bool
}

// A revocationList is one list. A list of an authority that is not among the configured
// ones is an intermediate's: its signature is verified with the certificate that a client
// shows for that.
type revocationList struct {
	file    string
	list    *x509.RevocationList
	serials map[string]bool
	signer  atomic.Pointer[[sha256.Size]byte] // of the issuer that the signature holds for
}

var (
	errClientRevoked = errors.New("tls: the client's certificate is revoked")
	errNoList        = errors.New("tls: there is no revocation list in date for the client's certificate")
	errNotVerified   = errors.New("tls: the client's certificate was not verified")
)

// loadRevocations reads the lists, PEM or DER. One that an authority of cas has not signed
// although it bears its name is an error, and so is one that cannot be read: the lists in
// service stay then.
func loadRevocations(files []string, cas []*x509.Certificate, lenient bool) (*revocations, error) {
	if len(files) == 0 {
		return nil, nil
	}
	r := &revocations{lists: map[string][]*revocationList{}, lenient: lenient}
	for i, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("client_crl_files[%d]: %w", i, err)
		}
		ders := crlBlocks(b)
		for _, der := range ders {
			l, err := x509.ParseRevocationList(der)
			if err != nil {
				return nil, fmt.Errorf("client_crl_files[%d]: %s: %w", i, file, err)
			}
			if err := r.add(file, l, cas); err != nil {
				return nil, fmt.Errorf("client_crl_files[%d]: %s: %w", i, file, err)
			}
		}
	}
	return r, nil
}

// crlBlocks returns the lists in b: several in PEM, or one in DER.
func crlBlocks(b []byte) (ders [][]byte) {
	if !bytes.Contains(b, []byte("-----BEGIN")) {
		return [][]byte{b}
	}
	for rest := b; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if len(ders) == 0 {
				return [][]byte{nil} // nothing that can be parsed
			}
			return ders
		}
		if block.Type == "X509 CRL" {
			ders = append(ders, block.Bytes)
		}
	}
}

func (r *revocations) add(file string, l *x509.RevocationList, cas []*x509.Certificate) error {
	e := &revocationList{file: file, list: l, serials: make(map[string]bool, len(l.RevokedCertificateEntries))}
	for _, c := range l.RevokedCertificateEntries {
		if c.ReasonCode != 8 { // removeFromCRL is in deltas only
			e.serials[string(c.SerialNumber.Bytes())] = true
		}
	}
	var err error
	for _, ca := range cas {
		if !bytes.Equal(ca.RawSubject, l.RawIssuer) {
			continue
		}
		if err = checkList(l, ca); err == nil {
			e.verified(ca)
			break
		}
	}
	if err != nil {
		return fmt.Errorf("not signed by the authority %s of client_ca_files: %w", l.Issuer, err)
	}
	r.lists[string(l.RawIssuer)] = append(r.lists[string(l.RawIssuer)], e)
	return nil
}

// checkList returns an error unless issuer signed l. What crypto/x509 does not know is SM2 with SM3 or
// refused.
func checkList(l *x509.RevocationList, issuer *x509.Certificate) error {
	if l.SignatureAlgorithm == x509.UnknownSignatureAlgorithm {
		return gm.CheckRevocationList(l.Raw, issuer.Raw)
	}
	return l.CheckSignatureFrom(issuer)
}

func (l *revocationList) verified(issuer *x509.Certificate) {
	sum := sha256.Sum256(issuer.Raw)
	l.signer.Store(&sum)
}

// signedBy reports whether issuer has signed the list.
func (l *revocationList) signedBy(issuer *x509.Certificate) bool {
	if s := l.signer.Load(); s != nil && *s == sha256.Sum256(issuer.Raw) {
		return true
	}
	if checkList(l.list, issuer) != nil {
		return false
	}
	l.verified(issuer)
	return true
}

// verify is for tls.Config.VerifyConnection, which is called for resumed sessions, too.
func (r *revocations) verify(state tls.ConnectionState, now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return nil // client_auth reports whether it may be without
	}
	if len(state.VerifiedChains) == 0 {
		return errNotVerified
	}
	var err error
	for _, chain := range state.VerifiedChains {
		if err = r.chain(chain, now); err == nil {
			return nil
		}
	}
	return err
}

func (r *revocations) chain(chain []*x509.Certificate, now time.Time) error {
	for i := 0; i+1 < len(chain); i++ {
		if err := r.certificate(chain[i], chain[i+1], now); err != nil {
			return err
		}
	}
	return nil
}

// certificate looks for c on the lists of its issuer. A list that is out of date still
// revokes.
func (r *revocations) certificate(c, issuer *x509.Certificate, now time.Time) error {
	current := false
	for _, l := range r.lists[string(c.RawIssuer)] {
		if !l.signedBy(issuer) {
			continue
		}
		if l.serials[string(c.SerialNumber.Bytes())] {
			return errClientRevoked
		}
		current = current || !now.Before(l.list.ThisUpdate) && (l.list.NextUpdate.IsZero() || now.Before(l.list.NextUpdate))
	}
	if !current && !r.lenient {
		return errNoList
	}
	return nil
}

// expired returns the files of the lists that are out of date.
func (r *revocations) expired(now time.Time) (files []string) {
	if r == nil {
		return nil
	}
	for _, ls := range r.lists {
		for _, l := range ls {
			if !l.list.NextUpdate.IsZero() && !now.Before(l.list.NextUpdate) {
				files = append(files, l.file)
			}
		}
	}
	return files
}
