package observer

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
)

// maxSampled bounds the connections of which the kernel is asked, twice in a window.
const maxSampled = 500

// shownConnections are those in a report.
const shownConnections = 20

// Observe watches the process for the window, or until ctx is done, and reports. It needs
// no rights to start with: what is not allowed is named in the report. An error is for
// wrong options and for a process that is not there.
func Observe(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Duration, o.Slices = cmp.Or(o.Duration, 5*time.Second), cmp.Or(o.Slices, 50)
	p, err := openProcess(o.PID)
	if err != nil {
		return nil, err
	}
	off := ""
	switch {
	case o.NoKernel:
		off = "left out"
	case !hostPIDs():
		off = "this is a PID namespace of its own, where processes have other numbers: run it on the host"
	}
	k := newKernel(o.PID, off)
	defer k.close()
	w := &window{Options: o, process: p, kernel: k, report: &Report{
		PID: o.PID, Command: p.file("comm"), Kernel: osRelease(), Bounds: bounds(),
		Slice: o.Duration.Seconds() / float64(o.Slices), Syscalls: []Syscall{}, Locks: []Lock{}, Findings: []Finding{},
	}}
	return w.run(ctx)
}

func osRelease() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}

// A window is an observation under way.
type window struct {
	Options
	process *process
	kernel  *kernel
	report  *Report

	first    map[string]sys.TCPInfo // of connections, at the start
	queues   map[string]*Listener
	overflow uint64
}

func (w *window) run(ctx context.Context) (*Report, error) {
	r := w.report
	mine := w.process.inodes()
	sockets := w.process.sockets(mine)
	w.kernel.setPorts(portsOf(sockets))
	w.first = w.tcpInfos(sockets)
	w.overflow = w.overflows()
	w.queues = map[string]*Listener{}
	before := w.process.usage()
	r.Started = time.Now()
	trace := w.startTrace(ctx)
	if w.Started != nil {
		w.Started()
	}
	done := w.slices(ctx, mine)
	r.Seconds = time.Since(r.Started).Seconds()
	after := w.process.usage()
	r.CPU = max(after.cpu-before.cpu, 0)
	r.RunDelay = -1
	if after.delay >= 0 && before.delay >= 0 {
		r.RunDelay = max(after.delay-before.delay, 0) // threads that ended took theirs along
	}
	r.Faults.Minor, r.Faults.Major = after.minor-min(before.minor, after.minor), after.major-min(before.major, after.major)
	w.connections()
	w.kernel.report(r, done)
	if trace != nil {
		r.Go, r.Probes = trace(r.Probes)
	}
	w.tidy()
	r.Findings = findings(r, w.overflows()-min(w.overflow, w.overflows()))
	return r, nil
}

// socketReads is how often the sockets are listed in a window: on a machine with many
// connections that is megabytes of text.
const socketReads = 10

// slices polls at the end of each slice and returns how many there were.
func (w *window) slices(ctx context.Context, mine map[string]bool) int {
	// The thread's processor time is what reading costs.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	started := sys.ThreadCPUTime()
	defer func() {
		spent := (sys.ThreadCPUTime() - started).Seconds()
		w.report.Probes = append(w.report.Probes, Probe{Name: "reading", On: true, Seconds: spent, Share: spent / max(time.Since(w.report.Started).Seconds(), 1e-9)})
	}()
	each := max(w.Options.Slices/socketReads, 1)
	every := w.Duration / time.Duration(w.Options.Slices)
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := w.process.faults()
	for i := range w.Options.Slices {
		timer.Reset(time.Until(w.report.Started.Add(time.Duration(i+1) * every)))
		select {
		case <-ctx.Done():
			return max(i, 1)
		case <-timer.C:
		}
		w.kernel.poll(i)
		now := w.process.faults()
		w.report.Faults.BySlice = append(w.report.Faults.BySlice, now-min(last, now))
		last = now
		if (i+1)%each == 0 {
			sockets := w.process.sockets(mine)
			w.kernel.setPorts(portsOf(sockets))
			w.acceptQueues(i/each, sockets)
		}
	}
	return w.Options.Slices
}

