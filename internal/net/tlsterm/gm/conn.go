package gm

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"hash"
	"io"
)

const (
	recordChangeCipherSpec = 20
	recordAlert            = 21
	recordHandshake        = 22
	recordData             = 23

	headerLen     = 5
	maxPlaintext  = 1 << 14
	maxCiphertext = maxPlaintext + 2048
	// maxMessage bounds a handshake message: two chains of certificates fit.
	maxMessage = 64 << 10
	// maxIdle bounds the records in a row that carry no part of a message: alerts of
	// level warning and the ChangeCipherSpec of TLS 1.3.
	maxIdle = 8
)

// A conn reads and writes the messages of one handshake.
type conn struct {
	rw      io.ReadWriter
	version uint16 // VersionTLCP or VersionTLS13
	in, out half
	pending []byte // of messages that are not complete
	flight  []byte // records that are not written yet
	sum     hash.Hash
	idle    int
	started bool // a message was written
}

// half is one direction. A nil aead is plaintext.
type half struct {
	aead  cipher.AEAD
	suite *Suite
	keys  Keys
}

func newConn(rw io.ReadWriter, version uint16) *conn {
	return &conn{rw: rw, version: version, sum: Hash()}
}

// wipe overwrites what is left of the plaintext of messages.
func (c *conn) wipe() { clear(c.pending) }

func (h *half) set(s *Suite, k Keys) {
	h.suite, h.keys, h.aead = s, k, s.AEAD(k.Key, k.MAC)
}

// nonce is that of the next record: the number over the IV in TLS 1.3, behind the salt in TLCP.
func (h *half) nonce() []byte {
	nonce := bytes.Clone(h.keys.IV)
	if h.suite.Version == VersionTLS13 {
		binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^h.keys.Seq)
	} else {
		binary.BigEndian.PutUint64(nonce[4:], h.keys.Seq)
	}
	return nonce
}

// additional is what TLCP authenticates besides the data.
func (h *half) additional(typ uint8, n int) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 13), h.keys.Seq)
	b = append(b, typ, VersionTLCP>>8, VersionTLCP&0xff)
	return binary.BigEndian.AppendUint16(b, uint16(n))
}

// recordVersion is the version in the head of records.
func (c *conn) recordVersion() uint16 {
	if c.version == VersionTLCP {
		return VersionTLCP
	}
	return VersionTLS12
}

