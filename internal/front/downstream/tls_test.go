package downstream_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire/wiretest"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// An authority makes certificates for servers and clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	a := &authority{cert: cert, key: key, file: filepath.Join(t.TempDir(), "ca.pem")}
	must(t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var serial atomic.Int64

// leaf is a certificate for names, or addresses; change may alter it first.
func (a *authority) leaf(t *testing.T, change func(*x509.Certificate), names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1000 + serial.Add(1)), Subject: pkix.Name{CommonName: "leaf"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(12 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
		}
	}
	if change != nil {
		change(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// save writes c and its key into one file.
func save(t *testing.T, file string, c tls.Certificate) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	must(t, err)
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
	b = append(b, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	must(t, os.WriteFile(file+".new", b, 0o600))
	must(t, os.Rename(file+".new", file))
	return file
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// secureBackend is a net/http server over TLS at 127.0.0.1.
func secureBackend(t *testing.T, cfg *tls.Config, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.TLS = cfg
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// quick is a cluster that neither ejects nor tries again.
func quick(tls upstream.TLSConfig) upstream.Config {
	return upstream.Config{TLS: tls, Retry: upstream.RetryConfig{Attempts: 1}, Outlier: upstream.OutlierConfig{Enabled: setting.Off},
		Breaker: upstream.BreakerConfig{Enabled: setting.Off}, Timeouts: upstream.TimeoutConfig{Connect: hub.Duration(trial.Patience / 2)}}
}

// shakes returns how the handshakes of cluster "main" ended.
func (g *gateway) shakes(result string) uint64 { return g.clusters.Stats()[0].Handshakes[result] }

var versions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

func TestBackendsAreRequestedOverTLS(t *testing.T) {
	a := newAuthority(t)
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			peer := secureBackend(t, &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}, MinVersion: version, MaxVersion: version},
				func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					w.Header().Set("X-Protocol", r.TLS.NegotiatedProtocol+" "+r.Proto)
					w.Header().Set("X-Resumed", fmt.Sprint(r.TLS.DidResume))
					if r.URL.Path == "/big" {
						_, _ = io.Copy(w, bytes.NewReader(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)))
						return
					}
					_, _ = w.Write(b)
				})
			g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}})}, "https://"+peer)
			for i := range 20 {
				body := strings.Repeat("x", i*5000)
				res, err := http.Post(g.url("/"), "text/plain", strings.NewReader(body))
				must(t, err)
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 || string(b) != body || res.Header.Get("X-Protocol") != "http/1.1 HTTP/1.1" {
					t.Fatalf("%d: %d, %d bytes, %v, over %s", i, res.StatusCode, len(b), err, res.Header.Get("X-Protocol"))
				}
			}
			res, err := http.Get(g.url("/big"))
			must(t, err)
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || len(b) != 16<<16 {
				t.Errorf("%d bytes, %v", len(b), err)
			}
			if n := g.shakes("full") + g.shakes("resumed"); n == 0 || n > 3 {
				t.Errorf("%d handshakes for 21 requests one after the other", n)
			}
		})
	}
}

// wait is a body that ends when it is closed.
func TestSessionsResumeWhenConnectionsDoNotLast(t *testing.T) {
	a := newAuthority(t)
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			peer := secureBackend(t, &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}, MinVersion: version, MaxVersion: version},
				func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Connection", "close")
					_, _ = io.WriteString(w, "ok")
				})
			g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}})}, "https://"+peer)
			for range 10 {
				res, err := http.Get(g.url("/"))
				must(t, err)
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || string(b) != "ok" {
					t.Fatalf("%d %q, %v", res.StatusCode, b, err)
				}
			}
			if full, resumed := g.shakes("full"), g.shakes("resumed"); full != 1 || resumed != 9 {
				t.Errorf("%d full and %d resumed handshakes, want 1 and 9", full, resumed)
			}
		})
	}
}

