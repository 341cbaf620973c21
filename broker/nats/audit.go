package nats

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A server leaves out a message whose bytes on the disk are not those that were written. The
// total of its channel still has it. A count from some place on does not: for the file with
// that place the server counts what it can read, unless the log has one channel only. So a
// channel is audited: all that it retains is read and compared with the total. A log with one
// copy is audited once per channel and connection, because damage is met by servers that start;
// with several copies any may have been read, and each replay is compared.

const (
	auditMost  = 10_000    // messages of a channel that is audited while its replay waits
	auditSlow  = 1_000_000 // of one that is audited aside
	maxAudited = 1 << 16   // channels remembered as complete
	maxDamaged = 1 << 12   // channels remembered as damaged
)

// audits remembers what audits of a log found. It forgets at each new connection.
type audits struct {
	mu         sync.Mutex
	generation uint64
	epoch      string
	complete   map[string]struct{}  // channels, by token
	damaged    map[string]damage    // channels that lack messages
	any        uint64               // up to where any channel may lack some: damaged was full
	hopeless   map[string]time.Time // channels that could not be audited, and when that was tried last
	running    map[string]chan struct{}
}

// A damage is up to where a channel lacks messages, and when that was found.
type damage struct {
	upTo uint64
	at   time.Time
}

// damageKept is how long a replicated log is taken to be damaged: a copy that has what is missing
// may only be starting.
const damageKept = 10 * time.Second

// reset forgets what was found on another connection or in another epoch. a.mu is held.
func (a *audits) reset(s *readable) {
	if g, e := s.b.generation.Load(), s.epochNow(); a.complete == nil || a.generation != g || a.epoch != e {
		a.generation, a.epoch, a.any = g, e, 0
		a.complete, a.damaged = map[string]struct{}{}, map[string]damage{}
		a.hopeless = map[string]time.Time{}
	}
}

// hopelessFor is how long a channel is not audited that could not be.
const hopelessFor = 10 * time.Second

// isHopeless reports whether the channel called tok could not be audited a short time ago.
func (a *audits) isHopeless(s *readable, tok string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reset(s)
	return time.Since(a.hopeless[tok]) < hopelessFor
}

// markUnaudited notes that the channel called tok could not be audited, and reports whether that is so for
// the first time.
func (a *audits) markUnaudited(s *readable, tok string) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reset(s)
	if _, again := a.hopeless[tok]; !again {
		first = true
		if len(a.hopeless) >= maxDamaged {
			clear(a.hopeless)
		}
	}
	a.hopeless[tok] = time.Now()
	return first
}

// claim returns what is known of the channel called tok: known says that it was audited, upTo
// is up to where it lacks messages, 0 for nowhere. Otherwise the caller is to audit it and to
// call done; while another does, claim waits, unless each is to do it itself.
func (a *audits) claim(ctx context.Context, s *readable, tok string, each bool) (upTo uint64, known bool, done func(), err error) {
	for {
		a.mu.Lock()
		a.reset(s)
		d, damaged := a.damaged[tok]
		if each && time.Since(d.at) > damageKept {
			d, damaged = damage{}, false
		}
		upTo = max(d.upTo, a.any)
		if _, ok := a.complete[tok]; ok || damaged {
			a.mu.Unlock()
			return upTo, true, nil, nil
		}
		if each {
			a.mu.Unlock()
			return upTo, false, func() {}, nil
		}
		other := a.running[tok]
		if other == nil {
			if a.running == nil {
				a.running = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			a.running[tok] = mine
			a.mu.Unlock()
			return upTo, false, func() {
				a.mu.Lock()
				delete(a.running, tok)
				a.mu.Unlock()
				close(mine)
			}, nil
		}
		a.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return 0, false, nil, s.b.reads.late(ctx)
		}
	}
}

// found notes the result of an audit that began on the connection called generation.
func (a *audits) found(s *readable, generation uint64, tok string, upTo uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reset(s)
	switch {
	case a.generation != generation:
	case upTo == 0 && len(a.complete) >= maxAudited:
		clear(a.complete)
		fallthrough
	case upTo == 0:
		a.complete[tok] = struct{}{}
	case len(a.damaged) >= maxDamaged:
		a.any = max(a.any, upTo)
	default:
		if d, again := a.damaged[tok]; again { // what was stored since can be read
			upTo = d.upTo
		}
		a.damaged[tok] = damage{upTo, time.Now()}
	}
}

