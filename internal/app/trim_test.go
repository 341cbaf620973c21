package app

import (
	"runtime"
	"testing"
)

func TestMemoryIsTrimmedOnceWhenABurstIsOver(t *testing.T) {
	n, freed := uint64(0), 0
	tr := newTrimmer(func() uint64 { return n })
	tr.free = func() { freed++; runtime.GC() }
	var burst [][]byte
	make8MiB := func() {
		for range 8 {
			burst = append(burst, make([]byte, 1<<20))
		}
		burst = nil
	}
	runtime.GC()
	make8MiB()
	for range 5 { // busy
		n++
		tr.tick()
	}
	if freed != 0 {
		t.Fatalf("trimmed %d times under load", freed)
	}
	for range 10 { // quiet
		tr.tick()
	}
	if freed != 1 {
		t.Errorf("trimmed %d times after the burst, want once", freed)
	}
	n++
	for range 10 { // a little was done, and there is nothing to gain
		tr.tick()
	}
	if freed > 2 {
		t.Errorf("trimmed %d times", freed)
	}
	runtime.KeepAlive(burst)
}