func TestBackendsWithOtherIdentitiesAreRefused(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	me := save(t, filepath.Join(t.TempDir(), "me.pem"), a.leaf(t, nil, "me"))
	unknown := save(t, filepath.Join(t.TempDir(), "unknown.pem"), other.leaf(t, nil, "me"))
	expired := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	}
	good := a.leaf(t, nil, "127.0.0.1", "app.example")
	f := func(what string, server *tls.Config, by upstream.TLSConfig, want int, result string) {
		t.Helper()
		for name, version := range versions {
			if server.MinVersion > version {
				continue
			}
			cfg := server.Clone()
			cfg.MaxVersion = version
			peer := secureBackend(t, cfg, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
			g := start(t, settings{cluster: quick(by)}, "https://"+peer)
			w := g.dial()
			for range 2 { // the client's connection lives on
				w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
				res, body := w.Answer("POST")
				if res.StatusCode != want || res.Close {
					t.Errorf("%s, TLS %s: %d %q, close %v, want %d", what, name, res.StatusCode, body, res.Close, want)
				}
			}
			if st := g.clusters.Stats()[0]; st.Handshakes[result] == 0 || (want != 200) != (st.Peers[0].TLSError != "") {
				t.Errorf("%s, TLS %s: handshakes %v, %q, want %s", what, name, st.Handshakes, st.Peers[0].TLSError, result)
			}
			if st := g.clusters.Stats()[0].Peers[0]; want != 200 && st.ConnectErrors != 2 {
				t.Errorf("%s, TLS %s: %d connect errors", what, name, st.ConnectErrors)
			}
		}
	}
	ca := []string{a.file}
	certs := func(c tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{c}} }
	f("all is well", certs(good), upstream.TLSConfig{CAFiles: ca}, 200, "full")
	f("another name requested, that it has", certs(good), upstream.TLSConfig{CAFiles: ca, ServerName: "app.example"}, 200, "full")
	f("a wrong name", certs(good), upstream.TLSConfig{CAFiles: ca, ServerName: "other.example"}, 502, "wrong_name")
	f("a name, not the address", certs(a.leaf(t, nil, "app.example")), upstream.TLSConfig{CAFiles: ca}, 502, "wrong_name")
	f("an unknown authority", certs(other.leaf(t, nil, "127.0.0.1")), upstream.TLSConfig{CAFiles: ca}, 502, "unknown_authority")
	f("the system's authorities", certs(good), upstream.TLSConfig{}, 502, "unknown_authority")
	f("expired", certs(a.leaf(t, expired, "127.0.0.1")), upstream.TLSConfig{CAFiles: ca}, 502, "expired")
	f("nothing is verified", certs(other.leaf(t, expired, "x")), upstream.TLSConfig{Verify: setting.Off}, 200, "full")
	mutual := certs(good)
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, a.pool()
	f("a client certificate is wanted", mutual, upstream.TLSConfig{CAFiles: ca}, 502, "refused")
	f("another one is wanted", mutual, upstream.TLSConfig{CAFiles: ca, CertFile: unknown}, 502, "refused")
	f("it is shown", mutual, upstream.TLSConfig{CAFiles: ca, CertFile: me}, 200, "full")
	if old := certs(good); true {
		old.MaxVersion = tls.VersionTLS12
		peer := secureBackend(t, old, func(http.ResponseWriter, *http.Request) {})
		g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: ca, MinVersion: "1.3"})}, "https://"+peer)
		w := g.dial()
		w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if res, _ := w.Answer("GET"); res.StatusCode != 502 {
			t.Errorf("TLS 1.2 where 1.3 is the least: %d", res.StatusCode)
		}
	}
}

func TestBackendsThatFailInTheHandshake(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	f := func(what string, status int, result string, peer func(n int, w *wiretest.Conn)) {
		t.Helper()
		cluster := quick(upstream.TLSConfig{CAFiles: []string{a.file}})
		cluster.Timeouts.Connect = hub.Duration(300 * time.Millisecond)
		g := start(t, settings{cluster: cluster}, "https://"+wiretest.Peer(t, peer))
		w := g.dial()
		w.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
		res, body := w.Answer("POST")
		if res.StatusCode != status || g.shakes(result) != 1 {
			t.Errorf("%s: %d %q, %v; want %d %s", what, res.StatusCode, body, g.clusters.Stats()[0].Handshakes, status, result)
		}
		trial.Eventually(t, what+": nothing is left", func() bool { return g.proxy.Stats().Open == 0 })
	}
	f("it says nothing", 504, "timeout", func(_ int, w *wiretest.Conn) { _, _ = io.Copy(io.Discard, w) })
	f("it speaks no TLS", 502, "protocol", func(_ int, w *wiretest.Conn) {
		w.TrySend("HTTP/1.1 400 Bad Request\n\n")
		_, _ = io.Copy(io.Discard, w)
	})
	f("it hangs up", 502, "closed", func(_ int, w *wiretest.Conn) { _, _ = w.R.ReadByte() })
	f("it resets", 502, "closed", func(_ int, w *wiretest.Conn) {
		_, _ = w.R.ReadByte()
		_ = w.Conn.(*net.TCPConn).SetLinger(0)
	})
	f("it says a handshake that is cut", 502, "closed", func(_ int, w *wiretest.Conn) {
		_, _ = w.R.ReadByte()
		_, _ = w.Write([]byte{22, 3, 3, 0, 100, 2, 0, 0, 90})
		_ = w.Conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, w.R)
	})
}

