package nats

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// What the stream's metadata says of the log.
const (
	metaEpoch = "weir-epoch"      // the log's epoch
	metaBase  = "weir-base"       // the log's end when the epoch began
	metaSizes = "weir-least"      // the smallest history_size it ever had
	metaGone  = "weir-gone"       // set when something was removed by hand: see Remove
	metaLost  = "weir-lost"       // bytes that the server could not read when it started: see info.unread
	metaParts = "weir-partitions" // how many there are of the namespace, and by what; none of one
)

// An info is a stream at one instant.
type info struct {
	epoch string
	base  uint64 // the end of the log when the epoch began
	first uint64 // the oldest retained sequence; last+1 if there is none
	last  uint64
	check hub.Check // of the message at last; 0 if there is none
	least int       // the smallest history_size the stream ever had
	// messages is how many there are, deleted how many between first and last are not.
	messages, deleted uint64
	firstAt, lastAt   time.Time // when they were stored
	lost              uint64    // the newest that the server found damaged; 0 for none
	// unread is how many bytes the server could not read when it started, without what was in
	// them, if this log does not know of it yet: messages between others may be gone.
	unread uint64
	leader string // the server that answered; empty for one without a cluster
	gone   bool   // something was removed by hand
	// whole says that neither age nor bytes can have removed a message so far; if
	// gone, that they cannot have since the last Remove.
	whole  bool
	config jetstream.StreamConfig
	lead   *lead // of the site that was asked; nil without two sites
	// following says that run has looked while it follows the log to another site, see finish.
	following bool
}

// top is the log's end.
func (in info) top() hub.Position {
	return hub.Position{Epoch: in.epoch, Offset: in.last, Check: in.check}
}

// prefixed returns the name of the stream; names allow no dots.
func (s *logPlace) name() string { return s.b.cfg.Prefix + "_" + s.opts.Load().LogName() }

// config returns the stream's configuration in epoch.
func (s *storedLog) config(epoch string, base uint64, least int, gone bool) jetstream.StreamConfig {
	p, ns := s.b.cfg.Prefix, s.opts.Load().LogName()
	cfg := jetstream.StreamConfig{
		Name:              s.name(),
		Description:       "log of the weir namespace " + ns,
		Subjects:          []string{p + ".log." + ns + ".>"},
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld,
		Storage:           jetstream.FileStorage,
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxMsgSize:        -1,
		MaxMsgsPerSubject: int64(s.opts.Load().HistorySize),
		MaxBytes:          s.opts.Load().LogBytes(),
		MaxAge:            time.Duration(s.opts.Load().HistoryTTL),
		Duplicates:        time.Duration(s.opts.Load().IdempotencyWindow),
		Replicas:          s.opts.Load().Replicas,
		AllowDirect:       true,
		RePublish: &jetstream.RePublish{
			Source: p + ".log." + ns + ".>", Destination: p + ".live." + ns + "." + epoch + ".>",
		},
		Metadata: map[string]string{
			metaEpoch: epoch,
			metaBase:  strconv.FormatUint(base, 10),
			metaSizes: strconv.Itoa(least),
		},
	}
	if s.lead.Load() != nil {
		cfg.Subjects = []string{s.into() + ">"}
		cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: s.into() + ">", Destination: s.log + ">"}
	}
	if st := s.sited.Load(); st != nil {
		st.write(cfg.Metadata)
	}
	if gone {
		cfg.Metadata[metaGone] = "1"
	}
	if n := s.unread.Load(); n > 0 {
		cfg.Metadata[metaLost] = strconv.FormatUint(n, 10)
	}
	if parts := partitioning(s.opts.Load()); parts != "" {
		cfg.Metadata[metaParts] = parts
	}
	return cfg
}

// same reports whether have differs from want in nothing that we set.
func same(have, want jetstream.StreamConfig) bool {
	return have.MaxMsgsPerSubject == want.MaxMsgsPerSubject && have.MaxBytes == want.MaxBytes &&
		have.MaxAge == want.MaxAge && have.Duplicates == want.Duplicates && have.Replicas == want.Replicas &&
		have.AllowDirect && have.RePublish != nil && *have.RePublish == *want.RePublish &&
		(have.SubjectTransform == nil) == (want.SubjectTransform == nil) &&
		len(have.Subjects) == 1 && have.Subjects[0] == want.Subjects[0] && have.Discard == want.Discard &&
		have.Metadata[metaEpoch] == want.Metadata[metaEpoch] && have.Metadata[metaBase] == want.Metadata[metaBase] &&
		have.Metadata[metaSizes] == want.Metadata[metaSizes] && have.Metadata[metaGone] == want.Metadata[metaGone]
}

