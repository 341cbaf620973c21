package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// TLSConfig is how peers are spoken to over TLS. What is offered (ALPN) follows from protocol.
// The zero value verifies a peer's certificate for the host of its address, with
// the system's authorities.
type TLSConfig struct {
	// Enabled speaks TLS to every peer. False: to those whose address starts with
	// https://.
	Enabled bool `json:"enabled"`
	// CAFiles are PEM files with the authorities that may issue certificates of peers. Empty
	// means the system's.
	CAFiles []string `json:"ca_files"`
	// ServerName is the name that peers are requested (SNI) and that their
	// certificates must be for. Empty means the host of each peer's address. With srv
	// it must be said, since the records do not say securely whose certificate to
	// expect: "$target" takes the name in the record all the same.
	ServerName string `json:"server_name"`
	// CertFile is a PEM file with the certificate that is shown to peers who request
	// one, then its intermediates. Empty: none is shown.
	CertFile string `json:"cert_file"`
	// KeyFile is a PEM file with the private key. Empty: it is in cert_file.
	KeyFile string `json:"key_file"`
	// MinVersion is "1.2" or "1.3"; empty means 1.2.
	MinVersion string `json:"min_version"`
	// Verify checks the certificates of peers. False accepts any, also an attacker's, with
	// a warning at every start.
	Verify setting.Switch `json:"verify"`
	// Sessions resumes TLS sessions. False: every handshake is a full one.
	Sessions setting.Switch `json:"sessions"`
	// GM speaks the Chinese national standards to every peer of the cluster.
	GM GMClientConfig `json:"gm"`
}

// fromTarget is the ServerName that is replaced by what an SRV record says.
const fromTarget = "$target"

// set reports whether c says anything.
func (c *TLSConfig) set() bool {
	return c.Enabled || len(c.CAFiles) > 0 || c.ServerName != "" || c.CertFile != "" || c.KeyFile != "" || c.MinVersion != "" ||
		!c.Verify.On() || !c.Sessions.On() || c.GM != GMClientConfig{}
}

// speaksTLS reports whether any peer is spoken to over TLS.
func (c *Config) speaksTLS() bool {
	if c.TLS.Enabled {
		return true
	}
	for _, p := range c.Peers {
		if strings.HasPrefix(p.Address, "https://") {
			return true
		}
	}
	return false
}

func (c *Config) validateTLS(p *problems) {
	t := &c.TLS
	p.check(t.MinVersion == "" || t.MinVersion == "1.2" || t.MinVersion == "1.3", "tls.min_version: %.40q is neither 1.2 nor 1.3", t.MinVersion)
	p.check(t.KeyFile == "" || t.CertFile != "", "tls.key_file: there is no cert_file")
	for i, f := range t.CAFiles {
		p.check(f != "", "tls.ca_files[%d]: is empty", i)
	}
	t.validateGM(p)
	p.check(t.Verify.On() || len(t.CAFiles) == 0, "tls.verify: false verifies nothing, so leave ca_files out")
	if !c.speaksTLS() {
		p.check(!t.set(), "tls: no peer is spoken to over TLS; write enabled: true, or https:// before addresses")
		return
	}
	switch t.ServerName {
	case "", fromTarget:
	default:
		if net.ParseIP(t.ServerName) == nil {
			if err := checkHost(t.ServerName); err != nil {
				p.add("tls.server_name: %v", err)
			}
		}
	}
	p.check(t.ServerName != fromTarget || c.SRV != "", "tls.server_name: %s is for srv", fromTarget)
	p.check(t.ServerName != "" || c.SRV == "" || !t.Verify.On(),
		"tls.server_name: say whose certificate to expect, as SRV records do not say it securely; %s takes the names in them all the same", fromTarget)
	for _, peer := range c.Peers {
		if t.ServerName == "" && t.Verify.On() && strings.HasPrefix(peer.Address, "unix:") {
			p.add("tls.server_name: %s has no host name to verify; write one", peer.Address)
			return
		}
	}
}

// A TLS is a cluster's TLSConfig with its files read. Immutable: another one is
// another set of keys and authorities, and what was connected under the old is not
// used any more.
type TLS struct {
	cfg    TLSConfig
	digest [32]byte
	base   *tls.Config
	gm     *gm.ClientConfig // nil: crypto/tls does the handshakes
}

