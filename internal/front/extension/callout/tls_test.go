package callout

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	extensionv1 "github.com/weir-gateway/weir/extension/v1"
	"github.com/weir-gateway/weir/internal/front/extension"
)

// certificate writes a certificate of its own authority with its key, for rules.example and
// 127.0.0.1.
func certificate(t *testing.T) (file string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"rules.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	file = filepath.Join(t.TempDir(), "pair.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if pair, err = tls.X509KeyPair(text, text); err != nil {
		t.Fatal(err)
	}
	return file, pair
}

// A server is called over TLS only if its certificate is of the authority and for the name,
// and it gets the certificate of cert_file.
func TestServersAreAuthenticatedOverTLS(t *testing.T) {
	authority, server := certificate(t)
	other, _ := certificate(t)
	own, _ := certificate(t)
	clients := x509.NewCertPool()
	if text, err := os.ReadFile(own); err != nil || !clients.AppendCertsFromPEM(text) {
		t.Fatalf("%v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert})))
	extensionv1.RegisterExtensionServer(s, &decider{decide: func(context.Context, *extensionv1.Event) (*extensionv1.Verdict, error) {
		return &extensionv1.Verdict{TtlMs: 1000}, nil
	}})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	f := func(host, refusal string, c extension.TLSConfig) {
		t.Helper()
		cfg := extension.Config{Name: "x", Target: net.JoinHostPort(host, port), TLS: c, Events: []string{"request"}}.WithDefaults()
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		hook, end, err := Dial(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		v, err := hook.Decide(t.Context(), &extension.Event{Kind: extension.Request})
		if refusal == "" && (err != nil || v.TTL != time.Second) || refusal != "" && (err == nil || !strings.Contains(err.Error(), refusal)) {
			t.Errorf("%s with %+v: %v, want %q", host, c, err, refusal)
		}
	}
	f("127.0.0.1", "", extension.TLSConfig{Enabled: true, CAFile: authority, CertFile: own, KeyFile: own})
	f("127.0.0.1", "", extension.TLSConfig{Enabled: true, CAFile: authority, CertFile: own, KeyFile: own, ServerName: "rules.example"})
	f("localhost", "not localhost", extension.TLSConfig{Enabled: true, CAFile: authority, CertFile: own, KeyFile: own})
	f("127.0.0.1", "not other.example", extension.TLSConfig{Enabled: true, CAFile: authority, CertFile: own, KeyFile: own, ServerName: "other.example"})
	f("127.0.0.1", "unknown authority", extension.TLSConfig{Enabled: true, CAFile: other, CertFile: own, KeyFile: own})
	f("127.0.0.1", "unknown authority", extension.TLSConfig{Enabled: true, CertFile: own, KeyFile: own})
	// The server refuses these two; what the client gets depends on whether the alert or the end comes first.
	f("127.0.0.1", "Unavailable", extension.TLSConfig{Enabled: true, CAFile: authority})
	f("127.0.0.1", "Unavailable", extension.TLSConfig{Enabled: true, CAFile: authority, CertFile: other, KeyFile: other})
	f("127.0.0.1", "Unavailable", extension.TLSConfig{}) // in the clear
}
