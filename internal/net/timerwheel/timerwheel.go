// Package timerwheel keeps very many coarse deadlines for one event loop: a
// hierarchical timing wheel in which scheduling, postponing and stopping a timer
// cost a few pointer writes and no allocation, whatever the number of timers.
//
// A [Timer] is embedded by value in what it belongs to and is its own list node.
// Deadlines are rounded up to the next tick: a timer never fires early, and
// at most one tick late if the loop sleeps no longer than [Wheel.Next] says.
package timerwheel

import (
	"math"
	"math/bits"
	"time"
)

// DefaultTick is the tick of a wheel made with tick 0.
const DefaultTick = 100 * time.Millisecond

const (
	// Each level has 64 slots, one bit each in a word, and a slot spans as much
	// time as the whole level below: with a tick of 100 ms a slot is 0.1 s, 6.4 s,
	// 6.8 min or 7.3 h long, and all levels together reach 19 days ahead.
	slotBits = 6
	slots    = 1 << slotBits
	levels   = 4
	reach    = levels * slotBits
)

// A Timer is one deadline. The zero value is ready. It must not be copied or
// moved while it is scheduled, and belongs to the wheel it is scheduled on.
type Timer[T any] struct {
	// Owner is what fire gets; set it before the timer is scheduled.
	Owner T

	// Neighbours in a circular list with a list head; nil when not scheduled.
	next, prev *Timer[T]
	// when is the tick at which the timer is due. In a list head of a slot it is
	// the slot's number, in another list head noSlot.
	when uint64
}

// noSlot marks the list heads that have no bit in Wheel.filled.
const noSlot = math.MaxUint64

// Scheduled reports whether t waits to fire.
func (t *Timer[T]) Scheduled() bool { return t.next != nil }

// A Wheel holds timers. It belongs to one goroutine: there is no lock.
//
// Invariants, with cur the tick up to which time has passed: every timer in a
// slot or in far is due after cur and not before its slot starts; the digits of
// a slot's beginning and of cur (base 64) agree above the slot's level and
// differ at it. So the first filled slot of the lowest filled level comes before
// everything else, and moving cur up to it moves no other timer.
type Wheel[T any] struct {
	// Fixed by New.
	tick  uint64 // ns
	start uint64 // ns, when tick 0 began

	cur    uint64
	len    int
	filled [levels]uint64
	slot   [levels * slots]Timer[T]
	far    Timer[T] // beyond the reach of all levels
	due    Timer[T] // scheduled for a time that has passed: fires with the next Advance
	firing Timer[T] // being fired by the current Advance, or left over if fire panicked
	moving Timer[T] // being placed anew
}

// New returns an empty wheel whose time starts at now, in nanoseconds of the
// monotonic clock that all other times are of. A tick of 0 means DefaultTick.
func New[T any](tick time.Duration, now int64) *Wheel[T] {
	if tick <= 0 {
		tick = DefaultTick
	}
	w := &Wheel[T]{tick: uint64(tick), start: uint64(now)}
	for i := range w.slot {
		w.slot[i].headOf(uint64(i))
	}
	w.far.headOf(noSlot)
	w.due.headOf(noSlot)
	w.firing.headOf(noSlot)
	w.moving.headOf(noSlot)
	return w
}

// Len returns how many timers are scheduled.
func (w *Wheel[T]) Len() int { return w.len }

// Schedule makes t fire at the time at, or with the next Advance if that has
// passed. A timer that is already scheduled is moved; moving it to later, as
// activity on a connection does, is a single store.
func (w *Wheel[T]) Schedule(t *Timer[T], at int64) {
	when := w.tickAt(at)
	if t.next != nil {
		if t.when > w.cur && when >= t.when {
			// It may stay in its earlier slot: it is placed anew when that comes.
			t.when = when
			return
		}
		w.unlink(t)
	} else {
		w.len++
	}
	t.when = when
	w.place(t, &w.due)
}

// Stop takes t off the wheel and reports whether it was scheduled. It is then
// certain not to fire, even if it is due in the Advance that is under way.
func (w *Wheel[T]) Stop(t *Timer[T]) bool {
	if t.next == nil {
		return false
	}
	w.unlink(t)
	w.len--
	return true
}

// Until returns how long after now t fires, rounded up as its deadline was; 0 if it is
// not scheduled or due.
func (w *Wheel[T]) Until(t *Timer[T], now int64) time.Duration {
	if t.next == nil {
		return 0
	}
	at, elapsed := min(t.when, math.MaxInt64/w.tick)*w.tick, w.elapsed(now)
	return time.Duration(at - min(at, elapsed))
}

