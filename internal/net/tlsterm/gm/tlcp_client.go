package gm

import (
	"bytes"
	"crypto/rand"
	"net"
	"slices"
	"time"

	"github.com/emmansun/gmsm/ecdh"
	"golang.org/x/crypto/cryptobyte"
)

// A tlcpClient is the client's side of TLCP (GB/T 38636 §6.4).
type tlcpClient struct {
	tlcpParty
	cfg *ClientConfig

	answer    serverHello
	resumable *session
	resumed   bool
	peerKey   []byte // the server's ephemeral key
	demanded  bool   // the server demands a certificate
	ticket    *session
}

func (h *tlcpClient) handshake() (*State, error) {
	defer func() { clear(h.master) }()
	if err := run(
		h.sendHello, // §6.4.5.2.1
		h.readHello, // §6.4.5.2.2
	); err != nil {
		return nil, err
	}
	steps := []func() error{
		h.readCertificate,        // §6.4.5.3
		h.readKeyExchange,        // §6.4.5.4
		h.readCertificateRequest, // §6.4.5.5
		h.readHelloDone,          // §6.4.5.6
		h.sendCertificate,        // §6.4.5.7
		h.sendKeyExchange,        // §6.4.5.8
		h.sendCertificateVerify,  // §6.4.5.9
		h.sendClientFinished,     // §6.4.5.10
		h.flush,
		h.readTicket, // RFC 5077
		h.readServerFinished,
	}
	if h.resumed {
		steps = []func() error{h.readTicket, h.readServerFinished, h.sendClientFinished, h.flush}
	}
	if err := run(steps...); err != nil {
		return nil, err
	}
	h.keepSession()
	return h.state(h.cfg.ServerName, h.resumed), nil
}

// Offer returns the suites of a version for ClientConfig.Suites: ECDHE only with a pair to
// agree with, and CBC only where it is asked for.
func Offer(version uint16, pair, cbc bool) (list []uint16) {
	for _, s := range Suites {
		if s.Version == version && (pair || !s.ecdhe) && (cbc || !s.CBC()) {
			list = append(list, s.ID)
		}
	}
	return list
}

func (c *ClientConfig) suites() []uint16 {
	if len(c.Suites) == 0 {
		return Offer(c.Version, c.Pair != nil, false)
	}
	return c.Suites
}

// sni is the name that is sent: none for an address (RFC 6066 §3).
func (c *ClientConfig) sni() string {
	if net.ParseIP(c.ServerName) != nil {
		return ""
	}
	return c.ServerName
}

func (h *tlcpClient) sendHello() error {
	m := &h.hello
	m.version, m.random = VersionTLCP, randomBytes(randomLen)
	m.suites, m.serverName, m.protocols = h.cfg.suites(), h.cfg.sni(), h.cfg.Protocols
	m.hasTicket = h.cfg.Sessions != nil
	if h.resumable = h.cfg.Sessions.lookup(h.cfg.SessionKey, VersionTLCP, now(h.cfg.Time)); h.resumable != nil && slices.Contains(m.suites, h.resumable.suite) {
		if h.resumable.isTicket {
			m.ticket, m.sessionID = h.resumable.label, randomBytes(maxSessionID)
		} else {
			m.sessionID = h.resumable.label
		}
	}
	h.write(m.marshal())
	return h.flush()
}

func (h *tlcpClient) readHello() error {
	msg, err := h.read(msgServerHello)
	if err != nil {
		return err
	}
	m := &h.answer
	switch {
	case !m.parse(msg):
		return fail(alertDecodeError, "a malformed ServerHello")
	case m.version != VersionTLCP:
		return fail(alertProtocolVersion, "the server selects version %#04x", m.version)
	case !slices.Contains(h.hello.suites, m.suite):
		return fail(alertIllegalParameter, "the server selects cipher suite %#04x, which was not offered", m.suite)
	case m.ticket && !h.hello.hasTicket, m.selected != 0, m.psk:
		return fail(alertUnsupportedExtension, "an extension that was not offered")
	case m.protocol != "" && !slices.Contains(h.cfg.Protocols, m.protocol):
		return fail(alertIllegalParameter, "the server selects protocol %q, which was not offered", m.protocol)
	}
	if h.suite = SuiteOf(VersionTLCP, m.suite); h.suite == nil {
		return fail(alertIllegalParameter, "cipher suite %#04x is not one of TLCP", m.suite)
	}
	h.random, h.protocol = m.random, m.protocol
	s := h.resumable
	if h.resumed = s != nil && len(m.sessionID) > 0 && bytes.Equal(m.sessionID, h.hello.sessionID); !h.resumed {
		return nil
	}
	if s.suite != m.suite {
		return fail(alertIllegalParameter, "the server resumes a session with another cipher suite")
	}
	h.master, h.peer = s.secret, s.peer
	h.deriveKeys()
	h.chains, err = h.cfg.admitServer(h.peer) // its certificates may have expired meanwhile
	return err
}

