package nats

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// heal compares what was delivered with the stream and delivers what is missing,
// in the order of the log. With all it does so for every channel, whatever comes
// in between, until it is done; otherwise it looks once, at the channels on
// which nothing came lately. Only run may call it.
func (s *stream) heal(all bool) {
	for s.b.ctx.Err() == nil {
		cross(s)
		generation := s.b.generation.Load()
		if all {
			s.drop()
		}
		err := s.compare(all)
		if err == nil {
			s.checked.Store(generation)
			return
		}
		if errors.Is(err, errMissing) {
			all = true
			continue
		}
		if !all && !errors.Is(err, errSuspect) {
			return
		}
		s.b.log.Debug("log cannot be checked yet", "namespace", s.opts.Load().LogName(), "err", err)
		all = true
		select {
		case <-s.b.ctx.Done():
		case <-s.wake: // connected again
		case <-time.After(retryEvery):
		}
	}
}

// drop empties the queue: whatever is in it is in the stream as well, and what
// comes after it may not be. Subscribes under way notice it by faults. That there is
// another leader is still noted.
func (s *stream) drop() {
	s.mu.Lock()
	s.faults++
	s.mu.Unlock()
	elected := false
	for range len(s.in) {
		m := <-s.in
		elected = elected || strings.HasPrefix(m.Subject, leaderChanged)
	}
	if elected {
		s.b.out.resend(s)
	}
}

var (
	errSuspect = errors.New("the log lacks messages that were seen")
	errMissing = errors.New("a quiet channel misses a message")
	errBehind  = fmt.Errorf("%w: the replicas that answer are behind", hub.ErrUnavailable)
)

// suspicions is how long a log may seem to end too early before that counts. A new
// leader of a replicated stream may not have applied yet what was committed before,
// and one that was cut off answers as a leader for another ten seconds.
func (s *logOptions) suspicions() time.Duration {
	if s.opts.Load().Replicas > 1 {
		return 15 * time.Second
	}
	return 200 * time.Millisecond
}

func (s *stream) compare(all bool) error {
	s.mu.Lock()
	epoch, high := s.epoch, s.high
	s.mu.Unlock()
	in, err := s.info(s.life())
	if isCode(err, codeStreamNotFound) {
		if in, err = s.ensure(s.b.ctx); err == nil {
			s.adopt(in)
		}
	}
	if err == nil && narrowed(s, in) { // another process had the directory, and gave it back
		in, err = s.ensure(s.life())
	}
	if err == nil && in.epoch == epoch {
		why := shrunk(&s.delivery, in)
		if in.last < high {
			why = fmt.Sprintf("it ends at %d, and had come to %d", in.last, high)
		}
		if why != "" {
			in, err = s.regressed(in, why)
		}
	}
	if err != nil {
		return err
	}
	s.suspect = time.Time{}
	s.doubted.Store(0)
	return s.catchUp(in, all)
}

// regressed deals with a log that lost something: why says what.
func (s *stream) regressed(in info, why string) (info, error) {
	now := time.Now()
	if s.suspect.IsZero() {
		s.suspect = now
		s.doubted.Store(now.UnixNano())
	}
	if now.Sub(s.suspect) < s.suspicions() {
		s.checked.Store(0)
		return in, errSuspect
	}
	s.b.log.Error("log lost messages; it begins a new epoch", "namespace", s.opts.Load().LogName(), "last", in.last, "why", why)
	in, err := s.newEpoch(s.life(), in)
	if err == nil {
		s.doubted.Store(0)
		s.adopt(in)
	}
	return in, err
}

