package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/test/judge"
)

// A pebble is an ACME server, with a DNS server that resolves every name to 127.0.0.1.
type pebble struct {
	t         *testing.T
	directory string // its URL
	authority string // the file with the authority of its own certificate
	manage    string // its management listener's URL
	client    *http.Client
	log       string
}

// options of a pebble.
type options struct {
	http, tls string        // addresses that validation requests are sent to
	validity  time.Duration // of certificates
	ocsp      string        // URL of the OCSP responder in certificates; empty: none
}

const module, commands = "test/certificates/pebble", "github.com/letsencrypt/pebble/v2/cmd/"

func newPebble(t *testing.T, o options) *pebble {
	t.Helper()
	dir := t.TempDir()
	cert, key := judge.Certificate(t, dir)
	listen, manage, dns, unused := judge.FreeAddr(t), judge.FreeAddr(t), judge.FreeAddr(t), judge.FreeAddr(t)
	p := &pebble{t: t, directory: "https://" + listen + "/dir", authority: cert, manage: "https://" + manage, log: filepath.Join(dir, "pebble.log")}
	p.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: judge.Trust(t, cert), DisableKeepAlives: true}}
	algorithm := "ecdsa"
	if o.ocsp != "" {
		algorithm = "rsa" // the only one whose key Pebble shows
	}
	text, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": listen, "managementListenAddress": manage, "certificate": cert, "privateKey": key,
		"httpPort": port(t, o.http), "tlsPort": port(t, o.tls), "ocspResponderURL": o.ocsp, "keyAlgorithm": algorithm,
		"profiles": map[string]any{"default": map[string]any{"description": "for tests", "validityPeriod": int(o.validity.Seconds())}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "pebble.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.run(judge.Tool(t, module, commands+"pebble-challtestsrv"),
		"-dnsserver", dns, "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-management", unused, "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "")
	p.run(judge.Tool(t, module, commands+"pebble"), "-config", file, "-strict", "-dnsserver", dns)
	judge.Eventually(t, 30*time.Second, "pebble serves", func() bool { return p.get(p.directory) != nil && resolves(dns) })
	return p
}

// run runs a command until the end of the test.
func (p *pebble) run(command string, arg ...string) {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(command, arg...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PEBBLE_WFE_NONCEREJECT=25", "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if p.t.Failed() {
			text, _ := os.ReadFile(p.log)
			p.t.Logf("pebble: %s", text[max(0, len(text)-4000):])
		}
	})
}

// get returns what url answers with 200, or nil.
func (p *pebble) get(url string) []byte {
	res, err := p.client.Get(url)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return nil
	}
	return b
}

// roots are what clients of weir trust.
func (p *pebble) roots() *x509.CertPool {
	p.t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(p.get(p.manage + "/roots/0")) {
		p.t.Fatal("pebble has no root")
	}
	return pool
}

// block returns the DER of a PEM file of the management listener.
func (p *pebble) block(path string) []byte {
	p.t.Helper()
	b, _ := pem.Decode(p.get(p.manage + path))
	if b == nil {
		p.t.Fatalf("pebble has no %s", path)
	}
	return b.Bytes
}

// config is the section tls.acme for certificates of names from p.
func (p *pebble) config(names []string, more map[string]any) map[string]any {
	acme := map[string]any{
		"names": names, "accept_terms": true, "email": "ops@weir.test", "directory": p.directory, "directory_ca_file": p.authority,
		"retry_min": "200ms", "retry_max": "1s",
	}
	for k, v := range more {
		acme[k] = v
	}
	return map[string]any{"tls": map[string]any{"acme": acme}}
}

// resolves reports whether there is a DNS server on addr.
func resolves(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

func port(t *testing.T, addr string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

// leafOf returns the certificate that addr shows for name; nil: none that roots lead to.
func leafOf(addr, name string, roots *x509.CertPool) *x509.Certificate {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", addr, &tls.Config{RootCAs: roots, ServerName: name})
	if err != nil {
		return nil
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0]
}