// securely runs f on the server's side of TLS.
func securely(cfg *tls.Config, f func(c *tls.Conn, r *bufio.Reader)) func(int, *wiretest.Conn) {
	return func(_ int, w *wiretest.Conn) {
		c := tls.Server(readFirst{w.Conn, w.R}, cfg)
		f(c, bufio.NewReader(c))
	}
}

type readFirst struct {
	net.Conn
	r *bufio.Reader
}

func (c readFirst) Read(b []byte) (int, error) { return c.r.Read(b) }

func TestARetryLeavesAPeerWhoseCertificateIsBad(t *testing.T) {
	a := newAuthority(t)
	f := func(c tls.Certificate) string {
		return "https://" + secureBackend(t, &tls.Config{Certificates: []tls.Certificate{c}}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, r.Body)
		})
	}
	g := start(t, settings{cluster: upstream.Config{TLS: upstream.TLSConfig{CAFiles: []string{a.file}}}}, f(a.leaf(t, nil, "127.0.0.1")), f(a.leaf(t, nil, "other.example")))
	for i := range 30 { // a POST too: nothing was sent to the bad one
		res, err := http.Post(g.url("/"), "text/plain", strings.NewReader("hello"))
		must(t, err)
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || string(b) != "hello" {
			t.Fatalf("%d: %d %q", i, res.StatusCode, b)
		}
	}
	ejected := 0
	for _, p := range g.clusters.Stats()[0].Peers {
		ejected += int(p.Ejections)
	}
	if ejected != 1 {
		t.Errorf("%d ejections, want the bad one's", ejected)
	}
}

func TestACutReplyOverTLSIsNotTakenForWhole(t *testing.T) {
	a := newAuthority(t)
	for name, version := range versions {
		cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}, MaxVersion: version}
		f := func(what string, whole bool, end func(c *tls.Conn)) {
			t.Helper()
			peer := wiretest.Peer(t, securely(cfg, func(c *tls.Conn, r *bufio.Reader) {
				if _, err := http.ReadRequest(r); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it")
					end(c)
				}
			}))
			g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}})}, "https://"+peer)
			w := g.dial()
			w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			res, err := http.ReadResponse(w.R, nil)
			if err != nil && whole {
				t.Fatalf("TLS %s, %s: %v", name, what, err)
			}
			if err != nil {
				return
			}
			if b, err := io.ReadAll(res.Body); (err == nil) != whole {
				t.Errorf("TLS %s, %s: %q, %v", name, what, b, err)
			}
		}
		f("close_notify", true, func(c *tls.Conn) { _ = c.Close() })
		f("the end without a word", false, func(*tls.Conn) {})
		f("a reset", false, func(c *tls.Conn) { _ = c.NetConn().(readFirst).Conn.(*net.TCPConn).SetLinger(0) })
		f("half a record", false, func(c *tls.Conn) { _, _ = c.NetConn().Write([]byte{23, 3, 3, 1, 0, 1, 2, 3}) })
		f("a record that is not genuine", false, func(c *tls.Conn) {
			_, _ = c.NetConn().Write(append([]byte{23, 3, 3, 0, 40}, make([]byte, 40)...))
			_, _ = io.Copy(io.Discard, c.NetConn())
		})
	}
}

