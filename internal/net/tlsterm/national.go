package tlsterm

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/emmansun/gmsm/smx509"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// National cryptography (TLCP, RFC 8998) beside modern TLS: the handshakes are package
// gm's, the records those of records.go.

// GMConfig are the certificates for TLCP (GB/T 38636) and RFC 8998. The zero value
// serves neither.
type GMConfig struct {
	// Certificates are pairs on curve SM2, selected by the requested server name: the
	// exact name, then a wildcard, else the first. `weir cert gm` makes one for tests.
	// Empty: neither TLCP nor RFC 8998 is served.
	Certificates []GMCertificate `json:"certificates"`
	// ClientCAFiles are PEM files with the authorities of client certificates on curve SM2.
	// Required unless client_auth is none. ECDHE suites of TLCP need client_auth: require.
	ClientCAFiles []string `json:"client_ca_files"`
	// CBC accepts the CBC suites of TLCP, for clients without GCM. They cost about four
	// times the CPU of GCM.
	CBC setting.Switch `json:"cbc"`
}

// A GMCertificate names the files of a pair: one certificate signs, the other encrypts.
type GMCertificate struct {
	// SignCertFile is a PEM file: the signing certificate, then its intermediates. Its key
	// usage is digitalSignature. RFC 8998 uses it alone.
	SignCertFile string `json:"sign_cert_file"`
	// SignKeyFile is a PEM file with its private key.
	SignKeyFile string `json:"sign_key_file"`
	// EncCertFile is a PEM file: the encryption certificate, then its intermediates. Its key
	// usage is keyEncipherment, dataEncipherment or keyAgreement.
	EncCertFile string `json:"enc_cert_file"`
	// EncKeyFile is a PEM file with its private key.
	EncKeyFile string `json:"enc_key_file"`
	// OCSPFile is an OCSP response in DER for the signing certificate, stapled for clients
	// of RFC 8998 that request it. Whatever keeps it fresh replaces the file. Empty: none.
	OCSPFile string `json:"ocsp_file"`
}

// Enabled reports whether national cryptography is served.
func (c GMConfig) Enabled() bool { return len(c.Certificates) > 0 }

// files are all that is named, for changes.
func (c GMConfig) files() (list []string) {
	for _, p := range c.Certificates {
		list = append(list, p.SignCertFile, p.SignKeyFile, p.EncCertFile, p.EncKeyFile, p.OCSPFile)
	}
	return append(list, c.ClientCAFiles...)
}

func (c Config) validateGM() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, p := range c.GM.Certificates {
		for _, f := range []struct{ key, name string }{
			{"sign_cert_file", p.SignCertFile}, {"sign_key_file", p.SignKeyFile}, {"enc_cert_file", p.EncCertFile}, {"enc_key_file", p.EncKeyFile},
		} {
			if f.name == "" {
				bad("gm.certificates[%d].%s: is empty: a pair needs a signing and an encryption certificate with their keys", i, f.key)
			}
		}
	}
	switch {
	case !c.GM.Enabled() && len(c.GM.ClientCAFiles) > 0:
		bad("gm.client_ca_files: gm.certificates is empty")
	case c.GM.Enabled() && c.ClientAuth != ClientAuthNone && len(c.GM.ClientCAFiles) == 0:
		bad("gm.client_ca_files: client_auth %s needs an authority on curve SM2 to verify with", c.ClientAuth)
	case (len(c.Certificates) > 0 || c.ACME.Enabled()) && c.ClientAuth != ClientAuthNone && len(c.ClientCAFiles) == 0 && c.GM.Enabled():
		bad("client_ca_files: client_auth %s needs an authority to verify with", c.ClientAuth)
	}
	return errs
}

// gmSessions bounds the TLCP sessions that are kept for clients without tickets.
const gmSessions = 4096

// loadGM makes s serve national cryptography, if it is configured.
func (s *service) loadGM(cfg *Config, protocols []string, trust *clientTrust) error {
	if !cfg.GM.Enabled() {
		return nil
	}
	shelf, err := loadGMShelf(cfg.GM.Certificates)
	if err != nil {
		return err
	}
	s.gm = &gm.ServerConfig{
		Pick: shelf.pick, Protocols: protocols, NoCBC: !cfg.GM.CBC.On(), Sessions: gm.NewSessionCache(gmSessions),
		TicketLifetime: time.Duration(cfg.TicketRotation) * keptTicketKeys,
	}
	digest := sha256.New()
	if cfg.ClientAuth != ClientAuthNone {
		for _, ca := range trust.gmCAs {
			digest.Write(ca.Raw)
		}
		s.gm.ClientCAs, s.gm.ClientAuth = trust.gm, gm.RequestClientCert
		if cfg.ClientAuth == ClientAuthRequire {
			s.gm.ClientAuth = gm.RequireClientCert
		}
	}
	s.gmScope = "gm " + cfg.ClientAuth + " " + hex.EncodeToString(digest.Sum(nil))
	if cfg.Tickets.On() {
		s.gm.TicketKeys = func() [][32]byte { return *s.gmKeys.Load() }
	} else {
		s.gm.Sessions = nil
	}
	if r := s.revoked; r != nil {
		s.gm.VerifyClient = func(found [][]*smx509.Certificate) error {
			chains := gm.X509Chains(found)
			return r.verify(tls.ConnectionState{PeerCertificates: chains[0], VerifiedChains: chains}, time.Now())
		}
	}
	return nil
}