// Advance moves the time to now, calls fire for every timer that is due and
// returns how many there were. A timer that fires is no longer scheduled. fire
// may schedule and stop any timer, its own included; what it schedules fires
// with a later Advance at the earliest. If fire panics, the timers not fired
// yet fire with the next Advance.
func (w *Wheel[T]) Advance(now int64, fire func(T)) (fired int) {
	splice(&w.firing, &w.due)
	target := max(w.cur, w.passed(now))
	for {
		head, begin := w.first()
		if head == nil || begin > target {
			break
		}
		w.cur = begin
		w.clear(head)
		splice(&w.moving, head)
		for w.moving.next != &w.moving {
			t := w.moving.next
			remove(t)
			w.place(t, &w.firing)
		}
	}
	w.cur = target
	for w.firing.next != &w.firing {
		t := w.firing.next
		remove(t)
		w.len--
		fired++
		fire(t.Owner)
	}
	return fired
}

// Next returns how long the loop may sleep at time now; ok is false if nothing
// is scheduled. After that time Advance has something to do, which for a
// deadline further away may only be to place it anew: it need not fire anything.
func (w *Wheel[T]) Next(now int64) (wait time.Duration, ok bool) {
	if w.len == 0 {
		return 0, false
	}
	head, begin := w.first()
	if !empty(&w.due) || !empty(&w.firing) || head == nil {
		return 0, true
	}
	elapsed := w.elapsed(now)
	if begin > math.MaxInt64/w.tick {
		return math.MaxInt64, true // centuries
	}
	return time.Duration(begin*w.tick - min(elapsed, begin*w.tick)), true
}

// first returns the list whose timers come next and the tick at which it
// begins, or nil when all timers that are scheduled are due.
func (w *Wheel[T]) first() (head *Timer[T], begin uint64) {
	for level, filled := range w.filled {
		if filled == 0 {
			continue
		}
		s := bits.TrailingZeros64(filled)
		shift := level * slotBits
		begin = w.cur>>(shift+slotBits)<<(shift+slotBits) | uint64(s)<<shift
		return &w.slot[level*slots+s], begin
	}
	if empty(&w.far) {
		return nil, 0
	}
	return &w.far, (w.cur>>reach + 1) << reach
}

// place links t where its time belongs, or to passed if its time has come.
func (w *Wheel[T]) place(t *Timer[T], passed *Timer[T]) {
	if t.when <= w.cur {
		link(passed, t)
		return
	}
	// The highest digit in which the two differ.
	level := (bits.Len64(t.when^w.cur) - 1) / slotBits
	if level >= levels {
		link(&w.far, t)
		return
	}
	s := t.when >> (level * slotBits) % slots
	w.filled[level] |= 1 << s
	link(&w.slot[uint64(level)*slots+s], t)
}

// unlink removes t from its list, and the list's bit if it was the last there.
func (w *Wheel[T]) unlink(t *Timer[T]) {
	if head := t.next; head == t.prev {
		w.clear(head)
	}
	remove(t)
}

// clear removes the bit of a slot's list.
func (w *Wheel[T]) clear(head *Timer[T]) {
	if head.when != noSlot {
		w.filled[head.when/slots] &^= 1 << (head.when % slots)
	}
}

// elapsed returns the nanoseconds from the wheel's beginning to the time at.
func (w *Wheel[T]) elapsed(at int64) uint64 {
	if at <= int64(w.start) {
		return 0
	}
	return uint64(at) - w.start
}

// passed returns how many ticks are over at the time now.
func (w *Wheel[T]) passed(now int64) uint64 { return w.elapsed(now) / w.tick }

// tickAt returns the first tick that is not before the time at.
func (w *Wheel[T]) tickAt(at int64) uint64 {
	d := w.elapsed(at)
	when := d / w.tick
	if d%w.tick > 0 {
		when++
	}
	return when
}

// headOf makes t the head of an empty list.
func (t *Timer[T]) headOf(slot uint64) { t.next, t.prev, t.when = t, t, slot }

func empty[T any](head *Timer[T]) bool { return head.next == head }

// link appends t to the list of head.
func link[T any](head, t *Timer[T]) {
	t.next, t.prev = head, head.prev
	head.prev.next = t
	head.prev = t
}

// remove takes t out of its list.
func remove[T any](t *Timer[T]) {
	t.prev.next, t.next.prev = t.next, t.prev
	t.next, t.prev = nil, nil
}

// splice moves all of from's list to the end of to's.
func splice[T any](to, from *Timer[T]) {
	if empty(from) {
		return
	}
	from.next.prev, from.prev.next = to.prev, to
	to.prev.next, to.prev = from.next, from.prev
	from.next, from.prev = from, from
}
