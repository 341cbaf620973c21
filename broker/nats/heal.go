package nats

import (
	"errors"
	"slices"
	"time"
)

// heal compares what was delivered with the stream and delivers what is missing,
// in the order of the log. With all it does so for every channel, whatever comes
// in between, until it is done; otherwise it looks once, at the channels on
// which nothing came lately. Only run may call it.
func (s *stream) heal(all bool) {
	for s.b.ctx.Err() == nil {
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
		s.b.log.Debug("log cannot be checked yet", "namespace", s.ns.Name, "err", err)
		all = true
		select {
		case <-s.b.ctx.Done():
		case <-s.wake: // connected again
		case <-time.After(retryEvery):
		}
	}
}

// drop empties the queue: whatever is in it is in the stream as well, and what
// comes after it may not be. Subscribes under way notice it by faults.
func (s *stream) drop() {
	s.mu.Lock()
	s.faults++
	s.mu.Unlock()
	for range len(s.in) {
		<-s.in
	}
}

var (
	errSuspect = errors.New("the log ends before messages that were seen")
	errMissing = errors.New("a quiet channel misses a message")
)

// An ending is where a log ended and when.
type ending struct {
	last uint64
	at   time.Time
}

// settled is how old an ending must be that every replica is trusted to have reached.
const settled = 2 * time.Second

// believed returns up to where the silence of whoever answers a direct read is
// believed. A single copy says the truth up to its end. A replica may be behind:
// of it only what is older is believed.
func (s *stream) believed(last uint64) uint64 {
	if s.ns.Replicas <= 1 {
		return last
	}
	now := time.Now()
	if s.now.at.IsZero() || now.Sub(s.now.at) > settled {
		s.before, s.now = s.now, ending{last, now}
	}
	return min(s.before.last, last)
}

// suspicions is how long a log may seem to end too early before that is
// believed. A new leader of a replicated stream may not have applied yet what
// was committed before.
func (s *stream) suspicions() time.Duration {
	if s.ns.Replicas > 1 {
		return 3 * time.Second
	}
	return 200 * time.Millisecond
}

func (s *stream) compare(all bool) error {
	s.mu.Lock()
	epoch, high := s.epoch, s.high
	s.mu.Unlock()
	in, err := s.info(s.b.ctx)
	if isCode(err, codeStreamNotFound) {
		if in, err = s.ensure(s.b.ctx); err == nil {
			s.adopt(in)
		}
	}
	if err == nil && in.epoch == epoch && in.last < high {
		in, err = s.regressed(in, high)
	}
	if err != nil {
		return err
	}
	s.suspect = time.Time{}
	return s.catchUp(in, s.believed(in.last), all)
}

// regressed deals with a log that ends before high, which was seen.
func (s *stream) regressed(in info, high uint64) (info, error) {
	now := time.Now()
	if s.suspect.IsZero() {
		s.suspect = now
	}
	if now.Sub(s.suspect) < s.suspicions() {
		s.checked.Store(0)
		return in, errSuspect
	}
	s.b.log.Error("log lost messages; it begins a new epoch", "namespace", s.ns.Name, "last", in.last, "seen", high)
	in, err := s.newEpoch(s.b.ctx, in)
	if err == nil {
		s.before, s.now = ending{}, ending{}
		s.adopt(in)
	}
	return in, err
}

// catchUp delivers what the channels miss up to the log's end. When it returns
// nil they miss nothing up to believed.
func (s *stream) catchUp(in info, believed uint64, all bool) error {
	upTo := in.last
	s.mu.Lock()
	var tokens []string
	since := uint64(1<<64 - 1)
	whole := s.channels[anyToken]
	asked := whole != nil && whole.joined && (all || whole.quiet) && whole.last < upTo
	var wholeSince uint64
	if asked {
		wholeSince = whole.last
	}
	for tok, c := range s.channels {
		if tok != anyToken && c.joined && (all || c.quiet) && c.last < upTo {
			tokens = append(tokens, tok)
			since = min(since, c.last)
		}
		c.quiet = true
	}
	s.mu.Unlock()
	missing, from, err := s.missing(tokens, since, upTo)
	lacks := len(missing) > 0
	if err == nil && asked {
		var p page
		p, err = s.b.reads.get(s.b.ctx, s.name(), query{Seq: wholeSince + 1, Batch: 1})
		if len(p.messages) > 0 && p.messages[0].seq <= upTo {
			lacks = true
		}
		from = min(from, wholeSince)
	}
	if err == nil && lacks {
		if !all {
			return errMissing
		}
		if err = s.tellGaps(in, missing); err == nil {
			err = s.scan(from, upTo)
		}
	}
	if err != nil {
		return err
	}
	if asked {
		tokens = append(tokens, anyToken)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tok := range tokens {
		if c := s.channels[tok]; c != nil && c.joined {
			c.last = max(c.last, min(believed, upTo))
		}
	}
	return nil
}

// perQuestion bounds the channels asked for at once; the server's bound is 1,024.
const (
	perQuestion      = 512
	perQuestionBytes = 128 << 10
)

// tellGaps finds out on which of the channels retention removed something before
// it was delivered. The next message there names a predecessor that nobody saw.
func (s *stream) tellGaps(in info, tokens []string) error {
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
		r := reader{s: s, subject: s.log + tok}
		first, err := s.firstRetained(s.b.ctx, r, in, since)
		if err != nil {
			return err
		}
		if first > since+1 {
			s.mu.Lock()
			c.prev = first - 1
			s.mu.Unlock()
		}
	}
	return nil
}

// missing asks for the newest messages of the channels called tokens that came
// after since. It returns the channels that miss one, and from where on.
func (s *stream) missing(tokens []string, since, upTo uint64) (found []string, from uint64, err error) {
	from = upTo
	for len(tokens) > 0 {
		subjects, size := make([]string, 0, perQuestion), 0
		for len(subjects) < len(tokens) && len(subjects) < perQuestion && size < perQuestionBytes {
			subjects = append(subjects, s.log+tokens[len(subjects)])
			size += len(subjects[len(subjects)-1])
		}
		rest := tokens[len(subjects):]
		for len(subjects) > 0 {
			p, err := s.b.reads.get(s.b.ctx, s.name(), query{MultiLast: subjects, Seq: since + 1, UpToSeq: upTo})
			if err != nil {
				return nil, 0, err
			}
			s.mu.Lock()
			for _, st := range p.messages {
				tok := lastToken(st.subject)
				if c := s.channels[tok]; c != nil && c.joined && st.seq > c.last {
					found, from = append(found, tok), min(from, c.last)
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
		tokens = rest
	}
	return found, from, nil
}

// scan reads the log from since to upTo and delivers what the joined channels miss.
func (s *stream) scan(since, upTo uint64) error {
	for since < upTo {
		p, err := s.b.reads.get(s.b.ctx, s.name(), query{Seq: since + 1, Batch: readBatch})
		if err != nil {
			return err
		}
		for _, st := range p.messages {
			if st.seq > upTo {
				return nil
			}
			if _, ok := s.tokenOf(st.subject); !ok {
				s.passed(since, st.seq)
			} else if !s.hand(st, 0, since, false) {
				return errDisconnected
			}
			since = st.seq
		}
		if len(p.messages) == 0 || p.pending == 0 {
			return nil
		}
	}
	return nil
}
