package gm

import (
	"crypto/rand"
	"crypto/subtle"

	"github.com/emmansun/gmsm/smx509"
	"golang.org/x/crypto/cryptobyte"
)

// A party is one side of a handshake: what the four state machines have in common.
type party struct {
	*conn
	hello    clientHello
	suite    *Suite
	protocol string
	peer     []*smx509.Certificate
	chains   [][]*smx509.Certificate
}

// run runs the steps of a handshake in their order.
func run(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// state is the finished handshake.
func (p *party) state(serverName string, resumed bool) *State {
	return &State{
		Version: p.suite.Version, Suite: p.suite, In: p.in.keys, Out: p.out.keys, Resumed: resumed, Protocol: p.protocol,
		ServerName: serverName, Peer: p.peer, Chains: p.chains,
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// readFinished reads the Finished of a side, which ends its record.
func (p *party) readFinished(side string, want []byte) error {
	msg, err := p.read(msgFinished)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(bodyOf(msg), want) != 1 {
		return fail(alertDecryptError, "the %s's Finished does not verify", side)
	}
	return p.boundary()
}

// readCertificates reads the peer's Certificate message.
func (p *party) readCertificates() error {
	msg, err := p.read(msgCertificate)
	if err != nil {
		return err
	}
	if p.suite.Version == VersionTLCP {
		p.peer, err = parseCertificateList(msg)
	} else {
		p.peer, err = parseCertificateEntries(msg)
	}
	return err
}

// parseCertificates reads the certificates of a list, of which next reads one.
func parseCertificates(list cryptobyte.String, malformed error, next func(s *cryptobyte.String, der *[]byte) bool) (certs []*smx509.Certificate, err error) {
	for !list.Empty() {
		var der []byte
		if !next(&list, &der) || len(certs) >= maxCerts {
			return nil, malformed
		}
		c, err := smx509.ParseCertificate(der)
		if err != nil {
			return nil, failWith(alertBadCertificate, err, "a certificate that cannot be parsed")
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// readClientCertificates reads a client's certificates, if the server demands them. missing is
// the alert for a client that has none and must.
func (p *party) readClientCertificates(cfg *ServerConfig, missing uint8) error {
	if cfg.ClientAuth == NoClientCert {
		return nil
	}
	if err := p.readCertificates(); err != nil {
		return err
	}
	if len(p.peer) == 0 {
		if cfg.ClientAuth == RequireClientCert {
			return fail(missing, "the client presents no certificate")
		}
		return nil
	}
	var err error
	p.chains, err = cfg.admitClient(p.suite.Version, p.peer)
	return err
}

// admitResumed verifies a session's client again.
func (p *party) admitResumed(cfg *ServerConfig, s *session) bool {
	if len(s.peer) == 0 {
		return cfg.ClientAuth != RequireClientCert
	}
	if cfg.ClientAuth == NoClientCert {
		return false
	}
	chains, err := cfg.admitClient(s.version, s.peer)
	if err != nil {
		return false
	}
	p.peer, p.chains = s.peer, chains
	return true
}
