package app

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/testkit/trial"
	"github.com/weir-gateway/weir/websocket"
)

// selfSigned writes a certificate for 127.0.0.1 and returns its files and who
// trusts it.
func selfSigned(t *testing.T, dir string, serial int64) (tlsterm.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f := tlsterm.Certificate{CertFile: filepath.Join(dir, "cert.pem")} // both in one file
	b := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	if err := os.WriteFile(f.CertFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(b)
	return f, pool
}

// secure is a gateway with TLS and a client that trusts it.
func secure(t *testing.T) (*gateway, *http.Client, string) {
	t.Helper()
	dir := t.TempDir()
	f, pool := selfSigned(t, dir, 1)
	g := start(t, func(c *config.Config) { c.TLS.Certificates = []tlsterm.Certificate{f} })
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	t.Cleanup(client.CloseIdleConnections)
	return g, client, dir
}

func TestTheWholeGatewaySpeaksTLS(t *testing.T) {
	g, client, _ := secure(t)
	if want := "https://" + g.Addr().String(); g.URL() != want {
		t.Errorf("URL %s, want %s", g.URL(), want)
	}
	res, err := client.Get(g.URL() + "/sse?channel=news&channel=other")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	s := &stream{t, res, bufio.NewReader(res.Body)}
	s.block()

	conn, _, err := websocket.Dial(t.Context(), strings.Replace(g.URL(), "https", "wss", 1)+"/ws?channel=news",
		websocket.DialOptions{TLS: client.Transport.(*http.Transport).TLSClientConfig})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	trial.Eventually(t, "both subscribed", func() bool { st := g.push.Stats(); return st.SSE == 1 && st.WebSocket == 1 })
	for _, size := range []int{1, 40_000} { // less and more than a record
		data := `"` + strings.Repeat("x", size) + `"`
		req, _ := http.NewRequest(http.MethodPost, g.URL()+"/api/publish", strings.NewReader(fmt.Sprintf(`{"channel":"news","data":%s}`, data)))
		req.Header.Set("X-API-Key", testKey)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK || res.ProtoMajor != 1 {
			t.Fatalf("publish: %s %d %s", res.Proto, res.StatusCode, body)
		}
		if got := s.block(); !strings.Contains(got, data) {
			t.Errorf("sse: %.200q", got)
		}
		if _, b, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(b), data) {
			t.Errorf("websocket: %v %.200q", err, b)
		}
	}
	if _, body := g.fetch(t, "/metrics"); !strings.Contains(string(body), `weir_tls_handshakes_total{outcome="full"} `) ||
		!strings.Contains(string(body), `weir_tls_handshakes_total{outcome="revoked"} 0`) || !strings.Contains(string(body), `weir_tls_revoked_closes_total 0`) {
		t.Error("no metrics of handshakes")
	}
}

// The origin of a page over TLS is https: the same host by http is another one.
func TestSameOriginOverTLSIsHTTPS(t *testing.T) {
	g, client, _ := secure(t)
	f := func(origin string, want int) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodGet, g.URL()+"/sse?channel=news", nil)
		req.Header.Set("Origin", origin+g.Addr().String())
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", origin, res.StatusCode, want)
		}
	}
	f("https://", http.StatusOK)
	f("http://", http.StatusForbidden)
}

// A client that offers HTTP/1.0 alone is answered, as it is without TLS.
func TestWhatALPNAgreesOn(t *testing.T) {
	g, client, _ := secure(t)
	f := func(want string, offered ...string) {
		t.Helper()
		cfg := client.Transport.(*http.Transport).TLSClientConfig.Clone()
		cfg.NextProtos = offered
		c, err := tls.Dial("tcp", g.Addr().String(), cfg)
		if err != nil {
			t.Errorf("offered %v: %v", offered, err)
			return
		}
		defer c.Close()
		if got := c.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("offered %v: agreed on %q, want %q", offered, got, want)
		}
		if want == "h2" {
			return
		}
		_ = c.SetDeadline(time.Now().Add(trial.Patience))
		_, _ = io.WriteString(c, "GET /healthz HTTP/1.0\r\n\r\n")
		if b, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(b), "\r\n\r\nok\n") {
			t.Errorf("offered %v: %.100q and %v", offered, b, err)
		}
	}
	f("")
	f("http/1.0", "http/1.0")
	f("http/1.1", "http/1.0", "http/1.1")
	f("h2", "http/1.0", "http/1.1", "h2")
}

func TestReloadTakesTheNewCertificateOrSaysWhyNot(t *testing.T) {
	g, client, dir := secure(t)
	serial := func() int64 {
		t.Helper()
		c, err := tls.Dial("tcp", g.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // only its number is read
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	f, _ := selfSigned(t, dir, 2)
	if _, err := g.Reload(t.Context()); err != nil || serial() != 2 {
		t.Errorf("%v, serial %d", err, serial())
	}
	if err := os.WriteFile(f.CertFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "tls: reload: certificates[0]: "+f.CertFile) || serial() != 2 {
		t.Errorf("%v, serial %d", err, serial())
	}
	client.CloseIdleConnections()
}

func TestABrokenCertificateStopsTheStart(t *testing.T) {
	cfg := config.Default()
	cfg.Broker.Kind = config.BrokerMemory
	cfg.TLS.Certificates = []tlsterm.Certificate{{CertFile: "/nowhere"}}
	if _, err := New(cfg, Options{}); err == nil || !strings.HasPrefix(err.Error(), "tls: certificates[0]: cert_file: ") {
		t.Errorf("got %v", err)
	}
}
