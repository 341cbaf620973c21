package eventloop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
)

// A SocketOption is one thing asked of the kernel for the connections of a
// listener, and what it answered: it clips and rounds without a word.
type SocketOption struct {
	// Listener is the address that the option was set for.
	Listener string `json:"listener"`
	// Option is the kernel's name of it.
	Option string `json:"option"`
	// Requested and Effective are integers in Unit, or text.
	Requested any    `json:"asked"`
	Effective any    `json:"effective"`
	Unit      string `json:"unit,omitempty"`
	// From reports where Effective was read: "listener" until the first connection,
	// which is a descriptor only with epoll, then "connection".
	From string `json:"from"`
	// Note reports why the two differ, or what follows.
	Note string `json:"note,omitempty"`
}

// Where a value was read.
const (
	fromListener   = "listener"
	fromConnection = "connection"
)

// sockets is what the kernel was asked and what it made of it.
type sockets struct {
	// Fixed at New.
	cfg    SocketConfig
	wanted []wanted
	each   []sys.Setting // set on every accepted connection
	loops  []*Loop
	log    *slog.Logger
	work   *sync.WaitGroup // of the group

	// Appended to by Listen, before the loops run; read by them.
	listeners []*listenerSockets
}

type listenerSockets struct {
	seen atomic.Bool // a connection was read

	mu      sync.Mutex
	options []SocketOption
}

func newSockets(cfg Config) *sockets {
	s := &sockets{cfg: cfg.Sockets, wanted: wantedBy(cfg)}
	for _, w := range s.wanted {
		if w.each {
			s.each = append(s.each, w.Setting)
		}
	}
	return s
}

func (s *sockets) settings() (list []sys.Setting) {
	for _, w := range s.wanted {
		list = append(list, w.Setting)
	}
	return list
}

// dialSettings are the ones for sockets that connect.
func (s *sockets) dialSettings() (list []sys.Setting) {
	for _, w := range s.wanted {
		if !w.listening && w.Option != sys.NoDelay {
			list = append(list, w.Setting)
		}
	}
	return list
}

// Sockets returns the options of all listeners. Any goroutine.
func (g *Group) Sockets() []SocketOption {
	g.mu.Lock()
	listeners := g.socks.listeners
	g.mu.Unlock()
	list := []SocketOption{}
	for _, l := range listeners {
		l.mu.Lock()
		list = append(list, l.options...)
		l.mu.Unlock()
	}
	return list
}

// prepare does what is not a plain option of the listening sockets, and
// reads back what became of those that are.
func (s *sockets) prepare(fds []int, bound netip.AddrPort) error {
	cfg := s.cfg
	l := &listenerSockets{}
	for _, w := range s.wanted {
		if w.Option == sys.TrafficClass && !bound.Addr().Is6() {
			continue
		}
		o, warn, err := readBack(w, fds[0], bound.String(), fromListener)
		if err != nil {
			return err
		}
		l.options = append(l.options, o)
		s.logOption(w, o, warn)
	}
	if cfg.BusyPoll != 0 {
		o, err := s.busyPoll(bound.String())
		if err != nil {
			return err
		}
		l.options = append(l.options, o)
	}
	if cfg.IncomingCPU {
		if err := s.steer(fds[0]); err != nil {
			return err
		}
		l.options = append(l.options, SocketOption{
			Listener: bound.String(), Option: "SO_ATTACH_REUSEPORT_CBPF", Requested: "cpu", Effective: "cpu", From: fromListener,
			Note: "taken by the kernel, which does not show it",
		})
	}
	s.listeners = append(s.listeners, l)
	return nil
}

// busyPoll has every loop's wait poll.
func (s *sockets) busyPoll(listener string) (SocketOption, error) {
	d, prefer := time.Duration(s.cfg.BusyPoll), s.cfg.PreferBusyPoll
	o := SocketOption{Listener: listener, Option: busyPollOption(s.loops[0]), Requested: int(d.Microseconds()), Unit: "us", From: fromListener}
	for _, l := range s.loops {
		effective, err := poller.SetBusyPoll(l.poller, d, prefer)
		if err != nil {
			return o, &socketError{fmt.Errorf("sockets.busy_poll: %w", err), "it needs Linux 6.9 with CONFIG_NET_RX_BUSY_POLL"}
		}
		o.Effective = int(effective.Microseconds())
	}
	s.log.Info("socket option", "option", o.Option, "asked", o.Requested, "effective", o.Effective)
	return o, nil
}

