package tlsterm

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheNameChoosesTheCertificate(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, Config{Certificates: []Certificate{
		save(t, dir, "first", ca().leaf(t, nil, "first.test")),
		save(t, dir, "wild", ca().leaf(t, nil, "*.wild.test")),
		save(t, dir, "exact", ca().leaf(t, nil, "Exact.wild.test", "second.test")),
		save(t, dir, "ecdsa", ca().leaf(t, nil, "both.test")),
		save(t, dir, "rsa", ca().leafOf(t, rsaKey(), nil, "both.test")),
	}}, echoes)
	f := func(name, want string, change func(*tls.Config)) {
		t.Helper()
		c := dial(t, s, func(c *tls.Config) {
			c.ServerName, c.InsecureSkipVerify = name, true //nolint:gosec // the name is compared below
			if change != nil {
				change(c)
			}
		})
		leaf := c.ConnectionState().PeerCertificates[0]
		if got := leaf.DNSNames[0] + " " + leaf.PublicKeyAlgorithm.String(); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
	onlyRSA := func(c *tls.Config) {
		c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	}
	f("first.test", "first.test ECDSA", nil)
	f("exact.wild.test", "Exact.wild.test ECDSA", nil)
	f("EXACT.wild.test", "Exact.wild.test ECDSA", nil)
	f("second.test", "Exact.wild.test ECDSA", nil)
	f("other.wild.test", "*.wild.test ECDSA", nil)
	f("a.b.wild.test", "first.test ECDSA", nil) // a wildcard is one label
	f("wild.test", "first.test ECDSA", nil)
	f("unknown.test", "first.test ECDSA", nil)
	f("", "first.test ECDSA", nil)
	f("both.test", "both.test ECDSA", nil)
	f("both.test", "both.test RSA", onlyRSA)
}

func TestCertificatesThatCannotServeAreRefused(t *testing.T) {
	dir := t.TempDir()
	good, other := save(t, dir, "good", ca().leaf(t, nil, "a")), save(t, dir, "other", ca().leaf(t, nil, "b"))
	expired := save(t, dir, "expired", ca().leaf(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "a"))
	empty := filepath.Join(dir, "empty")
	replace(t, empty, nil)
	f := func(want string, cfg Config) {
		t.Helper()
		if _, err := New(cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	one := func(c Certificate) Config { return Config{Certificates: []Certificate{good, c}} }
	f("certificates: there is none", Config{})
	f("certificates[1]: cert_file: open /nowhere", one(Certificate{CertFile: "/nowhere"}))
	f("certificates[1]: key_file: open /nowhere", one(Certificate{CertFile: good.CertFile, KeyFile: "/nowhere"}))
	f("certificates[1]: "+good.CertFile+": tls: private key does not match", one(Certificate{CertFile: good.CertFile, KeyFile: other.KeyFile}))
	f("certificates[1]: "+expired.CertFile+": expired on", one(expired))
	f("certificates[1]: "+empty+": ", one(Certificate{CertFile: empty, KeyFile: good.KeyFile}))
	f("client_ca_files[0]: "+empty+": no certificate", Config{Certificates: []Certificate{good}, ClientAuth: "require", ClientCAFiles: []string{empty}})
	f("ticket_secret_file: 0 bytes", Config{Certificates: []Certificate{good}, TicketSecretFile: empty})
	f("ticket_secret_file: open", Config{Certificates: []Certificate{good}, TicketSecretFile: "/nowhere"})
	both := filepath.Join(dir, "both.pem") // key and certificate in one file
	replace(t, both, append(must(os.ReadFile(good.CertFile)), must(os.ReadFile(good.KeyFile))...))
	if _, err := New(one(Certificate{CertFile: both}), nil); err != nil {
		t.Errorf("a file with both: %v", err)
	}
}

func serialOf(c *tls.Conn) string {
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestAChangedFileIsTakenUpAndABrokenOneIsNot(t *testing.T) {
	dir := t.TempDir()
	first, second := ca().leaf(t, nil, "localhost"), ca().leaf(t, nil, "localhost")
	files := save(t, dir, "a", first)
	s := serve(t, Config{Certificates: []Certificate{files}, ReloadInterval: seconds(0.01)}, echoes)
	old := dial(t, s, nil)
	if got := serialOf(old); got != first.Leaf.SerialNumber.String() {
		t.Fatalf("serial %s", got)
	}
	save(t, dir, "a", second)
	eventually(t, "the new certificate", func() bool { return serialOf(dial(t, s, nil)) == second.Leaf.SerialNumber.String() })
	roundTrip(t, old, []byte("still here"))

	before := s.Stats()
	replace(t, files.CertFile, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	eventually(t, "a counted failure", func() bool { return s.Stats().ReloadFailures > before.ReloadFailures })
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), files.CertFile) {
		t.Errorf("Reload of a broken file said %v", err)
	}
	if got := serialOf(dial(t, s, nil)); got != second.Leaf.SerialNumber.String() {
		t.Errorf("a broken file changed the certificate to %s", got)
	}
	if got := s.Stats(); got.Reloads != before.Reloads {
		t.Errorf("a broken file counted as reloaded")
	}
	save(t, dir, "a", first)
	eventually(t, "the certificate after repair", func() bool { return serialOf(dial(t, s, nil)) == first.Leaf.SerialNumber.String() })
}

// Rotation under load: a thousand changes while clients connect, a broken file
// in between every ten; no handshake fails and no connection breaks.
func TestRotationFailsNoHandshake(t *testing.T) {
	rotations := 1000
	if testing.Short() {
		rotations = 100
	}
	dir := t.TempDir()
	certs := []tls.Certificate{ca().leaf(t, nil, "localhost"), ca().leaf(t, nil, "localhost")}
	files := save(t, dir, "a", certs[0])
	s := serve(t, Config{Certificates: []Certificate{files}, ReloadInterval: seconds(3600)}, echoes)
	standing := dial(t, s, nil)
	var stop atomic.Bool
	var dials atomic.Int64
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			for !stop.Load() {
				c, err := tls.Dial("tcp", s.addr, client(nil))
				if err != nil {
					t.Errorf("handshake: %v", err)
					return
				}
				dials.Add(1)
				_ = c.Close()
			}
		})
	}
	failures := 0
	for i := range rotations {
		if i%10 == 9 {
			replace(t, files.CertFile, []byte("broken"))
			if s.Reload() == nil {
				t.Error("a broken file was taken")
			}
			failures++
		}
		save(t, dir, "a", certs[i%2])
		if err := s.Reload(); err != nil {
			t.Errorf("reload: %v", err)
		}
	}
	stop.Store(true)
	clients.Wait()
	_ = standing.SetDeadline(time.Now().Add(20 * time.Second))
	roundTrip(t, standing, []byte("still here"))
	if st := s.Stats(); st.Failed != 0 || st.Reloads != uint64(rotations) || st.ReloadFailures != uint64(failures) || dials.Load() == 0 {
		t.Errorf("%d dials: %+v", dials.Load(), st)
	}
}

