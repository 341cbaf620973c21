package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A server leaves out messages whose bytes on the disk are not those that were written,
// without a word. But it counts them: what a replay reads is compared with the count.

const (
	maxCounts   = 20                   // rounds of comparisons while publishes come between
	countPause  = 2 * time.Millisecond // between them, growing
	leaderReads = 4 * readBatch        // messages read from the leader alone
)

// note keeps what p, read from since to end, says of how many messages there are. On a
// page that ended with the log it is as many as were counted at its beginning.
func (r *reader) note(since, end uint64, p *page) {
	if since != r.end || r.all == 0 {
		r.begin, r.all, r.got, r.found = since, 0, 0, 0
	}
	n := uint64(len(p.messages))
	r.end, r.all = end, r.all+n
	if p.pending == 0 {
		r.found += p.counted - min(p.counted, n)
	} else {
		r.cut, r.got = end, r.got+n
	}
}

// lacks returns how many messages between r.begin and r.end may have been left out, of a
// log with one copy. Those of pages that were cut have to be counted: a count after each of
// the two ends is exact only at one instant, so they are made
// right after each other, alternately: what is published on the channel in between shows in
// the difference of the counts before and after. Where that happens each time, on a
// channel with thousands of publishes per second, it is too many.
func (r *reader) lacks(ctx context.Context) (most uint64, err error) {
	if r.got == 0 {
		return r.found, nil
	}
	first := query{Seq: r.begin + 1, NextFor: r.subject, Batch: 1}
	after := query{Seq: r.cut + 1, NextFor: r.subject, Batch: 1}
	least := uint64(0)
	most = ^uint64(0)
	for try := range maxCounts {
		queries := []query{first, after, first}
		if try > 0 {
			queries = slices.Concat(slices.Repeat([]query{first, after}, 8), queries[:1])
		}
		p, err := r.s.b.reads.getAll(ctx, r.s.direct(), queries, 0)
		if err != nil {
			return 0, err
		}
		for i := 1; i < len(p); i += 2 {
			have := p[i].count() + r.got
			least = max(least, p[i-1].count()-min(p[i-1].count(), have))
			most = min(most, p[i+1].count()-min(p[i+1].count(), have))
		}
		if most <= least {
			break
		}
		select {
		case <-ctx.Done():
			return 0, r.s.b.reads.late(ctx)
		case <-time.After(time.Duration(try) * countPause):
		}
	}
	return most + r.found, nil
}

// count returns how many messages the server counts from the first one on.
func (p *page) count() uint64 { return p.pending + uint64(len(p.messages)) }

// emptied is lacks for a page without messages: its newest message
// is not there, though the server counts messages.
func (r *reader) emptied(ctx context.Context) (uint64, error) {
	newest, err := r.s.leaderMessage(ctx, map[string]any{"last_by_subj": r.subject})
	if err != nil || newest.seq > 0 {
		return 0, err
	}
	n, err := r.leaderCount(ctx)
	if err != nil || n == 0 {
		return 0, err
	}
	newest, err = r.s.leaderMessage(ctx, map[string]any{"last_by_subj": r.subject}) // or it has just come
	if err != nil || newest.seq > 0 {
		return 0, err
	}
	return n, nil
}

