package gm

import (
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/emmansun/gmsm/sm2"
	"github.com/emmansun/gmsm/smx509"
)

// An Authority issues certificates for tests.
type Authority struct {
	Cert *smx509.Certificate
	key  *sm2.PrivateKey
}

// A Request reports what a certificate is for.
type Request struct {
	Name     string
	Hosts    []string // DNS names and addresses
	Lifetime time.Duration
	Usage    smx509.KeyUsage
	ExtUsage []smx509.ExtKeyUsage
	CA       bool
	PathLen  int
}

// NewRoot makes a self-signed authority.
func NewRoot(name string, lifetime time.Duration) (*Authority, error) {
	key, err := sm2.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	c, err := issue(&Authority{key: key}, Request{Name: name, Lifetime: lifetime, CA: true, PathLen: 1}, key)
	return &Authority{c, key}, err
}

// Intermediate makes an authority below a.
func (a *Authority) Intermediate(name string, lifetime time.Duration) (*Authority, error) {
	key, err := sm2.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	c, err := issue(a, Request{Name: name, Lifetime: lifetime, CA: true}, key)
	return &Authority{c, key}, err
}

// Issue makes a certificate and its key.
func (a *Authority) Issue(r Request) (*smx509.Certificate, *sm2.PrivateKey, error) {
	key, err := sm2.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	c, err := issue(a, r, key)
	return c, key, err
}

// backdate is for clocks that are a little behind.
const backdate = time.Hour

func issue(a *Authority, r Request, key *sm2.PrivateKey) (*smx509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	at := time.Now()
	tmpl := &smx509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Country: []string{"CN"}, Organization: []string{"Weir test"}, CommonName: r.Name},
		NotBefore: at.Add(-backdate), NotAfter: at.Add(r.Lifetime), SignatureAlgorithm: smx509.SM2WithSM3,
		KeyUsage: r.Usage, ExtKeyUsage: r.ExtUsage, BasicConstraintsValid: true, IsCA: r.CA,
	}
	if r.CA {
		tmpl.KeyUsage, tmpl.MaxPathLen, tmpl.MaxPathLenZero = smx509.KeyUsageCertSign|smx509.KeyUsageCRLSign, r.PathLen, r.PathLen == 0
	}
	for _, h := range r.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	parent := a.Cert
	if parent == nil {
		parent = tmpl
	}
	der, err := smx509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue %s: %w", r.Name, err)
	}
	return smx509.ParseCertificate(der)
}

// A TestChain reports what WriteTestChain makes.
type TestChain struct {
	Dir      string
	Hosts    []string // of the server; the first one names it
	Client   string   // common name of a client's pair; empty: none is made
	Lifetime time.Duration
}

// WriteTestChain writes a root, an intermediate, and a server's pair: ca.pem,
// sign.pem, sign.key, enc.pem and enc.key, and with a client the same with client- in
// front. No file that exists is overwritten.
func WriteTestChain(t TestChain) (files []string, err error) {
	root, err := NewRoot("Weir test root (SM2)", t.Lifetime)
	if err != nil {
		return nil, err
	}
	mid, err := root.Intermediate("Weir test intermediate (SM2)", t.Lifetime)
	if err != nil {
		return nil, err
	}
	w := chainWriter{dir: t.Dir, below: mid.Cert}
	w.write("ca.pem", 0o644, "CERTIFICATE", root.Cert.Raw)
	server := []smx509.ExtKeyUsage{smx509.ExtKeyUsageServerAuth}
	w.pair(mid, "", Request{Name: t.Hosts[0], Hosts: t.Hosts, Lifetime: t.Lifetime, ExtUsage: server})
	if t.Client != "" {
		client := []smx509.ExtKeyUsage{smx509.ExtKeyUsageClientAuth}
		w.pair(mid, "client-", Request{Name: t.Client, Lifetime: t.Lifetime, ExtUsage: client})
	}
	return w.files, w.err
}

type chainWriter struct {
	dir   string
	below *smx509.Certificate
	files []string
	err   error
}

// pair writes a signing and an encryption certificate with their keys.
func (w *chainWriter) pair(a *Authority, prefix string, r Request) {
	for _, role := range []struct {
		name  string
		usage smx509.KeyUsage
	}{
		{"sign", smx509.KeyUsageDigitalSignature | smx509.KeyUsageContentCommitment},
		{"enc", encUsage},
	} {
		if w.err != nil {
			return
		}
		r.Usage = role.usage
		c, key, err := a.Issue(r)
		if err != nil {
			w.err = err
			return
		}
		der, err := smx509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			w.err = err
			return
		}
		w.write(prefix+role.name+".pem", 0o644, "CERTIFICATE", c.Raw, w.below.Raw)
		w.write(prefix+role.name+".key", 0o600, "PRIVATE KEY", der)
		clear(der)
	}
}

func (w *chainWriter) write(name string, mode os.FileMode, typ string, ders ...[]byte) {
	if w.err != nil {
		return
	}
	file := filepath.Join(w.dir, name)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		w.err = err
		return
	}
	for _, der := range ders {
		if err == nil {
			err = pem.Encode(f, &pem.Block{Type: typ, Bytes: der})
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	w.files, w.err = append(w.files, file), err
}
