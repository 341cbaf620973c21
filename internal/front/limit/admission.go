package limit

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// AdmissionConfig says how long requests of a class may wait for their loop. The
// zero value works.
type AdmissionConfig struct {
	// Slice is how long a loop works on waiting requests before it looks at its
	// sockets again; 0 means 1ms.
	Slice hub.Duration `json:"slice"`
	// OrderDelay, AccountDelay, MarketDelay and ReplayDelay are the budgets: a request
	// is admitted if what waits before it is expected to take no longer. 0 means
	// 10ms, 8ms, 4ms and 2ms. Control has none and is never refused.
	OrderDelay   hub.Duration `json:"order_delay"`
	AccountDelay hub.Duration `json:"account_delay"`
	MarketDelay  hub.Duration `json:"market_delay"`
	ReplayDelay  hub.Duration `json:"replay_delay"`
	// Floor is how many percent of the time go to the least important class that
	// waits, so that none starves for ever, 0 to 50; 0 means 5.
	Floor int `json:"floor" unit:"percent"`
	// MaxQueued bounds the requests that wait on one loop; 0 means 4,096.
	MaxQueued int `json:"max_queued"`
	// Guard is the 99th percentile of the scheduler's latency from which the process
	// counts as short of processors: the budgets of market and replay are halved with
	// every sample of the governor's, history rests, handshakes go one at a time and
	// no new client is given compression; of 25 samples they may in 5. Only where something
	// has a class. 0 means 2ms, negative never.
	Guard hub.Duration `json:"guard"`
	// Marks have the packets of connections marked by class, so that what is important is sent
	// first where a link is full: by queues of this machine (weir tune plan makes them), and by
	// routers that heed DSCP.
	Marks Marks `json:"marks"`
}

// WithDefaults returns c with every zero replaced by what it means.
func (c AdmissionConfig) WithDefaults() AdmissionConfig {
	c.Slice = cmp.Or(c.Slice, hub.Duration(time.Millisecond))
	c.OrderDelay = cmp.Or(c.OrderDelay, hub.Duration(10*time.Millisecond))
	c.AccountDelay = cmp.Or(c.AccountDelay, hub.Duration(8*time.Millisecond))
	c.MarketDelay = cmp.Or(c.MarketDelay, hub.Duration(4*time.Millisecond))
	c.ReplayDelay = cmp.Or(c.ReplayDelay, hub.Duration(2*time.Millisecond))
	c.Floor = cmp.Or(c.Floor, 5)
	c.MaxQueued = cmp.Or(c.MaxQueued, 4096)
	c.Guard = cmp.Or(c.Guard, hub.Duration(2*time.Millisecond))
	return c
}

// Validate returns all that is wrong with c, joined.
func (c AdmissionConfig) Validate() error {
	var errs []error
	for _, d := range []struct {
		key string
		v   hub.Duration
	}{{"slice", c.Slice}, {"order_delay", c.OrderDelay}, {"account_delay", c.AccountDelay}, {"market_delay", c.MarketDelay}, {"replay_delay", c.ReplayDelay}} {
		if d.v < 0 || d.v > hub.Duration(10*time.Second) {
			errs = append(errs, fmt.Errorf("%s: %v is not within 0s..10s", d.key, d.v))
		}
	}
	if c.Floor < 0 || c.Floor > 50 {
		errs = append(errs, fmt.Errorf("floor: %d is not within 0..50 percent", c.Floor))
	}
	if c.MaxQueued < 0 || c.MaxQueued > 1<<20 {
		errs = append(errs, fmt.Errorf("max_queued: %d is not within 1..%d", c.MaxQueued, 1<<20))
	}
	if err := c.Marks.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("marks: %w", err))
	}
	return errors.Join(errs...)
}

// A Key names what a request is the newest word about: of two that wait with the same
// Key only the newer is served. The zero value is no name.
type Key struct{ Channel, Key string }

// A Verdict is what becomes of a request.
type Verdict uint8

const (
	// Go: serve it now; nothing waits.
	Go Verdict = iota
	// Wait: it is queued, and Next returns it in order.
	Wait
	// Replaced: it is queued in the place of an older one with the same key.
	Replaced
	// Refuse: it would wait for longer than its class may.
	Refuse
)

