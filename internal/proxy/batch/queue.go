package batch

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A Batcher is the queues of a process.
type Batcher struct {
	// Fixed at New.
	proxy *proxy.Proxy
	log   *slog.Logger

	mu     sync.Mutex // guards what follows
	queues []*Queue
	closed bool
}

// New returns a Batcher, whose calls are exchanges of p. A nil log discards.
func New(p *proxy.Proxy, log *slog.Logger) *Batcher {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Batcher{proxy: p, log: log}
}

// Queue returns the queue of a route, which keeps its counters over reloads. Any goroutine.
func (b *Batcher) Queue(route string) *Queue {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.queues {
		if q.route == route {
			return q
		}
	}
	q := &Queue{batcher: b, route: route, open: map[callKey]*call{}, closed: b.closed}
	b.queues = append(b.queues, q)
	return q
}

// Close stops all timers. The loops must have ended.
func (b *Batcher) Close() {
	b.mu.Lock()
	b.closed = true
	queues := slices.Clone(b.queues)
	b.mu.Unlock()
	for _, q := range queues {
		q.mu.Lock()
		q.closed = true
		for _, c := range q.open {
			c.stopTimer()
		}
		q.mu.Unlock()
	}
}

// A Client is the downstream side of a request that joined. Its methods are called on the
// request's loop, none before Join has returned and none after Leave. First comes Alone, Head
// or Fail; after Alone nothing.
type Client interface {
	// Alone reports that the request is to be sent by itself, as it is.
	Alone()
	// Head gets the head of the reply, which is not to be changed, the peer that sent it and
	// how often the call was repeated.
	Head(res *http1.Response, peer string, retries int)
	// Body gets a piece of the body; it may be kept. It returns false if more waits for the
	// client than may.
	Body(b []byte) bool
	// End reports that the reply is complete.
	End()
	// Fail reports that there will be no reply, or after Head not the rest of it.
	Fail(err *proxy.Error, peer string, retries int)
}

// A Request is what joins.
type Request struct {
	// Config is the route's, with its defaults.
	Config *policy.Batch
	Format *Format
	// Body is what Parse found; the zero value is queued like the others, and goes alone.
	Body Body
	// Head is the head of a call, with what all its requests have in common and without
	// framing. Empty: the request goes alone.
	Head []byte
	// Call is where it goes. Its Head is not used.
	Call   proxy.Call
	Loop   *eventloop.Loop
	Client Client
}

// A callKey is what has to be equal in requests of one call.
type callKey struct {
	cluster  *upstream.Cluster
	split    *upstream.Split
	arm      int
	hash     uint64
	peerHost bool
	timeouts *proxy.Timeouts
	format   *Format
	head     string
	body     string
}

// A Queue is the requests of one route that wait for a call, and its calls under way.
type Queue struct {
	// Fixed at New.
	batcher *Batcher
	route   string

	counters

	mu      sync.Mutex // guards what follows
	open    map[callKey]*call
	due     []*call // may start, as soon as another one is over
	waiting int     // requests of calls that have not started
	running int     // calls, those of a request alone included
	closed  bool
}

// Member states.
type state uint8

const (
	waits state = iota // for its call
	alone              // it is sent by itself
	joined
)

// A Member is a request that joined. It must leave once.
type Member struct {
	// Fixed at Join.
	Request
	q     *Queue
	since time.Time
	bytes counter // on their way to the member's loop

	// Guarded by q.mu.
	state state
	call  *call

	// The loop of the request.
	left  bool
	ended bool // it has all that it gets
	slow  bool

	// The loop of the call.
	part part
}

// Join queues a request, and returns nil if there are too many.
func (q *Queue) Join(r Request) *Member {
	m := &Member{Request: r, q: q, since: time.Now()}
	if len(r.Head) == 0 {
		m.Body = Body{}
	}
	m.Body.Items = max(m.Body.Items, 1)
	q.mu.Lock()
	if q.closed || q.waiting >= r.Config.MaxQueue {
		q.mu.Unlock()
		q.refused.Add(1)
		return nil
	}
	q.waiting++
	q.add(m)
	start := q.startable(r.Config.MaxCalls)
	q.mu.Unlock()
	run(start)
	return m
}

