package presence

import (
	"context"
	"time"
)

// announce makes events of changes whose window is over.
func (p *Presence) announce(ctx context.Context) {
	p.mu.Lock()
	watchers := p.watchers
	p.mu.Unlock()
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wakeEv:
		}
		for next, more := p.deliverDue(watchers); more; next, more = p.deliverDue(watchers) {
			pause.Reset(max(time.Until(next), time.Millisecond))
			select {
			case <-ctx.Done():
				return
			case <-pause.C:
			}
		}
	}
}

// deliverDue notifies watchers of what is due. It returns when the next is, if there is one.
func (p *Presence) deliverDue(watchers []func(string, []Event)) (next time.Time, more bool) {
	now := time.Now()
	for i := range p.shards {
		s := &p.shards[i]
		for {
			s.mu.Lock()
			c, events := s.due(now)
			if c == nil {
				if len(s.pending) > 0 {
					if due := s.pending[0].pending.due; !more || due.Before(next) {
						next, more = due, true
					}
				}
				s.mu.Unlock()
				break
			}
			s.mu.Unlock()
			if len(events) == 0 {
				continue
			}
			p.events.Add(uint64(len(events)))
			for _, f := range watchers {
				f(c.name, events)
			}
		}
	}
	return next, more
}
