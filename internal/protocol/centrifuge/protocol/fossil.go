package protocol

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// A delta of the Fossil format makes a target out of a source. It is text, as long as
// what it inserts is text:
//
//	<length of the target>\n
//	<n>@<from>,      copy n bytes of the source from an offset on
//	<n>:<n bytes>    insert these
//	<checksum>;
//
// Numbers are written in 64 digits, the highest place first.

const deltaDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~"

const (
	deltaWindow = 8  // bytes that are looked up
	deltaMatch  = 12 // a copy shorter than this is not worth its own words
	deltaProbes = 8  // places of the source that are compared with one of the target
)

// AppendDelta appends a delta that makes target out of source. What it inserts never
// begins or ends within a rune of a target that is UTF-8, so that it can appear in a
// JSON string.
func AppendDelta(dst, source, target []byte) []byte {
	dst = appendDigits(dst, uint64(len(target)))
	dst = append(dst, '\n')
	index := indexSource(source, target)
	from := 0 // of what is not written yet
	for at := 0; at < len(target); {
		m, ok := index.find(target, from, at)
		if !ok {
			at++
			continue
		}
		dst = appendInsert(dst, target[from:m.to])
		dst = appendDigits(dst, uint64(m.n))
		dst = append(dst, '@')
		dst = appendDigits(dst, uint64(m.from))
		dst = append(dst, ',')
		from = m.to + m.n
		at = from
	}
	dst = appendInsert(dst, target[from:])
	dst = appendDigits(dst, uint64(deltaSum(target)))
	return append(dst, ';')
}

func appendInsert(dst, text []byte) []byte {
	if len(text) == 0 {
		return dst
	}
	dst = appendDigits(dst, uint64(len(text)))
	dst = append(dst, ':')
	return append(dst, text...)
}

// match reports that n bytes of the target at to are those of the source at from.
type match struct{ from, to, n int }

// sourceIndex finds the places of the source by the eight bytes that they start with.
type sourceIndex struct {
	source []byte
	heads  []int32 // by hash: the newest place, plus one
	older  []int32 // by place: the one before with the same hash, plus one
	shift  int
}

func indexSource(source, target []byte) *sourceIndex {
	x := &sourceIndex{source: source}
	if len(source) < deltaMatch || len(target) < deltaMatch || len(source) > math.MaxInt32 {
		return x
	}
	bits := 8
	for 1<<bits < len(source) && bits < 16 {
		bits++
	}
	x.shift = 64 - bits
	x.heads = make([]int32, 1<<bits)
	x.older = make([]int32, len(source))
	for i := 0; i+deltaWindow <= len(source); i++ {
		h := x.hash(source[i:])
		x.older[i] = x.heads[h]
		x.heads[h] = int32(i + 1)
	}
	return x
}

func (x *sourceIndex) hash(b []byte) uint64 {
	return binary.LittleEndian.Uint64(b) * 0x9e3779b97f4a7c15 >> x.shift
}

// find looks for the longest stretch of the source that is in target at at. It may
// reach back as far as floor.
func (x *sourceIndex) find(target []byte, floor, at int) (best match, ok bool) {
	if x.heads == nil || at+deltaWindow > len(target) {
		return match{}, false
	}
	place := x.heads[x.hash(target[at:])]
	for range deltaProbes {
		if place == 0 {
			break
		}
		m := x.extend(target, floor, match{from: int(place - 1), to: at})
		if m.n > best.n {
			best = m
		}
		place = x.older[place-1]
	}
	return best, best.n >= deltaMatch
}

// extend makes m as long as it can be, in whole runes.
func (x *sourceIndex) extend(target []byte, floor int, m match) match {
	for m.from+m.n < len(x.source) && m.to+m.n < len(target) && x.source[m.from+m.n] == target[m.to+m.n] {
		m.n++
	}
	for m.from > 0 && m.to > floor && x.source[m.from-1] == target[m.to-1] {
		m.from, m.to, m.n = m.from-1, m.to-1, m.n+1
	}
	for m.n > 0 && !utf8.RuneStart(target[m.to]) {
		m.from, m.to, m.n = m.from+1, m.to+1, m.n-1
	}
	for m.n > 0 && m.to+m.n < len(target) && !utf8.RuneStart(target[m.to+m.n]) {
		m.n--
	}
	return m
}

func appendDigits(dst []byte, v uint64) []byte {
	var buf [11]byte
	i := len(buf)
	for {
		i--
		buf[i] = deltaDigits[v&63]
		if v >>= 6; v == 0 {
			return append(dst, buf[i:]...)
		}
	}
}

// deltaSum adds up the bytes as words of 32 bits, the highest byte first; what is
// missing of the last word is zero.
func deltaSum(b []byte) uint32 {
	var sum uint32
	for ; len(b) >= 4; b = b[4:] {
		sum += binary.BigEndian.Uint32(b)
	}
	for i, c := range b {
		sum += uint32(c) << (24 - 8*i)
	}
	return sum
}
