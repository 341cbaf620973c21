package centrifuge

import (
	"time"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol"
	"github.com/weir-gateway/weir/internal/push/backlog"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// enqueue keeps m for a client that does not take it now, under the policy of its
// namespace.
func (s *session) enqueue(m *hub.Message) {
	srv := s.srv()
	ns, err := srv.deps.Hub.Namespace(m.Channel)
	if err != nil {
		return
	}
	r := s.ensureExtras()
	if r.backlog == nil {
		r.backlog = &backlog.Queue{}
	}
	if !r.backlog.Push(m, ns, &srv.waiting) {
		s.disconnect(protocol.DisconnectedSlow)
	}
}

// releaseBytes is how much of what was held leaves in one write.
const releaseBytes = 64 << 10

// Drained implements socket.Session: what was held is sent, as long as the client
// takes it.
func (s *session) Drained() {
	for s.flags&ended == 0 && s.account.extras != nil && s.account.extras.backlog != nil && !s.t.Stalled() {
		q, srv := s.account.extras.backlog, s.srv()
		for _, g := range q.PopDropped(&srv.waiting) {
			s.dropped(g)
		}
		var out []byte
		late := false
		for !q.Empty() && len(out) < releaseBytes && !late {
			if g, ok := q.PopGap(); ok {
				s.dropped(g)
				continue
			}
			if p := s.account.extras.pace; p != nil && !p.allow(s.t.Now()) {
				late = true
				break
			}
			m := q.Pop(&srv.waiting)
			if x := s.find(m.Channel); x != nil && x.pending() == nil {
				out = append(out, x.encode(m)...)
			}
		}
		if q.Empty() {
			s.account.extras.backlog = nil
		}
		if len(out) > 0 && s.flags&ended == 0 {
			s.t.Send(out)
		}
		if late {
			s.schedule()
			return
		}
	}
}

// plain reports whether the client is sent messages as they come.
func (r *sessionExtras) plain() bool { return r.backlog == nil && r.positions == nil && r.pace == nil }

// pace is the budget of a client with a maximum rate: messages are saved up for a
// second.
type pace struct {
	rate   int
	budget float64
	at     int64
}

// limitRate bounds the client's rate; of several bounds the lowest counts.
func (r *sessionExtras) limitRate(rate int, now int64) {
	if r.pace == nil {
		r.pace = &pace{rate: rate, budget: float64(rate), at: now}
	}
	r.pace.rate = min(r.pace.rate, rate)
}

// allow reports whether a message may go at now.
func (p *pace) allow(now int64) bool {
	p.budget = min(p.budget+float64(now-p.at)*float64(p.rate)/float64(time.Second), float64(p.rate))
	p.at = now
	if p.budget < 1 {
		return false
	}
	p.budget--
	return true
}

// wait is how long it takes until one may.
func (p *pace) wait() time.Duration {
	return time.Duration(max(1-p.budget, 0) * float64(time.Second) / float64(p.rate))
}

// dropped notifies the client of a gap in a namespace: its subscriptions there that are
// positioned are restarted.
func (s *session) dropped(g hub.Gap) {
	var affected []*subscription
	for x := range s.subscriptions() {
		pl := x.plan.Value()
		if pl.ns.name == g.Namespace && pl.flags&(positioned|recoverable) != 0 && x.pending() == nil {
			affected = append(affected, x)
		}
	}
	for _, x := range affected {
		if s.flags&ended == 0 {
			x.insufficient()
		}
	}
}
