package certificates

import (
	"bufio"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/weir-gateway/weir/test/judge"
)

const patience = 30 * time.Second

// secured is a server that is to obtain certificates.
func secured(t *testing.T, public string, config map[string]any) *judge.Server {
	t.Helper()
	return judge.New(t, judge.Options{Listen: public, Memory: true, AdminHealth: true, Config: config})
}

// Both challenges obtain a certificate that HTTP/1.1 and HTTP/2 serve, with either engine of the event
// loops, and a restart does not order again.
func TestBothChallengesObtainCertificates(t *testing.T) {
	t.Parallel()
	for _, how := range [][2]string{{"tls-alpn-01", "io_uring"}, {"tls-alpn-01", "epoll"}, {"http-01", "io_uring"}, {"http-01", "epoll"}} {
		challenge, engine := how[0], how[1]
		t.Run(challenge+" with "+engine, func(t *testing.T) {
			t.Parallel()
			public, plain := judge.FreeAddr(t), judge.FreeAddr(t)
			p := newPebble(t, options{http: plain, tls: public, validity: time.Hour})
			dir := filepath.Join(t.TempDir(), "acme")
			config := p.config([]string{"a.weir.test", "b.weir.test"}, map[string]any{"challenges": []string{challenge}, "http_listen": plain, "dir": dir})
			config["eventloop"] = map[string]any{"engine": engine}
			s := secured(t, public, config)
			roots := p.roots()
			var leaf *x509.Certificate
			for _, name := range []string{"a.weir.test", "b.weir.test"} {
				judge.Eventually(t, patience, "a certificate for "+name, func() bool { leaf = leafOf(public, name, roots); return leaf != nil })
			}
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				if got := fetch(t, public, "b.weir.test", roots, proto == "HTTP/2.0"); got != proto {
					t.Errorf("served over %s, want %s", got, proto)
				}
			}
			redirects(t, plain, public)
			private(t, dir)

			s.Terminate()
			s.Start()
			judge.Eventually(t, patience, "the certificate is served after a restart", func() bool {
				again := leafOf(public, "b.weir.test", roots)
				return again != nil && again.SerialNumber.Cmp(leaf.SerialNumber) == 0
			})
			if n := strings.Count(s.Log(), `msg="certificate obtained"`); n != 2 {
				t.Errorf("%d certificates were obtained, want 2: one for each name", n)
			}
			shown(t, s, 2)
		})
	}
}

// fetch requests a path over TLS and returns the protocol.
func fetch(t *testing.T, addr, name string, roots *x509.CertPool, http2 bool) string {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}, ForceAttemptHTTP2: http2, DisableKeepAlives: true}
	res, err := (&http.Client{Transport: tr, Timeout: patience}).Get("https://" + addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("status %d", res.StatusCode)
	}
	return res.Proto
}

// redirects checks what the plaintext listener answers besides challenges.
func redirects(t *testing.T, plain, public string) {
	t.Helper()
	c, err := net.Dial("tcp", plain)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, tlsPort, _ := net.SplitHostPort(public)
	r := bufio.NewReader(c)
	// Pipelined, in one connection.
	fmt.Fprint(c, "GET /x?y=1 HTTP/1.1\r\nHost: a.weir.test:80\r\n\r\nGET /.well-known/acme-challenge/nothing HTTP/1.1\r\nHost: a\r\n\r\n"+
		"HEAD / HTTP/1.1\r\nHost: [::1]\r\n\r\nGET / HTTP/1.1\r\nHost: a\"b\r\n\r\n")
	for i, want := range []struct {
		status   int
		location string
	}{{308, "https://a.weir.test:" + tlsPort + "/x?y=1"}, {404, ""}, {308, "https://[::1]:" + tlsPort + "/"}, {400, ""}} {
		req := &http.Request{Method: "GET"}
		if i == 2 {
			req.Method = "HEAD"
		}
		res, err := http.ReadResponse(r, req)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode != want.status || res.Header.Get("Location") != want.location {
			t.Errorf("answer %d: %d to %q, want %d to %q", i, res.StatusCode, res.Header.Get("Location"), want.status, want.location)
		}
	}
}