// load reads the files.
func (c TLSConfig) load() (*TLS, error) {
	t := &TLS{cfg: c, digest: c.filesDigest(), base: &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, InsecureSkipVerify: !c.Verify.On(), //nolint:gosec // asked for, and warned of
	}}
	if c.MinVersion == "1.3" {
		t.base.MinVersion = tls.VersionTLS13
	}
	if c.GM.Protocol != "" {
		return t, t.loadGM()
	}
	if c.Sessions.On() {
		t.base.ClientSessionCache = tls.NewLRUClientSessionCache(maxSessions)
	}
	for i, f := range c.CAFiles {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_files[%d]: %w", i, err)
		}
		if t.base.RootCAs == nil {
			t.base.RootCAs = x509.NewCertPool()
		}
		if !t.base.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("tls.ca_files[%d]: %s: no certificate in it", i, f)
		}
	}
	if c.CertFile == "" {
		return t, nil
	}
	certPEM, err := os.ReadFile(c.CertFile)
	if err != nil {
		return nil, fmt.Errorf("tls.cert_file: %w", err)
	}
	keyPEM := certPEM
	if c.KeyFile != "" {
		if keyPEM, err = os.ReadFile(c.KeyFile); err != nil {
			return nil, fmt.Errorf("tls.key_file: %w", err)
		}
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("tls.cert_file: %s: %w", c.CertFile, err)
	}
	t.base.Certificates = []tls.Certificate{pair}
	return t, nil
}

// maxSessions bounds the sessions that a cluster's peers may be resumed with.
const maxSessions = 1024

// filesDigest changes when a file has changed. One that cannot be read counts as
// empty: reading it for use will say why.
func (c *TLSConfig) filesDigest() (sum [32]byte) {
	h := sha256.New()
	for _, name := range slices.Concat([]string{c.CertFile, c.KeyFile}, c.CAFiles, c.GM.files()) {
		if name == "" {
			continue
		}
		if b, err := os.ReadFile(name); err == nil {
			_, _ = h.Write(b)
		}
		_, _ = io.WriteString(h, "\x00")
	}
	h.Sum(sum[:0])
	return sum
}

// same reports whether t is what c and its files say now.
func (t *TLS) same(c *TLSConfig) bool {
	if t == nil || len(t.cfg.CAFiles) != len(c.CAFiles) {
		return false
	}
	for i, f := range t.cfg.CAFiles {
		if f != c.CAFiles[i] {
			return false
		}
	}
	a, b := t.cfg, *c
	return a.ServerName == b.ServerName && a.CertFile == b.CertFile && a.KeyFile == b.KeyFile && a.MinVersion == b.MinVersion &&
		a.Verify == b.Verify && a.Sessions == b.Sessions && a.GM == b.GM && t.digest == c.filesDigest()
}

// Config returns what a handshake with the peer at a goes by; it is the caller's.
// Its session cache is the cluster's, and goes by names: peers behind one name that
// do not share their keys want a place of their own.
func (t *TLS) Config(a Address) *tls.Config {
	cfg := t.base.Clone()
	cfg.ServerName = a.Server
	return cfg
}

// expires returns when the client certificate ends; the zero Time without one.
func (t *TLS) expires() time.Time {
	if t.gm != nil && t.gm.Pair != nil {
		return t.gm.Pair.Expires()
	}
	if len(t.base.Certificates) == 0 || t.base.Certificates[0].Leaf == nil {
		return time.Time{}
	}
	return t.base.Certificates[0].Leaf.NotAfter
}

// ErrHandshakeTimeout reports that a handshake was not over in time.
var ErrHandshakeTimeout = errors.New("the TLS handshake took too long")

// ErrHandshakeBusy reports that too many handshakes wait.
var ErrHandshakeBusy = errors.New("too many TLS handshakes wait")

// A shakeResult is how a handshake ended, for counters.
type shakeResult uint8

const (
	shookFull shakeResult = iota
	shookResumed
	shakeName
	shakeAuthority
	shakeExpired
	shakeCertificate
	shakeRefused
	shakeClosed
	shakeTimeout
	shakeBusy
	shakeProtocol
	shakeResults
)

var shakeNames = [shakeResults]string{"full", "resumed", "wrong_name", "unknown_authority", "expired", "bad_certificate", "refused", "closed",
	"timeout", "busy", "protocol"}

