package loadgen

import (
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/net/eventloop"
)

// A shard is a loop's part of the load: its connections, the arrivals it was
// dealt, and what it counts. Its methods are for the loop's goroutine, except
// where they say otherwise.
type shard struct {
	// Fixed at New.
	g      *Generator
	loop   *eventloop.Loop
	id     int
	limit  int // of what is under way
	depth  int // outstanding exchanges of a connection
	reader reader

	// Any goroutine.
	dealt atomic.Bool
	live  live
	mu    sync.Mutex
	due   []int64 // arrivals dealt and not yet in hand

	// Owned by the loop. No lock.
	now      int64 // read when something starts; see tick
	dueSpare []int64
	free     freeConns
	waiting  queue[int64] // intended instants of arrivals without a connection
	inFlight int
	open     int // connections that are open
	sum      sums
	rec      *piece
	changed  int64 // up to where rec.busy and rec.open count
	since    int64 // arrivals intended earlier are not counted: of the warm-up
	shown    int64 // live was published
	draining bool  // the window is over: what is answered now is Drained
	closed   int   // closed loop of that many
	scratch  []byte

	publishes publishes
}

// sums are counted since the start.
type sums struct{ offered, sent, completed, dropped, errors, received uint64 }

// live is what a shard last published of its state, for Snapshot.
type live struct {
	mu sync.Mutex
	sums
	inFlight, open int
}

func (l *live) publish(s sums, inFlight, open int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sums, l.inFlight, l.open = s, inFlight, open
}

// An exchange is a request under way. A zero intended says that it is not counted.
type exchange struct {
	intended, sent int64
	flow           int32 // of a publish, see flows
	seq            uint64
}

// A sender is a connection that carries exchanges.
type sender interface {
	endpoint
	carrier() *requestConn
	// transmit sends the request of ex, whose intended and sent are set.
	transmit(ex *exchange)
}

// do runs f on the loop and waits for it; false when the loop has ended. Any
// goroutine but the loop's.
func (s *shard) do(f func()) bool {
	done := make(chan struct{})
	if !s.loop.Post(func() { defer close(done); f() }) {
		return false
	}
	<-done
	return true
}

// deal passes on arrivals. Any goroutine.
func (s *shard) deal(due []int64) {
	s.mu.Lock()
	s.due = append(s.due, due...)
	s.mu.Unlock()
	s.dealt.Store(true)
	s.loop.Wake()
}

// onTick runs in every tick of the loop.
func (s *shard) onTick() {
	if s.dealt.Swap(false) {
		s.mu.Lock()
		s.due, s.dueSpare = s.dueSpare[:0], s.due
		s.mu.Unlock()
		s.touch()
		for _, at := range s.dueSpare {
			s.take(at)
		}
	}
	if now := s.g.now(); now-s.shown > 50e6 {
		s.shown = now
		s.live.publish(s.sum, s.inFlight, s.open)
	}
}

// touch reads the clock. Whatever starts on the loop, a tick or an input, calls
// it first.
func (s *shard) touch() int64 {
	s.now = s.g.now()
	return s.now
}

// account brings the areas up to now; call it before inFlight or open change.
func (s *shard) account(now int64) {
	d := float64(now-s.changed) / 1e9
	s.rec.busy += d * float64(s.inFlight)
	s.rec.open += d * float64(s.open)
	s.changed = now
}

// take has an arrival in hand.
func (s *shard) take(intended int64) {
	now := s.g.now() // many may be due: each sending takes a while
	s.now = now
	if counts := intended >= s.since; counts {
		s.rec.Offered++
		record(&s.rec.Lag, now-intended)
	}
	s.sum.offered++
	if s.inFlight >= s.limit {
		s.drop(intended)
		return
	}
	s.begin(intended, now)
	if l, ok := s.free.next(); ok {
		s.send(l, intended, now)
		return
	}
	s.waiting.push(intended)
}

func (s *shard) drop(intended int64) {
	if intended >= s.since {
		s.rec.Dropped++
	}
	s.sum.dropped++
	s.g.quota.end()
}

func (s *shard) begin(intended, now int64) {
	s.account(now)
	s.inFlight++
	s.rec.busy += float64(now-intended) / 1e9
}

func (s *shard) end(now int64) {
	s.account(now)
	s.inFlight--
}

