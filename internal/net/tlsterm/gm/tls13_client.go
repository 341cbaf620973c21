package gm

import (
	"crypto/rand"
	"slices"

	"github.com/emmansun/gmsm/ecdh"
	"golang.org/x/crypto/cryptobyte"
)

// A tls13Client is the client's side of TLS 1.3 with the suites of RFC 8998. It offers
// nothing else: a server that has none of them ends the handshake.
type tls13Client struct {
	tls13Party
	cfg *ClientConfig

	answer    serverHello
	key       *ecdh.PrivateKey
	resumable *session
	resumed   bool
	demanded  bool
	early     *schedule // with the session's secret, if one is offered
}

func (h *tls13Client) handshake() (*State, error) {
	defer h.wipe()
	if err := run(
		h.sendHello,               // RFC 8446 §4.1.2
		h.readHello,               // §4.1.3
		h.readEncryptedExtensions, // §4.3.1
		h.readCertificateRequest,  // §4.3.2
		h.readCertificate,         // §4.4.2
		h.readCertificateVerify,   // §4.4.3
		h.readServerFinished,      // §4.4.4
		h.sendCertificate,
		h.sendCertificateVerify,
		h.sendFinished,
		h.flush,
	); err != nil {
		return nil, err
	}
	s := h.state(h.cfg.ServerName, h.resumed)
	s.Tickets = h.tickets()
	return s, nil
}

func (h *tls13Client) wipe() {
	if h.early != nil {
		clear(h.early.secret)
	}
	h.tls13Party.wipe()
}

func (h *tls13Client) sendHello() error {
	var err error
	if h.key, err = ecdh.P256().GenerateKey(rand.Reader); err != nil {
		return err
	}
	m := &h.hello
	m.version, m.random = VersionTLS12, randomBytes(randomLen)
	m.suites, m.serverName, m.protocols = h.cfg.suites(), h.cfg.sni(), h.cfg.Protocols
	m.versions, m.groups, m.schemes = []uint16{VersionTLS13}, []uint16{groupSM2}, []uint16{schemeSM2SM3}
	m.shares = []keyShare{{groupSM2, h.key.PublicKey().Bytes()}}
	if h.cfg.Sessions != nil {
		m.modes = []uint8{pskDHE}
	}
	at := now(h.cfg.Time)
	s := h.cfg.Sessions.lookup(h.cfg.SessionKey, VersionTLS13, at)
	if s != nil && slices.Contains(m.suites, s.suite) {
		h.resumable = s
		m.psk = []pskIdentity{{s.label, uint32((at.Unix()-s.created)*1000) + s.ageAdd}}
	}
	raw := m.marshal()
	if h.resumable != nil {
		h.early = newSchedule(s.secret)
		clear(s.secret)
		key := h.early.derive("res binder", Hash().Sum(nil))
		m.setBinder(finishedMAC(key, binderTranscript(nil, raw, m.bindersLen)))
		clear(key)
	}
	h.write(raw)
	return h.flush()
}

func (h *tls13Client) readHello() error {
	msg, err := h.read(msgServerHello)
	if err != nil {
		return err
	}
	m := &h.answer
	switch {
	case !m.parse(msg):
		return fail(alertDecodeError, "a malformed ServerHello")
	case m.version != VersionTLS12 || m.selected != VersionTLS13:
		return fail(alertProtocolVersion, "the server selects version %#04x: want TLS 1.3", max(m.selected, m.version))
	case m.retry: // curveSM2 is all that was offered, and its share was there
		return fail(alertIllegalParameter, "a HelloRetryRequest that would change nothing")
	case len(m.sessionID) > 0:
		return fail(alertIllegalParameter, "a session ID that was not sent")
	case !slices.Contains(h.hello.suites, m.suite):
		return fail(alertIllegalParameter, "the server selects cipher suite %#04x, which was not offered", m.suite)
	case m.share.group != groupSM2:
		return fail(alertIllegalParameter, "the server selects group %d: want curveSM2", m.share.group)
	case m.psk && (h.resumable == nil || m.pskIndex != 0):
		return fail(alertIllegalParameter, "the server selects a session that was not offered")
	case m.protocol != "" || m.ticket:
		return fail(alertUnsupportedExtension, "an extension in the wrong message")
	}
	if h.suite = SuiteOf(VersionTLS13, m.suite); h.suite == nil {
		return fail(alertIllegalParameter, "cipher suite %#04x is not one of RFC 8998", m.suite)
	}
	h.resumed = m.psk
	if h.resumed && h.resumable.suite != m.suite {
		return fail(alertIllegalParameter, "the server resumes a session with another cipher suite")
	}
	shared, err := sharedSecret(h.key, "server", m.share.key)
	if err != nil {
		return err
	}
	if h.resumed {
		h.schedule = h.early
	}
	if err := h.deriveHandshake(shared); err != nil {
		return err
	}
	h.in.set(h.suite, Traffic(h.server))
	h.out.set(h.suite, Traffic(h.client))
	return nil
}

