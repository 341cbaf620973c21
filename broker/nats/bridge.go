package nats

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// While a replicated log has no leader, or the node goes to another server, its
// publishes wait in the outbox, in order, within its bounds and AckTimeout. One that may
// have been stored is sent again only if it has an idempotency key: then the stream
// knows it. So publications without one get one here.
//
// Publishes to a channel are stored in the order of the calls. NATS does not keep it for those that
// are in flight when the leader changes: it refuses one or drops it, and the next one finds the new
// leader. So after a refusal nothing is sent until what is in flight was answered; then one
// at a time, the oldest first, until a leader has answered it. One that was overtaken nevertheless is
// sent with a condition that only lets the stream recognise it, and is refused otherwise.

// bridgeEvery is how often what waits for a leader is tried.
const bridgeEvery = 50 * time.Millisecond

// maxNamed bounds the keys that a node gives to publications without one, in each
// idempotency_window of a namespace: NATS servers hold them in memory, about 130
// bytes each. Publications past it are sent once, and their outcome may stay unknown.
const maxNamed = 100_000

// A bridge is a stream's part of this. Its fields are the outbox's.
type bridge struct {
	until   time.Time // no publish is sent before; zero while a leader answers
	probe   *pending  // sent alone while none does: its answer ends that
	named   int       // keys given since namedAt
	namedAt time.Time
	kept    uint64    // the last round of send in which one was kept: all after it are
	held    bool      // new publishes wait for older ones
	looked  time.Time // when that was found
}

// bridged reports whether publishes wait for a leader: there may be another one soon.
func (s *logOptions) bridged() bool {
	return s.durable() && (s.opts.Load().Replicas > 1 || s.lead.Load() != nil)
}

// queuesAway reports whether publishes wait for the connection while there is none: with
// durability none NATS answers nothing, so that what was not sent can be sent later. They
// wait within max_pending, max_pending_bytes and ack_timeout.
func (s *logOptions) queuesAway() bool { return !s.durable() && s.b.stateErr() == nil }

// addKey gives p an idempotency key if it needs one. The outbox's lock is held.
func (s *stream) addKey(p *pending) {
	if !s.bridged() || p.p.IdempotencyKey != "" || p.newest != nil {
		return
	}
	if now := time.Now(); now.Sub(s.bridge.namedAt) > time.Duration(s.opts.Load().IdempotencyWindow) {
		s.bridge.named, s.bridge.namedAt = 0, now
	}
	if s.bridge.named++; s.bridge.named <= maxNamed {
		p.p.IdempotencyKey, p.named = "weir-"+rand.Text(), true
	}
}

// repeatable reports whether p may be sent again though it may have been stored.
func (p *pending) repeatable() bool { return p.p.IdempotencyKey != "" && p.newest == nil }

// failed returns err as the answer to p, which is not waiting any more.
func (p *pending) failed(err error) error {
	if p.sent == 0 || !p.s.durable() {
		return err
	}
	p.s.recent.missing()
	key := p.p.IdempotencyKey
	if p.newest != nil {
		key = ""
	}
	return &hub.UncertainError{Key: key, Err: err}
}

// queueAfter is how long the oldest publish that was sent is without an answer before new
// ones wait for it. The next leader would store them first if they were sent: it knows of
// the old ones only when they are sent again. No group elects a leader sooner.
const queueAfter = time.Second

// resendAfter is how long it is without an answer before all are sent again though no
// election was noticed.
const resendAfter = 3 * time.Second

// answerWithin is how long a publish counts as in flight while no leader has answered: after
// it, it was dropped.
const answerWithin = 250 * time.Millisecond

var errOvertaken = fmt.Errorf("%w: a later publish to this channel was stored first, while the log changed its leader", hub.ErrUnavailable)

// ready reports whether p can be sent. While no leader has answered one at a time is.
// o.mu is held.
func (o *outbox) ready(p *pending) bool {
	s := p.s
	if s.site.refusal() != nil && s.bridged() {
		return false
	}
	if s.queuesAway() {
		return o.b.connected.Load()
	}
	if !s.bridged() {
		return true
	}
	// What the next site stores while the node follows the log to it would be answered as of the epoch before. So the
	// site is read first: it is that of before, or its epoch is adopted once the log is verified.
	p.lead = s.lead.Load()
	if !o.b.connected.Load() || s.crossing.Load() || !s.verified() {
		return false
	}
	now := time.Now()
	if p.sent == 0 && o.queues(s, now) {
		return false
	}
	if s.bridge.until.IsZero() {
		return true
	}
	if now.Before(s.bridge.until) || !alone(o, p, now) {
		return false
	}
	s.bridge.until, s.bridge.probe = now.Add(bridgeEvery), p
	return true
}

