package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// A Machine is where checks read. The zero value reads nothing; see [Local].
type Machine struct {
	// FS has /proc, /sys and /etc below it.
	FS fs.FS
	// PID is the process of which limits and cgroup are read; 0 means this one.
	PID int
	// Listen are the ports that clients connect to, for the NOTRACK rule and for
	// reserved ports besides those that are open.
	Listen []int
	// Card reads network cards; nil: they cannot be read here.
	Card EthtoolReader
	// Links are devices that are to be shaped by class.
	Links []Link
	// Notrack reads the NOTRACK rule; nil: it cannot be read here.
	Notrack Store
	// Queues reads the queues of devices; nil: they cannot be read here.
	Queues Store
}

// Local is this machine. With a root other than "/" its files are read below root, such
// as a host's mounted into a container, and neither cards nor rules are read: these
// belong to the running kernel.
func Local(root string) *Machine {
	if root == "" || root == "/" {
		return &Machine{FS: os.DirFS("/"), Card: Ethtool{}, Notrack: NotrackRule{}, Queues: ClassQueue{}}
	}
	return &Machine{FS: os.DirFS(root)}
}

// read returns a file without surrounding blanks; name is absolute.
func (m *Machine) read(name string) (string, error) {
	b, err := fs.ReadFile(m.FS, strings.TrimPrefix(name, "/"))
	return strings.TrimSpace(string(b)), err
}

func (m *Machine) exists(name string) bool {
	_, err := fs.Stat(m.FS, strings.TrimPrefix(name, "/"))
	return err == nil
}

// list returns the names in a directory, none if it cannot be read.
func (m *Machine) list(dir string) []string {
	entries, _ := fs.ReadDir(m.FS, strings.TrimPrefix(dir, "/"))
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (m *Machine) kernel() string {
	s, err := m.read("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return s
}

// process is the directory of the process that the checks are about.
func (m *Machine) process() string {
	if m.PID == 0 {
		return "/proc/self"
	}
	return "/proc/" + strconv.Itoa(m.PID)
}

// nested reports whether this is a network namespace other than the machine's first:
// there the settings of the machine are not visible.
func (m *Machine) nested() bool {
	return m.exists("/proc/sys/net/core/somaxconn") && !m.exists("/proc/sys/net/core/netdev_max_backlog")
}

// cpus counts the processors that are online; at least 1.
func (m *Machine) cpus() int {
	s, err := m.read("/sys/devices/system/cpu/online")
	if err != nil {
		return 1
	}
	return max(countList(s), 1)
}

// memory is the machine's in bytes, 0 if unknown.
func (m *Machine) memory() int64 {
	s, _ := m.read("/proc/meminfo")
	return 1024 * keyed(s, "MemTotal:")
}

// devices are the network cards: devices with hardware behind them, not lo or veth.
func (m *Machine) devices() []string {
	var names []string
	for _, n := range m.list("/sys/class/net") {
		if m.exists(path.Join("/sys/class/net", n, "device")) {
			names = append(names, n)
		}
	}
	return names
}

// A probe is a check under way: it reads, and remembers what was read.
type probe struct {
	*Machine
	profile  Profile
	evidence []Reading
}

func (p *probe) note(name, value, from string) {
	p.evidence = append(p.evidence, Reading{name, value, from})
}

// sysctl reads one by name, without remembering it as evidence.
func (p *probe) sysctl(name string) (string, error) { return p.read(sysctlPath(name)) }

// number reads a sysctl's only number and remembers it as evidence; ok is false without.
func (p *probe) number(name string) (n int64, ok bool) {
	s, err := p.sysctl(name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(s, 10, 64)
	p.note(name, s, sysctlPath(name))
	return n, err == nil
}

// count reads a counter of the network namespace since it was made, such as "TcpExt
// ListenOverflows", or a value of /proc/net/sockstat, such as "TCP tw"; 0 without it.
func (p *probe) count(name string) int64 {
	group, key, _ := strings.Cut(name, " ")
	file, find := "/proc/net/netstat", counter
	switch group {
	case "Tcp":
		file = "/proc/net/snmp"
	case "TCP":
		file, find = "/proc/net/sockstat", pair
	}
	s, err := p.read(file)
	if err != nil {
		return 0
	}
	n, ok := find(s, group+":", key)
	if ok {
		p.note(name, strconv.FormatInt(n, 10), file)
	}
	return n
}

// softnet sums a column of /proc/net/softnet_stat over the processors: 0 packets, 1
// dropped, 2 time squeezed.
func (p *probe) softnet(column int, name string) int64 {
	s, err := p.read("/proc/net/softnet_stat")
	if err != nil {
		return 0
	}
	var sum int64
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) > column {
			n, _ := strconv.ParseInt(f[column], 16, 64)
			sum += n
		}
	}
	p.note(name, strconv.FormatInt(sum, 10), "/proc/net/softnet_stat")
	return sum
}

func sysctlPath(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// sysctlName is the inverse of sysctlPath; ok is false for other files.
func sysctlName(file string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(file, "/proc/sys/")
	return strings.ReplaceAll(rest, "/", "."), ok
}

// counter finds a value in the pairs of lines that /proc/net/netstat has: names, then
// values.
func counter(text, group, name string) (int64, bool) {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != group {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, n := range names {
			if n == name && i < len(f) {
				v, err := strconv.ParseInt(f[i], 10, 64)
				return v, err == nil
			}
		}
		return 0, false
	}
	return 0, false
}

// pair finds "name value" in the line that starts with group.
func pair(text, group, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != group {
			continue
		}
		for i := 1; i+1 < len(f); i += 2 {
			if f[i] == name {
				v, err := strconv.ParseInt(f[i+1], 10, 64)
				return v, err == nil
			}
		}
	}
	return 0, false
}

// keyed returns the number after key at the beginning of a line, 0 without.
func keyed(text, key string) int64 {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}

// countList counts what a list such as 0-3,8 names.
func countList(s string) int {
	n := 0
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(hi); err != nil {
				continue
			}
		}
		n += max(b-a+1, 0)
	}
	return n
}

// unreadable is the state for an error of read, OK for none.
func unreadable(err error) State {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, ErrUnsupported):
		return Unsupported
	case errors.Is(err, fs.ErrNotExist):
		return Absent
	}
	return Forbidden
}

// numbers parses a sysctl of several numbers, such as tcp_rmem.
func numbers(s string, want int) ([]int64, error) {
	f := strings.Fields(s)
	if len(f) != want {
		return nil, fmt.Errorf("%q is not %d numbers", s, want)
	}
	list := make([]int64, want)
	for i, t := range f {
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil {
			return nil, err
		}
		list[i] = n
	}
	return list, nil
}
