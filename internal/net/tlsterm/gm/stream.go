package gm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// A Stream is an established connection as a net.Conn, for callers that block: load
// generators and tests. The loops of a server use their own record layer.
type Stream struct {
	net.Conn
	State *State

	readMu sync.Mutex
	in     *conn
	wire   *bufio.Reader // what in reads from
	rest   []byte
	err    error // of reading, final

	writeMu sync.Mutex
	out     *conn
}

const msgKeyUpdate = 24

// DialStream runs a client's handshake on raw.
func DialStream(raw net.Conn, cfg *ClientConfig) (*Stream, error) {
	s, err := Client(raw, cfg)
	if err != nil {
		return nil, err
	}
	return NewStream(raw, s), nil
}

// NewStream continues from a handshake on raw.
func NewStream(raw net.Conn, s *State) *Stream {
	v := &Stream{Conn: raw, State: s, wire: bufio.NewReaderSize(raw, headerLen+maxCiphertext), out: newConn(raw, s.Version)}
	v.in = newConn(struct {
		io.Reader
		io.Writer
	}{v.wire, raw}, s.Version)
	v.in.in.set(s.Suite, s.In)
	v.out.out.set(s.Suite, s.Out)
	return v
}

// Read implements net.Conn.
func (v *Stream) Read(b []byte) (int, error) {
	v.readMu.Lock()
	defer v.readMu.Unlock()
	for len(v.rest) == 0 {
		if v.err == nil {
			if err := v.await(); err != nil {
				return 0, err
			}
			v.err = v.readRecord()
		}
		if v.err != nil && len(v.rest) == 0 {
			return 0, v.err
		}
	}
	n := copy(b, v.rest)
	v.rest = v.rest[n:]
	return n, nil
}

// await returns when a whole record has arrived. A deadline that passes before leaves what
// has arrived: reading may continue.
func (v *Stream) await() error {
	head, err := v.wire.Peek(headerLen)
	if err == nil {
		n := headerLen + int(binary.BigEndian.Uint16(head[3:]))
		_, err = v.wire.Peek(min(n, v.wire.Size()))
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return err
	}
	v.err = err
	return err
}

func (v *Stream) readRecord() error {
	typ, data, err := v.in.readRecord()
	switch {
	case err != nil:
		return err
	case typ == recordData:
		v.rest = data
		return nil
	case typ == recordAlert:
		return v.in.alert(data)
	case typ == recordHandshake && v.State.Version == VersionTLS13:
		return v.message(data)
	}
	return fail(alertUnexpectedMessage, "a record of type %d", typ)
}

// message takes in a key update or session tickets.
func (v *Stream) message(b []byte) error {
	if len(b) > 0 && b[0] == msgNewSessionTicket {
		if v.State.Tickets != nil {
			v.State.Tickets.Add(b)
		}
		return nil
	}
	if len(b) != 5 || !bytes.Equal(b[:4], []byte{msgKeyUpdate, 0, 0, 1}) || b[4] > 1 {
		return fail(alertUnexpectedMessage, "a handshake message after the handshake")
	}
	v.in.in.next()
	if b[4] == 1 {
		return v.UpdateKey(false)
	}
	return nil
}

// next takes the keys that follow a key update.
func (h *half) next() { h.set(h.suite, Traffic(NextSecret(h.keys.Secret))) }

// UpdateKey renews the sending key of TLS 1.3, and with request the peer's.
func (v *Stream) UpdateKey(request bool) error {
	if v.State.Version != VersionTLS13 {
		return errors.New("gm: TLCP has no key update")
	}
	v.writeMu.Lock()
	defer v.writeMu.Unlock()
	kind := byte(0)
	if request {
		kind = 1
	}
	v.out.record(recordHandshake, []byte{msgKeyUpdate, 0, 0, 1, kind})
	v.out.out.next()
	return v.out.flush()
}

// Write implements net.Conn.
func (v *Stream) Write(b []byte) (int, error) {
	v.writeMu.Lock()
	defer v.writeMu.Unlock()
	v.out.record(recordData, b)
	if err := v.out.flush(); err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite sends close_notify.
func (v *Stream) CloseWrite() error {
	v.writeMu.Lock()
	defer v.writeMu.Unlock()
	v.out.record(recordAlert, []byte{1, alertCloseNotify})
	return v.out.flush()
}

// Close implements net.Conn.
func (v *Stream) Close() error {
	err := v.CloseWrite()
	if e := v.Conn.Close(); err == nil || errors.Is(err, io.ErrClosedPipe) {
		err = e
	}
	return err
}
