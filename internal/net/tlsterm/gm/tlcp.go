package gm

import (
	"slices"
	"time"

	"github.com/emmansun/gmsm/smx509"
	"golang.org/x/crypto/cryptobyte"
)

// A tlcpParty is one side of a handshake of TLCP.
type tlcpParty struct {
	party
	random         []byte // the server's
	master         []byte
	client, server Keys
}

func (h *tlcpParty) deriveKeys() {
	h.client, h.server = tlcpKeys(h.suite, h.master, h.hello.random, h.random)
}

// sendFinished sends the Finished of this side behind ChangeCipherSpec; k are its keys.
func (h *tlcpParty) sendFinished(side string, k Keys) error {
	h.writeChange()
	h.out.set(h.suite, k)
	h.write(finishedMessage(tlcpFinished(h.master, side+" finished", h.transcript())))
	return nil
}

// readFinished reads the ChangeCipherSpec and the Finished of the other side; k are its keys.
func (h *tlcpParty) readFinished(side string, k Keys) error {
	if err := h.readChange(h.suite, k); err != nil {
		return err
	}
	return h.party.readFinished(side, tlcpFinished(h.master, side+" finished", h.transcript()))
}

// certificateList is the Certificate message of TLCP (GB/T 38636 §6.4.5.3): signing,
// encryption, then what is above them. A nil pair is an empty list.
func certificateList(p *Pair) []byte {
	return message(msgCertificate, func(b *cryptobyte.Builder) {
		b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
			if p == nil {
				return
			}
			addBytes24(b, p.Sign.Raw)
			addBytes24(b, p.Enc.Raw)
			for _, c := range p.Chain {
				addBytes24(b, c)
			}
		})
	})
}

// maxCerts bounds a list: two and eight above them.
const maxCerts = 10

func parseCertificateList(msg []byte) ([]*smx509.Certificate, error) {
	s := bodyOf(msg)
	malformed := fail(alertDecodeError, "a malformed list of certificates")
	var list cryptobyte.String
	if !s.ReadUint24LengthPrefixed(&list) || !s.Empty() {
		return nil, malformed
	}
	return parseCertificates(list, malformed, readBytes24)
}

// checkRoles verifies that the first two certificates are for signing and for encryption.
func checkRoles(certs []*smx509.Certificate) error {
	if len(certs) < 2 {
		return fail(alertBadCertificate, "%d certificates, want one to sign and one to encrypt", len(certs))
	}
	if err := CheckSigning(certs[0]); err != nil {
		return failWith(alertUnsupportedCertificate, err, "the signing certificate")
	}
	if err := CheckEncryption(certs[1]); err != nil {
		return failWith(alertUnsupportedCertificate, err, "the encryption certificate")
	}
	return nil
}

// verifyPair verifies both certificates of a peer and returns the chains of each.
func verifyPair(certs []*smx509.Certificate, v verifyFor) (sign, enc [][]*smx509.Certificate, err error) {
	if sign, err = v.verify(certs[0], certs[2:]); err != nil {
		return nil, nil, err
	}
	if enc, err = v.verify(certs[1], certs[2:]); err != nil {
		return nil, nil, err
	}
	return sign, enc, nil
}

// keyParams is a point as key exchange messages carry it (RFC 4492 §5.4).
func keyParams(point []byte) []byte {
	b := []byte{3, groupSM2 >> 8, groupSM2 & 0xff, byte(len(point))}
	return append(b, point...)
}

// readKeyParams reads it from the front of s. The number of the curve is ignored, as
// GB/T 38636 §6.4.5.4 demands for SM2.
func readKeyParams(s *cryptobyte.String) (params, point []byte, ok bool) {
	whole := *s
	var p cryptobyte.String
	if !s.Skip(3) || !s.ReadUint8LengthPrefixed(&p) || len(p) != 65 {
		return nil, nil, false
	}
	return whole[:4+len(p)], p, true
}

// signedECC is what the server signs with an ECC suite: its encryption certificate.
func signedECC(clientRandom, serverRandom, enc []byte) []byte {
	b := append(append([]byte(nil), clientRandom...), serverRandom...)
	b = append(b, byte(len(enc)>>16), byte(len(enc)>>8), byte(len(enc)))
	return append(b, enc...)
}

// signedECDHE is what it signs with an ECDHE suite: its ephemeral key.
func signedECDHE(clientRandom, serverRandom, params []byte) []byte {
	return append(append(append([]byte(nil), clientRandom...), serverRandom...), params...)
}

// signatureOf reads a CertificateVerify of TLCP.
func signatureOf(msg []byte) ([]byte, bool) {
	s := bodyOf(msg)
	var sig []byte
	return sig, readBytes16(&s, &sig) && s.Empty()
}

func finishedMessage(data []byte) []byte {
	return message(msgFinished, func(b *cryptobyte.Builder) { b.AddBytes(data) })
}

const defaultLifetime = time.Hour

func (c *ServerConfig) lifetime() time.Duration {
	if c.TicketLifetime == 0 {
		return defaultLifetime
	}
	return c.TicketLifetime
}

// selectProtocol is ALPN (RFC 7301 §3.2): empty if one side has no list.
func (c *ServerConfig) selectProtocol(offered []string) (string, error) {
	if len(c.Protocols) == 0 || len(offered) == 0 {
		return "", nil
	}
	for _, p := range c.Protocols {
		if slices.Contains(offered, p) {
			return p, nil
		}
	}
	return "", fail(alertNoApplicationProtocol, "no protocol of ALPN in common: the client offers %q", offered)
}
