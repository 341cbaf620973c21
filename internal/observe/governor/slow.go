package governor

import (
	"os"
	"sync"
	"time"
)

// slowReader reads what the kernel reports in files, once a second on a goroutine of
// its own, for a read may wait. Files stay open; in steady state it does not allocate.
type slowReader struct {
	stat, statm, sockstat                 procFile
	pressureCPU, pressureMemory, pressure procFile
	cpuStat, memStat, memUsed             procFile
	waits                                 threadWaits
	files                                 descriptors
	page                                  uint64

	mu  sync.Mutex
	out slowReading
}

// A slowReading is what it found. What only rises counts since some time before.
type slowReading struct {
	at        time.Time
	took      time.Duration
	wait      uint64 // ns
	machine   machineTime
	pressure  Pressure
	throttled uint64 // ns
	rss       uint64
	kernel    uint64
	// used is what counts against the memory limit.
	used  uint64
	files int
}

func newSlowReader(root string, c cgroup) *slowReader {
	s := &slowReader{
		stat: openProc(root+"/proc/stat", 512), statm: openProc(root+"/proc/self/statm", 128),
		sockstat:    openProc(root+"/proc/net/sockstat", 1024),
		pressureCPU: openProc(root+"/proc/pressure/cpu", 256), pressureMemory: openProc(root+"/proc/pressure/memory", 256),
		pressure: openProc(root+"/proc/pressure/io", 256),
		waits:    threadWaits{dir: root + "/proc/self/task"},
		page:     uint64(os.Getpagesize()),
	}
	if dir := own(c.cpu); dir != "" {
		s.cpuStat = openProc(dir+"/cpu.stat", 1024)
	}
	// The memory's account is the group's only when the group is limited: without a limit
	// it may be the whole machine's.
	if dir := own(c.memory); dir != "" && c.memoryLimit() > 0 {
		s.memStat = openProc(dir+"/memory.stat", 8192)
		if c.v2Memory {
			s.memUsed = openProc(dir+"/memory.current", 64)
		} else {
			s.memUsed = openProc(dir+"/memory.usage_in_bytes", 64)
		}
	}
	if dir, err := os.Open(root + "/proc/self/fd"); err == nil {
		s.files.dir = dir
	}
	return s
}

// read reads everything once. Only its goroutine calls it.
func (s *slowReader) read(threads int) {
	var r slowReading
	r.at = time.Now()
	r.machine, _ = parseStat(s.stat.read())
	r.wait = s.waits.read(threads)
	p := &r.pressure
	p.CPU, _, p.Known = parsePressure(s.pressureCPU.read())
	p.Memory, p.MemoryFull, _ = parsePressure(s.pressureMemory.read())
	p.IO, p.IOFull, _ = parsePressure(s.pressure.read())
	r.throttled, _ = parseThrottled(s.cpuStat.read())
	pages, _ := parseStatm(s.statm.read())
	r.rss = pages * s.page
	pages, _ = parseSockstat(s.sockstat.read())
	r.kernel = pages * s.page
	r.used = r.rss
	if used, _, ok := number(s.memUsed.read()); ok {
		r.used = used - min(parseInactive(s.memStat.read()), used)
	}
	r.files = s.files.read()
	r.took = time.Since(r.at)
	s.mu.Lock()
	s.out = r
	s.mu.Unlock()
}

// latest is the last reading.
func (s *slowReader) latest() slowReading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

func (s *slowReader) close() {
	for _, f := range []*procFile{&s.stat, &s.statm, &s.sockstat, &s.pressureCPU, &s.pressureMemory, &s.pressure, &s.cpuStat, &s.memStat, &s.memUsed} {
		f.close()
	}
	s.waits.close()
	if s.files.dir != nil {
		s.files.dir.Close()
	}
}
