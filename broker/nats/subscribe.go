package nats

import (
	"context"
	"fmt"
	"slices"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Subscribe begins delivery of channel and reads its newest messages. First the
// subscription is made, then the end of the log is asked for behind it: what is
// stored after that end finds the subscription in its place.
func (b *Broker) Subscribe(ctx context.Context, ns *hub.Namespace, channel string, tail int) (hub.Snapshot, error) {
	return b.SubscribeSince(ctx, ns, channel, tail, nil)
}

// SubscribeSince is Subscribe for a subscriber that resumes from since: where that is close to the
// log's end, channels that come together are read together.
func (b *Broker) SubscribeSince(ctx context.Context, ns *hub.Namespace, channel string, tail int, since hub.Positions) (hub.Snapshot, error) {
	s, err := b.stream(ns)
	if err == nil && channel == "" {
		err = fmt.Errorf("%w: it is empty", hub.ErrBadChannel)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return hub.Snapshot{}, err
	}
	var snap hub.Snapshot
	err = b.again(ctx, func() (err error) {
		snap, err = s.subscribe(ctx, channel, tail, since)
		return err
	})
	return snap, err
}

func (s *readable) subscribe(ctx context.Context, channel string, tail int, since hub.Positions) (hub.Snapshot, error) {
	c, tok, err := s.open(channel)
	if err != nil {
		return hub.Snapshot{}, err
	}
	var snap hub.Snapshot
	if s.durable() {
		snap, err = s.join(ctx, c, tok, tail, since)
	} else {
		err = s.settle(ctx)
	}
	if err != nil {
		s.close(tok, c)
		return hub.Snapshot{}, fmt.Errorf("subscribe %q: %w", channel, err)
	}
	return snap, nil
}

// open makes the subscription.
func (s *readable) open(name string) (*channel, string, error) {
	tok := token(s.opts.Load().Name, name)
	c := &channel{name: name}
	s.mu.Lock()
	if s.channels[tok] != nil {
		s.mu.Unlock()
		return nil, "", fmt.Errorf("subscribe %q: it is subscribed already", name)
	}
	s.channels[tok] = c
	s.mu.Unlock()
	if err := c.follow(&s.delivery, tok); err != nil {
		s.close(tok, c)
		return nil, "", fmt.Errorf("%w: subscribe %q: %w", hub.ErrUnavailable, name, err)
	}
	return c, tok, nil
}

// follow subscribes c, which is called tok, to what is republished in the current epoch, and
// ends its subscription to an epoch before. The epoch is not a wildcard: NATS compares
// each new wildcard with up to a thousand subjects that it remembers, and a reconnect makes as many
// subscriptions as there are channels.
func (c *channel) follow(s *delivery, tok string) error {
	for {
		s.mu.Lock()
		epoch := s.epoch
		if !s.durable() {
			epoch = noEpoch
		}
		if s.channels[tok] != c || c.sub != nil && epochOf(c.sub.Subject) == epoch {
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		sub, err := s.b.nc.ChanSubscribe(s.live(epoch, tok), s.in)
		if err != nil {
			return err
		}
		s.mu.Lock()
		before := sub
		if s.channels[tok] == c {
			before, c.sub = c.sub, sub
		}
		s.mu.Unlock()
		unsubscribe(before)
	}
}

func unsubscribe(sub *natsgo.Subscription) {
	if sub != nil {
		sub.Unsubscribe() //nolint:errcheck // fails only when the connection is closed, which ends it as well
	}
}

// close ends c, which is called tok, if it is still the current one.
func (s *readable) close(tok string, c *channel) {
	s.mu.Lock()
	if s.channels[tok] == c {
		delete(s.channels, tok)
	}
	sub := c.sub
	s.mu.Unlock()
	unsubscribe(sub)
}

// Unsubscribe ends delivery of channel. One message that is being delivered
// right now may still arrive.
func (b *Broker) Unsubscribe(ns *hub.Namespace, channel string) {
	s, err := b.stream(ns)
	if err != nil {
		return
	}
	tok := token(s.opts.Load().Name, channel)
	s.mu.Lock()
	c := s.channels[tok]
	s.mu.Unlock()
	if c != nil {
		s.close(tok, c)
	}
}

// settle waits until the server knows our subscriptions.
func (s *readable) settle(ctx context.Context) error {
	ctx, cancel := s.b.bound(ctx)
	defer cancel()
	err := s.b.nc.FlushWithContext(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return s.b.reads.late(ctx)
	default:
		return fmt.Errorf("%w: %w", hub.ErrUnavailable, err)
	}
}

// A joinRead is what was read of a channel for its snapshot: ms are all of its messages after floor and up to
// the end of the log, which was in.
type joinRead struct {
	in    info
	ms    []stored
	floor uint64
	first uint64 // as Snapshot.FirstRetained
	// proven says that nothing can have been left out; otherwise an auditor looks into suspect.
	proven  bool
	suspect suspect
}

// join takes the snapshot of a subscription that was made. When something may
// have been lost on the way here in the meantime it begins again.
func (s *readable) join(ctx context.Context, c *channel, tok string, tail int, since hub.Positions) (hub.Snapshot, error) {
	for {
		s.mu.Lock()
		faults := s.faults
		s.mu.Unlock()
		r, ok, err := resumes(ctx, s, tok, tail, since)
		if err == nil && !ok {
			r, ok, err = readChannel(ctx, s, tok, tail)
		}
		if err != nil {
			return hub.Snapshot{}, err
		}
		if !ok {
			continue // in the log's new epoch
		}
		in := r.in
		snap := hub.Snapshot{Top: in.top(), Floor: r.floor, FirstRetained: r.first, Messages: s.messages(tok, r.ms, in.epoch)}
		s.mu.Lock()
		same := s.faults == faults && s.epoch == in.epoch && c.before <= in.last && s.verified()
		if same {
			c.joined = true
			c.last = max(c.last, in.last)
			if n := len(r.ms); n > 0 {
				c.prev = max(c.prev, r.ms[n-1].seq)
			}
		}
		s.mu.Unlock()
		if same {
			if !r.proven {
				s.auditor.add(r.suspect)
			}
			return snap, nil
		}
		select {
		case <-ctx.Done():
			return hub.Snapshot{}, s.b.reads.late(ctx)
		case <-s.b.ctx.Done():
			return hub.Snapshot{}, s.b.stateErr()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// readChannel reads the newest messages of the channel called tok, up to tail; ok is false if the log began a
// new epoch meanwhile.
func readChannel(ctx context.Context, s *readable, tok string, tail int) (r joinRead, ok bool, err error) {
	in, err := s.info(ctx)
	if err != nil {
		return r, false, err
	}
	r = joinRead{in: in, floor: in.last}
	if tail > 0 && in.last > 0 {
		if r.ms, r.floor, err = s.tail(ctx, tok, in, tail); err != nil {
			return r, false, err
		}
		if err := s.verifyRead(ctx, in); err != nil && s.epochNow() == in.epoch {
			return r, false, err
		} else if err != nil {
			return r, false, nil
		}
	}
	copied := s.opts.Load().Replicas > 1
	r.proven = !copied && r.floor == 0 || tail == 0 || r.floor == in.last || tok == anyToken
	r.suspect = suspect{tok: tok, since: r.floor, upTo: in.last}
	if in.gone && copied && tok != anyToken { // a replica may have it still
		last, err := s.lastGone(ctx, tok)
		if err != nil {
			return r, false, err
		}
		r.ms = slices.DeleteFunc(r.ms, func(st stored) bool { return st.seq <= last.upTo })
		r.suspect.since = max(r.suspect.since, last.upTo)
	}
	if r.suspect.n = len(r.ms); !copied {
		r.suspect.n = -1
	}
	return r, true, nil
}

// messages turns what was read of the channel called tok into messages.
func (s *logReader) messages(tok string, ms []stored, epoch string) []*hub.Message {
	if len(ms) == 0 {
		return nil
	}
	out := make([]*hub.Message, 0, len(ms))
	name, prev := "", uint64(0)
	for _, st := range ms {
		switch own, ok := s.tokenOf(st.subject); {
		case !ok:
			continue
		case tok == anyToken:
			if name, ok = channelOf(s.opts.Load().Name, own); !ok {
				continue
			}
		case name == "":
			name, _ = channelOf(s.opts.Load().Name, tok)
		}
		out = append(out, s.message(name, st, epoch, prev))
		if tok != anyToken { // where the predecessors of so many channels are is not known
			prev = st.seq
		}
	}
	return out
}

// A reader reads one channel forward, or the whole log.
type reader struct {
	s       *readable
	subject string // empty for the whole log
	least   uint64 // what a replica must have before its silence is believed; 0 is nothing
	// begin and end are from where and how far it has read without a break, all is how
	// many messages that was. The pages that were cut end at cut and had got messages;
	// the last one, which ended with the log, lacked as many as found says.
	begin, end, all uint64
	cut, got, found uint64
}

// reader returns one for the channel called tok. From a replicated stream any
// replica may answer, also one that is behind; the leader is asked for the
// channel's newest message, which an answer must reach.
func (s *readable) reader(ctx context.Context, tok string) (reader, error) {
	r := reader{s: s}
	if tok != anyToken {
		r.subject = s.log + tok
	}
	if s.opts.Load().Replicas <= 1 {
		return r, nil
	}
	return r, r.requestFromLeader(ctx)
}

// requestFromLeader sets what a replica must have.
func (r *reader) requestFromLeader(ctx context.Context) error {
	subject := r.subject
	if subject == "" {
		subject = r.s.log + ">"
	}
	newest, err := r.s.leaderMessage(ctx, map[string]any{"last_by_subj": subject})
	r.least = newest.seq
	return err
}

// next returns up to limit messages after since and how many are left then.
func (r *reader) next(ctx context.Context, since uint64, limit int) ([]stored, uint64, error) {
	for try := 1; ; try++ {
		p, err := r.s.b.reads.get(ctx, r.s.direct(), query{Seq: since + 1, NextFor: r.subject, Batch: min(limit, readBatch)})
		if err != nil {
			return nil, 0, err
		}
		end := since
		if n := len(p.messages); n > 0 {
			end = p.messages[n-1].seq
		}
		if len(p.messages) > 0 && p.pending > 0 || end >= r.least {
			r.note(since, end, &p)
			return p.messages, p.pending, nil
		}
		if try == 50 {
			return nil, 0, fmt.Errorf("%w: a replica of %s is behind", hub.ErrUnavailable, r.s.name())
		}
		if try%5 == 0 { // or the newest message is no more
			if err := r.requestFromLeader(ctx); err != nil {
				return nil, 0, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, 0, r.s.b.reads.late(ctx)
		case <-time.After(time.Duration(try) * time.Millisecond):
		}
	}
}

// tail returns the newest messages of a channel, up to n, none after in.last,
// and the floor under them.
func (s *readable) tail(ctx context.Context, tok string, in info, n int) ([]stored, uint64, error) {
	r, err := s.reader(ctx, tok)
	if err != nil {
		return nil, 0, err
	}
	ms, pending, err := r.next(ctx, 0, n)
	if err != nil {
		return nil, 0, err
	}
	total := len(ms) + int(pending)
	if pending > 0 && total > n {
		since, err := r.seek(ctx, ms[len(ms)-1].seq, in.last, int(pending), n)
		if err != nil {
			return nil, 0, err
		}
		if since > ms[len(ms)-1].seq {
			ms = ms[:0]
		}
		ms, err = r.rest(ctx, ms, since, in.last, n)
		if err != nil {
			return nil, 0, err
		}
	} else if pending > 0 {
		if ms, err = r.rest(ctx, ms, ms[len(ms)-1].seq, in.last, n); err != nil {
			return nil, 0, err
		}
	}
	if lacking, err := r.lacking(ctx); err != nil || lacking { // of those that are there
		return nil, in.last, err // History reports them where they are needed
	}
	upTo, _ := slices.BinarySearchFunc(ms, in.last+1, func(st stored, seq uint64) int { return cmpSeq(st.seq, seq) })
	ms = ms[:upTo]
	if len(ms) > n {
		ms = ms[len(ms)-n:]
	}
	floor := uint64(0)
	switch {
	case total <= n:
	case len(ms) == 0:
		floor = in.last
	default:
		floor = ms[0].seq - 1
	}
	if tok == anyToken && len(ms) > 0 {
		// What is missing between them was there once: History reports it where it is needed.
		floor = max(floor, lastHole(ms, ms[0].seq-1, in.last))
	}
	return ms, floor, nil
}

// lastHole returns the highest sequence with since < it <= upTo that is not among
// ms, which are all there is of the whole log in between; 0 if none is missing.
func lastHole(ms []stored, since, upTo uint64) uint64 {
	for i := len(ms) - 1; i >= 0 && upTo > since; i-- {
		switch seq := ms[i].seq; {
		case seq == upTo:
			upTo--
		case seq < upTo:
			return upTo
		}
	}
	if upTo > since {
		return upTo
	}
	return 0
}

func cmpSeq(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// rest reads on from since to upTo, appends to ms and keeps a little more than the newest n.
func (r *reader) rest(ctx context.Context, ms []stored, since, upTo uint64, n int) ([]stored, error) {
	for since < upTo {
		more, pending, err := r.next(ctx, since, readBatch)
		if err != nil {
			return nil, err
		}
		if len(more) == 0 {
			break
		}
		ms = append(ms, more...)
		if len(ms) > 2*n+readBatch {
			ms = append(ms[:0], ms[len(ms)-n-readBatch:]...)
		}
		since = more[len(more)-1].seq
		if pending == 0 {
			break
		}
	}
	return ms, nil
}

// seek returns a place not before lo after which at least n messages of the
// channel lie up to hi, if pending of them lie after lo, and not many more. It
// requests the message after a guessed place: the answer says how many follow.
func (r reader) seek(ctx context.Context, lo, hi uint64, pending, n int) (uint64, error) {
	high, few := hi, 0
	for range 16 {
		if pending <= 2*n+64 || high <= lo+1 {
			break
		}
		want := float64(n+n/4+16-few) / float64(pending-few)
		guess := high - min(uint64(float64(high-lo)*want)+1, high-lo-1)
		p, err := r.s.b.reads.get(ctx, r.s.direct(), query{Seq: guess + 1, NextFor: r.subject, Batch: 1})
		if err != nil {
			return 0, err
		}
		count := 0
		if len(p.messages) > 0 && p.messages[0].seq <= hi {
			count = int(p.pending) + 1
		}
		if count >= n+16 || count > few && count >= pending {
			lo, pending = guess, count
		} else {
			high, few = guess, count
		}
	}
	return lo, nil
}
