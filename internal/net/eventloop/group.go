package eventloop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Group. The zero value works.
type Config struct {
	// Engine moves the bytes: "io_uring" (less CPU under load, more of the kernel's
	// memory per idle connection, and connections that are no descriptors; epoll
	// where the system does not allow it), "epoll" or "auto". Empty means auto:
	// io_uring on Linux 6.7 and later where it is allowed, or where max_conns is more than the descriptor limit; else epoll.
	Engine string `json:"engine"`
	// Loops is the number of event loops, 1 to 255; 0 means one per CPU.
	Loops int `json:"loops"`
	// MaxConns bounds the open connections. When nearly as many are open, new ones wait in
	// the kernel, up to a second; without room by then one more is closed at accept. 0 means
	// the descriptor limit less 256, with io_uring that per loop.
	MaxConns int `json:"max_conns"`
	// Backlog bounds the connections that wait to be accepted; 0 means 4,096.
	Backlog int `json:"backlog"`
	// WriteStall closes a connection that takes less than 4 KiB in that time
	// while bytes wait for it; 0 means 30s.
	WriteStall hub.Duration `json:"write_stall"`
	// UserTimeout closes a connection whose sent bytes stay unacknowledged that
	// long (TCP_USER_TIMEOUT); 0 means 30s.
	UserTimeout hub.Duration `json:"user_timeout"`
	// NotSentLowat bounds in bytes what waits unsent in the kernel per
	// connection, so that the rest is visible here; 0 means 128 KiB.
	NotSentLowat int `json:"notsent_lowat" unit:"bytes"`
	// MaxQueue bounds in bytes what waits for one connection in this process,
	// whatever it carries; 0 means 4 MiB.
	MaxQueue int `json:"max_queue" unit:"bytes"`
	// Sockets are the kernel's options for every connection of the listener.
	// What is 0 there is left as the system has it.
	Sockets SocketConfig `json:"sockets"`
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if !slices.Contains([]string{"", engineAuto, engineEpoll, engineUring}, c.Engine) {
		errs = append(errs, fmt.Errorf("engine: %q is neither auto, epoll nor io_uring", c.Engine))
	}
	within := func(key string, v, lo, hi int) {
		if v != 0 && (v < lo || v > hi) {
			errs = append(errs, fmt.Errorf("%s: %d is not within %d..%d", key, v, lo, hi))
		}
	}
	within("loops", c.Loops, 1, 255)
	within("max_conns", c.MaxConns, 1, 1<<30)
	within("backlog", c.Backlog, 1, 1<<16)
	within("notsent_lowat", c.NotSentLowat, 4<<10, 1<<30)
	within("max_queue", c.MaxQueue, 64<<10, 1<<30)
	if c.WriteStall < 0 || c.UserTimeout < 0 {
		errs = append(errs, errors.New("write_stall and user_timeout must not be negative"))
	}
	errs = append(errs, c.Sockets.problems("sockets: ")...)
	return errors.Join(errs...)
}

// WithDefaults returns c with zeros replaced by what they mean, but for those
// that depend on the machine.
func (c Config) WithDefaults() Config {
	if c.Engine == "" {
		c.Engine = engineAuto
	}
	c.Backlog = cmp.Or(c.Backlog, 4096)
	c.NotSentLowat = cmp.Or(c.NotSentLowat, 128<<10)
	c.MaxQueue = cmp.Or(c.MaxQueue, 4<<20)
	if c.WriteStall == 0 {
		c.WriteStall = hub.Duration(defaultStall)
	}
	if c.UserTimeout == 0 {
		c.UserTimeout = hub.Duration(defaultStall)
	}
	return c
}

type limits struct {
	maxConns int64
	// pauseAt is how many may be open while more are accepted without waiting for room.
	pauseAt int64
	// burst is how many more than maxConns there may be briefly: the accepts that
	// were under way when the listeners were paused. The descriptors kept for other
	// things have room for them.
	burst      int64
	maxQueue   int
	maxParked  int
	writeStall int64
}

const (
	maxParked    = 128 << 10
	spareFiles   = 256
	defaultStall = 30 * time.Second
)

// A Group is the loops of a process and the listeners they share.
type Group struct {
	// Fixed at New.
	loops  []*Loop
	limits limits
	accept func(*Conn) Handler
	log    *slog.Logger
	base   time.Time
	opts   sys.ListenOptions
	socks  *sockets
	// portable: a part of a program that looks after its memory itself.
	portable bool

	// Any goroutine.
	counters groupCounters
	mu       sync.Mutex
	listens  int
	// listeners are the sockets of Listen, which the pollers own.
	listeners []int
	started   bool
	released  bool
	done      sync.WaitGroup
	failed    atomic.Pointer[error]
}

