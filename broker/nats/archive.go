package nats

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

var _ hub.Archive = (*Broker)(nil)

// An index says where in a namespace's log the messages with an id may be. It is
// made by the first Lookup, which reads the log once, and brought up to date by
// each later one; between them it costs nothing.
//
// It takes 17 bytes per id in a map of Go, which makes 20 to 40 by the map's load.
// It may hold ids whose messages are no more, but not more of both kinds than twice
// the messages in the log and slack.
type index struct {
	// lock holds a token while the rest is not in use.
	lock chan struct{}
	seed maphash.Seed

	epoch string
	next  uint64 // the first sequence that was not read
	// first is the earliest sequence by the hash of the id, more are the others of
	// the same hash, in order: of an id used again, or of another with the same.
	first map[uint64]uint64
	more  map[uint64][]uint64
	count int // sequences in both
}

// slack is how many ids of messages that are no more an index may hold anyway.
const slack = 16 << 10

func newIndex() index { return index{lock: make(chan struct{}, 1), seed: maphash.MakeSeed()} }

func (x *index) reset(epoch string) {
	x.epoch, x.next, x.count = epoch, 1, 0
	x.first, x.more = map[uint64]uint64{}, map[uint64][]uint64{}
}

func (x *index) hash(id string) uint64 { return maphash.String(x.seed, id) }

// add notes that the message at seq, which comes after all others, has id.
func (x *index) add(id string, seq uint64) {
	h := x.hash(id)
	if _, ok := x.first[h]; ok {
		x.more[h] = append(x.more[h], seq)
	} else {
		x.first[h] = seq
	}
	x.count++
}

// at returns where id may be, oldest first.
func (x *index) at(id string) []uint64 {
	h := x.hash(id)
	seq, ok := x.first[h]
	if !ok {
		return nil
	}
	return append([]uint64{seq}, x.more[h]...)
}

// drop forgets seq, the earliest with the hash of id.
func (x *index) drop(id string, seq uint64) {
	h := x.hash(id)
	if x.first[h] != seq {
		return
	}
	x.count--
	switch rest := x.more[h]; len(rest) {
	case 0:
		delete(x.first, h)
	case 1:
		x.first[h] = rest[0]
		delete(x.more, h)
	default:
		x.first[h], x.more[h] = rest[0], rest[1:]
	}
}

// prune forgets what came before oldest.
func (x *index) prune(oldest uint64) {
	for h, rest := range x.more {
		if x.first[h] >= oldest {
			continue
		}
		kept := slices.IndexFunc(rest, func(seq uint64) bool { return seq >= oldest })
		if kept < 0 { // all of them go, first below
			x.count -= len(rest)
			delete(x.more, h)
			continue
		}
		x.count -= kept + 1
		x.first[h] = rest[kept]
		if rest = slices.Clone(rest[kept+1:]); len(rest) == 0 {
			delete(x.more, h)
		} else {
			x.more[h] = rest
		}
	}
	for h, seq := range x.first {
		if seq < oldest {
			delete(x.first, h)
			x.count--
		}
	}
}

// Lookup finds a message by the id that its publisher gave it. The first one in
// a namespace reads the whole log, later ones what was stored since the last.
func (b *Broker) Lookup(ctx context.Context, ns *hub.Namespace, id string) (hub.Position, error) {
	s, err := b.stream(ns)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return hub.Position{}, err
	}
	if !s.durable() || id == "" {
		return hub.Position{}, fmt.Errorf("%w: %.60q", hub.ErrNoMessage, id)
	}
	in, err := s.info(ctx)
	if err != nil {
		return hub.Position{}, fmt.Errorf("look up %.60q: %w", id, err)
	}
	seq, err := s.lookup(ctx, in, id)
	if err == nil && s.epochNow() != in.epoch {
		err = fmt.Errorf("%w: the log was replaced meanwhile", hub.ErrUnavailable)
	}
	if err != nil {
		return hub.Position{}, fmt.Errorf("look up %.60q: %w", id, err)
	}
	return hub.Position{Epoch: in.epoch, Offset: seq}, nil
}