func (h *tls13Client) readEncryptedExtensions() error {
	msg, err := h.read(msgEncryptedExtensions)
	if err != nil {
		return err
	}
	s := bodyOf(msg)
	ok := readExtensions(&s, func(typ uint16, s cryptobyte.String) bool {
		switch typ {
		case extALPN:
			return len(h.cfg.Protocols) > 0 && readProtocol(s, &h.protocol)
		case extServerName, extSupportedGroups:
			return true
		}
		return false // not offered, or not for here
	})
	if !ok {
		return fail(alertUnsupportedExtension, "malformed or unsolicited EncryptedExtensions")
	}
	if h.protocol != "" && !slices.Contains(h.cfg.Protocols, h.protocol) {
		return fail(alertIllegalParameter, "the server selects protocol %q, which was not offered", h.protocol)
	}
	return nil
}

func (h *tls13Client) readCertificateRequest() error {
	if h.resumed {
		return nil
	}
	typ, err := h.peek()
	if err != nil || typ != msgCertificateRequest {
		return err
	}
	msg, err := h.read(msgCertificateRequest)
	if err != nil {
		return err
	}
	s := bodyOf(msg)
	var context []byte
	var schemes []uint16
	if !readBytes8(&s, &context) || len(context) != 0 || !readExtensions(&s, func(typ uint16, s cryptobyte.String) bool {
		return typ != extSignatureAlgorithms || readList16(s, &schemes)
	}) {
		return fail(alertDecodeError, "a malformed CertificateRequest")
	}
	if len(schemes) == 0 {
		return fail(alertMissingExtension, "a CertificateRequest without signature_algorithms")
	}
	h.demanded = true
	if !slices.Contains(schemes, schemeSM2SM3) {
		return fail(alertHandshakeFailure, "a CertificateRequest without sm2sig_sm3")
	}
	return nil
}

func (h *tls13Client) readCertificate() error {
	if h.resumed {
		h.peer = h.resumable.peer // it may have expired meanwhile
	} else if err := h.readCertificates(); err != nil {
		return err
	}
	if len(h.peer) == 0 {
		return fail(alertDecodeError, "the server presents no certificate")
	}
	var err error
	h.chains, err = h.cfg.admitServer(h.peer)
	return err
}

func (h *tls13Client) readCertificateVerify() error {
	if h.resumed {
		return nil
	}
	return h.readProof(serverContext)
}

func (h *tls13Client) readServerFinished() error {
	if err := h.readFinished("server", finishedMAC(h.server, h.transcript())); err != nil {
		return err
	}
	h.deriveApplication()
	h.in.set(h.suite, Traffic(h.appServer))
	return nil
}

func (h *tls13Client) sendCertificate() error {
	if h.demanded {
		h.write(certificateEntries(h.cfg.Pair, nil))
	}
	return nil
}

func (h *tls13Client) sendCertificateVerify() error {
	if !h.demanded || h.cfg.Pair == nil {
		return nil
	}
	return h.prove(h.cfg.Pair, clientContext)
}

func (h *tls13Client) sendFinished() error {
	h.write(finishedMessage(finishedMAC(h.client, h.transcript())))
	h.out.set(h.suite, Traffic(h.appClient))
	return nil
}

// tickets is what takes the server's tickets in; nil: sessions are not kept.
func (h *tls13Client) tickets() *Tickets {
	if h.cfg.Sessions == nil {
		return nil
	}
	return &Tickets{
		sessions: h.cfg.Sessions, key: h.cfg.SessionKey, master: h.schedule.derive("res master", h.transcript()), time: h.cfg.Time,
		base: session{version: VersionTLS13, suite: h.suite.ID, peer: h.peer, protocol: h.protocol},
	}
}
