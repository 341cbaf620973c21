package eventloop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-gateway/weir/internal/app/setting"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/testkit/trial"
)

// logged is a log that a test reads while others write.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// listening is a running Group on addr, with what it logs.
func listening(t *testing.T, cfg Config, addr string) (*real, *logged) {
	t.Helper()
	log := &logged{}
	g, err := New(cfg, echoing, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := &real{Group: g, t: t}
	if r.addr, err = g.Listen(netip.MustParseAddrPort(addr)); err != nil {
		g.Release()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r, log
}

// from connects from host and waits until the connection is served.
func (r *real) from(host string) net.Conn {
	r.t.Helper()
	c := dial(r.t, net.JoinHostPort(host, strconv.Itoa(int(r.addr.Port()))))
	wantEcho(r.t, c, "hello")
	return c
}

// option finds a read-back option.
func (r *real) option(name string) SocketOption {
	r.t.Helper()
	for _, o := range r.Sockets() {
		if o.Option == name {
			return o
		}
	}
	r.t.Errorf("no option %s in %+v", name, r.Sockets())
	return SocketOption{}
}

// every is a configuration with every option that needs no privilege.
func every() Config {
	return Config{
		Loops: 2, Engine: engineEpoll, UserTimeout: hub.Duration(20 * time.Second), NotSentLowat: 32 << 10,
		Sockets: SocketConfig{
			ReceiveBuffer: 64 << 10, SendBuffer: 96 << 10,
			KeepAlive: KeepAlive{Idle: hub.Duration(40 * time.Second), Interval: hub.Duration(7 * time.Second), Count: 3},
			NoDelay:   setting.Off, DSCP: 46, Priority: 4, Congestion: "reno", DeferAccept: hub.Duration(time.Second),
		},
	}
}

func TestEveryOptionHoldsOnAcceptedSockets(t *testing.T) {
	f := func(addr, host string) {
		t.Helper()
		r, _ := listening(t, every(), addr)
		for range 8 { // over both loops
			r.from(host)
		}
		want := map[sys.SocketOption]int{
			sys.ReceiveBuffer: 128 << 10, sys.SendBuffer: 192 << 10, sys.NoDelay: 0, sys.UserTimeout: 20_000, sys.NotSentLowat: 32 << 10,
			sys.KeepAlive: 1, sys.KeepIdle: 40, sys.KeepInterval: 7, sys.KeepCount: 3, sys.IPTOS: 46 << 2, sys.Priority: 4,
		}
		if strings.HasPrefix(addr, "[") {
			want[sys.TrafficClass] = 46 << 2
		}
		conns := 0
		var mu sync.Mutex
		r.onLoops(func(l *Loop) {
			mu.Lock()
			defer mu.Unlock()
			l.Conns(func(c *Conn) bool {
				conns++
				for o, v := range want {
					if got, err := (sys.Setting{Option: o}).Read(int(c.fd)); err != nil || got.Value != v {
						t.Errorf("%s from %s: %s is %d, %v; want %d", addr, host, o, got.Value, err, v)
					}
				}
				if got, err := (sys.Setting{Option: sys.Congestion}).Read(int(c.fd)); err != nil || got.Text != "reno" {
					t.Errorf("%s from %s: congestion %q, %v", addr, host, got.Text, err)
				}
				return true
			})
		})
		if conns != 8 {
			t.Errorf("%d connections, want 8", conns)
		}
		for o, v := range want {
			if got := r.option(o.String()); got.Effective != v || got.From != fromConnection || got.Listener != r.addr.String() {
				t.Errorf("reported: %+v, want %d", got, v)
			}
		}
		if got := r.option("TCP_CONGESTION"); got.Requested != "reno" || got.Effective != "reno" {
			t.Errorf("%+v", got)
		}
		if got := r.option("TCP_DEFER_ACCEPT"); got.Requested != 1 || got.Effective == 0 || got.From != fromListener {
			t.Errorf("%+v", got)
		}
	}
	f("127.0.0.1:0", "127.0.0.1")
	if l, err := net.Listen("tcp6", "[::1]:0"); err == nil { // where there is IPv6 at all
		l.Close()
		f("[::1]:0", "::1")
		f("[::]:0", "127.0.0.1")
	}
}

func TestDefaultsAreReportedAndNotLogged(t *testing.T) {
	eachEngine(t, Config{Loops: 1}, echoing, func(t *testing.T, r *real) {
		wantEcho(t, r.dial(), "hello")
		from := fromConnection
		if r.Engine() != engineEpoll {
			from = fromListener
		}
		want := []SocketOption{
			{Listener: r.addr.String(), Option: "TCP_NODELAY", Requested: 1, Effective: 1, From: from},
			{Listener: r.addr.String(), Option: "TCP_USER_TIMEOUT", Requested: 30_000, Effective: 30_000, Unit: "ms", From: from},
			{Listener: r.addr.String(), Option: "TCP_NOTSENT_LOWAT", Requested: 128 << 10, Effective: 128 << 10, Unit: "bytes", From: from},
		}
		if got := r.Sockets(); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v", got)
		}
	})
	r, log := listening(t, Config{Loops: 1}, "127.0.0.1:0")
	r.from("127.0.0.1")
	if s := log.String(); s != "" {
		t.Errorf("logged: %s", s)
	}
}

func TestRequestedOptionsAreLogged(t *testing.T) {
	r, log := listening(t, Config{Loops: 1, Sockets: SocketConfig{ReceiveBuffer: 64 << 10, DSCP: 8}}, "127.0.0.1:0")
	r.from("127.0.0.1")
	for _, want := range []string{
		`level=INFO msg="socket option" option=SO_RCVBUF asked=65536 effective=131072 unit=bytes from=listener`,
		`level=INFO msg="socket option" option=IP_TOS asked=32 effective=32 from=listener note="DSCP 8 in the upper six bits"`,
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("want once %s in\n%s", want, log)
		}
	}
	if strings.Contains(log.String(), "WARN") {
		t.Error(log)
	}
}