// A streamAnswer has more of the state than the client library reads.
type streamAnswer struct {
	jetstream.StreamInfo
	State struct {
		jetstream.StreamState
		Lost *struct {
			Msgs  []uint64 `json:"msgs"`
			Bytes uint64   `json:"bytes"`
		} `json:"lost"`
	} `json:"state"`
}

// look queries the stream's leader for its state.
func (s *storedLog) look(ctx context.Context) (info, error) {
	in, err := s.lookStored(ctx)
	if u := s.unwritten.Load(); u != nil {
		return u.over(s, in, err)
	}
	return in, err
}

func (s *storedLog) lookStored(ctx context.Context) (info, error) {
	var a streamAnswer
	lead := s.lead.Load()
	if err := s.request(ctx, "STREAM.INFO."+s.name(), nil, &a); err != nil {
		return info{}, err
	}
	if s.lead.Load() != lead {
		return info{}, errMoved
	}
	if !a.TimeStamp.IsZero() {
		s.clock.Store(int64(time.Until(a.TimeStamp)))
	}
	m := a.Config.Metadata
	if lead != nil {
		st := parseSited(m)
		if a.Config.Mirror != nil || st.term > lead.term { // that has to be followed first: see crossTo
			return info{}, errMoved
		}
		s.sited.Store(st)
	}
	in := info{epoch: m[metaEpoch], first: a.State.FirstSeq, last: a.State.LastSeq, config: a.Config, lead: lead}
	base, err := strconv.ParseUint(m[metaBase], 10, 64)
	least, err2 := strconv.Atoi(m[metaSizes])
	if in.epoch == "" || err != nil || err2 != nil {
		return info{}, fmt.Errorf("stream %s exists and is not one of ours; remove it, or set another prefix", s.name())
	}
	in.base, in.least, in.gone = base, least, m[metaGone] != ""
	if !a.State.LastTime.IsZero() && in.last > 0 {
		in.check = hub.NewCheck(in.last, a.State.LastTime)
	}
	in.firstAt, in.lastAt = a.State.FirstTime, a.State.LastTime
	known, _ := strconv.ParseUint(m[metaLost], 10, 64)
	s.unread.Store(known)
	switch l := a.State.Lost; {
	case l == nil:
	case len(l.Msgs) > 0:
		in.lost = slices.Max(l.Msgs)
	case l.Bytes != known && a.State.NumDeleted > 0: // without holes it was the unfinished end of a file
		in.unread = l.Bytes
	}
	if a.Cluster != nil {
		in.leader = a.Cluster.Leader
	}
	if a.State.Msgs == 0 { // after a failed write the server may still name its last one
		in.first = in.last + 1
	}
	in.messages, in.deleted = a.State.Msgs, uint64(a.State.NumDeleted)
	in.whole = a.TimeStamp.Sub(a.Created) < a.Config.MaxAge-10*time.Second &&
		a.Config.MaxBytes >= 64<<20 && int64(a.State.Bytes) < a.Config.MaxBytes/2
	return in, nil
}

var errMoved = fmt.Errorf("%w: another site leads the log", hub.ErrUnavailable)

// retryEvery is how often something a server is not ready for is tried again.
const retryEvery = 100 * time.Millisecond

