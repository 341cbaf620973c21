package limit

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What a Share's owner and its nodes agree on.
const (
	// ShareInterval is how often Tick is to be called, and so how old what a node knows of the others is.
	ShareInterval = 100 * time.Millisecond
	// ShareKeyBytes is the length of the secret that the nodes have in common.
	ShareKeyBytes = 16

	shareQuiet = 500 * time.Millisecond  // a node that has nothing to send sends that
	shareStale = 1500 * time.Millisecond // without an own message that came back the others are out of reach

	maxSharePeers = 1024
	maxCollect    = 2 * maxShareEntries // of a table, in an interval
)

// A Share has the nodes of a cluster use the buckets of tables together. Every node decides by itself, at
// once, with buckets of its own; each ShareInterval it sends all others what was taken from them
// since, and they take it from theirs. So nodes together exceed a rate at most by what they can take
// before they know of each other: the burst on each node, and what comes back in an interval on
// each. That becomes a debt in all buckets, and the rate in the long run is exact. (A global token
// bucket, as in Raghavan et al., "Cloud control with distributed rate limiting", SIGCOMM 2007.)
//
// A node receives its own messages as well. One that does not, for shareStale or because sending
// fails, is alone: of every bucket it has the part 1/n, with n nodes that it knew, until its messages
// come back. A node that is silent for the lease, or has left, no longer counts.
//
// Tick and Receive are for any goroutine; tables are used without waiting for either.
type Share struct {
	// Fixed before the first Tick.
	self   string
	lease  int64
	send   func(data []byte) error
	tables []func() *Table

	// Any goroutine.
	parts, nodes                                                   atomic.Int64
	sent, received, missed, malformed, foreign, entries, takenOver atomic.Uint64
	deferred                                                       atomic.Uint64
	keyWanted                                                      atomic.Bool

	mu      sync.Mutex
	key     sipKey
	keyID   uint64 // 0: there is no key yet
	peers   map[string]*sharePeer
	number  uint64
	ticked  int64
	sentAt  int64
	echoed  int64 // when an own message came back, or one was sent that could
	failing bool  // the last message could not be sent
	left    bool
	list    []spending
	out     []byte
}

// A sharePeer is another node.
type sharePeer struct {
	seen   int64
	number uint64 // of its last message
}

// NewShare returns a Share of the node called self. A node that is silent for lease counts no longer. send
// broadcasts to all nodes, self as well, and does not wait or keep data.
func NewShare(self string, lease time.Duration, send func(data []byte) error) *Share {
	s := &Share{self: self, lease: int64(lease), send: send, peers: map[string]*sharePeer{}}
	s.parts.Store(1)
	s.nodes.Store(1)
	s.keyWanted.Store(true)
	return s
}

// Add has a table shared, which is looked up at every Tick; nil: there is none at the time. All nodes add the same tables in
// the same order, at most 255. Before the first Tick.
func (s *Share) Add(table func() *Table) { s.tables = append(s.tables, table) }

// SetKey sets the secret under which names are hashed. Nodes with different ones do not share. Of what was
// taken under another one nothing is known any more. A secret is ShareKeyBytes long.
func (s *Share) SetKey(secret []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = sipKey{binary.LittleEndian.Uint64(secret), binary.LittleEndian.Uint64(secret[8:])}
	sum := sha256.Sum256(secret)
	s.keyID = max(1, binary.LittleEndian.Uint64(sum[:]))
	s.keyWanted.Store(false)
}

// KeyWanted reports whether there is no secret yet, or another node has another one: it is to be
// looked up.
func (s *Share) KeyWanted() bool { return s.keyWanted.Load() }

// Tick sends what was taken here. now is on the clock of the tables. Until there is a key it does nothing.
func (s *Share) Tick(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keyID == 0 || s.left {
		return
	}
	for _, f := range s.tables {
		if t := f(); t != nil {
			t.shareWith(s, s.key)
		}
	}
	s.resume(now)
	alone := s.alone(now)
	if !alone {
		for id, p := range s.peers {
			if now-p.seen > s.lease {
				delete(s.peers, id)
			}
		}
		s.nodes.Store(int64(len(s.peers)) + 1)
	}
	if s.parts.Store(1); alone {
		s.parts.Store(s.nodes.Load())
	}
	s.gather()
	if alone || len(s.peers) == 0 {
		s.list = s.list[:0] // the part that is this node's, or no node needs to know
	}
	if len(s.list) > 0 || now-s.sentAt >= int64(shareQuiet) {
		s.broadcast(shareHeader{}, now)
	}
}

// resume makes up for a time in which this node did not run: what the others sent meanwhile
// may wait still. The caller holds mu.
func (s *Share) resume(now int64) {
	switch gap := now - s.ticked; {
	case s.ticked == 0:
		s.echoed = now
	case gap > int64(shareStale)/2:
		s.echoed = now
		for _, p := range s.peers {
			p.seen += gap
		}
	}
	s.ticked = now
}

