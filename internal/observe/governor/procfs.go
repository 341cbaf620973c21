package governor

import (
	"bytes"
	"os"
	"strconv"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A procFile is a file of the kernel's that stays open and is read again and again
// without allocating. One that is missing reads as empty.
type procFile struct {
	f   *os.File
	buf []byte
}

func openProc(path string, size int) procFile {
	f, err := os.Open(path)
	if err != nil {
		return procFile{}
	}
	return procFile{f: f, buf: make([]byte, size)}
}

func (p *procFile) read() []byte {
	if p.f == nil {
		return nil
	}
	n, _ := p.f.ReadAt(p.buf, 0) // io.EOF: it was shorter than the buffer
	return p.buf[:max(n, 0)]
}

func (p *procFile) close() {
	if p.f != nil {
		p.f.Close()
		p.f = nil
	}
}

// number reads the decimal digits that b starts with, after blanks. What does not fit
// is the greatest there is.
func number(b []byte) (n uint64, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " \t")
	i := 0
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		d := uint64(b[i] - '0')
		if n > (1<<64-1-d)/10 {
			n = 1<<64 - 1
			continue
		}
		n = n*10 + d
	}
	return n, b[i:], i > 0
}

// field finds the line that starts with key and a blank, and reads the number after it.
func field(b []byte, key string) (uint64, bool) {
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if len(line) > len(key) && string(line[:len(key)]) == key && (line[len(key)] == ' ' || line[len(key)] == '\t') {
			n, _, ok := number(line[len(key):])
			return n, ok
		}
	}
	return 0, false
}

// machineTime is the first line of /proc/stat, in ticks of all processors.
type machineTime struct {
	busy, steal, total uint64
}

// parseStat reads it: user nice system idle iowait irq softirq steal (proc_stat(5)).
// guest time is in user already.
func parseStat(b []byte) (machineTime, bool) {
	var m machineTime
	if !bytes.HasPrefix(b, []byte("cpu ")) {
		return m, false
	}
	rest, seen := b[4:], 0
	for i := range 8 {
		n, after, ok := number(rest)
		if !ok {
			break
		}
		rest, seen = after, i+1
		m.total += n
		switch i {
		case 3, 4: // idle, iowait
		case 7:
			m.steal = n
		default:
			m.busy += n
		}
	}
	return m, seen >= 4
}

// parsePressure reads avg10 of the lines "some" and "full" as shares (PSI).
func parsePressure(b []byte) (some, full float64, ok bool) {
	for line := range bytes.Lines(b) {
		i := bytes.Index(line, []byte("avg10="))
		if i < 0 {
			continue
		}
		whole, rest, found := number(line[i+6:])
		if !found {
			continue
		}
		v := float64(min(whole, 100))
		if len(rest) > 1 && rest[0] == '.' {
			if frac, after, has := number(rest[1:]); has && rest[1] >= '0' && rest[1] <= '9' {
				scale := 1.0
				for range len(rest) - 1 - len(after) {
					scale *= 10
				}
				v += float64(frac) / scale
			}
		}
		v = min(v, 100) / 100
		switch {
		case bytes.HasPrefix(line, []byte("some")):
			some, ok = v, true
		case bytes.HasPrefix(line, []byte("full")):
			full, ok = v, true
		}
	}
	return some, full, ok
}

// parseSchedstat is the second field of /proc/…/schedstat: the nanoseconds spent
// waiting for a processor.
func parseSchedstat(b []byte) (wait uint64, ok bool) { return secondNumber(b) }

// parseSockstat is the memory of TCP in pages (the line "TCP: … mem n").
func parseSockstat(b []byte) (pages uint64, ok bool) {
	i := bytes.Index(b, []byte("TCP:"))
	if i < 0 {
		return 0, false
	}
	line := b[i:]
	if j := bytes.IndexByte(line, '\n'); j >= 0 {
		line = line[:j]
	}
	j := bytes.Index(line, []byte(" mem "))
	if j < 0 {
		return 0, false
	}
	pages, _, ok = number(line[j+5:])
	return pages, ok
}

// parseStatm is the resident set in pages, the second field of /proc/self/statm.
func parseStatm(b []byte) (pages uint64, ok bool) { return secondNumber(b) }

func secondNumber(b []byte) (v uint64, ok bool) {
	_, rest, ok := number(b)
	if !ok {
		return 0, false
	}
	v, _, ok = number(rest)
	return v, ok
}

// maxThreads bounds how many threads' waits are read.
const maxThreads = 256

// threadWaits sums what the threads of this process waited for a processor. It keeps
// their files open and lists them anew when their number changed.
type threadWaits struct {
	dir     string
	files   map[int]*threadFile
	threads int
	age     int
	total   uint64
}

type threadFile struct {
	file procFile
	wait uint64
	seen bool
}

// read is the sum of all waits in nanoseconds, those of ended threads included as far
// as they were seen.
func (t *threadWaits) read(threads int) uint64 {
	t.age++
	if threads != t.threads || t.age >= 60 || t.files == nil {
		t.list()
		t.threads, t.age = threads, 0
	}
	for id, f := range t.files {
		wait, ok := parseSchedstat(f.file.read())
		if !ok { // the thread has ended
			f.file.close()
			delete(t.files, id)
			continue
		}
		if f.seen && wait > f.wait {
			t.total += wait - f.wait
		}
		f.wait, f.seen = wait, true
	}
	return t.total
}

func (t *threadWaits) list() {
	if t.files == nil {
		t.files = map[int]*threadFile{}
	}
	dir, err := os.Open(t.dir)
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxThreads)
	for _, name := range names {
		id, err := strconv.Atoi(name)
		if err != nil || t.files[id] != nil || len(t.files) >= maxThreads {
			continue
		}
		t.files[id] = &threadFile{file: openProc(t.dir+"/"+name+"/schedstat", 128)}
	}
}

func (t *threadWaits) close() {
	for _, f := range t.files {
		f.file.close()
	}
	t.files = nil
}

// descriptors counts the open files of this process. Linux 6.2 and later reports it in
// the directory's size; before, the names are counted, every tenth time.
type descriptors struct {
	dir   *os.File
	calls int
	last  int
}

func (d *descriptors) read() int {
	if d.dir == nil {
		return 0
	}
	if n := sys.FileSize(int(d.dir.Fd())); n > 0 {
		return int(n)
	}
	if d.calls++; d.calls%10 == 1 {
		if names, err := os.ReadDir(d.dir.Name()); err == nil {
			d.last = len(names)
		}
	}
	return d.last
}
