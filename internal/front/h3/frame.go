package h3

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
)

// Frame types (RFC 9114 §7.2; PRIORITY_UPDATE is RFC 9218 §7.2).
const (
	frameData           = 0x0
	frameHeaders        = 0x1
	frameCancelPush     = 0x3
	frameSettings       = 0x4
	framePushPromise    = 0x5
	frameGoAway         = 0x7
	frameMaxPushID      = 0xd
	framePriorityUpdate = 0xf0700
	framePriorityPush   = 0xf0701
)

// Types of streams in one direction (RFC 9114 §6.2, RFC 9204 §4.2).
const (
	streamControl = 0x0
	streamPush    = 0x1
	streamEncoder = 0x2
	streamDecoder = 0x3
)

// Settings (RFC 9114 §7.2.4.1, RFC 9220 §3). Those of QPACK's table have 0 by default, which
// is what is served: no table.
const (
	settingMaxFieldSection = 0x6
	settingConnect         = 0x8
)

// A Code is why a stream or a connection ended (RFC 9114 §8.1, RFC 9204 §6).
type Code uint64

// Codes.
const (
	NoError              Code = 0x100
	GeneralProtocolError Code = 0x101
	InternalError        Code = 0x102
	StreamCreationError  Code = 0x103
	ClosedCriticalStream Code = 0x104
	FrameUnexpected      Code = 0x105
	FrameError           Code = 0x106
	ExcessiveLoad        Code = 0x107
	IDError              Code = 0x108
	SettingsError        Code = 0x109
	MissingSettings      Code = 0x10a
	RequestRejected      Code = 0x10b
	RequestCancelled     Code = 0x10c
	RequestIncomplete    Code = 0x10d
	MessageError         Code = 0x10e
	DecompressionFailed  Code = 0x200
	EncoderStreamError   Code = 0x201
)

var codeNames = map[Code]string{
	NoError: "H3_NO_ERROR", GeneralProtocolError: "H3_GENERAL_PROTOCOL_ERROR", InternalError: "H3_INTERNAL_ERROR", StreamCreationError: "H3_STREAM_CREATION_ERROR",
	ClosedCriticalStream: "H3_CLOSED_CRITICAL_STREAM", FrameUnexpected: "H3_FRAME_UNEXPECTED", FrameError: "H3_FRAME_ERROR", ExcessiveLoad: "H3_EXCESSIVE_LOAD",
	IDError: "H3_ID_ERROR", SettingsError: "H3_SETTINGS_ERROR", MissingSettings: "H3_MISSING_SETTINGS", RequestRejected: "H3_REQUEST_REJECTED",
	RequestCancelled: "H3_REQUEST_CANCELLED", RequestIncomplete: "H3_REQUEST_INCOMPLETE", MessageError: "H3_MESSAGE_ERROR",
	DecompressionFailed: "QPACK_DECOMPRESSION_FAILED", EncoderStreamError: "QPACK_ENCODER_STREAM_ERROR",
}

// String returns the code's name, or its number.
func (c Code) String() string {
	if name := codeNames[c]; name != "" {
		return name
	}
	return fmt.Sprintf("%#x", uint64(c))
}

// A StreamError is why a stream was closed.
type StreamError struct {
	Code Code
	Peer bool // it was the client's wish
	why  string
}

// Error implements error.
func (e *StreamError) Error() string {
	switch {
	case e.Peer:
		return "the client reset the stream: " + e.Code.String()
	case e.why != "":
		return "stream error: " + e.Code.String() + ": " + e.why
	}
	return "stream error: " + e.Code.String()
}

// A connError ends the connection.
type connError struct {
	code Code
	why  string
}

// Error implements error.
func (e *connError) Error() string { return e.code.String() + ": " + e.why }

// frames reads the frames of a stream.
type frames struct{ in *bufio.Reader }

// next reads the head of a frame. io.EOF says that the stream ends before it.
func (f frames) next() (kind, length uint64, err error) {
	if _, err = f.in.Peek(1); err != nil {
		return 0, 0, err
	}
	if kind, err = quicvarint.Read(f.in); err == nil {
		length, err = quicvarint.Read(f.in)
	}
	return kind, length, truncated(err)
}

// truncated is err, unless it says that a stream ends within a frame (RFC 9114 §7.1).
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &connError{FrameError, "a stream ends within a frame"}
	}
	return err
}

// payload reads a frame's whole payload into b.
func (f frames) payload(b []byte, length uint64) ([]byte, error) {
	if uint64(cap(b)) < length {
		b = make([]byte, length)
	}
	b = b[:length]
	_, err := io.ReadFull(f.in, b)
	return b, truncated(err)
}

// skip drops a frame's payload.
func (f frames) skip(length uint64) error {
	if length > maxSkipped {
		return &connError{ExcessiveLoad, "a frame of an unknown type is too large"}
	}
	_, err := f.in.Discard(int(length))
	return truncated(err)
}

// maxSkipped bounds a frame of an unknown type.
const maxSkipped = 64 << 10

// onlyControl reports whether frames of that type stand on the control stream alone, or on
// no stream of a client's (RFC 9114 §7.2.8 reserves those of HTTP/2).
func onlyControl(kind uint64) bool {
	switch kind {
	case frameCancelPush, frameSettings, framePushPromise, frameGoAway, frameMaxPushID, framePriorityUpdate, framePriorityPush, 0x2, 0x6, 0x8, 0x9:
		return true
	}
	return false
}

// appendFrame appends the head of a frame.
func appendFrame(b []byte, kind, length uint64) []byte {
	return quicvarint.Append(quicvarint.Append(b, kind), length)
}

// appendSettings appends the beginning of a control stream: its type and SETTINGS.
func appendSettings(b []byte, maxFieldSection int) []byte {
	var p []byte
	for _, v := range [...]uint64{settingMaxFieldSection, uint64(maxFieldSection), settingConnect, 1} {
		p = quicvarint.Append(p, v)
	}
	b = quicvarint.Append(b, streamControl)
	return append(appendFrame(b, frameSettings, uint64(len(p))), p...)
}

// appendGoAway appends a GOAWAY frame: requests from id on are not served.
func appendGoAway(b []byte, id quic.StreamID) []byte {
	return quicvarint.Append(appendFrame(b, frameGoAway, uint64(quicvarint.Len(uint64(id)))), uint64(id))
}

// checkSettings looks for what a client may not say in SETTINGS (RFC 9114 §7.2.4).
func checkSettings(p []byte) error {
	seen := map[uint64]bool{}
	for len(p) > 0 {
		id, n, err := quicvarint.Parse(p)
		if err != nil {
			return &connError{FrameError, "SETTINGS end within a setting"}
		}
		p = p[n:]
		v, n, err := quicvarint.Parse(p)
		if err != nil {
			return &connError{FrameError, "SETTINGS end within a setting"}
		}
		p = p[n:]
		switch {
		case seen[id]:
			return &connError{SettingsError, "a setting comes twice"}
		case id >= 0x2 && id <= 0x5:
			return &connError{SettingsError, "a setting of HTTP/2"}
		case id == settingConnect && v > 1:
			return &connError{SettingsError, "a setting is neither 0 nor 1"}
		}
		seen[id] = true
	}
	return nil
}
