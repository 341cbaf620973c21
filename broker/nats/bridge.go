package nats

import (
	"crypto/rand"
	"time"

	"github.com/weir-gateway/weir/hub"
)

// While a replicated log has no leader, or the node goes to another server, its
// publishes wait in the outbox, in order, within its bounds and AckTimeout. One that may
// have been stored is sent again only if it has an idempotency key: then the stream
// knows it. So publications without one get one here.

// bridgeEvery is how often what waits for a leader is tried.
const bridgeEvery = 50 * time.Millisecond

// maxNamed bounds the keys that a node gives to publications without one, in each
// idempotency_window of a namespace: NATS servers hold them in memory, about 130
// bytes each. Publications past it are sent once, and their outcome may stay unknown.
const maxNamed = 100_000

// A bridge is a stream's part of this. Its fields are the outbox's.
type bridge struct {
	until   time.Time // no publish is sent before; zero while a leader answers
	named   int       // keys given since namedAt
	namedAt time.Time
}

// bridged reports whether publishes wait for a leader: there may be another one soon.
func (s *stream) bridged() bool { return s.durable() && s.ns.Replicas > 1 }

// addKey gives p an idempotency key if it needs one. The outbox's lock is held.
func (s *stream) addKey(p *pending) {
	if !s.bridged() || p.p.IdempotencyKey != "" || p.newest != nil {
		return
	}
	if now := time.Now(); now.Sub(s.bridge.namedAt) > time.Duration(s.ns.IdempotencyWindow) {
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
	key := p.p.IdempotencyKey
	if p.newest != nil {
		key = ""
	}
	return &hub.UncertainError{Key: key, Err: err}
}

// ready reports whether a publish of s can be sent. While no leader has answered one
// at a time is. o.mu is held.
func (o *outbox) ready(s *stream) bool {
	if !s.bridged() {
		return true
	}
	if !o.b.connected.Load() || !s.verified() {
		return false
	}
	if s.bridge.until.IsZero() {
		return true
	}
	now := time.Now()
	if now.Before(s.bridge.until) {
		return false
	}
	s.bridge.until = now.Add(bridgeEvery)
	return true
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
	if !p.s.bridged() {
		return false
	}
	if p.s.bridge.until.IsZero() {
		p.s.nudge()
	}
	p.s.bridge.until = time.Now().Add(bridgeEvery)
	o.b.bridgedPublishes.Add(1)
	o.keep(p)
	return true
}

// found notes that a leader answered the publish called id.
func (o *outbox) found(id uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.waiting[id]; p != nil && !p.s.bridge.until.IsZero() {
		p.s.bridge.until = time.Time{}
		o.nudge()
	}
}

// resend sends again what s has not answered: there is a new leader.
func (o *outbox) resend(s *stream) {
	if !s.bridged() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.order {
		if p.s == s && !p.answered && !p.queued && p.repeatable() {
			o.b.bridgedPublishes.Add(1)
			o.keep(p)
		}
	}
	s.bridge.until = time.Time{}
	o.nudge()
}

// disconnected answers what cannot be sent again, and keeps the rest.
func (o *outbox) disconnected() {
	o.fail(errDisconnected, func(p *pending) bool {
		if !p.s.bridged() || p.sent > 0 && !p.repeatable() {
			return false
		}
		o.b.bridgedPublishes.Add(1)
		o.keep(p)
		return true
	})
}
