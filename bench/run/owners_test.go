package main

import (
	"bytes"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
)

const sampleHeap = `heap profile: 3: 700 [9: 9000] @ heap/1
2: 600 [2: 600] @ 0x1 0x2
#	0x1	net.newFD+0x17	/usr/local/go/src/net/fd.go:10
#	0x2	github.com/weir-gateway/weir/internal/net/eventloop.(*Loop).accept+0x1d	/x/loop.go:20
#	0x3	github.com/weir-gateway/weir/internal/app.run+0x1	/x/app.go:1

0: 0 [5: 8000] @ 0x9
#	0x9	github.com/weir-gateway/weir/internal/app.gone+0x1	/x/app.go:2

1: 100 [2: 400] @ 0x4
#	0x4	time.NewTimer+0x2	/usr/local/go/src/time/sleep.go:1

1: 50 [1: 50] @ 0x2
#	0x2	github.com/weir-gateway/weir/internal/net/eventloop.(*Loop).accept+0x30	/x/loop.go:21

# runtime.MemStats
# Alloc = 123
`

func TestLiveBytesGoToOurFunction(t *testing.T) {
	sum, err := parseHeap([]byte(sampleHeap))
	if err != nil {
		t.Fatal(err)
	}
	f := func(owner string, want float64) {
		t.Helper()
		if sum[owner] != want {
			t.Errorf("%s: %v, want %v (all: %v)", owner, sum[owner], want, sum)
		}
	}
	f("internal/net/eventloop.(*Loop).accept", 650)
	f("time.NewTimer", 100)
	if len(sum) != 2 {
		t.Errorf("%d owners, want 2: %v", len(sum), sum)
	}
	if _, err := parseHeap([]byte("\x1f\x8b")); err == nil {
		t.Error("a compressed profile was treated as text")
	}
}

// kept is what the next test allocates and must find.
var kept [][]byte

func TestThisRuntimesProfileIsUnderstood(t *testing.T) {
	old := runtime.MemProfileRate
	runtime.MemProfileRate = 1
	for range 1000 {
		kept = append(kept, make([]byte, 4096))
	}
	runtime.MemProfileRate = old
	runtime.GC()
	var b bytes.Buffer
	if err := pprof.Lookup("heap").WriteTo(&b, 1); err != nil {
		t.Fatal(err)
	}
	sum, err := parseHeap(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var got float64
	for owner, bytes := range sum {
		if strings.Contains(owner, "TestThisRuntimesProfileIsUnderstood") {
			got += bytes
		}
	}
	if got < 4096*1000 {
		t.Errorf("%v bytes found of %d allocated", got, 4096*1000)
	}
}

func TestMetricsKeepTheirLabels(t *testing.T) {
	m := parseMetrics([]byte("# HELP x y\nx 1\nweir_connections{transport=\"sse\"} 1e+04\nbad line\n\n"))
	if len(m) != 2 || m["x"] != 1 || m[`weir_connections{transport="sse"}`] != 10000 {
		t.Errorf("parsed %v", m)
	}
}

func TestOwnersAddUp(t *testing.T) {
	before := snapshot{heap: map[string]float64{"a": 1000}, rss: 1 << 20, metrics: map[string]float64{}}
	after := snapshot{heap: map[string]float64{"a": 31000, "b": 10000, "c": 1}, rss: 1<<20 + 70000,
		metrics: map[string]float64{"go_memstats_heap_inuse_bytes": 50000}}
	o := compareOwners(before, after, 100)
	if o.Heap[0] != (owned{"a", 300}) || o.Heap[1] != (owned{"b", 100}) || o.Heap[2].Owner != "all others" {
		t.Errorf("heap: %v", o.Heap)
	}
	var sum float64
	for _, c := range o.Classes[:len(o.Classes)-1] {
		sum += c.Bytes
	}
	if total := o.Classes[len(o.Classes)-1].Bytes; total != 700 || sum < 699.9 || sum > 700.1 {
		t.Errorf("classes add up to %v of %v: %v", sum, total, o.Classes)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(sampleHeap))
	f.Add([]byte("x{a=\"b\"} 1\n# y\n\n"))
	f.Add([]byte(`{"subscribers":1}`))
	f.Add([]byte(`{"name":"a","program":"b","ws":["--path"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if sum, err := parseHeap(text); err == nil {
			for owner, bytes := range sum {
				if owner == "" || bytes <= 0 {
					t.Errorf("owner %q has %v bytes", owner, bytes)
				}
			}
		}
		parseMetrics(text)
		if m, err := parseMeasure(text); err == nil && m["subscribers"] == 0 {
			t.Error("a report without subscribers was accepted")
		}
		if a, err := parseAdapter(text); err == nil && (a.Name == "" || a.Program == "") {
			t.Errorf("adapter without a name or program: %+v", a)
		}
	})
}
