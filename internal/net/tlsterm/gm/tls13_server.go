package gm

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"slices"
	"time"

	"github.com/emmansun/gmsm/ecdh"
	"golang.org/x/crypto/cryptobyte"
)

// A tls13Server is the server's side of TLS 1.3 with the suites of RFC 8998.
type tls13Server struct {
	tls13Party
	cfg *ServerConfig

	pair     *Pair
	share    []byte // the client's
	retried  bool
	before   []byte // of the ClientHello, in the transcript
	resumed  *session
	pskIndex uint16
}

func (h *tls13Server) handshake() (*State, error) {
	defer h.wipe()
	if err := run(
		h.readHello,               // RFC 8446 §4.1.2
		h.retry,                   // §4.1.4, if a key share is missing
		h.resume,                  // §4.2.11
		h.sendHello,               // §4.1.3
		h.sendEncryptedExtensions, // §4.3.1
		h.sendCertificateRequest,  // §4.3.2
		h.sendCertificate,         // §4.4.2
		h.sendCertificateVerify,   // §4.4.3
		h.sendFinished,            // §4.4.4
		h.readCertificate,
		h.readCertificateVerify,
		h.readClientFinished,
		h.sendTicket, // §4.6.1
		h.flush,
	); err != nil {
		return nil, err
	}
	return h.state(h.hello.serverName, h.resumed != nil), nil
}

func (h *tls13Server) readHello() error {
	msg, err := h.readUnhashed(msgClientHello)
	if err != nil {
		return err
	}
	return h.parseHello(msg)
}

func (h *tls13Server) parseHello(msg []byte) error {
	m := &h.hello
	switch {
	case !m.parse(msg):
		return fail(alertDecodeError, "a malformed ClientHello")
	case m.version != VersionTLS12 || !slices.Contains(m.versions, VersionTLS13):
		return fail(alertProtocolVersion, "a ClientHello without TLS 1.3")
	case m.noNull:
		return fail(alertIllegalParameter, "a ClientHello without the null compression")
	case !slices.Contains(m.groups, groupSM2) || !m.hasShare:
		return fail(alertMissingExtension, "a ClientHello without curveSM2")
	case !slices.Contains(m.schemes, schemeSM2SM3):
		return fail(alertMissingExtension, "a ClientHello without sm2sig_sm3")
	case len(m.psk) > 0 && len(m.modes) == 0:
		return fail(alertMissingExtension, "a ClientHello with a session and no psk_key_exchange_modes")
	}
	if h.suite = pickSuite(VersionTLS13, m.suites, func(*Suite) bool { return true }); h.suite == nil {
		return fail(alertHandshakeFailure, "no cipher suite in common: the client offers %#04x", m.suites)
	}
	if h.pair = h.cfg.Pick(m.serverName); h.pair == nil {
		return errNoPair
	}
	var err error
	if h.protocol, err = h.cfg.selectProtocol(m.protocols); err != nil {
		return err
	}
	h.share = nil
	for _, s := range m.shares {
		if s.group == groupSM2 {
			h.share = s.key
		}
	}
	return nil
}

// retry requests a key share of curveSM2, once.
func (h *tls13Server) retry() error {
	if h.share != nil {
		return nil
	}
	h.retried = true
	suite, first := h.suite, h.hello
	sum := Hash()
	sum.Write(first.raw)
	hash := message(msgMessageHash, func(b *cryptobyte.Builder) { b.AddBytes(sum.Sum(nil)) })
	ask := (&serverHello{
		version: VersionTLS12, random: []byte(retryRandom), sessionID: first.sessionID, suite: suite.ID, selected: VersionTLS13,
		share: keyShare{group: groupSM2}, retry: true,
	}).marshal()
	h.before = append(hash, ask...)
	h.sum.Write(hash)
	h.write(ask)
	if len(first.sessionID) > 0 {
		h.writeChange()
	}
	if err := h.flush(); err != nil {
		return err
	}
	msg, err := h.readUnhashed(msgClientHello)
	if err != nil {
		return err
	}
	if err := h.parseHello(msg); err != nil {
		return err
	}
	m := &h.hello
	if h.share == nil || len(m.shares) != 1 || h.suite != suite || !bytes.Equal(m.random, first.random) || !bytes.Equal(m.sessionID, first.sessionID) ||
		!slices.Equal(m.suites, first.suites) || m.serverName != first.serverName || !slices.Equal(m.protocols, first.protocols) {
		return fail(alertIllegalParameter, "the second ClientHello does not match the HelloRetryRequest")
	}
	return nil
}

