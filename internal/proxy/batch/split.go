package batch

import (
	"fmt"

	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/sse"
)

// divide gives each member its part of a reply that was collected.
func (c *call) divide() {
	f := c.members[0].Format
	if err := c.reply.parse(f, c.body); err != nil {
		c.malformed(err, len(c.members))
		c.toAll(delivery{err: errPart})
		return
	}
	shares := make([]share, len(c.members))
	for i, m := range c.members {
		shares[i] = m.part.share
	}
	faults, strays := c.reply.whole(f, shares)
	if strays > 0 {
		c.stray(strays, errIndex)
	}
	bad, why := 0, error(nil)
	for i, m := range c.members {
		if faults[i] != nil {
			bad, why = bad+1, faults[i]
			c.deliver(m, delivery{err: errPart})
			continue
		}
		body, _ := c.reply.appendPart(nil, shares[i])
		res := *c.res
		res.Body, res.ContentLength = http1.BodyLength, int64(len(body))
		c.deliver(m, delivery{head: &res, body: body, end: true})
	}
	if bad > 0 {
		c.malformed(why, bad)
	}
	c.body = nil
}

// stray counts answers that are for no request, and events of which that is not known, and logs
// the first.
func (c *call) stray(n int, why error) {
	c.q.strays.Add(uint64(n))
	if !c.strayed {
		c.strayed = true
		c.q.batcher.log.Warn("a backend's reply to a batch has parts of no request", "route", c.q.route, "upstream", c.peer, "requests", len(c.members), "indexes", len(c.owners), "err", why)
	}
}

// A stream is the events of a reply, on the loop of its call.
type stream struct {
	c      *call
	parser sse.Parser
	ended  []bool // by index of an answer: no more comes
	round  int    // counts events
}

// demux divides a piece of it.
func (t *stream) demux(b []byte) {
	c := t.c
	for c.x != nil {
		ev, rest, ok, err := t.parser.Next(b)
		if err != nil {
			c.abort(fmt.Errorf("an event is longer than batch.max_reply: %w", err))
			return
		}
		if !ok {
			break
		}
		if b = rest; ev.HasData {
			t.event(&ev)
		}
	}
	t.flush()
}

const done = "[DONE]" // the data of the last event of a stream

// event gives each member what an event has for it. One that has no answers is for all: an
// error, for example. One that cannot be read might have some, and is for none.
func (t *stream) event(ev *sse.Event) {
	c := t.c
	t.round++
	if string(ev.Data) == done {
		for _, m := range c.members {
			if p := &m.part; len(p.out) > 0 || p.began {
				p.last()
			}
		}
		return
	}
	f := c.members[0].Format
	if err := c.reply.parse(f, ev.Data); err != nil {
		c.stray(1, err)
		return
	}
	if c.reply.list.to == 0 {
		for _, m := range c.members {
			if p := &m.part; !p.over && !p.ends {
				p.out = sse.AppendEvent(p.out, ev)
			}
		}
		return
	}
	for i := range c.reply.answers {
		a := &c.reply.answers[i]
		if a.target < 0 || a.target >= len(c.owners) {
			c.stray(1, errIndex)
			continue
		}
		m := c.owners[a.target]
		p := &m.part
		if p.over || p.ends {
			continue
		}
		if p.seen != t.round {
			p.seen = t.round
			one := *ev
			one.Data, _ = c.reply.appendPart(nil, p.share)
			p.out = sse.AppendEvent(p.out, &one)
		}
		if a.ended && !t.ended[a.target] {
			t.ended[a.target] = true
			p.ended++
		}
	}
	for i := range c.reply.answers { // behind all answers of the event
		if to := c.reply.answers[i].target; to >= 0 && to < len(c.owners) {
			if p := &c.owners[to].part; p.ended >= p.share.n && !p.over {
				p.last()
			}
		}
	}
}

// last ends a member's stream, if it has not ended.
func (p *part) last() {
	if !p.over && !p.ends {
		p.out = sse.AppendEvent(p.out, &sse.Event{Data: []byte(done), HasData: true})
		p.ends = true
	}
}

// flush sends what members have of the events so far.
func (t *stream) flush() {
	c := t.c
	for _, m := range c.members {
		p := &m.part
		if len(p.out) == 0 {
			continue
		}
		d := delivery{body: p.out, end: p.ends}
		if !p.began {
			res := *c.res
			res.Body, res.ContentLength = http1.BodyChunked, -1
			d.head = &res
		}
		p.out = nil
		c.deliver(m, d)
	}
}

// end ends the streams of members that have not ended when the backend's does. One that got
// nothing gets an error.
func (t *stream) end() {
	c := t.c
	without := 0
	for _, m := range c.members {
		switch p := &m.part; {
		case p.over || p.gone.Load():
		case p.began:
			c.deliver(m, delivery{end: true})
		default:
			without++
			c.deliver(m, delivery{err: errPart})
		}
	}
	if without > 0 {
		c.malformed(errNoPart, without)
	}
}