func TestClippedBuffersAreReportedWithTheSysctl(t *testing.T) {
	f := func(c SocketConfig, option, sysctl string) {
		t.Helper()
		limit, err := strconv.Atoi(sys.Sysctl(sysctl))
		if err != nil {
			t.Fatal(err)
		}
		r, log := listening(t, Config{Loops: 1, Sockets: c}, "127.0.0.1:0")
		o := r.option(option)
		if o.Requested != 1<<30 || o.Effective != 2*limit || !strings.Contains(o.Note, fmt.Sprintf("clipped by %s (%d)", sysctl, limit)) {
			t.Errorf("%+v, with %s=%d", o, sysctl, limit)
		}
		for _, want := range []string{`level=WARN msg="socket option" option=` + option, fmt.Sprintf("raise %s to %d", sysctl, 1<<30)} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("want %s in\n%s", want, log)
			}
		}
	}
	f(SocketConfig{ReceiveBuffer: 1 << 30}, "SO_RCVBUF", "net.core.rmem_max")
	f(SocketConfig{SendBuffer: 1 << 30}, "SO_SNDBUF", "net.core.wmem_max")
}

// TestKeepAliveRunsOnBothEngines reads the kernel's own list: a connection of
// io_uring has no descriptor to ask.
func TestKeepAliveRunsOnBothEngines(t *testing.T) {
	timers := func(r *real) (keepAlive, all int) {
		b, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		local := fmt.Sprintf("0100007F:%04X", r.addr.Port())
		for line := range strings.Lines(string(b)) {
			// sl local remote state queues timer: 01 is established, 02 keep-alive.
			x := strings.Fields(line)
			if x[1] != local || x[3] != "01" {
				continue
			}
			all++
			kind, when, _ := strings.Cut(x[5], ":")
			if left, err := strconv.ParseInt(when, 16, 64); err == nil && kind == "02" && left > 30*100 && left <= 40*100 {
				keepAlive++
			}
		}
		return keepAlive, all
	}
	f := func(k KeepAlive, want int) {
		t.Helper()
		eachEngine(t, Config{Loops: 1, Sockets: SocketConfig{KeepAlive: k}}, echoing, func(t *testing.T, r *real) {
			for range 3 {
				wantEcho(t, r.dial(), "hello")
			}
			// Until an answer is acknowledged another timer runs.
			trial.Eventually(t, "keep-alive timers", func() bool { n, all := timers(r); return n == want && all == 3 })
		})
	}
	f(KeepAlive{Idle: hub.Duration(40 * time.Second)}, 3)
	f(KeepAlive{}, 0)
}

