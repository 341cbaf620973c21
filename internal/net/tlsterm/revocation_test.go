package tlsterm

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// revokes makes a list of a's that is good until a time.
func (a *authority) revokes(until time.Time, certs ...tls.Certificate) []byte {
	l := &x509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: until}
	for _, c := range certs {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.Leaf.SerialNumber, RevocationTime: time.Now()})
	}
	signer := *a.cert
	signer.KeyUsage |= x509.KeyUsageCRLSign
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: must(x509.CreateRevocationList(rand.Reader, l, &signer, a.key))})
}

// newCRLAuthority is an authority that may sign lists.
func newCRLAuthority(name string) *authority {
	a := newAuthority(name)
	tmpl := *a.cert
	tmpl.KeyUsage |= x509.KeyUsageCRLSign
	a.cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, &tmpl, &tmpl, a.key.Public(), a.key))))
	return a
}

func TestRevokedClientsAreRefused(t *testing.T) {
	dir := t.TempDir()
	a := newCRLAuthority("of clients")
	caFile := save(t, dir, "clients", tls.Certificate{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key}).CertFile
	good, bad := a.leaf(t, nil), a.leaf(t, nil)
	hour := time.Now().Add(time.Hour)
	crl := filepath.Join(dir, "crl.pem")
	replace(t, crl, a.revokes(hour))
	s := serve(t, Config{ClientAuth: "require", ClientCAFiles: []string{caFile}, ClientCRLFiles: []string{crl}}, echoes)
	lenient := serve(t, Config{ClientAuth: "require", ClientCAFiles: []string{caFile}, ClientCRLFiles: []string{crl}, ClientCRLPolicy: "allow"}, echoes)
	caches := map[*tls.Certificate]tls.ClientSessionCache{}
	f := func(what string, s *server, show *tls.Certificate, want bool) {
		t.Helper()
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			if caches[show] == nil {
				caches[show] = tls.NewLRUClientSessionCache(8)
			}
			c, err := tls.Dial("tcp", s.addr, client(func(c *tls.Config) {
				c.MinVersion, c.MaxVersion, c.ClientSessionCache, c.Certificates = version, version, caches[show], []tls.Certificate{*show}
			}))
			if err == nil {
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				if _, err = c.Write([]byte("x")); err == nil {
					_, err = c.Read(make([]byte, 1))
				}
				_ = c.Close()
			}
			if (err == nil) != want {
				t.Errorf("%s, version %x: %v, want success %v", what, version, err, want)
			}
		}
	}
	reload := func(list []byte, want bool) {
		t.Helper()
		replace(t, crl, list)
		for _, s := range []*server{s, lenient} {
			if err := s.Reload(); (err == nil) != want {
				t.Errorf("reload: %v, want success %v", err, want)
			}
		}
	}
	f("on no list", s, &good, true)
	f("not revoked yet", s, &bad, true)
	f("not revoked yet", lenient, &bad, true)
	reload(a.revokes(hour, bad), true)
	f("revoked, with a ticket from before", s, &bad, false)
	f("revoked, with a ticket from before", lenient, &bad, false)
	f("not revoked", s, &good, true)
	reload(newCRLAuthority("of clients").revokes(hour), false) // another's signature under the same name
	reload([]byte("no list"), false)
	f("after lists that cannot be used", s, &bad, false)
	reload(newCRLAuthority("others").revokes(hour), true)
	f("without a list of its issuer", s, &good, false)
	f("without a list of its issuer", lenient, &good, true)
	reload(a.revokes(time.Now().Add(-time.Minute), bad), true)
	f("with a list that has run out", s, &good, false)
	f("with a list that has run out", lenient, &good, true)
	f("revoked by a list that has run out", lenient, &bad, false)
	reload(a.revokes(hour), true)
	f("with a new list", s, &good, true)
	if n := s.Stats().Revoked; n < 6 {
		t.Errorf("%d were counted", n)
	}
	if s.current.Load().revoked.expired(time.Now().Add(2*time.Hour)) == nil || s.current.Load().revoked.expired(time.Now()) != nil {
		t.Error("lists that have run out are not distinguished from others")
	}
}

// A connection that is open when its client's certificate is revoked is closed; others
// stay, also when there is no list in date any more.
func TestARevokedClientIsDisconnected(t *testing.T) {
	dir := t.TempDir()
	a := newCRLAuthority("of clients")
	caFile := save(t, dir, "clients", tls.Certificate{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key}).CertFile
	crl := filepath.Join(dir, "crl.pem")
	hour := time.Now().Add(time.Hour)
	replace(t, crl, a.revokes(hour))
	s := serve(t, Config{ClientAuth: "request", ClientCAFiles: []string{caFile}, ClientCRLFiles: []string{crl}}, echoes)
	good, bad := a.leaf(t, nil), a.leaf(t, nil)
	var open []*tls.Conn
	for _, show := range [][]tls.Certificate{{good}, {bad}, nil} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			c, err := tls.Dial("tcp", s.addr, client(func(c *tls.Config) { c.MinVersion, c.MaxVersion, c.Certificates = version, version, show }))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			roundTrip(t, c, []byte("x"))
			open = append(open, c)
		}
	}
	check := func(what string, closed ...int) {
		t.Helper()
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		for _, i := range closed {
			if n, err := open[i].Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: connection %d reads %d bytes", what, i, n)
			}
			open[i] = nil
		}
		for _, c := range open {
			if c != nil {
				roundTrip(t, c, []byte("x"))
			}
		}
	}
	check("the same list")
	replace(t, crl, a.revokes(hour, bad))
	check("revoked", 2, 3)
	replace(t, crl, a.revokes(time.Now().Add(-time.Minute), bad))
	check("a list that has run out")
	if n := s.Stats().RevokedOpen; n != 2 {
		t.Errorf("%d connections were counted, want 2", n)
	}
	for _, c := range open {
		if c != nil {
			c.Close()
		}
	}
	trial.Eventually(t, "none is watched", func() bool {
		s.certified.mu.Lock()
		defer s.certified.mu.Unlock()
		return len(s.certified.conns) == 0
	})
}
