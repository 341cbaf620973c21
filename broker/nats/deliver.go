package nats

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// A logPlace is where a namespace's log is in NATS, by its names and by its site.
type logPlace struct {
	b    *Broker
	opts atomic.Pointer[hub.Namespace] // replaced by Change, but for name and durability
	log  string                        // what the subjects in the log begin with; ends with a dot
	lead atomic.Pointer[lead]          // nil without two sites
}

// logOptions are those of a namespace, and where its log is.
type logOptions struct{ logPlace }

// A logReader reads single messages of a log, of its leader where any replica may be behind.
type logReader struct{ logOptions }

// A storedLog is the JetStream stream that holds a namespace's log, as its leader has it.
type storedLog struct {
	logReader
	clock atomic.Int64 // how much the clock of the log's leader is ahead, in ns
	// unwritten is set while the disk is too full to write the log's epoch.
	unwritten atomic.Pointer[unwritten]
	unread    atomic.Uint64         // bytes that the log's server could not read, as the log knows
	sited     atomic.Pointer[sited] // as the log was last seen; nil without two sites
	crossing  atomic.Bool           // what is left of an epoch is read at the site that took over
}

// A delivery is what the channels of a namespace that are subscribed here have got of
// its log.
type delivery struct {
	storedLog

	// Fixed.
	deliver func(*hub.Message)
	in      chan *natsgo.Msg // all subscriptions of the namespace
	wake    chan struct{}    // holds a token when the log should be checked

	// Owned by run.
	received numbers // with durability none, since anyToken was subscribed

	// checked is the connection generation in which the log was last verified.
	checked atomic.Uint64
	repairs repairs

	mu       sync.Mutex
	epoch    string
	base     uint64              // what is after it is delivered as of epoch
	former   map[string]bool     // epochs that are over
	high     uint64              // the highest sequence seen in epoch
	acked    uint64              // the highest sequence acknowledged to us in epoch
	counted  count               // the log when it was last looked at
	counter  counter             // who counted it
	faults   uint64              // counts the times that messages may have been lost on the way here
	channels map[string]*channel // by token; the whole namespace at anyToken
}

// A readable is a log with what is read of it for those who subscribe and resume.
type readable struct {
	delivery

	// Fixed.
	index index

	audits  audits
	auditor *auditor

	// The looks at the stream that are under way.
	flights struct {
		sync.Mutex
		wg     sync.WaitGroup
		next   *flight
		flying bool
		over   bool // no more of them

		// The reads for channels whose subscribers resume, and what the last one has read.
		resume   *resumption
		resuming bool
		kept     *stretch
	}
}

// A stream is one namespace: its log in NATS and the delivery of it here, in which it
// finds and fetches what was lost on the way.
type stream struct {
	readable

	// Owned by run.
	suspect time.Time // since when the log seems to end too early; zero if it does not

	site    *siteLog                   // nil without two sites
	keys    atomic.Pointer[storedKeys] // those that the log's server does not know; nil when they do not matter
	recent  recentKeys
	handed  *handedKeys // of another process, until the log is open; prepare's
	bridge  bridge
	storage storage
	share   share
	// doubted is since when the log seems to end too early, in Unix nanoseconds; 0 if
	// it does not.
	doubted atomic.Int64
}

// A channel is one that is subscribed here, or the whole namespace. For that last
// is such that everything of all channels up to it was delivered, and before is
// one less than the first that came.
type channel struct {
	name   string
	sub    *natsgo.Subscription
	joined bool // its Subscribe is over

	// last is such that everything up to it was delivered, or is covered by the
	// snapshot. prev is the channel's newest message that we know, 0 if none.
	last, prev uint64
	// checked is such that the log has nothing of the channel after last and up to it,
	// as its leader saw it. It only spares reading: it is no proof of a delivery.
	checked uint64
	// before is the predecessor of the first message that came before joined.
	before uint64
	// quiet says that nothing came since the last check of the quiet channels.
	quiet bool
}

