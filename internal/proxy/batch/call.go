package batch

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/policy"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy"
	"github.com/weir-gateway/weir/sse"
)

type counter = atomic.Int64

// A call is requests that wait for each other, and then one exchange with a backend.
type call struct {
	// Fixed when it is made.
	q    *Queue
	loop *eventloop.Loop // of the exchange: that of the first request
	cfg  *policy.Batch
	key  callKey

	// Guarded by q.mu.
	members []*Member // fixed once it has started
	items   int
	size    int64 // of the body
	timer   *time.Timer
	open    bool // others may join
	due     bool // it may start
	taken   bool // it starts
	active  int  // members that have not left
	// unserved: one left before it had all, so the backend may be at work for it.
	unserved bool

	// The loop's goroutine.
	x       *proxy.Exchange // nil: it is not under way
	res     *http1.Response // the head of the reply; its slices are copies
	peer    string
	retries int
	mode    mode
	body    []byte // of the reply, while it is collected
	reply   reply
	events  stream
	owners  []*Member // by index of an answer
	strayed bool      // a part of no request was logged
}

// A mode is what becomes of a reply.
type mode uint8

const (
	passes   mode = iota // every client gets all of it
	collects             // it is divided when it is complete
	demuxes              // it is divided event by event
)

// A part is a member's share of a call. It belongs to the call's loop.
type part struct {
	gone  atomic.Bool // any goroutine: its client is
	share share
	out   []byte // events for it
	ended int    // answers that have no more events
	seen  int    // round of the last event for it
	began bool   // its head is on its way
	over  bool   // it gets nothing more
	ends  bool   // with out
}

var _ proxy.Sink = (*call)(nil)

// add puts m into c. q.mu is held.
func (c *call) add(m *Member) {
	m.call = c
	c.members = append(c.members, m)
	c.items += m.Body.Items
	c.size += int64(m.Body.size())
}

// remove takes m out of c, which has not started. q.mu is held.
func (c *call) remove(m *Member) {
	c.members = slices.DeleteFunc(c.members, func(x *Member) bool { return x == m })
	c.items -= m.Body.Items
	c.size -= int64(m.Body.size())
}

func (c *call) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// start sends the call. What is left of one request alone is sent by its own loop.
func (c *call) start() {
	q, now := c.q, time.Now()
	q.mu.Lock()
	list := c.members
	q.waiting -= len(list)
	c.active = len(list)
	for _, m := range list {
		m.state = joined
		if len(list) == 1 {
			m.state = alone
		}
	}
	q.mu.Unlock()
	for _, m := range list {
		q.waited.Observe(now.Sub(m.since))
	}
	switch len(list) {
	case 0:
		q.over(c.cfg)
		return
	case 1:
		m := list[0]
		q.alone.Add(1)
		m.Loop.Post(func() {
			if !m.left {
				m.Client.Alone()
			}
		})
		return
	}
	q.calls.Add(1)
	q.joined.Add(uint64(len(list)))
	c.send()
}

// send makes the exchange.
func (c *call) send() {
	bodies, items := make([]*Body, 0, len(c.members)), 0
	at := 0
	for _, m := range c.members {
		b := &m.Body
		bodies = append(bodies, b)
		m.part.share = share{at, b.Items * b.answers}
		at += m.part.share.n
		items += b.Items
		for range m.part.share.n {
			c.owners = append(c.owners, m)
		}
	}
	c.events.c, c.events.ended = c, make([]bool, at)
	c.q.countSize(items)
	first := c.members[0]
	body := appendBody(make([]byte, 0, c.size), bodies)
	x := c.q.batcher.proxy.LoopState(c.loop).Exchange(c)
	head := append(x.Head, first.Head[:len(first.Head)-len(crlf)]...)
	head = http1.AppendIntField(head, "Content-Length", int64(len(body)))
	x.Call = first.Call
	x.Head, x.Length, x.Chunked, x.Expect, x.Trailers, x.Upgrade = append(head, crlf...), int64(len(body)), false, false, false, ""
	c.x = x
	x.Start()
	if c.x == x {
		x.Body(body)
	}
	if c.x == x {
		x.End(nil)
	}
}

const crlf = "\r\n"

// cancel ends the exchange of a call that no client waits for.
func (c *call) cancel() {
	if x := c.x; x != nil {
		c.x = nil
		x.Cancel()
		c.q.over(c.cfg)
	}
}

// toAll gives every member that still gets something d.
func (c *call) toAll(d delivery) {
	d.peer, d.retries = c.peer, c.retries
	for _, m := range c.members {
		c.deliver(m, d)
	}
}

