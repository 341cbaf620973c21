package gm

import (
	"bytes"
	"crypto/rand"
	"slices"

	"github.com/emmansun/gmsm/ecdh"
	"golang.org/x/crypto/cryptobyte"
)

// A tlcpServer is the server's side of TLCP (GB/T 38636 §6.4).
type tlcpServer struct {
	tlcpParty
	cfg *ServerConfig

	pair      *Pair
	sessionID []byte
	resumed   *session
	ephemeral *ecdh.PrivateKey
}

func (h *tlcpServer) handshake() (*State, error) {
	defer func() { clear(h.master) }()
	if err := h.readHello(); err != nil {
		return nil, err
	}
	steps := []func() error{
		h.sendHello,              // §6.4.5.2.2
		h.sendCertificate,        // §6.4.5.3
		h.sendKeyExchange,        // §6.4.5.4
		h.sendCertificateRequest, // §6.4.5.5
		h.sendHelloDone,          // §6.4.5.6
		h.readCertificate,        // §6.4.5.7
		h.readKeyExchange,        // §6.4.5.8
		h.readCertificateVerify,  // §6.4.5.9
		h.readClientFinished,     // §6.4.5.10
		h.sendTicket,             // RFC 5077
		h.sendServerFinished,
		h.flush,
	}
	if h.resumed != nil {
		steps = []func() error{h.sendHello, h.sendTicket, h.sendServerFinished, h.flush, h.readClientFinished}
	}
	if err := run(steps...); err != nil {
		if h.resumed != nil && h.cfg.Sessions != nil {
			h.cfg.Sessions.remove(h.sessionID)
		}
		return nil, err
	}
	h.keepSession()
	return h.state(h.hello.serverName, h.resumed != nil), nil
}

// readHello reads the ClientHello and selects what it leaves open.
func (h *tlcpServer) readHello() error {
	msg, err := h.read(msgClientHello)
	if err != nil {
		return err
	}
	m := &h.hello
	switch {
	case !m.parse(msg):
		return fail(alertDecodeError, "a malformed ClientHello")
	case m.version != VersionTLCP:
		return fail(alertProtocolVersion, "a ClientHello of version %#04x in a record of TLCP", m.version)
	case m.noNull:
		return fail(alertIllegalParameter, "a ClientHello without the null compression")
	}
	h.random = randomBytes(randomLen)
	if h.resume() {
		return nil
	}
	if h.suite = pickSuite(VersionTLCP, m.suites, h.cfg.allows); h.suite == nil {
		return fail(alertHandshakeFailure, "no cipher suite in common: the client offers %#04x", m.suites)
	}
	if h.pair = h.cfg.Pick(m.serverName); h.pair == nil {
		return errNoPair
	}
	h.protocol, err = h.cfg.selectProtocol(m.protocols)
	return err
}

// allows reports whether c permits suite s of TLCP: ECDHE needs the client's certificates.
func (c *ServerConfig) allows(s *Suite) bool {
	return (!s.ecdhe || c.ClientAuth == RequireClientCert) && (!s.CBC() || !c.NoCBC)
}

// resume looks for the session that the client requests: in its ticket, or by its ID.
func (h *tlcpServer) resume() bool {
	m := &h.hello
	var s *session
	switch {
	case len(m.ticket) > 0 && h.cfg.TicketKeys != nil:
		s = openTicket(h.cfg.TicketKeys(), m.ticket)
	case len(m.sessionID) > 0 && h.cfg.Sessions != nil:
		s = h.cfg.Sessions.get(m.sessionID)
	}
	if s == nil || s.version != VersionTLCP || !s.fresh(now(h.cfg.Time), h.cfg.lifetime()) || len(s.secret) != masterLen ||
		!slices.Contains(m.suites, s.suite) || s.serverName != m.serverName {
		return false
	}
	suite := SuiteOf(VersionTLCP, s.suite)
	if suite == nil || !h.cfg.allows(suite) {
		return false
	}
	protocol, err := h.cfg.selectProtocol(m.protocols)
	if err != nil || protocol != s.protocol || !h.admitResumed(h.cfg, s) {
		return false
	}
	h.resumed, h.suite, h.protocol, h.master = s, suite, protocol, s.secret
	h.sessionID = m.sessionID // echoed: that is how the client knows
	h.deriveKeys()
	return true
}

func (h *tlcpServer) sendHello() error {
	if h.resumed == nil && !h.issuesTicket() && h.cfg.Sessions != nil {
		h.sessionID = randomBytes(maxSessionID)
	}
	m := serverHello{
		version: VersionTLCP, random: h.random, sessionID: h.sessionID, suite: h.suite.ID, protocol: h.protocol, ticket: h.issuesTicket(),
	}
	h.write(m.marshal())
	return nil
}

func (h *tlcpServer) issuesTicket() bool { return h.hello.hasTicket && h.cfg.TicketKeys != nil }

func (h *tlcpServer) sendCertificate() error {
	h.write(certificateList(h.pair))
	return nil
}

