package tlsterm

import (
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/emmansun/gmsm/sm2"
	"github.com/emmansun/gmsm/smx509"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// A nationalAuthority makes certificates and revocation lists on curve SM2.
type nationalAuthority struct {
	cert *smx509.Certificate
	key  *sm2.PrivateKey
}

func newNationalAuthority(name string) *nationalAuthority {
	a := &nationalAuthority{key: must(sm2.GenerateKey(rand.Reader))}
	tmpl := nationalTemplate(name, smx509.KeyUsageCertSign|smx509.KeyUsageCRLSign)
	tmpl.IsCA, tmpl.SubjectKeyId = true, []byte(name)
	a.cert = tmpl
	a.cert = a.sign(tmpl, a.key)
	return a
}

func nationalTemplate(name string, usage smx509.KeyUsage) *smx509.Certificate {
	return &smx509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, big.NewInt(1<<62))), Subject: pkix.Name{CommonName: name}, KeyUsage: usage, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), SignatureAlgorithm: smx509.SM2WithSM3,
	}
}

func (a *nationalAuthority) sign(tmpl *smx509.Certificate, key *sm2.PrivateKey) *smx509.Certificate {
	return must(smx509.ParseCertificate(must(smx509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key))))
}

// pair makes the two certificates of a client.
func (a *nationalAuthority) pair(t testing.TB, name string) *gm.Pair {
	t.Helper()
	dir := t.TempDir()
	one := func(role string, usage smx509.KeyUsage) (certFile, keyFile string) {
		key := must(sm2.GenerateKey(rand.Reader))
		tmpl := nationalTemplate(name, usage)
		tmpl.ExtKeyUsage = []smx509.ExtKeyUsage{smx509.ExtKeyUsageClientAuth}
		certFile, keyFile = filepath.Join(dir, role+".pem"), filepath.Join(dir, role+".key")
		replace(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.sign(tmpl, key).Raw}))
		replace(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(smx509.MarshalPKCS8PrivateKey(key))}))
		return certFile, keyFile
	}
	var f gm.PairFiles
	f.SignCert, f.SignKey = one("sign", smx509.KeyUsageDigitalSignature)
	f.EncCert, f.EncKey = one("enc", smx509.KeyUsageKeyEncipherment|smx509.KeyUsageKeyAgreement)
	return must(gm.LoadPair(f, time.Now()))
}

// revokes makes a list of a's that is good until a time.
func (a *nationalAuthority) revokes(until time.Time, certs ...*smx509.Certificate) []byte {
	l := &smx509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: until, SignatureAlgorithm: smx509.SM2WithSM3}
	for _, c := range certs {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, smx509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: must(smx509.CreateRevocationList(rand.Reader, l, a.cert, a.key))})
}

