package tlsterm

import (
	"bytes"
	"crypto/cipher"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The record layer of a connection whose handshake is over: RFC 8446 §5, for TLS 1.2
// with an AEAD RFC 5246 §6.2.3.3, RFC 5288 and RFC 7905, and for TLCP GB/T 38636 §6.3.
//
// crypto/tls does the handshake and is then dropped: its Conn wants a goroutine
// that blocks, and keeps several kilobytes of buffers for a connection that
// says nothing. What is left between handshake and close is small enough to
// are here: records in, records out, key updates and alerts.

const (
	typeChangeCipherSpec = 20
	typeAlert            = 21
	typeHandshake        = 22
	typeData             = 23

	headerLen  = 5
	minPartial = 256
	// maxPlaintext is the most a record may carry (RFC 8446 §5.1).
	maxPlaintext    = 1 << 14
	maxCiphertext13 = maxPlaintext + 256
	maxCiphertext12 = maxPlaintext + 2048

	helloRequest      = 0
	clientHello       = 1
	keyUpdate         = 24
	keyUpdateLen      = 5
	updateRequested   = 1
	updateUnrequested = 0

	// maxUseless bounds the records in a row that carry no data: each costs a
	// decryption and brings nothing.
	maxUseless = 32
	// recordsPerKey is when the sending key is renewed: AES-GCM stays safe for
	// about 2^24.5 full records (RFC 8446 §5.5).
	recordsPerKey = 1 << 24
)

// The alerts this side sends (RFC 8446 §6).
const (
	alertCloseNotify       = 0
	alertUnexpectedMessage = 10
	alertBadRecordMAC      = 20
	alertRecordOverflow    = 22
	alertDecodeError       = 50
	alertIllegalParameter  = 47
	alertProtocolVersion   = 70
	alertInternalError     = 80
	alertUserCanceled      = 90
)

// ErrClosed is what Open returns once the connection has failed.
var ErrClosed = errors.New("tls: the connection has ended")

// An AlertError reports that the peer ended the connection with an alert.
type AlertError uint8

func (e AlertError) Error() string { return "tls: the peer sent: " + tls.AlertError(e).Error() }

// A recordError is a peer's breach of protocol and the alert that answers it.
type recordError struct {
	alert  uint8
	reason string
}

func (e *recordError) Error() string { return "tls: " + e.reason }

// half is one direction: its keys and the number of its next record.
type half struct {
	aead   cipher.AEAD // made from key when needed, see warmth
	seq    uint64
	iv     [12]byte
	key    [32]byte
	secret [48]byte // TLS 1.3: the traffic secret that the next one comes from
	used   bool     // since the warmth last looked at it
	listed bool     // in the warmth's list
}

// records is the record layer of one connection. It belongs to the
// connection's loop; no lock.
type records struct {
	loopState *loopState
	suite     *suite
	in, out   half
	// partial is the beginning of a record whose end has not come; nil when there
	// is none.
	partial []byte
	// message is the beginning of a key update.
	message    [keyUpdateLen]byte
	messageLen uint8
	useless    uint8
	failed     bool
	ended      bool    // the peer sent close_notify
	dialed     *dialed // nil: the server's side
	peer       *Peer   // what the handshake found out; nil: the client's side
	forget     func()  // called when the connection is closed; nil: nothing is to be done
}

// Open takes b from the socket and returns the plaintext in it, which lies in b
// or is valid until the loop's next Open. reply is to be sent as it is. io.EOF
// says that the peer has ended its side in order; any other error is final.
func (r *records) Open(b []byte) (plain, reply []byte, err error) {
	switch {
	case r.failed:
		return nil, nil, ErrClosed
	case r.ended: // what comes after close_notify is ignored (RFC 8446 §6.1)
		return nil, nil, io.EOF
	}
	if len(r.partial) > 0 {
		var whole bool
		if b, whole = r.complete(b); !whole {
			return nil, nil, nil
		}
	}
	plain = b[:0]
	requested := false
	for {
		n, err := r.recordLen(b)
		if err != nil {
			return plain, r.fail(err), err
		}
		if n == 0 {
			break
		}
		err = r.openRecord(b[:n:n], &plain, &requested)
		b = b[n:]
		switch {
		case err == io.EOF: //nolint:errorlint // openRecord returns it bare
			r.ended = true
			if requested { // what is still to be sent comes after it
				reply = r.updateKey(nil)
			}
			return plain, reply, io.EOF
		case err != nil:
			return plain, r.fail(err), err
		}
	}
	if len(b) > 0 { // not at once its whole length: a slow peer pays for what it sends
		r.partial = append(make([]byte, 0, min(r.wholeLen(b), max(2*len(b), minPartial))), b...)
	}
	if requested {
		reply = r.updateKey(nil)
	}
	return plain, reply, nil
}

// wholeLen is the length of the record that b starts, as far as it is known.
func (r *records) wholeLen(b []byte) int {
	if len(b) < headerLen {
		return headerLen
	}
	return headerLen + int(binary.BigEndian.Uint16(b[3:]))
}

// complete puts b behind the partial record. It returns the two in the loop's
// scratch once there is at least one whole record.
func (r *records) complete(b []byte) (all []byte, whole bool) {
	if len(r.partial)+len(b) < r.wholeLen(r.partial) {
		r.partial = append(r.partial, b...)
		return nil, false
	}
	all = append(append(r.loopState.scratch[:0], r.partial...), b...)
	r.loopState.scratch = all
	r.partial = nil
	return all, true
}

// recordLen returns the length of the whole record that b starts with, or 0
// when its end has not come.
func (r *records) recordLen(b []byte) (int, error) {
	if len(b) < headerLen {
		return 0, nil
	}
	if v := r.suite.recordVersion(); b[1] != byte(v>>8) || r.suite.tlcp() && b[2] != byte(v) {
		return 0, &recordError{alertProtocolVersion, "not a TLS record"}
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	limit := maxCiphertext12
	if r.suite.v13 {
		limit = maxCiphertext13
	}
	if n > limit {
		return 0, &recordError{alertRecordOverflow, fmt.Sprintf("a record of %d bytes", n)}
	}
	if len(b) < headerLen+n {
		return 0, nil
	}
	return headerLen + n, nil
}

// openRecord decrypts one whole record in place and moves its data down to the
// end of plain.
func (r *records) openRecord(rec []byte, plain *[]byte, requested *bool) error {
	var sealed []byte
	if d := r.dialed; d != nil && d.conn != nil {
		sealed = bytes.Clone(rec)
	}
	typ, data, err := r.decrypt(rec)
	if err != nil {
		return err
	}
	if typ == typeData && r.betweenMessages() {
		if d := r.dialed; d != nil {
			d.forget()
		}
		if len(data) == 0 {
			return r.noData()
		}
		r.useless = 0
		*plain = append(*plain, data...) // never past data: the record was longer
		return nil
	}
	switch {
	case typ == typeAlert && r.betweenMessages():
		return r.alert(data)
	case typ == typeHandshake && r.suite.v13 && r.dialed != nil:
		if err := r.serverMessage(data, requested); err != nil {
			return err
		}
		r.dialed.ticket(sealed, data)
		return nil
	case typ == typeHandshake && r.suite.v13:
		return r.handshakeMessage(data, requested)
	case typ == typeHandshake:
		return &recordError{alertUnexpectedMessage, "renegotiation is refused"}
	}
	return &recordError{alertUnexpectedMessage, fmt.Sprintf("a record of type %d", typ)}
}

// betweenMessages reports whether no message after the handshake is open: nothing
// else may appear within one (RFC 8446 §5.1).
func (r *records) betweenMessages() bool {
	return r.messageLen == 0 && (r.dialed == nil || r.dialed.skip == 0)
}

// decrypt opens one record in place and returns its true type.
func (r *records) decrypt(rec []byte) (typ uint8, data []byte, err error) {
	h, s := &r.in, r.suite
	body := rec[headerLen:]
	if s.v13 {
		if rec[0] != typeData {
			return 0, nil, &recordError{alertUnexpectedMessage, fmt.Sprintf("a bare record of type %d", rec[0])}
		}
		nonce := r.loopState.nonceOf(h)
		data, err = r.cipher(h, true).Open(body[:0], nonce, body, rec[:headerLen])
	} else {
		if len(body) < s.explicit+tagLen {
			return 0, nil, &recordError{alertBadRecordMAC, "a record too short"}
		}
		nonce := r.loopState.nonceOf(h)
		if s.explicit > 0 {
			copy(nonce[4:], body[:s.explicit])
			body = body[s.explicit:]
		}
		data, err = r.cipher(h, true).Open(body[:0], nonce, body, r.loopState.additional(h.seq, rec[0], s.recordVersion(), len(body)-tagLen))
	}
	if err != nil {
		return 0, nil, &recordError{alertBadRecordMAC, "a record that does not decrypt"}
	}
	h.seq++
	most := maxPlaintext
	if s.v13 {
		most++ // the type; padding does not change the limit (RFC 8446 §5.4)
	}
	if len(data) > most {
		return 0, nil, &recordError{alertRecordOverflow, fmt.Sprintf("%d bytes in a record", len(data))}
	}
	typ = rec[0]
	if s.v13 {
		if typ, data = innerType(data); typ == 0 {
			return 0, nil, &recordError{alertUnexpectedMessage, "a record without a type"}
		}
	}
	return typ, data, nil
}

// innerType takes the padding and the type off (RFC 8446 §5.4).
func innerType(b []byte) (uint8, []byte) {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0 {
			return b[i], b[:i]
		}
	}
	return 0, nil
}

func (r *records) noData() error {
	if r.useless++; r.useless > maxUseless {
		return &recordError{alertUnexpectedMessage, "too many records without data"}
	}
	return nil
}

func (r *records) alert(b []byte) error {
	switch {
	case len(b) == 0 && r.suite.v13: // §5.4
		return &recordError{alertUnexpectedMessage, "an empty alert"}
	case len(b) != 2:
		return &recordError{alertDecodeError, "an alert of a wrong length"}
	case b[1] == alertCloseNotify:
		return io.EOF
	case r.suite.v13 && b[1] == alertUserCanceled, !r.suite.v13 && b[0] == 1:
		return r.noData() // a warning
	}
	return AlertError(b[1])
}

// handshakeMessage takes a message after the handshake: only a key update may
// come from a client (RFC 8446 §4.6), nothing else follows it in its
// record (§5.1), and it may itself come in pieces.
func (r *records) handshakeMessage(b []byte, requested *bool) error {
	if len(b) == 0 {
		return &recordError{alertUnexpectedMessage, "an empty handshake record"}
	}
	n := copy(r.message[r.messageLen:], b)
	r.messageLen += uint8(n)
	if err := r.noData(); err != nil {
		return err
	}
	switch m := r.message[:r.messageLen]; {
	case m[0] != keyUpdate:
		return &recordError{alertUnexpectedMessage, "a handshake message after the handshake"}
	case len(m) >= 4 && (m[1] != 0 || m[2] != 0 || m[3] != 1):
		return &recordError{alertDecodeError, "a key update of a wrong length"}
	case n < len(b):
		return &recordError{alertUnexpectedMessage, "something behind a key update"}
	case len(m) < keyUpdateLen:
		return nil
	case m[4] > updateRequested:
		return &recordError{alertIllegalParameter, "a key update of an unknown kind"}
	default:
		*requested = *requested || m[4] == updateRequested
	}
	r.messageLen = 0
	r.suite.nextKey(&r.in)
	return nil
}

// fail makes the connection dead and returns the alert for the peer, if one is due.
func (r *records) fail(err error) (reply []byte) {
	r.failed = true
	r.partial = nil
	if e, ok := errors.AsType[*recordError](err); ok {
		return r.seal(nil, typeAlert, []byte{2, e.alert})
	}
	return nil
}

// Seal appends b to dst as records.
func (r *records) Seal(dst, b []byte) []byte {
	for len(b) > 0 {
		if r.out.seq >= recordsPerKey && r.suite.v13 {
			dst = r.updateKey(dst)
		}
		n := min(len(b), maxPlaintext)
		dst = r.seal(dst, typeData, b[:n])
		b = b[n:]
	}
	return dst
}

// Release gives up the ciphers; the connection is closed.
func (r *records) Release() {
	r.failed = true
	r.partial = nil
	r.loopState.read.dismiss(&r.in)
	r.loopState.write.dismiss(&r.out)
	if r.forget != nil {
		r.forget()
	}
}

// Close appends close_notify to dst.
func (r *records) Close(dst []byte) []byte {
	if r.failed {
		return dst
	}
	return r.seal(dst, typeAlert, []byte{1, alertCloseNotify})
}

// updateKey appends a key update to dst and takes the next sending key.
func (r *records) updateKey(dst []byte) []byte {
	dst = r.seal(dst, typeHandshake, []byte{keyUpdate, 0, 0, 1, updateUnrequested})
	r.suite.nextKey(&r.out)
	return dst
}

func (r *records) seal(dst []byte, typ uint8, b []byte) []byte {
	h, s := &r.out, r.suite
	start := len(dst)
	nonce := r.loopState.nonceOf(h)
	if s.v13 {
		n := len(b) + 1 + tagLen
		dst = append(dst, typeData, 3, 3, byte(n>>8), byte(n))
		body := len(dst)
		dst = append(append(dst, b...), typ)
		dst = r.cipher(h, false).Seal(dst[:body], nonce, dst[body:], dst[start:body])
	} else {
		n, v := s.explicit+s.sealedLen(len(b)), s.recordVersion()
		dst = append(dst, typ, byte(v>>8), byte(v), byte(n>>8), byte(n))
		dst = append(dst, nonce[len(nonce)-s.explicit:]...) // the number of the record: unique, which is all that is asked (RFC 5288 §3)
		body := len(dst)
		dst = append(dst, b...)
		dst = r.cipher(h, false).Seal(dst[:body], nonce, dst[body:], r.loopState.additional(h.seq, typ, v, len(b)))
	}
	h.seq++
	return dst
}
