package nats

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// repairs counts what was missing on the way here, and what became of it.
type repairs struct {
	holes, filled, gaps atomic.Uint64
	// audited counts audits of channels, damaged those that found messages which cannot be read.
	audited, damaged atomic.Uint64
	// unaudited counts channels that could not be audited.
	unaudited atomic.Uint64

	// Owned by run: what report has logged.
	loggedHoles, loggedFilled, loggedGaps uint64
}

// report logs what was missing since it was called before.
func (r *repairs) report(log *slog.Logger, namespace string) {
	holes, filled, gaps := r.holes.Load(), r.filled.Load(), r.gaps.Load()
	if holes == r.loggedHoles && gaps == r.loggedGaps {
		return
	}
	log.Warn("messages were missing on the way from NATS", "namespace", namespace,
		"holes", holes-r.loggedHoles, "fetched", filled-r.loggedFilled, "gaps", gaps-r.loggedGaps)
	r.loggedHoles, r.loggedFilled, r.loggedGaps = holes, filled, gaps
}

// Stats are counters since New.
type Stats struct {
	Holes        uint64 // times that messages were missing on the way to this node
	Filled       uint64 // messages read from the log for that
	Gaps         uint64 // holes that could not be filled, per channel
	RetriedReads uint64 // reads made again because no replica had answered, or no server served the log
	ServersLeft  uint64 // servers left because they seemed to be cut off from their cluster
	Bridged      uint64 // times that a publish was kept to be sent again
	Audited      uint64 // channels read whole and compared with their total
	Damaged      uint64 // of these, those that lacked messages
	Unaudited    uint64 // channels with too many messages, or too many new ones, for that
	Unchecked    uint64 // channels that wait for it: a gauge
	// Unmarked is the number of logs of which external servers keep no mark: they may
	// not have the stream for it.
	Unmarked uint64
}

// Stats returns the counters. Any goroutine.
func (b *Broker) Stats() Stats {
	st := Stats{RetriedReads: b.retriedReads.Load(), ServersLeft: b.serversLeft.Load(), Bridged: b.bridgedPublishes.Load()}
	if b.stateErr() != nil {
		return st // starting, or closed
	}
	if o := b.outside.Load(); o != nil && o.missing() != nil {
		st.Unmarked = uint64(o.count())
	}
	for _, s := range b.all() {
		st.Holes += s.repairs.holes.Load()
		st.Filled += s.repairs.filled.Load()
		st.Gaps += s.repairs.gaps.Load()
		st.Audited += s.repairs.audited.Load()
		st.Damaged += s.repairs.damaged.Load()
		st.Unaudited += s.repairs.unaudited.Load()
		st.Unchecked += uint64(s.auditor.waiting())
	}
	return st
}

// fillPatience is how long a hole keeps later messages waiting. One that cannot be
// filled by then becomes a gap.
const fillPatience = 3 * time.Second

// fill delivers what is missing on c up to and including the message at upTo,
// or as much of it as the log still has. What it cannot deliver is reported. It returns
// false when the connection was lost: then all will be checked anyway.
func (s *readable) fill(tok string, c *channel, upTo uint64) bool {
	s.repairs.holes.Add(1)
	began := time.Now()
	for try := 1; s.b.ctx.Err() == nil && s.verified(); try++ {
		s.mu.Lock()
		since := c.last
		s.mu.Unlock()
		var err error
		for since < upTo {
			var p page
			p, err = s.b.reads.get(s.life(), s.direct(), query{Seq: since + 1, NextFor: s.log + tok, Batch: readBatch})
			if err == nil && len(p.messages) > 0 {
				err = reportRemovedBefore(s, p.messages[0].seq, tok, c, since)
			}
			if err != nil || len(p.messages) == 0 {
				break
			}
			if p.messages, err = allCopies(s, tok, since, upTo, p.messages); err != nil {
				break
			}
			for _, st := range p.messages {
				if since = st.seq; st.seq <= upTo && s.hand(st, 0, st.seq-1, false) {
					s.repairs.filled.Add(1)
				}
			}
		}
		if since >= upTo || err == nil && s.gone(tok, since, upTo, try) || time.Since(began) > fillPatience {
			s.missed(tok, c, upTo)
			return true
		}
		s.pause(time.Duration(min(try, 20)) * 5 * time.Millisecond)
	}
	return false
}

// reportRemovedBefore is reportRemoved for what is missing before the message at seq.
func reportRemovedBefore(s *readable, seq uint64, tok string, c *channel, since uint64) error {
	if since+1 >= seq {
		return nil
	}
	in, err := s.info(s.life())
	if err != nil {
		return err
	}
	return reportRemoved(s, in, tok, c, since, seq-1)
}

// reportRemoved reports what retention may have removed of c, which is called tok, after since,
// but nothing after upTo. It must be asked after that was read.
func reportRemoved(s *readable, in info, tok string, c *channel, since, upTo uint64) error {
	r := reader{s: s, subject: s.log + tok}
	first, err := r.firstRetained(s.life(), in, since)
	if err != nil || first <= since+1 {
		return err
	}
	upTo = min(upTo, first-1)
	next, err := s.leaderMessage(s.life(), map[string]any{"seq": since + 1, "next_by_subj": s.log + tok})
	if err != nil {
		return err
	}
	if next.seq > 0 {
		upTo = min(upTo, next.seq-1)
	}
	s.missed(tok, c, upTo)
	return nil
}

