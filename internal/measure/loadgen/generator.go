package loadgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/websocket"
)

// A Generator makes the load of one Spec.
type Generator struct {
	traffic
	timeline

	// Fixed at New.
	log    *slog.Logger
	limits websocket.Limits
	run    uint32 // in every stamp
	nonce  uint64
	flows  *flows // pubsub
	group  *eventloop.Group
	shards []*shard
	dialer *dialer

	// Owned by anyone who holds busy: Connect, Run or Measure.
	busy      sync.Mutex
	links     []endpoint // the connections that Conns counts
	publisher []endpoint
	rng       *rand.Rand
	connected bool
	spare     []*piece

	// Any goroutine.
	sources      atomic.Pointer[[]netip.Addr]
	requestConns atomic.Int64 // connections that arrivals go round
	bytes        byteCounts   // beside the loops
	closing      atomic.Bool
	broken       atomic.Pointer[error] // why the loops ended before Close
	work         sync.WaitGroup
	waiter       waiter
	quota        quota
	view         view
	stop         context.CancelFunc
	once         sync.Once
}

// A timeline counts from when the generator was made. Fixed at New.
type timeline struct {
	start    time.Time
	wallBase int64 // start in nanoseconds since 1970
}

func newTimeline() timeline {
	start := time.Now()
	return timeline{start, start.UnixNano()}
}

// now is the time in nanoseconds.
func (t *timeline) now() int64 { return int64(time.Since(t.start)) }

// wall is an instant of the timeline in nanoseconds since 1970.
func (t *timeline) wall(now int64) int64 { return t.wallBase + now }

// A traffic is what a generator sends, and to where. Fixed at New.
type traffic struct {
	spec    Spec
	target  *target
	publish *target // nil unless pubsub
	adapter *adapter
	request []byte // HTTP: what every connection sends; nil if they differ
	method  string // of the exchanges
}

// manyConns is from how many connections on there is a loop per CPU.
const manyConns = 10_000

// New checks the Spec and the machine: what cannot work (descriptors, ports,
// memory) is said here, with the fix, before anything is opened.
func New(spec Spec, log *slog.Logger) (*Generator, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	spec = spec.WithDefaults()
	if spec.Seed == 0 {
		spec.Seed = rand.Uint64()
	}
	g := &Generator{log: log, timeline: newTimeline(), nonce: rand.Uint64(), limits: websocket.Limits{MaxMessage: maxMessage}}
	g.run = uint32(g.nonce>>32) | 1
	g.rng = rand.New(rand.NewPCG(spec.Seed, 1))
	var err error
	if g.target, err = newTarget(context.Background(), spec.Target, spec.Insecure); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	g.target.useGM(spec.GM)
	if spec.Kind == PubSub {
		if g.publish, err = newPublish(&spec, g.target); err != nil {
			return nil, fmt.Errorf("publish: %w", err)
		}
		g.flows = newFlows(spec.Publishers, spec.Channels)
	}
	g.adapter = newAdapter(&spec, g.target, g.publish)
	sources, err := preflight(&spec, g.target, machineLimits())
	if err != nil {
		return nil, err
	}
	g.sources.Store(&sources)
	g.spec = spec
	g.prepare()
	return g, g.makeLoops()
}

// prepare makes what all connections share.
func (g *Generator) prepare() {
	spec := &g.spec
	g.method = spec.Method
	if spec.Kind == PubSub {
		g.method = "POST"
	}
	if spec.Kind == HTTP {
		if g.target.path == fill(g.target.path, 0, "0") {
			g.request = g.appendRequest(nil, spec.Method, g.target.path, g.target.host, "", spec.Body)
		}
	}
	g.dialer = newDialer(g)
	g.view.set("connecting", g.start, 0)
}

