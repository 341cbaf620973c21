package presence

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// shards of the channels: many, so that a walk of a shard delays few.
const shards = 256

var seed = maphash.MakeSeed()

func (p *Presence) shard(channel string) *shard {
	return &p.shards[maphash.String(seed, channel)%shards]
}

// own is the number of this node among those that entries belong to. The others are
// numbered as they come, and never again by the same number.
const own uint32 = 0

// A shard holds channels. Its methods want mu to be held.
type shard struct {
	p *Presence

	mu       sync.Mutex
	channels map[string]*channel
	pending  []*channel      // those with changes that are no events yet, oldest first
	unsent   map[change]bool // what is to be sent to the other nodes; true: they know of it
}

// A change names a member or a count of this node.
type change struct {
	channel string
	client  string
	kind    Kind // of a count; Kinds: it is a member
}

type key struct {
	node   uint32
	client string
}

// A channel is all there is to know about one.
type channel struct {
	name    string
	members map[key]*entry
	users   map[string]user
	counts  []count
	totals  [Kinds]int
	pending *pending
}

// An entry is a Member in its place. The Member is never changed.
type entry struct {
	Member
	gen  uint32 // of the peer's whole that had it last
	sent bool   // of this node: it was sent to the others
}

// A user is how many clients of one there are, and the newest of them.
type user struct {
	n    int
	last *entry
}

// A count is how many subscriptions of a kind a node has.
type count struct {
	node uint32
	gen  uint32
	kind Kind
	n    int
}

func (s *shard) init(p *Presence) {
	s.p = p
	s.channels = make(map[string]*channel)
	s.unsent = make(map[change]bool)
}

func (c *channel) empty() bool { return len(c.members) == 0 && len(c.counts) == 0 }

func (s *shard) channel(name string) *channel {
	c := s.channels[name]
	if c == nil {
		c = &channel{name: name}
		s.channels[name] = c
		s.p.channels.Add(1)
	}
	return c
}

// release forgets c if there is nothing left of it.
func (s *shard) release(c *channel) {
	if c.empty() && c.pending == nil && s.channels[c.name] == c {
		delete(s.channels, c.name)
		s.p.channels.Add(-1)
	}
}

// put makes e the entry of k.
func (s *shard) put(c *channel, k key, e *entry) {
	old := c.members[k]
	s.begin(c).noteMember(k, old)
	if c.members == nil {
		c.members = make(map[key]*entry)
		c.users = make(map[string]user)
	}
	if old == nil || old.User != e.User {
		if old != nil {
			s.dropUser(c, old)
		}
		s.begin(c).noteUser(e.User, c.users[e.User].last)
		u := c.users[e.User]
		c.users[e.User] = user{u.n + 1, e}
	} else {
		c.users[e.User] = user{c.users[e.User].n, e}
	}
	c.members[k] = e
	if old == nil {
		s.p.members.Add(1)
	}
}

// remove takes the entry of k away and returns it.
func (s *shard) remove(c *channel, k key) *entry {
	old := c.members[k]
	if old == nil {
		return nil
	}
	s.begin(c).noteMember(k, old)
	s.dropUser(c, old)
	delete(c.members, k)
	s.p.members.Add(-1)
	return old
}

func (s *shard) dropUser(c *channel, e *entry) {
	s.begin(c).noteUser(e.User, c.users[e.User].last)
	u := c.users[e.User]
	if u.n--; u.n <= 0 {
		delete(c.users, e.User)
		return
	}
	c.users[e.User] = u
}

// setCount makes n the count of a node and kind.
func (s *shard) setCount(c *channel, node uint32, kind Kind, gen uint32, n int) {
	i := slices.IndexFunc(c.counts, func(x count) bool { return x.node == node && x.kind == kind })
	if i < 0 {
		if n <= 0 {
			return
		}
		c.counts = append(c.counts, count{node: node, kind: kind})
		i = len(c.counts) - 1
	}
	s.begin(c).noteKind(kind, c.totals[kind] > 0)
	c.totals[kind] += max(n, 0) - c.counts[i].n
	c.counts[i].n, c.counts[i].gen = max(n, 0), gen
	if n <= 0 {
		c.counts = slices.Delete(c.counts, i, i+1)
	}
}

func (c *channel) count(node uint32, kind Kind) int {
	for _, x := range c.counts {
		if x.node == node && x.kind == kind {
			return x.n
		}
	}
	return 0
}