// catchUp delivers what the channels miss up to the log's end. When it returns
// nil they miss nothing up to there, or their subscribers got a gap.
func (s *stream) catchUp(in info, all bool) error {
	end := ending{seq: in.last}
	if s.opts.Load().Replicas > 1 {
		// Direct reads are answered by any replica, and one that was cut off or
		// suspended may be behind by any time. Only what the leader has says that an
		// answer reaches far enough.
		var err error
		if end, err = s.leaderMessage(s.life(), map[string]any{"last_by_subj": s.log + ">"}); err != nil {
			return err
		}
	}
	if all {
		s.declareRemoved(in)
	}
	l := s.laggards(end.seq, all)
	var unsure []string
	missing, from, known, err := missedInLog(s, l, end.seq)
	if err == nil && !known {
		missing, unsure, from, err = s.missing(l, end, all)
	}
	lacks := len(missing) > 0
	if err == nil && l.whole {
		lacks = lacks || l.wholeSince < end.seq
		from = min(from, l.wholeSince)
	}
	if err == nil && lacks {
		if !all {
			return errMissing
		}
		s.repairs.holes.Add(1)
		err = s.scan(in, from, end.seq, missing)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tok := range l.tokens {
		if c := s.channels[tok]; c != nil && c.joined && !slices.Contains(unsure, tok) {
			c.checked = max(c.checked, end.seq)
		}
	}
	return nil
}

// laggards are the channels that may miss something.
type laggards struct {
	tokens     []string
	since      uint64 // the least of what they are known to have
	whole      bool   // the whole namespace is one of them
	wholeSince uint64
}

// laggards returns those that are not known to have everything up to upTo: with all
// of all channels, otherwise of those on which nothing came lately.
func (s *delivery) laggards(upTo uint64, all bool) laggards {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := laggards{since: 1<<64 - 1}
	for tok, c := range s.channels {
		if since := c.known(); c.joined && (all || c.quiet) && since < upTo {
			if tok == anyToken {
				l.whole, l.wholeSince = true, c.last
			} else {
				l.tokens = append(l.tokens, tok)
				l.since = min(l.since, since)
			}
		}
		c.quiet = true
	}
	return l
}

// known returns up to where the channel misses nothing.
func (c *channel) known() uint64 { return max(c.last, c.checked) }

// declareRemoved reports a gap on the channels of which retention may have removed
// something that was not delivered: all that is older than the log's first message.
func (s *delivery) declareRemoved(in info) {
	var ms []*hub.Message
	s.mu.Lock()
	for tok, c := range s.channels {
		if tok != anyToken && c.joined && in.epoch == s.epoch && c.known()+1 < in.first {
			c.last = in.first - 1
			ms = append(ms, s.missingUpTo(c, c.last))
		}
	}
	s.mu.Unlock()
	for _, m := range ms {
		s.deliver(m)
	}
	if in.epoch == s.epochNow() && in.first > 1 {
		s.skipTo(in.first - 1)
	}
}

// perQuestion bounds the channels asked for at once; the server's bound is 1,024.
const (
	perQuestion      = 512
	perQuestionBytes = 128 << 10
)

// reportGaps finds out on which of the channels called tokens retention removed something up to upTo
// before it was delivered, and reports it before anything later is.
func (s *stream) reportGaps(in info, tokens []string, upTo uint64) error {
	for _, tok := range tokens {
		s.mu.Lock()
		c := s.channels[tok]
		var since uint64
		if c != nil {
			since = c.last
		}
		s.mu.Unlock()
		if c == nil {
			continue
		}
		if err := reportRemoved(&s.readable, in, tok, c, since, upTo); err != nil {
			return err
		}
	}
	return nil
}

// missing requests the newest messages of l's channels. It returns the channels
// that miss one, and from where on. On those in unsure something came after end:
// whether they miss anything before that is not known. With all it counts as missing.
func (s *stream) missing(l laggards, end ending, all bool) (found, unsure []string, from uint64, err error) {
	from = end.seq
	for tokens := l.tokens; len(tokens) > 0; {
		subjects, size := make([]string, 0, perQuestion), 0
		for len(subjects) < len(tokens) && len(subjects) < perQuestion && size < perQuestionBytes {
			subjects = append(subjects, s.log+tokens[len(subjects)])
			size += len(subjects[len(subjects)-1])
		}
		tokens = tokens[len(subjects):]
		for len(subjects) > 0 {
			p, err := s.newestOf(subjects, l.since, end)
			if err != nil {
				return nil, nil, 0, err
			}
			s.mu.Lock()
			for _, st := range p.messages {
				tok := lastToken(st.subject)
				c := s.channels[tok]
				switch {
				case c == nil || !c.joined || st.seq <= c.last || !slices.Contains(subjects, st.subject):
				case st.seq > end.seq && !all:
					unsure = append(unsure, tok)
				default:
					found, from = append(found, tok), min(from, c.known())
				}
			}
			s.mu.Unlock()
			if p.pending == 0 || len(p.messages) == 0 {
				break
			}
			// The answer was cut for its size: ask for those it does not have.
			subjects = slices.DeleteFunc(subjects, func(subject string) bool {
				return slices.ContainsFunc(p.messages, func(st stored) bool { return st.subject == subject })
			})
		}
	}
	return found, unsure, from, nil
}

// newestOf requests the newest message of each of subjects that came after since,
// until a replica answers that has the log up to end. So that there is always
// something to answer, end's own subject is asked for as well.
func (s *logReader) newestOf(subjects []string, since uint64, end ending) (page, error) {
	if s.opts.Load().Replicas <= 1 {
		return s.b.reads.get(s.life(), s.direct(), query{MultiLast: subjects, Seq: since + 1, UpToSeq: end.seq})
	}
	if !slices.Contains(subjects, end.subject) {
		subjects = append(subjects[:len(subjects):len(subjects)], end.subject)
	}
	for try := 1; try <= maxTries; try++ {
		p, err := s.b.reads.get(s.life(), s.direct(), query{MultiLast: subjects, Seq: since + 1})
		if err != nil || p.upTo >= end.seq {
			return p, err
		}
		s.pause(time.Duration(try) * time.Millisecond)
	}
	return page{}, errBehind
}

// maxTries bounds how often replicas are asked that turn out to be behind. Each
// time another one may answer.
const maxTries = 20

// scan reads the log, which is in, from since to upTo, where there is a message, and delivers
// what the joined channels miss: missing are those. Where sequences are not there, which a log without
// them proves not to matter, it first finds out whether retention removed messages of these.
func (s *stream) scan(in info, since, upTo uint64, missing []string) error {
	for try := 1; since < upTo; {
		p, err := s.b.reads.get(s.life(), s.direct(), query{Seq: since + 1, Batch: readBatch})
		if err != nil {
			return err
		}
		for _, st := range p.messages {
			if st.seq > since+1 && since < upTo {
				if err := s.reportGaps(in, missing, upTo); err != nil {
					return err
				}
				missing = nil
			}
			if st.seq > upTo {
				return nil
			}
			left, err := leftOut(s, in, since, st.seq)
			if err != nil {
				return err
			}
			for _, st := range append(left, st) {
				if _, ok := s.tokenOf(st.subject); !ok {
					s.passed(since, st.seq)
				} else if !s.hand(st, 0, since, false) {
					return errDisconnected
				}
				s.repairs.filled.Add(1)
				since = st.seq
			}
		}
		switch {
		case len(p.messages) > 0 && p.pending > 0:
			try = 1
		case s.opts.Load().Replicas <= 1:
			if since < upTo {
				return s.reportGaps(in, missing, upTo)
			}
			return nil
		case since < upTo:
			if try++; try > maxTries {
				return errBehind
			}
			s.pause(time.Duration(try) * time.Millisecond)
		}
	}
	return nil
}
