package http1

// A Chunked decodes a chunked body (RFC 9112 §7.1). The zero value is at
// the beginning of one. It holds no bytes, so a connection can keep it by value.
//
// Trailer fields are checked and dropped, except by DecodeTrailer: none of them may
// be merged into the head without knowing its meaning (RFC 9110 §6.5.1).
type Chunked struct {
	remain int64       // data bytes left in this chunk; its size while that is being read
	excess uint16      // bytes of size lines beyond what their chunks excuse
	count  uint16      // bytes of the current size line, or of the trailer section
	state  chunkedStep // what is expected next
}

const (
	// maxChunkLine bounds one size line with its extensions.
	maxChunkLine = 1 << 10
	// maxChunkExcess bounds all size lines of a body. A chunk excuses 16 bytes
	// and twice its data; beyond that a body is more extension than data.
	maxChunkExcess = 8 << 10
	// maxTrailer bounds the trailer section.
	maxTrailer = 16 << 10
	// maxChunkSize keeps four more bits from overflowing.
	maxChunkSize = 1<<59 - 1
)

type chunkedStep uint8

const (
	sizeFirst   chunkedStep = iota // first digit of a size
	sizeMore                       // further digits, ";" or CR
	extStart                       // extension name, white space before it allowed
	extName                        //
	extNameEnd                     // white space after the name
	extEqual                       // value, white space before it allowed
	extValue                       //
	extQuoted                      // inside a quoted value
	extEscape                      // after a backslash there
	extValueEnd                    // after a value: white space, ";" or CR
	sizeLF                         // LF of the size line
	chunkData                      //
	dataCR                         // CRLF after the data
	dataLF                         //
	trailStart                     // first byte of a trailer line
	trailName                      //
	trailValue                     //
	trailLF                        // LF of a trailer line
	finalLF                        // LF of the last line
	chunkedDone                    // everything read
	chunkedBad                     // refused
)

var (
	errChunkSize  = &Error{400, "bad chunk size"}
	errChunkEnd   = &Error{400, "chunk is not followed by CRLF"}
	errChunkExt   = &Error{400, "bad chunk extension"}
	errChunkLine  = &Error{400, "chunk extensions are too long"}
	errTrailer    = &Error{400, "bad trailer field"}
	errTrailerLen = &Error{400, "trailer is too large"}
	errChunkedBad = &Error{400, "chunked body was refused before"}
)

// Decode consumes n bytes of b and returns the body data among them, a slice of
// b that may be empty. Call it again with b[n:] until that is empty, then with
// what comes next; done says that the body is complete and b[n:] belongs to the
// next message. Every error is an *Error with status 400 and is final.
func (c *Chunked) Decode(b []byte) (data []byte, n int, done bool, err error) {
	return c.DecodeTrailer(b, nil)
}

// DecodeTrailer is Decode that also appends the bytes of the trailer section to
// trailer, unless that is nil: field lines that were checked like those of a head,
// and the empty line at the end. They are at most 16 KiB. Anyone who passes them on must
// leave out what may not appear in a trailer (RFC 9110 §6.5.1).
func (c *Chunked) DecodeTrailer(b []byte, trailer *[]byte) (data []byte, n int, done bool, err error) {
	if c.state == chunkedBad {
		return nil, 0, false, errChunkedBad
	}
	for n < len(b) && c.state != chunkedDone {
		if c.state == chunkData {
			k := int(min(c.remain, int64(len(b)-n)))
			if c.remain -= int64(k); c.remain == 0 {
				c.state = dataCR
			}
			return b[n : n+k : n+k], n + k, false, nil
		}
		if c.state >= trailStart && trailer != nil {
			*trailer = append(*trailer, b[n])
		}
		if e := c.step(b[n]); e != nil {
			c.state = chunkedBad
			return nil, n, false, e
		}
		n++
	}
	return nil, n, c.state == chunkedDone, nil
}