func TestRefusedOptionsAreNamedAndNothingStaysOpen(t *testing.T) {
	f := func(cfg Config, text, hint string) {
		t.Helper()
		cfg.Loops = 2
		g, err := New(cfg, echoing, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Release()
		files := descriptors(t)
		_, err = g.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
		if h, ok := errors.AsType[*socketError](err); !ok || !strings.HasPrefix(err.Error(), text) || !strings.Contains(h.Hint(), hint) {
			t.Errorf("%v; want %s, hint %s", err, text, hint)
		}
		if n := descriptors(t); n != files {
			t.Errorf("%s: %d descriptors, %d before", text, n, files)
		}
		if len(g.Sockets()) != 0 {
			t.Errorf("%s: reported %v", text, g.Sockets())
		}
	}
	f(Config{Sockets: SocketConfig{Congestion: "nosuch"}},
		`sockets.congestion: set TCP_CONGESTION="nosuch": the kernel has no such algorithm, only `, "tcp_available_congestion_control: ")
	f(Config{Sockets: SocketConfig{Congestion: "nosuch", ReceiveBuffer: 4 << 10}}, "sockets.congestion: ", "reno")
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	cfg := Config{Sockets: SocketConfig{Priority: 7, BusyPoll: hub.Duration(50 * time.Microsecond), PreferBusyPoll: true, Congestion: "bbr", DSCP: 1}}.WithDefaults()
	s := newSockets(cfg)
	f := func(o sys.SocketOption, cause syscall.Errno, text, hint string) {
		t.Helper()
		for _, w := range s.wanted {
			if w.Option != o {
				continue
			}
			err := s.explain(errors.Join(&sys.SettingError{Setting: w.Setting, Err: cause}))
			if h, ok := errors.AsType[*socketError](err); !ok || err.Error() != text || !strings.HasPrefix(h.Hint(), hint) {
				t.Errorf("%v, %+v; want %s, hint %s", err, h, text, hint)
			}
		}
	}
	f(sys.Priority, syscall.EPERM, "sockets.priority: set SO_PRIORITY=7: not allowed without CAP_NET_ADMIN", "use 1 to 6, or grant cap_net_admin")
	f(sys.BusyPoll, syscall.EPERM, "sockets.busy_poll: set SO_BUSY_POLL=50: not allowed without CAP_NET_ADMIN", "grant cap_net_admin, or set net.core.busy_read to 50")
	f(sys.PreferBusyPoll, syscall.ENOPROTOOPT, "sockets.prefer_busy_poll: set SO_PREFER_BUSY_POLL=1: this kernel does not support the option", "grant")
	f(sys.Congestion, syscall.EPERM, `sockets.congestion: set TCP_CONGESTION="bbr": not allowed without CAP_NET_ADMIN`, "net.ipv4.tcp_allowed_congestion_control: ")
	f(sys.TrafficClass, syscall.ENOPROTOOPT, "sockets.dscp: set IPV6_TCLASS=4: this kernel does not support the option", "leave eventloop.sockets.dscp out")
	if other := errors.New("other"); s.explain(other) != other {
		t.Error("an error of something else is changed")
	}
}

// Without privilege the kernel refuses busy polling; then that is what is said.
func TestBusyPollReachesTheLoopsOrIsRefusedInWords(t *testing.T) {
	for engine, of := range map[string]string{engineEpoll: "EPIOCSPARAMS", engineUring: "IORING_REGISTER_NAPI"} {
		cfg := Config{Loops: 2, Engine: engine, Sockets: SocketConfig{BusyPoll: hub.Duration(20 * time.Microsecond), PreferBusyPoll: true}}
		g, err := New(cfg, echoing, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Release()
		if _, err := g.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
			if h, ok := errors.AsType[*socketError](err); !ok || !strings.HasPrefix(err.Error(), "sockets.") || h.Hint() == "" {
				t.Errorf("%s: %v", engine, err)
			}
			continue
		}
		r := &real{Group: g, t: t}
		for _, name := range []string{"SO_BUSY_POLL", of} {
			if o := r.option(name); o.Requested != 20 || o.Effective != 20 || o.Unit != "us" {
				t.Errorf("%s: %+v", engine, o)
			}
		}
		if o := r.option("SO_PREFER_BUSY_POLL"); o.Effective != 1 {
			t.Errorf("%s: %+v", engine, o)
		}
	}
}

// Loopback packets arrive on the CPU that sends them.
func TestConnectionsGoToTheLoopOfTheirCPU(t *testing.T) {
	cpus, err := sys.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	steered := SocketConfig{IncomingCPU: true}
	wrong, err := New(Config{Loops: len(cpus) + 1, Sockets: steered}, echoing, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Release()
	if _, err := wrong.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err == nil || !strings.HasPrefix(err.Error(), "sockets.incoming_cpu: there are ") {
		t.Errorf("a loop too many: %v", err)
	}
	if cpus[len(cpus)-1] != len(cpus)-1 {
		return // this process may not use all CPUs: that is refused as above
	}
	for _, engine := range []string{engineEpoll, engineUring} {
		t.Run(engine, func(t *testing.T) {
			r, _ := listening(t, Config{Loops: len(cpus), Engine: engine, Sockets: steered}, "127.0.0.1:0")
			if o := r.option("SO_ATTACH_REUSEPORT_CBPF"); o.Effective != "cpu" {
				t.Errorf("%+v", o)
			}
			const each = 10
			for cpu := range cpus {
				done := make(chan error)
				go func() {
					runtime.LockOSThread() // and never unlocked: the thread ends with its CPU
					done <- func() error {
						if err := sys.BindThread(cpu); err != nil {
							return err
						}
						for range each {
							c, err := dialBlocking(r.addr.Port())
							if err != nil {
								return err
							}
							t.Cleanup(func() { syscall.Close(c) })
						}
						return nil
					}()
				}()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			for i, l := range r.Loops() {
				trial.Eventually(t, fmt.Sprintf("the connections of loop %d", i), func() bool { return l.Stats().Open == each })
				on(t, l, func() {
					if on, err := sys.CPUs(); err != nil || len(on) != 1 || on[0] != i {
						t.Errorf("loop %d runs on %v, %v", i, on, err)
					}
				})
			}
		})
	}
}

// dialBlocking connects on the calling thread.
func dialBlocking(port uint16) (int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
}

func TestShortUserTimeoutIsNotRoundedToNone(t *testing.T) {
	r, _ := listening(t, Config{Loops: 1, UserTimeout: hub.Duration(time.Microsecond)}, "127.0.0.1:0")
	if o := r.option("TCP_USER_TIMEOUT"); o.Requested != 1 || o.Effective != 1 {
		t.Errorf("%+v", o)
	}
}

func TestSocketConfigIsValidated(t *testing.T) {
	f := func(c SocketConfig, want string) {
		t.Helper()
		err := Config{Sockets: c}.Validate()
		if got := fmt.Sprint(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if (c.Validate() == nil) != (err == nil) {
			t.Errorf("by itself: %v", c.Validate())
		}
	}
	s := func(d time.Duration) hub.Duration { return hub.Duration(d) }
	f(SocketConfig{}, "<nil>")
	f(SocketConfig{}, "<nil>")
	f(every().Sockets, "<nil>")
	f(SocketConfig{ReceiveBuffer: 1}, "sockets: receive_buffer: 1 is not within 4096..1073741824")
	f(SocketConfig{SendBuffer: -1}, "sockets: send_buffer: -1 is not within 4096..1073741824")
	f(SocketConfig{KeepAlive: KeepAlive{Idle: s(1500 * time.Millisecond)}}, "sockets: keep_alive: idle: 1.5s is not whole seconds within 1s..9h6m7s")
	f(SocketConfig{KeepAlive: KeepAlive{Idle: s(10 * time.Hour)}}, "sockets: keep_alive: idle: 10h0m0s is not whole seconds within 1s..9h6m7s")
	f(SocketConfig{KeepAlive: KeepAlive{Idle: s(time.Second), Interval: s(-time.Second)}}, "sockets: keep_alive: interval: -1s is not whole seconds within 1s..9h6m7s")
	f(SocketConfig{KeepAlive: KeepAlive{Idle: s(time.Second), Count: 128}}, "sockets: keep_alive: count: 128 is not within 1..127")
	f(SocketConfig{KeepAlive: KeepAlive{Count: 3}}, "sockets: keep_alive: idle is 0, so interval and count are for nothing")
	f(SocketConfig{DSCP: 64}, "sockets: dscp: 64 is not within 0..63")
	f(SocketConfig{DSCP: -1}, "sockets: dscp: -1 is not within 0..63")
	f(SocketConfig{Priority: -1}, "sockets: priority: -1 is not within 1..2147483647")
	f(SocketConfig{Congestion: "a b"}, `sockets: congestion: "a b" is not a name of at most 15 letters, digits, _ and -`)
	f(SocketConfig{Congestion: strings.Repeat("a", 16)}, `sockets: congestion: "aaaaaaaaaaaaaaaa" is not a name of at most 15 letters, digits, _ and -`)
	f(SocketConfig{BusyPoll: s(time.Second)}, "sockets: busy_poll: 1s is not whole microseconds within 1µs..10ms")
	f(SocketConfig{PreferBusyPoll: true}, "sockets: prefer_busy_poll: there is no busy_poll to prefer")
	f(SocketConfig{DeferAccept: s(time.Hour)}, "sockets: defer_accept: 1h0m0s is not whole seconds within 1s..1m0s")
	f(SocketConfig{DSCP: 64, ReceiveBuffer: 1}, "sockets: receive_buffer: 1 is not within 4096..1073741824\nsockets: dscp: 64 is not within 0..63")
}
