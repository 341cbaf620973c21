package nats

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// After a node or a connection is lost, subscribers of hundreds of channels resume at once from
// places close to the log's end. Read channel by channel that is two requests each and five
// for an audit later. So the newest messages of the log are read once, all channels together, and
// each channel takes its own from them. Sequences that rise by one prove that nothing was left
// out, which needs neither the leader's word nor an audit.

const (
	// stretchPerChannel is how many messages of the log, of all channels, are read for each
	// channel that resumes, stretchMost for all of them.
	stretchPerChannel = 256
	stretchMost       = 32 * readBatch
	// stretchKept is how long what was read is kept for channels that resume a little later.
	stretchKept = time.Second
)

// A stretch is a part of a log without holes: all of its messages after floor and up to upTo.
type stretch struct {
	// Fixed.
	epoch      string
	generation uint64 // of the connection

	mu          sync.Mutex
	floor, upTo uint64
	messages    map[string][]stored // by token, rising
}

// emptyStretch returns one that starts at the end of a log that is in.
func emptyStretch(in info, generation uint64) *stretch {
	return &stretch{epoch: in.epoch, generation: generation, floor: in.last, upTo: in.last, messages: map[string][]stored{}}
}

// newest returns up to n of the newest messages up to upTo of the channel called tok, and the floor
// under them: all of the channel's messages after it and up to upTo are there.
func (st *stretch) newest(tok string, upTo uint64, n int) (ms []stored, floor uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	ms = st.messages[tok]
	for len(ms) > 0 && ms[len(ms)-1].seq > upTo {
		ms = ms[:len(ms)-1]
	}
	if over := len(ms) - n; over > 0 {
		return ms[over:len(ms):len(ms)], ms[over-1].seq
	}
	return ms[:len(ms):len(ms)], st.floor
}

// extend appends ms, which are what the log has after upTo and up to end. What comes before the
// newest hole is dropped.
func (st *stretch) extend(s *logOptions, ms []stored, end uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if hole := lastHole(ms, st.upTo, end); hole > 0 {
		st.floor, st.messages = hole, map[string][]stored{}
	}
	for _, m := range ms {
		if tok, ok := s.tokenOf(m.subject); ok && m.seq > st.floor && m.seq <= end {
			st.messages[tok] = append(st.messages[tok], m)
		}
	}
	st.upTo = end
}

// A resumption is one read of a log's newest messages that many channels wait for.
type resumption struct {
	done     chan struct{}
	since    uint64 // the least of what their subscribers have
	channels int
	in       info
	stretch  *stretch
	err      error
}

// resumed returns the log's state, as info does, and its newest messages. They reach back to since, which a
// subscriber of a channel has, unless that is too far. Callers that come together share one read.
func resumed(ctx context.Context, s *readable, since uint64) (info, *stretch, error) {
	s.flights.Lock()
	if s.flights.over {
		s.flights.Unlock()
		return info{}, nil, s.b.stateErr()
	}
	r := s.flights.resume
	if r == nil {
		r = &resumption{done: make(chan struct{}), since: since}
		s.flights.resume = r
		if !s.flights.resuming {
			s.flights.resuming = true
			s.flights.wg.Go(func() { resume(s) })
		}
	}
	r.since, r.channels = min(r.since, since), r.channels+1
	s.flights.Unlock()
	select {
	case <-r.done:
		return r.in, r.stretch, r.err
	case <-ctx.Done():
		return info{}, nil, s.b.reads.late(ctx)
	}
}

// resume makes resumptions one after another while channels wait for one.
func resume(s *readable) {
	for {
		s.flights.Lock()
		r := s.flights.resume
		s.flights.resume = nil
		if r == nil {
			s.flights.resuming = false
			kept := s.flights.kept
			if kept != nil {
				time.AfterFunc(stretchKept, func() { forgetStretch(s, kept) })
			}
			s.flights.Unlock()
			return
		}
		s.flights.Unlock()
		readNewest(s.life(), s, r)
		close(r.done)
	}
}

// forgetStretch drops st.
func forgetStretch(s *readable, st *stretch) {
	s.flights.Lock()
	defer s.flights.Unlock()
	if s.flights.kept == st && !s.flights.resuming {
		s.flights.kept = nil
	}
}

