package upstream

import (
	"math/bits"
	"sort"
)

// A search is one Pick's look for a peer. It lives on the caller's stack.
type search struct {
	c     *Cluster
	v     *view
	now   int64
	key   uint64
	tried *Tried
	// again allows the peers in tried, panicking those that are down or ejected.
	again, panicking bool
}

// usable reports whether entry i may be asked.
func (s *search) usable(i int) bool {
	p := s.v.entries[i].peer
	return (s.again || !s.tried.Has(p)) && p.barred(s.now, &s.v.policy, s.panicking) == barNone
}

// choose returns the index of the peer to ask by the cluster's balancing, or -1.
func (s *search) choose() int {
	switch s.v.policy.balance {
	case leastConnections:
		return s.leastConnections()
	case ewma:
		return s.ewma()
	case consistentHash:
		return s.consistentHash()
	default:
		return s.roundRobin()
	}
}

// rejections bounds how often chance is tried before all peers are walked.
const rejections = 16

// roundRobin takes the next slot of the schedule. If its peer is not to be asked
// the request goes to a slot drawn evenly, not to the next: the neighbour of a dead
// peer would carry the load of two.
func (s *search) roundRobin() int {
	n := uint64(len(s.v.schedule))
	i := int(s.v.schedule[(s.c.next.Add(1)-1)%n])
	if s.usable(i) && s.ramped(i) {
		return i
	}
	for range rejections {
		i = s.drawSlot()
		if s.usable(i) && s.ramped(i) {
			return i
		}
	}
	return s.anyFrom(i)
}

// drawSlot is the entry of a slot, by multiples of the golden ratio: chance as even
// as it can be.
func (s *search) drawSlot() int {
	hi, _ := bits.Mul64(s.c.spill.Add(golden), uint64(len(s.v.schedule)))
	return int(s.v.schedule[hi])
}

// ramped reports whether entry i is to take this request although it is in slow
// start.
func (s *search) ramped(i int) bool {
	f := s.v.entries[i].peer.ramp(s.now, &s.v.policy)
	return f == 1 || unit(s.c.random()) < f
}

// anyFrom walks all entries once for a usable one.
func (s *search) anyFrom(start int) int {
	n := len(s.v.entries)
	for k := range n {
		if i := (start + k) % n; s.usable(i) {
			return i
		}
	}
	return -1
}

// anyFromStart is the first entry that is usable, or -1.
func (s *search) anyFromStart() int {
	if len(s.v.entries) == 0 {
		return -1
	}
	return s.anyFrom(0)
}

// weight is entry i's, less in slow start.
func (s *search) weight(i int) float64 {
	e := &s.v.entries[i]
	return e.weight * e.peer.ramp(s.now, &s.v.policy)
}

// scanAll is how many peers are all looked at for the fewest requests; of more,
// some are drawn.
const scanAll = 32

func (s *search) leastConnections() int {
	n := len(s.v.entries)
	if n > scanAll {
		best, least := -1, 0.0
		for range rejections {
			i := s.drawSlot()
			if load := s.load(i); s.usable(i) && (best < 0 || load < least) {
				best, least = i, load
			}
		}
		if best < 0 {
			return s.anyFrom(int(s.c.random() % uint64(n)))
		}
		return best
	}
	// Those with equally few share by weight, or an idle cluster would have one
	// busy peer.
	least, tied := -1.0, 0.0
	var ties [scanAll]struct {
		index  int
		weight float64
	}
	found := 0
	for i := range n {
		w := s.weight(i)
		load := float64(s.v.entries[i].peer.inflight.Load()) / w
		if least >= 0 && load > least || !s.usable(i) {
			continue
		}
		if least < 0 || load < least {
			least, tied, found = load, 0, 0
		}
		ties[found].index, ties[found].weight = i, w
		tied += w
		found++
	}
	if found == 0 {
		return -1
	}
	x := unit(s.c.spill.Add(golden)) * tied
	for k := range found - 1 {
		if x -= ties[k].weight; x < 0 {
			return ties[k].index
		}
	}
	return ties[found-1].index
}

// load is entry i's requests in flight per weight.
func (s *search) load(i int) float64 {
	return float64(s.v.entries[i].peer.inflight.Load()) / s.weight(i)
}

// ewma draws two peers and takes the one where the wait is likely the shorter
// (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).
// A peer in slow start is a candidate less often: a higher cost would keep
// it out, not slow.
func (s *search) ewma() int {
	n := len(s.v.entries)
	if n == 2 {
		return s.ofTwo()
	}
	first := -1
	for range rejections {
		i := int(s.c.random() % uint64(n))
		if i == first || !s.usable(i) || !s.ramped(i) {
			continue
		}
		if first < 0 {
			first = i
			continue
		}
		return s.faster(first, i)
	}
	if first >= 0 {
		return first
	}
	return s.anyFrom(int(s.c.random() % uint64(n)))
}

func (s *search) ofTwo() int {
	a, b := s.usable(0), s.usable(1)
	switch {
	case !a && !b:
		return -1
	case !a || b && !s.ramped(0):
		return 1
	case !b || !s.ramped(1):
		return 0
	}
	return s.faster(0, 1)
}

func (s *search) faster(i, j int) int {
	x, y := s.cost(i), s.cost(j)
	if x == y {
		if s.c.random()&1 == 0 {
			return j
		}
		return i
	}
	if x < y {
		return i
	}
	return j
}

// unmeasured is the cost of a peer that has a request but no latency yet: above any
// that is known, so that a new peer gets one request and not all.
const unmeasured = 1e15

func (s *search) cost(i int) float64 {
	p := s.v.entries[i].peer
	if p.breaker.state() != BreakerClosed {
		return 0 // it is due for a probe, and its average is of before
	}
	n := float64(p.inflight.Load())
	l := p.latency.value(s.now, s.v.policy.ewmaDecay)
	if l == 0 {
		if n == 0 {
			return 0
		}
		l = unmeasured
	}
	return l * (n + 1) / s.v.entries[i].weight
}

// consistentHash walks the ring from the key's place to the first peer that may be
// asked. Peers in slow start take the keys whose hash says so, always the same.
func (s *search) consistentHash() int {
	ring := s.v.ring
	at := sort.Search(len(ring), func(i int) bool { return ring[i].hash >= s.key })
	bound := 0.0
	if s.v.policy.hashLoad > 0 {
		total := int64(1)
		for i := range s.v.entries {
			total += s.v.entries[i].peer.inflight.Load()
		}
		bound = s.v.policy.hashLoad * float64(total) / s.v.totalWeight
	}
	for k := range ring {
		if k == rejections && s.anyFrom(0) < 0 {
			return -1
		}
		i := int(ring[(at+k)%len(ring)].entry)
		if !s.usable(i) {
			continue
		}
		e := &s.v.entries[i]
		if bound > 0 && float64(e.peer.inflight.Load()+1) > max(bound*e.weight, 1) {
			continue
		}
		if f := e.peer.ramp(s.now, &s.v.policy); f < 1 && unit(mix(s.key^e.peer.hash)) >= f {
			continue
		}
		return i
	}
	return s.anyFrom(int(ring[at%len(ring)].entry))
}
