package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// The reconnect storm over TLS. Weir is compared with net/http, which this
// program serves itself: what both spend is crypto/tls's, and the rest is theirs.

// netHTTP names the reference, and the command by which this program is it.
const netHTTP = "net-http"

// tlsRound measures weir and net/http, each on fresh processes.
func (b *bench) tlsRound(ctx context.Context, sc *scenario) (round, error) {
	cert, key, pool, err := b.certificate()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	weir := *b.weir
	weir.Ready = ""
	weir.Args = []string{"serve", "--config", "{dir}/weir-tls.yaml"}
	weir.Files = map[string]string{"weir-tls.yaml": "weir-tls.yaml"}
	got := round{}
	for _, a := range []*adapter{&weir, {Name: netHTTP, path: self, Args: []string{netHTTP, "{port}", cert, key}}} {
		m, err := b.tlsOnce(ctx, a, sc, pool)
		if err != nil {
			return nil, fmt.Errorf("%s over TLS: %w", a.Name, err)
		}
		got[a.Name] = m
	}
	return got, nil
}

func (b *bench) tlsOnce(ctx context.Context, a *adapter, sc *scenario, pool *x509.CertPool) (measure, error) {
	s, err := b.start(ctx, a, sc)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	c := newTLSClients(sc.n, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), pool)
	defer c.reset()
	if err := c.connect(ctx, 0, min(50, sc.n)); err != nil { // what is there once is there
		return nil, err
	}
	c.reset()
	before, err := s.usage()
	if err != nil {
		return nil, err
	}
	m := measure{"subscribers": float64(sc.n)}
	if err := c.connect(ctx, 0, sc.n); err != nil {
		return nil, err
	}
	wait(ctx, time.Second)
	full, err := s.usage()
	if err != nil {
		return nil, err
	}
	m["full_us"] = (full.cpu - before.cpu).Seconds() * 1e6 / float64(sc.n)
	m["bytes_per_conn"] = (full.rss - before.rss) * 1024 / float64(sc.n)
	c.reset()
	started := time.Now()
	if err := c.connect(ctx, 0, sc.n); err != nil {
		return nil, err
	}
	m["storm_seconds"] = time.Since(started).Seconds()
	wait(ctx, time.Second)
	again, err := s.usage()
	if err != nil {
		return nil, err
	}
	m["resumed_us"] = (again.cpu - full.cpu).Seconds() * 1e6 / float64(sc.n)
	m["full_per_core"], m["resumed_per_core"] = 1e6/m["full_us"], 1e6/m["resumed_us"]
	m["not_resumed_percent"] = 100 * float64(sc.n-c.resumed()) / float64(sc.n)
	return m, nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// certificate makes one for 127.0.0.1, of the kind most servers have, and returns
// its files. weir-tls.yaml finds them one directory up.
func (b *bench) certificate() (cert, key string, pool *x509.CertPool, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &private.PublicKey, private)
	if err != nil {
		return "", "", nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", nil, err
	}
	cert, key = filepath.Join(b.scratch, "cert.pem"), filepath.Join(b.scratch, "key.pem")
	if err := os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return "", "", nil, err
	}
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return "", "", nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return "", "", nil, err
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return cert, key, pool, nil
}

// beReference makes this process the reference, and does not return, if that is
// what it was started for.
func beReference(args []string) {
	if len(args) != 5 || args[1] != netHTTP {
		return
	}
	srv := netHTTPServer()
	srv.Addr = net.JoinHostPort("127.0.0.1", args[2])
	complain(os.Stderr, srv.ListenAndServeTLS(args[3], args[4]))
	os.Exit(1)
}

// netHTTPServer serves the same stream by net/http.
func netHTTPServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/sse", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(": hello\n\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}
}