type groupCounters struct {
	open atomic.Int64 // connections of all loops
}

// New makes the loops. accept is called on a loop's goroutine with each new
// connection and returns its handler; nil closes the connection.
func New(cfg Config, accept func(*Conn) Handler, log *slog.Logger) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg, open := engineOf(cfg.WithDefaults(), log)
	return newGroup(cfg, accept, log, open)
}

// NewPortable returns a Group whose loops carry connections without sockets (Carried) and no
// others. It opens no descriptor, and works on every system. Of cfg only the bounds count.
func NewPortable(cfg Config, log *slog.Logger) (*Group, error) {
	g, err := newGroup(cfg, func(*Conn) Handler { return nil }, log, openPortable)
	if err == nil {
		g.portable = true
	}
	return g, err
}

func openPortable() (poller.Poller, error) { return poller.NewPortable(), nil }

// newGroup is New with pollers that open makes.
func newGroup(cfg Config, accept func(*Conn) Handler, log *slog.Logger, open func() (poller.Poller, error)) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg = cfg.WithDefaults()
	if cfg.Loops == 0 {
		cfg.Loops = min(sys.Processors(), 255)
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = connsPerTable()
	}
	g := &Group{
		log: log, base: time.Now(), socks: newSockets(cfg),
		limits: limits{maxConns: int64(cfg.MaxConns), pauseAt: int64(cfg.MaxConns - min(max(cfg.MaxConns/32, 4), 32, cfg.MaxConns/4)), maxQueue: cfg.MaxQueue, maxParked: maxParked, writeStall: int64(cfg.WriteStall)},
	}
	g.opts = sys.ListenOptions{Backlog: cfg.Backlog, ReusePort: true, Settings: g.socks.settings()}
	g.accept = func(c *Conn) Handler {
		g.socks.accepted(c)
		return accept(c)
	}
	g.socks.log, g.socks.work = log, &g.done
	if cfg.MaxConns >= spareFiles/8 {
		g.limits.burst = int64(min(32*cfg.Loops, spareFiles/2))
	}
	for i := range cfg.Loops {
		p, err := open()
		if err != nil {
			g.Release()
			return nil, err
		}
		g.loops = append(g.loops, newLoop(i, p, g))
	}
	g.socks.loops = g.loops
	return g, nil
}

// Loops returns the loops. Any goroutine; the slice must not be changed.
func (g *Group) Loops() []*Loop { return g.loops }

// Engine names the engine in use.
func (g *Group) Engine() string { return g.loops[0].poller.Name() }

// MaxConns returns the bound on open connections.
func (g *Group) MaxConns() int { return int(g.limits.maxConns) }

// Open returns how many connections are open. Any goroutine.
func (g *Group) Open() int { return int(g.counters.open.Load()) }

// Run runs the loops until ctx is done, then closes what is still open. When a
// loop fails the others end too. It is called once.
func (g *Group) Run(ctx context.Context) error {
	g.mu.Lock()
	if g.started || g.released {
		g.mu.Unlock()
		return errReleased
	}
	g.started = true
	g.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The runtime opens a poller of its own at the first timer, and ends the
	// process if no descriptor is left for it: now there is.
	time.Sleep(time.Nanosecond)
	for _, l := range g.loops {
		g.done.Go(func() {
			// Profiles and dumps of goroutines say whose loop it is.
			pprof.Do(ctx, pprof.Labels("loop", strconv.Itoa(l.id)), func(context.Context) {
				g.socks.bindLoop(l)
				if err := l.run(); err != nil {
					g.failed.CompareAndSwap(nil, &err)
					cancel()
				}
			})
		})
	}
	if !g.portable {
		g.done.Go(func() {
			releaseMemory()
			settle(ctx, g, releaseMemory)
		})
	}
	<-ctx.Done()
	for _, l := range g.loops {
		l.Post(func() { l.stopping = true })
	}
	g.done.Wait()
	if err := g.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Release frees what New opened, for a group that will not Run. On one that runs
// or ran it does nothing: its loops free what they have when they end.
func (g *Group) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.release()
}

func (g *Group) release() {
	if g.started || g.released {
		return
	}
	g.released = true
	for _, l := range g.loops {
		l.inbox.refuse()
		l.poller.Release()
	}
}

var errReleased = errors.New("event loops: released, or run before")
