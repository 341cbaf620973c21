package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-gateway/weir/internal/app/setting"
)

func TestTLSConfigsThatMakeNoSense(t *testing.T) {
	f := func(want string, c Config) {
		t.Helper()
		c.Name = "test"
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", c.TLS, err, want)
		}
	}
	secure, plain := peers("https://app.example"), peers("app.example:80")
	f("", Config{Peers: secure})
	f("", Config{Peers: secure, TLS: TLSConfig{MinVersion: "1.3", ServerName: "10.0.0.1", CAFiles: []string{"a"}, CertFile: "b", KeyFile: "c"}})
	f("", Config{Peers: plain, TLS: TLSConfig{Enabled: true}})
	f("tls: no peer is spoken to over TLS", Config{Peers: plain, TLS: TLSConfig{CAFiles: []string{"a"}}})
	f("tls: no peer is spoken to over TLS", Config{Peers: plain, TLS: TLSConfig{Verify: setting.Off}})
	f(`tls.min_version: "1.1"`, Config{Peers: secure, TLS: TLSConfig{MinVersion: "1.1"}})
	f("tls.key_file: there is no cert_file", Config{Peers: secure, TLS: TLSConfig{KeyFile: "a"}})
	f("tls.ca_files[0]: is empty", Config{Peers: secure, TLS: TLSConfig{CAFiles: []string{""}}})
	f("tls.verify: false verifies nothing", Config{Peers: secure, TLS: TLSConfig{CAFiles: []string{"a"}, Verify: setting.Off}})
	f("tls.server_name:", Config{Peers: secure, TLS: TLSConfig{ServerName: "a b"}})
	f("$target is for srv", Config{Peers: secure, TLS: TLSConfig{ServerName: "$target"}})
	f("unix:/run/app.sock has no host name", Config{Peers: peers("unix:/run/app.sock"), TLS: TLSConfig{Enabled: true}})
	f("", Config{Peers: peers("unix:/run/app.sock"), TLS: TLSConfig{Enabled: true, ServerName: "app.example"}})
	f("listed twice", Config{Peers: peers("https://app.example", "https://app.example:443")})
	f("", Config{Peers: peers("https://app.example:80", "app.example:80")})
	f("say whose certificate to expect", Config{SRV: service, TLS: TLSConfig{Enabled: true}})
	f("", Config{SRV: service, TLS: TLSConfig{Enabled: true, ServerName: "$target"}})
	f("write one of the two", Config{SRV: service, Peers: plain})
	f("srv:", Config{SRV: "_http._tcp..example"})
	f("dns.server:", Config{SRV: service, DNS: DNSConfig{Server: "ns.example"}})
	f("", Config{SRV: service, DNS: DNSConfig{Server: "10.0.0.2:53"}})
}

func TestFilesOfCertificatesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(want string, c TLSConfig) {
		t.Helper()
		_, err := New([]Config{{Name: "shop", Peers: peers("https://app.example"), TLS: c}}, nil, Options{})
		if err == nil || !strings.Contains(err.Error(), `cluster "shop": `+want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	f("tls.ca_files[0]: open /nowhere", TLSConfig{CAFiles: []string{"/nowhere"}})
	f("tls.ca_files[0]: "+empty+": no certificate in it", TLSConfig{CAFiles: []string{empty}})
	f("tls.cert_file: open /nowhere", TLSConfig{CertFile: "/nowhere"})
	f("tls.cert_file: "+empty, TLSConfig{CertFile: empty})
	f("tls.key_file: open /nowhere", TLSConfig{CertFile: empty, KeyFile: "/nowhere"})
}

func TestUnverifiedUpstreamsAreWarnedOf(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(slog.NewTextHandler(&b, nil))
	_, err := New([]Config{{Name: "shop", Peers: peers("https://app.example"), TLS: TLSConfig{Verify: setting.Off}}}, nil, Options{Log: log})
	if err != nil || !strings.Contains(b.String(), "level=WARN") || !strings.Contains(b.String(), "not verified") || !strings.Contains(b.String(), "cluster=shop") {
		t.Errorf("%v, %q", err, b.String())
	}
}

func TestAddressesOverTLSAreOthers(t *testing.T) {
	f := func(address string, cfg TLSConfig, want, name string) {
		t.Helper()
		src, err := parseTarget(address)
		if err != nil {
			t.Fatal(err)
		}
		ip := addressOf(listening{}).IP.Addr()
		if a := src.at(ip, &cfg); a.String() != want || src.name != name {
			t.Errorf("%s: %s, named %s, want %s, %s", address, a, src.name, want, name)
		}
	}
	f("app.example:80", TLSConfig{}, "10.9.9.9:80", "app.example:80")
	f("app.example:80", TLSConfig{Enabled: true}, "https://10.9.9.9:80 (app.example)", "app.example:80")
	f("https://app.example", TLSConfig{}, "https://10.9.9.9:443 (app.example)", "app.example")
	f("https://app.example:8443", TLSConfig{ServerName: "b.example"}, "https://10.9.9.9:8443 (b.example)", "app.example:8443")
	f("https://10.0.0.1", TLSConfig{}, "https://10.0.0.1:443", "10.0.0.1")
	f("https://[fd00::1]:444", TLSConfig{}, "https://[fd00::1]:444", "[fd00::1]:444")
	f("unix:/run/app.sock", TLSConfig{Enabled: true, ServerName: "a"}, "tls+unix:/run/app.sock (a)", "unix:/run/app.sock")
}

// listening has an address.
type listening struct{ net.Listener }

func (listening) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 1} }

func TestFailedHandshakesAreNamed(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if got := shakeNames[resultOf(fmt.Errorf("somewhere: %w", err))]; got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	verify := func(err error) error { return &tls.CertificateVerificationError{Err: err} }
	f(verify(x509.HostnameError{Certificate: &x509.Certificate{}, Host: "a"}), "wrong_name")
	f(verify(x509.UnknownAuthorityError{}), "unknown_authority")
	f(verify(x509.CertificateInvalidError{Reason: x509.Expired}), "expired")
	f(verify(x509.CertificateInvalidError{Reason: x509.IncompatibleUsage}), "bad_certificate")
	f(verify(errors.New("else")), "bad_certificate")
	f(&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, "refused")
	f(ErrHandshakeBusy, "busy")
	f(ErrHandshakeTimeout, "timeout")
	f(context.DeadlineExceeded, "timeout")
	f(os.ErrDeadlineExceeded, "timeout")
	f(io.EOF, "closed")
	f(&net.OpError{Op: "read", Err: syscall.ECONNRESET}, "closed")
	f(errors.New("tls: first record does not look like a TLS handshake"), "protocol")
}