func newStream(b *Broker, ns hub.Namespace, deliver func(*hub.Message)) *stream {
	s := &stream{readable: readable{
		delivery: delivery{
			storedLog: storedLog{logReader: logReader{logOptions{logPlace{b: b, log: b.cfg.Prefix + ".log." + ns.LogName() + "."}}}},
			deliver:   deliver,
			in:        make(chan *natsgo.Msg, min(max(256<<20/ns.MaxMessageBytes, 2048), 16384)),
			wake:      make(chan struct{}, 1),
			former:    map[string]bool{},
			channels:  map[string]*channel{},
		},
		index: newIndex(),
	}}
	s.opts.Store(&ns)
	s.handed = b.handed[ns.LogName()]
	delete(b.handed, ns.LogName())
	s.site = newSiteLog(s)
	s.auditor = newAuditor(s)
	return s
}

func (s *logOptions) durable() bool { return s.opts.Load().Durability != hub.None }

// verified reports whether the log was checked since the last reconnect.
func (s *delivery) verified() bool {
	return !s.durable() || s.checked.Load() == s.b.generation.Load()
}

// nudge has the log checked soon.
func (s *delivery) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// subject returns where a message of channel is published while l leads the log.
func (s *logOptions) subject(l *lead, channel string) string {
	if s.durable() {
		return s.intoLed(l) + token(s.opts.Load().Name, channel)
	}
	return s.live(noEpoch, token(s.opts.Load().Name, channel))
}

func (s *logOptions) live(epoch, token string) string {
	return s.b.cfg.Prefix + ".live." + s.opts.Load().LogName() + "." + epoch + "." + token
}

// listen subscribes to the news of the stream itself.
func (s *stream) listen() error {
	if !s.durable() || s.b.server != nil && s.b.cfg.Cluster.Name == "" {
		return nil
	}
	for _, subject := range []string{leaderChanged + s.name(), s.epochs()} {
		if _, err := s.b.nc.ChanSubscribe(subject, s.in); err != nil {
			return err
		}
	}
	// What waits for a leader does not wait for what is in the queue.
	_, err := s.b.nc.Subscribe(leaderChanged+s.name(), s.b.elections.note)
	return err
}

// epochs returns where the node that gives the log a new epoch says so to the others, whose
// channels follow the one before. One that does not get it finds out with its next sweep.
func (s *logOptions) epochs() string { return s.b.cfg.Prefix + ".epoch." + s.opts.Load().LogName() }

// announce sends the log's new epoch to the other nodes.
func (s *logOptions) announce(epoch string) {
	_ = s.b.nc.Publish(s.epochs(), []byte(epoch)) // without a connection the others find out as well
}

// consumed reports whether c had a token, which it consumes.
func consumed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

const leaderChanged = "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."

func (s *delivery) epochNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

func (s *delivery) mark() mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return mark{Epoch: s.epoch, Last: s.high, Count: s.counted}
}

// adopt makes in's epoch the current one, which all channels follow then. Delivered next is what was stored since it
// began; of a log that continues the epoch before, what comes after that, though an epoch between the two had it. It
// reports false if in is of a site that is not followed.
func (s *delivery) adopt(in info) bool {
	s.mu.Lock()
	if other := s.lead.Load() != in.lead; other || in.epoch == s.epoch || s.former[in.epoch] {
		s.mu.Unlock()
		return !other
	}
	from := in.base
	if st := s.sited.Load(); st != nil && st.epoch == in.epoch {
		if upTo, ok := st.reaches(s.epoch); ok {
			from = min(from, upTo)
		}
	}
	if s.epoch != "" {
		s.former[s.epoch] = true
		s.b.log.Warn("log has a new epoch", "namespace", s.opts.Load().LogName(), "epoch", in.epoch, "base", in.base)
		s.faults++
	}
	s.epoch, s.base, s.high, s.acked = in.epoch, from, in.last, in.base
	s.count(in)
	for _, c := range s.channels {
		c.last, c.prev, c.checked = from, 0, from
	}
	channels := maps.Clone(s.channels)
	if len(channels) > 0 {
		s.nudge() // before a message of the epoch is looked at: what is missing is missing on all of them
	}
	s.mu.Unlock()
	for tok, c := range channels {
		if err := c.follow(s, tok); err != nil { // the connection is closed for good
			s.b.log.Debug("channel cannot be followed into a new epoch", "channel", c.name, "err", err)
		}
	}
	if len(channels) > 0 {
		s.nudge() // for what was stored before they followed it
	}
	return true
}