// private checks that other users cannot read what is in dir.
func private(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if !info.IsDir() {
			files++
		}
		return nil
	})
	if err != nil || files != 3 { // the account and two certificates: no challenge is left
		t.Errorf("%d files in %s, want 3 (%v)", files, dir, err)
	}
}

// shown checks the admin API and the command.
func shown(t *testing.T, s *judge.Server, certificates int) {
	t.Helper()
	out, err := exec.Command(judge.Binary(t, judge.Race), "certificates", "--admin", "http://"+s.Admin, "--json").CombinedOutput()
	var list []struct {
		Name, Source string
		Served       bool
	}
	if err != nil || json.Unmarshal(out, &list) != nil || len(list) != certificates {
		t.Fatalf("weir certificates: %v: %s", err, out)
	}
	for _, c := range list {
		if c.Source != "acme" || !c.Served {
			t.Errorf("weir certificates: %+v", c)
		}
	}
	if s.Metric("weir_tls_certificate_lifetime_left_ratio") <= 0 {
		t.Error("the certificates have no lifetime left")
	}
}

// A certificate is renewed before it expires; open connections stay. It is due 4 s after it was
// issued and valid for much longer: an order may take a while on a busy machine.
func TestCertificateIsRenewedWithoutARestart(t *testing.T) {
	t.Parallel()
	public := judge.FreeAddr(t)
	p := newPebble(t, options{http: judge.FreeAddr(t), tls: public, validity: 30 * time.Second})
	secured(t, public, p.config([]string{"a.weir.test"}, map[string]any{"renew_before": "25s"}))
	roots := p.roots()
	var c *tls.Conn
	judge.Soon(t, patience, "a certificate", func() (err error) {
		c, err = tls.Dial("tcp", public, &tls.Config{RootCAs: roots, ServerName: "a.weir.test"})
		return err
	})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	first := c.ConnectionState().PeerCertificates[0]
	r := bufio.NewReader(c)
	// Requests all the time: one that is silent is closed for that (downstream.head_timeout, downstream.keep_alive).
	served := func(when string) {
		t.Helper()
		_, _ = fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("the connection from before the renewal, %s it: %v, %v", when, res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	judge.Eventually(t, patience, "another certificate", func() bool {
		served("before")
		now := leafOf(public, "a.weir.test", roots)
		return now != nil && now.SerialNumber.Cmp(first.SerialNumber) != 0
	})
	served("after")
}

// Validation that fails is retried with back-off, also over a restart, and is seen by operators.
func TestFailedOrderIsRetried(t *testing.T) {
	t.Parallel()
	public, validated := judge.FreeAddr(t), judge.FreeAddr(t)
	p := newPebble(t, options{http: judge.FreeAddr(t), tls: validated, validity: time.Hour})
	s := secured(t, public, p.config([]string{"a.weir.test"}, map[string]any{"dir": filepath.Join(t.TempDir(), "acme")}))
	failures := func() float64 { return s.Metric("weir_acme_orders_total") }
	judge.Eventually(t, patience, "two failed orders", func() bool { return failures() >= 2 })
	out, err := exec.Command(judge.Binary(t, judge.Race), "certificates", "--admin", "http://"+s.Admin).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "failed orders") {
		t.Errorf("weir certificates: %v: %s", err, out)
	}
	s.Terminate()
	s.Start()
	if leafOf(public, "a.weir.test", p.roots()) != nil {
		t.Fatal("a certificate without validation")
	}
	relay(t, validated, public) // now the CA reaches the node
	judge.Eventually(t, patience, "a certificate", func() bool { return leafOf(public, "a.weir.test", p.roots()) != nil })
}

// relay passes connections to addr on to target.
func relay(t *testing.T, addr, target string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", target)
			if err != nil {
				_ = c.Close()
				continue
			}
			over := make(chan struct{}, 2)
			go func() { _, _ = io.Copy(up, c); over <- struct{}{} }()
			go func() { _, _ = io.Copy(c, up); over <- struct{}{} }()
			<-over
			_, _ = c.Close(), up.Close()
			<-over
		}
	}()
}

