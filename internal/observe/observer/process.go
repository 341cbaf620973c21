package observer

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// clockTicks are those of /proc/PID/stat per second; the kernel shows 100 everywhere.
const clockTicks = 100

// maxDescriptors bounds how many of a process's descriptors are looked at.
const maxDescriptors = 20_000

// A process reads what /proc has of one.
type process struct{ dir string }

func openProcess(pid int) (*process, error) {
	p := &process{dir: "/proc/" + strconv.Itoa(pid)}
	if _, err := os.Stat(p.dir); err != nil {
		return nil, fmt.Errorf("there is no process %d", pid)
	}
	return p, nil
}

func (p *process) file(name string) string {
	b, _ := os.ReadFile(filepath.Join(p.dir, name))
	return strings.TrimSpace(string(b))
}

// usage is what the kernel has counted of the process.
type usage struct {
	minor, major uint64
	cpu          float64
	delay        float64 // seconds on the run queue; -1 if unknown
}

// stat reads proc_pid_stat(5) into u.
func (p *process) stat(u *usage) {
	_, rest, _ := strings.Cut(p.file("stat"), ") ") // the name may have blanks
	if f := strings.Fields(rest); len(f) > 12 {
		u.minor, _ = strconv.ParseUint(f[7], 10, 64)
		u.major, _ = strconv.ParseUint(f[9], 10, 64)
		for _, s := range f[11:13] {
			n, _ := strconv.ParseUint(s, 10, 64)
			u.cpu += float64(n) / clockTicks
		}
	}
}

// faults are the page faults so far.
func (p *process) faults() uint64 {
	var u usage
	p.stat(&u)
	return u.minor + u.major
}

// usage is stat with the schedstat of every thread.
func (p *process) usage() usage {
	u := usage{delay: -1}
	p.stat(&u)
	threads, _ := os.ReadDir(filepath.Join(p.dir, "task"))
	for _, t := range threads {
		f := strings.Fields(p.file("task/" + t.Name() + "/schedstat"))
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseUint(f[1], 10, 64)
		if err == nil {
			u.delay = max(u.delay, 0) + float64(n)/1e9
		}
	}
	return u
}

// inodes are the process's sockets.
func (p *process) inodes() map[string]bool {
	all := map[string]bool{}
	d, err := os.Open(filepath.Join(p.dir, "fd"))
	if err != nil {
		return all
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxDescriptors)
	for _, n := range names {
		link, err := os.Readlink(filepath.Join(p.dir, "fd", n))
		if err != nil {
			continue
		}
		if s, ok := strings.CutPrefix(link, "socket:["); ok {
			all[strings.TrimSuffix(s, "]")] = true
		}
	}
	return all
}

// A socket is a line of proc_pid_net(5)'s tcp.
type socket struct {
	local, peer netip.AddrPort
	listening   bool
	queue       int // of a listener: connections to accept
}

// live reports whether a socket in state has work to do: ESTABLISHED, SYN-SENT, CLOSE-WAIT
// and LISTEN.
func live(state []byte) bool {
	switch string(state) {
	case "01", "02", "08", "0A":
		return true
	}
	return false
}

// parseSocket reads a line of proc_pid_net(5)'s tcp, with the inode. Most lines of a busy machine
// are connections in TIME_WAIT: it looks at nothing but their state.
func parseSocket(line []byte) (s socket, inode string, ok bool) {
	_, line, _ = bytes.Cut(line, []byte(": "))
	local, line, _ := bytes.Cut(line, []byte(" "))
	peer, line, _ := bytes.Cut(line, []byte(" "))
	state, line, _ := bytes.Cut(line, []byte(" "))
	if !live(state) {
		return socket{}, "", false
	}
	f := strings.Fields(string(line)) // queues, timer, retransmissions, user, timeout, inode
	if len(f) < 6 {
		return socket{}, "", false
	}
	var ok1, ok2 bool
	s.local, ok1 = parseHexAddr(string(local))
	s.peer, ok2 = parseHexAddr(string(peer))
	s.listening = string(state) == "0A"
	_, rx, _ := strings.Cut(f[0], ":")
	n, _ := strconv.ParseInt(rx, 16, 64)
	s.queue = int(n)
	return s, f[5], ok1 && ok2
}

// lines are those of a file that may be large, each valid until the next.
func (p *process) lines(name string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		f, err := os.Open(filepath.Join(p.dir, name))
		if err != nil {
			return
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan() && yield(s.Bytes()); {
		}
	}
}

// sockets are the process's: those of its descriptors, and those that were accepted by
// its listeners, which io_uring keeps without a descriptor.
func (p *process) sockets(mine map[string]bool) []socket {
	var all []socket
	var inodes []string
	for _, file := range []string{"net/tcp", "net/tcp6"} {
		for line := range p.lines(file) {
			if s, inode, ok := parseSocket(line); ok {
				all = append(all, s)
				inodes = append(inodes, inode)
			}
		}
	}
	ports := map[uint16]bool{}
	for i, s := range all {
		if s.listening && mine[inodes[i]] {
			ports[s.local.Port()] = true
		}
	}
	var out []socket
	for i, s := range all {
		if mine[inodes[i]] || !s.listening && ports[s.local.Port()] {
			out = append(out, s)
		}
	}
	return out
}

// parseHexAddr reads 0100007F:1F40: words of four bytes in the machine's order.
func parseHexAddr(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || err2 != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4]) // little-endian, as both architectures are
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok
}

// hostPIDs reports whether this process sees the kernel's own process numbers, which the
// programs compare with.
func hostPIDs() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || ns == "pid:[4026531836]" // PROC_PID_INIT_INO
}

// otherNetwork is why connections cannot be sampled, "" if they can: sock_diag answers of
// this process's network namespace alone.
func (p *process) otherNetwork() string {
	here, _ := os.Readlink("/proc/self/ns/net")
	there, err := os.Readlink(filepath.Join(p.dir, "ns/net"))
	switch {
	case err != nil:
		return "not allowed to look at the process of another user: run it as root, or with CAP_SYS_PTRACE"
	case here != there:
		return "the process is in another network namespace: run observe there (nsenter --net -t PID)"
	}
	return ""
}