// resume selects a session that the client offers. Only with a key exchange: psk_dhe_ke.
func (h *tls13Server) resume() error {
	m := &h.hello
	defer h.sum.Write(m.raw)
	if len(m.psk) == 0 || h.cfg.TicketKeys == nil || !slices.Contains(m.modes, pskDHE) {
		return nil
	}
	keys, at := h.cfg.TicketKeys(), now(h.cfg.Time)
	for i, id := range m.psk {
		s := openTicket(keys, id.label)
		if s == nil || s.version != VersionTLS13 || len(s.secret) != HashLen || !s.fresh(at, h.cfg.lifetime()) || s.serverName != m.serverName {
			continue
		}
		if suite := SuiteOf(VersionTLS13, s.suite); suite == nil || !slices.Contains(m.suites, s.suite) {
			continue
		} else if !h.admitResumed(h.cfg, s) {
			continue
		} else {
			h.suite = suite
		}
		h.schedule = newSchedule(s.secret)
		clear(s.secret)
		key := h.schedule.derive("res binder", Hash().Sum(nil))
		want := finishedMAC(key, binderTranscript(h.before, m.raw, m.bindersLen))
		clear(key)
		if subtle.ConstantTimeCompare(want, m.binders[i]) != 1 {
			return fail(alertDecryptError, "the binder of a session does not verify")
		}
		h.resumed, h.pskIndex = s, uint16(i)
		return nil
	}
	return nil
}

func (h *tls13Server) sendHello() error {
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	shared, err := sharedSecret(key, "client", h.share)
	if err != nil {
		return err
	}
	h.write((&serverHello{
		version: VersionTLS12, random: randomBytes(randomLen), sessionID: h.hello.sessionID, suite: h.suite.ID, selected: VersionTLS13,
		share: keyShare{groupSM2, key.PublicKey().Bytes()}, psk: h.resumed != nil, pskIndex: h.pskIndex,
	}).marshal())
	if len(h.hello.sessionID) > 0 && !h.retried {
		h.writeChange() // RFC 8446 §D.4
	}
	if err := h.deriveHandshake(shared); err != nil {
		return err
	}
	h.in.set(h.suite, Traffic(h.client))
	h.out.set(h.suite, Traffic(h.server))
	return nil
}

func (h *tls13Server) sendEncryptedExtensions() error {
	h.write(message(msgEncryptedExtensions, func(b *cryptobyte.Builder) {
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			if h.protocol != "" {
				addExt(b, extALPN, func(b *cryptobyte.Builder) { addProtocols(b, []string{h.protocol}) })
			}
		})
	}))
	return nil
}

func (h *tls13Server) sendCertificateRequest() error {
	if h.resumed != nil || h.cfg.ClientAuth == NoClientCert {
		return nil
	}
	h.write(message(msgCertificateRequest, func(b *cryptobyte.Builder) {
		b.AddUint8(0)
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			addExt(b, extSignatureAlgorithms, func(b *cryptobyte.Builder) { addUint16s(b, []uint16{schemeSM2SM3}) })
		})
	}))
	return nil
}

func (h *tls13Server) sendCertificate() error {
	if h.resumed != nil {
		return nil
	}
	var staple []byte
	if h.hello.hasStatus {
		staple = h.pair.Staple
	}
	h.write(certificateEntries(h.pair, staple))
	return nil
}

func (h *tls13Server) sendCertificateVerify() error {
	if h.resumed != nil {
		return nil
	}
	return h.prove(h.pair, serverContext)
}

func (h *tls13Server) sendFinished() error {
	h.write(finishedMessage(finishedMAC(h.server, h.transcript())))
	h.deriveApplication()
	err := h.flush()
	h.out.set(h.suite, Traffic(h.appServer))
	return err
}

func (h *tls13Server) readCertificate() error {
	if h.resumed != nil {
		return nil
	}
	return h.readClientCertificates(h.cfg, alertCertificateRequired)
}

func (h *tls13Server) readCertificateVerify() error {
	if h.resumed != nil || len(h.peer) == 0 {
		return nil
	}
	return h.readProof(clientContext)
}

func (h *tls13Server) readClientFinished() error {
	err := h.readFinished("client", finishedMAC(h.client, h.transcript()))
	if err == nil {
		h.in.set(h.suite, Traffic(h.appClient))
	}
	return err
}

// sendTicket sends one ticket, to clients that can use it.
func (h *tls13Server) sendTicket() error {
	if h.cfg.TicketKeys == nil || !slices.Contains(h.hello.modes, pskDHE) {
		return nil
	}
	master := h.schedule.derive("res master", h.transcript())
	nonce := []byte{0}
	s := session{
		version: VersionTLS13, suite: h.suite.ID, created: now(h.cfg.Time).Unix(), ageAdd: binary.BigEndian.Uint32(randomBytes(4)),
		secret: resumptionPSK(master, nonce), serverName: h.hello.serverName, protocol: h.protocol, peer: h.peer,
	}
	clear(master)
	label := s.seal(h.cfg.TicketKeys())
	clear(s.secret)
	h.record(recordHandshake, message(msgNewSessionTicket, func(b *cryptobyte.Builder) {
		b.AddUint32(uint32(min(h.cfg.lifetime(), maxTicketLifetime) / time.Second))
		b.AddUint32(s.ageAdd)
		addBytes8(b, nonce)
		addBytes16(b, label)
		b.AddUint16(0)
	}))
	return nil
}