// Nodes that share a broker order once; the CA's validation may reach another node than the one
// that orders.
func TestClusterOrdersOnce(t *testing.T) {
	t.Parallel()
	public, plain := judge.FreeAddr(t), judge.FreeAddr(t)
	p := newPebble(t, options{http: plain, tls: public, validity: time.Hour})
	peers := []string{judge.FreeAddr(t), judge.FreeAddr(t), judge.FreeAddr(t)}
	var nodes []*judge.Server
	for i, at := range peers {
		addr, http := judge.FreeAddr(t), judge.FreeAddr(t)
		if i == 0 {
			addr, http = public, plain // the others cannot be validated directly
		}
		config := p.config([]string{"a.weir.test", "b.weir.test", "c.weir.test"}, map[string]any{"http_listen": http})
		config["broker"] = map[string]any{"kind": "nats", "nats": map[string]any{
			"dir": t.TempDir(), "cluster": map[string]any{"name": "c", "node": fmt.Sprint("n", i), "listen": at, "routes": peers},
		}}
		config["namespaces"] = []any{map[string]any{"name": "default", "replicas": 3}}
		nodes = append(nodes, judge.Launch(t, judge.Options{Listen: addr, AdminHealth: true, Config: config}))
	}
	for _, n := range nodes {
		n.Ready()
	}
	roots := p.roots()
	for _, name := range []string{"a.weir.test", "b.weir.test", "c.weir.test"} {
		var first *x509.Certificate
		for i, n := range nodes {
			judge.Eventually(t, 2*patience, fmt.Sprintf("a certificate for %s on node %d", name, i), func() bool {
				leaf := leafOf(n.Public, name, roots)
				if first == nil {
					first = leaf
				}
				return leaf != nil && leaf.SerialNumber.Cmp(first.SerialNumber) == 0
			})
		}
	}
	obtained, accounts := 0, 0
	for _, n := range nodes {
		obtained += strings.Count(n.Log(), `msg="certificate obtained"`)
		accounts += strings.Count(n.Log(), `msg="registered an ACME account"`)
	}
	if obtained != 3 || accounts != 1 {
		t.Errorf("%d orders and %d accounts, want 3 and 1", obtained, accounts)
	}
}

// A must-staple certificate is served with the responder's answer, never without.
func TestMustStapleIsServedWithAStaple(t *testing.T) {
	t.Parallel()
	public := judge.FreeAddr(t)
	var p *pebble
	var issuer *x509.Certificate
	var key crypto.Signer
	responder := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		q, err := ocsp.ParseRequest(b)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := ocsp.CreateResponse(issuer, issuer, ocsp.Response{Status: ocsp.Good, SerialNumber: q.SerialNumber, ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour)}, key)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = w.Write(answer)
	}))
	defer responder.Close()
	p = newPebble(t, options{http: judge.FreeAddr(t), tls: public, validity: time.Hour, ocsp: responder.URL})
	key = p.key()
	var err error
	if issuer, err = x509.ParseCertificate(p.block("/intermediates/0")); err != nil {
		t.Fatal(err)
	}
	secured(t, public, p.config([]string{"a.weir.test"}, map[string]any{"must_staple": true}))
	roots := p.roots()
	judge.Eventually(t, patience, "a certificate with a staple", func() bool {
		c, err := tls.Dial("tcp", public, &tls.Config{RootCAs: roots, ServerName: "a.weir.test"})
		if err != nil {
			return false
		}
		defer c.Close()
		state := c.ConnectionState()
		if len(state.OCSPResponse) == 0 {
			t.Fatal("no staple")
		}
		_, err = ocsp.ParseResponseForCert(state.OCSPResponse, state.PeerCertificates[0], state.PeerCertificates[1])
		return err == nil
	})
}

// key is the key of p's intermediate authority.
func (p *pebble) key() crypto.Signer {
	k, err := x509.ParsePKCS1PrivateKey(p.block("/intermediate-keys/0"))
	if err != nil {
		p.t.Error(err)
	}
	return k
}
