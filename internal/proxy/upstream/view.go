package upstream

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
)

// A view is what the hot path reads of a cluster: immutable, replaced as a whole.
type view struct {
	config  Config
	policy  policy
	tls     *TLS // nil: no peer is spoken to over TLS
	entries []entry
	// schedule has each entry's index as often as its weight says, spread evenly.
	schedule []uint16
	// ring is for consistent hashing only.
	ring        []point
	totalWeight float64
	// next has the peers of the next higher priority, asked when none of these can be;
	// nil: there are no more.
	next *view
}

// A tier is the entries of one priority.
type tier struct {
	priority uint16
	entries  []entry
}

// newViews makes a view of each tier, and returns the first.
func newViews(c Config, tls *TLS, tiers []tier) *view {
	if len(tiers) == 0 {
		return newView(c, tls, nil)
	}
	v := newView(c, tls, tiers[0].entries)
	if len(tiers) > 1 {
		v.next = newViews(c, tls, tiers[1:])
	}
	return v
}

// all are the entries of v and of those that follow.
func (v *view) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for ; v != nil; v = v.next {
			for i := range v.entries {
				if !yield(&v.entries[i]) {
					return
				}
			}
		}
	}
}

// several reports whether there are two peers or more.
func (v *view) several() bool { return len(v.entries) > 1 || v.next != nil && len(v.entries) > 0 }

// An entry is a peer that may be picked.
type entry struct {
	peer   *Peer
	weight float64
}

type point struct {
	hash  uint64
	entry uint16
}

// policy is Config compiled for the hot path.
type policy struct {
	balance     balance
	key         KeySource
	hashLoad    float64
	ewmaDecay   int64
	slowStart   int64
	panicBelow  float64 // below 0: never
	maxInFlight int64
	maxPending  int64
	breaker     breakerPolicy
	outlier     outlierPolicy
	retry       retryPolicy
	hedge       hedgePolicy
}

type outlierPolicy struct {
	disabled             bool
	consecutive, connect int32
	rate                 float64
	min                  int
	window               int64
	base, max, forget    int64
	share                float64
}

type balance uint8

const (
	roundRobin balance = iota
	leastConnections
	ewma
	consistentHash
)

// compile makes the policy of a valid c with defaults.
func compile(c Config) policy {
	p := policy{
		hashLoad:    c.HashLoad,
		ewmaDecay:   int64(c.EWMADecay),
		slowStart:   int64(c.SlowStart),
		panicBelow:  c.Health.PanicBelow,
		maxInFlight: int64(c.Pool.MaxInFlight),
		maxPending:  max(int64(c.Pool.MaxPending), 0),
		breaker: breakerPolicy{
			disabled: !c.Breaker.Enabled.On(), openTime: int64(c.Breaker.OpenTime), window: int64(c.Breaker.Window),
			min: c.Breaker.MinRequests, ratio: c.Breaker.FailureRatio, probes: uint64(c.Breaker.Probes),
		},
		outlier: outlierPolicy{
			disabled: !c.Outlier.Enabled.On(), consecutive: int32(c.Outlier.Consecutive5xx), connect: int32(c.Outlier.ConsecutiveConnect),
			rate: c.Outlier.ErrorRate, min: c.Outlier.MinRequests, window: int64(c.Outlier.Window),
			base: int64(c.Outlier.BaseEjection), max: int64(c.Outlier.MaxEjection), forget: int64(c.Outlier.MaxEjection),
			share: c.Outlier.MaxEjected,
		},
		retry: compileRetry(c.Retry),
		hedge: hedgePolicy{after: int64(c.Hedge.After), percentile: c.Hedge.Percentile, share: c.Hedge.MaxShare},
	}
	p.balance = map[string]balance{
		RoundRobin: roundRobin, LeastConnections: leastConnections, EWMA: ewma, ConsistentHash: consistentHash,
	}[c.Balance]
	if p.balance == consistentHash {
		p.key, _ = parseKeySource(c.HashKey) // validated
	}
	return p
}

