package tlsterm

import (
	"bytes"
	"crypto/tls"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A client's certificate moves with its connection, and the other process verifies it by its own
// authorities and revocation lists.
func TestAClientCertificateIsVerifiedAgain(t *testing.T) {
	dir := t.TempDir()
	a := newCRLAuthority("of clients")
	own := []Certificate{save(t, dir, "server", ca().leaf(t, nil, "localhost"))}
	authority := []string{save(t, dir, "clients", tls.Certificate{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key}).CertFile}
	s := serve(t, Config{Certificates: own, ClientAuth: "request", ClientCAFiles: authority}, echoes)
	leaf := a.leaf(t, nil)
	c, err := tls.Dial("tcp", s.addr, client(func(c *tls.Config) { c.Certificates = []tls.Certificate{leaf} }))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	roundTrip(t, c, []byte("x"))
	states := make(chan takeover.State, 1)
	for _, l := range s.group.Loops() {
		l.Post(func() {
			l.Conns(func(c *eventloop.Conn) bool {
				state, ok := c.Filter().(*records).AppendState(nil)
				if !ok {
					t.Error("the connection does not move")
				}
				states <- state
				return true
			})
		})
	}
	state := <-states
	f := func(cfg Config) (*records, error) {
		t.Helper()
		cfg.Certificates = own
		other, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		other.Accept(1, echoes)
		r, _, err := other.Restore(0, state)
		if err != nil {
			return nil, err
		}
		return r.(*records), nil
	}
	r, err := f(Config{ClientAuth: "require", ClientCAFiles: authority})
	if err != nil || r.peer.Certificate == nil || !bytes.Equal(r.peer.Certificate.DER, leaf.Certificate[0]) {
		t.Errorf("the same authority: %+v, %v", r, err)
	}
	if _, err := f(Config{}); err == nil {
		t.Error("without authorities the certificate counts")
	}
	other := newCRLAuthority("of others")
	unknown := save(t, dir, "others", tls.Certificate{Certificate: [][]byte{other.cert.Raw}, PrivateKey: other.key}).CertFile
	if _, err := f(Config{ClientAuth: "request", ClientCAFiles: []string{unknown}}); err == nil {
		t.Error("a certificate of an unknown authority counts")
	}
	crl := filepath.Join(dir, "crl.pem")
	replace(t, crl, a.revokes(time.Now().Add(time.Hour), leaf))
	if _, err := f(Config{ClientAuth: "request", ClientCAFiles: authority, ClientCRLFiles: []string{crl}}); !errors.Is(err, errClientRevoked) {
		t.Errorf("a revoked certificate: %v", err)
	}
}