// An Admission decides which requests one loop serves, in which order. The queue is
// here, in sight, and not in the sockets: the loop reads everything that there is,
// offers it, and works through what was admitted a slice at a time, the most
// important first.
//
// What a request waits is estimated from what those before it cost: the time that
// requests of their class took lately, over the share of its time that the loop has
// for them. A bound on time holds at any capacity and under any host, where a bound
// on rate or on number has to be known beforehand (docs/design/admission.md).
//
// It belongs to its loop; only Stats is for any goroutine.
type Admission[T any] struct {
	// Fixed.
	slice  int64
	budget [Classes]int64 // 0: without bound
	floor  int64          // percent
	max    int

	// Owned by the loop.
	queues [Classes]classQueue[T]
	cost   [Classes]float64 // nanoseconds of one request, lately
	share  float64          // of the loop's time, for requests, while they wait
	queued int
	gone   func(T) bool // nil: no client leaves
	scale  float64      // of the budgets of Market and Replay, 0 to 1
	paused bool         // Replay rests
	works  int64        // how long the loop works at a time, at least slice

	began   int64 // the loop's time when the queue was last empty, or looked at
	worked  int64 // time spent on requests since
	credits int64 // time due to the least important class, times 100

	stats [Classes]classStats
}

// classQueue is a queue whose entries can be found by key.
type classQueue[T any] struct {
	items []queuedItem[T] // from head on
	head  int
	first uint64         // number of the item at head
	keys  map[Key]uint64 // number of the item with that key; nil until there is one
}

type queuedItem[T any] struct {
	item T
	key  Key
	at   int64
}

// classStats are counters of a class. Written by the loop, read by any goroutine.
type classStats struct {
	offered, admitted, refused, expired, conflated, abandoned atomic.Uint64
	queued                                                    atomic.Int64
	waits                                                     [len(waitBounds) + 1]atomic.Uint64
	waited                                                    atomic.Uint64 // nanoseconds, all together
}

// waitBounds are the upper bounds of the waiting time's histogram, in nanoseconds.
var waitBounds = [...]int64{1e5, 25e4, 5e5, 1e6, 25e5, 5e6, 75e5, 1e7, 15e6, 25e6, 5e7, 1e8, 25e7, 1e9}

// WaitBounds returns the upper bounds of ClassStats.Waits in seconds.
func WaitBounds() []float64 {
	s := make([]float64, len(waitBounds))
	for i, b := range waitBounds {
		s[i] = float64(b) / 1e9
	}
	return s
}

// NewAdmission returns an Admission for one loop.
func NewAdmission[T any](cfg AdmissionConfig) *Admission[T] {
	cfg = cfg.WithDefaults()
	a := &Admission[T]{slice: int64(cfg.Slice), floor: int64(cfg.Floor), max: cfg.MaxQueued, share: 1, scale: 1, works: int64(cfg.Slice)}
	a.budget = [Classes]int64{
		Order: int64(cfg.OrderDelay), Account: int64(cfg.AccountDelay), Market: int64(cfg.MarketDelay), Replay: int64(cfg.ReplayDelay),
	}
	return a
}

// LetGo makes the queue drop requests whose clients gone reports as closed, when they are
// next. Before the loop runs only.
func (a *Admission[T]) LetGo(gone func(T) bool) { a.gone = gone }

// Slice is how long the loop may work on requests at a time, in nanoseconds.
func (a *Admission[T]) Slice() int64 { return a.slice }

// Slices reports that the loop works for longer than a slice at a time: of a channel that
// many follow the first publication is the dear one. The market is admitted to what is
// served in one go however small its budget has become: with fewer at a time each would
// cost more, and still fewer be admitted.
func (a *Admission[T]) Slices(works int64) { a.works = max(works, a.slice) }

// Len is how many requests wait.
func (a *Admission[T]) Len() int { return a.queued }

// Offer decides about a request that has arrived at now. spent is how long the loop
// has been at work since it last looked at its sockets. A key lets the request take the place of a waiting one with the same key, which is returned: its
// client is notified that it was replaced.
func (a *Admission[T]) Offer(c Class, key Key, now, spent int64, item T) (v Verdict, old T) {
	s := &a.stats[c]
	s.offered.Add(1)
	if a.queued == 0 && spent < a.slice && !(c == Replay && a.paused) {
		a.began, a.worked = now, 0
		s.admit(0)
		return Go, old
	}
	q := &a.queues[c]
	if key != (Key{}) {
		if n, ok := q.keys[key]; ok {
			e := &q.items[q.head+int(n-q.first)]
			old, e.item = e.item, item
			s.conflated.Add(1)
			return Replaced, old
		}
	}
	if a.queued >= a.max && c != Control || !a.fits(c) {
		s.refused.Add(1)
		return Refuse, old
	}
	if a.queued == 0 {
		a.began, a.worked = now, 0
	}
	q.push(queuedItem[T]{item: item, key: key, at: now})
	a.queued++
	s.queued.Store(int64(q.len()))
	return Wait, old
}

