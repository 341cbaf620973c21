package h2

import "encoding/binary"

// Frame types (RFC 9113 §6; PRIORITY_UPDATE is RFC 9218 §7.1).
const (
	frameData           = 0x0
	frameHeaders        = 0x1
	framePriority       = 0x2
	frameReset          = 0x3
	frameSettings       = 0x4
	framePushPromise    = 0x5
	framePing           = 0x6
	frameGoAway         = 0x7
	frameWindowUpdate   = 0x8
	frameContinuation   = 0x9
	framePriorityUpdate = 0x10
)

// Flags.
const (
	flagAck        = 0x1
	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings (RFC 9113 §6.5.2, RFC 8441 §3, RFC 9218 §2.1).
const (
	settingTableSize     = 0x1
	settingEnablePush    = 0x2
	settingMaxStreams    = 0x3
	settingWindow        = 0x4
	settingMaxFrame      = 0x5
	settingMaxHeaderList = 0x6
	settingConnect       = 0x8
	settingNoPriorities  = 0x9
)

// A Code is why a stream or a connection ended (RFC 9113 §7).
type Code uint32

// Codes.
const (
	NoError            Code = 0x0
	ProtocolError      Code = 0x1
	InternalError      Code = 0x2
	FlowControlError   Code = 0x3
	SettingsTimeout    Code = 0x4
	StreamClosed       Code = 0x5
	FrameSizeError     Code = 0x6
	RefusedStream      Code = 0x7
	Cancel             Code = 0x8
	CompressionError   Code = 0x9
	ConnectError       Code = 0xa
	EnhanceYourCalm    Code = 0xb
	InadequateSecurity Code = 0xc
	HTTP11Required     Code = 0xd
)

var codeNames = [...]string{
	"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
	"REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
}

// String returns the code's name; one that is not known counts as INTERNAL_ERROR (§7).
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return codeNames[InternalError]
}

const (
	frameHead = 9
	// maxFrameSize is what a frame of the client may hold: the least that RFC 9113 §4.2 allows.
	maxFrameSize = 16 << 10
	// firstWindow is a window before anyone says otherwise (§6.9.2), maxWindow the largest.
	firstWindow = 1<<16 - 1
	maxWindow   = 1<<31 - 1
	maxStreamID = 1<<31 - 1
)

// Preface starts every connection of HTTP/2 (RFC 9113 §3.4).
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// header is the head of a frame.
type header struct {
	length int
	kind   uint8
	flags  uint8
	stream uint32
}

// parseHeader reads the head of a frame, of which b has all nine bytes. The reserved bit is
// ignored (§4.1).
func parseHeader(b []byte) header {
	return header{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: b[3], flags: b[4],
		stream: binary.BigEndian.Uint32(b[5:]) & maxStreamID,
	}
}

// appendHeader appends the head of a frame.
func appendHeader(b []byte, length int, kind, flags uint8, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags)
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendReset(b []byte, stream uint32, code Code) []byte {
	b = appendHeader(b, 4, frameReset, 0, stream)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendWindowUpdate(b []byte, stream, n uint32) []byte {
	b = appendHeader(b, 4, frameWindowUpdate, 0, stream)
	return binary.BigEndian.AppendUint32(b, n)
}

func appendPing(b []byte, flags uint8, data [8]byte) []byte {
	b = appendHeader(b, 8, framePing, flags, 0)
	return append(b, data[:]...)
}

func goAwayFrame(last uint32, code Code, why string) []byte {
	b := appendHeader(nil, 8+len(why), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, why...)
}

// A setting is one of a SETTINGS frame's.
type setting struct {
	id    uint16
	value uint32
}

func appendSettings(b []byte, list ...setting) []byte {
	b = appendHeader(b, 6*len(list), frameSettings, 0, 0)
	for _, s := range list {
		b = binary.BigEndian.AppendUint16(b, s.id)
		b = binary.BigEndian.AppendUint32(b, s.value)
	}
	return b
}

// appendBlock appends a header block as a HEADERS frame, and CONTINUATION frames where it
// is longer than a frame may be.
func appendBlock(b, block []byte, stream uint32, ends bool, maxFrame int) []byte {
	kind, flags := uint8(frameHeaders), uint8(0)
	if ends {
		flags = flagEndStream
	}
	for {
		n := min(len(block), maxFrame)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		b = append(appendHeader(b, n, kind, flags, stream), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return b
		}
		kind, flags = frameContinuation, 0
	}
}
