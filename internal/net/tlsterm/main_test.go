package tlsterm

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestMain(m *testing.M) {
	if args := os.Getenv(benchServer); args != "" {
		if err := runBenchServer(args); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// An authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(name string) *authority {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der := must(x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key))
	return &authority{cert: must(x509.ParseCertificate(der)), key: key}
}

// ca is the one that all tests trust, made once.
var (
	ca     = sync.OnceValue(func() *authority { return newAuthority("test authority") })
	rsaKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
)

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

var serial struct {
	sync.Mutex
	n int64
}

// leaf makes a certificate for names; change may alter it first.
func (a *authority) leaf(t testing.TB, change func(*x509.Certificate), names ...string) tls.Certificate {
	t.Helper()
	return a.leafOf(t, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), change, names...)
}

func (a *authority) leafOf(t testing.TB, key crypto.Signer, change func(*x509.Certificate), names ...string) tls.Certificate {
	t.Helper()
	serial.Lock()
	serial.n++
	n := serial.n + 1000
	serial.Unlock()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: "leaf"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(12 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(tmpl)
	}
	der := must(x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key))
	return tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))}
}

// save writes c's two files into dir, replacing them in one step.
func save(t testing.TB, dir, name string, c tls.Certificate) Certificate {
	t.Helper()
	f := Certificate{CertFile: filepath.Join(dir, name+".pem"), KeyFile: filepath.Join(dir, name+".key")}
	var chain []byte
	for _, der := range c.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	replace(t, f.CertFile, chain)
	replace(t, f.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(c.PrivateKey))}))
	return f
}

func replace(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// Every test here must hold with every engine: this one runs them all again, in
// a process of its own.
func TestEverythingHoldsWithEpoll(t *testing.T) { trial.Again(t, trial.Engine, "epoll", "-test.short") }

// A server is a Terminator before a handler on real loops.
type server struct {
	*Terminator
	addr  string
	group *eventloop.Group
}

// serve runs a server with one certificate for localhost, unless cfg has some.
func serve(t testing.TB, cfg Config, next func(*eventloop.Conn) eventloop.Handler) *server {
	t.Helper()
	if len(cfg.Certificates) == 0 {
		cfg.Certificates = []Certificate{save(t, t.TempDir(), "a", ca().leaf(t, nil, "localhost"))}
	}
	return serveLoop(t, eventloop.Config{Loops: 2}, cfg, next)
}

func serveLoop(t testing.TB, loopCfg eventloop.Config, cfg Config, next func(*eventloop.Conn) eventloop.Handler) *server {
	t.Helper()
	loopCfg.Engine = os.Getenv(trial.Engine)
	term, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := eventloop.New(loopCfg, term.Accept(loopCfg.Loops, next), nil)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := g.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = term.Run(ctx) })
	done.Go(func() { _ = g.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
		_ = term.Close()
	})
	return &server{Terminator: term, addr: addr.String(), group: g}
}

// echo returns what it gets, and closes its side when the peer does.
type echo struct{}

func (echo) Data(c *eventloop.Conn, b []byte) int { c.Write(b); return len(b) }
func (echo) EndOfStream(c *eventloop.Conn) bool   { c.CloseAfterFlush(); return true }
func (echo) Drained(*eventloop.Conn)              {}
func (echo) Timer(*eventloop.Conn, int64)         {}
func (echo) Closed(*eventloop.Conn, error)        {}

func echoes(*eventloop.Conn) eventloop.Handler { return echo{} }

// client is a configuration that trusts the test authority.
func client(change func(*tls.Config)) *tls.Config {
	cfg := &tls.Config{RootCAs: ca().pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}
	if change != nil {
		change(cfg)
	}
	return cfg
}

func dial(t testing.TB, s *server, change func(*tls.Config)) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", s.addr, client(change))
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("it never came: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func seconds(n float64) hub.Duration { return hub.Duration(n * float64(time.Second)) }
