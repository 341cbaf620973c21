package nats

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// Headers of a message. Without a key of either kind it has none of them.
const (
	headerKey = "Weir-Key"
	// headerTime is only with durability none: Unix milliseconds, a space, the
	// publishing node, a dot, and the number of the message there in base 36.
	headerTime = "Weir-Time"
)

// An outbox holds the publishes that are not answered: those to be sent, and
// those sent and waiting for their acknowledgement. Publish appends and returns;
// one goroutine sends, because writing to a connection may block.
type outbox struct {
	// Fixed.
	b      *Broker
	prefix string        // of the reply subjects, ends with a dot
	wake   chan struct{} // holds a token while queue may not be empty

	unanswered
	// Under mu.
	closed error
	queue  []*pending // to be sent
	nextID uint64
	// unsorted says that publishes were put back into queue, which is by id otherwise.
	unsorted bool
	round    uint64 // counts what send takes from queue together
}

// unanswered are the publishes without an answer.
type unanswered struct {
	mu      sync.Mutex
	waiting map[uint64]*pending
	order   []*pending // all by age, answered ones among them
	count   int
	bytes   int
}

// A pending is one publish without an answer. Its fields are the outbox's.
type pending struct {
	id         uint64
	s          *stream
	p          hub.Publication
	attributes []byte  // the attributes as they are sent; nil for none
	newest     *uint64 // the condition of PublishAfter; nil for none
	done       func(hub.Position, error)
	deadline   time.Time
	answered   bool
	lead       *lead     // of the site that it is sent to; nil without two sites
	queued     bool      // in queue
	named      bool      // its idempotency key was given to it here
	sent       int       // how often it was sent and may have been stored
	sentAt     time.Time // when it was sent last
	flying     bool      // NATS has not responded in any way since then
	// overtaken says that a later publish of its channel is stored: this one must not be
	// stored any more, only recognised.
	overtaken bool
}

func (p *pending) size() int { return len(p.p.Data) + len(p.attributes) }

func newOutbox(b *Broker) *outbox {
	return &outbox{
		b: b, prefix: natsgo.NewInbox() + ".", wake: make(chan struct{}, 1), unanswered: unanswered{waiting: map[uint64]*pending{}},
	}
}

// listen subscribes to the acknowledgements.
func (o *outbox) listen() error {
	sub, err := o.b.nc.Subscribe(o.prefix+"*", o.ack)
	if err != nil {
		return fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	return sub.SetPendingLimits(-1, -1) // bounded by MaxPending
}

// overhead is what a stored message costs on disk besides channel and data.
const overhead = 256

// Publish queues p. It is answered once it is stored, at once with durability none.
func (b *Broker) Publish(ns *hub.Namespace, p hub.Publication, done func(hub.Position, error)) {
	b.publish(ns, p, nil, done)
}

// PublishAfter is Publish with a condition that the stream judges, so that it holds
// whatever other nodes publish.
func (b *Broker) PublishAfter(ns *hub.Namespace, p hub.Publication, newest uint64, done func(hub.Position, error)) {
	b.publish(ns, p, &newest, done)
}

func (b *Broker) publish(ns *hub.Namespace, p hub.Publication, newest *uint64, done func(hub.Position, error)) {
	s, err := b.stream(ns)
	switch {
	case err != nil:
	case p.Channel == "" || hub.IsWhole(p.Channel):
		err = fmt.Errorf("%w: %q is none", hub.ErrBadChannel, p.Channel)
	case len(p.Data) > s.opts.Load().MaxMessageBytes:
		err = fmt.Errorf("%w: %d bytes, at most %d in namespace %s", hub.ErrTooLarge, len(p.Data), s.opts.Load().MaxMessageBytes, s.opts.Load().Title())
	case newest != nil && !s.durable():
		err = fmt.Errorf("%w: namespace %s keeps no log", errors.ErrUnsupported, s.opts.Load().Title())
	case s.durable() && b.room != nil && b.room.shut.Load():
		err = b.room.refusal()
	case !b.connected.Load() && !s.bridged() && !s.queuesAway():
		if err = b.stateErr(); err == nil { // it may have been closed since
			err = errDisconnected
		}
	case !s.verified() && !s.bridged():
		err = fmt.Errorf("%w: namespace %s is being checked after a reconnect", hub.ErrUnavailable, s.opts.Load().Title())
	case s.site.refusal() != nil:
		err = s.site.refusal()
	case s.storage.refusesNow(time.Now()):
		err = s.errStorage()
	case s.durable() && b.room != nil && !b.room.reserve(int64(len(p.Data)+p.Attributes.Size()+overhead)):
		err = b.room.refusal()
	default:
		err = b.out.add(&pending{s: s, p: p, attributes: p.Attributes.AppendTo(nil), newest: newest, done: done})
	}
	if err != nil {
		done(hub.Position{}, err)
	}
}

func (o *outbox) add(p *pending) error {
	p.deadline = time.Now().Add(time.Duration(o.b.cfg.AckTimeout))
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed != nil:
		return o.closed
	case o.count >= o.b.cfg.MaxPending:
		return fmt.Errorf("%w: %d publishes wait for NATS", hub.ErrOverloaded, o.count)
	case o.count > 0 && o.bytes+p.size() > o.b.cfg.MaxPendingBytes:
		return fmt.Errorf("%w: %d bytes wait for NATS", hub.ErrOverloaded, o.bytes)
	}
	if err := p.s.share.exceeded(p, &o.b.cfg); err != nil {
		return err
	}
	o.nextID++
	p.id = o.nextID
	o.count++
	o.bytes += p.size()
	p.s.share.count++
	p.s.share.bytes += p.size()
	p.s.addKey(p)
	p.queued = true
	o.queue = append(o.queue, p)
	o.order = append(o.order, p)
	p.s.share.order = append(p.s.share.order, p)
	o.waiting[p.id] = p
	o.nudge()
	return nil
}