// alone reports whether the other nodes are out of reach. The caller holds mu.
func (s *Share) alone(now int64) bool {
	return len(s.peers) > 0 && (s.failing || now-s.echoed > int64(shareStale))
}

// gather has list be what is sent next: the most that was taken, if there is too much. The rest waits.
// The caller holds mu.
func (s *Share) gather() {
	s.list = s.list[:0]
	for i, f := range s.tables {
		if t := f(); t != nil {
			s.list = t.collect(s.list, uint8(i+1), maxCollect)
		}
	}
	if len(s.list) <= maxShareEntries {
		return
	}
	slices.SortFunc(s.list, func(a, b spending) int { return cmp.Compare(b.cost, a.cost) })
	for _, x := range s.list[maxShareEntries:] {
		if t := s.tables[x.t-1](); t != nil && t.putBack(x) {
			s.deferred.Add(1)
		}
	}
	s.list = s.list[:maxShareEntries]
	slices.SortFunc(s.list, func(a, b spending) int { return cmp.Compare(a.t, b.t) })
}

// broadcast sends list. The caller holds mu.
func (s *Share) broadcast(h shareHeader, now int64) {
	s.number++
	h.key, h.number = s.keyID, s.number
	s.out = appendShare(s.out[:0], h, s.list)
	s.sentAt = now
	if s.failing = s.send(s.out) != nil; !s.failing {
		s.sent.Add(1)
		s.entries.Add(uint64(len(s.list)))
	}
}

// Receive takes a message of a node, of this one too. One that is malformed changes nothing and is counted.
func (s *Share) Receive(from string, data []byte, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from == s.self {
		s.echo(now)
		return
	}
	h, rest, err := readShareHeader(data)
	if err == nil {
		err = eachEntry(rest, func(uint8, uint64, int64) {})
	}
	if err != nil {
		s.malformed.Add(1)
		return
	}
	if h.leaves {
		delete(s.peers, from)
	} else if !s.met(from, h.number, now) {
		return
	}
	s.received.Add(1)
	if s.keyID == 0 {
		return
	}
	if h.key != s.keyID {
		s.foreign.Add(1)
		s.keyWanted.Store(true)
		return
	}
	_ = eachEntry(rest, func(table uint8, key uint64, cost int64) {
		if int(table) <= len(s.tables) { // a newer version may share more
			if t := s.tables[table-1](); t != nil {
				t.advance(key, cost, now)
				s.takenOver.Add(1)
			}
		}
	})
}

// echo notes that an own message came back: the others receive them too. They could not be
// received until now. The caller holds mu.
func (s *Share) echo(now int64) {
	if s.alone(now) {
		for _, p := range s.peers {
			p.seen = now
		}
	}
	s.echoed = now
}

// met notes a message of another node, and reports whether it is new. The caller holds mu.
func (s *Share) met(from string, number uint64, now int64) bool {
	p := s.peers[from]
	if p == nil {
		if len(s.peers) >= maxSharePeers {
			return false
		}
		p = &sharePeer{number: number - 1}
		s.peers[from] = p
	}
	if number <= p.number {
		return false
	}
	s.missed.Add(number - p.number - 1)
	p.seen, p.number = now, number
	return true
}

// Leave sends what was taken last and that this node leaves: the others have its part at once.
// Tick does nothing from then on.
func (s *Share) Leave(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keyID == 0 || s.left {
		return
	}
	s.left = true
	s.gather()
	s.broadcast(shareHeader{leaves: true}, now)
}

// ShareStats are running totals and gauges, for metrics.
type ShareStats struct {
	Nodes     int    // that share the buckets, this one included
	Alone     bool   // the others are out of reach: this node has its part of each bucket
	Sent      uint64 // messages
	Received  uint64 // messages of other nodes
	Missed    uint64 // messages of other nodes that did not come
	Malformed uint64 // messages of other nodes that make no sense to this version
	Foreign   uint64 // messages of other nodes with another secret
	Buckets   uint64 // buckets whose use was sent
	Applied   uint64 // buckets whose use on another node was applied
	Deferred  uint64 // buckets whose use was sent later, because a message was full
}

// Stats returns them.
func (s *Share) Stats() ShareStats {
	return ShareStats{
		Nodes: int(s.nodes.Load()), Alone: s.parts.Load() > 1, Sent: s.sent.Load(), Received: s.received.Load(), Missed: s.missed.Load(),
		Malformed: s.malformed.Load(), Foreign: s.foreign.Load(), Buckets: s.entries.Load(), Applied: s.takenOver.Load(), Deferred: s.deferred.Load(),
	}
}
