package gm

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/emmansun/gmsm/ecdh"
	"github.com/emmansun/gmsm/sm2"
	"github.com/emmansun/gmsm/smx509"
)

// A Pair is the two certificates of one party (GB/T 38636 §6.4.5.3): one signs, the other
// encrypts. TLS 1.3 uses only the first. Immutable.
type Pair struct {
	Sign, Enc *smx509.Certificate
	// Chain are the intermediates, without the root.
	Chain [][]byte
	// Staple is the OCSP response for Sign; empty: none.
	Staple []byte

	signKey, encKey *sm2.PrivateKey
}

// Expires is when the first of the two ends.
func (p *Pair) Expires() time.Time {
	if p.Enc.NotAfter.Before(p.Sign.NotAfter) {
		return p.Enc.NotAfter
	}
	return p.Sign.NotAfter
}

// PairFiles names the files of a Pair.
type PairFiles struct {
	SignCert, SignKey string // PEM; the certificate, then its intermediates
	EncCert, EncKey   string // PEM
	OCSP              string // DER; empty: none
}

// LoadPair reads and verifies two certificates with their keys: the curve, the key
// usage of each role, the term, and that the intermediates fit. Errors name the file.
func LoadPair(f PairFiles, at time.Time) (*Pair, error) {
	sign, err := loadCerts(f.SignCert)
	if err != nil {
		return nil, err
	}
	enc, err := loadCerts(f.EncCert)
	if err != nil {
		return nil, err
	}
	p := &Pair{Sign: sign[0], Enc: enc[0]}
	seen := map[string]bool{}
	for _, c := range append(sign[1:], enc[1:]...) {
		if !seen[string(c.Raw)] && !bytes.Equal(c.RawSubject, c.RawIssuer) {
			seen[string(c.Raw)] = true
			p.Chain = append(p.Chain, c.Raw)
		}
	}
	if p.signKey, err = loadKey(f.SignKey); err != nil {
		return nil, err
	}
	if p.encKey, err = loadKey(f.EncKey); err != nil {
		return nil, err
	}
	if f.OCSP != "" {
		if p.Staple, err = loadStaple(f.OCSP, p.Sign, at); err != nil {
			return nil, err
		}
	}
	return p, errors.Join(
		p.check(f.SignCert, sign, f.SignKey, p.signKey, at, CheckSigning),
		p.check(f.EncCert, enc, f.EncKey, p.encKey, at, CheckEncryption))
}

// check verifies one of the two.
func (p *Pair) check(file string, chain []*smx509.Certificate, keyFile string, key *sm2.PrivateKey, at time.Time, role func(*smx509.Certificate) error) error {
	leaf := chain[0]
	if err := role(leaf); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if pub := leaf.PublicKey.(*ecdsa.PublicKey); !key.PublicKey.Equal(pub) { // role has seen its type
		return fmt.Errorf("%s: the key does not belong to the certificate %s", keyFile, file)
	}
	if at.After(leaf.NotAfter) {
		return fmt.Errorf("%s: expired on %s", file, leaf.NotAfter.Format(time.DateOnly))
	}
	for i := 1; i < len(chain); i++ {
		if err := CheckCurve(chain[i]); err != nil {
			return fmt.Errorf("%s: certificate %d: %w", file, i+1, err)
		}
		if err := chain[i-1].CheckSignatureFrom(chain[i]); err != nil {
			return fmt.Errorf("%s: certificate %d is not signed by the one behind it: %w", file, i, err)
		}
	}
	return nil
}

// CheckCurve returns an error unless c has a key on the SM2 curve and is signed with SM2 and SM3.
func CheckCurve(c *smx509.Certificate) error {
	if !sm2.IsSM2PublicKey(c.PublicKey) {
		return fmt.Errorf("certificate %s has a %s key: want a key on curve SM2", c.Subject, keyName(c.PublicKey))
	}
	if c.SignatureAlgorithm != smx509.SM2WithSM3 {
		return fmt.Errorf("certificate %s is signed with %s: want SM2 with SM3", c.Subject, c.SignatureAlgorithm)
	}
	return nil
}

func keyName(k any) string {
	if k, ok := k.(*ecdsa.PublicKey); ok {
		return k.Params().Name
	}
	return fmt.Sprintf("%T", k)
}

// CheckSigning returns an error unless c may sign handshakes.
func CheckSigning(c *smx509.Certificate) error {
	if err := CheckCurve(c); err != nil {
		return err
	}
	if c.KeyUsage&smx509.KeyUsageDigitalSignature == 0 {
		return fmt.Errorf("certificate %s cannot be the signing one: key usage is %s, want digitalSignature", c.Subject, usage(c.KeyUsage))
	}
	return nil
}

const encUsage = smx509.KeyUsageKeyEncipherment | smx509.KeyUsageDataEncipherment | smx509.KeyUsageKeyAgreement

// CheckEncryption returns an error unless c may encrypt or agree on keys, and not sign.
func CheckEncryption(c *smx509.Certificate) error {
	if err := CheckCurve(c); err != nil {
		return err
	}
	if c.KeyUsage&encUsage == 0 || c.KeyUsage&smx509.KeyUsageDigitalSignature != 0 {
		return fmt.Errorf("certificate %s cannot be the encryption one: key usage is %s, want keyEncipherment, dataEncipherment or keyAgreement without digitalSignature",
			c.Subject, usage(c.KeyUsage))
	}
	return nil
}

