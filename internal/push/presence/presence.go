// Package presence knows who is on a channel, over all nodes: leased by node, so
// that those of a node that died are gone at once.
//
//	p, err := presence.New(cfg, cluster, bus, log)
//	p.Watch(func(channel string, events []presence.Event) { … })
//	go p.Run(ctx)                                        // the owner waits for it
//	p.Join("room", presence.Member{Client: id, User: "7"}) // on a loop: never waits
//	clients, users := p.Count("room")
//
// What was joined here is seen here at once, and on the other nodes after a few
// milliseconds. Each node sends the others what it has as deltas with rising
// numbers; one that is new, or misses a number, requests the whole. Entries
// belong to the node that has them: when it goes (package cluster), they go.
//
// Only what Join and Add get is known and replicated: a channel without
// presence costs nothing.
package presence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// Errors of Join. Test with errors.Is.
var (
	// ErrFull is returned at Config.MaxMembers.
	ErrFull = errors.New("too many members")
	// ErrTooLarge is returned for a member that is larger than MaxMember.
	ErrTooLarge = errors.New("member is too large")
)

// MaxMember bounds a member's fields together, in bytes.
const MaxMember = 64 << 10

// A Kind reports whose subscriptions are counted.
type Kind uint8

// The kinds.
const (
	Native Kind = iota
	Centrifuge
	Mercure
	Pusher
	// Kinds is how many there are.
	Kinds
)

// A Member is a client on a channel.
type Member struct {
	// Client is the connection, unique on its node.
	Client string
	// User is whose connection it is; several clients may be of one. "" is a user
	// like any other: adapters in which it means no user omit it themselves.
	User string
	// Info is what is to be said about the connection, ChanInfo about its
	// subscription: JSON, or whatever the protocol uses. They are kept, not copied, and
	// must not be changed.
	Info, ChanInfo []byte
	// Node has the connection. Join fills it in.
	Node string
}

// An EventType reports what happened.
type EventType uint8

// The events. A client, or a user, that came and went within a window, or went and
// came again, caused none.
const (
	Join      EventType = iota + 1 // a client came
	Leave                          // a client went
	UserJoin                       // the first client of a user came, on any node
	UserLeave                      // the last one went
	Occupied                       // the first subscription of a kind came (see Add)
	Vacated                        // the last one went
)

// An Event is a change on a channel.
type Event struct {
	Type EventType
	// Member came or went; for UserJoin and UserLeave one of the user's clients.
	Member Member
	// Kind is for Occupied and Vacated.
	Kind Kind
}

