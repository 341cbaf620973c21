package upstream

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/emmansun/gmsm/smx509"

	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// GMClientConfig is how peers are spoken to with the Chinese national standards, instead of
// crypto/tls. The zero value does not use them.
type GMClientConfig struct {
	// Protocol is "tlcp" (GB/T 38636) or "tls13" (RFC 8998). There is no fallback from one
	// to the other, nor to other suites. Empty: neither.
	Protocol string `json:"protocol"`
	// SignCertFile is a PEM file with the signing certificate that is presented to peers
	// that demand one, then its intermediates. Empty: none is presented.
	SignCertFile string `json:"sign_cert_file"`
	// SignKeyFile is a PEM file with its private key.
	SignKeyFile string `json:"sign_key_file"`
	// EncCertFile is a PEM file with the encryption certificate. The ECDHE suites of TLCP
	// are offered only with it.
	EncCertFile string `json:"enc_cert_file"`
	// EncKeyFile is a PEM file with its private key.
	EncKeyFile string `json:"enc_key_file"`
	// CBC offers the CBC suites of TLCP too, behind those with GCM. Needed for peers
	// without GCM alone.
	CBC bool `json:"cbc"`
}

func (c *GMClientConfig) files() []string {
	return []string{c.SignCertFile, c.SignKeyFile, c.EncCertFile, c.EncKeyFile}
}

func (t *TLSConfig) validateGM(p *problems) {
	c := &t.GM
	p.check(c.Protocol == "" || c.Protocol == "tlcp" || c.Protocol == "tls13", "tls.gm.protocol: %.40q is neither tlcp nor tls13", c.Protocol)
	given := 0
	for _, f := range c.files() {
		if f != "" {
			given++
		}
	}
	if c.Protocol == "" {
		p.check(given == 0 && !c.CBC, "tls.gm: protocol is empty: write tlcp or tls13")
		return
	}
	p.check(given == 0 || given == 4, "tls.gm: a pair needs sign_cert_file, sign_key_file, enc_cert_file and enc_key_file: %d of them are set", given)
	p.check(t.CertFile == "", "tls.cert_file: with tls.gm.protocol the client certificate is tls.gm.sign_cert_file")
	p.check(t.MinVersion == "", "tls.min_version: tls.gm.protocol is the only version")
	p.check(!t.Verify.On() || len(t.CAFiles) > 0, "tls.ca_files: is empty: with tls.gm.protocol write the authorities on curve SM2, as systems have none")
	p.check(!c.CBC || c.Protocol == "tlcp", "tls.gm.cbc: is for tlcp")
}

// loadGM reads the files of t for national cryptography.
func (t *TLS) loadGM() error {
	c := &t.cfg
	cfg := &gm.ClientConfig{Version: gm.VersionTLCP, InsecureSkipVerify: !c.Verify.On(), Protocols: []string{"http/1.1"}}
	if c.GM.Protocol == "tls13" {
		cfg.Version = gm.VersionTLS13
	}
	if len(c.CAFiles) > 0 {
		pool, _, err := gm.LoadPool(c.CAFiles)
		if err != nil {
			return fmt.Errorf("tls.ca_files: %w", err)
		}
		cfg.RootCAs = pool
	}
	if c.GM.SignCertFile != "" {
		pair, err := gm.LoadPair(gm.PairFiles{
			SignCert: c.GM.SignCertFile, SignKey: c.GM.SignKeyFile, EncCert: c.GM.EncCertFile, EncKey: c.GM.EncKeyFile,
		}, time.Now())
		if err != nil {
			return fmt.Errorf("tls.gm: %w", err)
		}
		cfg.Pair = pair
	}
	cfg.Suites = gm.Offer(cfg.Version, cfg.Pair != nil, c.GM.CBC)
	if c.Sessions.On() {
		cfg.Sessions = gm.NewClientSessions(maxSessions)
	}
	t.gm = cfg
	return nil
}

// GM returns what a handshake with the peer at a goes by with national cryptography, and nil
// where crypto/tls does it; it is the caller's. protocols are what ALPN offers.
func (t *TLS) GM(a Address, protocols ...string) *gm.ClientConfig {
	if t.gm == nil {
		return nil
	}
	cfg := *t.gm
	cfg.ServerName, cfg.SessionKey, cfg.Protocols = a.Server, a.String(), protocols
	return &cfg
}

// checkGM is the handshake of a health check, a full one.
func (t *TLS) checkGM(conn net.Conn, a Address, protocol string) (net.Conn, error) {
	cfg := t.GM(a, protocol)
	cfg.Sessions = nil
	return gm.DialStream(conn, cfg)
}

// resultOfGM is resultOf for handshakes of package gm.
func resultOfGM(err error) (shakeResult, bool) {
	if is[gm.PeerAlert](err) {
		return shakeRefused, true
	}
	if !is[*gm.Error](err) {
		return 0, false
	}
	invalid, isInvalid := errors.AsType[smx509.CertificateInvalidError](err)
	switch {
	case is[smx509.HostnameError](err):
		return shakeName, true
	case is[smx509.UnknownAuthorityError](err), is[smx509.SystemRootsError](err):
		return shakeAuthority, true
	case isInvalid && invalid.Reason == smx509.Expired:
		return shakeExpired, true
	case gm.IsCertificateError(err):
		return shakeCertificate, true
	}
	return shakeProtocol, true
}
