package nats

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// With both_sites a publish is acknowledged, and delivered live, when the copy has it. Should
// the copy take over, it has all that any client was sent or acknowledged.

// A deferredAck is a publish that the leading site has stored at seq.
type deferredAck struct {
	id        uint64
	seq       uint64
	duplicate bool
}

// deferAck keeps an acknowledgement until the copy has the message, and reports whether it must.
func (w *siteLog) deferAck(id, seq uint64, duplicate bool) bool {
	if !w.both() {
		return false
	}
	w.mu.Lock()
	w.deferred = append(w.deferred, deferredAck{id, seq, duplicate})
	if most := w.s.b.cfg.MaxPending; len(w.deferred) > 2*most { // the outbox has not as many: the oldest were answered otherwise
		w.deferred = slices.Delete(w.deferred, 0, len(w.deferred)-most)
	}
	w.mu.Unlock()
	nudge(w.kick)
	return true
}

// refusal returns why a publish cannot be acknowledged now, or nil.
func (w *siteLog) refusal() error {
	if !w.both() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if site := w.cfg.away(w.site()); w.lost[site] && w.alone != w.s.epochNow() {
		return fmt.Errorf("%w: site %s does not answer, and namespace %s is stored at both sites", hub.ErrUnavailable, site, w.s.opts.Load().Title())
	}
	return nil
}

// confirm looks how far the copy has come, if anything waits for that.
func (w *siteLog) confirm() {
	if !w.both() || !w.waitsForCopy() {
		return
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(w.s.b.ctx, min(w.detect()/2, time.Second))
	defer cancel()
	epoch, lead := w.s.epochNow(), w.s.lead.Load()
	// While the log is followed to another site the epoch is not known there: the one that was
	// lost would be waited for.
	if moving := w.s.crossing.Load() || !w.s.verified(); moving {
		time.AfterFunc(5*siteHurry, func() { nudge(w.kick) })
		return
	}
	if upTo, ok := w.safe(ctx, epoch, lead.site); ok && w.s.lead.Load() == lead && w.s.epochNow() == epoch {
		w.release(hub.Position{Epoch: epoch, Offset: upTo})
	}
	if w.waitsForCopy() {
		time.AfterFunc(max(siteHurry, time.Since(began)/2), func() { nudge(w.kick) })
	}
}

// safe returns up to where what is stored at site in epoch may be acknowledged.
func (w *siteLog) safe(ctx context.Context, epoch, site string) (upTo uint64, ok bool) {
	w.mu.Lock()
	alone := w.alone == epoch
	w.mu.Unlock()
	if alone {
		// If the log says now, after these were stored, that it needs no copy, then one that
		// is to be needed later has them before it counts.
		l := w.s.lookAt(ctx, site)
		if w.update(l); l.leadsLog() && l.epoch == epoch && l.sited.alone {
			return l.last, true
		}
	}
	c := w.s.lookAt(ctx, w.cfg.away(site))
	w.update(c)
	return c.last, c.follows(epoch)
}

func (w *siteView) waitsForCopy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.deferred) > 0
}

// release answers what waits for the messages up to at.
func (w *siteView) release(at hub.Position) {
	w.mu.Lock()
	if at.Epoch != w.copied.Epoch || at.Offset > w.copied.Offset {
		w.copied = at
	}
	var ready []deferredAck
	w.deferred = slices.DeleteFunc(w.deferred, func(h deferredAck) bool {
		if h.seq <= at.Offset {
			ready = append(ready, h)
			return true
		}
		return false
	})
	w.mu.Unlock()
	for _, h := range ready {
		if h.id != 0 {
			answerPublish(w.s.b.out, h.id, h.seq, h.duplicate, []byte("{}"), nil)
		}
	}
	if len(ready) > 0 {
		nudge(w.news)
	}
}

// forget drops what waits: another site leads, which l is, and the publishes are sent there.
func (w *siteView) forget(l *siteLook) {
	w.mu.Lock()
	w.deferred, w.alone = nil, ""
	if l.sited.alone {
		w.alone = l.epoch
	}
	w.mu.Unlock()
}

// await returns when the copy has the message at seq, or none is needed; false says that another
// site leads the log, or that it is to be checked after a reconnect. Only run of the stream may call it.
func (w *siteLog) await(seq uint64) bool {
	if !w.both() {
		return true
	}
	asked := false
	for w.s.b.ctx.Err() == nil {
		if w.ahead() != nil || !w.s.verified() {
			return false
		}
		w.mu.Lock()
		done := w.copied.Epoch == w.s.epochNow() && w.copied.Offset >= seq ||
			w.alone == w.s.epochNow()
		if !done && !asked {
			asked = true
			w.deferred = append(w.deferred, deferredAck{seq: seq})
		}
		w.mu.Unlock()
		if done {
			return true
		}
		nudge(w.kick)
		select {
		case <-w.s.b.ctx.Done():
		case <-w.news:
		case <-time.After(siteEvery):
		}
	}
	return false
}