// nudge wakes send.
func (o *outbox) nudge() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// pendingBytes returns what the disk may still have to take.
func (u *unanswered) pendingBytes() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return int64(u.bytes + u.count*overhead)
}

// pop removes the publish called id, if it has no answer yet.
func (u *unanswered) pop(id uint64) *pending {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.waiting[id]
	if p != nil {
		u.remove(p)
	}
	return p
}

// remove forgets p. u.mu is held.
func (u *unanswered) remove(p *pending) {
	delete(u.waiting, p.id)
	p.answered = true
	u.count--
	u.bytes -= p.size()
	p.s.share.count--
	p.s.share.bytes -= p.size()
	u.order = withoutAnswered(u.order, u.count)
	p.s.share.order = withoutAnswered(p.s.share.order, p.s.share.count)
}

// withoutAnswered removes from order, of which count have no answer, those at its beginning
// that have one, and all of them when they are most.
func withoutAnswered(order []*pending, count int) []*pending {
	n := 0
	for n < len(order) && order[n].answered {
		order[n] = nil
		n++
	}
	switch order = order[n:]; {
	case len(order) == 0:
		return nil
	case len(order) > 2*count+64: // an old one waits, and many after it were answered
		return slices.DeleteFunc(order, func(p *pending) bool { return p.answered })
	}
	return order
}

// expire answers what waited too long.
func (o *outbox) expire(now time.Time) {
	o.mu.Lock()
	var late []*pending
	for _, p := range o.order {
		if p.deadline.After(now) {
			break
		}
		if !p.answered {
			late = append(late, p)
		}
	}
	for _, p := range late {
		o.remove(p)
	}
	o.mu.Unlock()
	for _, p := range late {
		p.done(hub.Position{}, p.failed(fmt.Errorf("%w: no answer from NATS within %v for namespace %s", hub.ErrUnavailable, o.b.cfg.AckTimeout, p.s.opts.Load().Title())))
	}
}

// fail answers with err everything that keep, if it is not nil, does not want kept.
// o.mu is held while it is called.
func (o *outbox) fail(err error, keep func(*pending) bool) {
	var all []*pending
	o.mu.Lock()
	for _, p := range o.order {
		if !p.answered && (keep == nil || !keep(p)) {
			all = append(all, p)
		}
	}
	for _, p := range all {
		o.remove(p)
	}
	o.mu.Unlock()
	for _, p := range all {
		p.done(hub.Position{}, p.failed(err))
	}
}

func (o *outbox) close(err error) {
	o.mu.Lock()
	o.closed = err
	o.mu.Unlock()
	o.fail(err, nil)
}

