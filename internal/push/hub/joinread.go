package hub

import (
	"cmp"
	"fmt"
	"slices"
)

// stretch is what gather found.
type stretch struct {
	msgs  []*Message
	upto  uint64   // how far they reach
	first uint64   // as Page.FirstRetained, over all channels
	news  uint64   // the same for this join, see lacks
	need  []*local // the channels to ask the broker for
}

// gather collects the next messages of all channels of sp in the order of the log.
func (sp *joinSpace) gather(cut uint64) stretch {
	st := stretch{upto: cut}
	for _, l := range sp.locals {
		before := len(st.msgs)
		reaches := sp.ringReaches(l, cut) // asked before the ring is read: what is delivered later is not in it
		page, ok := sp.page(l)
		if !ok && reaches {
			msgs, first, whole := l.ch.recent(st.msgs, sp.epoch, sp.cur, cut, l.shard.hub.page)
			if whole {
				if st.msgs = msgs; len(msgs)-before == l.shard.hub.page {
					st.upto = min(st.upto, msgs[len(msgs)-1].Offset)
				}
				st.first, st.news = max(st.first, first), max(st.news, sp.lacks(l, first))
				continue
			}
		}
		if !ok {
			if page, ok = l.ch.page(sp.epoch, sp.cur); !ok {
				st.need = append(st.need, l)
				continue
			}
			sp.keep(l, page)
		}
		st.upto = min(st.upto, page.Covered)
		st.first, st.news = max(st.first, page.FirstRetained), max(st.news, sp.lacks(l, page.FirstRetained))
		for _, m := range page.Messages {
			if m.Offset > sp.cur && m.Offset <= cut {
				st.msgs = append(st.msgs, m)
			}
		}
	}
	if len(sp.locals) > 1 {
		slices.SortFunc(st.msgs, func(a, b *Message) int { return cmp.Compare(a.Offset, b.Offset) })
	}
	for len(st.msgs) > 0 && st.msgs[len(st.msgs)-1].Offset > st.upto {
		st.msgs = st.msgs[:len(st.msgs)-1]
	}
	return st
}

// lacks returns first, from where on l is complete, or 0 if that is no news to one
// who requested what is there.
func (sp *joinSpace) lacks(l *local, first uint64) uint64 {
	switch {
	case sp.all && l.whole:
		return 0 // it says nothing of what is removed below it from now on: the next does
	case sp.all && first > 1:
		if sp.skipped == nil {
			sp.skipped = map[*local]uint64{}
		}
		sp.skipped[l] = max(sp.skipped[l], first)
	}
	if first <= sp.skipped[l] {
		return 0
	}
	return first
}

// page returns a page of l read for this join that continues from sp.cur.
func (sp *joinSpace) page(l *local) (Page, bool) {
	page, ok := sp.pages[l]
	if ok && page.Covered <= sp.cur {
		delete(sp.pages, l)
		return Page{}, false
	}
	return page, ok
}

func (sp *joinSpace) keep(l *local, page Page) {
	if sp.pages == nil {
		sp.pages = map[*local]Page{}
	}
	sp.pages[l] = page
}

// ringReaches reports whether l's ring holds everything of its channel up to
// cut. It does up to its own last message, and up to whatever the broker has
// delivered in the namespace; past that, something stored may still be on its way.
func (sp *joinSpace) ringReaches(l *local, cut uint64) bool {
	if l.last >= cut {
		return true
	}
	return sp.ns.hasDelivered(Position{Epoch: sp.epoch, Offset: cut})
}

// fetch requests from the broker the channels whose rings do not reach.
func (j *join) fetch(sp *joinSpace, need []*local) {
	since, epoch := sp.cur, sp.epoch
	j.fetching += len(need)
	for _, l := range need {
		l.read = true
		l.ch.history(since, func(page Page, err error) {
			j.shard.post(func() { j.fetched(sp, l, Position{Epoch: epoch, Offset: since}, page, err) })
		})
	}
}

// maxRetries bounds how often a join reads again because the log began anew
// under it.
const maxRetries = 8

// fetched takes the page of l that was read from since on.
func (j *join) fetched(sp *joinSpace, l *local, since Position, page Page, err error) {
	if j.dead {
		return
	}
	if err == nil {
		j.shard.moveTo(sp.ns, page.Epoch)
	}
	j.fetching--
	switch {
	case j.dead: // moveTo has reported a gap to its sink
		return
	case err != nil:
		j.fail(fmt.Errorf("history of %q: %w", l.name, err))
		return
	case sp.epoch == since.Epoch && page.Epoch == sp.epoch && page.Covered > since.Offset:
		sp.keep(l, page)
	case (sp.epoch != since.Epoch || page.Epoch != since.Epoch) && j.retries < maxRetries:
		j.retries++
	default:
		j.fail(fmt.Errorf("%w: history of %q is of epoch %q and reaches %d, wanted %q after %d",
			ErrUnavailable, l.name, page.Epoch, page.Covered, sp.epoch, since.Offset))
		return
	}
	j.run()
}
