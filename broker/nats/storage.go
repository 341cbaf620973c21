package nats

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A NATS server that cannot write a log of one copy, because its disk is full or failing,
// leaves publishes without an answer, all that follow as well until it is restarted, and
// answers everything else. So a log that does not grow though its server answers and the
// oldest publish waits counts as full. Of a replicated log another server becomes leader.
const (
	storageEvery = 250 * time.Millisecond
	// storageWait is how long a publish waits before its log is looked at.
	storageWait = 500 * time.Millisecond
	// storageStuck is how long a log must not grow meanwhile, and storageTry how often a
	// publish is tried on one that counts as full.
	storageStuck = time.Second
	storageTry   = 5 * time.Second
)

// storage is what is known of the disk under a log of one copy.
type storage struct {
	full atomic.Bool

	// Owned by watchStorage: what was seen when the oldest publish was found waiting.
	since  time.Time
	oldest uint64 // its id
	last   uint64 // the log's end

	mu    sync.Mutex
	tried time.Time // when a publish was let through though the log counts as full
}

// errStorage returns why publishes are refused.
func (s *logOptions) errStorage() error {
	return fmt.Errorf("%w: the NATS server does not store what is published in namespace %s, though it answers: its disk is full or failing",
		hub.ErrStorageFull, s.opts.Load().Title())
}

// refusesNow reports whether a publish is to be refused because the log counts as full.
// Now and then one is tried nevertheless.
func (s *storage) refusesNow(now time.Time) bool {
	if !s.full.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.tried) < storageTry {
		return true
	}
	s.tried = now
	return false
}

// watchStorage looks for logs of one copy that do not grow, until the broker is closed.
func (b *Broker) watchStorage() {
	t := time.NewTicker(storageEvery)
	defer t.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-t.C:
		}
		for _, s := range b.all() {
			if s.durable() && !s.bridged() && b.connected.Load() {
				s.lookAtStorage(time.Now())
			}
		}
	}
}

// lookAtStorage compares the log's end with what it was before while publishes wait.
func (s *stream) lookAtStorage(now time.Time) {
	w := &s.storage
	oldest, sent := s.b.out.oldestSent(s)
	full := w.full.Load()
	if !full && (oldest == 0 || now.Sub(sent) < storageWait) {
		w.since = time.Time{}
		return
	}
	ctx, cancel := context.WithTimeout(s.b.ctx, storageStuck)
	defer cancel()
	in, err := s.info(ctx)
	switch {
	case err != nil: // the server does not answer: nothing follows for its disk
		w.since = time.Time{}
	case full && in.last > w.last:
		s.storesAgain()
	case oldest == 0: // full, and no publish waits
	case w.since.IsZero() || oldest != w.oldest || in.last != w.last:
		w.since, w.oldest, w.last = time.Now(), oldest, in.last
	case time.Since(w.since) >= storageStuck:
		if !w.full.Swap(true) {
			s.b.log.Error("the NATS server answers, and stores nothing: its disk is full or failing; publishes are refused until it stores again",
				"namespace", s.opts.Load().LogName())
		}
		s.b.out.fail(s.errStorage(), func(p *pending) bool { return p.s != s })
		w.since = time.Time{}
	}
}

// storesAgain ends that the log counts as full: it stored something, or the connection
// is another one.
func (s *stream) storesAgain() {
	if s.storage.full.Swap(false) {
		s.b.log.Info("the log counts as full no longer", "namespace", s.opts.Load().LogName())
	}
}

// oldestSent returns the first publish of s that was sent and has no answer, and when it
// was sent; 0 for none.
func (u *unanswered) oldestSent(s *stream) (id uint64, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.order {
		if p.s == s && !p.answered && p.sent > 0 {
			return p.id, p.sentAt
		}
	}
	return 0, time.Time{}
}
