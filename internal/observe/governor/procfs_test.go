package governor

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	f := func(text string, want machineTime, ok bool) {
		t.Helper()
		if got, is := parseStat([]byte(text)); got != want && ok || is != ok {
			t.Errorf("parseStat(%q) = %+v, %v, want %+v, %v", text, got, is, want, ok)
		}
	}
	f("cpu  10 20 30 400 50 6 7 8 9 9\ncpu0 1 1 1 1\n", machineTime{busy: 73, steal: 8, total: 531}, true)
	f("cpu  10 20 30 400\n", machineTime{busy: 60, total: 460}, true)
	f("cpu0 1 2 3 4\n", machineTime{}, false)
	f("cpu  1 x\n", machineTime{}, false)
	f("", machineTime{}, false)
}

func TestParsePressure(t *testing.T) {
	f := func(text string, some, full float64, ok bool) {
		t.Helper()
		s, u, is := parsePressure([]byte(text))
		if d := s - some; d > 1e-9 || d < -1e-9 || u-full > 1e-9 || full-u > 1e-9 || is != ok {
			t.Errorf("parsePressure(%q) = %v, %v, %v, want %v, %v, %v", text, s, u, is, some, full, ok)
		}
	}
	f("some avg10=1.02 avg60=8.22 avg300=12.93 total=5434583135\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=0\n", 0.0102, 0.005, true)
	f("some avg10=100.00 avg60=0\n", 1, 0, true)
	f("some avg10=7\n", 0.07, 0, true)
	f("some avg10=7.\n", 0.07, 0, true)
	f("some avg10=\n", 0, 0, false)
	f("", 0, 0, false)
}

func TestParseTheSmallFiles(t *testing.T) {
	f := func(name string, got uint64, ok bool, want uint64, is bool) {
		t.Helper()
		if ok != is || ok && got != want {
			t.Errorf("%s: %d, %v, want %d, %v", name, got, ok, want, is)
		}
	}
	n, ok := parseSchedstat([]byte("670666 123332 3\n"))
	f("schedstat", n, ok, 123332, true)
	n, ok = parseSchedstat([]byte("670666\n"))
	f("schedstat, cut", n, ok, 0, false)
	n, ok = parseSockstat([]byte("sockets: used 3\nTCP: inuse 5 orphan 0 tw 1 alloc 9 mem 269\nUDP: inuse 0 mem 512\n"))
	f("sockstat", n, ok, 269, true)
	n, ok = parseSockstat([]byte("UDP: inuse 0 mem 512\n"))
	f("sockstat without TCP", n, ok, 0, false)
	n, ok = parseSockstat([]byte("TCP: inuse 5\nUDP: inuse 0 mem 512\n"))
	f("sockstat, another's memory", n, ok, 0, false)
	n, ok = parseStatm([]byte("9000 1234 5 6 7 8 9\n"))
	f("statm", n, ok, 1234, true)
	n, ok = parseThrottled([]byte("nr_periods 4\nnr_throttled 2\nthrottled_usec 1500\n"))
	f("cpu.stat v2", n, ok, 1500000, true)
	n, ok = parseThrottled([]byte("nr_periods 4\nnr_throttled 2\nthrottled_time 1500\n"))
	f("cpu.stat v1", n, ok, 1500, true)
	n, ok = parseThrottled([]byte("usage_usec 4\n"))
	f("cpu.stat without quota", n, ok, 0, false)
	f("memory.stat v2", parseInactive([]byte("anon 1\ninactive_file 77\n")), true, 77, true)
	f("memory.stat v1", parseInactive([]byte("inactive_file 3\ntotal_inactive_file 99\n")), true, 99, true)
	n, ok = field([]byte("MemTotal:       24683672 kB\n"), "MemTotal:")
	f("meminfo", n, ok, 24683672, true)
	n, _, ok = number([]byte("99999999999999999999999999"))
	f("a number too large", n, ok, 1<<64-1, true)
}

func FuzzKernelFiles(f *testing.F) {
	for _, name := range []string{"/proc/stat", "/proc/pressure/cpu", "/proc/self/schedstat", "/proc/net/sockstat", "/proc/self/statm",
		"/proc/meminfo", "/proc/self/cgroup", "/proc/self/mountinfo"} {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b)
		}
	}
	f.Add([]byte("some avg10=1.02 avg60=8.22\nfull avg10=99999999999999999999.999999999999999999999\n"))
	f.Add([]byte("cpu  18446744073709551615 18446744073709551615 1 1 1 1 1 1\n"))
	f.Add([]byte("nr_throttled 2\nthrottled_usec 18446744073709551615\n"))
	f.Add([]byte("31 23 0:28 /a\\040b /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n0::/a b/../..\n4:memory,cpu:/x\n"))
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		parseStat(b)
		parseSchedstat(b)
		parseSockstat(b)
		parseStatm(b)
		parseThrottled(b)
		parseInactive(b)
		if some, full, _ := parsePressure(b); !(some >= 0 && some <= 1 && full >= 0 && full <= 1) {
			t.Errorf("a pressure of %v, %v is not a share", some, full)
		}
		if n, rest, ok := number(b); len(rest) > len(b) || !ok && n != 0 {
			t.Errorf("number: %d, %d bytes left of %d, %v", n, len(rest), len(b), ok)
		}
		unified, v1 := parseCgroup(b)
		for _, p := range v1 {
			if p[0] != '/' {
				t.Errorf("the group %q is not a path", p)
			}
		}
		for _, m := range parseMounts(b) {
			for _, dir := range m.chain(root, unified) {
				if rel, err := filepath.Rel(root, dir); err != nil || rel == ".." || len(rel) > 2 && rel[:3] == "../" {
					t.Errorf("the group %q leads to %q, outside", unified, dir)
				}
			}
		}
	})
}

// The files of a real kernel: every one that is there must be understood.
func TestThisKernelIsUnderstood(t *testing.T) {
	s := newSlowReader("", findCgroup(""))
	defer s.close()
	s.read(1)
	r := s.latest()
	if r.machine.total == 0 || r.machine.busy == 0 {
		t.Errorf("/proc/stat: %+v", r.machine)
	}
	if r.rss < 1<<20 || r.used == 0 {
		t.Errorf("resident %d, used %d bytes: a test takes more than a megabyte", r.rss, r.used)
	}
	if r.files < 3 {
		t.Errorf("%d open files: there are three standard ones", r.files)
	}
	if _, err := os.Stat("/proc/pressure/cpu"); err == nil && !r.pressure.Known {
		t.Error("/proc/pressure/cpu is there and was not understood")
	}
	files := r.files
	f, err := os.Open("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 10 { // before Linux 6.2 they are counted every tenth time
		s.read(1)
	}
	if got := s.latest().files; got <= files {
		t.Errorf("with one more file open %d are counted, before %d", got, files)
	}
	if len(s.waits.files) == 0 {
		t.Error("no thread's schedstat was read")
	}
	if r.took <= 0 || r.took > time.Minute {
		t.Errorf("a reading took %v", r.took)
	}
}