// makeLoops opens the event loops. They do not run yet.
func (g *Generator) makeLoops() error {
	spec := &g.spec
	if spec.Loops == 0 {
		spec.Loops = 1
		if spec.mostConns() > manyConns {
			spec.Loops = sys.Processors()
		}
	}
	spec.Loops = min(spec.Loops, 255, max(spec.mostConns(), 1))
	cfg := eventloop.Config{Engine: cmp.Or(spec.Engine, "epoll"), Loops: spec.Loops, MaxQueue: 64 << 20}
	group, err := eventloop.New(cfg, func(*eventloop.Conn) eventloop.Handler { return nil }, g.log)
	if err != nil {
		return err
	}
	g.group = group
	for i, l := range group.Loops() {
		s := &shard{
			g: g, loop: l, id: i, depth: spec.Pipeline, limit: max(1, (spec.MaxInFlight+spec.Loops-1)/spec.Loops),
			rec: new(piece), publishes: publishes{g: g, requests: make(map[int]*prepared), turn: i % spec.Channels},
		}
		s.publishes.mine.buf = newPayload(spec.Payload)
		l.OnTick(s.onTick)
		g.shards = append(g.shards, s)
		g.spare = append(g.spare, new(piece))
	}
	return nil
}

// source is the local address of h; the zero Addr leaves it to the system.
func (g *Generator) source(h endpoint) netip.Addr {
	from := *g.sources.Load()
	if len(from) == 0 {
		return netip.Addr{}
	}
	return from[int(h.base().num)%len(from)]
}

// socketStreams reports whether the streams are WebSockets.
func (g *traffic) socketStreams() bool { return g.spec.streamTransport() == "ws" }

// newConn makes connection n, which is not open yet.
func (g *Generator) newConn(n int) endpoint {
	s := g.shards[n%len(g.shards)]
	n += g.spec.FirstConn
	l := requestConn{link: link{s: s, num: int32(n)}}
	switch {
	case g.spec.streams():
		return newStream(s, n)
	case g.spec.Kind == Echo:
		return &echoConn{requestConn: l}
	case g.spec.Version == "2":
		return &h2Conn{requestConn: l}
	}
	h := &httpConn{requestConn: l}
	if g.request == nil {
		path := fill(g.target.path, n, g.channelNumber(n))
		h.request = g.appendRequest(nil, g.spec.Method, path, g.target.host, "", g.spec.Body)
	}
	return h
}

// newPublisher makes publisher n.
func (g *Generator) newPublisher(n int) endpoint {
	l := requestConn{link: link{s: g.shards[n%len(g.shards)], num: int32(n)}}
	if g.publish.socket {
		return &echoConn{requestConn: l, pub: uint16(n)}
	}
	return &httpConn{requestConn: l, pub: uint16(n)}
}

// errBusy is what a second Run or Measure at the same time gets.
var errBusy = errors.New("the generator is at work already")

// Connect opens the connections and returns when all are open, or one could not be
// made. Run and Measure call it unless it was called.
func (g *Generator) Connect(ctx context.Context) error {
	if !g.busy.TryLock() {
		return errBusy
	}
	defer g.busy.Unlock()
	return g.connect(ctx)
}

func (g *Generator) connect(ctx context.Context) error {
	switch err := g.broken.Load(); {
	case err != nil:
		return *err
	case g.closing.Load():
		return errors.New("the generator is closed")
	case g.connected:
		return nil
	case g.stop != nil:
		return errors.New("connecting failed before: make another generator")
	}
	life, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.work.Go(func() {
		if err := g.group.Run(life); err != nil {
			err = fmt.Errorf("event loops: %w", err)
			g.broken.Store(&err)
			g.arrived(err)
		}
	})
	g.work.Go(func() { g.dialer.run(life) })
	if g.spec.Kind == PubSub {
		for n := range g.spec.Publishers {
			g.publisher = append(g.publisher, g.newPublisher(n))
		}
		g.requestConns.Store(int64(g.spec.Publishers))
	}
	want := g.spec.Conns + len(g.publisher)
	done := g.waiter.expect(want)
	if err := g.broken.Load(); err != nil {
		return *err // it was reported before the wait
	}
	g.setConns(g.spec.Conns)
	now := g.now()
	for _, h := range g.publisher {
		g.dialer.add(h, now)
	}
	select {
	case err := <-done:
		g.connected = err == nil
		g.dialer.allOpen.Store(g.connected)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setConns opens or ends connections until there are n.
func (g *Generator) setConns(n int) {
	now := g.now()
	for len(g.links) < n {
		h := g.newConn(len(g.links))
		g.links = append(g.links, h)
		g.dialer.add(h, now)
	}
	for len(g.links) > max(n, 1) {
		h := g.links[len(g.links)-1]
		g.links = g.links[:len(g.links)-1]
		s := h.base().s
		s.loop.Post(func() { retire(h) })
	}
	if g.spec.Kind != PubSub {
		g.requestConns.Store(int64(len(g.links)))
	}
}

// A waiter waits for connections to be established.
type waiter struct {
	mu   sync.Mutex
	left int
	done chan error // nil without a waiter
}

func (w *waiter) expect(n int) <-chan error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left, w.done = n, make(chan error, 1)
	return w.done
}

// arrived notes that a connection is open, or the first that could not be made. It
// reports whether there was a waiter. Any goroutine.
func (g *Generator) arrived(err error) bool {
	w := &g.waiter
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		return false
	}
	if err == nil {
		w.left--
	}
	if err != nil || w.left == 0 {
		w.done <- err
		w.done = nil
	}
	return true
}