// alone reports whether no other publish of p's log is in flight. Those that were dropped
// are put back into the queue, before p if they are older. o.mu is held.
func alone(o *outbox, p *pending, now time.Time) bool {
	for _, q := range p.s.share.order {
		switch {
		case q.answered || !q.flying:
		case now.Sub(q.sentAt) < answerWithin:
			return false
		case q.id < p.id && !q.queued && q.repeatable():
			o.keepSent(p.s)
			return false
		}
	}
	return true
}

// overtake marks the publishes that p, which is stored, has overtaken: older ones of its
// channel that were dropped or refused. Those that were dropped are sent again. o.mu is held.
func overtake(o *outbox, p *pending) {
	w := &p.s.share
	if p.id <= w.known {
		return
	}
	from, _ := slices.BinarySearchFunc(w.order, w.known+1, func(q *pending, id uint64) int { return cmp.Compare(q.id, id) })
	known := true
	for _, q := range w.order[from:] {
		if q == p {
			break
		}
		if q.answered || !q.flying && !q.queued {
			continue
		}
		known = false
		if q.p.Channel == p.p.Channel && !q.overtaken {
			q.overtaken = true
			if q.repeatable() {
				o.keep(q)
			}
		}
	}
	if known {
		w.known = p.id
	}
}

// queues reports whether new publishes of s wait for older ones. It looks at them every
// bridgeEvery. o.mu is held.
func (o *outbox) queues(s *stream, now time.Time) bool {
	if now.Sub(s.bridge.looked) < bridgeEvery {
		return s.bridge.held
	}
	s.bridge.looked, s.bridge.held = now, false
	for _, p := range s.share.order {
		if !p.answered && p.sent > 0 && p.repeatable() {
			waits := now.Sub(p.sentAt)
			s.bridge.held = waits > queueAfter
			if waits > resendAfter {
				o.keepSent(s)
			}
			break
		}
	}
	return s.bridge.held
}

// keep puts p back into the queue. o.mu is held.
func (o *outbox) keep(p *pending) {
	if !p.queued {
		p.queued = true
		o.queue = append(o.queue, p)
		o.unsorted = true
	}
}

// refused deals with the answer that no leader took the publish called id. It reports
// false if that is the publish's own answer.
func (o *outbox) refused(id uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.waiting[id]
	if p == nil {
		return true
	}
	p.sent--
	p.flying = false
	if !p.s.bridged() {
		return false
	}
	if p.s.bridge.until.IsZero() {
		p.s.nudge()
		o.keepSent(p.s) // in order, before p
	}
	p.s.bridge.until = time.Now().Add(bridgeEvery)
	o.b.bridgedPublishes.Add(1)
	o.keep(p)
	return true
}

// found notes that a leader answered the publish called id, and whether it is stored.
func (o *outbox) found(id uint64, stored bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.waiting[id]
	if p == nil {
		return
	}
	p.flying = false
	b := &p.s.bridge
	if stored && p.s.bridged() {
		overtake(o, p)
	}
	if b.until.IsZero() {
		return
	}
	if b.probe == p {
		b.until, b.probe = time.Time{}, nil
	}
	o.nudge()
}

// resend sends again what s has not answered: there is a new leader. The news of it may be
// here before the way to it: of many publishes sent at once the first ones might be refused
// and later ones stored. So the first one goes alone.
func (o *outbox) resend(s *stream) {
	if !s.bridged() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keepSent(s)
	s.bridge.until = time.Now()
	o.nudge()
}

// keepSent keeps what was sent of s and is not answered. o.mu is held.
func (o *outbox) keepSent(s *stream) {
	for _, p := range s.share.order {
		if !p.answered && !p.queued && p.repeatable() {
			o.b.bridgedPublishes.Add(1)
			o.keep(p)
		}
	}
}

// disconnected answers what cannot be sent again, and keeps the rest.
func (o *outbox) disconnected() {
	o.fail(errDisconnected, func(p *pending) bool {
		if !p.s.bridged() && !p.s.queuesAway() || p.sent > 0 && !p.repeatable() {
			return false
		}
		o.b.bridgedPublishes.Add(1)
		p.flying = false
		o.keep(p)
		return true
	})
}