// Sheds reports whether a request of class c is refused whatever else it says, and counts
// it then. Otherwise nothing has happened, and it is for Offer.
func (a *Admission[T]) Sheds(c Class) bool {
	if a.queued == 0 && !(c == Replay && a.paused) || (a.queued < a.max || c == Control) && a.fits(c) {
		return false
	}
	s := &a.stats[c]
	s.offered.Add(1)
	s.refused.Add(1)
	return true
}

// fits reports whether what waits before a request of class c leaves it its budget.
func (a *Admission[T]) fits(c Class) bool {
	budget := float64(a.budget[c])
	if budget == 0 {
		return true
	}
	if c >= Market {
		budget *= a.scale
	}
	if c == Replay && a.paused {
		return false
	}
	if c == Market { // what is served in one go is cheaper the more it is
		budget = max(budget, float64(a.works))
	}
	return a.Expected(c) <= time.Duration(budget)
}

// Expected is how long a request of class c that came now would wait.
func (a *Admission[T]) Expected(c Class) time.Duration {
	work := a.ahead(c)
	if c >= Market { // the floor is its own, whatever else waits
		own := float64(a.queues[c].len()) * a.cost[c]
		work = min(work, own*100/float64(a.floor))
	}
	return time.Duration(work / a.share)
}

// ahead is the work that waits before a request of class c.
func (a *Admission[T]) ahead(c Class) (work float64) {
	for k := Control; k <= c; k++ {
		work += float64(a.queues[k].len()) * a.cost[k]
	}
	return work
}

// Next returns the request to serve next. When ok is false none waits. expired says
// that it has waited so much longer than was expected that it is worth nothing any
// more: its client is refused. Orders do not expire.
func (a *Admission[T]) Next(now int64) (item T, c Class, expired, ok bool) {
	for a.queued > 0 {
		c = a.pick()
		q, s := &a.queues[c], &a.stats[c]
		e := q.pop()
		a.queued--
		s.queued.Store(int64(q.len()))
		if a.gone != nil && a.gone(e.item) {
			s.abandoned.Add(1)
			continue
		}
		waited := now - e.at
		if c >= Market && waited > 4*a.budget[c] {
			s.expired.Add(1)
			return e.item, c, true, true
		}
		s.admit(waited)
		return e.item, c, false, true
	}
	return item, 0, false, false
}

// Urgent reports whether something more important than Market waits.
func (a *Admission[T]) Urgent() bool {
	return a.queues[Control].len()+a.queues[Order].len()+a.queues[Account].len() > 0
}

// Pressure is how far the loop is from having time for class c, 0 to 1: 1 is a wait of
// twice its budget.
func (a *Admission[T]) Pressure(c Class) float64 {
	if a.budget[c] == 0 {
		return 0
	}
	return min(float64(a.Expected(c))/float64(2*a.budget[c]), 1)
}

// Decide decides about a request that cannot wait, and reports whether it is to be
// served.
func (a *Admission[T]) Decide(c Class) bool {
	s := &a.stats[c]
	s.offered.Add(1)
	if a.full(c) {
		s.refused.Add(1)
		return false
	}
	s.admit(0)
	return true
}

// full reports whether a request of class c that cannot wait is not to be served.
func (a *Admission[T]) full(c Class) bool {
	return c == Replay && a.paused || a.budget[c] != 0 && a.queued > 0 && a.ahead(c) > float64(a.budget[c])*a.share
}

// pick chooses the class to serve: the most important that waits, or the least
// important when the time is due to it.
func (a *Admission[T]) pick() Class {
	var best, least Class
	for c := Control; c < Classes; c++ {
		if a.queues[c].len() > 0 {
			if best == 0 {
				best = c
			}
			least = c
		}
	}
	if least != best && a.credits > 0 && float64(a.credits) >= 100*a.cost[least] {
		return least
	}
	return best
}

// How quickly estimates follow.
const (
	costGain  = 0.2
	shareGain = 0.3
	// window is how long the share is measured over.
	window = int64(50 * time.Millisecond)
)

