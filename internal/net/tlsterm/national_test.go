package tlsterm

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emmansun/gmsm/smx509"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// national is one test chain for all tests, and who trusts it.
type national struct {
	dir    string
	roots  *smx509.CertPool
	server GMCertificate
	client *gm.Pair
}

func newNational(t testing.TB) *national {
	t.Helper()
	dir := t.TempDir()
	if _, err := gm.WriteTestChain(gm.TestChain{Dir: dir, Hosts: []string{"localhost"}, Client: "alice", Lifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	n := &national{dir: dir}
	n.roots, _ = must2(gm.LoadPool([]string{n.path("ca.pem")}))
	n.server = GMCertificate{
		SignCertFile: n.path("sign.pem"), SignKeyFile: n.path("sign.key"), EncCertFile: n.path("enc.pem"), EncKeyFile: n.path("enc.key"),
	}
	n.client = must(gm.LoadPair(gm.PairFiles{
		SignCert: n.path("client-sign.pem"), SignKey: n.path("client-sign.key"), EncCert: n.path("client-enc.pem"), EncKey: n.path("client-enc.key"),
	}, time.Now()))
	return n
}

func must2[A, B any](a A, b B, err error) (A, B) { must(0, err); return a, b }

func (n *national) path(name string) string { return filepath.Join(n.dir, name) }

func (n *national) config() Config {
	return Config{GM: GMConfig{Certificates: []GMCertificate{n.server}, ClientCAFiles: []string{n.path("ca.pem")}}}
}

func (n *national) requests(s *gm.Suite) *gm.ClientConfig {
	return &gm.ClientConfig{Version: s.Version, Suites: []uint16{s.ID}, ServerName: "localhost", RootCAs: n.roots, Protocols: []string{"http/1.1"}, Pair: n.client}
}

func dialGM(t testing.TB, s *server, cfg *gm.ClientConfig) *gm.Stream {
	t.Helper()
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.SetDeadline(time.Now().Add(30 * time.Second))
	c, err := gm.DialStream(raw, cfg)
	if err != nil {
		_ = raw.Close()
		t.Fatalf("handshake: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestNationalAndModernTLSShareAPort(t *testing.T) {
	t.Parallel()
	n := newNational(t)
	cfg := n.config()
	cfg.ClientAuth, cfg.ClientCAFiles = ClientAuthRequire, []string{n.path("modern.pem")}
	save(t, n.dir, "modern", tls.Certificate{Certificate: [][]byte{ca().cert.Raw}, PrivateKey: ca().key})
	s := serve(t, cfg, echoes)
	for _, suite := range gm.Suites {
		ask := n.requests(suite)
		ask.Sessions, ask.SessionKey = gm.NewClientSessions(4), "peer"
		for round := range 2 {
			c := dialGM(t, s, ask)
			for _, size := range []int{1, 16, 1000, 16384, 16385, 70_000} {
				roundTrip(t, c, text(size))
			}
			if c.State.Resumed != (round == 1) {
				t.Errorf("%s: round %d: resumed %v", suite.Name, round, c.State.Resumed)
			}
			if suite.Version == gm.VersionTLS13 {
				for _, request := range []bool{false, true} {
					if err := c.UpdateKey(request); err != nil {
						t.Fatal(err)
					}
					roundTrip(t, c, text(100))
				}
			}
			_ = c.Close()
		}
	}
	modern := dial(t, s, func(c *tls.Config) { c.Certificates = []tls.Certificate{ca().leaf(t, nil)} })
	roundTrip(t, modern, text(1000))
	stats := s.Stats()
	for _, suite := range gm.Suites {
		if !slices.ContainsFunc(stats.Suites, func(c SuiteCount) bool { return c.Suite == suite.Name && c.Count == 2 }) {
			t.Errorf("%s is not counted twice: %+v", suite.Name, stats.Suites)
		}
	}
	for _, want := range []GroupCount{{"X25519MLKEM768", 1}, {"curveSM2", 6}, {"SM2 encryption", 2}} {
		if !slices.Contains(stats.Groups, want) {
			t.Errorf("no %+v in %+v", want, stats.Groups)
		}
	}
}

func TestWithoutNationalCertificatesTLCPIsRefused(t *testing.T) {
	n := newNational(t)
	s := serve(t, Config{}, echoes)
	for _, suite := range gm.Suites {
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := gm.DialStream(raw, n.requests(suite)); err == nil {
			t.Errorf("%s is accepted", suite.Name)
		}
		_ = raw.Close()
	}
}

func TestTheClientsNationalCertificateIsDemanded(t *testing.T) {
	n := newNational(t)
	cfg := n.config()
	cfg.ClientAuth = ClientAuthRequire
	s := serveGM(t, cfg)
	for _, suite := range gm.Suites {
		if suite.Name[:5] == "ECDHE" {
			continue // its client demands to be asked
		}
		ask := n.requests(suite)
		ask.Pair = nil
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.SetDeadline(time.Now().Add(30 * time.Second))
		c, err := gm.DialStream(raw, ask)
		if err == nil { // in TLS 1.3 the client is done before the server has looked
			_, err = c.Read(make([]byte, 1))
		}
		if err == nil {
			t.Errorf("%s is served without a certificate", suite.Name)
		}
		_ = raw.Close()
	}
}

// serveGM is serve with national certificates alone.
func serveGM(t testing.TB, cfg Config) *server {
	t.Helper()
	return serveLoop(t, eventloop.Config{Loops: 2}, cfg, echoes)
}

func TestANationalCertificateInTheWrongRoleIsNamed(t *testing.T) {
	n := newNational(t)
	f := func(want string, change func(*GMCertificate)) {
		t.Helper()
		cfg := n.config()
		change(&cfg.GM.Certificates[0])
		_, err := New(cfg, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	f("gm.certificates[0].enc_cert_file: is empty", func(c *GMCertificate) { c.EncCertFile = "" })
	f("cannot be the signing one: key usage is", func(c *GMCertificate) { c.SignCertFile, c.SignKeyFile = c.EncCertFile, c.EncKeyFile })
	f("cannot be the encryption one: key usage is", func(c *GMCertificate) { c.EncCertFile, c.EncKeyFile = c.SignCertFile, c.SignKeyFile })
	modern := save(t, n.dir, "modern", ca().leaf(t, nil, "localhost"))
	f("want a key on curve SM2", func(c *GMCertificate) { c.SignCertFile = modern.CertFile })
	f("want a key on curve SM2", func(c *GMCertificate) { c.EncKeyFile = modern.KeyFile })
}

func TestNationalTicketsOutliveARotationAndAReload(t *testing.T) {
	n := newNational(t)
	cfg := n.config()
	s := serveGM(t, cfg)
	for _, suite := range gm.Suites {
		if suite.Name[:5] == "ECDHE" {
			continue
		}
		ask := n.requests(suite)
		ask.Sessions, ask.SessionKey = gm.NewClientSessions(4), "peer"
		roundTrip(t, dialGM(t, s, ask), text(10))
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		rotated := s.current.Load()
		rotated.rotate(&s.cfg, time.Now().Add(time.Duration(s.cfg.TicketRotation)))
		c := dialGM(t, s, ask)
		roundTrip(t, c, text(10))
		if !c.State.Resumed {
			t.Errorf("%s: a session does not resume after a rotation", suite.Name)
		}
		rotated.rotate(&s.cfg, time.Now().Add(time.Duration(s.cfg.TicketRotation)*10))
		if c := dialGM(t, s, ask); c.State.Resumed {
			t.Errorf("%s: a session resumes under a key that is gone", suite.Name)
		}
		rotated.rotate(&s.cfg, time.Now())
	}
}

func TestManyNationalClientsAtOnce(t *testing.T) {
	n := newNational(t)
	s := serveGM(t, n.config())
	var all sync.WaitGroup
	for i := range 24 {
		suite := gm.Suites[[]int{0, 1, 3, 5}[i%4]]
		all.Go(func() {
			c := dialGM(t, s, n.requests(suite))
			for range 3 {
				roundTrip(t, c, text(5000))
			}
		})
	}
	all.Wait()
}

func TestNationalCertificatesAloneRefuseAModernClient(t *testing.T) {
	n := newNational(t)
	s := serveGM(t, n.config())
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}) //nolint:gosec // it is to be refused whatever it shows
		if err == nil {
			_ = c.Close()
			t.Errorf("%s is served without a certificate", tls.VersionName(version))
		}
	}
	roundTrip(t, dialGM(t, s, n.requests(gm.Suites[0])), text(10))
}