// send is the goroutine that writes to the connection.
func (o *outbox) send() {
	var batch []*pending
	again := time.NewTicker(bridgeEvery)
	defer again.Stop()
	for {
		select {
		case <-o.b.ctx.Done():
			return
		case <-o.wake:
		case <-again.C: // for those that were kept
		}
		o.mu.Lock()
		if o.unsorted {
			slices.SortFunc(o.queue, func(a, b *pending) int { return cmp.Compare(a.id, b.id) })
			o.unsorted = false
		}
		batch, o.queue = o.queue, batch[:0]
		o.round++
		o.mu.Unlock()
		for i, p := range batch {
			o.sendOne(p)
			batch[i] = nil
		}
	}
}

func (o *outbox) sendOne(p *pending) {
	o.mu.Lock()
	p.queued = false
	seq, known := uint64(0), p.answered || p.s.bridge.kept != o.round
	if known && !p.answered {
		seq, known = recognize(p.s, p)
	}
	if !known || !p.answered && seq == 0 && !o.ready(p) {
		p.s.bridge.kept = o.round
		o.keep(p)
		o.mu.Unlock()
		return
	}
	if p.answered { // the answering goroutine reads sent without the lock
		o.mu.Unlock()
		return
	}
	if seq > 0 {
		o.mu.Unlock()
		answerStored(o, p.id, seq)
		return
	}
	p.sent++
	p.sentAt, p.flying = time.Now(), true
	condition := p.newest
	if condition == nil && p.overtaken {
		condition = new(uint64(hub.Never))
	}
	o.mu.Unlock()
	err := o.b.nc.PublishMsg(messageOf(o, p, condition))
	switch {
	case err == nil && p.s.durable():
		return // until the acknowledgement
	case err != nil:
		o.mu.Lock()
		p.flying = false
		if !p.answered {
			p.sent--
		}
		kept := (p.s.bridged() || p.s.queuesAway()) && !errors.Is(err, natsgo.ErrMaxPayload) && !p.answered
		if kept {
			p.s.bridge.kept = o.round
			o.keep(p)
		}
		o.mu.Unlock()
		if kept {
			return
		}
		err = publishError(err)
	}
	if o.pop(p.id) != nil {
		p.done(hub.Position{}, err)
	}
}

// messageOf returns p as it is sent. condition is that of PublishAfter, or the one that only lets the stream recognize p; nil for
// none.
func messageOf(o *outbox, p *pending, condition *uint64) *natsgo.Msg {
	m := &natsgo.Msg{Subject: p.s.subject(p.lead, p.p.Channel), Data: p.p.Data}
	if p.p.Key != "" {
		m.Header = natsgo.Header{headerKey: {quote(p.p.Key)}}
	}
	if len(p.attributes) > 0 {
		pack(m, p.attributes)
	}
	if p.s.durable() {
		m.Reply = o.prefix + strconv.FormatUint(p.id, 36)
		if p.p.IdempotencyKey != "" {
			if m.Header == nil {
				m.Header = natsgo.Header{}
			}
			m.Header[natsgo.MsgIdHdr] = []string{messageID(&p.p)}
		}
		if condition != nil {
			if m.Header == nil {
				m.Header = natsgo.Header{}
			}
			if *condition == hub.Never && p.s.opts.Load().Replicas < 2 {
				// Of one replica the stream looks at the message id after the condition on
				// the subject and before this one. Of several it must not be this one: what
				// fails it has been proposed, and its message id stays in process.
				m.Header[natsgo.ExpectedLastMsgIdHdr] = []string{"never"}
			} else {
				m.Header[natsgo.ExpectedLastSubjSeqHdr] = []string{strconv.FormatUint(*condition, 10)}
			}
		}
	} else {
		if m.Header == nil {
			m.Header = natsgo.Header{}
		}
		var clock [64]byte
		at := append(strconv.AppendInt(clock[:0], time.Now().UnixMilli(), 10), ' ')
		at = append(append(at, o.b.bus.node...), '.')
		m.Header[headerTime] = []string{string(strconv.AppendUint(at, p.id, 36))}
	}
	return m
}

// quote makes any string fit a header line. Keys without control characters,
// quotes and surrounding spaces stay as they are.
func quote(s string) string {
	for i := range len(s) {
		if b := s[i]; b < ' ' || b == 0x7f || b == '"' || b == ' ' && (i == 0 || i == len(s)-1) {
			return strconv.Quote(s)
		}
	}
	return s
}

func unquote(s string) string {
	if len(s) > 0 && s[0] == '"' {
		if u, err := strconv.Unquote(s); err == nil {
			return u
		}
	}
	return s
}