func (h *tlcpClient) readCertificate() error {
	err := h.readCertificates()
	if err == nil {
		h.chains, err = h.cfg.admitServer(h.peer)
	}
	return err
}

func (h *tlcpClient) readKeyExchange() error {
	msg, err := h.read(msgServerKeyExchange)
	if err != nil {
		return err
	}
	s := bodyOf(msg)
	signed := signedECC(h.hello.random, h.random, h.peer[1].Raw)
	if h.suite.ecdhe {
		params, point, ok := readKeyParams(&s)
		if !ok {
			return fail(alertDecodeError, "a malformed ServerKeyExchange")
		}
		h.peerKey = point
		signed = signedECDHE(h.hello.random, h.random, params)
	}
	var sig []byte
	if !readBytes16(&s, &sig) || !s.Empty() {
		return fail(alertDecodeError, "a malformed ServerKeyExchange")
	}
	if !verifySignature(h.peer[0], defaultID, signed, sig) {
		return fail(alertDecryptError, "the server's signature does not verify")
	}
	return nil
}

func (h *tlcpClient) readCertificateRequest() error {
	typ, err := h.peek()
	if err != nil || typ != msgCertificateRequest {
		return err
	}
	msg, err := h.read(msgCertificateRequest)
	if err != nil {
		return err
	}
	s := bodyOf(msg)
	var types, names []byte
	if !readBytes8(&s, &types) || !readBytes16(&s, &names) || !s.Empty() {
		return fail(alertDecodeError, "a malformed CertificateRequest")
	}
	h.demanded = true
	return nil
}

func (h *tlcpClient) readHelloDone() error {
	msg, err := h.read(msgServerHelloDone)
	switch {
	case err != nil:
		return err
	case len(msg) != 4:
		return fail(alertDecodeError, "a ServerHelloDone with a body")
	case h.suite.ecdhe && (!h.demanded || h.cfg.Pair == nil):
		return fail(alertHandshakeFailure, "an ECDHE suite without a demand for the client's certificates")
	}
	return nil
}

func (h *tlcpClient) sendCertificate() error {
	if h.demanded {
		h.write(certificateList(h.cfg.Pair))
	}
	return nil
}

func (h *tlcpClient) sendKeyExchange() error {
	var body, pre []byte
	if h.suite.ecdhe {
		key, err := ecdh.P256().GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		if pre, err = h.cfg.Pair.agree(key, h.peer[1], h.peerKey, false); err != nil {
			return failWith(alertIllegalParameter, err, "the server's ephemeral key")
		}
		body = keyParams(key.PublicKey().Bytes())
	} else {
		pre = randomBytes(masterLen)
		pre[0], pre[1] = VersionTLCP>>8, VersionTLCP&0xff
		var err error
		if body, err = encryptTo(h.peer[1], pre); err != nil {
			return err
		}
	}
	h.write(message(msgClientKeyExchange, func(b *cryptobyte.Builder) { addBytes16(b, body) }))
	h.master = masterSecret(pre, h.hello.random, h.random)
	clear(pre)
	h.deriveKeys()
	return nil
}

func (h *tlcpClient) sendCertificateVerify() error {
	if !h.demanded || h.cfg.Pair == nil {
		return nil
	}
	sig, err := h.cfg.Pair.sign(defaultID, h.transcript())
	if err != nil {
		return err
	}
	h.write(message(msgCertificateVerify, func(b *cryptobyte.Builder) { addBytes16(b, sig) }))
	return nil
}

func (h *tlcpClient) sendClientFinished() error { return h.sendFinished("client", h.client) }

func (h *tlcpClient) readServerFinished() error { return h.readFinished("server", h.server) }

func (h *tlcpClient) readTicket() error {
	if !h.answer.ticket {
		return nil
	}
	msg, err := h.read(msgNewSessionTicket)
	if err != nil {
		return err
	}
	s := bodyOf(msg)
	var lifetime uint32
	var label []byte
	if !s.ReadUint32(&lifetime) || !readBytes16(&s, &label) || !s.Empty() {
		return fail(alertDecodeError, "a malformed session ticket")
	}
	if len(label) > 0 {
		h.ticket = &session{label: label, isTicket: true, lifetime: time.Duration(lifetime) * time.Second}
		if lifetime == 0 {
			h.ticket.lifetime = defaultLifetime // RFC 5077 §3.3: the client's choice
		}
	}
	return nil
}

// keepSession keeps what the next handshake may resume.
func (h *tlcpClient) keepSession() {
	if h.cfg.Sessions == nil {
		return
	}
	s := h.ticket
	if s == nil {
		if h.resumed || len(h.answer.sessionID) == 0 {
			return
		}
		s = &session{label: h.answer.sessionID, lifetime: defaultLifetime}
	}
	s.version, s.suite, s.created, s.secret, s.peer = VersionTLCP, h.suite.ID, now(h.cfg.Time).Unix(), bytes.Clone(h.master), h.peer
	s.lifetime = min(s.lifetime, maxTicketLifetime)
	h.cfg.Sessions.put(h.cfg.SessionKey, s)
}
