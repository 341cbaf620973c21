package limit

import (
	"encoding/binary"
	"errors"
	"time"
)

// Bounds of what nodes send each other about their buckets.
const (
	// ShareVersion is the first byte of a message. A message of another version is dropped and
	// counted, as is one with anything that this version does not have.
	ShareVersion = 1

	maxShareEntries = 4096 // buckets in a message
	maxShareBytes   = 16 + maxShareEntries*20
	// maxCost bounds what is taken from one bucket in one message, in nanoseconds at its rate: a
	// bucket cannot be further ahead of the clock (Rate.Validate).
	maxCost = int64(366 * 24 * time.Hour)
)

var errShareMessage = errors.New("limit: not a message about shared buckets")

// A shareHeader is how a message about shared buckets begins.
//
//	byte     ShareVersion
//	byte     1: the node leaves; 0
//	8 bytes  which key the hashes are made with, little-endian
//	uvarint  number of the message, from 1
//
// The rest are tables: a byte with its number, in rising order, a uvarint with the number of
// its entries, at least 1, and the entries. An entry is the hash of a bucket's name, 8 bytes
// little-endian and not 0, and a uvarint: what was taken, in nanoseconds at the bucket's rate.
type shareHeader struct {
	leaves bool
	key    uint64
	number uint64
}

// appendShare appends a message. list is ordered by table and has no more than maxShareEntries.
func appendShare(b []byte, h shareHeader, list []spending) []byte {
	flags := byte(0)
	if h.leaves {
		flags = 1
	}
	b = binary.LittleEndian.AppendUint64(append(b, ShareVersion, flags), h.key)
	b = binary.AppendUvarint(b, h.number)
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].t == list[0].t {
			n++
		}
		b = binary.AppendUvarint(append(b, list[0].t), uint64(n))
		for _, s := range list[:n] {
			b = binary.LittleEndian.AppendUint64(b, s.key)
			b = binary.AppendUvarint(b, uint64(min(s.cost, maxCost)))
		}
		list = list[n:]
	}
	return b
}

// readShareHeader reads how a message begins, and returns the rest, for eachEntry.
func readShareHeader(b []byte) (h shareHeader, rest []byte, err error) {
	if len(b) < 11 || len(b) > maxShareBytes || b[0] != ShareVersion || b[1] > 1 {
		return h, nil, errShareMessage
	}
	h.leaves, h.key = b[1] == 1, binary.LittleEndian.Uint64(b[2:])
	number, n := binary.Uvarint(b[10:])
	if n <= 0 || number == 0 {
		return h, nil, errShareMessage
	}
	h.number = number
	return h, b[10+n:], nil
}

// eachEntry calls f with the entries of a message, until it ends or there is an error.
func eachEntry(b []byte, f func(table uint8, key uint64, cost int64)) error {
	last, total := uint8(0), uint64(0)
	for len(b) > 0 {
		table := b[0]
		count, n := binary.Uvarint(b[1:])
		if table <= last || n <= 0 || count == 0 || count > maxShareEntries || total+count > maxShareEntries {
			return errShareMessage
		}
		last, total = table, total+count
		b = b[1+n:]
		for range count {
			if len(b) < 9 {
				return errShareMessage
			}
			key := binary.LittleEndian.Uint64(b)
			cost, n := binary.Uvarint(b[8:])
			if key == 0 || n <= 0 || cost == 0 || cost > uint64(maxCost) {
				return errShareMessage
			}
			f(table, key, int64(cost))
			b = b[8+n:]
		}
	}
	return nil
}
