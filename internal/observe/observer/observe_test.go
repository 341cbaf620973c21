package observer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"runtime/trace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func observe(t *testing.T, o Options) *Report {
	t.Helper()
	if o.Duration == 0 {
		o.Duration, o.Slices = 900*time.Millisecond, 9
	}
	r, err := Observe(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if testing.Verbose() {
		b, _ := json.MarshalIndent(r.Findings, "", " ")
		t.Logf("%s\nprobes %+v\nlocks %+v", b, r.Probes, r.Locks)
	}
	return r
}

// observeUntil watches window after window until one shows what is there all the time: on
// a busy machine there are windows in which the process hardly runs.
func observeUntil(t *testing.T, o Options, shows func(*Report) bool) *Report {
	t.Helper()
	var r *Report
	for range 8 {
		if r = observe(t, o); shows(r) {
			break
		}
	}
	return r
}

func names(r *Report) []string {
	var list []string
	for _, f := range r.Findings {
		list = append(list, f.Name)
	}
	return list
}

// needs skips where the kernel does not let the probe in.
func needs(t *testing.T, r *Report, probe string) {
	t.Helper()
	for _, p := range r.Probes {
		if p.Name == probe && !p.On {
			t.Skipf("%s: %s", probe, p.Why)
		}
	}
}

func TestEachPlantedFaultIsNamed(t *testing.T) {
	f := func(fault, probe string, says string) {
		t.Helper()
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			r := observeUntil(t, Options{PID: planted(t, fault)}, func(r *Report) bool {
				if probe != "" {
					needs(t, r, probe)
				}
				return slices.Contains(names(r), fault)
			})
			i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Name == fault })
			if i < 0 {
				t.Fatalf("%s is not among the findings %q", fault, names(r))
			}
			if text := r.Findings[i].Text; !strings.Contains(text, says) || r.Findings[i].Do == "" {
				t.Errorf("%q does not say %q, or not what to do", text, says)
			}
		})
	}
	f("slow-sync", "system calls", "fsync took up to")
	f("lock-convoy", "system calls", "threads waited")
	f("page-fault-storm", "", "page faults a second")
	f("stopped-reader", "", "waited for their reader")
	f("accept-queue", "", "found a full accept queue")
}

func TestConnectionsThatEndAreCounted(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	r := observeUntil(t, Options{PID: planted(t, "short connections")}, func(r *Report) bool {
		needs(t, r, "tcp")
		return r.TCP.Ended.Count >= 5
	})
	if e := r.TCP.Ended; e.Count < 5 || e.Sent < 1000*e.Count/2 || e.LifeP99 <= 0 {
		t.Errorf("%+v, want connections with 1,000 bytes each", e)
	}
	if !slices.ContainsFunc(r.TCP.States, func(s StateChange) bool { return s.From == "SYN-RECV" && s.To == "ESTABLISHED" && s.Count > 4 }) {
		t.Errorf("%+v", r.TCP.States)
	}
	if len(r.TCP.Listeners) != 1 {
		t.Errorf("%+v", r.TCP.Listeners)
	}
}

// The client of a full queue sends its request to connect again.
func TestSegmentsSentAgainAreCounted(t *testing.T) {
	trial.Long(t)
	t.Parallel()
	r := observeUntil(t, Options{PID: planted(t, "accept-queue"), Duration: 1500 * time.Millisecond, Slices: 15}, func(r *Report) bool {
		needs(t, r, "tcp")
		return len(r.TCP.Retransmits) > 0
	})
	if len(r.TCP.Retransmits) == 0 {
		t.Errorf("none: %+v", r.TCP)
	}
}

func TestAQuietProcessHasNoFindings(t *testing.T) {
	t.Parallel()
	r := observe(t, Options{PID: planted(t, "none")})
	// What depends on the rest of the machine is not the process's.
	for _, n := range names(r) {
		if n != "run-queue" && n != "accept-queue" {
			t.Errorf("%s: %+v", n, r.Findings)
		}
	}
	needs(t, r, "system calls")
	if len(r.Syscalls) == 0 || r.Syscalls[0].Count == 0 || len(r.Syscalls[0].Slices) != 9 {
		t.Fatalf("no system calls: %+v", r.Syscalls)
	}
	var sum uint64
	for _, s := range r.Syscalls[0].Slices {
		for _, n := range s {
			sum += n
		}
	}
	if sum != r.Syscalls[0].Count {
		t.Errorf("the slices of %s have %d of %d calls", r.Syscalls[0].Name, sum, r.Syscalls[0].Count)
	}
	for _, p := range r.Probes {
		if p.On && p.Name == "system calls" && (p.Events == 0 || p.Seconds <= 0) {
			t.Errorf("what %s cost is not known: %+v", p.Name, p)
		}
	}
}

