//go:build amd64 || arm64

package observer

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
)

func TestMapsHaveTheSizesOfTheirTypes(t *testing.T) {
	f := func(file, name string, key, value any) {
		t.Helper()
		object, err := objects.ReadFile(file + architecture)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		m := spec.Maps[name]
		if m == nil {
			t.Fatalf("%s has no map %s", file, name)
		}
		if int(m.KeySize) != binary.Size(key) || int(m.ValueSize) != binary.Size(value) {
			t.Errorf("%s of %s: key of %d bytes, value of %d; in Go %d and %d", name, file, m.KeySize, m.ValueSize, binary.Size(key), binary.Size(value))
		}
	}
	f("syscalls", "calls", uint32(0), kernelTally{})
	f("syscalls", "under_way", uint32(0), callUnderWay{})
	f("syscalls", "waits", waitKey{}, kernelTally{})
	f("sched", "delays", uint32(0), kernelTally{})
	f("faults", "faults", uint32(0), uint64(0))
	f("tcp", "ports", uint16(0), uint8(0))
	f("tcp", "retransmits", portPair{}, kernelTally{})
	f("tcp", "states", uint32(0), kernelTally{})
	f("tcp", "ended", uint32(0), closedConns{})
}
