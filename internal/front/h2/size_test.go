package h2

import (
	"testing"
	"unsafe"
)

func TestSizes(t *testing.T) {
	f := func(what string, size, most uintptr) {
		t.Helper()
		if size > most {
			t.Errorf("%s has %d bytes, want at most %d, a size class of the allocator", what, size, most)
		}
	}
	f("a stream", unsafe.Sizeof(stream{}), 192)
	f("a connection", unsafe.Sizeof(conn{}), 352)
}