// Without rights there are words, and what /proc has.
func TestWithoutTheKernelsPart(t *testing.T) {
	t.Parallel()
	r := observeUntil(t, Options{PID: planted(t, "page-fault-storm"), NoKernel: true}, func(r *Report) bool { return len(r.Findings) > 0 })
	if !slices.Contains(names(r), "page-fault-storm") {
		t.Errorf("findings %q", names(r))
	}
	off := 0
	for _, p := range r.Probes {
		if !p.On {
			off++
			if p.Why == "" || strings.Contains(p.Why, "\n") {
				t.Errorf("%s is off because %q", p.Name, p.Why)
			}
		}
	}
	if off == 0 || r.CPU <= 0 || len(r.Faults.BySlice) != 9 {
		t.Errorf("%d probes off, %g s of processor time, %d slices", off, r.CPU, len(r.Faults.BySlice))
	}
	b, err := json.Marshal(r)
	if err != nil || bytes.Contains(b, []byte(`:null`)) {
		t.Errorf("%v %s", err, b)
	}
}

func TestWrongOptions(t *testing.T) {
	f := func(o Options, says string) {
		t.Helper()
		if _, err := Observe(t.Context(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", o, err, says)
		}
	}
	f(Options{}, "invalid process 0")
	f(Options{PID: 1 << 30}, "there is no process")
	f(Options{PID: os.Getpid(), Duration: time.Hour}, "up to 5m0s")
	f(Options{PID: os.Getpid(), Slices: 501}, "1 to 500")
}

func TestAWindowEndsEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, err := Observe(ctx, Options{PID: os.Getpid(), Duration: time.Minute, Started: cancel, NoKernel: true})
	if err != nil || r.Seconds > 30 {
		t.Errorf("%v %+v", err, r)
	}
}

// A trace with a mutex that is fought for names the wait; ratios and slices are there.
func TestGoTrace(t *testing.T) {
	var b bytes.Buffer
	if err := trace.Start(&b); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				mu.Lock()
				hold(200 * time.Microsecond)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	trace.Stop()
	r := observe(t, Options{PID: os.Getpid(), NoKernel: true, Duration: 200 * time.Millisecond, Slices: 4,
		Trace: func(context.Context, time.Duration) (io.ReadCloser, error) { return io.NopCloser(&b), nil }})
	g := r.Go
	if g == nil {
		t.Fatalf("no trace: %+v", r.Probes)
	}
	if g.SyncWait <= 0 || g.Procs < 1 || g.Threads < 1 || g.Goroutines < 4 || len(g.States) != 4 || g.Seconds <= 0 {
		t.Errorf("%+v", g)
	}
	var mean float64
	for _, s := range g.States {
		mean += s[waiting] / 4
	}
	columns := g.StateMap()
	if len(columns) != 4 {
		t.Fatalf("%d columns of states", len(columns))
	}
	all := make([]float64, len(StateNames))
	for _, c := range columns {
		if len(c) != len(StateNames) {
			t.Fatalf("%d rows of states, %d names", len(c), len(StateNames))
		}
		for row, v := range c {
			all[row] += v / 4
		}
	}
	// Goroutines that run are on a P that runs, and each P is one or the other.
	if p := all[4] + all[5]; all[0] > all[4]+0.05 || p > float64(g.Procs)+0.01 || p <= 0 || all[6] != all[4] || all[8] < 0 {
		t.Errorf("%v of %v", all, StateNames)
	}
	if d := mean - g.Waiting; d > 0.01 || d < -0.01 {
		t.Errorf("slices have %g waiting goroutines on average, all %g", mean, g.Waiting)
	}
}

func TestABadTraceIsNamed(t *testing.T) {
	f := func(text string) {
		t.Helper()
		g, err := readTrace(strings.NewReader(text), 4)
		if err == nil {
			t.Errorf("%q: %+v", text, g)
		}
	}
	f("")
	f("not a trace")
	f("go 1.26 trace\x00\x00\x00")
}