// deliver gives m a part of the reply, unless more is on its way than it may have.
func (c *call) deliver(m *Member, d delivery) {
	p := &m.part
	if p.over || p.gone.Load() {
		p.over = true
		return
	}
	d.peer, d.retries = c.peer, c.retries
	if m.bytes.Load()+int64(len(d.body)) > max(c.cfg.MaxReply, int64(len(d.body))) {
		d = delivery{err: errSlow, peer: c.peer, retries: c.retries}
	}
	p.began = p.began || d.head != nil
	p.over = d.end || d.err != nil
	m.post(d)
}

// Interim implements proxy.Sink; it is of no use to clients that wait for different things.
func (c *call) Interim(*proxy.Exchange, *http1.Response) {}

// Head implements proxy.Sink.
func (c *call) Head(x *proxy.Exchange, res *http1.Response) {
	c.peer, c.retries = x.Last()
	coding := res.Get("Content-Encoding")
	kind, _, _ := bytes.Cut(res.Get("Content-Type"), []byte{';'})
	coded := coding != nil && !http1.EqualFold(coding, "identity")
	f := c.members[0].Format
	switch {
	case res.Status != http.StatusOK:
		c.mode = passes
	case coded:
		c.abort(errors.New("it has a content coding"))
		return
	case f.streams && http1.EqualFold(bytes.TrimSpace(kind), sse.ContentType):
		c.mode = demuxes
		c.events.parser.MaxEvent = int(c.cfg.MaxReply)
	default:
		c.mode = collects
	}
	c.res = copyOf(res, c.mode != passes)
	if c.mode == passes {
		c.toAll(delivery{head: c.res})
	}
}

// copyOf returns a head that lasts, without fields that are of one client alone or, if it is
// divided, of the reply as a whole.
func copyOf(res *http1.Response, divided bool) *http1.Response {
	r := *res
	r.Reason, r.Upgrade, r.Fields = nil, nil, make([]http1.Field, 0, len(res.Fields))
	for _, f := range res.Fields {
		if http1.EqualFold(f.Name, "set-cookie") || divided && slices.ContainsFunc(ofTheWhole, func(n string) bool { return http1.EqualFold(f.Name, n) }) {
			continue
		}
		r.Fields = append(r.Fields, http1.Field{Name: bytes.Clone(f.Name), Value: bytes.Clone(f.Value)})
	}
	return &r
}

// ofTheWhole are fields about the bytes of a body.
var ofTheWhole = []string{"content-length", "content-md5", "digest", "content-digest", "repr-digest", "etag", "accept-ranges"}

// Body implements proxy.Sink. The backend is read as fast as it sends: one client that reads
// slowly must not hold the others back.
func (c *call) Body(_ *proxy.Exchange, b []byte) (full bool) {
	switch c.mode {
	case passes:
		c.toAll(delivery{body: bytes.Clone(b)})
	case collects:
		if int64(len(c.body)+len(b)) > c.cfg.MaxReply {
			c.abort(errTooLong)
			return false
		}
		c.body = append(c.body, b...)
	case demuxes:
		c.events.demux(b)
	}
	return false
}

// End implements proxy.Sink.
func (c *call) End(*proxy.Exchange, []byte) {
	c.x = nil
	switch c.mode {
	case passes:
		c.toAll(delivery{end: true})
	case collects:
		c.divide()
	case demuxes:
		c.events.end()
	}
	c.q.over(c.cfg)
}

// Fail implements proxy.Sink.
func (c *call) Fail(x *proxy.Exchange, err *proxy.Error) {
	c.x = nil
	c.peer, c.retries = x.Last()
	c.toAll(delivery{err: err})
	c.q.over(c.cfg)
}

// Room implements proxy.Sink: the body was given whole.
func (c *call) Room(*proxy.Exchange) {}

// Switch implements proxy.Sink: no other protocol is asked for.
func (c *call) Switch(*proxy.Exchange, *http1.Response) *eventloop.Conn { return nil }

var (
	errSlow    = &proxy.Error{Cause: proxy.WriteTimeout, Status: http.StatusServiceUnavailable, Message: "the client does not take its part of the answer"}
	errPart    = &proxy.Error{Cause: proxy.BadReply, Status: http.StatusBadGateway, Message: "the backend's answer to a batch is not what it should be"}
	errTooLong = errors.New("it is longer than batch.max_reply")
	errNoPart  = errors.New("it ends without an event for a request")
	errIndex   = errors.New("an index of no request")
)

// abort ends the exchange because of what is wrong with its reply, which no client can have.
func (c *call) abort(why error) {
	c.malformed(why, len(c.members))
	c.toAll(delivery{err: errPart})
	c.cancel()
}

// malformed logs and counts what is wrong with the reply, for n requests.
func (c *call) malformed(why error, n int) {
	c.q.malformed.Add(uint64(n))
	c.q.batcher.log.Warn("a backend's reply to a batch is malformed", "route", c.q.route, "upstream", c.peer, "requests", n, "of", len(c.members), "err", why)
}
