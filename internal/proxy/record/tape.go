package record

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
	"github.com/weir-gateway/weir/sse"
)

// A Client is who asked first, until the backend's head is there. Its methods are
// called on the tape's loop, one of these three once.
type Client interface {
	proxy.Sink
	// Follow reports that the reply is being recorded.
	Follow(*Follow)
	// Passes reports that the reply is not recorded: the calls of a Sink follow.
	Passes(*proxy.Exchange)
	// Refuse reports that there will be no reply.
	Refuse(*wire.Error)
}

// A Tape records one reply. It is the sink of the exchange from its making on, and
// belongs to the exchange's loop.
type Tape struct {
	// Fixed before the answer that says Start.
	r       *Recorder
	entry   *entry // the clerk's
	loop    *eventloop.Loop
	id      ID
	cfg     *policy.Record
	route   string
	start   hub.Position
	channel string

	// The loop's goroutine.
	x      *proxy.Exchange // nil: it is over
	client Client          // nil: it is gone, or was answered
	passes bool            // the reply is the client's alone
	parser sse.Parser
	events int
	bytes  int64

	mu    sync.Mutex // guards what follows
	state tapeState
	queue queue // what is to be stored
}

type tapeState uint8

const (
	tapeWaits tapeState = iota // for the head
	tapeOpen                   // events come
	tapeEnded                  // its last record is in the queue, or there will be none
)

// queued is a record to be stored.
type queued struct {
	data []byte
	last wire.Mark // of the last record
	why  string
}

// A queue is the records of a tape that are to be stored, in order.
type queue struct {
	records []queued
	size    int           // in bytes
	paused  bool          // the backend is not read
	more    chan struct{} // holds one: a record was queued
}

// full reports whether so much is queued that the backend is to be read no further.
func (q *queue) full() bool { return q.size > maxQueue || len(q.records) > maxQueueEvents }

