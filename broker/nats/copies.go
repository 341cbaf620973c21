package nats

import (
	"context"
	"fmt"
	"slices"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Which copy of a replicated log answers a direct read is the servers' choice, anew for each
// request, and each copy is at a place of its own. So two counts, of what follows the beginning
// of a stretch and of what follows its end, differ by the messages in between and by what one
// copy had applied and the other had not. That is most often nothing: of many such pairs most
// show how many messages there are, and the others are too high as often as too low.
//
// A copy that leaves a damaged message out counts it, but in a file with messages of several
// channels it may not: then another copy has to answer, too, for that to be found.

const (
	pairsAtEnd   = 4  // of counts, for a page that ended with the log
	pairsAtFirst = 16 // for one that did not, while nothing is added
	pairsMore    = 32 // each time that they did not suffice
	maxRounds    = 9  // of these
	verdict      = 13 // pairs that must agree, half as many again as agree on anything else
	rereads      = 6  // of a stretch that lacks messages, before its leader is read
)

// A comparison is what pairs of counts say of how many messages a stretch has, each as often
// as it was said.
type comparison map[int64]int

// most returns what most pairs say; known is false if that is not clear.
func (c comparison) most() (n int64, known bool) {
	first, second := 0, 0
	for d, times := range c {
		switch {
		case times > first, times == first && d > n:
			n, first, second = d, times, first
		case times > second:
			second = times
		}
	}
	return n, first >= verdict && 2*first >= 3*second
}

// exceeds reports whether there are more than n messages, or may be.
func (c comparison) exceeds(n int) bool {
	most, known := c.most()
	return !known || most > int64(n)
}

// add counts the pairs of neighbours among pages, which are answers to counts of what follows
// the beginning and the end, alternately; nil for one that did not come.
func (c comparison) add(pages []*page) {
	for i := 1; i < len(pages); i++ {
		first, after := pages[i-1], pages[i]
		if i%2 == 0 {
			first, after = after, first
		}
		if first != nil && after != nil {
			c[int64(first.count())-int64(after.count())]++
		}
	}
}

// countPairs adds to c pairs of counts of what is between r.begin and r.end.
func (r *reader) countPairs(ctx context.Context, c comparison, pairs int) error {
	ends := []query{{Seq: r.begin + 1, NextFor: r.subject, Batch: 1}, {Seq: r.end + 1, NextFor: r.subject, Batch: 1}}
	queries := append(slices.Repeat(ends, pairs/2), ends[0])
	pages, err := r.s.b.reads.getAll(ctx, r.s.direct(), queries, r.s.b.reads.patience(firstTry))
	c.add(pages)
	return err
}

// compare counts what the copies have between r.begin and r.end.
func (r *reader) compare(ctx context.Context) (comparison, error) {
	c, pairs := comparison{}, pairsAtFirst
	for range maxRounds {
		if err := r.countPairs(ctx, c, pairs); err != nil {
			return nil, err
		}
		if _, known := c.most(); known {
			return c, nil
		}
		pairs = pairsMore
		r.s.pause(countPause)
	}
	if len(c) == 0 {
		return nil, fmt.Errorf("%w: no copy of %s answers", hub.ErrUnavailable, r.s.name())
	}
	return c, nil
}

// whole reports whether what was read up to the end of the log is all: the copy that was read
// counts no more, nor do those that are asked now.
func (r *reader) whole(ctx context.Context) (bool, error) {
	if r.got > 0 || r.found > 0 {
		return false, nil
	}
	c := comparison{}
	err := r.countPairs(ctx, c, pairsAtEnd)
	return err == nil && c[int64(r.all)] == pairsAtEnd, err
}

// lacking reports whether the copies have more between r.begin and r.end than was read, or may.
func (r *reader) lacking(ctx context.Context) (bool, error) {
	switch {
	case r.subject == "" || r.all == 0: // a reader of the whole log sees what is missing
		return false, nil
	case r.s.opts.Load().Replicas > 1 && r.got == 0: // its copy counted them
		return r.found > 0, nil
	case r.s.opts.Load().Replicas > 1:
		c, err := r.compare(ctx)
		return err == nil && c.exceeds(int(r.all)), err
	}
	most, err := r.lacks(ctx)
	return most > 0, err
}

// completeCopies is complete for a replicated log. What the copy that was read has lost, or
// what it leaves out because it is damaged, is read from the others.
func (r *reader) completeCopies(ctx context.Context, ms []stored) (all []stored, holed bool, err error) {
	if r.all == 0 {
		n, err := r.emptied(ctx)
		return ms, n > 0, err
	}
	if whole, err := r.whole(ctx); err != nil || whole {
		return ms, false, err
	}
	c, err := r.compare(ctx)
	if err != nil || !c.exceeds(len(ms)) {
		return ms, false, err
	}
	all = ms
	for try := 0; try <= rereads && c.exceeds(len(all)); try++ {
		read := r.reread
		if try == rereads {
			read = r.fromLeader
		}
		more, err := read(ctx)
		if err != nil {
			return nil, false, err
		}
		all = merge(all, more)
	}
	return r.fill(ms, all), c.exceeds(len(all)), nil
}

// reread reads what is between r.begin and r.end again, from whichever copies answer.
func (r *reader) reread(ctx context.Context) (ms []stored, err error) {
	for at := r.begin; at < r.end; {
		p, err := r.s.b.reads.get(ctx, r.s.direct(), query{Seq: at + 1, NextFor: r.subject, Batch: readBatch})
		if err != nil {
			return nil, err
		}
		for _, st := range p.messages {
			if at = st.seq; at <= r.end {
				ms = append(ms, st)
			}
		}
		if p.pending == 0 || len(p.messages) == 0 {
			break
		}
	}
	return ms, nil
}

// merge returns the messages of a and b, which rise, once each.
func merge(a, b []stored) []stored {
	for _, st := range b {
		at, there := slices.BinarySearchFunc(a, st.seq, func(x stored, seq uint64) int { return cmpSeq(x.seq, seq) })
		if !there {
			a = slices.Insert(a, at, st)
		}
	}
	return a
}
