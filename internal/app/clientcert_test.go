package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// clientAuthority makes certificates of clients; file is its own.
func clientAuthority(t *testing.T) (file string, leaf func(cn, spiffe string) tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "clients.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, func(cn, spiffe string) tls.Certificate {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(spiffe)
		if err != nil {
			t.Fatal(err)
		}
		tmpl := &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: cn}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, URIs: []*url.URL{u},
			DNSNames: []string{cn + ".example.com"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, own.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
	}
}

func TestRoutesKnowClientsByTheirCertificates(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = json.NewEncoder(w).Encode(r.Header) }))
	defer ts.Close()
	cert, pool := selfSigned(t, t.TempDir(), 1)
	ca, leaf := clientAuthority(t)
	g := start(t, func(c *config.Config) {
		route := func(path string, cc policy.ClientCertificate) policy.RouteConfig {
			return policy.RouteConfig{Path: path, Cluster: "b", ClientCertificate: cc}
		}
		c.Clusters = []upstream.Config{{Name: "b", Peers: []upstream.PeerConfig{{Address: strings.TrimPrefix(ts.URL, "http://")}}}}
		c.Routes = []policy.RouteConfig{
			route("/any", policy.ClientCertificate{Forward: "both"}), route("/required", policy.ClientCertificate{Required: true}),
			route("/ann", policy.ClientCertificate{Allow: []string{"cn:ann"}, Forward: "x-forwarded-client-cert"}),
			route("/mesh", policy.ClientCertificate{Allow: []string{"uri:spiffe://mesh/ns/shop/*", "dns:*.example.org"}}),
		}
		c.TLS = tlsterm.Config{Certificates: []tlsterm.Certificate{cert}, ClientAuth: "request", ClientCAFiles: []string{ca}}
	})
	ann, bob := leaf("ann", "spiffe://mesh/ns/shop/cart"), leaf("bob", "spiffe://mesh/ns/shopping/cart")
	for _, h2 := range []bool{false, true} {
		do := func(path string, show *tls.Certificate) (int, http.Header) {
			t.Helper()
			cfg := &tls.Config{RootCAs: pool}
			if show != nil {
				cfg.Certificates = []tls.Certificate{*show}
			}
			client := overHTTP2(t, cfg)
			if !h2 {
				tr := &http.Transport{TLSClientConfig: cfg}
				t.Cleanup(tr.CloseIdleConnections)
				client = &http.Client{Transport: tr}
			}
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, g.URL()+path, nil)
			for _, name := range []string{"X-Forwarded-Client-Cert", "Client-Cert", "Client-Cert-Chain", "X-SSL-Client-S-Dn", "X-Client-Cert"} {
				req.Header.Set(name, "forged")
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if (res.ProtoMajor == 2) != h2 {
				t.Errorf("%s was answered in %s", path, res.Proto)
			}
			b, _ := io.ReadAll(res.Body)
			if strings.Contains(string(b), "forged") {
				t.Errorf("%s: the backend gets what the client wrote: %s", path, b)
			}
			var h http.Header
			_ = json.Unmarshal(b, &h) // or it is a refusal
			return res.StatusCode, h
		}
		f := func(path string, show *tls.Certificate, want int) http.Header {
			t.Helper()
			status, h := do(path, show)
			if status != want {
				t.Errorf("HTTP/2 %v: %s: %d, want %d", h2, path, status, want)
			}
			return h
		}
		if h := f("/any", nil, 200); h["X-Forwarded-Client-Cert"] != nil || h["Client-Cert"] != nil {
			t.Errorf("without a certificate the backend gets %v", h)
		}
		if h := f("/any", &ann, 200); !strings.Contains(h.Get("X-Forwarded-Client-Cert"), `;Subject="CN=ann";URI="spiffe://mesh/ns/shop/cart";DNS="ann.example.com"`) ||
			!strings.HasPrefix(h.Get("X-Forwarded-Client-Cert"), "Hash=") || !strings.HasPrefix(h.Get("Client-Cert"), ":MII") {
			t.Errorf("the backend gets %v", h)
		}
		f("/required", nil, 403)
		f("/required", &bob, 200)
		f("/ann", nil, 403)
		f("/ann", &bob, 403)
		f("/ann", &ann, 200)
		f("/mesh", &bob, 403)
		f("/mesh", &ann, 200)
	}
}