// add puts m into a call. q.mu is held.
func (q *Queue) add(m *Member) {
	cfg := m.Config
	if m.Body.before == nil || m.Body.Items >= cfg.MaxItems || int64(m.Body.size()) > cfg.MaxBytes {
		c := &call{q: q, loop: m.Loop, cfg: cfg}
		c.add(m)
		q.nowDue(c)
		return
	}
	k := callKey{cluster: m.Call.Cluster, split: m.Call.Split, arm: m.Call.Arm, hash: m.Call.Key, peerHost: m.Call.PeerHost, timeouts: m.Call.Timeouts, format: m.Format,
		head: string(m.Head), body: string(m.Body.appendKey(nil))}
	c := q.open[k]
	if c != nil && (c.items+m.Body.Items > cfg.MaxItems || c.size+int64(m.Body.size()) > cfg.MaxBytes) {
		q.shut(c)
		c = nil
	}
	if c == nil {
		c = &call{q: q, loop: m.Loop, cfg: cfg, key: k, open: true, size: int64(len(m.Body.before) + len(m.Body.after))}
		q.open[k] = c
		if wait := time.Duration(cfg.MaxWait); wait > 0 {
			c.timer = time.AfterFunc(wait, func() { q.expire(c) })
		} else {
			q.nowDue(c)
		}
	}
	if c.add(m); c.items >= cfg.MaxItems {
		q.shut(c)
	}
}

// shut lets nothing more into c. q.mu is held.
func (q *Queue) shut(c *call) {
	if c.open {
		c.open = false
		delete(q.open, c.key)
	}
	q.nowDue(c)
}

// nowDue lets c start. q.mu is held.
func (q *Queue) nowDue(c *call) {
	if !c.due {
		c.due = true
		c.stopTimer()
		q.due = append(q.due, c)
	}
}

// expire is called when c has waited for long enough.
func (q *Queue) expire(c *call) {
	q.mu.Lock()
	var start []*call
	if !q.closed && c.open && !c.due {
		q.nowDue(c)
		start = q.startable(c.cfg.MaxCalls)
	}
	q.mu.Unlock()
	run(start)
}

// startable takes those calls out that may start now. q.mu is held.
func (q *Queue) startable(maxCalls int) (list []*call) {
	for len(q.due) > 0 && (maxCalls == 0 || q.running < maxCalls) {
		c := q.due[0]
		q.due[0] = nil
		q.due = q.due[1:]
		if c.open {
			c.open = false
			delete(q.open, c.key)
		}
		c.taken = true
		q.running++
		list = append(list, c)
	}
	return list
}

// run has calls start on their loops. No lock may be held.
func run(list []*call) {
	for _, c := range list {
		c.loop.Post(c.start)
	}
}

// over notes that a call has ended, and starts the next.
func (q *Queue) over(cfg *policy.Batch) {
	q.mu.Lock()
	q.running--
	start := q.startable(cfg.MaxCalls)
	q.mu.Unlock()
	run(start)
}

// Leave reports that the request is over, or that its client is gone: then its part of the reply
// is dropped, and with the last one the call ends. It is called on the request's loop, is
// idempotent, and m may be nil.
func (m *Member) Leave() {
	if m == nil || m.left {
		return
	}
	m.left = true
	q := m.q
	q.mu.Lock()
	var cancel *call
	sentAlone := m.state == alone
	switch c := m.call; m.state {
	case waits:
		q.waiting--
		c.remove(m)
		if len(c.members) == 0 && !c.taken {
			q.discard(c)
		}
	case joined:
		c.unserved = c.unserved || !m.ended
		if c.active--; c.active == 0 && c.unserved { // else the backend has said all
			cancel = c
		}
	case alone:
	}
	q.mu.Unlock()
	switch {
	case sentAlone:
		q.over(m.Config)
		return
	case m.slow:
		q.slow.Add(1)
	case !m.ended:
		q.left.Add(1)
	}
	m.part.gone.Store(true)
	if cancel != nil {
		cancel.loop.Post(cancel.cancel)
	}
}

// discard removes a call that has no requests. q.mu is held.
func (q *Queue) discard(c *call) {
	c.stopTimer()
	if c.open {
		c.open = false
		delete(q.open, c.key)
	}
	if i := slices.Index(q.due, c); i >= 0 {
		q.due = slices.Delete(q.due, i, i+1)
	}
}

// A delivery is what a member gets of a reply, in this order.
type delivery struct {
	head *http1.Response // nil: none
	body []byte
	end  bool
	err  *proxy.Error // nil: none

	peer    string
	retries int
}

// post hands d to the member's loop.
func (m *Member) post(d delivery) {
	m.bytes.Add(int64(len(d.body)))
	m.Loop.Post(func() { m.receive(&d) })
}

// receive is post on the member's loop.
func (m *Member) receive(d *delivery) {
	m.bytes.Add(-int64(len(d.body)))
	if m.left || m.ended {
		return
	}
	if d.err != nil {
		m.fail(d)
		return
	}
	if d.head != nil {
		m.Client.Head(d.head, d.peer, d.retries)
	}
	if len(d.body) > 0 && !m.left && !m.Client.Body(d.body) && !m.left {
		m.slow = true
		d.err = errSlow
		m.fail(d)
		return
	}
	if d.end && !m.left {
		m.ended = true
		m.Client.End()
	}
}

func (m *Member) fail(d *delivery) {
	if d.err == errSlow {
		m.slow = true
	} else {
		m.ended = true
	}
	m.Client.Fail(d.err, d.peer, d.retries)
}