// resultOf names what went wrong in a handshake.
func resultOf(err error) shakeResult {
	var t interface{ Timeout() bool }
	if kind, ok := resultOfGM(err); ok {
		return kind
	}
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case is[x509.HostnameError](err):
		return shakeName
	case is[x509.UnknownAuthorityError](err), is[x509.SystemRootsError](err):
		return shakeAuthority
	case isInvalid && invalid.Reason == x509.Expired:
		return shakeExpired
	case isInvalid, is[*tls.CertificateVerificationError](err):
		return shakeCertificate
	case isOp && op.Op == "remote error": // crypto/tls says so of an alert
		return shakeRefused
	case errors.Is(err, ErrHandshakeBusy):
		return shakeBusy
	case errors.Is(err, ErrHandshakeTimeout), errors.Is(err, context.DeadlineExceeded), errors.As(err, &t) && t.Timeout():
		return shakeTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return shakeClosed
	}
	return shakeProtocol
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// shakes counts a cluster's handshakes. Any goroutine.
type shakes struct {
	results  [shakeResults]atomic.Uint64
	reported atomic.Int64 // when a failure was last logged
}

const shakeLogEvery = 10 * time.Second

// Shook counts a handshake with p that came to its end.
func (c *Cluster) Shook(p *Peer, resumed bool) {
	if resumed {
		c.shakes.results[shookResumed].Add(1)
	} else {
		c.shakes.results[shookFull].Add(1)
	}
	if p.shakeErr.Load() != nil {
		p.shakeErr.Store(nil)
	}
}

// ShakeFailed counts a handshake with p that failed, keeps why for anyone who looks at the
// peer, and logs it now and then.
func (c *Cluster) ShakeFailed(p *Peer, err error, now int64) {
	c.shakes.results[resultOf(err)].Add(1)
	text := err.Error()
	p.shakeErr.Store(&text)
	last := c.shakes.reported.Load()
	if (last == 0 || now-last >= int64(shakeLogEvery)) && c.shakes.reported.CompareAndSwap(last, max(now, 1)) {
		c.log.Warn("TLS handshake with a peer failed", "cluster", c.name, "peer", p.address.String(), "err", err)
	}
}

// ClientAlert reports whether an alert ends a handshake that its sender has not
// taken for complete: a TLS 1.3 client is done before the server has looked at its
// certificate (RFC 8446 §4.4.2.4), and nothing that it said was treated as a request.
func ClientAlert(alert uint8) bool {
	switch alert {
	case 40, 42, 43, 44, 45, 46, 48, 49, 116: // handshake_failure, the certificate's, unknown_ca, access_denied, certificate_required
		return true
	}
	return false
}

// TLS returns how c's peers are spoken to over TLS; nil: none is.
func (c *Cluster) TLS() *TLS { return c.view.Load().tls }

// shelve reads the files of clusters, by name. What has not changed stays the same.
// The caller does not hold mu.
func (s *Set) shelve(clusters []Config) (map[string]*TLS, error) {
	found := map[string]*TLS{}
	var errs []error
	for i := range clusters {
		cfg := &clusters[i]
		if !cfg.speaksTLS() {
			continue
		}
		if c := s.Cluster(cfg.Name); c != nil {
			if t := c.TLS(); t.same(&cfg.TLS) {
				found[cfg.Name] = t
				continue
			}
		}
		t, err := cfg.TLS.load()
		if err != nil {
			errs = append(errs, fmt.Errorf("cluster %q: %w", cfg.Name, err))
			continue
		}
		s.warn(cfg.Name, t)
		found[cfg.Name] = t
	}
	return found, errors.Join(errs...)
}

// warn logs what is to be known of t before it is used.
func (s *Set) warn(cluster string, t *TLS) {
	if !t.cfg.Verify.On() {
		s.opts.Log.Warn("certificates of upstreams are not verified: anyone between can read and change what is sent", "cluster", cluster)
	}
	if end := t.expires(); !end.IsZero() && time.Now().After(end) {
		s.opts.Log.Warn("the client certificate for upstreams has expired", "cluster", cluster, "expired", end.Format(time.RFC3339))
	}
}

// renewEvery is how many times housekeeping comes before files are looked at.
const renewEvery = 5

// renew puts certificates in service whose files have changed. What cannot be used
// changes nothing, and is logged once.
func (s *Set) renew() {
	for name, c := range s.current.Load().clusters {
		t := c.TLS()
		if t == nil {
			continue
		}
		digest := t.cfg.filesDigest()
		if digest == t.digest || bytes.Equal(digest[:], c.shelved[:]) {
			continue
		}
		c.shelved = digest
		next, err := t.cfg.load()
		if err != nil {
			s.opts.Log.Error("certificates for upstreams stay as they were", "cluster", name, "err", err)
			continue
		}
		s.warn(name, next)
		s.mu.Lock()
		if c.members.tls == t && s.current.Load().clusters[name] == c {
			c.members.tls = next
			s.rebuild(c)
			s.tend(c)
			s.opts.Log.Info("certificates for upstreams reloaded", "cluster", name)
		}
		s.mu.Unlock()
	}
}