func (q *queue) push(r queued) {
	q.records = append(q.records, r)
	q.size += len(r.data)
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// pop takes the first record, if there is one. resume reports that paused has ended: there is
// room again.
func (q *queue) pop() (r queued, resume, ok bool) {
	if len(q.records) == 0 {
		return r, false, false
	}
	r = q.records[0]
	q.records[0] = queued{}
	q.records = q.records[1:]
	q.size -= len(r.data)
	resume = q.paused && q.size <= maxQueue/2 && len(q.records) <= maxQueueEvents/2
	if resume {
		q.paused = false
	}
	return r, resume, true
}

const (
	maxQueue       = 64 << 10 // bytes to be stored past which the backend is not read
	maxQueueEvents = 256
)

var _ proxy.Sink = (*Tape)(nil)

// entrust gives t the recording that was claimed for it.
func (t *Tape) entrust(e *entry, v *Viewer, g *generation) {
	t.r, t.entry, t.loop, t.cfg, t.route, t.start = e.r, e, v.query.Loop, v.query.Record, v.query.Route, g.start
	t.id = ID{namespace: v.query.Record.Namespace, key: v.query.Key, nonce: g.nonce, kind: g.owner.digest[0]}
	t.channel = t.id.channel()
	t.queue.more = make(chan struct{}, 1)
}

// Begin gives t its exchange, right before that is started, and who requested it.
func (t *Tape) Begin(x *proxy.Exchange, client Client) { t.x, t.client = x, client }

// Void reports that the exchange was not started after all.
func (t *Tape) Void() {
	t.mu.Lock()
	first := t.state != tapeEnded
	t.state = tapeEnded
	t.mu.Unlock()
	if first {
		t.entry.note(note{Mark: markVoid, Nonce: t.id.nonce})
	}
}

// Active reports whether the exchange is not over: it may be given more of the
// request then.
func (t *Tape) Active() bool { return t.x != nil }

// Detach reports that the client is gone. The exchange continues.
func (t *Tape) Detach() { t.client = nil }

// note writes n into the index. Any goroutine.
func (e *entry) note(n note) { e.r.post(func() { e.write(n) }) }

// Interim implements proxy.Sink.
func (t *Tape) Interim(x *proxy.Exchange, res *http1.Response) {
	if t.client != nil {
		t.client.Interim(x, res)
	}
}

// Head implements proxy.Sink: it decides whether the reply is recorded.
func (t *Tape) Head(x *proxy.Exchange, res *http1.Response) {
	if !recordable(res) {
		t.r.passed.Add(1)
		t.Void()
		c := t.client
		if c == nil {
			t.x = nil
			x.Cancel() // there is no client to take it
			return
		}
		t.passes, t.x = true, nil
		c.Passes(x)
		c.Head(x, res)
		return
	}
	t.mu.Lock()
	ended := t.state == tapeEnded
	if !ended {
		t.state = tapeOpen
	}
	t.mu.Unlock()
	if ended {
		return // it was aborted: the exchange will be canceled shortly
	}
	if ns, err := t.r.hub.Namespace(t.channel); err == nil {
		t.parser.MaxEvent = ns.MaxMessageBytes
	}
	t.entry.note(note{Mark: markOpen, Nonce: t.id.nonce})
	t.r.writers.Go(t.write)
	if c := t.client; c != nil {
		t.client = nil
		c.Follow(&Follow{Channel: t.channel, Since: t.start.String(), URL: t.r.prefix + Path + "?id=" + t.id.String()})
	}
}

// recordable reports whether a reply is an event stream that can be read. One that
// requests that the connection be held is about another.
func recordable(res *http1.Response) bool {
	kind, _, _ := bytes.Cut(res.Get("Content-Type"), []byte{';'})
	coding := res.Get("Content-Encoding")
	return res.Status == http.StatusOK && http1.EqualFold(bytes.TrimSpace(kind), sse.ContentType) &&
		(coding == nil || http1.EqualFold(coding, "identity")) && res.Get("Weir-Hold") == nil && res.Get("Grip-Hold") == nil
}

// Body implements proxy.Sink.
func (t *Tape) Body(x *proxy.Exchange, b []byte) (full bool) {
	if t.passes {
		return t.client != nil && t.client.Body(x, b)
	}
	for {
		ev, rest, ok, err := t.parser.Next(b)
		if err != nil {
			t.abortExchange(x, http.StatusBadGateway, "event_too_large", "an event of the backend is larger than max_message_bytes of the namespace")
			return false
		}
		if !ok {
			break
		}
		if b = rest; !t.event(x, &ev) {
			return false
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue.paused = t.queue.full()
	return t.queue.paused
}

// event queues one event. It returns false when the recording has ended with it.
func (t *Tape) event(x *proxy.Exchange, ev *sse.Event) bool {
	rec := wire.Record{Event: string(ev.Type)}
	if ev.HasID {
		id := string(ev.ID)
		rec.ID = &id
	}
	if ev.HasData {
		data := string(ev.Data)
		rec.Data = &data
	}
	if ev.HasRetry {
		rec.Retry = &ev.Retry
	}
	data := wire.AppendRecord(nil, &rec)
	t.events++
	t.bytes += int64(len(data))
	switch {
	case t.events > t.cfg.MaxEvents:
		t.abortExchange(x, http.StatusInsufficientStorage, "max_events", "the answer has more than "+strconv.Itoa(t.cfg.MaxEvents)+" events, which is as many as are recorded")
		return false
	case t.bytes > t.cfg.MaxBytes:
		t.abortExchange(x, http.StatusInsufficientStorage, "max_bytes", "the answer has more than "+strconv.FormatInt(t.cfg.MaxBytes, 10)+" bytes, which is as many as are recorded")
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != tapeOpen {
		return false // aborted
	}
	t.queue.push(queued{data: data})
	return true
}

// abortExchange ends the recording as broken, and the exchange, from a call of the exchange.
func (t *Tape) abortExchange(x *proxy.Exchange, code int, cause, reason string) {
	t.end(wire.Record{Mark: wire.MarkBroken, Code: code, Cause: cause, Reason: reason})
	t.x = nil
	x.Cancel()
}

// end queues the last record. It returns false if there is one already. Any goroutine.
func (t *Tape) end(last wire.Record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.state
	if was == tapeEnded {
		return false
	}
	t.state = tapeEnded
	if was == tapeWaits {
		t.entry.note(note{Mark: markVoid, Nonce: t.id.nonce, Cause: last.Cause})
		return true
	}
	t.queue.push(queued{data: wire.AppendRecord(nil, &last), last: last.Mark, why: last.Cause})
	return true
}

// End implements proxy.Sink.
func (t *Tape) End(x *proxy.Exchange, trailer []byte) {
	t.x = nil
	if t.passes {
		if c := t.client; c != nil {
			t.client = nil
			c.End(x, trailer)
		}
		return
	}
	t.end(wire.Record{Mark: wire.MarkEnd})
}

// Fail implements proxy.Sink.
func (t *Tape) Fail(x *proxy.Exchange, err *proxy.Error) {
	t.x = nil
	c := t.client
	t.client = nil
	if !t.passes {
		t.end(wire.Record{Mark: wire.MarkBroken, Code: err.Status, Cause: err.Cause.String(), Reason: err.Message})
		if c != nil {
			c.Passes(x)
		}
	}
	if c != nil {
		c.Fail(x, err)
	}
}

// Room implements proxy.Sink: the request's body was given whole.
func (t *Tape) Room(*proxy.Exchange) {}

// Switch implements proxy.Sink: no other protocol is asked for.
func (t *Tape) Switch(*proxy.Exchange, *http1.Response) *eventloop.Conn { return nil }

// abort ends the recording as broken and cancels the exchange, unless it has ended already. Any
// goroutine.
func (t *Tape) abort(code int, cause, reason string) {
	if !t.end(wire.Record{Mark: wire.MarkBroken, Code: code, Cause: cause, Reason: reason}) {
		return
	}
	t.loop.Post(func() {
		if x := t.x; x != nil {
			t.x = nil
			x.Cancel()
		}
		if c := t.client; c != nil && !t.passes {
			t.client = nil
			c.Refuse(&wire.Error{Status: http.StatusServiceUnavailable, Message: reason + ", try again later"})
		}
	})
}

// write stores the records one after the other, so that none is missing between two.
func (t *Tape) write() {
	event := t.start
	for n := 1; ; n++ {
		q, ok := t.next()
		if !ok {
			return
		}
		key := t.id.nonce + "#" + strconv.Itoa(n)
		if q.last != "" {
			key = t.id.nonce + "#end"
		}
		at, err := t.r.store(hub.Publication{Channel: t.channel, Data: q.data, IdempotencyKey: key})
		switch {
		case q.last != "":
			if q.last == wire.MarkEnd {
				at = event
			}
			t.closed(&q, at, err)
			return
		case err != nil:
			t.r.log.Error("store an event of a recording", "channel", t.channel, "err", err)
			t.unstored(err)
		default:
			t.r.events.Add(1)
			event = at
		}
	}
}

// next takes the next record off the queue and makes the backend continue when there
// is room.
func (t *Tape) next() (queued, bool) {
	for {
		t.mu.Lock()
		q, resume, ok := t.queue.pop()
		t.mu.Unlock()
		if resume {
			t.loop.Post(func() {
				if t.x != nil {
					t.x.Resume()
				}
			})
		}
		if ok {
			return q, true
		}
		select {
		case <-t.queue.more:
		case <-t.r.ctx.Done():
			return queued{}, false
		}
	}
}

// store publishes p, and waits for that within a bound.
func (r *Recorder) store(p hub.Publication) (hub.Position, error) {
	ctx, cancel := context.WithTimeout(r.ctx, noteTime)
	defer cancel()
	return r.publish(ctx, p)
}

// unstored ends the recording because an event could not be stored: what comes
// after it is not stored either.
func (t *Tape) unstored(err error) {
	last := wire.Record{Mark: wire.MarkBroken, Code: http.StatusServiceUnavailable, Cause: "log", Reason: "the log does not take the answer"}
	switch {
	case errors.Is(err, hub.ErrTooLarge):
		last.Code, last.Cause, last.Reason = http.StatusBadGateway, "event_too_large", "an event of the backend is larger than max_message_bytes of the namespace"
	case errors.Is(err, hub.ErrStorageFull):
		last.Code, last.Cause, last.Reason = http.StatusInsufficientStorage, "storage_full", "the broker's storage is full"
	}
	t.abort(last.Code, last.Cause, last.Reason)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue.records, t.queue.size = t.queue.records[:0], 0
	t.queue.push(queued{data: wire.AppendRecord(nil, &last), last: last.Mark, why: last.Cause})
}

// closed notes in the index how the recording ended.
func (t *Tape) closed(q *queued, at hub.Position, err error) {
	if err != nil {
		t.r.log.Error("end a recording", "channel", t.channel, "err", err)
		e := t.entry
		t.r.post(func() { // it stays without an end: the next request will find that out
			if e.tape == t {
				e.tape = nil
				e.r.done(t)
				e.r.changed[e] = true
			}
		})
		return
	}
	if q.last == wire.MarkEnd {
		t.r.whole.Add(1)
		t.entry.note(note{Mark: markEnd, Nonce: t.id.nonce, At: at.String()})
		return
	}
	t.r.countBroken(q.why)
	t.entry.note(note{Mark: markBroken, Nonce: t.id.nonce, At: at.String(), Cause: q.why})
}