// Close ends all connections. It is idempotent.
func (g *Generator) Close() error {
	g.once.Do(func() {
		g.closing.Store(true)
		g.busy.Lock() // a run ends first: its context is its caller's
		defer g.busy.Unlock()
		if g.stop == nil {
			g.group.Release()
			return
		}
		g.endLinks()
		g.stop()
		g.work.Wait()
		g.view.set("done", time.Now(), 0)
	})
	return nil
}

// endLinks closes every connection in order.
func (g *Generator) endLinks() {
	all := append(g.publisher[:len(g.publisher):len(g.publisher)], g.links...)
	for _, s := range g.shards {
		s.do(func() {
			for _, h := range all {
				if l := h.base(); l.s != s || l.w == nil {
					continue
				} else if st, ok := h.(*stream); ok {
					st.unsubscribe()
				} else {
					l.w.Close(errRetired)
				}
			}
		})
	}
}

// A Snapshot is the state of a run at an instant, for a live view.
type Snapshot struct {
	Phase   string // "connecting", "warm-up", "measuring", "draining", "done"
	Elapsed time.Duration
	Total   time.Duration // expected; 0: unknown
	Conns   int
	Load    Load
	// Since the snapshot before, per second.
	OfferedRate, SentRate, CompletedRate, ErrorRate float64
	// ReceivedRate is of messages on streams.
	ReceivedRate    float64
	InFlight        int
	Dropped, Errors uint64 // so far
	// Percentiles of the last seconds: response and service, and the generator's lag.
	P50, P95, P99, ServiceP99, LagP99 time.Duration
	Delivery                          *Delivery
	Limited                           bool
}

// A Result is a whole run.
type Result struct {
	Version int       `json:"version"` // of this form; 1
	Spec    Spec      `json:"spec"`
	Started time.Time `json:"started"`
	// Partial: the run was ended early.
	Partial bool    `json:"partial,omitempty"`
	Machine Machine `json:"machine"`
	// Windows in order, and Total: all of them merged. Those of the windows hold two
	// significant digits, Total's three. Of a very long run neighbours are merged, so
	// that there are never more than 1,024.
	Total   Window   `json:"total"`
	Windows []Window `json:"windows"`
	// Uses is what the target used of its machine while it was measured, piece by
	// piece. Run leaves it empty: a caller that can look into the target adds it.
	Uses []Use `json:"target,omitempty"`
}

// A Use is what a target used of its machine in a piece of the measured time.
type Use struct {
	Seconds float64 `json:"seconds"` // the piece's length
	// CPU is its processor time in seconds; 0 means unknown.
	CPU float64 `json:"cpu_s,omitempty"`
	// GC is the collector's processor time of GCOf, which is all that the runtime had
	// at its disposal, in seconds. GCOf of 0: unknown, or no collection in the piece.
	GC   float64 `json:"gc_s,omitempty"`
	GCOf float64 `json:"gc_of_s,omitempty"`
	// RSS is its resident memory in bytes at the end of the piece; 0 means unknown.
	RSS uint64 `json:"rss_bytes,omitempty"`
}

// Machine is where a measurement was made.
type Machine struct {
	Weir     string `json:"weir"`
	OS       string `json:"os"`
	Kernel   string `json:"kernel"`
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	MemoryMB int    `json:"memory_mb"`
	Go       string `json:"go"`
	// Limits by name: "nofile", "somaxconn", "ip_local_port_range"…
	Limits map[string]string `json:"limits"`
}
