package wire

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strconv"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-gateway/weir/websocket"
)

// compressor writes events so that each can be understood without the one
// before: a message is then compressed once and its bytes go to every
// subscriber, whenever that one came.
//
// Gzip: after a bare header (RFC 1952 §2.3) the body is a sequence of deflate
// blocks (RFC 1951), each event's ended by a sync flush and free of references
// to earlier ones. The trailer would be due at the end, which a stream that is
// cut does not have; decoders deliver what came before.
//
// zstd: each event is a frame of its own (RFC 8878 §3.1).
type compressor struct {
	// EncodeAll may be called by any goroutine. There is an encoder for each that can
	// run, made at first use, so that no loop waits for another's.
	zstd *zstd.Encoder
}

func newCompressor() (*compressor, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithWindowSize(64<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	return &compressor{zstd: e}, nil
}

// GzipHeader starts a Gzip member without name, time and checksum of the header.
var GzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}

// syncTail is what a sync flush ends with and permessage-deflate leaves out
// (RFC 7692 §7.2.1).
var syncTail = []byte{0, 0, 0xff, 0xff}

const deflateLevel = 1

// appendGzip appends plain as one or more deflate blocks, stored if compressing
// does not make it shorter.
func (c *compressor) appendGzip(dst, plain []byte) []byte {
	at := len(dst)
	dst = websocket.Compress(dst, plain, deflateLevel)
	dst = append(dst, syncTail...)
	if len(dst)-at >= len(plain)+storedOverhead {
		dst = appendStored(dst[:at], plain)
	}
	return dst
}

const (
	storedOverhead = 10
	maxStored      = 1<<16 - 1
)

// appendStored appends plain as stored deflate blocks (RFC 1951 §3.2.4) and an
// empty one, as a sync flush would: some decoders hand out what they have only
// then. What comes before ends on a byte border.
func appendStored(dst, plain []byte) []byte {
	for len(plain) > 0 {
		n := min(len(plain), maxStored)
		dst = append(dst, 0, byte(n), byte(n>>8), ^byte(n), ^byte(n>>8))
		dst = append(dst, plain[:n]...)
		plain = plain[n:]
	}
	return append(append(dst, 0), syncTail...)
}

// appendZstd appends plain as one frame.
func (c *compressor) appendZstd(dst, plain []byte) []byte { return c.zstd.EncodeAll(plain, dst) }

// appendZstdStored appends plain as one frame of raw blocks (RFC 8878 §3.1.1), whose
// window is its content.
func appendZstdStored(dst, plain []byte) []byte {
	const single, size2, size4, last, maxBlock = 1 << 5, 1 << 6, 2 << 6, 1, 128 << 10
	dst = append(dst, 0x28, 0xb5, 0x2f, 0xfd)
	switch n := len(plain); {
	case n < 256:
		dst = append(dst, single, byte(n))
	case n < 256+1<<16:
		dst = binary.LittleEndian.AppendUint16(append(dst, single|size2), uint16(n-256))
	default:
		dst = binary.LittleEndian.AppendUint32(append(dst, single|size4), uint32(n))
	}
	for {
		n := min(len(plain), maxBlock)
		head := n << 3
		if n == len(plain) {
			head |= last
		}
		dst = append(dst, byte(head), byte(head>>8), byte(head>>16))
		dst = append(dst, plain[:n]...)
		if plain = plain[n:]; len(plain) == 0 {
			return dst
		}
	}
}

// appendDeflateFrame appends a text frame with payload compressed for itself
// (RFC 7692), or as it is if that is shorter.
func appendDeflateFrame(dst, payload []byte) []byte {
	packed := websocket.Compress(make([]byte, 0, len(payload)), payload, deflateLevel)
	if len(packed) >= len(payload) {
		return websocket.AppendFrame(dst, websocket.OpText, payload)
	}
	return append(websocket.AppendHeader(dst, true, true, websocket.OpText, len(packed)), packed...)
}

// A Coding is what an SSE body is encoded with.
type Coding uint8

const (
	Plain Coding = iota
	Gzip
	Zstd
	codings = iota
)

// String is the value of Content-Encoding.
func (c Coding) String() string { return [...]string{"identity", "gzip", "zstd"}[c] }

// ChooseCoding picks what an Accept-Encoding prefers of ours (RFC 9110 §12.5.3); of
// what it likes alike zstd, which costs less, before Gzip, and either before nothing.
func ChooseCoding(accept []byte) Coding {
	best, most := Plain, 0
	for item := range bytes.SplitSeq(accept, []byte(",")) {
		name, params, _ := bytes.Cut(item, []byte(";"))
		c := Plain
		switch string(bytes.ToLower(bytes.TrimSpace(name))) {
		case "zstd":
			c = Zstd
		case "gzip", "x-gzip":
			c = Gzip
		case "identity":
		default:
			continue
		}
		if w := weight(params); w > most || w == most && w > 0 && c > best {
			best, most = c, w
		}
	}
	return best
}

// weight returns the weight among params in thousandths: 1000 if there is none, 0 for
// one that is malformed.
func weight(params []byte) int {
	for param := range bytes.SplitSeq(params, []byte(";")) {
		name, q, ok := bytes.Cut(param, []byte("="))
		if !ok || !bytes.EqualFold(bytes.TrimSpace(name), []byte("q")) {
			continue
		}
		w, err := strconv.ParseFloat(string(bytes.TrimSpace(q)), 64)
		if err != nil || !(w >= 0 && w <= 1) {
			return 0
		}
		return int(w*1000 + 0.5)
	}
	return 1000
}