func TestTunnelsAndEventStreamsPassOverTLS(t *testing.T) {
	a := newAuthority(t)
	more := make(chan string)
	peer := secureBackend(t, &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, wiretest.CRLF("HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nConnection: Upgrade\n\n"))
			_, _ = io.Copy(c, rw)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for s := range more {
			_, _ = io.WriteString(w, "data: "+s+"\n\n")
			w.(http.Flusher).Flush()
		}
	})
	g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}})}, "https://"+peer)
	w := g.dial()
	w.Send("GET /chat HTTP/1.1\r\nHost: a\r\n" + wiretest.CRLF(wiretest.UpgradeFields) + "\r\n")
	if head := w.Head(); !strings.Contains(head, " 101 ") {
		t.Fatalf("%q", head)
	}
	for i := range 20 {
		s := strings.Repeat(fmt.Sprint(i), 1+i*1000)
		var sent sync.WaitGroup
		sent.Go(func() { w.TrySend(s) })
		got := make([]byte, len(s))
		if _, err := io.ReadFull(w.R, got); err != nil || string(got) != s {
			t.Fatalf("%d: %v", i, err)
		}
		sent.Wait()
	}
	res, err := http.Get(g.url("/events"))
	must(t, err)
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	for i := range 20 {
		more <- fmt.Sprint(i)
		if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = r.ReadString('\n')
	}
	close(more)
	_, _ = io.ReadAll(r)
}

func TestALargeUploadWaitsForTheHandshake(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	begin := make(chan struct{})
	cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		<-begin
		return nil, nil
	}}
	peer := secureBackend(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	g := start(t, settings{cluster: quick(upstream.TLSConfig{CAFiles: []string{a.file}}),
		routes: []policy.RouteConfig{{Cluster: "main", Limits: policy.Limits{MaxBody: 64 << 20}, Timeouts: policy.Timeouts{Connect: hub.Duration(trial.Patience)}}}}, "https://"+peer)
	const size = 48 << 20 // more than what buffers of the kernel may grow to
	answer := make(chan string, 1)
	var sent atomic.Int64
	go func() {
		res, err := http.Post(g.url("/"), "text/plain", &counting{r: bytes.NewReader(make([]byte, size)), n: &sent})
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		answer <- string(b)
	}()
	last := int64(-1)
	trial.Eventually(t, "the client is throttled", func() bool {
		time.Sleep(50 * time.Millisecond) // that nothing moves has no sign
		now := sent.Load()
		held := now == last && now > 0
		last = now
		return held
	})
	if n := sent.Load(); n >= size {
		t.Errorf("%d bytes were taken in before the handshake", n)
	}
	close(begin)
	if got := <-answer; got != fmt.Sprint(size, error(nil)) {
		t.Errorf("%s", got)
	}
}

type counting struct {
	r io.Reader
	n *atomic.Int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(int64(n))
	return n, err
}

func TestNewCertificatesAreForNewConnections(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{a.leaf(t, nil, "127.0.0.1")}, ClientAuth: tls.RequireAnyClientCert}
	peer := secureBackend(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].DNSNames[0])
	})
	file := filepath.Join(t.TempDir(), "me.pem")
	save(t, file, a.leaf(t, nil, "first"))
	cluster := quick(upstream.TLSConfig{CAFiles: []string{a.file}, CertFile: file})
	g := start(t, settings{cluster: cluster}, "https://"+peer)
	cluster.Name, cluster.Peers = "main", []upstream.PeerConfig{{Address: "https://" + peer}}
	f := func(want string) {
		t.Helper()
		for range 4 { // both loops
			res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(g.url("/"))
			must(t, err)
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if string(b) != want {
				t.Errorf("%d %q, want %q", res.StatusCode, b, want)
			}
		}
	}
	f("first")
	save(t, file, a.leaf(t, nil, "second"))
	must(t, g.clusters.Replace(t.Context(), []upstream.Config{cluster}, nil))
	f("second")
	// A broken file changes nothing.
	must(t, os.WriteFile(file, []byte("broken"), 0o600))
	if err := g.clusters.Replace(t.Context(), []upstream.Config{cluster}, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a broken file: %v", err)
	}
	f("second")
	// And one that changes by itself is seen.
	save(t, file, a.leaf(t, nil, "third"))
	trial.Eventually(t, "the third", func() bool {
		res, err := http.Get(g.url("/"))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return string(b) == "third"
	})
	// Authorities that do not hold any more end what is kept.
	cluster.TLS.CAFiles = []string{other.file}
	must(t, g.clusters.Replace(t.Context(), []upstream.Config{cluster}, nil))
	w := g.dial()
	w.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if res, _ := w.Answer("GET"); res.StatusCode != 502 {
		t.Errorf("with another authority: %d", res.StatusCode)
	}
}
