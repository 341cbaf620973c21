package nats

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A suspect is a stretch of a channel's log that was given to the hub before it was known to be
// whole: n messages after since and up to upTo. An auditor looks into it aside.
type suspect struct {
	tok         string
	since, upTo uint64
	n           int // negative: an audit alone decides
}

const (
	maxSuspects = 1 << 17
	// auditPause is how many times as long as an audit took the auditor waits after it, and
	// auditLeast the least that it waits.
	auditPause = 9
	auditLeast = 5 * time.Millisecond
	auditAgain = 3 // audits of a channel on which something came each time
)

// An auditor audits channels of a log one after another, for a tenth of the time at most.
type auditor struct {
	s *stream

	mu       sync.Mutex
	suspects []suspect
	wake     chan struct{}
	found    chan *hub.Message // what the log's goroutine is to deliver
}

func newAuditor(s *stream) *auditor {
	return &auditor{s: s, wake: make(chan struct{}, 1), found: make(chan *hub.Message)}
}

// add has x audited, if there is room.
func (a *auditor) add(x suspect) {
	a.mu.Lock()
	if len(a.suspects) < maxSuspects {
		a.suspects = append(a.suspects, x)
	} else {
		a.s.repairs.unaudited.Add(1)
	}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// next returns the next one to audit.
func (a *auditor) next() (x suspect, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ok = len(a.suspects) > 0; ok {
		x, a.suspects = a.suspects[0], a.suspects[1:]
	}
	if len(a.suspects) == 0 {
		a.suspects = nil
	}
	return x, ok
}

// waiting returns how many wait.
func (a *auditor) waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.suspects)
}

// run is the auditor's goroutine.
func (a *auditor) run() {
	for {
		x, ok := a.next()
		if !ok {
			select {
			case <-a.s.b.ctx.Done():
				return
			case <-a.wake:
			}
			continue
		}
		began := time.Now()
		m, err := a.audit(x)
		for try := 1; err != nil && a.s.b.ctx.Err() == nil; try++ { // not connected, or no copy answers
			if errors.Is(err, errBusy) && try == auditAgain {
				a.s.repairs.unaudited.Add(1)
				break
			}
			a.s.pause(retryAfter(try))
			began = time.Now()
			m, err = a.audit(x)
		}
		if m != nil {
			select {
			case <-a.s.b.ctx.Done():
				return
			case a.found <- m:
			}
		}
		a.s.pause(max(auditPause*time.Since(began), auditLeast))
	}
}

var errBusy = errors.New("the channel has too many messages to be audited, or new ones all the time")

// audit looks into x. It returns what is to be delivered if messages are missing.
func (a *auditor) audit(x suspect) (*hub.Message, error) {
	s := &a.s.readable
	ctx, cancel := context.WithCancel(s.life())
	defer cancel()
	epoch := s.epochNow()
	upTo, ms, known, err := auditChannel(ctx, s, x.tok, auditSlow, x.since, x.upTo)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, errBusy
	case upTo == 0 && x.n >= 0 && len(ms) > x.n: // another copy has more
		upTo = x.upTo
	case upTo == 0:
		return nil, nil
	}
	name, ok := channelOf(s.opts.Load().Name, x.tok)
	if !ok {
		return nil, nil
	}
	s.repairs.gaps.Add(1)
	return &hub.Message{Channel: name, Epoch: epoch, Offset: upTo, Missing: true, Damaged: true}, nil
}