func (s *shard) send(h sender, intended, now int64) {
	l := h.carrier()
	l.out = append(l.out, exchange{intended: intended, sent: now})
	ex := &l.out[len(l.out)-1]
	if intended >= s.since {
		s.rec.Sent++
	}
	s.sum.sent++
	l.arm()
	h.transmit(ex)
	s.free.offer(h)
}

// serve sends what waits, and in the closed loop what may start.
func (s *shard) serve() {
	for s.waiting.len() > 0 {
		intended, _ := s.waiting.peek()
		if s.now-intended > int64(s.g.spec.Timeout) {
			s.waiting.pop()
			s.end(s.now)
			s.drop(intended)
			continue
		}
		h, ok := s.free.next()
		if !ok {
			return
		}
		s.waiting.pop()
		if intended >= s.since {
			s.rec.Waited++
		}
		s.send(h, intended, s.now)
	}
	for s.inFlight < s.closed {
		h, ok := s.free.next()
		if !ok {
			return
		}
		if !s.g.quota.take() {
			s.free.offer(h)
			return
		}
		if s.now >= s.since {
			s.rec.Offered++
		}
		s.sum.offered++
		s.begin(s.now, s.now)
		s.send(h, s.now, s.now)
	}
}

// abandon drops what waits for a connection.
func (s *shard) abandon() {
	for {
		intended, ok := s.waiting.pop()
		if !ok {
			return
		}
		s.end(s.now)
		s.drop(intended)
	}
}

// complete is a right answer to ex.
func (s *shard) complete(ex exchange, now int64) {
	s.end(now)
	if s.g.spec.Kind == PubSub {
		s.acknowledged(ex)
	}
	s.sum.completed++
	s.g.quota.end()
	if ex.intended < s.since {
		if !s.draining {
			s.rec.Carried++
		}
		return
	}
	if s.draining {
		s.rec.Drained++
	} else {
		s.rec.Completed++
	}
	if s.g.spec.Kind == PubSub {
		record(&s.rec.Publish, now-ex.intended)
	} else {
		s.rec.answer(now-ex.intended, now-ex.sent)
	}
}

// fail is a wrong answer to ex, or none.
func (s *shard) fail(ex exchange, why string, now int64) {
	s.end(now)
	if s.g.spec.Kind == PubSub {
		s.g.flows.fail(int(ex.flow), ex.seq)
	}
	s.sum.errors++
	s.g.quota.end()
	if ex.intended >= s.since {
		s.rec.fail(why)
	}
}

// exchangePiece gives the piece so far for p, an empty one.
func (s *shard) exchangePiece(p *piece) *piece {
	s.account(s.touch())
	old := s.rec
	s.rec = p
	s.live.publish(s.sum, s.inFlight, s.open)
	return old
}

// freeConns are the connections with room.
type freeConns struct{ queue[sender] }

// next takes the connection that has been in the queue longest.
func (q *freeConns) next() (sender, bool) {
	for {
		h, ok := q.pop()
		if !ok {
			return nil, false
		}
		l := h.carrier()
		l.queued = false
		if l.ready() {
			return h, true
		}
	}
}

// offer puts h where arrivals find it, if it has room.
func (q *freeConns) offer(h sender) {
	if l := h.carrier(); !l.queued && l.ready() {
		l.queued = true
		q.push(h)
	}
}

// A queue is first in, first out, in a ring that grows.
type queue[T any] struct {
	ring []T
	head int
	n    int
}

func (q *queue[T]) len() int { return q.n }

func (q *queue[T]) push(v T) {
	if q.n == len(q.ring) {
		bigger := make([]T, max(16, 2*q.n))
		k := copy(bigger, q.ring[q.head:])
		copy(bigger[k:], q.ring[:q.head])
		q.ring, q.head = bigger, 0
	}
	i := q.head + q.n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.ring[i] = v
	q.n++
}

func (q *queue[T]) peek() (v T, ok bool) {
	if q.n == 0 {
		return v, false
	}
	return q.ring[q.head], true
}

func (q *queue[T]) pop() (v T, ok bool) {
	if q.n == 0 {
		return v, false
	}
	var zero T
	v, q.ring[q.head] = q.ring[q.head], zero
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	q.n--
	return v, true
}
