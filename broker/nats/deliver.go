package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/hub"
)

// A stream is one namespace: its log in NATS and the delivery of it here.
type stream struct {
	// Fixed.
	b       *Broker
	ns      hub.Namespace
	deliver func(*hub.Message)
	in      chan *natsgo.Msg // all subscriptions of the namespace
	wake    chan struct{}    // holds a token when the log should be checked

	// The looks at the stream that are under way.
	flights struct {
		sync.Mutex
		wg     sync.WaitGroup
		next   *flight
		flying bool
		over   bool // no more of them
	}

	// Owned by run.
	before  ending    // where the log ended some time ago
	now     ending    // where it ended after that
	suspect time.Time // since when the log seems to end too early; zero if it does not

	// checked is the connection generation in which the log was last verified.
	checked atomic.Uint64

	mu       sync.Mutex
	epoch    string
	former   map[string]bool // epochs that are over
	high     uint64          // the highest sequence seen in epoch
	acked    uint64          // the highest sequence acknowledged to us in epoch
	faults   uint64          // counts the times that messages may have been lost on the way here
	channels map[string]*channel
}

// A channel is one that is subscribed here.
type channel struct {
	name   string
	sub    *natsgo.Subscription
	joined bool // its Subscribe is over

	// last is such that everything up to it was delivered, or is covered by the
	// snapshot. prev is the channel's newest message that we know, 0 if none.
	last, prev uint64
	// before is the predecessor of the first message that came before joined.
	before uint64
	// quiet says that nothing came since the last check of the quiet channels.
	quiet bool
}

func newStream(b *Broker, ns hub.Namespace, deliver func(*hub.Message)) *stream {
	return &stream{
		b: b, ns: ns, deliver: deliver,
		in:       make(chan *natsgo.Msg, min(max(256<<20/ns.MaxMessageBytes, 2048), 16384)),
		wake:     make(chan struct{}, 1),
		former:   map[string]bool{},
		channels: map[string]*channel{},
	}
}

func (s *stream) durable() bool { return s.ns.Durability != hub.None }

// verified reports whether the log was checked since the last reconnect.
func (s *stream) verified() bool {
	return !s.durable() || s.checked.Load() == s.b.generation.Load()
}

// nudge has the log checked soon.
func (s *stream) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// subject returns where a message of channel is published.
func (s *stream) subject(channel string) string {
	if s.durable() {
		return s.b.cfg.Prefix + ".log." + s.ns.Name + "." + token(s.ns.Name, channel)
	}
	return s.live(noEpoch, token(s.ns.Name, channel))
}

func (s *stream) live(epoch, token string) string {
	return s.b.cfg.Prefix + ".live." + s.ns.Name + "." + epoch + "." + token
}

// listen subscribes to the news of the stream itself.
func (s *stream) listen() error {
	if !s.durable() || s.b.server != nil && s.b.cfg.Cluster.Name == "" {
		return nil
	}
	_, err := s.b.nc.ChanSubscribe(leaderChanged+s.name(), s.in)
	return err
}

const leaderChanged = "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."

func (s *stream) epochNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

func (s *stream) mark() mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return mark{Epoch: s.epoch, Last: s.high}
}

// adopt makes in's epoch the current one. What is delivered next is what was
// stored since that epoch began.
func (s *stream) adopt(in info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.epoch == s.epoch || s.former[in.epoch] {
		return
	}
	if s.epoch != "" {
		s.former[s.epoch] = true
		s.b.log.Warn("log has a new epoch", "namespace", s.ns.Name, "epoch", in.epoch, "base", in.base)
		s.faults++
	}
	s.epoch, s.high, s.acked = in.epoch, in.last, in.base
	for _, c := range s.channels {
		c.last, c.prev = in.base, 0
	}
}

// seen takes note of how far the log had come.
func (s *stream) seen(in info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.epoch == s.epoch {
		s.high = max(s.high, in.last)
	}
}

// acknowledged turns a sequence into a position. A sequence that is not above
// all seen ones and is no duplicate is of another life of the log than the one
// we know: the message is stored, but where cannot be said.
func (s *stream) acknowledged(seq uint64, duplicate bool) (hub.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case duplicate && seq <= s.high:
	case seq > s.acked:
		s.acked = seq
		s.high = max(s.high, seq)
	case !duplicate:
		s.checked.Store(0)
		s.nudge()
		return hub.Position{}, fmt.Errorf("%w: the log of namespace %q was replaced", hub.ErrUnavailable, s.ns.Name)
	}
	return hub.Position{Epoch: s.epoch, Offset: seq}, nil
}

// sweepEvery is how often the channels on which nothing came are compared with
// the stream. A server alone in this process loses nothing on the way; there the
// check only moves the point from which a full queue would be healed.
func (s *stream) sweepEvery() time.Duration {
	if s.b.server != nil && s.b.cfg.Cluster.Name == "" {
		return 10 * time.Second
	}
	return 3 * time.Second
}

