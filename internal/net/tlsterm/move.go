package tlsterm

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/weir-gateway/weir/internal/app/takeover"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm/gm"
)

// Moving to another process: an established connection is its keys, the numbers of its next
// records, and the beginning of a record that has come in part. What must never happen is that
// two processes seal records with the same number under the same key: this one wipes its keys
// before the other may use them, and cannot get them back.

// The fields of a record layer's state. Their meaning does not change; see takeover.State.
const (
	tlsVersion  = iota + 1 // 0x0303, 0x0304, or 0x0101 for TLCP
	tlsCipher              // of a suite of TLS 1.3 (RFC 8446 appendix B.4) or TLCP, in TLS 1.2 of TLS 1.3's with the same AEAD
	tlsIn                  // state of the receiving half
	tlsOut                 // state of the sending half
	tlsPartial             // of a record
	tlsMessage             // of a key update
	tlsProtocol            // that ALPN agreed on
	tlsUseless             // records without data in a row
	tlsClient              // a certificate that the client sent, in DER; repeated, its own first
	tlsDialed              // of the client's side: bytes of a session ticket still to come, plus 1
)

const (
	halfSeq = iota + 1
	halfKey
	halfIV
	halfSecret
)

var _ eventloop.MovingFilter = (*records)(nil)

// AppendState implements eventloop.MovingFilter. A client's certificate moves too: the other
// process verifies it again. The client's side resumes its connection there, and keeps no more session tickets.
func (r *records) AppendState(dst takeover.State) (takeover.State, bool) {
	if r.failed || r.ended || r.dialed == nil && r.peer == nil {
		return dst, false
	}
	version, id := uint64(tls.VersionTLS12), uint64(tls.TLS_AES_128_GCM_SHA256)
	if r.suite.v13 {
		version = tls.VersionTLS13
	}
	switch {
	case r.suite.gm != nil:
		version, id = uint64(r.suite.gm.Version), uint64(r.suite.gm.ID)
	case r.suite.chacha:
		id = uint64(tls.TLS_CHACHA20_POLY1305_SHA256)
	case r.suite.keyLen == 32:
		id = uint64(tls.TLS_AES_256_GCM_SHA384)
	}
	var room [160]byte // more than a direction takes
	dst = dst.MustUint(tlsVersion, version).MustUint(tlsCipher, id)
	dst = dst.MustBytes(tlsIn, r.in.appendState(room[:0], r.suite)).MustBytes(tlsOut, r.out.appendState(room[:0], r.suite))
	dst = dst.MustBytes(tlsPartial, r.partial).MustBytes(tlsMessage, r.message[:r.messageLen]).Uint(tlsUseless, uint64(r.useless))
	if d := r.dialed; d != nil {
		return dst.MustUint(tlsDialed, uint64(d.skip)+1), true
	}
	dst = dst.MustString(tlsProtocol, r.peer.Protocol)
	if c := r.peer.Certificate; c != nil {
		dst = dst.MustBytes(tlsClient, c.DER)
		for _, der := range r.peer.chain {
			dst = dst.MustBytes(tlsClient, der)
		}
	}
	return dst, true
}

func (h *half) appendState(dst takeover.State, s *suite) takeover.State {
	dst = dst.MustUint(halfSeq, h.seq).MustBytes(halfKey, h.key[:s.keyLen]).MustBytes(halfIV, h.iv[:])
	return dst.MustBytes(halfSecret, h.secret[:s.secretLen()])
}

// Wipe implements eventloop.MovingFilter. Whatever would seal or open from now on panics.
func (r *records) Wipe() {
	for _, h := range []*half{&r.in, &r.out} {
		clear(h.key[:])
		clear(h.iv[:])
		clear(h.secret[:])
		h.aead = nil
	}
	r.suite, r.failed = nil, true
}

// Restore makes the record layer of a connection of loop from its state. The client's
// certificate is verified by the authorities and revocation lists of now. arrived is to be called
// on the loop when there is a connection with that filter. After Accept only.
func (t *Terminator) Restore(loop int, s takeover.State) (f eventloop.Filter, arrived func(*eventloop.Conn), err error) {
	m := movedRecords{records: &records{loopState: t.loopStates[loop]}}
	if err := m.read(s); err != nil {
		return nil, nil, err
	}
	if m.dialed != nil {
		return nil, nil, fmt.Errorf("%w: the client's side of TLS, want the server's", takeover.ErrState)
	}
	state := tls.ConnectionState{NegotiatedProtocol: m.protocol, Version: m.suite.version()}
	if err := t.current.Load().verifyAgain(&state, m.sent, m.suite.gm != nil); err != nil {
		return nil, nil, err
	}
	r := m.records
	r.peer = newPeer(&state)
	return r, func(c *eventloop.Conn) { r.forget = t.certify(c, state.VerifiedChains) }, nil
}