// busyPollOption is what a loop's wait goes by.
func busyPollOption(l *Loop) string {
	if l.poller.Name() == engineEpoll {
		return "EPIOCSPARAMS"
	}
	return "IORING_REGISTER_NAPI"
}

// steer gives each CPU's connections to its loop.
func (s *sockets) steer(fd int) error {
	cpus, err := sys.CPUs()
	if err != nil {
		return fmt.Errorf("sockets.incoming_cpu: %w", err)
	}
	if n := len(s.loops); len(cpus) != n || cpus[n-1] != n-1 {
		return &socketError{
			fmt.Errorf("sockets.incoming_cpu: there are %d loops for the CPUs %v, want loop i for CPU i", n, cpus),
			"set eventloop.loops to the number of CPUs, and let the process use all of them",
		}
	}
	if err := sys.SteerByCPU(fd); err != nil {
		return fmt.Errorf("sockets.incoming_cpu: %w", err)
	}
	return nil
}

// bindLoop keeps the calling goroutine, which will be l's, on l's CPU if
// connections are steered there. Its thread ends with it.
func (s *sockets) bindLoop(l *Loop) {
	if !s.cfg.IncomingCPU {
		return
	}
	runtime.LockOSThread()
	if err := sys.BindThread(l.id); err != nil {
		s.log.Warn("a loop is not on the CPU of its connections", "loop", l.id, "err", err)
	}
}

// accepted sets what c did not inherit, and reads the first connection of
// each listener. On a loop. Connections of io_uring are no descriptors.
func (s *sockets) accepted(c *Conn) {
	if int(c.listener) >= len(s.listeners) {
		return
	}
	for _, o := range s.each {
		_ = c.loop.poller.SetOption(c.key, int(c.fd), o) // the listener took it; the read-back shows the rest
	}
	if c.loop.poller.Name() != engineEpoll {
		return
	}
	l := s.listeners[c.listener]
	if !l.seen.Load() && l.seen.CompareAndSwap(false, true) {
		s.readConnection(l, int(c.fd))
	}
}

// readConnection puts what an accepted connection has in place of what its
// listener has, and says so where they differ.
func (s *sockets) readConnection(l *listenerSockets, fd int) {
	type difference struct {
		w    wanted
		o    SocketOption
		warn string
	}
	var differ []difference
	l.mu.Lock()
	for i := range l.options {
		have := &l.options[i]
		j := slices.IndexFunc(s.wanted, func(w wanted) bool { return w.Option.String() == have.Option })
		if j < 0 || s.wanted[j].listening {
			continue
		}
		w := s.wanted[j]
		o, warn, err := readBack(w, fd, have.Listener, fromConnection)
		if err != nil {
			continue // an option that exists on a listener and not on its connections
		}
		if o.Effective != have.Effective {
			differ = append(differ, difference{w, o, warn})
		}
		*have = o
	}
	l.mu.Unlock()
	if len(differ) > 0 {
		s.work.Go(func() { // a log may block, a loop not
			for _, d := range differ {
				s.logOption(d.w, d.o, d.warn)
			}
		})
	}
}

// logOption logs the effect of an option: as a warning what is far from what was
// asked, and at debug level what was not configured.
func (s *sockets) logOption(w wanted, o SocketOption, warn string) {
	level := slog.LevelInfo
	attrs := []any{"option", o.Option, "asked", o.Requested, "effective", o.Effective}
	if o.Unit != "" {
		attrs = append(attrs, "unit", o.Unit)
	}
	attrs = append(attrs, "from", o.From)
	if o.Note != "" {
		attrs = append(attrs, "note", o.Note)
	}
	switch {
	case warn != "":
		level = slog.LevelWarn
		attrs = append(attrs, "hint", warn)
	case w.usual && o.Requested == o.Effective:
		level = slog.LevelDebug
	}
	s.log.Log(context.Background(), level, "socket option", attrs...)
}