// An audit reads all messages of a channel, of whichever copies answer.
type audit struct {
	s       *readable
	subject string
	most    int      // messages; of a channel with more nothing is known
	seqs    []uint64 // those that were read, rising
	// What was read after since and up to covered is kept.
	since, covered uint64
	kept           []stored
}

// auditChannel audits the channel called tok unless that was done. It returns up to where the
// channel lacks messages, 0 for nowhere; known is false if that could not be found out. Of a
// log with several copies it also returns what some copy has after since and up to covered.
func auditChannel(ctx context.Context, s *readable, tok string, most int, since, covered uint64) (upTo uint64, ms []stored, known bool, err error) {
	copied := s.opts.Load().Replicas > 1
	upTo, known, done, err := s.audits.claim(ctx, s, tok, copied)
	if err != nil || known {
		return upTo, nil, known, err
	}
	defer done()
	generation := s.b.generation.Load()
	a := audit{s: s, subject: s.log + tok, most: most, since: since, covered: covered}
	lacks := a.single
	if copied {
		lacks = a.copies
	}
	lost, known, err := lacks(ctx)
	if err != nil || !known {
		return upTo, nil, false, err
	}
	s.repairs.audited.Add(1)
	if lost > 0 {
		newest, err := newestUnread(ctx, s)
		if err != nil {
			return 0, nil, false, err
		}
		upTo = max(upTo, newest)
		s.repairs.damaged.Add(1)
		name, _ := channelOf(s.opts.Load().Name, tok)
		s.b.log.Error("messages of a channel cannot be read: replays from before them get a gap",
			"namespace", s.opts.Load().LogName(), "channel", name, "messages", lost, "until", upTo)
	}
	if lost > 0 || !copied {
		s.audits.found(s, generation, tok, upTo)
	}
	return upTo, a.kept, true, nil
}

// last returns the newest sequence that was read.
func (a *audit) last() uint64 {
	if len(a.seqs) == 0 {
		return 0
	}
	return a.seqs[len(a.seqs)-1]
}

// add notes messages that were read, which rise.
func (a *audit) add(ms []stored) {
	for _, st := range ms {
		if at, there := slices.BinarySearch(a.seqs, st.seq); !there {
			a.seqs = slices.Insert(a.seqs, at, st.seq)
		}
		if st.seq > a.since && st.seq <= a.covered {
			a.kept = merge(a.kept, []stored{st})
		}
	}
}

// from returns how many of those that were read have seq or a later sequence.
func (a *audit) from(seq uint64) uint64 {
	at, _ := slices.BinarySearch(a.seqs, seq)
	return uint64(len(a.seqs) - at)
}

// read reads what comes after at. It reports false if the channel has too many messages.
func (a *audit) read(ctx context.Context, at uint64) (bool, error) {
	for {
		p, err := a.s.b.reads.get(ctx, a.s.direct(), query{Seq: at + 1, NextFor: a.subject, Batch: readBatch})
		if err != nil {
			return false, err
		}
		a.add(p.messages)
		if len(a.seqs) > a.most || at == 0 && p.counted > uint64(a.most) {
			return false, nil
		}
		if len(p.messages) == 0 || p.pending == 0 {
			return true, nil
		}
		at = p.messages[len(p.messages)-1].seq
	}
}

// single returns how many messages of a log with one copy cannot be read. The total is
// requested together with what comes after the last one that was read: if that is nothing,
// both are of the same instant.
func (a *audit) single(ctx context.Context) (lost uint64, known bool, err error) {
	if ok, err := a.read(ctx, 0); err != nil || !ok {
		return 0, false, err
	}
	for range maxCounts {
		p, err := a.s.b.reads.getAll(ctx, a.s.direct(), []query{
			{Seq: 1, NextFor: a.subject, Batch: 1}, {Seq: a.last() + 1, NextFor: a.subject, Batch: readBatch},
		}, 0)
		if err != nil {
			return 0, false, err
		}
		if all, after := p[0], p[1]; len(after.messages) > 0 {
			a.add(after.messages)
		} else if len(all.messages) > 0 {
			total, have := all.count(), a.from(all.messages[0].seq)
			return total - min(total, have), true, nil
		} else { // there are none, or none that can be read
			r := reader{s: a.s, subject: a.subject}
			lost, err = r.emptied(ctx)
			return lost, err == nil, err
		}
	}
	return 0, false, nil
}