func TestRevokedNationalClientsAreRefused(t *testing.T) {
	n, a := newNational(t), newNationalAuthority("of clients")
	good, bad := a.pair(t, "good"), a.pair(t, "bad")
	crl, caFile := filepath.Join(n.dir, "crl.pem"), filepath.Join(n.dir, "clients.pem")
	replace(t, caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	hour := time.Now().Add(time.Hour)
	replace(t, crl, a.revokes(hour))
	cfg := n.config()
	cfg.ClientAuth, cfg.GM.ClientCAFiles, cfg.ClientCRLFiles = ClientAuthRequire, []string{caFile}, []string{crl}
	s := serveGM(t, cfg)
	cfg.ClientCRLPolicy = "allow"
	lenient := serveGM(t, cfg)
	sessions := map[*gm.Pair]*gm.ClientSessions{good: gm.NewClientSessions(8), bad: gm.NewClientSessions(8)}
	attempt := func(s *server, pair *gm.Pair, suite *gm.Suite) error {
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(30 * time.Second))
		ask := n.requests(suite)
		ask.Pair, ask.Sessions, ask.SessionKey = pair, sessions[pair], s.addr+suite.Name
		c, err := gm.DialStream(raw, ask)
		if err == nil {
			if _, err = c.Write([]byte("x")); err == nil {
				_, err = c.Read(make([]byte, 1))
			}
		}
		return err
	}
	tlcp, tls13 := gm.SuiteOf(gm.VersionTLCP, gm.ECDHE_SM4_GCM_SM3), gm.SuiteOf(gm.VersionTLS13, gm.TLS_SM4_GCM_SM3)
	f := func(what string, s *server, pair *gm.Pair, want bool, suites ...*gm.Suite) {
		t.Helper()
		for _, suite := range suites {
			if err := attempt(s, pair, suite); (err == nil) != want {
				t.Errorf("%s, %s: %v, want success %v", what, suite.Name, err, want)
			}
		}
	}
	reload := func(list []byte, want bool) {
		t.Helper()
		replace(t, crl, list)
		for _, s := range []*server{s, lenient} {
			if err := s.Reload(); (err == nil) != want {
				t.Errorf("reload: %v", err)
			}
		}
	}
	for _, s := range []*server{s, lenient} {
		f("not revoked", s, good, true, tlcp, tls13)
		f("not revoked yet", s, bad, true, tlcp, tls13)
	}
	reload(a.revokes(hour, bad.Sign), true)
	for _, s := range []*server{s, lenient} {
		f("revoked, with a session from before", s, bad, false, tlcp, tls13)
		f("another is revoked", s, good, true, tlcp, tls13)
	}
	reload(a.revokes(hour, bad.Enc), true)
	f("the encryption certificate is revoked", s, bad, false, tlcp)
	f("the encryption certificate is revoked, which RFC 8998 does not use", s, bad, true, tls13)
	reload(a.revokes(hour, bad.Sign), true)
	reload(newNationalAuthority("of clients").revokes(hour), false) // another's signature under the same name
	reload(newCRLAuthority("of clients").revokes(hour), false)      // and one that is not SM2
	f("after lists that cannot be used", s, bad, false, tlcp, tls13)
	reload(newNationalAuthority("others").revokes(hour), true)
	f("without a list of its issuer", s, good, false, tlcp, tls13)
	f("without a list of its issuer", lenient, good, true, tlcp, tls13)
	reload(a.revokes(time.Now().Add(-time.Minute), bad.Sign), true)
	f("with an expired list", s, good, false, tlcp, tls13)
	f("with an expired list", lenient, good, true, tlcp, tls13)
	f("revoked by an expired list", lenient, bad, false, tlcp, tls13)
	reload(a.revokes(hour), true)
	f("with a new list", s, good, true, tlcp, tls13)
	if got := s.Stats().Revoked; got < 5 {
		t.Errorf("%d refusals are counted as revoked", got)
	}
}

// An open connection whose client's certificate a new list revokes is closed; others stay.
func TestARevokedNationalClientIsDisconnected(t *testing.T) {
	n, a := newNational(t), newNationalAuthority("of clients")
	good, bad := a.pair(t, "good"), a.pair(t, "bad")
	crl, caFile := filepath.Join(n.dir, "crl.pem"), filepath.Join(n.dir, "clients.pem")
	replace(t, caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	hour := time.Now().Add(time.Hour)
	replace(t, crl, a.revokes(hour))
	cfg := n.config()
	cfg.ClientAuth, cfg.GM.ClientCAFiles, cfg.ClientCRLFiles = ClientAuthRequire, []string{caFile}, []string{crl}
	s := serveGM(t, cfg)
	for _, suite := range []*gm.Suite{gm.SuiteOf(gm.VersionTLCP, gm.ECDHE_SM4_GCM_SM3), gm.SuiteOf(gm.VersionTLS13, gm.TLS_SM4_GCM_SM3)} {
		replace(t, crl, a.revokes(hour))
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		open := map[*gm.Pair]*gm.Stream{}
		for _, pair := range []*gm.Pair{good, bad} {
			ask := n.requests(suite)
			ask.Pair = pair
			open[pair] = dialGM(t, s, ask)
			roundTrip(t, open[pair], text(10))
		}
		replace(t, crl, a.revokes(hour, bad.Sign))
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		if k, err := open[bad].Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: a revoked client reads %d bytes", suite.Name, k)
		}
		roundTrip(t, open[good], text(10))
	}
	if got := s.Stats().RevokedOpen; got != 2 {
		t.Errorf("%d connections are counted, want 2", got)
	}
}
