package prefetch

import (
	"testing"
	"unsafe"
)

func TestAnyPointerWillDo(t *testing.T) {
	var small byte
	var large [1000]int64
	large[999] = 7
	Object(&small)
	Object(&large)
	Object[[200]byte](nil)
	Bytes(&small, 1<<16)
	for _, p := range []uintptr{1, 1 << 20, 1<<63 + 1, ^uintptr(0)} {
		read(p)
	}
	if large[999] != 7 || small != 0 {
		t.Error("what was requested has changed")
	}
}

func TestPrefetchAllocatesNothing(t *testing.T) {
	large := new([1000]int64)
	if n := testing.AllocsPerRun(100, func() { Object(large) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkScattered adds up objects that are in no cache, requested and not.
func BenchmarkScattered(b *testing.B) {
	type object struct {
		n int
		_ [312]byte
	}
	const objects, batch = 1 << 18, 64
	all := make([]*object, objects)
	for i := range all {
		all[i*40503%objects] = &object{n: i} // not in the order of the addresses
	}
	for _, ask := range []bool{false, true} {
		name := "unasked"
		if ask {
			name = "asked"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportMetric(float64(unsafe.Sizeof(object{})), "B/object")
			sum, at := 0, 0
			for range b.N {
				some := all[at : at+batch]
				at = (at + batch) % objects
				if ask {
					for _, o := range some {
						Object(o)
					}
				}
				for _, o := range some {
					for i := 0; i < 100; i++ { // what is done with each
						sum = sum*31 + i
					}
					sum += o.n
				}
			}
			if sum == 0 {
				b.Log(sum)
			}
		})
	}
}