// A gmShelf is a set of pairs, arranged by the names they are for. Immutable.
type gmShelf struct {
	first  *gm.Pair
	byName map[string]*gm.Pair
}

func loadGMShelf(files []GMCertificate) (*gmShelf, error) {
	s := &gmShelf{byName: map[string]*gm.Pair{}}
	var errs []error
	for i, f := range files {
		p, err := gm.LoadPair(gm.PairFiles{
			SignCert: f.SignCertFile, SignKey: f.SignKeyFile, EncCert: f.EncCertFile, EncKey: f.EncKeyFile, OCSP: f.OCSPFile,
		}, time.Now())
		if err != nil {
			errs = append(errs, fmt.Errorf("gm.certificates[%d]: %w", i, err))
			continue
		}
		if s.first == nil {
			s.first = p
		}
		for _, name := range p.Sign.DNSNames {
			if name = strings.ToLower(name); s.byName[name] == nil {
				s.byName[name] = p
			}
		}
	}
	return s, errors.Join(errs...)
}

// pick is shelf.pick for pairs.
func (s *gmShelf) pick(name string) *gm.Pair {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if p := s.byName[name]; p != nil {
		return p
	}
	if _, parent, ok := strings.Cut(name, "."); ok {
		if p := s.byName["*."+parent]; p != nil {
			return p
		}
	}
	return s.first
}

// helloMessage returns the ClientHello at the front of b, which helloReader has seen whole.
func helloMessage(b []byte) (msg []byte) {
	for len(b) >= headerLen {
		n := min(headerLen+(int(b[3])<<8|int(b[4])), len(b))
		msg = append(msg, b[headerLen:n]...)
		b = b[n:]
		if len(msg) >= 4 {
			if size := 4 + (int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])); len(msg) >= size {
				return msg[:size]
			}
		}
	}
	return nil
}

// shakeGM is shake with TLCP or RFC 8998.
func (h *handshake) shakeGM(x *exchange, cfg *gm.ServerConfig, version uint16) *result {
	s, err := gm.Server(x, cfg, version)
	if err != nil {
		return &result{err: err}
	}
	r := gmRecords(h.loopState, s)
	state := gmState(s.Protocol, s.Peer, s.Chains)
	r.peer = newPeer(&state)
	return &result{
		records: r, chains: state.VerifiedChains, resumed: s.Resumed,
		established: established{version: s.Version, suite: s.Suite.ID, group: s.Suite.Group(s.Resumed)},
	}
}

// shakeGM is shake with TLCP or RFC 8998.
func (s *Shake) shakeGM(cfg *gm.ClientConfig) *result {
	state, err := gm.Client(s.x, cfg)
	if err != nil {
		return &result{err: err}
	}
	r := gmRecords(s.loopState, state)
	r.dialed = &dialed{gm: state.Tickets}
	return &result{records: r, resumed: state.Resumed, protocol: state.Protocol}
}

// gmState is what the rest of the package knows of a handshake.
func gmState(protocol string, peer []*smx509.Certificate, chains [][]*smx509.Certificate) tls.ConnectionState {
	state := tls.ConnectionState{NegotiatedProtocol: protocol, VerifiedChains: gm.X509Chains(chains)}
	for _, c := range peer {
		state.PeerCertificates = append(state.PeerCertificates, gm.X509(c))
	}
	return state
}

// verifyGMAgain is verifyAgain for a client of national cryptography.
func (s *service) verifyGMAgain(state *tls.ConnectionState, sent [][]byte) error {
	if s.gm == nil || s.gm.ClientCAs == nil {
		return errors.New("tls: the client has a certificate on curve SM2, and no authorities for it are configured here")
	}
	peer, chains, err := s.gm.Readmit(state.Version, sent)
	if err != nil {
		return fmt.Errorf("tls: the client's certificate: %w", err)
	}
	*state = gmState(state.NegotiatedProtocol, peer, chains)
	if s.revoked.revokes(state.VerifiedChains) {
		return errClientRevoked
	}
	return nil
}

// gmRecords is the record layer that continues from a handshake of package gm.
func gmRecords(l *loopState, s *gm.State) *records {
	r := &records{loopState: l, suite: suiteOf(s.Version, s.Suite.ID)}
	for _, d := range []struct {
		h *half
		k *gm.Keys
	}{{&r.in, &s.In}, {&r.out, &s.Out}} {
		copy(d.h.key[:], d.k.Key)
		copy(d.h.iv[:], d.k.IV)
		copy(d.h.secret[:], d.k.Secret)
		copy(d.h.secret[:], d.k.MAC)
		d.h.seq = d.k.Seq
	}
	s.Wipe()
	return r
}
