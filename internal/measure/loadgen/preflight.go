package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// limits of the machine, as preflight weighs them.
type limits struct {
	files  uint64
	ports  uint64 // per local address
	memory uint64 // available bytes; 0: unknown
}

// What a connection takes, at most, of memory: here and in the kernel.
const (
	linkBytes   = 12 << 10
	tlsBytes    = 80 << 10
	trackBytes  = 40
	spareFiles  = 256 // what the event loops leave to the rest of the process
	fixedMemory = 32 << 20
)

func machineLimits() limits {
	return limits{files: sys.MaxFiles(), ports: localPorts(), memory: availableMemory()}
}

// localPorts is how many ports the system chooses from.
func localPorts() uint64 {
	f := strings.Fields(sys.Sysctl("net.ipv4.ip_local_port_range"))
	if len(f) != 2 {
		return 28232 // Linux's default
	}
	lo, err1 := strconv.ParseUint(f[0], 10, 16)
	hi, err2 := strconv.ParseUint(f[1], 10, 16)
	if err1 != nil || err2 != nil || hi < lo {
		return 28232
	}
	return hi - lo + 1
}

// availableMemory is what the machine, or this process's control group, has left.
func availableMemory() uint64 {
	have := memInfo("MemAvailable")
	if limit, used := cgroupBytes("memory.max"), cgroupBytes("memory.current"); limit > 0 {
		left := limit - min(used, limit)
		if have == 0 || left < have {
			have = left
		}
	}
	return have
}

func memInfo(name string) uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			kb, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64) // 0: unknown
			return kb << 10
		}
	}
	return 0
}

// cgroupBytes is a number of the root of the control groups that the process sees;
// 0 where there is no limit.
func cgroupBytes(name string) uint64 {
	b, err := os.ReadFile("/sys/fs/cgroup/" + name)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64) // "max" is no limit
	return n
}

// mostConns is the greatest number of connections, publishers not counted.
func (s *Spec) mostConns() int {
	n := s.Conns
	for _, st := range s.Stages {
		n = max(n, st.Conns)
	}
	return n
}

// preflight looks whether the machine can make the run, and returns the local
// addresses to connect from; none leaves them to the system.
func preflight(s *Spec, t *target, have limits) ([]netip.Addr, error) {
	conns := uint64(s.mostConns())
	all := conns
	if s.Kind == PubSub {
		all += uint64(s.Publishers)
		if flows := s.Publishers * s.Channels; flows > 1<<22 {
			return nil, hinted(fmt.Errorf("%d publishers on %d channels are %d sequences to follow: at most %d", s.Publishers, s.Channels, flows, 1<<22),
				"use fewer publishers, or split the run among processes")
		}
	}
	if need := all + spareFiles; need > have.files {
		return nil, &LimitError{Resource: "descriptors", Need: need, Have: have.files, Fix: fmt.Sprintf(
			"raise the limit (ulimit -n %d, or LimitNOFILE= of a service), or split the run among processes", need)}
	}
	if have.memory > 0 {
		each := uint64(linkBytes)
		if t.tls != nil || s.Version == "2" {
			each += tlsBytes
		}
		need := fixedMemory + all*each
		if s.Kind == PubSub {
			need += conns * uint64(s.Publishers) * trackBytes
		}
		if need > have.memory {
			return nil, &LimitError{Resource: "memory", Need: need, Have: have.memory,
				Fix: "use fewer connections or publishers, or run on a machine with more"}
		}
	}
	return sourcesFor(s, t, all, have.ports)
}

// sourcesFor spreads connections over local addresses where one has too few ports.
func sourcesFor(s *Spec, t *target, need, ports uint64) ([]netip.Addr, error) {
	usable := ports - ports/20 // others use some
	addresses := (need + usable - 1) / usable
	limit := func(have uint64, which string) error {
		return &LimitError{Resource: "ports", Need: need, Have: have,
			Fix: fmt.Sprintf("name %d source addresses%s, or widen the range: sysctl -w net.ipv4.ip_local_port_range='1024 65535'", addresses, which)}
	}
	if have := usable * uint64(len(s.Sources)); len(s.Sources) > 0 && need > have {
		return nil, limit(have, "")
	}
	if len(s.Sources) > 0 || need <= usable {
		return s.Sources, nil
	}
	if ip := t.addr.Addr(); !ip.IsLoopback() || !ip.Is4() {
		return nil, limit(usable, " of this machine")
	}
	return loopback(addresses), nil
}

// loopback are n addresses of this machine.
func loopback(n uint64) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{127, 0, byte(1 + i/250), byte(1 + i%250)}))
	}
	return list
}

// WithSourceAddresses names the local addresses that conns connections to s.Target take where several loads, or
// several processes of one, share its ports: none of them knows of the others. What s names already
// stays, and nothing is named where one address has ports enough.
func (s Spec) WithSourceAddresses(conns int) (Spec, error) {
	t, err := newTarget(context.Background(), s.Target, s.Insecure)
	if err != nil {
		return s, fmt.Errorf("target: %w", err)
	}
	from, err := sourcesFor(&s, t, uint64(max(conns, 0)), localPorts())
	if err != nil {
		return s, err
	}
	s.Sources = from
	return s, nil
}

// newPublish is where pubsub publishes: what the Spec says, or the target's host
// with the adapter's path.
func newPublish(s *Spec, t *target) (*target, error) {
	if s.Publish != "" {
		return newTarget(context.Background(), s.Publish, s.Insecure)
	}
	u, err := url.Parse(strings.NewReplacer("{n}", "0", "{channel}", "0").Replace(s.Target))
	if err != nil {
		return nil, err
	}
	p := *t
	p.socket = false
	p.path = "/"
	if s.Adapter == "nchan" {
		if rest, ok := strings.CutPrefix(t.path, "/sub/"); ok {
			p.path = "/pub/" + rest
		} else if u.Path != "" && u.Path != "/" {
			return nil, hinted(fmt.Errorf("it is not known for the target's path %s", u.Path), "name the URL that is published to")
		}
	}
	return &p, nil
}

// LocalMachine is where the program runs.
func LocalMachine() Machine {
	m := Machine{
		OS: runtime.GOOS, CPUs: runtime.NumCPU(), Go: runtime.Version(), MemoryMB: int(memInfo("MemTotal") >> 20),
		Kernel: sys.Sysctl("kernel.osrelease"), CPU: cpuModel(), Limits: make(map[string]string),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		m.Weir = info.Main.Version
	}
	if b, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				m.OS = strings.Trim(name, `"`)
			}
		}
	}
	m.Limits["nofile"] = strconv.FormatUint(sys.MaxFiles(), 10)
	m.Limits["gomaxprocs"] = strconv.Itoa(runtime.GOMAXPROCS(0))
	for _, name := range []string{
		"net.core.somaxconn", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_tw_reuse",
		"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_mem", "net.core.rmem_max", "net.core.wmem_max",
		"net.ipv4.tcp_congestion_control", "fs.nr_open", "fs.file-max",
	} {
		if v := strings.Join(strings.Fields(sys.Sysctl(name)), " "); v != "" {
			m.Limits[name[strings.LastIndexByte(name, '.')+1:]] = v
		}
	}
	return m
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