// seen takes note of how far the log had come.
func (s *delivery) seen(in info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.epoch == s.epoch {
		s.high = max(s.high, in.last)
		if s.counter == in.counter(s.b.generation.Load()) {
			s.count(in)
		}
	}
}

// acknowledged turns a sequence into a position. A sequence that is not above
// all seen ones and is no duplicate is of another life of the log than the one
// we know: the message is stored, but where cannot be said.
func (s *delivery) acknowledged(seq uint64, duplicate bool) (hub.Position, error) {
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
		return hub.Position{}, fmt.Errorf("%w: the log of namespace %s was replaced", hub.ErrUnavailable, s.opts.Load().Title())
	}
	return hub.Position{Epoch: s.epoch, Offset: seq}, nil
}

// sweepEvery is how often the channels on which nothing came are compared with
// the stream. A server alone in this process loses nothing on the way; there the
// check only moves the point from which a full queue would be healed.
func (s *logPlace) sweepEvery() time.Duration {
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
	if s.spreads() {
		s.b.wg.Go(spread{s}.run)
	}
	if s.site != nil {
		s.b.wg.Go(s.site.run)
		s.b.wg.Go(func() { confirms(s.site) })
	}
	if s.durable() {
		s.b.wg.Go(s.auditor.run)
	}
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
		case m := <-s.auditor.found:
			s.deliver(m)
		case <-sweep.C:
			if s.durable() {
				s.heal(false)
				s.repairs.report(s.b.log, s.opts.Load().LogName())
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
				s.b.out.resend(s)
				s.heal(true)
			case m.Subject == s.epochs():
				if string(m.Data) != s.epochNow() {
					s.heal(true)
				}
			case consumed(s.wake):
				s.heal(true) // which delivers m as well, and before it what all channels miss
			default:
				s.receive(m)
			}
			cross(s)
			if full {
				s.overflow()
			}
		}
	}
}

// overflow deals with a queue that was full.
func (s *stream) overflow() {
	s.b.log.Debug("delivery fell behind", "namespace", s.opts.Load().LogName())
	if s.durable() {
		s.heal(true)
	}
}

// forward delivers a message of a namespace without a log. With the namespace and
// the channel both subscribed it comes twice. The messages of one node come in the
// order of their numbers, so the second one is known by its number.
func (s *delivery) forward(m *natsgo.Msg) {
	tok := lastToken(m.Subject)
	s.mu.Lock()
	c, whole := s.channels[tok], s.channels[anyToken]
	s.mu.Unlock()
	clock, from, _ := strings.Cut(m.Header.Get(headerTime), " ")
	// Once needed the numbers are kept: second copies come also after an Unsubscribe.
	if node, number, ok := strings.Cut(from, "."); ok && (whole != nil || s.received != nil) {
		n, err := strconv.ParseUint(number, 36, 64)
		if err == nil && !s.received.isNew(node, n) {
			return
		}
	}
	var name string
	switch {
	case c != nil:
		name = c.name
	case whole == nil:
		return
	default:
		var ok bool
		if name, ok = channelOf(s.opts.Load().Name, tok); !ok {
			return
		}
	}
	at, err := strconv.ParseInt(clock, 10, 64)
	if err != nil {
		at = time.Now().UnixMilli()
	}
	data, attributes := unpack(m)
	s.deliver(&hub.Message{
		Channel: name, Key: unquote(m.Header.Get(headerKey)), Data: data, Attributes: s.attributes(attributes), Time: at,
	})
}

// maxReceived bounds the nodes, with every start a new one, whose numbers are remembered.
const maxReceived = 1024

// numbers are the last ones that were received of each node's messages.
type numbers map[string]*uint64

// isNew reports whether node's n was not received before.
func (s *numbers) isNew(node string, n uint64) bool {
	if last := (*s)[node]; last != nil {
		rises := n > *last
		*last = max(*last, n)
		return rises
	}
	if *s == nil || len(*s) >= maxReceived {
		*s = numbers{}
	}
	(*s)[strings.Clone(node)] = &n
	return true
}

