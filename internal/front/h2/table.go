package h2

import (
	"fmt"
	"slices"

	"golang.org/x/net/http2/hpack"
)

// The client's header table (RFC 7541 §2.3.2) belongs to the decoder, which has no method to
// read it. Its entries are found by decoding their numbers, and a table is filled by decoding
// literals that are to be added to it.

const (
	tableSize   = 4096 // the size that SETTINGS do not change
	status400   = 12   // number of ":status: 400" in the static table (Appendix A)
	firstEntry  = 62   // number of the newest entry: the static table comes first
	indexedBit  = 0x80 // an indexed field (§6.1), 7 bits of the number
	literalBit  = 0x40 // a literal that is added (§6.2.1), with a name of its own
	sizeBits    = 0x20 // a new size of the table (§6.3), 5 bits
	sizeMask    = 0xe0
	moreThanAll = tableSize/32 + 1
)

// noteTableSize keeps the size that the peer gave its table at the beginning of a block.
func (r *blockReader) noteTableSize(block []byte) {
	for len(block) > 0 && block[0]&sizeMask == sizeBits {
		size, n := int(block[0]&(1<<5-1)), 1
		if size == 1<<5-1 {
			for shift := 0; ; shift += 7 {
				if n == len(block) || shift > 14 {
					return
				}
				b := block[n]
				n++
				if size += int(b&0x7f) << shift; b&0x80 == 0 {
					break
				}
			}
		}
		r.shrunk = uint16(tableSize - min(size, tableSize))
		block = block[n:]
	}
}

// appendTable appends a header block that makes an empty table like the peer's.
func (r *blockReader) appendTable(dst []byte) []byte {
	if r.shrunk > 0 {
		dst = appendInt(dst, sizeBits, 5, uint64(tableSize-r.shrunk))
	}
	if r.decoder == nil {
		return dst
	}
	entries := make([]hpack.HeaderField, 0, 8)
	number := make([]byte, 0, 2)
	r.decoder.SetEmitFunc(func(f hpack.HeaderField) { entries = append(entries, f) })
	for i := range moreThanAll {
		if _, err := r.decoder.Write(appendInt(number, indexedBit, 7, uint64(firstEntry+i))); err != nil {
			break // there is no entry of that number
		}
	}
	_ = r.decoder.Close()
	r.decoder.SetEmitFunc(nothing)
	for _, f := range slices.Backward(entries) { // the oldest first
		dst = append(dst, literalBit)
		dst = appendString(dst, f.Name)
		dst = appendString(dst, f.Value)
	}
	return dst
}

// fillTable makes r's empty table what block says.
func (r *blockReader) fillTable(maxHead int, block []byte) error {
	r.noteTableSize(block)
	r.decoder = newDecoder(maxHead)
	_, err := r.decoder.Write(block)
	if e := r.decoder.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("a header table: %w", err)
	}
	return nil
}

// newDecoder returns a decoder with an empty table. maxHead bounds a head in bytes.
func newDecoder(maxHead int) *hpack.Decoder {
	d := hpack.NewDecoder(tableSize, nothing)
	d.SetMaxStringLength(4 * maxHead)
	return d
}

// appendInt appends v as an integer with a prefix of that many bits (§5.1).
func appendInt(b []byte, first byte, prefix int, v uint64) []byte {
	most := uint64(1)<<prefix - 1
	if v < most {
		return append(b, first|byte(v))
	}
	b = append(b, first|byte(most))
	for v -= most; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}

// appendString appends s as it is (§5.2): with Huffman's code it would be shorter, and take longer to write and to read while
// clients wait.
func appendString(b []byte, s string) []byte { return append(appendInt(b, 0, 7, uint64(len(s))), s...) }
