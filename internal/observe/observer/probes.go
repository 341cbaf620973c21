//go:build amd64 || arm64

package observer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"structs"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// A kernelProbe is a collection of programs that is loaded, attached and read together.
type kernelProbe struct {
	name  string
	still string // what the report has without it
	file  string // of the object, without the architecture
	// set prepares constants of the programs besides the process.
	set map[string]any

	coll  *ebpf.Collection
	links []link.Link
	why   string
}

// The keys and values of the programs' maps, as bpf/*.c lays them out.
type (
	kernelTally struct {
		_         structs.HostLayout
		Count, Ns uint64
	}
	callUnderWay struct {
		_        structs.HostLayout
		At, Lock uint64
		Call     uint32
		_        [4]byte
	}
	waitKey struct {
		_            structs.HostLayout
		Lock, Thread uint64
	}
	portPair struct {
		_           structs.HostLayout
		Local, Peer uint16
	}
	closedConns struct {
		_                         structs.HostLayout
		Count, Ns, Sent, Received uint64
	}
)

// kernel is the part of an observation that runs in the kernel.
type kernel struct {
	probes []*kernelProbe
	stats  io.Closer

	calls    map[uint32]*history
	runQueue history
}

func newKernel(pid int, off string) *kernel {
	k := &kernel{calls: map[uint32]*history{}, probes: []*kernelProbe{
		{name: "system calls", still: "no times of system calls and locks", file: "syscalls", set: map[string]any{"futex_call": int64(sys.FutexCall)}},
		{name: "run queue", still: "its sum is read from /proc", file: "sched"},
		{name: "page faults", still: "their number is read from /proc", file: "faults"},
		{name: "tcp", still: "queues and open connections are read from /proc and sock_diag", file: "tcp"},
	}}
	for _, p := range k.probes {
		if p.why = off; off == "" {
			p.why = p.attach(pid)
		}
	}
	// Without it the cost is not known; everything else works.
	k.stats, _ = ebpf.EnableStats(0)
	return k
}

// attach returns why the probe is off, "" if it is on.
func (p *kernelProbe) attach(pid int) string {
	object, err := objects.ReadFile(p.file + architecture)
	if err != nil {
		return explain(err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return explain(err)
	}
	vars := map[string]any{"observed": uint32(pid)}
	maps.Copy(vars, p.set)
	for name, v := range vars {
		if spec.Variables[name] == nil {
			continue
		}
		if err := spec.Variables[name].Set(v); err != nil {
			return explain(err)
		}
	}
	if p.coll, err = ebpf.NewCollection(spec); err != nil {
		return explain(err)
	}
	for _, prog := range p.coll.Programs {
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			p.close()
			return explain(err)
		}
		p.links = append(p.links, l)
	}
	return ""
}

func (p *kernelProbe) close() {
	for _, l := range p.links {
		_ = l.Close() // nothing depends on it any more
	}
	p.links = nil
	if p.coll != nil {
		p.coll.Close()
		p.coll = nil
	}
}

func (k *kernel) close() {
	for _, p := range k.probes {
		p.close()
	}
	if k.stats != nil {
		_ = k.stats.Close()
	}
}

// explain puts an error of loading into words: rights, an old kernel, or its first line.
func explain(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return "not allowed: run it as root, or with the capabilities CAP_BPF and CAP_PERFMON"
	case errors.Is(err, fs.ErrPermission):
		return "the kernel refuses it: in a container it needs CAP_BPF and CAP_PERFMON, and some kernels are locked down (/sys/kernel/security/lockdown)"
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, syscall.ENOSYS):
		return "this kernel is too old, or built without what it needs (BPF, BTF: CONFIG_DEBUG_INFO_BTF; 5.8 or later)"
	case errors.Is(err, fs.ErrNotExist):
		return "this kernel does not have the tracepoint, or no BTF (CONFIG_DEBUG_INFO_BTF)"
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return "the kernel does not take the program: " + text
}

func (k *kernel) probe(name string) *kernelProbe {
	for _, p := range k.probes {
		if p.name == name && p.coll != nil {
			return p
		}
	}
	return nil
}

// poll reads what grew, at the end of slice i.
func (k *kernel) poll(i int) {
	if p := k.probe("system calls"); p != nil {
		now := map[uint32]*[slots]tally{}
		for key, t := range entries[uint32, kernelTally](p.coll.Maps["calls"]) {
			call, slot := key>>8, min(key&0xff, slots-1)
			if now[call] == nil {
				now[call] = new([slots]tally)
			}
			now[call][slot] = tally{t.Count, t.Ns}
		}
		for call, h := range now {
			if k.calls[call] == nil {
				k.calls[call] = &history{}
			}
			k.calls[call].add(i, *h)
		}
	}
	if p := k.probe("run queue"); p != nil {
		var now [slots]tally
		for key, t := range entries[uint32, kernelTally](p.coll.Maps["delays"]) {
			now[min(key, slots-1)] = tally{t.Count, t.Ns}
		}
		k.runQueue.add(i, now)
	}
}

// batch is how many entries are read by one system call.
const batch = 512

// entries are those of a map, read in batches where the kernel can (5.6).
func entries[K, V any](m *ebpf.Map) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		var cursor ebpf.MapBatchCursor
		keys, values := make([]K, batch), make([]V, batch)
		for {
			n, err := m.BatchLookup(&cursor, keys, values, nil)
			for i := range n {
				if !yield(keys[i], values[i]) {
					return
				}
			}
			switch {
			case errors.Is(err, ebpf.ErrNotSupported):
				var k K
				var v V
				for it := m.Iterate(); it.Next(&k, &v); {
					if !yield(k, v) {
						return
					}
				}
				return
			case err != nil: // ErrKeyNotExist: that was all
				return
			}
		}
	}
}