// receive delivers a republished message, and before it what is missing.
func (s *stream) receive(m *natsgo.Msg) {
	st, err := parseStored(m)
	if err != nil {
		s.b.log.Warn("message without its place", "namespace", s.opts.Load().LogName(), "err", err)
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
	if !s.site.await(st.seq) {
		return // the site that took over has it, or it was acknowledged to no client
	}
	prev, _ := strconv.ParseUint(m.Header.Get("Nats-Last-Sequence"), 10, 64)
	tok := lastToken(m.Subject)
	s.mu.Lock()
	c := s.channels[tok]
	upTo := s.hole(c, st.seq, prev)
	s.mu.Unlock()
	if upTo == 0 || s.fill(tok, c, upTo) {
		s.hand(st, prev, st.seq-1, true)
	}
}

// hole looks for one on c, which may be nil, before the message at seq, which says
// that prev came before it. It returns up to where messages are missing, or 0.
// s.mu is held.
func (s *delivery) hole(c *channel, seq, prev uint64) (upTo uint64) {
	switch {
	case c == nil || seq <= c.last:
	case c.joined && prev > c.last:
		return prev
	case c.joined:
	case c.last == 0:
		c.before = prev
	case prev > c.last:
		s.faults++ // its Subscribe begins again
	}
	return 0
}

// hand delivers st, if a subscriber wants it that did not get it yet; prev is its
// predecessor, 0 if not known. One that has it as a member of the whole namespace
// gets first what is missing before it there, but for what lies after since: that
// was handed already, or is not there. With live it is also for those whose
// Subscribe is under way. It reports false when the connection was lost.
func (s *delivery) hand(st stored, prev, since uint64, live bool) bool {
	tok, ok := s.tokenOf(st.subject)
	if !ok {
		return true
	}
	for {
		s.mu.Lock()
		c, whole := s.channels[tok], s.channels[anyToken]
		if !st.isFor(c, live) && !st.isFor(whole, live) {
			s.mu.Unlock()
			return true
		}
		if whole == nil || !whole.joined || st.seq <= whole.last+1 || since <= whole.last {
			gone := s.skip(whole, st.seq-1)
			m := s.claim(c, whole, st, tok, prev)
			s.mu.Unlock()
			if gone != nil {
				s.deliver(gone)
			}
			if m != nil {
				s.deliver(m)
			}
			return true
		}
		s.mu.Unlock()
		if !s.fillWhole(st.seq - 1) {
			return false
		}
	}
}

func (st *stored) isFor(c *channel, live bool) bool {
	return c != nil && (live || c.joined) && st.seq > c.last
}

// claim notes that st is delivered and returns it as a message; nil if no channel
// is called tok. s.mu is held.
func (s *delivery) claim(c, whole *channel, st stored, tok string, prev uint64) *hub.Message {
	name, ok := "", true
	if c != nil {
		name = c.name
	} else {
		name, ok = channelOf(s.opts.Load().Name, tok)
	}
	if whole != nil && st.seq > whole.last {
		switch {
		case whole.joined:
		case whole.last == 0:
			whole.before = st.seq - 1
		case st.seq != whole.last+1:
			s.faults++ // its Subscribe begins again
		}
		whole.last, whole.quiet = st.seq, false
	}
	if c != nil && st.seq > c.last {
		if prev == 0 {
			prev = c.prev
		}
		c.last, c.prev, c.quiet = st.seq, st.seq, false
	}
	s.high = max(s.high, st.seq)
	if !ok {
		return nil
	}
	if prev <= s.base { // of another epoch
		prev = 0
	}
	return s.message(name, st, s.epoch, prev)
}

// tokenOf returns the token of the channel whose messages in the log have
// subject. Not all have one: see Remove.
func (s *logOptions) tokenOf(subject string) (string, bool) {
	tok, ok := strings.CutPrefix(subject, s.log)
	return tok, ok && !strings.Contains(tok, ".")
}

func (s *logReader) message(channel string, st stored, epoch string, prev uint64) *hub.Message {
	return &hub.Message{
		Channel: channel, Key: st.key, Data: st.data, Attributes: s.attributes(st.attributes),
		Time: st.time, Epoch: epoch, Offset: st.seq, Prev: prev, Check: st.check,
	}
}