func portsOf(sockets []socket) map[uint16]bool {
	ports := map[uint16]bool{}
	for _, s := range sockets {
		ports[s.local.Port()] = true
	}
	return ports
}

func (w *window) acceptQueues(sample int, sockets []socket) {
	for _, s := range sockets {
		if !s.listening {
			continue
		}
		l := w.queues[s.local.String()]
		if l == nil {
			l = &Listener{Address: s.local.String()}
			w.queues[l.Address] = l
		}
		for len(l.Samples) <= sample {
			l.Samples = append(l.Samples, 0)
		}
		// Listeners of one address share what comes: their queues are one.
		l.Samples[sample] += s.queue
		l.Queue = max(l.Queue, l.Samples[sample])
	}
}

// overflows is the network namespace's count of full accept queues.
func (w *window) overflows() uint64 {
	var names []string
	for line := range strings.Lines(w.process.file("net/netstat")) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		if i := slices.Index(names, "ListenOverflows"); i > 0 && i < len(f) {
			var n uint64
			_, _ = fmt.Sscan(f[i], &n)
			return n
		}
	}
	return 0
}

// tcpInfos queries the kernel about connections, none in another network namespace.
func (w *window) tcpInfos(sockets []socket) map[string]sys.TCPInfo {
	all := map[string]sys.TCPInfo{}
	if w.process.otherNetwork() != "" {
		return all
	}
	d, err := sys.NewSocketDiag()
	if err != nil {
		return all
	}
	defer func() { _ = d.Close() }() // everything has been read by then
	for _, s := range sockets {
		if s.listening || len(all) == maxSampled {
			continue
		}
		if info, err := d.TCPInfo(s.local, s.peer); err == nil {
			all[s.local.String()+" "+s.peer.String()] = info
		}
	}
	return all
}

func (w *window) connections() {
	t := &w.report.TCP
	sockets := w.process.sockets(w.process.inodes())
	for _, s := range sockets {
		if !s.listening {
			t.Open++
		}
	}
	for pair, now := range w.tcpInfos(sockets) {
		was := w.first[pair] // a new one began with nothing
		local, peer, _ := strings.Cut(pair, " ")
		t.Sampled++
		t.Connections = append(t.Connections, Connection{
			Local: local, Peer: peer, Sent: now.Acked - min(was.Acked, now.Acked), Received: now.Received - min(was.Received, now.Received),
			Busy: (now.Busy - was.Busy).Seconds(), Reader: (now.ReaderLimited - was.ReaderLimited).Seconds(), Buffer: (now.BufferLimited - was.BufferLimited).Seconds(),
			Unsent: now.Unsent, RTT: now.RTT.Seconds(), Repeated: now.Retransmits - min(was.Retransmits, now.Retransmits),
		})
	}
	slices.SortFunc(t.Connections, func(a, b Connection) int {
		return cmp.Or(cmp.Compare(b.Reader, a.Reader), cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), cmp.Compare(a.Local+a.Peer, b.Local+b.Peer))
	})
	for _, l := range w.queues {
		t.Listeners = append(t.Listeners, *l)
	}
	slices.SortFunc(t.Listeners, func(a, b Listener) int {
		return cmp.Or(cmp.Compare(b.Queue, a.Queue), cmp.Compare(a.Address, b.Address))
	})
}

// notNil is an empty list in JSON, not null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// tidy bounds what the report shows and leaves no list null.
func (w *window) tidy() {
	t := &w.report.TCP
	w.report.Locks = notNil(w.report.Locks)
	t.Retransmits, t.States, t.Connections, t.Listeners = notNil(t.Retransmits), notNil(t.States), notNil(t.Connections), notNil(t.Listeners)
	t.Connections = t.Connections[:min(len(t.Connections), shownConnections)]
	t.Listeners = t.Listeners[:min(len(t.Listeners), shownConnections)]
	if why := w.process.otherNetwork(); why != "" {
		w.report.Probes = append(w.report.Probes, Probe{Name: "connections", Why: why})
	}
}
