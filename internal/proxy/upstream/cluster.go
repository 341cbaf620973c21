package upstream

import (
	"errors"
	"log/slog"
	"sync/atomic"
)

// What Pick answers when there is no peer to ask. All mean 503 to a client.
var (
	ErrNoPeers      = errors.New("no peers")            // none configured, or no name resolved yet
	ErrAllUnhealthy = errors.New("all peers unhealthy") // down by checks, or ejected
	ErrBreakerOpen  = errors.New("all breakers open")   // of the peers that are up
	ErrOverloaded   = errors.New("all peers at their limit")
	ErrAllTried     = errors.New("all peers tried") // and Tried.Strict is set
)

// A Cluster is the peers that serve the same thing, and the policy towards them.
// It stays the same through reloads as long as its name is configured.
type Cluster struct {
	name string
	log  *slog.Logger
	view atomic.Pointer[view]

	// Any goroutine.
	_        [64]byte
	next     atomic.Uint64 // slot of the schedule
	_        [56]byte
	spill    atomic.Uint64 // drawSlot's place
	seed     atomic.Uint64
	ejecting atomic.Bool
	pending  atomic.Int64
	waited   atomic.Uint64 // refused by EnterPending
	refused  [6]atomic.Uint64
	panicked atomic.Uint64 // picks that ignored health and ejection
	retries  retryBudget
	hedges   hedging
	shakes   shakes

	members members  // Set's, under its lock
	shelved [32]byte // the files of certificates as Run last tried them; Run's
}

// Name is the configured name.
func (c *Cluster) Name() string { return c.name }

// Config is the configuration in force, with defaults. It must not be changed.
func (c *Cluster) Config() *Config { return &c.view.Load().config }

// HashKey is what the key of Pick is made from; its Kind is KeyNone unless the
// cluster balances by consistent hash.
func (c *Cluster) HashKey() KeySource { return c.view.Load().policy.key }

// random is 64 bits that look random, from the Set's seed.
func (c *Cluster) random() uint64 { return mix(c.seed.Add(golden)) }

// takes bounds how often a chosen peer may turn out taken by another goroutine.
const takes = 4

// Pick returns the peer to ask and counts it in flight; Done must follow, once.
// key matters to consistent_hash only (see HashKey and KeySource.Of; without a key
// a random number will do). tried holds the peers asked already for this request
// and gets the new one; nil for requests that are queried once. When no peer is left
// but those in tried, one of them is queried again unless tried is Strict.
//
// Any goroutine may call it.
func (c *Cluster) Pick(now int64, key uint64, tried *Tried) (*Peer, error) {
	s := search{c: c, now: now, key: key, tried: tried}
	var p *Peer
	var v *view
	for range takes {
		v = c.view.Load()
		if p = s.pickFrom(v); p != nil || v == c.view.Load() {
			break
		}
		// The peers were replaced while we looked.
	}
	if p == nil {
		return nil, s.refuse(v)
	}
	if s.panicking {
		c.panicked.Add(1)
	}
	if tried != nil {
		tried.Add(p)
	}
	return p, nil
}

// pickFrom looks for a peer in the tiers that start with v: a regular one first, in
// the order of their priorities (RFC 2782), then under the rules that are less strict.
func (s *search) pickFrom(v *view) *Peer {
	if s.v = v; v.next == nil {
		return s.pick()
	}
	s.again, s.panicking = false, false
	for t := v; t != nil; t = t.next {
		s.v = t
		if s.anyFromStart() < 0 {
			continue // and its slot is skipped: the tiers share the schedule's place
		}
		if p := s.find(); p != nil {
			return p
		}
	}
	for t := v; t != nil; t = t.next {
		s.v = t
		if p := s.pick(); p != nil {
			return p
		}
	}
	return nil
}

// pick looks for a peer under each rule, the strictest first.
func (s *search) pick() *Peer {
	if len(s.v.entries) == 0 {
		return nil
	}
	s.panicking = s.v.panics(s.now)
	s.again = false
	p := s.find()
	if p == nil && s.tried.Len() > 0 && !s.tried.Strict {
		s.again = true
		p = s.find()
	}
	return p
}

// find chooses a peer and takes it; nil if there is none.
func (s *search) find() *Peer {
	for range takes {
		i := s.choose()
		if i < 0 {
			return nil
		}
		if p := s.v.entries[i].peer; p.acquire(s.now, &s.v.policy) == barNone {
			return p
		}
	}
	for i := range s.v.entries {
		if p := s.v.entries[i].peer; s.usable(i) && p.acquire(s.now, &s.v.policy) == barNone {
			return p
		}
	}
	return nil
}