// setPorts reports which local ports are the process's; those that were named stay.
func (k *kernel) setPorts(ports map[uint16]bool) {
	p := k.probe("tcp")
	if p == nil {
		return
	}
	for port := range ports {
		_ = p.coll.Maps["ports"].Put(port, uint8(1)) // full: 65,536 there cannot be
	}
}

// report adds what the programs counted in n slices.
func (k *kernel) report(r *Report, n int) {
	for _, p := range k.probes {
		r.Probes = append(r.Probes, p.cost(r.Seconds))
	}
	for _, call := range slices.Sorted(maps.Keys(k.calls)) {
		r.Syscalls = append(r.Syscalls, Syscall{Name: sys.SyscallName(int(call)), Series: k.calls[call].series(n)})
	}
	if p := k.probe("system calls"); p != nil {
		r.Syscalls = underWay(r.Syscalls, p.coll.Maps["under_way"], n)
	}
	slices.SortStableFunc(r.Syscalls, func(a, b Syscall) int { return cmp.Compare(b.Count, a.Count) })
	r.RunQueue = k.runQueue.series(n)
	if p := k.probe("system calls"); p != nil {
		r.Locks = locks(p.coll.Maps["waits"])
	}
	if p := k.probe("page faults"); p != nil {
		var perCPU []uint64
		if p.coll.Maps["faults"].Lookup(uint32(0), &perCPU) == nil {
			for _, n := range perCPU {
				r.Faults.User += n
			}
		}
	}
	if p := k.probe("tcp"); p != nil {
		connections(&r.TCP, p.coll)
	}
}

// underWay adds the calls that have not returned, n slices of none for those that never did.
func underWay(list []Syscall, m *ebpf.Map, n int) []Syscall {
	now := uint64(sys.Monotonic())
	var thread uint32
	var b callUnderWay
	for it := m.Iterate(); it.Next(&thread, &b); {
		name := sys.SyscallName(int(b.Call))
		i := slices.IndexFunc(list, func(s Syscall) bool { return s.Name == name })
		if i < 0 {
			i = len(list)
			list = append(list, Syscall{Name: name, Series: (&history{}).series(n)})
		}
		list[i].UnderWay++
		list[i].Oldest = max(list[i].Oldest, float64(now-min(b.At, now))/1e9)
	}
	return list
}

// cost is the probe with what the kernel measured of its programs.
func (p *kernelProbe) cost(seconds float64) Probe {
	out := Probe{Name: p.name, On: p.coll != nil}
	if !out.On {
		out.Why = p.why + "; " + p.still
		return out
	}
	for _, prog := range p.coll.Programs {
		if s, err := prog.Stats(); err == nil {
			out.Events += s.RunCount
			out.Seconds += s.Runtime.Seconds()
		}
	}
	out.Share = out.Seconds / max(seconds, 1e-9)
	return out
}

// locks are the addresses with most waiting time, 20 at most.
func locks(m *ebpf.Map) []Lock {
	type sum struct {
		threads int
		tally
	}
	all := map[uint64]*sum{}
	var key waitKey
	var t kernelTally
	for it := m.Iterate(); it.Next(&key, &t); {
		s := all[key.Lock]
		if s == nil {
			s = &sum{}
			all[key.Lock] = s
		}
		s.threads++
		s.count += t.Count
		s.ns += t.Ns
	}
	var list []Lock
	for address, s := range all {
		list = append(list, Lock{Address: fmt.Sprintf("0x%x", address), Threads: s.threads, Waits: s.count, Seconds: float64(s.ns) / 1e9})
	}
	// Those of several threads first: of one thread it parks there.
	slices.SortFunc(list, func(a, b Lock) int {
		if (a.Threads > 1) != (b.Threads > 1) {
			return b.Threads - a.Threads
		}
		return cmp.Compare(b.Seconds, a.Seconds)
	})
	return list[:min(len(list), 20)]
}

// tcpStates are the kernel's, by number (net/tcp_states.h).
var tcpStates = [...]string{"", "ESTABLISHED", "SYN-SENT", "SYN-RECV", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "CLOSE", "CLOSE-WAIT", "LAST-ACK", "LISTEN", "CLOSING", "NEW-SYN-RECV"}

func tcpState(n uint32) string {
	if int(n) < len(tcpStates) && n > 0 {
		return tcpStates[n]
	}
	return fmt.Sprintf("state %d", n)
}

func connections(t *TCP, coll *ebpf.Collection) {
	var pair portPair
	var n kernelTally
	for it := coll.Maps["retransmits"].Iterate(); it.Next(&pair, &n); {
		t.Retransmits = append(t.Retransmits, Retransmit{Local: pair.Local, Peer: pair.Peer, Count: n.Count})
	}
	slices.SortFunc(t.Retransmits, func(a, b Retransmit) int { return int(b.Count) - int(a.Count) })
	t.Retransmits = t.Retransmits[:min(len(t.Retransmits), 20)]
	var key uint32
	for it := coll.Maps["states"].Iterate(); it.Next(&key, &n); {
		t.States = append(t.States, StateChange{From: tcpState(key >> 8), To: tcpState(key & 0xff), Count: n.Count})
	}
	slices.SortFunc(t.States, func(a, b StateChange) int { return int(b.Count) - int(a.Count) })
	var lives [slots]tally
	var c closedConns
	for it := coll.Maps["ended"].Iterate(); it.Next(&key, &c); {
		lives[min(key, slots-1)] = tally{c.Count, c.Ns}
		t.Ended.Count += c.Count
		t.Ended.Sent += c.Sent
		t.Ended.Received += c.Received
	}
	t.Ended.LifeP50, t.Ended.LifeP99 = quantile(bounds(), lives, 0.5), quantile(bounds(), lives, 0.99)
}
