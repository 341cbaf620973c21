package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Config of a Proxy. The zero value works.
type Config struct {
	// Buffer bounds in bytes what waits for a side that takes less than the other
	// gives; beyond, the other is not read. 0 means 256 KiB.
	Buffer int `json:"buffer" unit:"bytes"`
	// Replay bounds in bytes what is kept of a request to send it again when an
	// attempt fails; one with a longer body is not retried. 0 means 64 KiB.
	Replay int `json:"replay" unit:"bytes"`
	// MaxHead bounds the head of a reply in bytes; 0 means 32 KiB, at most 64 KiB.
	MaxHead int `json:"max_head" unit:"bytes"`
	// MaxFields bounds the fields of a reply; 0 means 100.
	MaxFields int `json:"max_fields"`
	// Upgrades are the protocols a client may switch to through us. Empty means
	// "websocket" alone: others, like h2c, would carry requests past every rule.
	Upgrades []string `json:"upgrades"`
	// TunnelIdle closes a connection that switched protocols and was silent both
	// ways for that long; 0 means never.
	TunnelIdle hub.Duration `json:"tunnel_idle"`
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	within := func(key string, v, lo, hi int) {
		if v != 0 && (v < lo || v > hi) {
			errs = append(errs, fmt.Errorf("%s: %d is not within %d..%d", key, v, lo, hi))
		}
	}
	within("buffer", c.Buffer, 4<<10, 64<<20)
	within("replay", c.Replay, 1, 16<<20)
	within("max_head", c.MaxHead, 1<<10, 64<<10)
	within("max_fields", c.MaxFields, 1, 1000)
	for _, u := range c.Upgrades {
		if !http1.ValidName(strings.ReplaceAll(u, "/", "")) {
			errs = append(errs, fmt.Errorf("upgrades: %q is not a protocol name", u))
		}
	}
	if c.TunnelIdle < 0 {
		errs = append(errs, errors.New("tunnel_idle must not be negative"))
	}
	return errors.Join(errs...)
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.Buffer = cmp.Or(c.Buffer, 256<<10)
	c.Replay = cmp.Or(c.Replay, 64<<10)
	c.MaxHead = cmp.Or(c.MaxHead, 32<<10)
	c.MaxFields = cmp.Or(c.MaxFields, 100)
	if len(c.Upgrades) == 0 {
		c.Upgrades = []string{"websocket"}
	}
	return c
}

// A Proxy is the exchanges and upstream connections of a process.
type Proxy struct {
	// Fixed at New.
	cfg        Config
	limits     http1.Limits
	log        *slog.Logger
	loopStates []*LoopState
	tls        *tlsterm.Client

	// Any goroutine.
	upgraded atomic.Int64 // tunnels open
	moving   atomic.Bool  // see MoveTunnels
	mu       sync.Mutex
	tallies  []*tally // of all loops
}

// New makes the state of each loop. The clusters come with each exchange; the Set that
// owns them must use Clock for its time.
func New(cfg Config, loops []*eventloop.Loop, log *slog.Logger) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg = cfg.WithDefaults()
	p := &Proxy{cfg: cfg, log: log, tls: tlsterm.NewClient(len(loops)), limits: http1.Limits{MaxLine: min(cfg.MaxHead, 8<<10), MaxHead: cfg.MaxHead, MaxFields: cfg.MaxFields}}
	for _, l := range loops {
		loopState := &LoopState{proxy: p, loop: l, pools: map[poolKey]*pool{}, tallies: map[*upstream.Cluster]*tally{}, caller: h2.NewCaller(p.limits, log)}
		loopState.serve = loopState.serveWaiting
		p.loopStates = append(p.loopStates, loopState)
	}
	return p, nil
}

// Close ends TLS handshakes under way and waits for their goroutines. The loops must
// have ended.
func (p *Proxy) Close() { p.tls.Close() }

// Clock returns the loops' clock for upstream.Options.Now. Any goroutine may call it.
func Clock(l *eventloop.Loop) func() int64 {
	base := l.Time(0)
	return func() int64 { return int64(time.Since(base)) }
}

// Config returns the configuration with its defaults filled in.
func (p *Proxy) Config() Config { return p.cfg }

// MayUpgrade reports whether a client may request protocol, the value of its
// Upgrade field, and returns the name to request.
func (p *Proxy) MayUpgrade(protocol []byte) (string, bool) {
	i := slices.IndexFunc(p.cfg.Upgrades, func(u string) bool { return http1.EqualFold(protocol, u) })
	if i < 0 {
		return "", false
	}
	return p.cfg.Upgrades[i], true
}

// LoopState returns the part of p on loop l.
func (p *Proxy) LoopState(l *eventloop.Loop) *LoopState { return p.loopStates[l.ID()] }

// A LoopState is a Proxy on one loop. It belongs to the loop's goroutine.
type LoopState struct {
	proxy *Proxy
	loop  *eventloop.Loop
	res   http1.Response // reused: parsing a head and passing it on are one call
	line  []byte         // scratch for chunk sizes

	free    []*Exchange
	pools   map[poolKey]*pool
	last    *pool // where the last request went
	waiting []*pool
	paused  []*Exchange // wait for the time of their next attempt
	// ticksPaused: a timer will look after them.
	ticksPaused bool
	caller      *h2.Caller // of HTTP/2
	leases      upstream.Leases
	checked     int64 // when leases were looked at
	// serve is serveWaiting, made once; posted says that it is in the inbox, ticking
	// that a timer will post it.
	serve           func()
	posted, ticking bool

	drainEnd int64 // when tunnels have to be over; 0: nothing drains

	tallies     map[*upstream.Cluster]*tally
	lastCluster *upstream.Cluster
	lastTally   *tally
	gauges      gauges
}

const spareExchanges = 1024

// Exchange returns an exchange to be filled in and started.
func (l *LoopState) Exchange(sink Sink) *Exchange {
	var x *Exchange
	if n := len(l.free); n > 0 {
		x = l.free[n-1]
		l.free[n-1] = nil
		l.free = l.free[:n-1]
	} else {
		x = &Exchange{loopState: l}
	}
	x.sink = sink
	x.Length = -1
	return x
}

// keepHead is how much memory for a head an idle exchange may hold.
const keepHead = 4 << 10

// recycle takes back an exchange that is over.
func (l *LoopState) recycle(x *Exchange) {
	if x.tried.Len() > 0 {
		x.tried.Reset()
	}
	head := x.Head[:0]
	if cap(head) > keepHead {
		head = nil
	}
	x.Call, x.run = Call{Head: head}, run{}
	x.sink = nil
	if len(l.free) < spareExchanges {
		l.free = append(l.free, x)
	}
}