// lookup returns where id is in the log, whose state was in.
func (s *readable) lookup(ctx context.Context, in info, id string) (uint64, error) {
	var found []uint64
	err := s.index.use(ctx, s, func(x *index) (err error) {
		if err = x.update(ctx, s, in); err == nil {
			found = x.at(id)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, seq := range found {
		a, ok, err := s.attributesAt(ctx, seq)
		switch {
		case err != nil:
			return 0, err
		case ok && a != nil && a.ID == id:
			return seq, nil
		case !ok:
			err := s.index.use(ctx, s, func(x *index) error {
				if x.epoch == in.epoch {
					x.drop(id, seq)
				}
				return nil
			})
			if err != nil {
				return 0, err
			}
		}
	}
	return 0, hub.ErrNoMessage
}

// use calls f with exclusive use of the index.
func (x *index) use(ctx context.Context, s *readable, f func(*index) error) error {
	select {
	case x.lock <- struct{}{}:
		defer func() { <-x.lock }()
		return f(x)
	case <-ctx.Done():
		return s.b.reads.late(ctx)
	case <-s.b.ctx.Done():
		return s.b.stateErr()
	}
}

// update takes in what was stored up to in.
func (x *index) update(ctx context.Context, s *readable, in info) error {
	if x.epoch != in.epoch {
		x.reset(in.epoch)
	}
	if x.next > in.last {
		return nil
	}
	r := reader{s: s}
	if s.opts.Load().Replicas > 1 {
		if err := r.requestFromLeader(ctx); err != nil {
			return err
		}
	}
	if err := x.read(ctx, r, in.last); err != nil {
		return err
	}
	if m := int(in.messages); x.count > 2*m+slack {
		x.prune(in.first)
		if x.count > m+m/2+slack { // what is no more is between what is
			x.reset(in.epoch)
			return x.read(ctx, r, in.last)
		}
	}
	return nil
}

// read takes in the log up to upTo.
func (x *index) read(ctx context.Context, r reader, upTo uint64) error {
	for x.next <= upTo {
		ms, pending, err := r.next(ctx, x.next-1, readBatch)
		if err != nil {
			return err
		}
		for _, st := range ms {
			if _, ok := r.s.tokenOf(st.subject); ok && len(st.attributes) > 0 {
				if a := r.s.attributes(st.attributes); a != nil && a.ID != "" {
					x.add(a.ID, st.seq)
				}
			}
			x.next = st.seq + 1
		}
		if pending == 0 || len(ms) == 0 {
			x.next = max(x.next, upTo+1)
		}
	}
	return nil
}

// attributesAt returns those of the message at seq; ok is false if it was removed.
func (s *logReader) attributesAt(ctx context.Context, seq uint64) (a *hub.Attributes, ok bool, err error) {
	m, _, err := s.messageAt(ctx, seq)
	if err != nil || m == nil {
		return nil, false, err
	}
	_, b := unpack(m)
	return s.attributes(b), true, nil
}

// Where a channel was removed, the log holds a message on goneToken and the
// channel's token: it says up to where. It is not delivered.
const goneToken = "gone."

// Remove deletes what is retained of channel, on all nodes. What is published
// meanwhile may stay.
func (b *Broker) Remove(ctx context.Context, ns *hub.Namespace, channel string) error {
	s, err := b.stream(ns)
	if err == nil && (channel == "" || hub.IsWhole(channel)) {
		err = fmt.Errorf("%w: %q is none", hub.ErrBadChannel, channel)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil || !s.durable() {
		return err
	}
	if b.room != nil && b.room.shut.Load() {
		return b.room.refusal()
	}
	if err := s.remove(ctx, token(s.opts.Load().Name, channel)); err != nil {
		return fmt.Errorf("remove %q: %w", channel, err)
	}
	return nil
}

// remove says first that the messages are gone and then removes them: one that is
// said to be gone and is still there does no harm.
func (s *readable) remove(ctx context.Context, tok string) error {
	r := reader{s: s, subject: s.log + tok}
	if err := r.requestFromLeader(ctx); err != nil || r.least == 0 {
		return err
	}
	in, err := s.info(ctx)
	before := in.gone
	for err == nil && !in.gone {
		if err = s.put(ctx, "UPDATE", s.config(in.epoch, in.base, in.least, true)); err == nil {
			in, err = s.info(ctx)
		}
	}
	mark := gone{upTo: r.least, whole: in.whole}
	if err == nil && before && mark.whole {
		var last gone
		last, err = s.lastGone(ctx, anyToken)
		mark.whole = last.whole
	}
	if err != nil {
		return err
	}
	ctx, cancel := s.b.bound(ctx)
	defer cancel()
	answer, err := s.b.requestWithRetry(ctx, &natsgo.Msg{Subject: s.into() + goneToken + tok, Data: []byte(mark.String())})
	if err != nil {
		return err
	}
	seq, _, err := parseAck(answer.Data)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.epoch == in.epoch {
		s.high = max(s.high, seq)
	}
	s.mu.Unlock()
	var a struct{ Success bool }
	return s.request(ctx, "STREAM.PURGE."+s.name(), map[string]any{"filter": s.log + tok, "seq": r.least + 1}, &a)
}

// A gone is what the message on goneToken says.
type gone struct {
	upTo uint64 // the channel's last sequence that was removed; 0 if none was
	// whole says that until then neither age nor bytes had removed anything.
	whole bool
}

func (g gone) String() string {
	if g.whole {
		return strconv.FormatUint(g.upTo, 10) + wholeMark
	}
	return strconv.FormatUint(g.upTo, 10)
}

const wholeMark = " whole"

func parseGone(b string) (g gone, err error) {
	b, g.whole = strings.CutSuffix(b, wholeMark)
	g.upTo, err = strconv.ParseUint(b, 10, 64)
	return g, err
}

// lastGone returns the newest one of the channel called tok, or of all channels.
func (s *logReader) lastGone(ctx context.Context, tok string) (gone, error) {
	var a struct {
		Message struct {
			Data []byte `json:"data"`
		} `json:"message"`
	}
	err := s.request(ctx, "STREAM.MSG.GET."+s.name(), map[string]string{"last_by_subj": s.log + goneToken + tok}, &a)
	if isCode(err, codeNoMessage) {
		return gone{}, nil
	}
	if err != nil {
		return gone{}, err
	}
	g, err := parseGone(string(a.Message.Data))
	if err != nil {
		return gone{}, fmt.Errorf("%w: what was removed is said as %.40q", hub.ErrUnavailable, a.Message.Data)
	}
	return g, nil
}

// Bus connects the nodes. It works once Start has returned.
func (b *Broker) Bus() hub.Bus { return b.bus }