func TestErrorsOfTheKernelAreInWords(t *testing.T) {
	f := func(err error, says string) {
		t.Helper()
		if got := explain(fmt.Errorf("load program: %w", err)); !strings.Contains(got, says) || strings.Contains(got, "\n") {
			t.Errorf("%v: %q, want %q", err, got, says)
		}
	}
	f(syscall.EPERM, "CAP_BPF")
	f(ebpf.ErrNotSupported, "too old")
	f(syscall.ENOSYS, "too old")
	f(fs.ErrNotExist, "does not have the tracepoint")
	f(errors.New("verifier says\nmany\nlines"), "verifier says")
}

// The committed objects are those of the sources beside them.
func TestObjectsAreCurrent(t *testing.T) {
	sum := sha256.New()
	for _, name := range []string{"common.h", "syscalls.c", "sched.c", "faults.c", "tcp.c"} {
		b, err := os.ReadFile("bpf/" + name)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(b)
	}
	want, err := os.ReadFile("bpf/sources.sha256")
	if got := hex.EncodeToString(sum.Sum(nil)); err != nil || strings.TrimSpace(string(want)) != got {
		t.Errorf("the programs are older than their sources (%v); run: make observer", err)
	}
}

func TestSlots(t *testing.T) {
	b := bounds()
	if len(b) != slots || !slices.IsSorted(b) {
		t.Fatal(b)
	}
	var h [slots]tally
	if quantile(b, h, 0.99) != 0 {
		t.Error("a quantile of nothing")
	}
	h[20].count, h[40].count = 99, 1
	if p50, most := quantile(b, h, 0.5), quantile(b, h, 1); p50 != b[20] || most != b[40] {
		t.Errorf("%g %g", p50, most)
	}
}

func FuzzParseHexAddr(f *testing.F) {
	f.Add("0100007F:1F40")
	f.Add("00000000000000000000000001000000:9C40")
	f.Add("0000000000000000FFFF00000100007F:0050")
	f.Fuzz(func(t *testing.T, s string) {
		if a, ok := parseHexAddr(s); ok && !a.IsValid() {
			t.Errorf("%q: %v", s, a)
		}
	})
	if a, ok := parseHexAddr("0100007F:1F40"); !ok || a.String() != "127.0.0.1:8000" {
		f.Errorf("%v", a)
	}
	if a, ok := parseHexAddr("0000000000000000FFFF00000100007F:0050"); !ok || a.String() != "127.0.0.1:80" {
		f.Errorf("%v", a)
	}
}

func TestSocketsAreReadFromTheTable(t *testing.T) {
	f := func(line string, want socket, inode string) {
		t.Helper()
		s, i, ok := parseSocket([]byte(line))
		if s != want || i != inode || ok != (inode != "") {
			t.Errorf("%q: %+v %q %v, want %+v %q", line, s, i, ok, want, inode)
		}
	}
	any4 := netip.MustParseAddrPort("0.0.0.0:0")
	local := netip.MustParseAddrPort("127.0.0.1:8000")
	peer := netip.MustParseAddrPort("10.0.0.1:80")
	f("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode", socket{}, "")
	f("   0: 0100007F:1F40 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0", socket{local: local, peer: any4, listening: true, queue: 3}, "4711")
	f("12345: 0100007F:1F40 0100000A:0050 01 0000000A:00000000 01:00000014 00000000  1000        0 4712 2 0000000000000000 20 4 30 10 -1", socket{local: local, peer: peer}, "4712")
	f("   1: 0000000000000000FFFF00000100007F:1F40 0000000000000000FFFF00000100000A:0050 08 00000000:00000000 00:00000000 00000000  1000        0 4713 1", socket{local: local, peer: peer}, "4713")
	f("   2: 0100007F:1F40 0100000A:0050 06 00000000:00000000 03:0000173E 00000000     0        0 0 3 0000000000000000", socket{}, "")
	f("   3: 0100007F:1F40 0100000A:0050 01 0000000A", socket{}, "")
	f("", socket{}, "")
}

// Most lines of a busy machine are connections in TIME_WAIT.
func TestEndedConnectionsCostNoMemory(t *testing.T) {
	line := []byte("   2: 0100007F:1F40 0100000A:0050 06 00000000:00000000 03:0000173E 00000000     0        0 0 3 0000000000000000")
	if n := testing.AllocsPerRun(100, func() { parseSocket(line) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