// step takes one byte that is not data.
func (c *Chunked) step(b byte) *Error {
	switch {
	case c.state < sizeLF:
		if c.count++; c.count > maxChunkLine {
			return errChunkLine
		}
		if c.state <= sizeMore {
			return c.size(b)
		}
		return c.extension(b)
	case c.state == sizeLF:
		return c.sizeEnd(b)
	case c.state == dataCR:
		return c.expect(b, '\r', dataLF, errChunkEnd)
	case c.state == dataLF:
		return c.expect(b, '\n', sizeFirst, errChunkEnd)
	}
	if c.count++; c.count > maxTrailer {
		return errTrailerLen
	}
	return c.trailer(b)
}

func (c *Chunked) expect(b, want byte, next chunkedStep, err *Error) *Error {
	if b != want {
		return err
	}
	c.state = next
	return nil
}

// size takes hexadecimal digits and nothing beside them: no sign, no "0x", no
// white space, although RFC 9112 §7.1.1 lets it stand before a ";".
func (c *Chunked) size(b byte) *Error {
	if class[b]&isHex == 0 {
		if c.state == sizeFirst {
			return errChunkSize
		}
		switch b {
		case ';':
			c.state = extStart
		case '\r':
			c.state = sizeLF
		default:
			return errChunkSize
		}
		return nil
	}
	// 16 digits: more are only zeros, or too large.
	if c.remain > maxChunkSize || c.count > 16 {
		return errChunkSize
	}
	c.remain = c.remain<<4 | int64(hexDigit(b))
	c.state = sizeMore
	return nil
}

// extension takes *( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] ).
func (c *Chunked) extension(b byte) *Error {
	token := class[b]&isToken != 0
	switch c.state {
	case extStart, extEqual:
		switch {
		case token && c.state == extStart:
			c.state = extName
		case token:
			c.state = extValue
		case b == '"' && c.state == extEqual:
			c.state = extQuoted
		case !isSpace(b):
			return errChunkExt
		}
		return nil
	case extQuoted:
		switch {
		case b == '"':
			c.state = extValueEnd
		case b == '\\':
			c.state = extEscape
		case class[b]&isValue == 0:
			return errChunkExt
		}
		return nil
	case extEscape:
		if class[b]&isValue == 0 {
			return errChunkExt
		}
		c.state = extQuoted
		return nil
	}
	// After a name or a value, or inside one that is a token.
	switch {
	case token && (c.state == extName || c.state == extValue):
	case b == ';':
		c.state = extStart
	case b == '\r':
		c.state = sizeLF
	case b == '=' && c.state <= extNameEnd:
		c.state = extEqual
	case isSpace(b) && c.state <= extNameEnd:
		c.state = extNameEnd
	case isSpace(b):
		c.state = extValueEnd
	default:
		return errChunkExt
	}
	return nil
}

// sizeEnd takes the LF of a size line and settles what the line cost.
func (c *Chunked) sizeEnd(b byte) *Error {
	if b != '\n' {
		return errChunkSize
	}
	excess := int64(c.excess) + int64(c.count)
	excess -= min(excess, 16+2*min(c.remain, maxChunkExcess))
	if excess > maxChunkExcess {
		return errChunkLine
	}
	c.excess, c.count = uint16(excess), 0
	c.state = chunkData
	if c.remain == 0 {
		c.state = trailStart
	}
	return nil
}

// trailer takes field lines by the rules of cutField, a byte at a time.
func (c *Chunked) trailer(b byte) *Error {
	switch c.state {
	case trailStart:
		switch {
		case b == '\r':
			c.state = finalLF
		case class[b]&isToken != 0:
			c.state = trailName
		default:
			return errTrailer
		}
	case trailName:
		switch {
		case b == ':':
			c.state = trailValue
		case class[b]&isToken == 0:
			return errTrailer
		}
	case trailValue:
		switch {
		case b == '\r':
			c.state = trailLF
		case class[b]&isValue == 0:
			return errTrailer
		}
	case trailLF:
		return c.expect(b, '\n', trailStart, errTrailer)
	case finalLF:
		return c.expect(b, '\n', chunkedDone, errTrailer)
	}
	return nil
}