// sendKeyExchange signs the encryption certificate, or an ephemeral key.
func (h *tlcpServer) sendKeyExchange() error {
	var params, signed []byte
	if h.suite.ecdhe {
		key, err := ecdh.P256().GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		h.ephemeral = key
		params = keyParams(key.PublicKey().Bytes())
		signed = signedECDHE(h.hello.random, h.random, params)
	} else {
		signed = signedECC(h.hello.random, h.random, h.pair.Enc.Raw)
	}
	sig, err := h.pair.sign(defaultID, signed)
	if err != nil {
		return err
	}
	h.write(message(msgServerKeyExchange, func(b *cryptobyte.Builder) {
		b.AddBytes(params)
		addBytes16(b, sig)
	}))
	return nil
}

// certificate types of a CertificateRequest (GB/T 38636 §6.4.5.5).
const (
	certTypeECDSA = 64 // used for SM2
)

func (h *tlcpServer) sendCertificateRequest() error {
	if h.cfg.ClientAuth == NoClientCert {
		return nil
	}
	h.write(message(msgCertificateRequest, func(b *cryptobyte.Builder) {
		addBytes8(b, []byte{certTypeECDSA})
		addBytes16(b, nil) // any authority; the client knows which certificates it has
	}))
	return nil
}

func (h *tlcpServer) sendHelloDone() error {
	h.write(message(msgServerHelloDone, func(*cryptobyte.Builder) {}))
	return h.flush()
}

func (h *tlcpServer) readCertificate() error {
	return h.readClientCertificates(h.cfg, alertHandshakeFailure)
}

// readKeyExchange decrypts the pre-master secret, or agrees on it.
func (h *tlcpServer) readKeyExchange() error {
	msg, err := h.read(msgClientKeyExchange)
	if err != nil {
		return err
	}
	s := bodyOf(msg)
	var pre []byte
	if h.suite.ecdhe {
		pre, err = h.agreed(s)
	} else {
		var sealed []byte
		if !readBytes16(&s, &sealed) || !s.Empty() {
			return fail(alertDecodeError, "a malformed ClientKeyExchange")
		}
		pre = h.pair.decrypt(sealed, VersionTLCP)
	}
	if err != nil {
		return err
	}
	h.master = masterSecret(pre, h.hello.random, h.random)
	clear(pre)
	h.deriveKeys()
	return nil
}

func (h *tlcpServer) agreed(s cryptobyte.String) ([]byte, error) {
	if len(s) > 0 && s[0] != 3 { // the length that the standard puts in front, and some clients omit
		var params cryptobyte.String
		if !s.ReadUint16LengthPrefixed(&params) || !s.Empty() {
			return nil, fail(alertDecodeError, "a malformed ClientKeyExchange")
		}
		s = params
	}
	_, point, ok := readKeyParams(&s)
	if !ok || !s.Empty() {
		return nil, fail(alertDecodeError, "a malformed ClientKeyExchange")
	}
	pre, err := h.pair.agree(h.ephemeral, h.peer[1], point, true)
	if err != nil {
		return nil, failWith(alertIllegalParameter, err, "the client's ephemeral key")
	}
	return pre, nil
}

func (h *tlcpServer) readCertificateVerify() error {
	if len(h.peer) == 0 {
		return nil
	}
	signed := h.transcript()
	msg, err := h.read(msgCertificateVerify)
	if err != nil {
		return err
	}
	sig, ok := signatureOf(msg)
	if !ok {
		return fail(alertDecodeError, "a malformed CertificateVerify")
	}
	if !verifySignature(h.peer[0], defaultID, signed, sig) {
		return fail(alertDecryptError, "the client's signature does not verify")
	}
	return nil
}

func (h *tlcpServer) readClientFinished() error { return h.readFinished("client", h.client) }

func (h *tlcpServer) session() *session {
	return &session{
		version: VersionTLCP, suite: h.suite.ID, created: now(h.cfg.Time).Unix(), secret: bytes.Clone(h.master),
		serverName: h.hello.serverName, protocol: h.protocol, peer: h.peer,
	}
}

// sendTicket sends a session ticket in front of ChangeCipherSpec (RFC 5077 §3.3).
func (h *tlcpServer) sendTicket() error {
	if !h.issuesTicket() {
		return nil
	}
	s := h.session()
	if h.resumed != nil {
		s.created = h.resumed.created // a session does not become younger by resuming
	}
	ticket := s.seal(h.cfg.TicketKeys())
	clear(s.secret)
	h.write(message(msgNewSessionTicket, func(b *cryptobyte.Builder) {
		b.AddUint32(uint32(h.cfg.lifetime().Seconds()))
		addBytes16(b, ticket)
	}))
	return nil
}

func (h *tlcpServer) sendServerFinished() error { return h.sendFinished("server", h.server) }

// keepSession keeps the session of a client that has no tickets.
func (h *tlcpServer) keepSession() {
	if h.resumed == nil && len(h.sessionID) > 0 {
		h.cfg.Sessions.put(h.sessionID, h.session())
	}
}