// run is the namespace's goroutine: it alone calls deliver.
func (s *stream) run() {
	sweep := time.NewTicker(s.sweepEvery())
	defer sweep.Stop()
	defer s.land()
	for {
		if !s.verified() {
			s.heal(true)
		}
		select {
		case <-s.b.ctx.Done():
			return
		case <-s.wake:
			if s.durable() {
				s.heal(true)
			}
		case <-sweep.C:
			if s.durable() {
				s.heal(false)
			}
		case m := <-s.in:
			// Only this goroutine empties the queue: if it was full just before m
			// was taken, then the client library may have dropped what came next.
			full := len(s.in) >= cap(s.in)-1
			switch {
			case !s.durable():
				s.forward(m)
			case !s.verified():
				// m may be of the new connection, and something before it missing.
			case strings.HasPrefix(m.Subject, leaderChanged):
				s.heal(true)
			default:
				s.receive(m)
			}
			if full {
				s.overflow()
			}
		}
	}
}

// overflow deals with a queue that was full.
func (s *stream) overflow() {
	s.b.log.Debug("delivery fell behind", "namespace", s.ns.Name)
	if s.durable() {
		s.heal(true)
	}
}

// forward delivers a message of a namespace without a log.
func (s *stream) forward(m *natsgo.Msg) {
	s.mu.Lock()
	c := s.channels[lastToken(m.Subject)]
	s.mu.Unlock()
	if c == nil {
		return
	}
	at, err := strconv.ParseInt(m.Header.Get(headerTime), 10, 64)
	if err != nil {
		at = time.Now().UnixMilli()
	}
	s.deliver(&hub.Message{Channel: c.name, Key: unquote(m.Header.Get(headerKey)), Data: m.Data, Time: at})
}

// receive delivers a republished message, and before it what is missing.
func (s *stream) receive(m *natsgo.Msg) {
	st, err := parseStored(m)
	if err != nil {
		s.b.log.Warn("message without its place", "namespace", s.ns.Name, "err", err)
		return
	}
	if epoch := epochOf(m.Subject); epoch != s.epochNow() {
		s.mu.Lock()
		former := s.former[epoch]
		s.mu.Unlock()
		if !former {
			s.heal(true) // which delivers m as well
		}
		return
	}
	prev, _ := strconv.ParseUint(m.Header.Get("Nats-Last-Sequence"), 10, 64)
	tok := lastToken(m.Subject)
	s.mu.Lock()
	c := s.channels[tok]
	if c == nil || st.seq <= c.last {
		s.mu.Unlock()
		return
	}
	hole := prev > c.last
	if !c.joined {
		switch {
		case c.last == 0:
			c.before = prev
		case hole:
			s.faults++ // its Subscribe begins again
		}
		hole = false
	}
	s.mu.Unlock()
	if !hole || s.fill(tok, c, prev) {
		s.hand(c, st, prev)
	}
}

// hand delivers st on c, if it was not delivered yet.
func (s *stream) hand(c *channel, st stored, prev uint64) {
	s.mu.Lock()
	if st.seq <= c.last || s.channels[lastToken(st.subject)] != c {
		s.mu.Unlock()
		return
	}
	if prev == 0 {
		prev = c.prev
	}
	c.last, c.prev, c.quiet = st.seq, st.seq, false
	s.high = max(s.high, st.seq)
	m := s.message(c.name, st, s.epoch, prev)
	s.mu.Unlock()
	s.deliver(m)
}

func (s *stream) message(channel string, st stored, epoch string, prev uint64) *hub.Message {
	return &hub.Message{
		Channel: channel, Key: st.key, Data: st.data, Time: st.time, Epoch: epoch, Offset: st.seq, Prev: prev,
	}
}

// fill delivers what is missing on c up to and including the message at upTo,
// or as much of it as retention left. It reports false when the connection was
// lost: then all will be checked anyway.
func (s *stream) fill(tok string, c *channel, upTo uint64) bool {
	subject := s.b.cfg.Prefix + ".log." + s.ns.Name + "." + tok
	for try := 0; s.b.ctx.Err() == nil && s.verified(); try++ {
		s.mu.Lock()
		since := c.last
		s.mu.Unlock()
		var err error
		for since < upTo {
			var p page
			p, err = s.b.reads.get(s.b.ctx, s.name(), query{Seq: since + 1, NextFor: subject, Batch: readBatch})
			if err != nil || len(p.messages) == 0 {
				break
			}
			for _, st := range p.messages {
				if since = st.seq; st.seq <= upTo {
					s.hand(c, st, 0)
				}
			}
		}
		if since >= upTo {
			return true
		}
		if err == nil && (s.ns.Replicas <= 1 || try >= 20) {
			return true // the copies that there are do not have it
		}
		s.pause(time.Duration(min(try, 20)) * 5 * time.Millisecond)
	}
	return false
}

// pause waits for d or the end.
func (s *stream) pause(d time.Duration) {
	select {
	case <-s.b.ctx.Done():
	case <-time.After(d):
	}
}

// refused publishes what the stream's leader must refuse and waits for that.
func (s *stream) refused(ctx context.Context) error {
	m := &natsgo.Msg{
		Subject: s.b.cfg.Prefix + ".log." + s.ns.Name + ".fence",
		Header:  natsgo.Header{natsgo.ExpectedStreamHdr: {"none"}},
	}
	ctx, cancel := s.b.bound(ctx)
	defer cancel()
	for {
		_, err := s.b.ask(ctx, m)
		if !errors.Is(err, natsgo.ErrNoResponders) || ctx.Err() != nil {
			return err
		}
		// There is no leader right now, no stream, or the news of it is on its way.
		if _, err := s.look(ctx); isCode(err, codeStreamNotFound) {
			return err
		}
		s.pause(10 * time.Millisecond)
	}
}
