// Package cluster knows the nodes that share a broker: who lives, and how to ask all of them.
//
//	c, err := cluster.New(cluster.Config{Version: v}, bus, log)
//	c.Handle("connections", func(from string, data []byte) []byte { … })
//	c.OnChange(joined, gone)
//	go c.Run(ctx)                                    // the owner waits for it
//	answers, missing, err := c.Request(ctx, "connections", nil)
//
// Every node sends the others a heartbeat once in a Heartbeat. One that has not
// been seen for a Lease is gone, and one that ends in order says so. A node is
// gone for each node by itself: there is no vote and no election.
package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Errors of Request and RequestNode. Test with errors.Is.
var (
	// ErrNoNode is for an unknown node, or one that went while it was asked.
	ErrNoNode = errors.New("no such node")
	// ErrNoHandler is for a topic that the node asked has no handler for.
	ErrNoHandler = errors.New("the node does not know the question")
	// ErrBusy is for a node that answers too many already, or for this one when it has requests to
	// too many open.
	ErrBusy = errors.New("too many questions at a time")
	// ErrTooLarge is for a question or an answer past its bound.
	ErrTooLarge = errors.New("too large")
)

// Config of a Cluster. The zero value works.
type Config struct {
	// Name is what people call this node; empty means the host's name.
	Name string `json:"name"`
	// Heartbeat is how often a node says that it lives; 0 means 1s.
	Heartbeat hub.Duration `json:"heartbeat"`
	// Lease is how long a silent node counts as alive; 0 means 3.5s.
	// It is at least twice the heartbeat.
	Lease hub.Duration `json:"lease"`
	// MaxNodes bounds the nodes that are known; those past it are not. 0 means 1,024.
	MaxNodes int `json:"max_nodes"`

	// Version of the program, as others are to see it.
	Version string `json:"-"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	if c.Name == "" {
		c.Name, _ = os.Hostname()
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = hub.Duration(time.Second)
	}
	if c.Lease == 0 {
		c.Lease = max(hub.Duration(3500*time.Millisecond), 3*c.Heartbeat)
	}
	if c.MaxNodes == 0 {
		c.MaxNodes = 1024
	}
	return c
}

const maxNameBytes = 128

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if len(c.Name) > maxNameBytes || strings.ContainsFunc(c.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		errs = append(errs, fmt.Errorf("name: %.40q is longer than %d bytes or has control characters", c.Name, maxNameBytes))
	}
	d := c.WithDefaults()
	if d.Heartbeat < hub.Duration(10*time.Millisecond) || d.Heartbeat > hub.Duration(time.Minute) {
		errs = append(errs, fmt.Errorf("heartbeat: %s is not between 10ms and 1m", d.Heartbeat))
	}
	if d.Lease < 2*d.Heartbeat {
		errs = append(errs, fmt.Errorf("lease: %s is less than twice the heartbeat of %s: one lost heartbeat would expire a node", d.Lease, d.Heartbeat))
	}
	if c.MaxNodes < 0 || c.MaxNodes > 1<<16 {
		errs = append(errs, fmt.Errorf("max_nodes: %d is not between 1 and 65536", c.MaxNodes))
	}
	return errors.Join(errs...)
}

// A Node is what is known of one.
type Node struct {
	// ID is new with every start of the node.
	ID string
	// Name and Version are as the node says them.
	Name, Version string
	// Started is when the node did, by its own clock, Seen when its last message came,
	// by ours.
	Started, Seen time.Time
	// Stats is what the node's Describe returned; it is shared and must not be changed.
	Stats []byte
	// Self marks this node.
	Self bool
}

// Stats are counters since New and gauges.
type Stats struct {
	Nodes     int    // nodes that live, this one included
	Joined    uint64 // nodes that came, this one not included
	Gone      uint64 // nodes that went, in order or not
	Expired   uint64 // of those, the ones whose lease ended
	Refused   uint64 // questions not answered here because too many were at work
	Dropped   uint64 // heartbeats dropped at the bound of their queue
	Malformed uint64 // messages of other nodes that make no sense
}

// A Cluster is this node's view of all of them. All methods may be called from any
// goroutine.
type Cluster struct {
	questions

	// Fixed in New.
	cfg     Config
	started time.Time
	inbox   chan event

	// Guarded by mu.
	running  bool
	left     map[string]time.Time // nodes that left: late heartbeats of theirs are not a return
	watchers []watcher
	describe func() []byte

	joined, gone, expired, dropped atomic.Uint64
}

// questions are those between the nodes, and the nodes that can be asked.
type questions struct {
	// Fixed in New.
	bus  hub.Bus
	log  *slog.Logger
	self string
	work chan struct{} // a slot for each handler at work
	wg   sync.WaitGroup

	mu       sync.Mutex
	ended    bool // handlers are started no more
	nodes    map[string]*node
	alive    []string // ids of those in nodes and our own, sorted; a new slice at every change
	handlers map[string]func(from string, data []byte) []byte
	pending  map[uint64]*question
	lastAsk  uint64

	refused, malformed atomic.Uint64
}

type node struct {
	Node
	until time.Time // end of the lease
}

type watcher struct {
	joined func(Node)
	gone   func(id string)
}

const (
	inboxSize  = 4096
	maxWorkers = 64
	maxPending = 4096
	maxLeft    = 4096
)

// New returns a Cluster of this node alone; Run makes it know the others. A nil log
// discards.
func New(cfg Config, bus hub.Bus, log *slog.Logger) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Cluster{
		questions: questions{
			bus:      bus,
			log:      log,
			self:     bus.Node(),
			work:     make(chan struct{}, maxWorkers),
			nodes:    make(map[string]*node),
			alive:    []string{bus.Node()},
			handlers: make(map[string]func(string, []byte) []byte),
			pending:  make(map[uint64]*question),
		},
		cfg:     cfg.WithDefaults(),
		started: time.Now(),
		inbox:   make(chan event, inboxSize),
		left:    make(map[string]time.Time),
	}, nil
}

// Self is this node's id.
func (c *questions) Self() string { return c.self }

// Handle has f answer what is asked on topic (1 to 64 bytes), on goroutines of a
// bounded number. f must come to an end by itself; nil is an answer as well. The
// last f of a topic counts, and nil removes it.
func (c *questions) Handle(topic string, f func(from string, data []byte) []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f == nil {
		delete(c.handlers, topic)
		return
	}
	c.handlers[topic] = f
}

// OnChange has joined called for every other node that comes and gone for every
// one that goes, one call at a time and in order. A node that was gone may come
// again under the same id: its heartbeats were only late. Call it before Run; either may
// be nil.
func (c *Cluster) OnChange(joined func(Node), gone func(id string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers = append(c.watchers, watcher{joined, gone})
}

// Describe has f say what other nodes see in Node.Stats, once a heartbeat; at most
// 32 KiB, more is left out.
func (c *Cluster) Describe(f func() []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.describe = f
}

// Nodes returns those that live, this one first and the others in order of their ids.
func (c *Cluster) Nodes() []Node {
	own := c.selfNode()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Node, 0, len(c.nodes)+1)
	for _, n := range c.nodes {
		out = append(out, n.Node)
	}
	slices.SortFunc(out, func(a, b Node) int { return strings.Compare(a.ID, b.ID) })
	return slices.Insert(out, 0, own)
}

// selfNode is this node as others see it.
func (c *Cluster) selfNode() Node {
	c.mu.Lock()
	describe := c.describe
	c.mu.Unlock()
	n := Node{ID: c.self, Name: c.cfg.Name, Version: c.cfg.Version, Started: c.started, Seen: time.Now(), Self: true}
	if describe != nil {
		if n.Stats = describe(); len(n.Stats) > maxStatsBytes {
			n.Stats = nil
		}
	}
	return n
}

// Alive reports whether node lives. This one does.
func (c *questions) Alive(node string) bool {
	if node == c.self {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[node] != nil
}

// Owner returns the node that is to do what one node only should do about key. All
// nodes that know the same nodes name the same one, and few keys move when a node
// comes or goes. While the nodes disagree briefly, two may do it, or none.
func (c *Cluster) Owner(key string) string {
	c.mu.Lock()
	alive := c.alive
	c.mu.Unlock()
	best, most := c.self, uint64(0)
	for _, id := range alive {
		if w := weight(id, key); w > most || (w == most && id < best) {
			best, most = id, w
		}
	}
	return best
}

// Owns reports whether this node is Owner of key.
func (c *Cluster) Owns(key string) bool { return c.Owner(key) == c.self }

// weight is the rendezvous hash of a node for a key: FNV-1a and a finaliser, the
// same on every node.
func weight(id, key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	h = (h ^ '/') * 1099511628211
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Stats returns the totals so far.
func (c *Cluster) Stats() Stats {
	c.mu.Lock()
	nodes := len(c.nodes) + 1
	c.mu.Unlock()
	return Stats{
		Nodes: nodes, Joined: c.joined.Load(), Gone: c.gone.Load(), Expired: c.expired.Load(),
		Refused: c.refused.Load(), Dropped: c.dropped.Load(), Malformed: c.malformed.Load(),
	}
}