// prepare makes the stream exist with our configuration and sets the epoch. It
// waits for servers that are not ready.
func (s *stream) prepare(ctx context.Context) error {
	if err := s.site.settle(ctx); err != nil {
		return err
	}
	var renewed string // the epoch that began here
	began := time.Now()
	for n := 0; ; n++ {
		err := s.checkPartitions(ctx)
		var damage string
		if err == nil {
			damage, err = s.damage(ctx, renewed) // before the configuration removes anything
		}
		if damage != "" && time.Since(began) < s.suspicions() && s.opts.Load().Replicas > 1 {
			err = fmt.Errorf("%w: %s", errSuspect, damage) // a new leader may be behind
		}
		var in info
		if err == nil {
			in, err = s.ensure(ctx)
		}
		if err == nil {
			if damage != "" {
				s.b.log.Warn("log may have lost messages; it begins a new epoch", "namespace", s.opts.Load().LogName(), "last", in.last, "why", damage)
				in, err = s.newEpoch(ctx, in)
				renewed = in.epoch
			}
			if err == nil {
				err = s.fence(ctx) // publishing works only when the way to the leader is known
			}
			if err == nil {
				s.adopt(in)
				openedKeys(s, in)
				s.checked.Store(s.b.generation.Load())
				return nil
			}
		}
		if !errors.Is(err, errSuspect) && hopeless(err) {
			return fmt.Errorf("namespace %s: %w", s.opts.Load().Title(), err)
		}
		if ctx.Err() == nil && n > 0 { // the first answer of a server that has just started is often that
			s.b.waits("log of namespace "+s.opts.Load().Title(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("namespace %s: %w", s.opts.Load().Title(), errors.Join(ctx.Err(), err))
		case <-time.After(retryAfter(n)):
		}
	}
}

// hopeless reports whether asking again cannot help.
func hopeless(err error) bool {
	var e *apiError
	if !errors.As(err, &e) {
		return !errors.Is(err, hub.ErrUnavailable)
	}
	switch e.ErrCode {
	case codeStreamNotFound, codeNameInUse, codeNoPeers, codeInsufficient, codeNotEnabled, codeNotForAccount:
		return false
	}
	return e.Code != 503
}

// ensure creates the stream or brings its configuration up to date, once.
func (s *stream) ensure(ctx context.Context) (info, error) {
	in, err := s.look(ctx)
	switch {
	case isCode(err, codeStreamNotFound) && s.site != nil && !s.site.create.Load():
		return info{}, errMoved // or it was removed: it is not made anew while there may be a copy
	case isCode(err, codeStreamNotFound) && s.b.room.readOnly():
		s.unwritten.Store(&unwritten{epoch: s.newEpochName()})
		return s.look(ctx)
	case isCode(err, codeStreamNotFound):
		s.b.log.Info("creating log", "namespace", s.opts.Load().LogName(), "stream", s.name())
		if st := s.sited.Load(); st != nil { // it continues none
			s.sited.Store(&sited{term: st.term})
		}
		err = s.put(ctx, "CREATE", s.config(s.newEpochName(), 0, s.opts.Load().HistorySize, false))
		if err != nil && !isCode(err, codeNameInUse) { // another node was faster
			return info{}, err
		}
		if in, err = s.look(ctx); err != nil {
			return info{}, err
		}
		s.announce(in.epoch)
	case err != nil:
		return info{}, err
	}
	if have := in.config.Metadata[metaParts]; have != partitioning(s.opts.Load()) {
		return info{}, errPartitions(s.opts.Load(), have)
	}
	if narrowed(s, in) {
		keysOfOpened(s, in.last)
	}
	want := s.config(in.epoch, in.base, min(in.least, s.opts.Load().HistorySize), in.gone)
	if same(in.config, want) || s.b.room.readOnly() {
		return in, nil
	}
	if err := s.put(ctx, "UPDATE", want); err != nil {
		return info{}, err
	}
	return s.look(ctx)
}

func (s *storedLog) put(ctx context.Context, verb string, cfg jetstream.StreamConfig) error {
	if s.b.room.readOnly() {
		return s.b.room.refusal()
	}
	var a jetstream.StreamInfo
	err := s.request(ctx, "STREAM."+verb+"."+cfg.Name, cfg, &a)
	if isCode(err, codeReplicas) {
		return fmt.Errorf("%w: this NATS is no cluster; set replicas: 1, or let url name a cluster", err)
	}
	return err
}

// newEpoch gives the log, whose state is in, a new epoch. If another node was
// faster its epoch is returned.
func (s *storedLog) newEpoch(ctx context.Context, in info) (info, error) {
	now, err := s.look(ctx)
	if err != nil || now.epoch != in.epoch {
		return now, err
	}
	if st := s.sited.Load(); st != nil {
		s.sited.Store(&sited{term: st.term, alone: st.alone}) // it continues none
	}
	if now.unread > 0 {
		s.unread.Store(now.unread)
	}
	if s.b.room.readOnly() {
		s.unwritten.Store(&unwritten{epoch: s.newEpochName(), base: now.last})
		return s.look(ctx)
	}
	if err := s.put(ctx, "UPDATE", s.config(s.newEpochName(), now.last, now.least, now.gone)); err != nil {
		return info{}, err
	}
	now, err = s.look(ctx)
	if err == nil {
		s.announce(now.epoch)
	}
	return now, err
}

// newEpoch returns a name for the life of a log: 48 random bits as 8 letters
// and digits, which the wire token and a subject may hold.
func newEpoch() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789AB"
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	for i := range b {
		b[i] = letters[b[i]&63]
	}
	return string(b[:])
}

// newEpochName returns one for the log of s, which names its partition.
func (s *logOptions) newEpochName() string { return s.opts.Load().EpochPrefix() + newEpoch() }

// A flight is one look at the stream that many callers wait for.
type flight struct {
	done chan struct{}
	in   info
	err  error
}

// info returns the stream's state at an instant after the call began and after
// the subscriptions made before it are known to the stream's leader. Callers
// that come together share one look.
func (s *readable) info(ctx context.Context) (info, error) {
	s.flights.Lock()
	if s.flights.over {
		s.flights.Unlock()
		return info{}, s.b.stateErr()
	}
	f := s.flights.next
	if f == nil {
		f = &flight{done: make(chan struct{})}
		s.flights.next = f
		if !s.flights.flying {
			s.flights.flying = true
			s.flights.wg.Go(s.fly)
		}
	}
	s.flights.Unlock()
	select {
	case <-f.done:
		return f.in, f.err
	case <-ctx.Done():
		return info{}, s.b.reads.late(ctx)
	}
}

// newer is info for one who has in. While run follows the log to another site, what it looks at is for itself: others
// wait until it has.
func newer(ctx context.Context, s *readable, in info) (info, error) {
	if !in.following {
		return s.info(ctx)
	}
	now, err := s.look(ctx)
	now.epoch, now.following = in.epoch, true
	return now, err
}

// fly makes looks one after another while someone waits for one.
func (s *readable) fly() {
	for {
		s.flights.Lock()
		f := s.flights.next
		s.flights.next = nil
		if f == nil {
			s.flights.flying = false
			s.flights.Unlock()
			return
		}
		s.flights.Unlock()
		s.lookFor(f)
		if f.err == nil {
			s.seen(f.in)
		}
		close(f.done)
	}
}

// longLook is from when on it is logged how long a look took: subscribers wait for it.
const longLook = 500 * time.Millisecond

// movePatience is how long a look waits for the news of which site leads the log, of which it has found that it is not the one
// that was asked.
const movePatience = time.Second

// lookFor makes the look f at the site that leads the log, and another one if that was left
// meanwhile. The epoch that it finds is adopted.
func (s *readable) lookFor(f *flight) {
	for started := time.Now(); ; {
		ctx, began := s.life(), time.Now()
		if f.err = s.fence(ctx); f.err == nil {
			fenced := time.Since(began)
			f.in, f.err = s.look(ctx)
			if took := time.Since(began); took > longLook {
				s.b.log.Debug("looking at a log took long", "namespace", s.opts.Load().LogName(), "took", took, "leader_after", fenced)
			}
		}
		left := ctx.Err() != nil || s.crossing.Load() || f.err == nil && !s.adopt(f.in)
		unknown := errors.Is(f.err, errMoved) && time.Since(started) < movePatience
		switch {
		case s.b.ctx.Err() != nil || !left && !unknown:
			return
		case left:
			s.pause(time.Millisecond)
		default:
			s.pause(movePatience / 100)
		}
	}
}

// land waits for the looks under way and lets no more begin.
func (s *readable) land() {
	s.flights.Lock()
	s.flights.over = true
	s.flights.Unlock()
	s.flights.wg.Wait()
}

// fence returns when the stream's leader knows the subscriptions made before.
// Interest travels between servers on the same way as messages but not on that
// of API requests. So a message goes to the leader that it must refuse: it names
// another stream as its own, and nothing is stored.
func (s *storedLog) fence(ctx context.Context) error {
	if s.b.server != nil && s.b.cfg.Cluster.Name == "" {
		return nil // one server, one connection: in order anyway
	}
	return s.refused(ctx)
}

// fenceMessage returns what the stream's leader must refuse.
func (s *logOptions) fenceMessage() *natsgo.Msg {
	return mustRefuse(s.into() + "fence")
}

// mustRefuse returns a message that the stream with subject refuses: it names another one as its own.
func mustRefuse(subject string) *natsgo.Msg {
	return &natsgo.Msg{Subject: subject, Header: natsgo.Header{natsgo.ExpectedStreamHdr: {"none"}}}
}

// refused publishes what the stream's leader must refuse and waits for that.
func (s *storedLog) refused(ctx context.Context) error {
	m := s.fenceMessage()
	ctx, cancel := s.b.bound(ctx)
	defer cancel()
	for {
		_, err := s.b.requestWithRetry(ctx, m)
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