// readNewest reads what r needs.
func readNewest(ctx context.Context, s *readable, r *resumption) {
	generation := s.b.generation.Load()
	if r.in, r.err = s.info(ctx); r.err != nil {
		return
	}
	in := r.in
	begin := max(in.first, 1) - 1
	if since := min(r.since-min(r.since, 1), in.last); since > begin { // with the message at since, which proves the position
		begin = since
	}
	s.flights.Lock()
	st := s.flights.kept
	s.flights.Unlock()
	if st == nil || st.epoch != in.epoch || st.generation != generation || in.gone || st.floor > begin || st.upTo > in.last {
		st = emptyStretch(in, generation)
		if most := uint64(min(max(stretchPerChannel*r.channels, readBatch), stretchMost)); !in.gone && r.since < in.last && in.last-begin <= most {
			st.floor, st.upTo = begin, begin
		}
	}
	if st.upTo < in.last {
		ms, err := readLog(ctx, &s.logReader, st.upTo, in.last, stretchMost/readBatch)
		if err == nil {
			st.extend(&s.logOptions, ms, in.last)
			err = s.verifyRead(ctx, in)
		}
		if err != nil && s.epochNow() == in.epoch && !errors.Is(err, errBehind) {
			r.err = err
			return
		}
		if err != nil { // each channel is read for itself
			st = emptyStretch(in, generation)
		}
	}
	r.stretch = st
	s.flights.Lock()
	s.flights.kept = st
	s.flights.Unlock()
}

// readLog returns what the log has after since and up to upTo, where its end was, in at most pages requests.
// A replica that has not got to upTo is not trusted: errBehind if no other answers, or if there is more.
func readLog(ctx context.Context, s *logReader, since, upTo uint64, pages int) (ms []stored, err error) {
	for behind := 0; since < upTo; pages-- {
		if pages == 0 {
			return nil, errBehind
		}
		p, err := s.b.reads.get(ctx, s.direct(), query{Seq: since + 1, Batch: readBatch})
		if err != nil {
			return nil, err
		}
		for _, m := range p.messages {
			if since = m.seq; since > upTo {
				return ms, nil
			}
			ms = append(ms, m)
		}
		if len(p.messages) > 0 && p.pending > 0 || since >= upTo {
			continue
		}
		if s.opts.Load().Replicas <= 1 {
			return ms, nil
		}
		if behind++; behind == maxTries {
			return nil, errBehind
		}
		s.pause(time.Duration(behind) * time.Millisecond)
		pages++
	}
	return ms, nil
}

// resumes returns what a channel called tok that a subscriber resumes from one of since is joined with; ok is
// false if it has to be read for itself.
func resumes(ctx context.Context, s *readable, tok string, tail int, since hub.Positions) (r joinRead, ok bool, err error) {
	epoch := s.epochNow()
	for _, p := range since {
		if p.Epoch != epoch || tok == anyToken || tail == 0 {
			continue
		}
		in, st, err := resumed(ctx, s, p.Offset)
		if err != nil || in.epoch != epoch {
			return r, false, err
		}
		ms, floor := st.newest(tok, in.last, tail)
		r = joinRead{in: in, ms: ms, floor: floor, first: floor + 1, proven: true}
		return r, floor <= p.Offset, nil
	}
	return r, false, nil
}

// missedInLog is missing where the log has got fewer messages than l has channels: they are read instead, and
// a sequence that is not there means that known is false.
func missedInLog(s *stream, l laggards, end uint64) (found []string, from uint64, known bool, err error) {
	most := min(len(l.tokens), stretchMost) // which are held at once
	if l.whole || most == 0 || end < l.since || end-l.since > uint64(most) {
		return nil, 0, false, nil
	}
	ms, err := readLog(s.life(), &s.logReader, l.since, end, 1+most/readBatch)
	if errors.Is(err, errBehind) {
		return nil, 0, false, nil // as if they had not been read
	}
	if err != nil || lastHole(ms, l.since, end) > 0 {
		return nil, 0, false, err
	}
	newest := map[string]uint64{}
	for _, m := range ms {
		if tok, ok := strings.CutPrefix(m.subject, s.log); ok {
			newest[tok] = m.seq
		}
	}
	from = end
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tok := range l.tokens {
		if c := s.channels[tok]; c != nil && c.joined && newest[tok] > c.last {
			found, from = append(found, tok), min(from, c.known())
		}
	}
	return found, from, true, nil
}