// Config of a Presence. The zero value works.
type Config struct {
	// Window is how long the changes of a channel are gathered before they become
	// events, so that a client which reconnects makes none; 0 means 100ms.
	Window hub.Duration `json:"window"`
	// MaxMembers bounds the members that this node has; past it joins are refused.
	// 0 means 2,000,000.
	MaxMembers int `json:"max_members"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c Config) WithDefaults() Config {
	c.Window = cmp.Or(c.Window, hub.Duration(100*time.Millisecond))
	c.MaxMembers = cmp.Or(c.MaxMembers, 2_000_000)
	return c
}

// Validate returns all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Window < 0 || c.Window > hub.Duration(10*time.Second) {
		errs = append(errs, fmt.Errorf("window: %s is not between 0s and 10s", c.Window))
	}
	if c.MaxMembers < 0 {
		errs = append(errs, fmt.Errorf("max_members: %d is negative", c.MaxMembers))
	}
	return errors.Join(errs...)
}

// Stats are counters since New and gauges.
type Stats struct {
	Channels  int64  // channels with members or subscriptions, over all nodes
	Local     int64  // members of this node
	Members   int64  // members of all nodes
	Refused   uint64 // joins refused because this node has too many members
	Events    uint64 // events handed to watchers
	Sent      uint64 // deltas sent to the other nodes
	Received  uint64 // deltas of theirs applied
	Holes     uint64 // times that a delta was missing
	Syncs     uint64 // times that another node's whole was read
	Malformed uint64 // messages of other nodes that make no sense
}

// A Presence is this node's view of who is where. All methods may be called from any
// goroutine, and those that event loops need (Join, Leave, Add, Count) hold a lock
// for microseconds only.
type Presence struct {
	// Fixed in New.
	cfg     Config
	cluster *cluster.Cluster
	bus     hub.Bus
	log     *slog.Logger
	self    string
	stop    func() // ends listening on the bus
	shards  [shards]shard
	wakeOut chan struct{} // something is to be sent
	wakeEv  chan struct{} // something is to become an event

	// Owned by the goroutine that sends.
	out sender

	mu           sync.Mutex
	peers        map[string]*peer
	lastPeer     uint32
	lastSync     uint64
	syncRequests []syncRequest // who waits for our whole
	watchers     []func(string, []Event)

	watched atomic.Bool // there is a watcher
	running atomic.Bool

	channels, local, members                                 atomic.Int64
	refused, events, sent, received, holes, syncs, malformed atomic.Uint64
}

// New returns a Presence of this node alone; Run makes it know the others, and must
// be called, for New listens to the bus already. Call New before cluster's Run. A nil
// log discards.
func New(cfg Config, c *cluster.Cluster, bus hub.Bus, log *slog.Logger) (*Presence, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Presence{
		cfg:     cfg.WithDefaults(),
		cluster: c,
		bus:     bus,
		log:     log,
		self:    bus.Node(),
		wakeOut: make(chan struct{}, 1),
		wakeEv:  make(chan struct{}, 1),
		peers:   make(map[string]*peer),
	}
	for i := range p.shards {
		p.shards[i].init(p)
	}
	// What others ask before Run waits for it.
	var err error
	if p.stop, err = bus.Listen(topic, p.onMessage); err != nil {
		return nil, fmt.Errorf("listen to %s: %w", topic, err)
	}
	c.OnChange(func(n cluster.Node) { p.join(n.ID) }, p.gone)
	return p, nil
}

// Watch has f called for what happens on every channel, on any node: what gathered
// in a window at a time, one call at a time. f must not block for long. Call it
// before Run.
func (p *Presence) Watch(f func(channel string, events []Event)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watchers = append(p.watchers, f)
	p.watched.Store(true)
}

// Run sends to the other nodes, receives from them, and calls the watchers until ctx ends.
// Only one call.
func (p *Presence) Run(ctx context.Context) error {
	if p.running.Swap(true) {
		return errors.New("presence: Run called twice")
	}
	defer p.stop()
	var wg sync.WaitGroup
	wg.Go(func() { p.send(ctx) })
	wg.Go(func() { p.announce(ctx) })
	wg.Wait()
	return nil
}

// Join reports that m is on channel. Anyone who is there already is replaced, without an event
// unless the user is another.
func (p *Presence) Join(channel string, m Member) error { return p.joinAs(channel, m, false) }

// Arrive is Join for a client that comes from another process of this node's, which knew of
// it: there is no event.
func (p *Presence) Arrive(channel string, m Member) error { return p.joinAs(channel, m, true) }

func (p *Presence) joinAs(channel string, m Member, quiet bool) error {
	if n := len(m.Client) + len(m.User) + len(m.Info) + len(m.ChanInfo); n > MaxMember || len(channel) > hub.MaxChannelName {
		return fmt.Errorf("%w: %d bytes, the bound is %d", ErrTooLarge, n, MaxMember)
	}
	m.Node = p.self
	s := p.shard(channel)
	s.mu.Lock()
	ok := s.joinOwn(channel, m)
	if ok && quiet {
		s.silence(channel, m.Client)
	}
	s.mu.Unlock()
	if !ok {
		p.refused.Add(1)
		return ErrFull
	}
	p.wake()
	return nil
}

// Leave reports that client of this node is no longer on channel.
func (p *Presence) Leave(channel, client string) { p.leaveAs(channel, client, false) }

// Depart is Leave for a client that moved to another process of this node's: there is no event
// here.
func (p *Presence) Depart(channel, client string) { p.leaveAs(channel, client, true) }

func (p *Presence) leaveAs(channel, client string, quiet bool) {
	s := p.shard(channel)
	s.mu.Lock()
	s.leaveOwn(channel, client)
	if quiet {
		s.silence(channel, client)
	}
	s.mu.Unlock()
	p.wake()
}

// Add changes how many subscriptions of a kind this node has on channel by n, which
// may be negative. It is for channels whose subscribers need no name.
func (p *Presence) Add(channel string, kind Kind, n int) {
	if n == 0 || kind >= Kinds || len(channel) > hub.MaxChannelName {
		return
	}
	p.addAs(channel, kind, n, false)
}

// Move is Add for subscriptions that come from another process of this node's, or go to one:
// there is no event.
func (p *Presence) Move(channel string, kind Kind, n int) { p.addAs(channel, kind, n, true) }

func (p *Presence) addAs(channel string, kind Kind, n int, quiet bool) {
	s := p.shard(channel)
	s.mu.Lock()
	s.addOwn(channel, kind, n)
	if quiet {
		s.silenceKind(channel, kind)
	}
	s.mu.Unlock()
	p.wake()
}

// Count returns how many clients, and how many different users, are on channel over
// all nodes. It takes the same time whatever their number.
func (p *Presence) Count(channel string) (clients, users int) {
	s := p.shard(channel)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.channels[channel]; c != nil {
		return len(c.members), len(c.users)
	}
	return 0, 0
}

// Subscriptions returns how many subscriptions of a kind channel has over all nodes.
func (p *Presence) Subscriptions(channel string, kind Kind) int {
	s := p.shard(channel)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.channels[channel]; c != nil && kind < Kinds {
		return c.totals[kind]
	}
	return 0
}

// Members returns who is on channel over all nodes, at most limit of them in no
// order; limit <= 0 means all.
func (p *Presence) Members(channel string, limit int) []Member {
	s := p.shard(channel)
	s.mu.Lock()
	var found []*entry
	if c := s.channels[channel]; c != nil {
		n := len(c.members)
		if limit > 0 {
			n = min(n, limit)
		}
		found = make([]*entry, 0, n)
		for _, e := range c.members {
			if len(found) == n {
				break
			}
			found = append(found, e)
		}
	}
	s.mu.Unlock()
	out := make([]Member, len(found))
	for i, e := range found {
		out[i] = e.Member
	}
	return out
}

// Has reports whether a client of user is on channel, on any node.
func (p *Presence) Has(channel, user string) bool {
	s := p.shard(channel)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[channel]
	return c != nil && c.users[user].n > 0
}

// An Info is what Channels says of one.
type Info struct {
	Channel        string
	Clients, Users int
	Subscriptions  [Kinds]int
}

// Channels returns the channels that have members or subscriptions on any node and
// that match wants, by name. match must be quick; nil wants all. It looks at every
// channel, so an event loop must not call it.
func (p *Presence) Channels(match func(channel string) bool) []Info {
	var out []Info
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		for name, c := range s.channels {
			if c.empty() || (match != nil && !match(name)) {
				continue
			}
			out = append(out, Info{Channel: name, Clients: len(c.members), Users: len(c.users), Subscriptions: c.totals})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Info) int { return cmp.Compare(a.Channel, b.Channel) })
	return out
}

// Stats returns the totals so far.
func (p *Presence) Stats() Stats {
	return Stats{
		Channels: p.channels.Load(), Local: p.local.Load(), Members: p.members.Load(), Refused: p.refused.Load(),
		Events: p.events.Load(), Sent: p.sent.Load(), Received: p.received.Load(),
		Holes: p.holes.Load(), Syncs: p.syncs.Load(), Malformed: p.malformed.Load(),
	}
}

// wake has changes sent and reported.
func (p *Presence) wake() {
	select {
	case p.wakeOut <- struct{}{}:
	default:
	}
	p.wakeEvents()
}

func (p *Presence) wakeEvents() {
	if !p.watched.Load() {
		return
	}
	select {
	case p.wakeEv <- struct{}{}:
	default:
	}
}
