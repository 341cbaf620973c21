package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/weir-gateway/weir/internal/push/hub"
)

// reads makes direct reads of streams: one request, many messages and an end
// mark as the answer.
type reads struct {
	b      *Broker
	prefix string        // of the reply subjects, ends with a dot
	slots  chan struct{} // bounds the reads under way, and the questions to leaders about messages

	mu      sync.Mutex
	nextID  uint64
	waiting map[uint64]*read
	// spare is how many reads may be made again now.
	spare float64
	// took is the mean time of an answered read, of about the last eight.
	took time.Duration
}

// A read is one request under way. Its page and error are r.mu's until it is sent
// to answers, which has room for it.
type read struct {
	answers chan<- *read
	began   time.Time
	page    page
	err     error
}

// A page is what one request brought.
type page struct {
	messages []stored
	// pending is how many messages that match are left after the last one.
	pending uint64
	// counted is how many there were, from the first one on, before it was sent.
	counted uint64
	// upTo is the end of the log where the answer was given; 0 is unknown.
	upTo uint64
}

// A stored is a message as the stream has it.
type stored struct {
	seq     uint64
	subject string
	time    int64 // Unix milliseconds
	check   hub.Check
	key     string
	id      string // what the stream finds duplicates by, see messageID; empty for none
	data    []byte
	// attributes are as they were written; hub.ParseAttributes reads them.
	attributes []byte
}