// readBack reads what fd has of w. warn is a hint, and not empty where the kernel
// gave less than half.
func readBack(w wanted, fd int, listener, from string) (o SocketOption, warn string, err error) {
	got, err := w.Read(fd)
	if err != nil {
		return o, "", fmt.Errorf("%s: %w", w.key, err)
	}
	o = SocketOption{Listener: listener, Option: w.Option.String(), Unit: w.unit, From: from, Requested: w.Value, Effective: got.Value}
	if w.Option == sys.Congestion {
		o.Requested, o.Effective = w.Text, got.Text
	}
	o.Note, warn = judgeSocket(w, got)
	return o, warn, nil
}

func judgeSocket(w wanted, got sys.Setting) (note, warn string) {
	switch w.Option {
	case sys.ReceiveBuffer:
		return judgeBuffer(w, got, "net.core.rmem_max")
	case sys.SendBuffer:
		return judgeBuffer(w, got, "net.core.wmem_max")
	case sys.KeepCount:
		note = "not used while TCP_USER_TIMEOUT is set"
	case sys.IPTOS, sys.TrafficClass:
		note = fmt.Sprintf("DSCP %d in the upper six bits", got.Value>>2)
	case sys.DeferAccept:
		note = "rounded to retransmissions; of the listener only"
	case sys.BusyPoll:
		note = "for blocking reads; the loops go by EPIOCSPARAMS or IORING_REGISTER_NAPI"
	}
	if w.Option == sys.Congestion && got.Text != w.Text || got.Value*2 < w.Value {
		return note, "the kernel does not keep it on this kind of socket"
	}
	return note, ""
}

// judgeBuffer is about a value that the kernel clips first and then doubles.
func judgeBuffer(w wanted, got sys.Setting, sysctl string) (note, warn string) {
	const doubled = "counted double, for the kernel's own use of it; fixed, not fitted to the connection"
	if got.Value >= 2*w.Value {
		return doubled, ""
	}
	limit := sys.Sysctl(sysctl)
	if limit == "" {
		limit = "not visible here"
	}
	note = fmt.Sprintf("clipped by %s (%s); %s", sysctl, limit, doubled)
	if got.Value < w.Value {
		warn = fmt.Sprintf("raise %s to %d or request less", sysctl, w.Value)
	}
	return note, warn
}

// explain leads what the kernel refused with its key and says what to do.
func (s *sockets) explain(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, s.explain(e))
		}
		return errors.Join(all...)
	}
	refused, ok := errors.AsType[*sys.SettingError](err)
	if !ok {
		return err
	}
	i := slices.IndexFunc(s.wanted, func(w wanted) bool { return w.Setting == refused.Setting })
	if i < 0 {
		return err
	}
	hint := "leave eventloop." + s.wanted[i].key + " out"
	switch refused.Setting.Option {
	case sys.Priority:
		hint = "use 1 to 6, or grant cap_net_admin"
	case sys.BusyPoll:
		hint = fmt.Sprintf("grant cap_net_admin, or set net.core.busy_read to %d", refused.Setting.Value)
	case sys.PreferBusyPoll:
		hint = "grant cap_net_admin, or leave prefer_busy_poll out"
	case sys.Congestion:
		list := "net.ipv4.tcp_available_congestion_control"
		if errors.Is(err, syscall.EPERM) {
			list = "net.ipv4.tcp_allowed_congestion_control"
		}
		hint = list + ": " + sys.Sysctl(list)
	}
	return &socketError{fmt.Errorf("%s: %w", s.wanted[i].key, err), hint}
}

// socketError is an error with a word on what to do.
type socketError struct {
	error
	hint string
}

// Hint implements what the command line looks for.
func (e *socketError) Hint() string  { return e.hint }
func (e *socketError) Unwrap() error { return e.error }