// Restore makes the record layer of a connection that the other process has dialed, for the loop of that number. Any
// goroutine.
func (cl *Client) Restore(loop int, s takeover.State) (eventloop.Filter, error) {
	m := movedRecords{records: &records{loopState: cl.loopStates[loop]}}
	err := m.read(s)
	if err == nil && m.dialed == nil {
		err = fmt.Errorf("%w: the server's side of TLS, want the client's", takeover.ErrState)
	}
	if err != nil {
		return nil, err
	}
	return m.records, nil
}

// movedRecords is a record layer that comes from another process.
type movedRecords struct {
	*records
	protocol string
	sent     [][]byte // certificates of the client
}

// read reads all of it but for what it says of the peer.
func (m *movedRecords) read(s takeover.State) error {
	r := m.records
	var version, id, useless, skip uint64
	var in, out takeover.State
	var partial []byte
	err := s.Into([]any{
		tlsVersion: &version, tlsCipher: &id, tlsIn: &in, tlsOut: &out, tlsPartial: &partial, tlsProtocol: &m.protocol, tlsUseless: &useless, tlsDialed: &skip,
		tlsMessage: func(f takeover.Field) error {
			if len(f.Bytes) >= keyUpdateLen {
				return fmt.Errorf("%d bytes of a key update", len(f.Bytes))
			}
			r.messageLen = uint8(copy(r.message[:], f.Bytes))
			return nil
		},
		tlsClient: func(f takeover.Field) error { m.sent = append(m.sent, bytes.Clone(f.Bytes)); return nil },
	})
	r.partial, r.useless = append([]byte(nil), partial...), uint8(min(useless, maxUseless))
	if err != nil {
		return err
	}
	if version != tls.VersionTLS12 && version != tls.VersionTLS13 && version != gm.VersionTLCP || len(r.partial) > headerLen+maxCiphertext12 {
		return fmt.Errorf("%w: TLS version %#x, %d bytes of a record", takeover.ErrState, version, len(r.partial))
	}
	if skip > 0 {
		if skip-1 > maxTicketMessage {
			return fmt.Errorf("%w: %d bytes of a session ticket", takeover.ErrState, skip-1)
		}
		r.dialed = &dialed{skip: int(skip - 1)}
	}
	if r.suite = suiteOf(uint16(version), uint16(min(id, 1<<16-1))); r.suite == nil {
		return fmt.Errorf("%w: TLS cipher suite %#x is not known", takeover.ErrState, id)
	}
	return errors.Join(r.in.restore(r.suite, in), r.out.restore(r.suite, out))
}

// verifyAgain verifies a client's certificates, if there are any, as a handshake would now. That
// no revocation list is in date does not end what is established.
func (s *service) verifyAgain(state *tls.ConnectionState, sent [][]byte, national bool) error {
	if len(sent) == 0 {
		return nil
	}
	if national {
		return s.verifyGMAgain(state, sent)
	}
	for _, der := range sent {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("%w: %w", takeover.ErrState, err)
		}
		state.PeerCertificates = append(state.PeerCertificates, c)
	}
	if s.config.ClientCAs == nil {
		return errors.New("tls: the client has a certificate, and no authorities are configured here")
	}
	opt := x509.VerifyOptions{Roots: s.config.ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range state.PeerCertificates[1:] {
		opt.Intermediates.AddCert(c)
	}
	var err error
	if state.VerifiedChains, err = state.PeerCertificates[0].Verify(opt); err != nil {
		return fmt.Errorf("tls: the client's certificate: %w", err)
	}
	if s.revoked.revokes(state.VerifiedChains) {
		return errClientRevoked
	}
	return nil
}

func (h *half) restore(s *suite, state takeover.State) error {
	missing := s.keyLen + len(h.iv) + s.secretLen()
	take := func(dst, b []byte) error {
		if len(b) != len(dst) {
			return fmt.Errorf("%d bytes, want %d", len(b), len(dst))
		}
		missing -= copy(dst, b)
		return nil
	}
	err := state.Read(func(f takeover.Field) (bool, error) {
		switch {
		case f.Tag == halfSeq:
			h.seq = f.Uint
		case f.Tag == halfKey:
			return true, take(h.key[:s.keyLen], f.Bytes)
		case f.Tag == halfIV:
			return true, take(h.iv[:], f.Bytes)
		case f.Tag == halfSecret && s.secretLen() > 0:
			return true, take(h.secret[:s.secretLen()], f.Bytes)
		default:
			return false, nil
		}
		return true, nil
	})
	if err == nil && missing != 0 {
		err = fmt.Errorf("%w: keys are missing", takeover.ErrState)
	}
	return err
}