// A query is the body of a direct read (NATS ADR-31).
type query struct {
	Seq       uint64   `json:"seq,omitempty"`
	NextFor   string   `json:"next_by_subj,omitempty"`
	StartTime string   `json:"start_time,omitempty"` // RFC 3339; instead of Seq
	MultiLast []string `json:"multi_last,omitempty"`
	UpToSeq   uint64   `json:"up_to_seq,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
}

const (
	maxReads  = 64
	readBatch = 512
	readBytes = 1 << 20
)

func newReads(b *Broker) *reads {
	return &reads{b: b, prefix: natsgo.NewInbox() + ".", slots: make(chan struct{}, maxReads),
		waiting: map[uint64]*read{}, spare: maxSpare}
}

// listen subscribes to the answers.
func (r *reads) listen() error {
	sub, err := r.b.nc.Subscribe(r.prefix+"*", r.receive)
	if err != nil {
		return fmt.Errorf("subscribe to answers: %w", err)
	}
	return sub.SetPendingLimits(-1, -1) // bounded by maxReads times readBytes
}

// get sends q to the subject of a stream (see direct) and waits for the whole answer.
func (r *reads) get(ctx context.Context, subject string, q query) (page, error) {
	if err := r.enter(ctx); err != nil {
		return page{}, err
	}
	defer r.leave()
	ctx, cancel := r.b.bound(ctx)
	defer cancel()
	if !r.b.connected.Load() {
		return page{}, errDisconnected
	}
	if q.MaxBytes == 0 {
		q.MaxBytes = readBytes
	}
	body, err := json.Marshal(q)
	if err != nil {
		return page{}, err
	}
	for end := time.Now().Add(noReaderFor); ; {
		got, err := r.try(ctx, subject, body)
		if !errors.Is(err, errNoReader) || time.Now().After(end) {
			return got, err
		}
		select {
		case <-ctx.Done():
			return page{}, r.late(ctx)
		case <-time.After(noReaderEvery):
			r.b.retriedReads.Add(1)
		}
	}
}

// A server that has just started accepts requests before its streams serve reads, and one that
// elects a leader may serve none for a short time: for noReaderFor a read is made again every
// noReaderEvery while no server answers for its stream.
const (
	noReaderFor   = 2 * time.Second
	noReaderEvery = 20 * time.Millisecond
)

var errNoReader = fmt.Errorf("%w: no server answers reads of the stream", hub.ErrUnavailable)

// try is get once; errNoReader if no server answers.
func (r *reads) try(ctx context.Context, subject string, body []byte) (page, error) {
	answers := make(chan *read, maxReadTries)
	var ids [maxReadTries]uint64
	tries, came := 0, 0
	defer func() { r.forget(ids[:tries]) }()
	wait := time.NewTimer(r.patience(firstTry))
	defer wait.Stop()
	for again := true; ; {
		if again {
			ids[tries] = r.begin(answers)
			tries++
			err := r.b.nc.PublishRequest(subject, r.prefix+strconv.FormatUint(ids[tries-1], 36), body)
			if err != nil {
				return page{}, fmt.Errorf("%w: read %s: %w", hub.ErrUnavailable, subject, err)
			}
		}
		select {
		case rd := <-answers:
			if rd.err == nil {
				r.answered(time.Since(rd.began))
			}
			return rd.page, rd.err
		case <-ctx.Done():
			return page{}, r.late(ctx)
		case <-wait.C:
			before := came
			came = r.arrived(ids[:tries])
			if again = came == before && tries < maxReadTries && r.mayRepeat(); again {
				r.b.retriedReads.Add(1)
			}
			wait.Reset(r.patience(laterTry))
		}
	}
}

// enter waits until one more request may be under way, as long as a read may take;
// leave ends it.
func (r *reads) enter(ctx context.Context) error {
	ctx, cancel := r.b.bound(ctx)
	defer cancel()
	select {
	case r.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return r.late(ctx)
	}
}

func (r *reads) leave() { <-r.slots }

// Of a replicated stream any replica may get a read, also one that is suspended or
// cut off and will not answer. Then the read is made again while the first waits,
// and the first answer is used (Dean and Barroso, The Tail at Scale, 2013).
//
// Servers that are only busy must not get more of it for that: the wait grows with
// the time that answers take, and the reads that are answered allow the repeated ones.
const (
	maxReadTries = 8
	firstTry     = 250 * time.Millisecond
	laterTry     = 500 * time.Millisecond
	slowerTry    = 4 // how many times as long as an answer takes
	// A suspended one of three replicas gets a third of the reads, and of the repeated ones.
	sparePerRead = 0.5
	maxSpare     = 2 * maxReads
)

// patience is how long a read waits before it is made again, at least least.
func (r *reads) patience(least time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(least, min(slowerTry*r.took, 4*least))
}

// answered notes that a read was answered after took.
func (r *reads) answered(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spare = min(r.spare+sparePerRead, maxSpare)
	r.took += (took - r.took) / 8
}

// mayRepeat reports whether a read may be made again now.
func (r *reads) mayRepeat() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spare < 1 {
		return false
	}
	r.spare--
	return true
}

// begin registers a read whose answer goes to answers, and returns its id.
func (r *reads) begin(answers chan<- *read) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextID++
	r.waiting[r.nextID] = &read{answers: answers, began: time.Now()}
	return r.nextID
}

// late distinguishes the caller's own deadline from ours.
func (r *reads) late(ctx context.Context) error {
	if err := r.b.stateErr(); errors.Is(err, hub.ErrClosed) {
		return err
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errDisconnected), errors.Is(cause, context.Canceled):
		return cause
	default:
		return fmt.Errorf("%w: no answer from NATS: %w", hub.ErrUnavailable, cause)
	}
}

// arrived counts the messages that have come for the reads called ids.
func (r *reads) arrived(ids []uint64) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		if rd := r.waiting[id]; rd != nil {
			n += len(rd.page.messages)
		}
	}
	return n
}

func (r *reads) forget(ids []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.waiting, id)
	}
}

// fail answers all reads under way with err.
func (r *reads) fail(err error) {
	r.mu.Lock()
	all := r.waiting
	r.waiting = map[uint64]*read{}
	r.mu.Unlock()
	for _, rd := range all {
		rd.err = err
		rd.answers <- rd
	}
}

// receive takes one message of an answer.
func (r *reads) receive(m *natsgo.Msg) {
	id, err := strconv.ParseUint(lastToken(m.Subject), 36, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rd := r.waiting[id]
	if rd == nil {
		return
	}
	status := m.Header.Get("Status")
	if status == "" {
		st, err := parseStored(m)
		if err != nil {
			rd.err = err
		}
		rd.page.messages = append(rd.page.messages, st)
		if len(rd.page.messages) == 1 {
			left, _ := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
			rd.page.counted = left + 1
		}
		if len(rd.page.messages) > 1 || m.Header.Get("Nats-Num-Pending") != "" {
			return // more is to come, or the end mark
		}
	}
	switch status {
	case "", "404": // a single message, or none
	case "204":
		rd.page.pending, _ = strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
		rd.page.upTo, _ = strconv.ParseUint(m.Header.Get("Nats-UpTo-Sequence"), 10, 64)
	case "503":
		rd.err = errNoReader
	default:
		rd.err = fmt.Errorf("%w: read: %s %s", hub.ErrUnavailable, status, m.Header.Get("Description"))
	}
	delete(r.waiting, id)
	rd.answers <- rd
}

// parseStored reads the headers of a direct read or of a republished message.
func parseStored(m *natsgo.Msg) (stored, error) {
	st := stored{subject: m.Header.Get("Nats-Subject")}
	st.data, st.attributes = unpack(m)
	seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil || seq == 0 {
		return st, fmt.Errorf("%w: message on %q without sequence", hub.ErrUnavailable, m.Subject)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		return st, fmt.Errorf("%w: message on %q: %w", hub.ErrUnavailable, m.Subject, err)
	}
	st.seq, st.time, st.check = seq, at.UnixMilli(), hub.NewCheck(seq, at)
	st.key, st.id = unquote(m.Header.Get(headerKey)), m.Header.Get(natsgo.MsgIdHdr)
	if st.data == nil {
		st.data = []byte{}
	}
	return st, nil
}

// bound returns a context that ends with ctx, with the connection, and when a
// read has taken too long.
func (b *connection) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, lost := context.WithCancelCause(ctx)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(b.cfg.ReadTimeout))
	stop := func() bool { return false }
	if l := b.link.Load(); l != nil {
		stop = context.AfterFunc(l.ctx, func() { lost(errDisconnected) })
	}
	return ctx, func() { stop(); cancel(); lost(nil) }
}

// requestEvery is how long after a try of a request the next one is made, if answers do not
// take long themselves: who has just lost its leader, or its way to it, never answers.
// Earlier ones keep waiting, because a busy server may answer late. maxRequests bounds them.
const (
	requestEvery = 250 * time.Millisecond
	maxRequests  = 24
)

// requestWithRetry makes a request that may be made again, until it is answered or ctx ends. It is made again when a log has
// another leader, too.
func (b *connection) requestWithRetry(caller context.Context, m *natsgo.Msg) (*natsgo.Msg, error) {
	type answer struct {
		m   *natsgo.Msg
		err error
	}
	b.denials.Delete(m.Subject)
	ctx, cancel := context.WithCancel(caller)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	answers := make(chan answer, maxRequests)
	wait := time.NewTimer(0)
	defer wait.Stop()
	began := time.Now() // the last try: earlier ones may have waited for a leader
	elected := b.elections.next()
	for tries := 0; ; {
		select {
		case <-elected:
			elected = b.elections.next()
		case a := <-answers:
			switch {
			case a.err == nil:
				b.reads.answered(time.Since(began))
				return a.m, nil
			case caller.Err() != nil:
				return nil, b.reads.late(caller)
			}
			return nil, fmt.Errorf("%w: ask NATS: %w", hub.ErrUnavailable, a.err)
		case <-caller.Done():
			return nil, b.reads.late(caller)
		case <-wait.C:
		}
		if err := b.denied(m.Subject); err != nil {
			return nil, err
		}
		if b.nc.Status() != natsgo.CONNECTED {
			return nil, errDisconnected
		}
		wait.Reset(b.reads.patience(requestEvery))
		if tries == maxRequests {
			continue
		}
		tries++
		began = time.Now()
		q := &natsgo.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
		asking.Go(func() {
			m, err := b.nc.RequestMsgWithContext(ctx, q)
			answers <- answer{m, err}
		})
	}
}

// request makes a JetStream API request with one JSON answer, of the servers that the node
// is connected to.
func (b *connection) request(ctx context.Context, subject string, body, answer any) error {
	return b.requestAt(ctx, "$JS.API."+subject, body, answer)
}

// requestAt is request with the whole subject. While JetStream has no leader that could answer it, it
// is made again for noReaderFor.
func (b *connection) requestAt(ctx context.Context, subject string, body, answer any) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	q := &natsgo.Msg{Subject: subject}
	if body != nil {
		var err error
		if q.Data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	for end := time.Now().Add(noReaderFor); ; {
		err := b.requestOnce(ctx, q, answer)
		if !isCode(err, codeNotAvailable) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(noReaderEvery):
			b.reads.b.retriedReads.Add(1)
		}
	}
}

// requestOnce makes request q.
func (b *connection) requestOnce(ctx context.Context, q *natsgo.Msg, answer any) error {
	m, err := b.requestWithRetry(ctx, q)
	if err != nil {
		return err
	}
	var e struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &e); err != nil {
		return fmt.Errorf("%w: %s: answer %.60q: %w", hub.ErrUnavailable, q.Subject, m.Data, err)
	}
	if e.Error != nil {
		return e.Error
	}
	return json.Unmarshal(m.Data, answer)
}