func (s *shard) joinOwn(name string, m Member) bool {
	k := key{own, m.Client}
	var old *entry
	if c := s.channels[name]; c != nil {
		old = c.members[k]
	}
	if old == nil {
		if s.p.local.Add(1) > int64(s.p.cfg.MaxMembers) {
			s.p.local.Add(-1)
			return false
		}
	}
	e := &entry{Member: m, sent: old != nil && old.sent}
	s.put(s.channel(name), k, e)
	s.unsend(change{name, m.Client, Kinds}, e.sent)
	return true
}

func (s *shard) leaveOwn(name, client string) {
	c := s.channels[name]
	if c == nil {
		return
	}
	if old := s.remove(c, key{own, client}); old != nil {
		s.p.local.Add(-1)
		s.unsend(change{name, client, Kinds}, old.sent)
	}
	s.release(c)
}

func (s *shard) addOwn(name string, kind Kind, n int) {
	c := s.channel(name)
	s.setCount(c, own, kind, 0, c.count(own, kind)+n)
	s.unsend(change{name, "", kind}, true)
	s.release(c)
}

// unsend has a change sent to the other nodes. known says that they may have received
// what changed.
func (s *shard) unsend(ch change, known bool) {
	if _, ok := s.unsent[ch]; !ok {
		s.unsent[ch] = known
	}
}

// drainOps appends what is to be sent to the other nodes to ops, and forgets it.
func (s *shard) drainOps(ops []op) []op {
	for ch, known := range s.unsent {
		c := s.channels[ch.channel]
		if ch.kind < Kinds {
			o := op{code: opCount, channel: ch.channel, kind: ch.kind}
			if c != nil {
				o.n = c.count(own, ch.kind)
			}
			ops = append(ops, o)
			continue
		}
		var e *entry
		if c != nil {
			e = c.members[key{own, ch.client}]
		}
		switch {
		case e != nil:
			e.sent = true
			ops = append(ops, op{code: opSet, channel: ch.channel, Member: e.Member})
		case known:
			ops = append(ops, op{code: opDelete, channel: ch.channel, Member: Member{Client: ch.client}})
		}
	}
	clear(s.unsent)
	return ops
}

// breathe lets others have the lock briefly, once in a while of a long walk. What
// the walk goes over may be another thing afterwards.
func (s *shard) breathe(steps *int) {
	if *steps++; *steps%breath == 0 {
		s.mu.Unlock()
		s.mu.Lock()
	}
}

// breath is how many members are looked at before others have their turn.
const breath = 512

// whole appends all that was sent to the other nodes to ops. Only what take takes can
// change what was sent to them, and that is the caller's as well.
func (s *shard) whole(ops []op) []op {
	steps := 0
	for name, c := range s.channels {
		for k, e := range c.members {
			s.breathe(&steps)
			if k.node == own && e.sent {
				ops = append(ops, op{code: opSet, channel: name, Member: e.Member})
			}
		}
		for _, x := range c.counts {
			if x.node == own {
				ops = append(ops, op{code: opCount, channel: name, kind: x.kind, n: x.n})
			}
		}
	}
	return ops
}

// apply does what another node said of its own.
func (s *shard) apply(node, gen uint32, id string, o *op) {
	switch o.code {
	case opSet:
		o.Node = id
		s.put(s.channel(o.channel), key{node, o.Client}, &entry{Member: o.Member, gen: gen})
	case opDelete:
		if c := s.channels[o.channel]; c != nil {
			s.remove(c, key{node, o.Client})
			s.release(c)
		}
	case opCount:
		c := s.channel(o.channel)
		s.setCount(c, node, o.kind, gen, o.n)
		s.release(c)
	}
}

// sweep takes away what a node has, but for what its whole of generation keep had;
// keep 0 keeps nothing. Nothing of the node's may be added meanwhile.
func (s *shard) sweep(node, keep uint32) {
	steps := 0
	for _, c := range s.channels {
		for k, e := range c.members {
			s.breathe(&steps)
			if k.node == node && (keep == 0 || e.gen != keep) {
				s.remove(c, k)
			}
		}
		for i := len(c.counts) - 1; i >= 0; i-- {
			if x := c.counts[i]; x.node == node && (keep == 0 || x.gen != keep) {
				s.setCount(c, node, x.kind, 0, 0)
			}
		}
		s.release(c)
	}
}

