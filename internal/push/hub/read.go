package hub

import (
	"context"
	"fmt"
	"slices"
)

// cachedPage is a page that was read from the broker from since on. What it says
// stays true until the epoch ends, so that all who resume from one place in one
// outage cost one read.
type cachedPage struct {
	since uint64
	bytes int
	cost  int64
	page  Page
}

const (
	maxPages     = 16      // per channel
	maxPageBytes = 1 << 20 // of payload per channel, but at least the newest page
	maxReads     = 5       // tries at a log that changes all the time
)

// history reads from the broker; readers that request the same at the same time
// share one read.
func (ch *channel) history(since uint64, got func(Page, error)) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.reads[since] = append(ch.reads[since], got)
	if len(ch.reads[since]) > 1 {
		return
	}
	purges := ch.purges
	ch.hub.goBroker(func(ctx context.Context) {
		page, err := ch.read(ctx, since)
		ch.mu.Lock()
		waiting := ch.reads[since]
		delete(ch.reads, since)
		if err == nil && page.Epoch == ch.epoch && page.Covered > since && purges == ch.purges {
			ch.keepPage(since, page)
		}
		ch.mu.Unlock()
		for _, f := range waiting {
			f(page, err)
		}
	})
}

// read queries the broker until the answer is not older than what is known of the log.
func (ch *channel) read(ctx context.Context, since uint64) (Page, error) {
	for range maxReads {
		before := ch.ns.position().Epoch
		page, err := ch.hub.broker.History(ctx, ch.ns.options(), ch.name, since, ch.hub.page)
		if err != nil {
			return Page{}, err
		}
		known, began := ch.ns.learn(before, Position{Epoch: page.Epoch, Offset: page.Covered})
		if began {
			ch.hub.table.restart(ch.ns)
		}
		if known {
			return page, nil
		}
	}
	return Page{}, fmt.Errorf("%w: history of %q: its log changes all the time", ErrUnavailable, ch.name)
}

// top looks up the end of n's log. A caller during a look shares
// the next one: that one may have been taken before what is queried about.
func (h *Hub) top(n *namespace, got func(Position, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asking = append(n.asking, got)
	if n.looking {
		return
	}
	n.looking = true
	h.goBroker(func(ctx context.Context) {
		for {
			n.mu.Lock()
			asking := n.asking
			n.asking = nil
			n.looking = len(asking) > 0
			n.mu.Unlock()
			if len(asking) == 0 {
				return
			}
			top, err := h.readTop(ctx, n)
			for _, f := range asking {
				f(top, err)
			}
		}
	})
}

// readTop queries the broker for the end of n's log as read does for a page.
func (h *Hub) readTop(ctx context.Context, n *namespace) (Position, error) {
	for range maxReads {
		before := n.position().Epoch
		top, err := h.broker.Top(ctx, n.options())
		if err != nil {
			return Position{}, fmt.Errorf("look up the top of namespace %q: %w", n.name, err)
		}
		known, began := n.learn(before, top)
		if began {
			h.table.restart(n)
		}
		if known {
			return top, nil
		}
	}
	return Position{}, fmt.Errorf("%w: the log of namespace %q changes all the time", ErrUnavailable, n.name)
}

// keepPage keeps page for the next reader. ch.mu is held.
func (ch *channel) keepPage(since uint64, page Page) {
	c := cachedPage{since: since, page: page}
	for _, m := range page.Messages {
		c.bytes += m.size()
		c.cost += m.cost()
	}
	if ch.hub.recent.exceeded(c.cost) {
		return
	}
	ch.hub.recent.addPage(c.cost)
	ch.pages = append(ch.pages, c)
	total := 0
	for i := len(ch.pages) - 1; i >= 0; i-- {
		total += ch.pages[i].bytes
		if n := len(ch.pages) - i; n > 1 && (n > maxPages || total > maxPageBytes) {
			for _, old := range ch.pages[:i+1] {
				ch.hub.recent.addPage(-old.cost)
			}
			ch.pages = slices.Delete(ch.pages, 0, i+1)
			return
		}
	}
}

// page returns a page of epoch read from since on, if one is kept.
func (ch *channel) page(epoch string, since uint64) (Page, bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for i := len(ch.pages) - 1; i >= 0; i-- {
		if c := &ch.pages[i]; c.since == since && c.page.Epoch == epoch {
			return c.page, true
		}
	}
	return Page{}, false
}

// dropPages lets the kept pages go.
func (ch *channel) dropPages() {
	ch.mu.Lock()
	ch.forgetPages()
	ch.mu.Unlock()
}