// copies returns how many messages neither copy that answered has, of those that the leader of
// a replicated log counts.
func (a *audit) copies(ctx context.Context) (lost uint64, known bool, err error) {
	if ok, err := a.read(ctx, 0); err != nil || !ok {
		return 0, false, err
	}
	r := reader{s: a.s, subject: a.subject}
	reads, unsteady := 0, 0
	for range maxCounts {
		total, first, newest, steady, err := a.leaderTotal(ctx)
		if err != nil {
			return 0, false, err
		}
		if !steady {
			if unsteady++; unsteady == steadyTries {
				break
			}
			continue
		}
		if newest > a.last() {
			if ok, err := a.read(ctx, a.last()); err != nil || !ok {
				return 0, false, err
			}
			if newest > a.last() { // of a copy that is behind, or has lost it
				a.s.pause(countPause)
			}
			if reads++; reads <= rereads {
				continue
			}
		}
		have := a.from(max(first, 1))
		if have >= total {
			return 0, true, nil
		}
		switch reads++; {
		case reads <= rereads:
			if ok, err := a.read(ctx, max(first, 1)-1); err != nil || !ok {
				return 0, false, err
			}
		case reads == rereads+1 && total <= leaderReads:
			r.begin, r.end = max(first, 1)-1, newest
			ms, err := r.fromLeader(ctx)
			if err != nil {
				return 0, false, err
			}
			a.add(ms)
		default:
			return total - have, true, nil
		}
	}
	return 0, false, nil
}

// leaderTotal returns how many messages the channel has by its leader's word, and the first and
// the newest of them that can be read. It is steady if none was stored meanwhile.
func (a *audit) leaderTotal(ctx context.Context) (total, first, newest uint64, steady bool, err error) {
	last := func() uint64 {
		var e ending
		if err == nil {
			e, err = a.s.leaderMessage(ctx, map[string]any{"last_by_subj": a.subject})
		}
		return e.seq
	}
	before := last()
	if err == nil {
		r := reader{s: a.s, subject: a.subject}
		total, err = r.leaderCount(ctx)
	}
	if err == nil {
		var e ending
		e, err = a.s.leaderMessage(ctx, map[string]any{"seq": 1, "next_by_subj": a.subject})
		first = e.seq
	}
	newest = last()
	return total, first, newest, newest == before, err
}

// steadyTries is how often a leader's total is requested while messages are stored.
const steadyTries = 3

// lookBack is how many pages of a log are read at most to find what cannot be read.
const lookBack = 2048

// newestUnread returns a place in the log after which everything can be read: its end, unless
// that of a log with one copy is found further back. Messages of which channels it lacks before
// that cannot be found out.
func newestUnread(ctx context.Context, s *readable) (uint64, error) {
	in, err := s.info(ctx)
	if err != nil || s.opts.Load().Replicas > 1 {
		return in.last, err
	}
	first := max(in.first, 1)
	for hi, n := in.last, 0; hi >= first && n < lookBack; n++ {
		lo := max(hi-min(hi, readBatch), first-1)
		missing := uint64(0)
		for at := lo; at < hi; {
			p, err := s.b.reads.get(ctx, s.direct(), query{Seq: at + 1, Batch: int(hi - at)})
			if err != nil {
				return 0, err
			}
			for _, st := range p.messages {
				seq := min(st.seq, hi+1)
				if seq > at+1 {
					missing = seq - 1
				}
				at = seq
			}
			if len(p.messages) == 0 {
				missing, at = hi, hi
			}
		}
		if missing > 0 {
			return missing, nil
		}
		hi = lo
	}
	return in.last, nil
}
