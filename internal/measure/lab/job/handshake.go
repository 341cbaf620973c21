package job

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"runtime"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// handshake makes TLS connections one after the other. Settings: alpn is how many
// protocols each side lists (the last is the one both know), resume=on uses
// tickets, key=rsa takes RSA-2048 instead of P-256.
func handshake(ctx context.Context, p Params) (Values, error) {
	server, client, err := tlsConfigs(p)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", loopback.String())
	if err != nil {
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		acceptTLS(l, server)
	}()
	defer func() {
		_ = l.Close()
		<-served
	}()

	dial := func() (resumed bool, err error) {
		c, err := tls.Dial("tcp", l.Addr().String(), client)
		if err != nil {
			return false, err
		}
		defer func() { _ = c.Close() }()
		var b [1]byte // brings the ticket too
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return false, err
		}
		return c.ConnectionState().DidResume, nil
	}
	if _, err := dial(); err != nil { // the first one is never resumed
		return nil, err
	}
	var took []float64
	resumed := 0.0
	used := sys.CPUTime()
	n, err := repeat(ctx, p.Duration, func() error {
		began := time.Now()
		again, err := dial()
		took = append(took, time.Since(began).Seconds())
		if again {
			resumed++
		}
		return err
	})
	used = sys.CPUTime() - used
	return Values{
		"cpu_seconds": used.Seconds() / float64(n), "seconds": quantile(took, 0.5), "resumed": resumed / float64(n),
		"match_seconds": matching(server.NextProtos, client.NextProtos),
	}, err
}

// acceptTLS greets every connection with one byte, until l is closed.
func acceptTLS(l net.Listener, cfg *tls.Config) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		t := tls.Server(c, cfg)
		if _, err := t.Write([]byte{'!'}); err == nil {
			var b [1]byte
			_, _ = t.Read(b[:]) // the client closes
		}
		_ = t.Close() // the client knows all it wanted to
	}
}

func tlsConfigs(p Params) (server, client *tls.Config, err error) {
	var key crypto.Signer
	if p.Set["key"] == "rsa" {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13}
	client = &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}
	if n := int(p.number("alpn", 0)); n > 0 {
		server.NextProtos, client.NextProtos = protocols("server", n), protocols("client", n)
	}
	if p.Set["resume"] == "on" {
		client.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	} else {
		server.SessionTicketsDisabled = true
	}
	return server, client, nil
}

// protocols are n names of which only the last is known to the other side: the
// most that a comparison has to do.
func protocols(side string, n int) []string {
	list := []string{"http/1.1"}
	for i := range n - 1 {
		list = append([]string{fmt.Sprintf("%s/%d", side, i)}, list...)
	}
	return list
}

// matching is how long it takes to compare the lists as crypto/tls does: each of
// the server's with each of the client's, until two are equal.
func matching(server, client []string) float64 {
	if len(server) == 0 {
		return 0
	}
	const n = 100_000
	found := ""
	began := time.Now()
	for range n {
		found = ""
	search:
		for _, s := range server {
			for _, c := range client {
				if s == c {
					found = s
					break search
				}
			}
		}
	}
	took := time.Since(began).Seconds() / n
	runtime.KeepAlive(found)
	return took
}
