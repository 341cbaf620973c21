package gm

import (
	"github.com/emmansun/gmsm/smx509"
	"golang.org/x/crypto/cryptobyte"
)

// What both sides of TLS 1.3 share.

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
	var context []byte
	var list cryptobyte.String
	if !readBytes8(&s, &context) || len(context) != 0 || !s.ReadUint24LengthPrefixed(&list) || !s.Empty() {
		return nil, fail(alertDecodeError, "a malformed Certificate")
	}
	var certs []*smx509.Certificate
	for !list.Empty() {
		var der, exts []byte
		if !readBytes24(&list, &der) || !readBytes16(&list, &exts) || len(certs) >= maxCerts {
			return nil, fail(alertDecodeError, "a malformed Certificate")
		}
		c, err := smx509.ParseCertificate(der)
		if err != nil {
			return nil, failWith(alertBadCertificate, err, "a certificate that cannot be parsed")
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// certificateVerify signs a transcript.
func certificateVerify(p *Pair, context string, transcript []byte) ([]byte, error) {
	sig, err := p.sign(tls13ID, signedContent(context, transcript))
	if err != nil {
		return nil, err
	}
	return message(msgCertificateVerify, func(b *cryptobyte.Builder) {
		b.AddUint16(schemeSM2SM3)
		addBytes16(b, sig)
	}), nil
}

// checkCertificateVerify verifies such a message.
func checkCertificateVerify(msg []byte, c *smx509.Certificate, context string, transcript []byte) error {
	s := bodyOf(msg)
	var scheme uint16
	var sig []byte
	switch {
	case !s.ReadUint16(&scheme) || !readBytes16(&s, &sig) || !s.Empty():
		return fail(alertDecodeError, "a malformed CertificateVerify")
	case scheme != schemeSM2SM3:
		return fail(alertIllegalParameter, "a signature of scheme %#04x: want sm2sig_sm3", scheme)
	case !verifySignature(c, tls13ID, signedContent(context, transcript), sig):
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
