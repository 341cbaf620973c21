package upstream

import "sync/atomic"

// A BreakerState is closed, open or half-open.
type BreakerState uint8

const (
	BreakerClosed   BreakerState = iota // requests pass and are evaluated
	BreakerOpen                         // none passes
	BreakerHalfOpen                     // a few pass, as probes
)

// String is "closed", "open" or "half-open".
func (s BreakerState) String() string {
	return [...]string{"closed", "open", "half-open"}[s]
}

// A breaker is a peer's circuit breaker in one word: two bits of state, seven of
// probes under way, seven of probes that succeeded, and the microsecond in which
// the state began. The zero word is closed since ever.
//
//	closed    ─ too many failures in the window ─→ open
//	open      ─ open time over, next request ────→ half-open
//	half-open ─ probes succeeded ────────────────→ closed
//	half-open ─ one failed ──────────────────────→ open
//	open      ─ a check passed ──────────────────→ half-open
//	half-open ─ no verdict for the open time ────→ half-open, with new probes
//
// A verdict on a request that began before the state did changes nothing: what a
// peer did to old requests is no news of the new state.
type breaker struct {
	word  atomic.Uint64
	opens atomic.Uint64
}

// breakerPolicy is BreakerConfig compiled.
type breakerPolicy struct {
	disabled bool
	openTime int64
	window   int64
	min      int
	ratio    float64
	probes   uint64
}

const (
	stampBits   = 48
	stampMask   = 1<<stampBits - 1
	probeShift  = stampBits
	passedShift = stampBits + 7
	stateShift  = stampBits + 14
	sevenBits   = 1<<7 - 1
)

func breakerWord(s BreakerState, probes, passed uint64, now int64) uint64 {
	w := uint64(s)<<stateShift | passed<<passedShift | probes<<probeShift | uint64(now/1000)&stampMask
	if w == 0 {
		return 1 // the zero word means since ever
	}
	return w
}

func stateOf(w uint64) BreakerState { return BreakerState(w >> stateShift) }

// age is how long before now w's state began, in nanoseconds. It is right for
// ±4 years, however the clock counts.
func age(w uint64, now int64) int64 {
	d := uint64(now/1000) - w
	return int64(d<<(64-stampBits)) >> (64 - stampBits) * 1000
}

// lets reports whether a request may pass now.
func (b *breaker) lets(now int64, pol *breakerPolicy) bool {
	w := b.word.Load()
	switch stateOf(w) {
	case BreakerOpen:
		return age(w, now) >= pol.openTime
	case BreakerHalfOpen:
		return w>>probeShift&sevenBits < pol.probes || age(w, now) >= pol.openTime
	default:
		return true
	}
}

// enter takes the right to send one request. began reports that the breaker became
// half-open by it.
func (b *breaker) enter(now int64, pol *breakerPolicy) (ok, began bool) {
	for {
		w := b.word.Load()
		var next uint64
		switch stateOf(w) {
		case BreakerOpen:
			if age(w, now) < pol.openTime {
				return false, false
			}
			next = breakerWord(BreakerHalfOpen, 1, 0, now)
		case BreakerHalfOpen:
			switch probes := w >> probeShift & sevenBits; {
			case probes < pol.probes:
				next = w + 1<<probeShift
			case age(w, now) >= pol.openTime:
				// The probes' verdicts are long in coming: streams, perhaps.
				next = breakerWord(BreakerHalfOpen, 1, 0, now)
			default:
				return false, false
			}
		default:
			return true, false
		}
		if b.word.CompareAndSwap(w, next) {
			return true, stateOf(w) == BreakerOpen
		}
	}
}

// retry makes an open breaker half-open: something else has shown that the peer answers.
func (b *breaker) retry(now int64) {
	for {
		w := b.word.Load()
		if stateOf(w) != BreakerOpen || b.word.CompareAndSwap(w, breakerWord(BreakerHalfOpen, 0, 0, now)) {
			return
		}
	}
}

// A verdict is what an attempt says of its peer.
type verdict uint8

const (
	neutral verdict = iota
	good
	bad
)

// record applies the verdict on a request that began at start. A bad one in the
// closed state opens the breaker when the window has too many. closed reports that the breaker
// closed by it.
func (b *breaker) record(v verdict, start, now int64, pol *breakerPolicy, w *window) (closed bool) {
	for {
		word := b.word.Load()
		if word != 0 && age(word, start) < 0 {
			return false
		}
		var next uint64
		switch stateOf(word) {
		case BreakerClosed:
			if v != bad || !b.tripped(word, now, pol, w) {
				return false
			}
			next = breakerWord(BreakerOpen, 0, 0, now)
		case BreakerOpen:
			return false
		case BreakerHalfOpen:
			next = recordProbe(word, v, now, pol)
		}
		if next == word { // no probe was counted, and this says nothing
			return false
		}
		if b.word.CompareAndSwap(word, next) {
			if stateOf(next) == BreakerOpen {
				b.opens.Add(1)
			}
			return stateOf(word) == BreakerHalfOpen && stateOf(next) == BreakerClosed
		}
	}
}

func recordProbe(word uint64, v verdict, now int64, pol *breakerPolicy) uint64 {
	next := word
	if next>>probeShift&sevenBits > 0 {
		next -= 1 << probeShift
	}
	switch v {
	case bad:
		return breakerWord(BreakerOpen, 0, 0, now)
	case good:
		if word>>passedShift&sevenBits+1 >= pol.probes {
			return breakerWord(BreakerClosed, 0, 0, now)
		}
		next += 1 << passedShift
	}
	return next
}

// tripped reports whether the window has too many failures, the newest counted.
func (b *breaker) tripped(word uint64, now int64, pol *breakerPolicy, w *window) bool {
	since := int64(0)
	if word != 0 {
		since = now - age(word, now)
	}
	total, failed := w.sum(now, pol.window, since)
	return total >= pol.min && float64(failed) >= pol.ratio*float64(total)
}

// state is what is shown: an open breaker whose time is over waits for a request.
func (b *breaker) state() BreakerState { return stateOf(b.word.Load()) }
