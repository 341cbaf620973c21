package gm

import (
	"github.com/emmansun/gmsm/ecdh"
	"github.com/emmansun/gmsm/smx509"
	"golang.org/x/crypto/cryptobyte"
)

// A tls13Party is one side of a handshake of TLS 1.3.
type tls13Party struct {
	party
	schedule *schedule
	// The traffic secrets of the handshake, then those of application data.
	client, server       []byte
	appClient, appServer []byte
}

// sharedSecret is the result of the key exchange with the key share of a side.
func sharedSecret(key *ecdh.PrivateKey, side string, share []byte) ([]byte, error) {
	peer, err := ecdh.P256().NewPublicKey(share)
	var shared []byte
	if err == nil {
		shared, err = key.ECDH(peer)
	}
	if err != nil {
		return nil, failWith(alertIllegalParameter, err, "the "+side+"'s key share")
	}
	return shared, nil
}

// deriveHandshake derives the traffic secrets of the handshake. It overwrites shared.
func (h *tls13Party) deriveHandshake(shared []byte) error {
	if h.schedule == nil {
		h.schedule = newSchedule(nil)
	}
	h.schedule.next(shared)
	clear(shared)
	h.client, h.server = h.schedule.derive("c hs traffic", h.transcript()), h.schedule.derive("s hs traffic", h.transcript())
	return h.boundary()
}

// deriveApplication derives the traffic secrets of application data.
func (h *tls13Party) deriveApplication() {
	h.schedule.next(nil)
	h.appClient, h.appServer = h.schedule.derive("c ap traffic", h.transcript()), h.schedule.derive("s ap traffic", h.transcript())
}

func (h *tls13Party) wipe() {
	if h.schedule != nil {
		clear(h.schedule.secret)
	}
	clear(h.client)
	clear(h.server)
}

const (
	serverContext = "TLS 1.3, server CertificateVerify"
	clientContext = "TLS 1.3, client CertificateVerify"
)

// signedContent is what CertificateVerify signs (RFC 8446 §4.4.3).
func signedContent(context string, transcript []byte) []byte {
	b := make([]byte, 64, 64+len(context)+1+HashLen)
	for i := range b {
		b[i] = ' '
	}
	b = append(append(b, context...), 0)
	return append(b, transcript...)
}

// certificateEntries is the Certificate message (RFC 8446 §4.4.2). A nil pair is an empty
// list; staple is the OCSP response for the leaf, or empty.
func certificateEntries(p *Pair, staple []byte) []byte {
	return message(msgCertificate, func(b *cryptobyte.Builder) {
		b.AddUint8(0) // no context in the handshake
		b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
			if p == nil {
				return
			}
			addBytes24(b, p.Sign.Raw)
			b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
				if len(staple) > 0 {
					addExt(b, extStatusRequest, func(b *cryptobyte.Builder) {
						b.AddUint8(1) // ocsp
						addBytes24(b, staple)
					})
				}
			})
			for _, c := range p.Chain {
				addBytes24(b, c)
				b.AddUint16(0)
			}
		})
	})
}

func parseCertificateEntries(msg []byte) ([]*smx509.Certificate, error) {
	s := bodyOf(msg)
	malformed := fail(alertDecodeError, "a malformed Certificate")
	var context []byte
	var list cryptobyte.String
	if !readBytes8(&s, &context) || len(context) != 0 || !s.ReadUint24LengthPrefixed(&list) || !s.Empty() {
		return nil, malformed
	}
	return parseCertificates(list, malformed, func(s *cryptobyte.String, der *[]byte) bool {
		var exts []byte
		return readBytes24(s, der) && readBytes16(s, &exts)
	})
}

// prove signs the transcript with the key of p; context is that of this side.
func (h *tls13Party) prove(p *Pair, context string) error {
	sig, err := p.sign(tls13ID, signedContent(context, h.transcript()))
	if err != nil {
		return err
	}
	h.write(message(msgCertificateVerify, func(b *cryptobyte.Builder) {
		b.AddUint16(schemeSM2SM3)
		addBytes16(b, sig)
	}))
	return nil
}

// readProof verifies such a signature of the peer, whose context it is.
func (h *tls13Party) readProof(context string) error {
	signed := signedContent(context, h.transcript())
	msg, err := h.read(msgCertificateVerify)
	if err != nil {
		return err
	}
	s := bodyOf(msg)
	var scheme uint16
	var sig []byte
	switch {
	case !s.ReadUint16(&scheme) || !readBytes16(&s, &sig) || !s.Empty():
		return fail(alertDecodeError, "a malformed CertificateVerify")
	case scheme != schemeSM2SM3:
		return fail(alertIllegalParameter, "a signature of scheme %#04x: want sm2sig_sm3", scheme)
	case !verifySignature(h.peer[0], tls13ID, signed, sig):
		return fail(alertDecryptError, "the peer's signature does not verify")
	}
	return nil
}

// binderTranscript is the hash that the binder of a ClientHello covers: what was before
// it, and it without its binders.
func binderTranscript(before, hello []byte, bindersLen int) []byte {
	h := Hash()
	h.Write(before)
	h.Write(hello[:len(hello)-bindersLen])
	return h.Sum(nil)
}
