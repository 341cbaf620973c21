package tlsterm

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// QUICConfig returns a configuration for handshakes of QUIC (RFC 9001), which are done
// elsewhere. Each gets what is in service then: certificates, staples, ticket keys, client
// authorities and revocation lists. protocols are what ALPN must agree on.
func (t *Terminator) QUICConfig(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cfg := t.current.Load().config.Clone()
			cfg.MinVersion, cfg.MaxVersion, cfg.NextProtos = tls.VersionTLS13, tls.VersionTLS13, protocols
			return cfg, nil
		},
	}
}

// Established makes c, whose handshake was done elsewhere, one whose PeerOf is known. It is
// counted as the others are, and closed when its client's certificate is revoked. For c's
// loop, after SetHandler.
func (t *Terminator) Established(c *eventloop.Conn, state *tls.ConnectionState) {
	if state.DidResume {
		t.counters.resumed.Add(1)
	} else {
		t.counters.full.Add(1)
	}
	t.tally.add(established{version: state.Version, suite: state.CipherSuite, group: groupName(state.CurveID)})
	c.SetFilter(&outside{peer: newPeer(state), forget: t.certify(c, state.VerifiedChains)}, nil)
}

// FailedElsewhere counts a handshake of QUIC that came to nothing. Any goroutine.
func (t *Terminator) FailedElsewhere() { t.counters.failed.Add(1) }

// SharedKey derives a key for purpose that is the same on all nodes and in the next process.
// Without a configured ticket secret there is none.
func (t *Terminator) SharedKey(purpose string) (key [32]byte, ok bool) {
	secret, err := t.cfg.ticketSecret()
	if err != nil || len(secret) == 0 {
		return key, false
	}
	k, err := hkdf.Key(sha256.New, secret, nil, "weir "+purpose, len(key))
	if err != nil {
		panic("hkdf: " + err.Error()) // only for a length no hash can give
	}
	return [32]byte(k), true
}

// outside is the filter of a connection whose bytes something else protects: it says that
// there is TLS, and changes nothing.
type outside struct {
	peer   *Peer
	forget func() // nil: nothing watches the certificate
}

var _ eventloop.Filter = (*outside)(nil)

// Open implements eventloop.Filter.
func (*outside) Open(b []byte) (plain, reply []byte, err error) { return b, nil, nil }

// Seal implements eventloop.Filter.
func (*outside) Seal(dst, b []byte) []byte { return append(dst, b...) }

// Close implements eventloop.Filter.
func (*outside) Close(dst []byte) []byte { return dst }

// Release implements eventloop.Filter.
func (o *outside) Release() {
	if o.forget != nil {
		o.forget()
	}
}