// maxPeers bounds a cluster's peers, resolved addresses included.
const maxPeers = 10000

func newView(c Config, tls *TLS, entries []entry) *view {
	v := &view{config: c, policy: compile(c), tls: tls, entries: entries}
	for _, e := range entries {
		v.totalWeight += e.weight
	}
	v.schedule = smooth(entries)
	if v.policy.balance == consistentHash {
		v.ring = newRing(entries)
	}
	return v
}

// maxSlots bounds a schedule; weights are rounded to fit.
const maxSlots = 1 << 14

// smooth is the smooth weighted round robin of nginx, run ahead for one period:
// every entry gains its weight each turn, the one that has most gets the slot and
// pays the total. The slots of one entry are then spread, not in a row.
func smooth(entries []entry) []uint16 {
	weights := make([]int, len(entries))
	gcd, total := 0, 0
	for i, e := range entries {
		weights[i] = int(e.weight)
		gcd = greatestDivisor(gcd, weights[i])
	}
	for i := range weights {
		weights[i] /= gcd
		total += weights[i]
	}
	if total > maxSlots {
		scale := float64(maxSlots) / float64(total)
		total = 0
		for i, w := range weights {
			weights[i] = max(1, int(math.Round(float64(w)*scale)))
			total += weights[i]
		}
	}
	slots := make([]uint16, total)
	if total == len(entries) {
		for i := range slots {
			slots[i] = uint16(i)
		}
		return slots
	}
	// A heap by what each entry has would be faster; this runs on a reload only.
	has := make([]int, len(entries))
	for s := range slots {
		best := 0
		for i, w := range weights {
			has[i] += w
			if has[i] > has[best] {
				best = i
			}
		}
		has[best] -= total
		slots[s] = uint16(best)
	}
	return slots
}

func greatestDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

const (
	pointsPerPeer = 160
	maxPoints     = 1 << 17
)

// newRing places each peer at points that its address alone decides (Karger et
// al., "Consistent Hashing and Random Trees", 1997), in number by weight: a peer
// that leaves moves its own keys and no others.
func newRing(entries []entry) []point {
	if len(entries) == 0 {
		return nil
	}
	least := entries[0].weight
	total := 0.0
	for _, e := range entries {
		least = min(least, e.weight)
		total += e.weight
	}
	per := min(pointsPerPeer/least, maxPoints/total)
	var ring []point
	for i, e := range entries {
		for n := range max(1, int(math.Round(per*e.weight))) {
			ring = append(ring, point{mix(e.peer.hash + uint64(n+1)*golden), uint16(i)})
		}
	}
	slices.SortFunc(ring, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(entries[a.entry].peer.hash, entries[b.entry].peer.hash))
	})
	return ring
}

// A retryPolicy is RetryConfig compiled.
type retryPolicy struct {
	attempts      int
	on            retryOn
	budget        float64
	perSecond     int
	nonIdempotent bool
}

// retryOn is what is retried.
type retryOn struct {
	connect, reset, timeout bool
	status                  [10]uint64 // a bit per code below 640
}

func (r *retryOn) has(status int) bool {
	return status > 0 && status < 640 && r.status[status/64]>>(status%64)&1 != 0
}

func parseRetryOn(on []string) (retryOn, error) {
	var r retryOn
	for _, s := range on {
		switch s {
		case "connect-failure":
			r.connect = true
		case "reset":
			r.reset = true
		case "timeout":
			r.timeout = true
		default:
			code, err := strconv.Atoi(s)
			if err != nil || code < 400 || code > 599 {
				return retryOn{}, fmt.Errorf("%q; write connect-failure, reset, timeout or a status from 400 to 599", s)
			}
			r.status[code/64] |= 1 << (code % 64)
		}
	}
	return r, nil
}

func compileRetry(c RetryConfig) retryPolicy {
	on, _ := parseRetryOn(c.On) // validated
	return retryPolicy{attempts: c.Attempts, on: on, budget: c.Budget, perSecond: c.MinPerSecond, nonIdempotent: c.NonIdempotent}
}
