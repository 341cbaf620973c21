package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2/hpack"
)

// blockReader puts the header blocks of a connection together and decodes them, on either
// side.
type blockReader struct {
	stream  uint32 // whose block is not complete; 0: none
	flags   uint8  // of its HEADERS frame, and selfDependent
	pieces  uint8
	shrunk  uint16         // by how many bytes the peer's header table is smaller than 4,096
	b       []byte         // of a block that is not complete; nil mostly
	decoder *hpack.Decoder // nil until the first block
}

const (
	// selfDependent marks a block whose stream depends on itself (RFC 7540 §5.3.1).
	selfDependent = 0x80
	// maxPieces bounds the CONTINUATION frames of a block.
	maxPieces = 32
)

// expects reports whether f may come now (RFC 9113 §6.10).
func (r *blockReader) expects(f header) bool {
	return r.stream == 0 || f.kind == frameContinuation && f.stream == r.stream
}

// start reads a HEADERS frame (§6.2). A reason says that the connection has to end; complete
// that block is all of it.
func (r *blockReader) start(f header, p []byte) (block []byte, complete bool, code Code, reason string) {
	if f.flags&flagPadded != 0 {
		if len(p) == 0 || int(p[0]) >= len(p) {
			return nil, false, ProtocolError, "padding is longer than its frame"
		}
		p = p[1 : len(p)-int(p[0])]
	}
	r.flags = f.flags & (flagEndStream | flagEndHeaders)
	if f.flags&flagPriority != 0 {
		if len(p) < 5 {
			return nil, false, FrameSizeError, "HEADERS have no room for their priority"
		}
		if binary.BigEndian.Uint32(p)&maxStreamID == f.stream {
			r.flags |= selfDependent
		}
		p = p[5:]
	}
	if f.flags&flagEndHeaders != 0 {
		return p, true, NoError, ""
	}
	r.stream, r.pieces = f.stream, 0
	r.b = append(r.b[:0], p...)
	return nil, false, NoError, ""
}

// add reads a CONTINUATION frame (§6.10), as start does. A block may have most bytes:
// beyond that the code is EnhanceYourCalm.
func (r *blockReader) add(f header, p []byte, most int) (block []byte, complete bool, code Code, reason string) {
	if r.stream == 0 {
		return nil, false, ProtocolError, "CONTINUATION of nothing"
	}
	r.pieces++
	if len(r.b)+len(p) > most || r.pieces > maxPieces {
		return nil, false, EnhanceYourCalm, "a header block is too long"
	}
	r.b = append(r.b, p...)
	if f.flags&flagEndHeaders == 0 {
		return nil, false, NoError, ""
	}
	block = r.b
	r.b, r.stream = nil, 0
	return block, true, NoError, ""
}

// ends reports whether the block ends its stream.
func (r *blockReader) ends() bool { return r.flags&flagEndStream != 0 }

// decode gives take the fields of a block. maxHead bounds a head in bytes.
func (r *blockReader) decode(block []byte, maxHead int, take func(hpack.HeaderField)) bool {
	if r.decoder == nil {
		r.decoder = newDecoder(maxHead)
	}
	r.noteTableSize(block)
	r.decoder.SetEmitFunc(take)
	_, err := r.decoder.Write(block)
	if e := r.decoder.Close(); err == nil {
		err = e
	}
	r.decoder.SetEmitFunc(nothing)
	return err == nil
}

func nothing(hpack.HeaderField) {}

// dataLeft is what is left of a DATA frame.
type dataLeft struct {
	left, pad int32
	ends      bool
}

// none reports whether the frame is over.
func (d *dataLeft) none() bool { return d.left == 0 && d.pad == 0 }

// dataHead reads the head of a DATA frame and the length of its padding (§6.1). used is 0 if
// b does not have both. A reason says that the connection has to end.
func dataHead(f header, b []byte) (d dataLeft, used int, code Code, reason string) {
	d = dataLeft{left: int32(f.length), ends: f.flags&flagEndStream != 0}
	switch {
	case f.stream == 0:
		return d, frameHead, ProtocolError, "DATA for no stream"
	case f.flags&flagPadded == 0:
		return d, frameHead, NoError, ""
	case f.length == 0:
		return d, frameHead, FrameSizeError, "DATA has no room for its padding"
	case len(b) == frameHead:
		return d, 0, NoError, ""
	}
	if d.pad = int32(b[frameHead]); d.pad >= d.left {
		return d, frameHead, ProtocolError, "padding is longer than its frame"
	}
	d.left -= 1 + d.pad
	return d, frameHead + 1, NoError, ""
}