func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	others := newAuthority("others")
	cert := save(t, dir, "ca", tls.Certificate{Certificate: [][]byte{ca().cert.Raw}, PrivateKey: ca().key})
	caFile := cert.CertFile
	known, unknown := ca().leaf(t, nil), others.leaf(t, nil)
	f := func(auth string, show *tls.Certificate, version uint16, want bool) {
		t.Helper()
		s := serve(t, Config{ClientAuth: auth, ClientCAFiles: []string{caFile}}, echoes)
		cache := tls.NewLRUClientSessionCache(1)
		for i := range 2 { // the second one resumes
			c, err := tls.Dial("tcp", s.addr, client(func(c *tls.Config) {
				c.MaxVersion, c.ClientSessionCache = version, cache
				c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if show == nil {
						return &tls.Certificate{}, nil
					}
					return show, nil
				}
			}))
			if err == nil { // in TLS 1.3 the client learns of a refusal with its first read
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				_, err = c.Write([]byte("x"))
				if err == nil {
					_, err = c.Read(make([]byte, 1))
				}
				if err == nil && want && c.ConnectionState().DidResume != (i == 1) {
					t.Errorf("%s %x: connection %d resumed: %v", auth, version, i, c.ConnectionState().DidResume)
				}
				_ = c.Close()
			}
			if (err == nil) != want {
				t.Errorf("%s, certificate %v, version %x: %v, want success %v", auth, show != nil, version, err, want)
			}
		}
	}
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		f("require", nil, v, false)
		f("require", &unknown, v, false)
		f("require", &known, v, true)
		f("request", nil, v, true)
		f("request", &unknown, v, false)
		f("request", &known, v, true)
		f("none", &unknown, v, true)
	}
}

func TestEveryMistakeInAConfigIsNamed(t *testing.T) {
	f := func(want string, c Config) {
		t.Helper()
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	f("certificates[1]: cert_file: ", Config{Certificates: []Certificate{{CertFile: "a"}, {KeyFile: "b"}}})
	f("min_version: ", Config{MinVersion: "1.1"})
	f("max_version: ", Config{MaxVersion: "1.4"})
	f("max_version: 1.2 is below", Config{MinVersion: "1.3", MaxVersion: "1.2"})
	f("client_auth: ", Config{ClientAuth: "maybe"})
	f("client_ca_files: ", Config{ClientAuth: "require"})
	f("ticket_secret: ", Config{TicketSecret: "short"})
	f("ticket_secret_file: ", Config{TicketSecret: Secret(strings.Repeat("x", 32)), TicketSecretFile: "y"})
	f("ticket_rotation: ", Config{TicketRotation: seconds(1e6)})
	f("reload_interval: ", Config{ReloadInterval: -1})
	f("max_handshakes: ", Config{MaxHandshakes: -1})
	f("handshake_cpus: ", Config{HandshakeCPUs: -1})
	f("max_waiting: ", Config{MaxWaiting: -1})
	f("handshake_rate: ", Config{HandshakeRate: -1})
	f("hello_timeout: ", Config{HelloTimeout: -1})
	f("handshake_timeout: ", Config{HandshakeTimeout: -1})
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if s := Secret("hidden"); s.String() != "***" || s.GoString() != "***" {
		t.Error("a secret shows")
	}
}