// leaderCount returns how many messages of the channel the leader counts.
func (r *reader) leaderCount(ctx context.Context) (uint64, error) {
	var a struct {
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	err := r.s.request(ctx, "STREAM.INFO."+r.s.name(), map[string]string{"subjects_filter": r.subject}, &a)
	return a.State.Subjects[r.subject], err
}

// complete returns what r has read, ms, with what was left out if another copy of the
// log has it. holed reports that something is missing all the same, or may be.
func (r *reader) complete(ctx context.Context, ms []stored) (all []stored, holed bool, err error) {
	switch {
	case r.subject == "": // a reader of the whole log sees what is missing
		return ms, false, nil
	case r.s.opts.Load().Replicas > 1:
		return r.completeCopies(ctx, ms)
	}
	most, err := r.lacks(ctx)
	if err == nil && r.all == 0 {
		most, err = r.emptied(ctx)
	}
	return ms, most > 0, err
}

// check is complete with an audit of the channel called tok: ms was read after since and up to
// covered, of the log that was in. It returns up to where messages are missing, 0 for nowhere.
func (r *reader) check(ctx context.Context, in info, tok string, ms []stored, since, covered uint64) (all []stored, upTo uint64, err error) {
	if tok != anyToken && since < in.last && !r.s.audits.isHopeless(r.s, tok) {
		more := []stored(nil)
		known := false
		upTo, more, known, err = auditChannel(ctx, r.s, tok, auditMost, since, covered)
		if err != nil || known && r.s.opts.Load().Replicas > 1 {
			return r.fill(ms, more), upTo, err
		}
		if !known && r.s.audits.markUnaudited(r.s, tok) {
			r.s.auditor.add(suspect{tok: tok, upTo: covered, n: -1})
		}
	}
	all, holed, err := r.complete(ctx, ms)
	if holed {
		upTo = max(upTo, covered)
	}
	return all, upTo, err
}

// fill returns ms, which were read from some copy of the log, with what others have besides.
func (r *reader) fill(ms, others []stored) []stored {
	all := merge(ms, others)
	if n := len(all) - len(ms); n > 0 {
		r.s.repairs.filled.Add(uint64(n))
		r.s.b.log.Warn("a replica has lost messages; they were read from another", "namespace", r.s.opts.Load().LogName(), "messages", n, "after", r.begin, "until", r.end)
	}
	return all
}

// fromLeader reads what is between r.begin and r.end from the leader, one by one.
func (r *reader) fromLeader(ctx context.Context) (ms []stored, err error) {
	for at := r.begin; at < r.end; {
		st, ok, err := r.s.leaderNext(ctx, at, r.subject)
		if err != nil || !ok || st.seq > r.end {
			return ms, err
		}
		if ms = append(ms, st); len(ms) > leaderReads {
			return nil, fmt.Errorf("%w: more than %d messages to read from the leader of %s", hub.ErrUnavailable, leaderReads, r.s.name())
		}
		at = st.seq
	}
	return ms, nil
}

// getAll sends queries together, so that a log with one copy answers them one right after the
// other, and waits for all answers: as long as a read may take, or for patience if that is not
// 0. A page that did not come in that time is nil.
func (r *reads) getAll(ctx context.Context, subject string, queries []query, patience time.Duration) ([]*page, error) {
	if err := r.enter(ctx); err != nil {
		return nil, err
	}
	defer r.leave()
	ctx, cancel := r.b.bound(ctx)
	defer cancel()
	if !r.b.connected.Load() {
		return nil, errDisconnected
	}
	answers, ids := make([]chan *read, len(queries)), make([]uint64, len(queries))
	defer func() { r.forget(ids) }()
	for i, q := range queries {
		answers[i] = make(chan *read, 1)
		ids[i] = r.begin(answers[i])
		body, err := json.Marshal(q)
		if err == nil {
			err = r.b.nc.PublishRequest(subject, r.prefix+strconv.FormatUint(ids[i], 36), body)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: read %s: %w", hub.ErrUnavailable, subject, err)
		}
	}
	enough := ctx
	if patience > 0 {
		var stop context.CancelFunc
		enough, stop = context.WithTimeout(ctx, patience)
		defer stop()
	}
	pages := make([]*page, len(queries))
	for i, c := range answers {
		rd := await(c, enough.Done())
		switch {
		case rd != nil && rd.err != nil:
			return nil, rd.err
		case rd != nil:
			pages[i] = &rd.page
		case ctx.Err() != nil:
			return nil, r.late(ctx)
		}
	}
	return pages, nil
}

// await returns what comes before done; what has come already also after it.
func await(c <-chan *read, done <-chan struct{}) *read {
	select {
	case rd := <-c:
		return rd
	default:
	}
	select {
	case rd := <-c:
		return rd
	case <-done:
		return nil
	}
}
