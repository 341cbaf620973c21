package nats

import (
	"fmt"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// leftOut returns the messages between since and next that the copy which was read has not
// given, though the log, which was in, has them. One that no copy gives and that cannot have been
// removed is reported on all channels.
func leftOut(s *stream, in info, since, next uint64) (left []stored, err error) {
	for seq := since + 1; seq < next; seq++ {
		if !s.retains(in, seq) {
			continue
		}
		st, ok, err := s.anyCopy(seq)
		if err == nil && !ok {
			in, err = newer(s.life(), &s.readable, in) // or it was removed just before it was read
		}
		switch {
		case err != nil:
			return nil, err
		case ok:
			left = append(left, st)
		case s.retains(in, seq):
			s.b.log.Error("a message cannot be read: all channels get a gap", "namespace", s.opts.Load().LogName(), "offset", seq)
			reportUnread(&s.delivery, seq)
		}
	}
	return left, nil
}

// retains reports whether a log that is in must have a message at seq: it is not older than the
// oldest one, nor has any channel got as many messages since as its bound allows.
func (s *logOptions) retains(in info, seq uint64) bool {
	kept := uint64(min(in.least, s.opts.Load().HistorySize))
	return !in.gone && seq >= in.first && seq <= in.last && in.last-seq < kept
}

// anyCopy reads the message at seq from whichever copy of the log has it.
func (s *logReader) anyCopy(seq uint64) (stored, bool, error) {
	if s.opts.Load().Replicas <= 1 {
		return stored{}, false, nil // the only one was read
	}
	for range rereads {
		p, err := s.b.reads.get(s.life(), s.direct(), query{Seq: seq})
		if err != nil {
			return stored{}, false, err
		}
		if len(p.messages) > 0 {
			return p.messages[0], true, nil
		}
	}
	m, _, err := s.messageAt(s.life(), seq)
	if err == nil && m != nil {
		err = fmt.Errorf("%w: only the leader has the message at %d", hub.ErrUnavailable, seq)
	}
	return stored{}, false, err
}

// reportUnread reports a gap up to seq on all channels that have not got what is before it.
func reportUnread(s *delivery, seq uint64) {
	var ms []*hub.Message
	s.mu.Lock()
	for tok, c := range s.channels {
		if tok != anyToken && c.joined && c.known() < seq {
			c.last = seq
			ms = append(ms, s.missingUpTo(c, seq))
		}
	}
	s.mu.Unlock()
	for _, m := range ms {
		s.deliver(m)
	}
}

// fillMost is how many messages a channel may have that is audited while others wait for it.
const fillMost = 2_000

// allCopies returns ms, which a copy gave of the channel called tok after since, with what other
// copies have besides, up to upTo.
func allCopies(s *readable, tok string, since, upTo uint64, ms []stored) ([]stored, error) {
	if s.opts.Load().Replicas <= 1 || s.audits.isHopeless(s, tok) {
		return ms, nil
	}
	end := min(upTo, ms[len(ms)-1].seq)
	_, more, known, err := auditChannel(s.life(), s, tok, fillMost, since, end)
	if err == nil && !known {
		s.audits.markUnaudited(s, tok)
	}
	r := reader{s: s, begin: since, end: end}
	return r.fill(ms, more), err
}