// A pending is what was, before the changes that are no events yet.
type pending struct {
	due     time.Time
	members map[key]*entry // nil: was not there
	order   []key
	users   map[string]*entry
	named   []string
	noted   [Kinds]bool
	before  [Kinds]bool

	// When it is due it is reported piece by piece, so that the lock is not held for long:
	// how many of order and named are left of this window.
	delivering        bool
	clients, accounts int
	vacated           []Event // to be reported last
}

// begin returns c's pending changes; nil without watchers.
func (s *shard) begin(c *channel) *pending {
	if c.pending == nil && s.p.watched.Load() {
		c.pending = &pending{due: time.Now().Add(time.Duration(s.p.cfg.Window))}
		s.pending = append(s.pending, c)
	}
	return c.pending
}

// noteMember notes that the member of k changes, who was before. p may be nil.
func (p *pending) noteMember(k key, before *entry) {
	if p == nil {
		return
	}
	if _, ok := p.members[k]; ok {
		return
	}
	if p.members == nil {
		p.members = make(map[key]*entry)
	}
	p.members[k] = before
	p.order = append(p.order, k)
}

// noteUser notes that the clients of a user change, of which before was the newest. p may be nil.
func (p *pending) noteUser(name string, before *entry) {
	if p == nil {
		return
	}
	if _, ok := p.users[name]; ok {
		return
	}
	if p.users == nil {
		p.users = make(map[string]*entry)
	}
	p.users[name] = before
	p.named = append(p.named, name)
}

// noteKind notes that a count changes; some: it was not zero. p may be nil.
func (p *pending) noteKind(kind Kind, some bool) {
	if p != nil && !p.noted[kind] {
		p.noted[kind], p.before[kind] = true, some
	}
}

// eventsAtOnce bounds the clients, and the users, that one call of due looks at.
const eventsAtOnce = 1024

// due returns a channel whose changes are to become events by now, with some of them;
// nil if there is none. There may be more.
func (s *shard) due(now time.Time) (*channel, []Event) {
	if len(s.pending) == 0 || s.pending[0].pending.due.After(now) {
		return nil, nil
	}
	c := s.pending[0]
	p := c.pending
	events := p.events(c)
	if p.clients+p.accounts > 0 {
		return c, events
	}
	events = append(events, p.vacated...)
	s.pending[0] = nil
	if s.pending = s.pending[1:]; len(s.pending) == 0 {
		s.pending = nil
	}
	if len(p.order)+len(p.named) == 0 && p.noted == [Kinds]bool{} {
		c.pending = nil
		s.release(c)
		return c, events
	}
	// What changed while this was reported has a window of its own.
	p.delivering, p.vacated, p.due = false, nil, now.Add(time.Duration(s.p.cfg.Window))
	s.pending = append(s.pending, c)
	return c, events
}

// events compares some of what was with what is: clients first, then users.
func (p *pending) events(c *channel) (out []Event) {
	if !p.delivering {
		p.delivering, p.clients, p.accounts = true, len(p.order), len(p.named)
		for kind := range Kinds {
			switch is := c.totals[kind] > 0; {
			case !p.noted[kind] || is == p.before[kind]:
			case is:
				out = append(out, Event{Type: Occupied, Kind: kind})
			default:
				p.vacated = append(p.vacated, Event{Type: Vacated, Kind: kind})
			}
		}
		p.noted = [Kinds]bool{}
	}
	n := min(p.clients, eventsAtOnce)
	for _, k := range p.order[:n] {
		before, now := p.members[k], c.members[k]
		delete(p.members, k)
		if before != nil && now != nil && before.User == now.User {
			continue
		}
		if before != nil {
			out = append(out, Event{Type: Leave, Member: before.Member})
		}
		if now != nil {
			out = append(out, Event{Type: Join, Member: now.Member})
		}
	}
	p.order, p.clients = p.order[n:], p.clients-n
	if p.clients > 0 {
		return out
	}
	n = min(p.accounts, eventsAtOnce)
	for _, name := range p.named[:n] {
		before, now := p.users[name], c.users[name]
		delete(p.users, name)
		switch {
		case before == nil && now.n > 0:
			out = append(out, Event{Type: UserJoin, Member: now.last.Member})
		case before != nil && now.n == 0:
			out = append(out, Event{Type: UserLeave, Member: before.Member})
		}
	}
	p.named, p.accounts = p.named[n:], p.accounts-n
	return out
}