func usage(u smx509.KeyUsage) string {
	names := []string{"digitalSignature", "contentCommitment", "keyEncipherment", "dataEncipherment", "keyAgreement", "keyCertSign", "cRLSign",
		"encipherOnly", "decipherOnly"}
	text := ""
	for i, n := range names {
		if u&(1<<i) != 0 {
			text += "+" + n
		}
	}
	if text == "" {
		return "not set"
	}
	return text[1:]
}

// loadCerts reads the certificates of a PEM file; there is at least one.
func loadCerts(file string) (list []*smx509.Certificate, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := smx509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", file, len(list)+1, err)
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: no PEM certificate", file)
	}
	return list, nil
}

// loadKey reads an SM2 key in one of the PEM forms PKCS #8 and SEC 1.
func loadKey(file string) (*sm2.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		var key any
		switch block.Type {
		case "PRIVATE KEY":
			key, err = smx509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = smx509.ParseTypedECPrivateKey(block.Bytes)
		default:
			continue
		}
		clear(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if k, ok := key.(*sm2.PrivateKey); ok {
			return k, nil
		}
		return nil, fmt.Errorf("%s: a %T: want a key on curve SM2", file, key)
	}
	return nil, fmt.Errorf("%s: no PEM private key", file)
}

// LoadPool reads the authorities in PEM files.
func LoadPool(files []string) (pool *smx509.CertPool, cas []*smx509.Certificate, err error) {
	pool = smx509.NewCertPool()
	for _, f := range files {
		list, err := loadCerts(f)
		if err != nil {
			return nil, nil, err
		}
		for _, c := range list {
			if err := CheckCurve(c); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", f, err)
			}
			if !c.IsCA {
				return nil, nil, fmt.Errorf("%s: certificate %s is not that of an authority", f, c.Subject)
			}
			pool.AddCert(c)
			cas = append(cas, c)
		}
	}
	return pool, cas, nil
}

// verify returns the chains of leaf, all of which are SM2 up to the root.
func verify(leaf *smx509.Certificate, others []*smx509.Certificate, roots *smx509.CertPool, name string, use smx509.ExtKeyUsage, at time.Time) ([][]*smx509.Certificate, error) {
	opts := smx509.VerifyOptions{
		DNSName: name, Roots: roots, Intermediates: smx509.NewCertPool(), CurrentTime: at, KeyUsages: []smx509.ExtKeyUsage{use},
	}
	for _, c := range others {
		opts.Intermediates.AddCert(c)
	}
	found, err := leaf.Verify(opts)
	if err != nil {
		return nil, err
	}
	var chains [][]*smx509.Certificate
	var mixed error
	for _, chain := range found {
		err := error(nil)
		for _, c := range chain {
			if err = CheckCurve(c); err != nil {
				mixed = err
				break
			}
		}
		if err == nil {
			chains = append(chains, chain)
		}
	}
	if len(chains) == 0 {
		return nil, fmt.Errorf("mixed chain: %w", mixed)
	}
	return chains, nil
}

// sign signs b for TLCP (id is defaultID) or TLS 1.3.
func (p *Pair) sign(id, b []byte) ([]byte, error) {
	return p.signKey.Sign(rand.Reader, b, sm2.NewSM2SignerOption(true, id))
}

// verifySignature reports whether sig is c's over b.
func verifySignature(c *smx509.Certificate, id, b, sig []byte) bool {
	pub, ok := c.PublicKey.(*ecdsa.PublicKey)
	return ok && sm2.VerifyASN1WithSM2(pub, id, b, sig)
}

// decrypt returns the 48 bytes of a pre-master secret. If the ciphertext is none, they are
// random, and the handshake fails at its Finished: where it was wrong is not to be seen.
func (p *Pair) decrypt(b []byte, version uint16) []byte {
	random := make([]byte, masterLen)
	_, _ = rand.Read(random) // never fails
	pre, err := p.encKey.Decrypt(rand.Reader, b, sm2.ASN1DecrypterOpts)
	if err != nil || len(pre) != masterLen || pre[0] != byte(version>>8) || pre[1] != byte(version) {
		return random
	}
	return pre
}

// encryptTo encrypts a pre-master secret to the holder of c.
func encryptTo(c *smx509.Certificate, pre []byte) ([]byte, error) {
	return sm2.Encrypt(rand.Reader, c.PublicKey.(*ecdsa.PublicKey), pre, sm2.ASN1EncrypterOpts) // CheckCurve has seen its type
}

// agree is the key agreement of GB/T 32918.3 between two pairs of keys. The server
// is the initiator: its ephemeral key is sent first.
func (p *Pair) agree(own *ecdh.PrivateKey, peer *smx509.Certificate, peerKey []byte, server bool) ([]byte, error) {
	static, err := p.encKey.ECDH()
	if err != nil {
		return nil, err
	}
	peerStatic, err := sm2.PublicKeyToECDH(peer.PublicKey.(*ecdsa.PublicKey)) // CheckCurve has seen its type
	if err != nil {
		return nil, err
	}
	ephemeral, err := ecdh.P256().NewPublicKey(peerKey)
	if err != nil {
		return nil, err
	}
	point, err := static.SM2MQV(own, peerStatic, ephemeral)
	if err != nil {
		return nil, err
	}
	return point.SM2SharedKey(!server, masterLen, static.PublicKey(), peerStatic, defaultID, defaultID)
}