// ack receives the acknowledgements, on the subscription's goroutine.
func (o *outbox) ack(m *natsgo.Msg) {
	id, err := strconv.ParseUint(lastToken(m.Subject), 36, 64)
	if err != nil {
		return
	}
	seq, duplicate, ackErr := parseAck(m.Data)
	if isCode(ackErr, codeKeyInProcess) {
		o.again(id, 5*time.Millisecond)
		return
	}
	if len(m.Data) == 0 && o.refused(id) {
		return
	}
	if elsewhere(o, id, m.Data, ackErr) {
		return
	}
	o.found(id, ackErr == nil && len(m.Data) > 0)
	if ackErr == nil && len(m.Data) > 0 {
		if s := streamOf(o, id); s != nil && s.site.deferAck(id, seq, duplicate) {
			return
		}
	}
	answerPublish(o, id, seq, duplicate, m.Data, ackErr)
}

// streamOf returns the log that the publish called id is for; nil if it has been answered.
func streamOf(o *outbox, id uint64) *stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.waiting[id]; p != nil {
		return p.s
	}
	return nil
}

// elsewhere reports whether an acknowledgement is of a site that does not lead the log any
// more: the publish is sent to the one that does.
func elsewhere(o *outbox, id uint64, body []byte, err error) bool {
	s := streamOf(o, id)
	if s == nil || s.site == nil || err != nil || len(body) == 0 {
		return false
	}
	var a struct {
		Domain string `json:"domain"`
	}
	return json.Unmarshal(body, &a) == nil && a.Domain != s.site.site()
}

// answerPublish answers the publish called id with what the stream said in body.
func answerPublish(o *outbox, id, seq uint64, duplicate bool, body []byte, ackErr error) {
	if duplicate && o.compare(id, seq) {
		return
	}
	p := o.pop(id)
	if p == nil {
		return
	}
	if len(body) == 0 { // there is no listener on the stream's subject: no stream or no leader
		p.s.nudge()
		p.done(hub.Position{}, fmt.Errorf("%w: NATS has no stream for namespace %s", hub.ErrUnavailable, p.s.opts.Load().Title()))
		return
	}
	if ackErr != nil {
		if p.overtaken && p.newest == nil && errors.Is(ackErr, hub.ErrConflict) {
			ackErr = errOvertaken
		}
		p.done(hub.Position{}, ackErr)
		return
	}
	if !duplicate {
		p.s.storesAgain()
	}
	at, err := p.s.acknowledged(seq, duplicate)
	if err == nil {
		p.s.share.stored.Add(1)
	}
	if err != nil {
		err = p.failed(err)
	} else if !duplicate {
		noteKey(p, seq)
		at.Check = hub.NewContentCheck(seq, p.s.serverTime(), p.p.Key, p.p.Data)
	}
	p.done(at, err)
}

// serverTime returns the time that the clock of the stream's leader shows, as far as it
// is known.
func (s *storedLog) serverTime() time.Time {
	return time.Now().Add(time.Duration(s.clock.Load()))
}

// again sends the publish called id once more, a little later: a replicated
// stream is just storing the first one with its idempotency key, and cannot say
// yet where, or the first one cannot be read.
func (o *outbox) again(id uint64, after time.Duration) {
	time.AfterFunc(after, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if p := o.waiting[id]; p != nil {
			o.keep(p)
			o.nudge()
		}
	})
}

// parseAck reads what JetStream answers a publish with.
func parseAck(b []byte) (seq uint64, duplicate bool, err error) {
	// The usual answer is {"stream":"weir_x","seq":123}; it has no room for surprises.
	if i := bytes.LastIndex(b, []byte(`,"seq":`)); i > 0 && b[len(b)-1] == '}' && !bytes.Contains(b, []byte(`"error"`)) {
		if seq, err = strconv.ParseUint(string(b[i+7:len(b)-1]), 10, 64); err == nil {
			return seq, false, nil
		}
	}
	var a struct {
		Error *apiError `json:"error"`
		Seq   uint64    `json:"seq"`
		Dup   bool      `json:"duplicate"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return 0, false, fmt.Errorf("%w: acknowledgement %.60q: %w", hub.ErrUnavailable, b, err)
	}
	if a.Error != nil {
		return 0, false, a.Error.sentinel()
	}
	if a.Seq == 0 {
		return 0, false, fmt.Errorf("%w: acknowledgement %.60q without sequence", hub.ErrUnavailable, b)
	}
	return a.Seq, a.Dup, nil
}