// readRecord returns the type and the plaintext of the next record. An alert is an error.
func (c *conn) readRecord() (typ uint8, data []byte, err error) {
	var head [headerLen]byte
	if _, err := io.ReadFull(c.rw, head[:]); err != nil {
		return 0, nil, err
	}
	version, n := binary.BigEndian.Uint16(head[1:]), int(binary.BigEndian.Uint16(head[3:]))
	switch {
	case version != c.recordVersion() && (version>>8 != 3 || c.version == VersionTLCP):
		return 0, nil, fail(alertProtocolVersion, "a record of version %#04x", version)
	case n > maxCiphertext:
		return 0, nil, fail(alertRecordOverflow, "a record of %d bytes", n)
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(c.rw, data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	typ = head[0]
	if c.in.aead != nil && !(c.version == VersionTLS13 && typ == recordChangeCipherSpec) {
		if typ, data, err = c.open(head[:], data); err != nil {
			return 0, nil, err
		}
	}
	if len(data) > maxPlaintext {
		return 0, nil, fail(alertRecordOverflow, "%d bytes in a record", len(data))
	}
	return typ, data, nil
}

// open decrypts a record.
func (c *conn) open(head, b []byte) (typ uint8, data []byte, err error) {
	h := &c.in
	typ = head[0]
	explicit := h.suite.Explicit()
	switch {
	case h.suite.Version == VersionTLS13 && typ != recordData:
		return 0, nil, fail(alertUnexpectedMessage, "a plaintext record of type %d under keys", typ)
	case len(b) < explicit+tagLen:
		return 0, nil, fail(alertBadRecordMAC, "a record that is too short")
	}
	nonce := h.nonce()
	if h.suite.Version == VersionTLS13 {
		data, err = h.aead.Open(b[:0], nonce, b, head)
	} else {
		copy(nonce[len(nonce)-explicit:], b[:explicit])
		b = b[explicit:]
		data, err = h.aead.Open(b[:0], nonce, b, h.additional(typ, len(b)-tagLen))
	}
	if err != nil {
		return 0, nil, fail(alertBadRecordMAC, "a record that does not decrypt")
	}
	h.keys.Seq++
	if h.suite.Version != VersionTLS13 {
		return typ, data, nil
	}
	if len(data) > maxPlaintext+1 {
		return 0, nil, fail(alertRecordOverflow, "%d bytes in a record", len(data))
	}
	data = bytes.TrimRight(data, "\x00")
	if len(data) == 0 {
		return 0, nil, fail(alertUnexpectedMessage, "a record without a type")
	}
	return data[len(data)-1], data[:len(data)-1], nil
}

// fill reads one record of handshake messages into pending.
func (c *conn) fill() error {
	for {
		typ, data, err := c.readRecord()
		if err != nil {
			return err
		}
		switch {
		case typ == recordHandshake && len(data) > 0:
			c.idle = 0
			c.pending = append(c.pending, data...)
			return nil
		case typ == recordAlert:
			if err := c.alert(data); err != nil {
				return err
			}
		case typ == recordChangeCipherSpec && c.version == VersionTLS13 && len(c.pending) == 0 && len(data) == 1 && data[0] == 1:
			// RFC 8446 §5: ignored until the handshake is over.
		default:
			return fail(alertUnexpectedMessage, "a record of type %d with %d bytes instead of a handshake message", typ, len(data))
		}
		if c.idle++; c.idle > maxIdle {
			return fail(alertUnexpectedMessage, "too many records without a message")
		}
	}
}

// alert returns the error of an alert, or nil for a warning that may be ignored.
func (c *conn) alert(b []byte) error {
	switch {
	case len(b) != 2:
		return fail(alertDecodeError, "an alert of %d bytes", len(b))
	case b[1] == alertCloseNotify:
		return io.EOF
	case c.version == VersionTLCP && b[0] == 1, c.version == VersionTLS13 && b[1] == alertUserCanceled:
		return nil
	}
	return PeerAlert(b[1])
}

// peek returns the type of the next message.
func (c *conn) peek() (uint8, error) {
	for len(c.pending) == 0 {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	return c.pending[0], nil
}

// read returns the next message, head included, which has to be of a type. It is added
// to the transcript unless that has to be done later.
func (c *conn) read(typ uint8) ([]byte, error) {
	msg, err := c.readUnhashed(typ)
	if err == nil {
		c.sum.Write(msg)
	}
	return msg, err
}

func (c *conn) readUnhashed(typ uint8) ([]byte, error) {
	for {
		if len(c.pending) > 0 && c.pending[0] != typ {
			return nil, fail(alertUnexpectedMessage, "message %d where %d is expected", c.pending[0], typ)
		}
		if len(c.pending) >= 4 {
			n := 4 + int(binary.BigEndian.Uint32(c.pending)&0xffffff)
			if n > maxMessage {
				return nil, fail(alertDecodeError, "a handshake message of %d bytes", n)
			}
			if len(c.pending) >= n {
				msg := bytes.Clone(c.pending[:n])
				c.pending = c.pending[n:]
				return msg, nil
			}
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

// boundary fails unless the last message ended its record: keys change there (RFC 8446 §5.1).
func (c *conn) boundary() error {
	if len(c.pending) > 0 {
		return fail(alertUnexpectedMessage, "a message across a change of keys")
	}
	return nil
}

// readChange reads the ChangeCipherSpec of TLCP and lets the next records be under k.
func (c *conn) readChange(s *Suite, k Keys) error {
	for {
		if err := c.boundary(); err != nil {
			return err
		}
		typ, data, err := c.readRecord()
		switch {
		case err != nil:
			return err
		case typ == recordChangeCipherSpec && len(data) == 1 && data[0] == 1:
			c.in.set(s, k)
			return nil
		case typ == recordAlert:
			if err := c.alert(data); err != nil {
				return err
			}
		default:
			return fail(alertUnexpectedMessage, "a record of type %d instead of ChangeCipherSpec", typ)
		}
		if c.idle++; c.idle > maxIdle {
			return fail(alertUnexpectedMessage, "too many records without a message")
		}
	}
}

// write adds a message to the transcript and to the flight.
func (c *conn) write(msg []byte) {
	c.sum.Write(msg)
	c.record(recordHandshake, msg)
}

// writeChange adds a ChangeCipherSpec to the flight.
func (c *conn) writeChange() { c.plainRecord(recordChangeCipherSpec, []byte{1}) }

// record adds data to the flight as records.
func (c *conn) record(typ uint8, data []byte) {
	for len(data) > 0 {
		n := min(len(data), maxPlaintext)
		if c.out.aead == nil {
			c.plainRecord(typ, data[:n])
		} else {
			c.sealRecord(typ, data[:n])
		}
		data = data[n:]
	}
}

func (c *conn) plainRecord(typ uint8, data []byte) {
	version := c.recordVersion()
	if !c.started && c.version == VersionTLS13 && typ == recordHandshake && data[0] == msgClientHello {
		version = 0x0301 // RFC 8446 §5.1: for servers that look at it
	}
	c.started = true
	c.flight = append(c.flight, typ, byte(version>>8), byte(version))
	c.flight = binary.BigEndian.AppendUint16(c.flight, uint16(len(data)))
	c.flight = append(c.flight, data...)
}

func (c *conn) sealRecord(typ uint8, data []byte) {
	h := &c.out
	nonce := h.nonce()
	version := c.recordVersion()
	if h.suite.Version == VersionTLS13 {
		n := h.suite.SealedLen(len(data) + 1)
		head := []byte{recordData, byte(version >> 8), byte(version), byte(n >> 8), byte(n)}
		c.flight = append(c.flight, head...)
		c.flight = h.aead.Seal(c.flight, nonce, append(bytes.Clone(data), typ), head)
	} else {
		explicit := h.suite.Explicit()
		n := explicit + h.suite.SealedLen(len(data))
		c.flight = append(c.flight, typ, byte(version>>8), byte(version), byte(n>>8), byte(n))
		c.flight = append(c.flight, nonce[len(nonce)-explicit:]...)
		c.flight = h.aead.Seal(c.flight, nonce, data, h.additional(typ, len(data)))
	}
	h.keys.Seq++
}

// flush writes the flight, in whole records.
func (c *conn) flush() error {
	b := c.flight
	c.flight = nil
	if len(b) == 0 {
		return nil
	}
	_, err := c.rw.Write(b)
	return err
}

// sendAlert notifies the peer why the handshake fails on this side.
func (c *conn) sendAlert(err error) {
	alert := uint8(alertInternalError)
	if e, ok := errors.AsType[*Error](err); ok {
		alert = e.Alert
	} else if _, ok := errors.AsType[PeerAlert](err); ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return
	}
	c.record(recordAlert, []byte{2, alert})
	_ = c.flush() // the error that counts is the caller's
}

// transcript is the hash of the messages so far.
func (c *conn) transcript() []byte { return c.sum.Sum(nil) }