// refuse is why there was no peer: what would have to change first comes first.
func (s *search) refuse(v *view) error {
	var seen [bars]bool
	for e := range v.all() {
		p := e.peer
		why := p.barred(s.now, &v.policy, s.panicking)
		if why == barNone && s.tried.Has(p) {
			why = barTried
		}
		seen[why] = true
	}
	why, err := barDraining, ErrNoPeers
	switch {
	case seen[barTried]:
		why, err = barTried, ErrAllTried
	case seen[barFull] || seen[barNone]: // none: it was taken while we looked
		why, err = barFull, ErrOverloaded
	case seen[barBreaker]:
		why, err = barBreaker, ErrBreakerOpen
	case seen[barUnhealthy]:
		why, err = barUnhealthy, ErrAllUnhealthy
	}
	s.c.refused[why].Add(1)
	return err
}

// panics reports whether so few peers are usable that health and ejection are ignored.
func (v *view) panics(now int64) bool {
	switch below := v.policy.panicBelow; {
	case len(v.entries) == 0 || below < 0:
		return false
	case below > 0:
		return v.usableShare(now) < below
	}
	for i := range v.entries {
		if !v.entries[i].peer.out(now) {
			return false
		}
	}
	return true
}

// usableShare is the share of peers that are neither down nor ejected.
func (v *view) usableShare(now int64) float64 {
	n := 0
	for i := range v.entries {
		if !v.entries[i].peer.out(now) {
			n++
		}
	}
	return float64(n) / float64(len(v.entries))
}

// failing is the least status that speaks against a peer.
const failing = 500

// Head reports that the head of a final reply (not 1xx, but 101) came: the verdict on
// the peer is known, however long the body lasts. It is called at most once per
// Pick, before Done, whose Outcome then has Headed set. Exchanges that end soon may
// leave it out.
func (c *Cluster) Head(p *Peer, start, now int64, status int) {
	v := good
	if status >= failing {
		v = bad
	}
	if v == good && start >= p.since.Load() {
		pol := &c.view.Load().policy
		p.latency.observe(now-start, now, pol.ewmaDecay)
		if pol.hedge.percentile > 0 {
			c.hedges.times.add(now - start)
		}
	}
	c.record(p, v, OK, start, now)
}

// Done ends what Pick began.
func (c *Cluster) Done(p *Peer, o Outcome) {
	if o.End == 0 {
		o.End = max(o.Start, o.FirstByte)
	}
	class := 0
	if o.Status >= 100 && o.Status < 600 {
		class = o.Status / 100
	}
	p.counts.classes[class].Add(1)
	p.counts.kinds[min(int(o.Kind), len(p.counts.kinds)-1)].Add(1)
	if o.Bytes > 0 {
		p.counts.bytes.Add(uint64(o.Bytes))
	}
	switch {
	case o.Kind == ConnectError || o.Kind == Reset || o.Kind == Timeout:
		c.record(p, bad, o.Kind, o.Start, o.End)
	case o.Headed:
	case o.Status > 0 && (o.Kind == OK || o.FirstByte > 0):
		at := o.FirstByte
		if at == 0 {
			at = o.End
		}
		c.Head(p, o.Start, at, o.Status)
	default:
		c.record(p, neutral, o.Kind, o.Start, o.End)
		c.waitedFor(p, o)
	}
	if o.Split != nil {
		o.Split.observe(o)
	}
	p.inflight.Add(-1) // last: who sees none in flight may forget the peer
}

// waitedFor learns from a client that left before a head came: the peer would have
// taken longer than that. Without it a peer that hangs looks as fast as before to
// balancing whose clients are impatient.
func (c *Cluster) waitedFor(p *Peer, o Outcome) {
	if o.Kind != Canceled || o.Start < p.since.Load() {
		return
	}
	decay := c.view.Load().policy.ewmaDecay
	if waited := o.End - o.Start; float64(waited) > p.latency.value(o.End, decay) && p.latency.word.Load() != 0 {
		p.latency.observe(waited, o.End, decay)
	}
}

// EnterPending counts a request that waits for a connection; false means that there
// are as many as may wait.
func (c *Cluster) EnterPending() bool {
	if c.pending.Add(1) > c.view.Load().policy.maxPending {
		c.pending.Add(-1)
		c.waited.Add(1)
		return false
	}
	return true
}

// LeavePending ends what EnterPending began.
func (c *Cluster) LeavePending() { c.pending.Add(-1) }
