package hub

import (
	"context"
	"fmt"
)

// prove compares the checks of the positions requested with the messages that are
// there. Of those that are not in the rings the broker is asked.
func (j *join) prove() {
	type question struct {
		sp  *joinSpace
		pos Position
	}
	var ask []question
	for i := range j.spaces {
		sp := &j.spaces[i]
		pos, ok := j.opt.position(sp.locals[0].epoch)
		if !ok || pos.Check == 0 || !sp.reached(pos) {
			continue
		}
		switch ok, known := sp.proves(pos); {
		case !known:
			ask = append(ask, question{sp, pos})
		case !ok:
			sp.refuted = pos
		}
	}
	if j.fetching = len(ask); j.fetching == 0 {
		j.start()
	}
	var none []*namespace // the broker knows of no message there
	for _, q := range ask {
		j.shard.hub.prove(q.sp.ns, q.pos, func(c Check, err error) {
			j.shard.post(func() {
				j.fetching--
				switch {
				case j.dead:
					return
				case err != nil:
					j.fail(err)
					return
				case c != q.pos.Check:
					q.sp.refuted = q.pos
				}
				if c == 0 {
					none = append(none, q.sp.ns)
				}
				if j.fetching == 0 {
					proved(j, none)
				}
			})
		})
	}
}

// proved starts the stream once the positions requested have been compared. In the logs of none the broker knew
// of no message there: they may have another epoch by now, which this shard is to know first. Positions
// that it carries over are compared again.
func proved(j *join, none []*namespace) {
	if len(none) > 0 {
		lookUp(j, none, func() { proved(j, nil) })
		return
	}
	if carryOver(j) {
		j.prove()
		return
	}
	j.start()
}

// check returns the check of the message at offset, if it is here.
func (sp *joinSpace) check(epoch string, offset uint64) (c Check, known bool) {
	for _, l := range sp.locals {
		if c, known = l.ch.check(epoch, offset); known {
			return c, true
		}
	}
	return 0, false
}

// proves is channel.proves for whichever of the channels knows.
func (sp *joinSpace) proves(p Position) (ok, known bool) {
	for _, l := range sp.locals {
		if ok, known = l.ch.proves(p); known {
			return ok, true
		}
	}
	return false, false
}

// at returns the position of offset in sp.
func (sp *joinSpace) at(offset uint64) Position {
	c, _ := sp.check(sp.epoch, offset)
	return Position{sp.epoch, offset, c}
}

// prove looks up the check of the message at p, as Broker.Prove does. Callers that
// come with the same position share one answer, and later ones a good one.
func (h *Hub) prove(n *namespace, p Position, got func(Check, error)) {
	n.mu.Lock()
	if n.proven[p] {
		n.mu.Unlock()
		got(p.Check, nil)
		return
	}
	defer n.mu.Unlock()
	if n.proving == nil {
		n.proving = map[Position][]func(Check, error){}
	}
	n.proving[p] = append(n.proving[p], got)
	if len(n.proving[p]) > 1 {
		return
	}
	h.goBroker(func(ctx context.Context) {
		c, err := h.broker.Prove(ctx, n.options(), p)
		if err != nil {
			err = fmt.Errorf("look up position %v of namespace %q: %w", p, n.name, err)
		}
		n.mu.Lock()
		waiting := n.proving[p]
		delete(n.proving, p)
		if p.Check != 0 && c == p.Check && err == nil && p.Epoch == n.top.Epoch {
			if n.proven == nil || len(n.proven) >= maxProven {
				n.proven = map[Position]bool{}
			}
			n.proven[p] = true
		}
		n.mu.Unlock()
		for _, f := range waiting {
			f(c, err)
		}
	})
}