// Served reports what n requests of class c took, all that followed from them on this
// loop included, until now.
func (a *Admission[T]) Served(c Class, n int, took, now int64) {
	if n <= 0 {
		return
	}
	if each := float64(took) / float64(n); a.cost[c] == 0 {
		a.cost[c] = each
	} else { // far more means that another process had the processor
		a.cost[c] += costGain * (min(each, 4*a.cost[c]) - a.cost[c])
	}
	a.worked += took
	a.credit(c, took)
	switch since := now - a.began; {
	case a.queued == 0:
		// Only a loop that is behind shows how much of its time there is.
		a.began, a.worked = now, 0
	case since >= window:
		a.share += shareGain * (min(float64(a.worked)/float64(since), 1) - a.share)
		a.share = max(a.share, 0.05)
		a.began, a.worked = now, 0
	}
	if a.queued == 0 {
		a.share += shareGain / 10 * (1 - a.share)
	}
}

// credit keeps account of what is due to the least important class that waits.
func (a *Admission[T]) credit(c Class, took int64) {
	for k := Replay; k > c; k-- {
		if a.queues[k].len() > 0 {
			a.credits = min(a.credits+took*a.floor, 100*10*int64(time.Millisecond))
			return
		}
	}
	a.credits = max(a.credits-100*took, 0)
}

// Guard scales the budgets of Market and Replay: the process says that it is short
// of processors. 1 is none of that; pause refuses Replay altogether.
func (a *Admission[T]) Guard(scale float64, pause bool) {
	a.scale, a.paused = min(max(scale, 0.05), 1), pause
}

func (s *classStats) admit(waited int64) {
	s.admitted.Add(1)
	s.waited.Add(uint64(max(waited, 0)))
	i := 0
	for i < len(waitBounds) && waited > waitBounds[i] {
		i++
	}
	s.waits[i].Add(1)
}

func (q *classQueue[T]) len() int { return len(q.items) - q.head }

func (q *classQueue[T]) push(e queuedItem[T]) {
	if e.key != (Key{}) {
		if q.keys == nil {
			q.keys = map[Key]uint64{}
		}
		q.keys[e.key] = q.first + uint64(q.len())
	}
	q.items = append(q.items, e)
}

func (q *classQueue[T]) pop() queuedItem[T] {
	e := q.items[q.head]
	q.items[q.head] = queuedItem[T]{}
	q.head++
	q.first++
	if e.key != (Key{}) {
		delete(q.keys, e.key)
	}
	switch {
	case q.head == len(q.items):
		if q.items, q.head = q.items[:0], 0; cap(q.items) > 1024 {
			q.items = nil
		}
	case q.head > 64 && q.head > len(q.items)/2:
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return e
}

// ClassStats are what became of the requests of a class.
type ClassStats struct {
	Class     Class
	Offered   uint64
	Admitted  uint64
	Refused   uint64   // would have waited too long
	Expired   uint64   // did wait too long
	Conflated uint64   // replaced by a newer one while they waited
	Abandoned uint64   // whose clients went away while they waited
	Queued    int64    // wait now
	Waits     []uint64 // admitted by how long they waited, one per bound and one beyond
	Waited    time.Duration
}

// Add adds the counters of o, of the same class.
func (s *ClassStats) Add(o *ClassStats) {
	s.Offered += o.Offered
	s.Admitted += o.Admitted
	s.Refused += o.Refused
	s.Expired += o.Expired
	s.Conflated += o.Conflated
	s.Abandoned += o.Abandoned
	s.Queued += o.Queued
	s.Waited += o.Waited
	for i := range s.Waits {
		s.Waits[i] += o.Waits[i]
	}
}

// Stats returns the counters of every class. Any goroutine.
func (a *Admission[T]) Stats() []ClassStats {
	var list []ClassStats
	for c := Control; c < Classes; c++ {
		s := &a.stats[c]
		t := ClassStats{
			Class: c, Offered: s.offered.Load(), Admitted: s.admitted.Load(), Refused: s.refused.Load(), Expired: s.expired.Load(),
			Conflated: s.conflated.Load(), Abandoned: s.abandoned.Load(), Queued: s.queued.Load(), Waited: time.Duration(s.waited.Load()),
		}
		for i := range s.waits {
			t.Waits = append(t.Waits, s.waits[i].Load())
		}
		list = append(list, t)
	}
	return list
}