// missed informs the hub that it will not get what c, which is called tok, has up to upTo.
func (s *delivery) missed(tok string, c *channel, upTo uint64) {
	s.mu.Lock()
	var m *hub.Message
	if s.channels[tok] == c && c.joined && c.last < upTo {
		c.last = upTo
		m = s.missingUpTo(c, upTo)
	}
	s.mu.Unlock()
	if m != nil {
		s.deliver(m)
	}
}

// gone reports whether the log has nothing of the channel called tok after since
// and up to upTo, though it had. A single copy has said so already; of a replicated
// stream any copy may be behind by any time, so its leader is asked now and then.
func (s *logReader) gone(tok string, since, upTo uint64, try int) bool {
	if s.opts.Load().Replicas <= 1 {
		return true
	}
	if try%4 != 0 {
		return false
	}
	next, err := s.leaderMessage(s.life(), map[string]any{"seq": since + 1, "next_by_subj": s.log + tok})
	return err == nil && (next.seq == 0 || next.seq > upTo)
}

// An ending is the newest message that a log has; the zero value is none.
type ending struct {
	seq     uint64
	subject string
}

// leaderMessage requests from the stream's leader a message, of which it returns the
// place; none is no error.
func (s *logReader) leaderMessage(ctx context.Context, query map[string]any) (ending, error) {
	if err := s.b.reads.enter(ctx); err != nil {
		return ending{}, err
	}
	defer s.b.reads.leave()
	var a struct {
		Message struct {
			Seq     uint64 `json:"seq"`
			Subject string `json:"subject"`
		} `json:"message"`
	}
	err := s.request(ctx, "STREAM.MSG.GET."+s.name(), query, &a)
	if isCode(err, codeNoMessage) {
		err = nil
	}
	return ending{a.Message.Seq, a.Message.Subject}, err
}

// fillWhole delivers what is missing up to upTo on the whole namespace. A sequence
// that the log does not have was removed before it was delivered, and becomes a
// gap. The one after upTo was stored. It reports false when the connection was
// lost: then all will be checked anyway.
func (s *delivery) fillWhole(upTo uint64) bool {
	s.repairs.holes.Add(1)
	began := time.Now()
	for try := 1; s.b.ctx.Err() == nil && s.verified(); {
		s.mu.Lock()
		c := s.channels[anyToken]
		if c == nil || !c.joined || c.last >= upTo {
			s.mu.Unlock()
			return true
		}
		since := c.last
		s.mu.Unlock()
		p, err := s.b.reads.get(s.life(), s.direct(), query{Seq: since + 1, Batch: readBatch})
		for _, st := range p.messages {
			if st.seq > upTo {
				s.skipTo(upTo)
				break
			}
			if !s.hand(st, 0, since, false) {
				return false
			}
			s.repairs.filled.Add(1)
			s.passed(since, st.seq)
			since = st.seq
		}
		switch {
		case err == nil && p.pending > 0 && len(p.messages) > 0:
		case err == nil && s.opts.Load().Replicas <= 1, time.Since(began) > fillPatience:
			s.skipTo(upTo)
		default:
			s.pause(time.Duration(min(try, 20)) * 5 * time.Millisecond)
			try++
		}
	}
	return false
}

// skip moves the mark of whole, which may be nil, to upTo and returns what informs the
// hub that the messages in between will not come; nil if there are none. s.mu is held.
func (s *delivery) skip(whole *channel, upTo uint64) *hub.Message {
	if whole == nil || !whole.joined || whole.last >= upTo {
		return nil
	}
	whole.last = upTo
	return s.missingUpTo(whole, upTo)
}

// missingUpTo returns what informs the hub that messages of c up to upTo are missing.
// s.mu is held.
func (s *delivery) missingUpTo(c *channel, upTo uint64) *hub.Message {
	s.repairs.gaps.Add(1)
	return &hub.Message{Channel: c.name, Epoch: s.epoch, Offset: upTo, Missing: true}
}

// skipTo is skip for who does not hold s.mu.
func (s *delivery) skipTo(upTo uint64) {
	s.mu.Lock()
	m := s.skip(s.channels[anyToken], upTo)
	s.mu.Unlock()
	if m != nil {
		s.deliver(m)
	}
}

// passed notes that the message at seq, the next one after since that the log has,
// needs no more delivery for the whole namespace, if that has got everything up to since.
func (s *delivery) passed(since, seq uint64) {
	s.mu.Lock()
	c := s.channels[anyToken]
	var m *hub.Message
	if c != nil && c.joined && c.last >= since && c.last < seq {
		m = s.skip(c, seq-1)
		c.last = seq
	}
	s.mu.Unlock()
	if m != nil {
		s.deliver(m)
	}
}

// pause waits for d or the end.
func (s *logReader) pause(d time.Duration) {
	select {
	case <-s.b.ctx.Done():
	case <-time.After(d):
	}
}
