package websocket

import "sync"

// Buffers for partial messages come in three sizes from pools, so that a crowd of
// connections with a few bytes of a message each does not hold large buffers, and
// larger ones from the allocator, so that no pool hoards them.
const (
	smallBuf  = 1 << 10
	mediumBuf = 8 << 10
	largeBuf  = 64 << 10
)

var (
	smallBufs  = sync.Pool{New: func() any { return new([smallBuf]byte) }}
	mediumBufs = sync.Pool{New: func() any { return new([mediumBuf]byte) }}
	largeBufs  = sync.Pool{New: func() any { return new([largeBuf]byte) }}
	assemblies = sync.Pool{New: func() any { return new(assembly) }}
)

// getBuf returns an empty buffer with room for at least n bytes.
func getBuf(n int) []byte {
	switch {
	case n <= smallBuf:
		return smallBufs.Get().(*[smallBuf]byte)[:0]
	case n <= mediumBuf:
		return mediumBufs.Get().(*[mediumBuf]byte)[:0]
	case n <= largeBuf:
		return largeBufs.Get().(*[largeBuf]byte)[:0]
	}
	return make([]byte, 0, n)
}

// putBuf gives a buffer of getBuf back. Its capacity says which pool it is from;
// nil and the allocator's own are left to the collector.
func putBuf(b []byte) {
	switch cap(b) {
	case smallBuf:
		smallBufs.Put((*[smallBuf]byte)(b[:smallBuf]))
	case mediumBuf:
		mediumBufs.Put((*[mediumBuf]byte)(b[:mediumBuf]))
	case largeBuf:
		largeBufs.Put((*[largeBuf]byte)(b[:largeBuf]))
	}
}

// grow makes room for n more bytes in a buffer that will never hold more than
// most, doubling on the way there. It may move b and give the old one back.
func grow(b []byte, n, most int) []byte {
	need := len(b) + n
	if need <= cap(b) {
		return b
	}
	next := getBuf(max(need, min(2*cap(b), most)))
	next = append(next, b...)
	putBuf(b)
	return next
}

// assembly is what a Parser needs only while a frame or a message is partial, or
// while an event out of it is in the caller's hands.
type assembly struct {
	buf     []byte // the message so far; compressed bytes if it is compressed
	checked int    // bytes of buf that are complete runes (text that is not compressed)

	control  [maxControl]byte // payload of a partial control frame
	ncontrol int
}

// release gives the assembly and its buffer back to the pools.
func (a *assembly) release() {
	putBuf(a.buf)
	a.buf, a.checked, a.ncontrol = nil, 0, 0
	assemblies.Put(a)
}
