// Package prefetch loads memory into the cache before it is needed. Code that is about to look at many
// things that are in none of the processor's caches waits for each of them, some 100 ns,
// unless it requested all of them first: then they come side by side.
//
// It pays where a loop's next objects are known ahead and lie scattered; it changes
// nothing but time.
package prefetch

import "unsafe"

// Line is how many bytes come at a time.
const Line = 64

// Object prefetches all lines of *p. It returns at once, whatever p is: a bad pointer costs a
// look at the page tables and nothing else. *p is not read in the sense of the memory
// model: who may not look at it may still request it.
func Object[T any](p *T) { Bytes(p, unsafe.Sizeof(*p)) }

// Bytes prefetches the lines of the n bytes from p on, at least one. That may be more than
// *p: of what it is the first field of.
func Bytes[T any](p *T, n uintptr) {
	from := uintptr(unsafe.Pointer(p))
	for at := from; at < from+n; at += Line {
		read(at)
	}
	read(from + n - 1) // it need not start with a line
}
