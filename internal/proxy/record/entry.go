package record

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// An entry follows the index channel of a key, while a client here waits for it,
// follows one of its recordings or records. It belongs to the clerk's goroutine.
type entry struct {
	r     *Recorder
	index string
	sub   hub.Subscriber
	live  bool         // all of the channel was read
	begin hub.Position // the log's position when it was looked at
	gens  generations

	waiting   []*Viewer
	viewers   int // attached to the newest recording
	claim     *claim
	tape      *Tape
	heartbeat time.Time // of tape
	empty     time.Time // since when tape has no viewers; zero: it has
	outbox    []*outgoing
	sending   bool
	over      bool // no longer followed
}

var _ hub.Sink = (*entry)(nil)

// A claim is a start that is on its way.
type claim struct {
	v     *Viewer
	note  note
	plain bool // without the key that two nodes would share
	since time.Time
}

// outgoing is a note that must get into the log.
type outgoing struct {
	note  note
	until time.Time
}

// Start implements hub.Sink.
func (e *entry) Start(at hub.Positions) {
	if len(at) > 0 {
		e.begin = at[0]
	}
	e.r.changed[e] = true
}

// Live implements hub.Sink.
func (e *entry) Live() {
	e.live = true
	e.r.changed[e] = true
}

// Deliver implements hub.Sink.
func (e *entry) Deliver(b *hub.Batch) {
	for _, m := range b.Messages {
		e.gens = apply(e.gens, m)
	}
	e.r.changed[e] = true
}

// Gap implements hub.Sink. What is gone is forgotten; in a new log there is nothing.
func (e *entry) Gap(g hub.Gap) {
	if g.Reason == hub.GapEpoch {
		e.gens = slices.DeleteFunc(e.gens, func(x *generation) bool { return x.start.Epoch != g.To.Epoch })
		e.begin = g.To
	}
	e.r.changed[e] = true
}

// Failed implements hub.Sink.
func (e *entry) Failed(err error) {
	e.r.log.Warn("look for a recording", "channel", e.index, "err", err)
	e.fail(wire.ErrorOf(err))
	e.sub, e.live = hub.Subscriber{}, false
	e.over = true
	e.drop()
}

// Room implements hub.Sink.
func (e *entry) Room() bool { return true }

func (e *entry) fail(bad *wire.Error) {
	for _, v := range e.waiting {
		v.end(Answer{Err: bad})
	}
	e.waiting = nil
}

// generations are the recordings of a key, the newest last.
type generations []*generation

// newest returns the newest recording, or nil.
func (gens generations) newest() *generation {
	if len(gens) == 0 {
		return nil
	}
	return gens[len(gens)-1]
}

// decide answers who waits, as far as the log says enough.
func (e *entry) decide(now time.Time) {
	if e.over {
		return
	}
	e.look(now)
	e.settleClaim()
	if g := e.gens.newest(); g != nil && (len(e.waiting) > 0 || e.viewers > 0) && e.dead(g, now) {
		e.bury(g)
	}
	waiting := e.waiting
	e.waiting = nil
	for _, v := range waiting {
		if !e.live || !e.serve(v) {
			e.waiting = append(e.waiting, v)
		}
	}
	if len(e.waiting)+e.viewers+len(e.outbox) == 0 && e.claim == nil && e.tape == nil {
		e.over = true
		e.r.shard.Unsubscribe(&e.sub)
		e.drop()
	}
}

// drop forgets e.
func (e *entry) drop() {
	if e.r.entries[e.index] == e {
		delete(e.r.entries, e.index)
	}
	if t := e.tape; t != nil {
		e.tape = nil
		e.r.done(t)
		t.abort(http.StatusServiceUnavailable, "log", "the recording cannot be kept")
	}
	if c := e.claim; c != nil {
		e.claim = nil
		e.r.running[c.v.query.Route]--
	}
}

// look sees to the tape of this node.
func (e *entry) look(now time.Time) {
	t := e.tape
	if t == nil {
		return
	}
	g := find(e.gens, t.id.nonce)
	switch {
	case g != nil && g.finished(): // by its tape, or by who took it for dead
		e.tape = nil
		e.r.done(t)
		t.abort(http.StatusBadGateway, "taken_over", "another gateway took the recording for ended")
	case e.viewers > 0:
		e.empty = time.Time{}
	case e.empty.IsZero():
		e.empty = now
	}
	if e.tape != nil && !e.empty.IsZero() && now.Sub(e.empty) >= max(0, time.Duration(t.cfg.Outlive)) {
		t.abort(statusClientGone, "abandoned", "no client followed the answer any more")
	}
}

// statusClientGone is what the access logs of many servers have for it.
const statusClientGone = 499

// dead reports whether g will never be finished by who records it.
func (e *entry) dead(g *generation, now time.Time) bool {
	switch {
	case g.finished() || g.burying || !e.live:
		return false
	case e.tape != nil && e.tape.id.nonce == g.nonce, e.claim != nil && e.claim.note.Nonce == g.nonce:
		return false
	case slices.ContainsFunc(e.outbox, func(o *outgoing) bool { return o.note.Nonce == g.nonce }):
		return false
	case e.r.alone || g.instance == e.r.instance:
		return true
	}
	return now.Sub(g.alive) > heartbeatsLost
}

// bury writes the last record of a recording whose gateway is gone, and reports it.
func (e *entry) bury(g *generation) {
	g.burying = true
	r := e.r
	last := wire.Record{Mark: wire.MarkBroken, Code: http.StatusBadGateway, Cause: "gateway_lost", Reason: "the gateway that asked the backend is gone"}
	p := hub.Publication{Channel: e.index + "." + g.nonce, Data: wire.AppendRecord(nil, &last), IdempotencyKey: g.nonce + "#end"}
	r.writers.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, noteTime)
		defer cancel()
		at, err := r.publish(ctx, p)
		r.post(func() {
			if err != nil {
				g.burying = false // the next tick tries again
				r.log.Error("end a recording whose gateway is gone", "channel", p.Channel, "err", err)
				return
			}
			r.lost.Add(1)
			e.write(note{Mark: markBroken, Nonce: g.nonce, At: at.String(), Cause: last.Cause})
		})
	})
}

// serve answers v if that can be done now.
func (e *entry) serve(v *Viewer) bool {
	g, since, bad := e.gens.wanted(v)
	switch {
	case bad != nil:
		v.end(Answer{Err: bad})
		return true
	case v.query.ID == nil && v.query.Since == "" && (g == nil || g.state == markVoid || g.state == markBroken):
		return e.begins(v)
	case g.state == markStart:
		return false // whether it becomes a recording is not known yet
	case g.burying && !g.finished():
		return false
	}
	if v.query.Since != "" && v.query.Since != "0" && (g.state == markEnd || g.state == markBroken) && !g.last.IsZero() && since.Epoch == g.last.Epoch && since.Offset >= g.last.Offset {
		v.end(Answer{Over: true})
		return true
	}
	e.r.attached.Add(1)
	v.attached = true
	e.viewers++
	v.answer(Answer{Follow: v.follow(e, g, since)})
	return true
}

// end gives v an answer after which it is not attached.
func (v *Viewer) end(a Answer) {
	v.entry = nil
	v.answer(a)
}

var (
	errNoRecording = &wire.Error{Status: http.StatusNotFound, Message: "there is no such recording, or not any more"}
	errNotYours    = &wire.Error{Status: http.StatusForbidden, Message: "the recording belongs to another client", Hint: "send the credentials that it was made with"}
	errGone        = &wire.Error{Status: http.StatusGone, Message: "what Last-Event-ID says is not there any more",
		Hint: "send the request without Last-Event-ID to start anew"}
	errTooMany = &wire.Error{Status: http.StatusServiceUnavailable, Message: "too many replies are being recorded, try again later"}
	errSlowLog = &wire.Error{Status: http.StatusServiceUnavailable, Message: "the log of recordings does not answer, try again later"}
)

// wanted returns the recording that v requests, and from where on; nil if it requests
// none in particular and there is none.
func (gens generations) wanted(v *Viewer) (g *generation, since hub.Position, bad *wire.Error) {
	if id := v.query.ID; id != nil {
		g = find(gens, id.nonce)
		switch {
		case g == nil || g.state == markVoid || g.owner.digest == "" || g.owner.digest[0] != id.kind:
			return nil, since, errNoRecording
		case !v.query.Attach(g.owner):
			return nil, since, errNotYours
		}
	}
	if s := v.query.Since; s != "" && s != "0" {
		at, err := hub.ParsePosition(s)
		h := holding(gens, at)
		if err != nil || h == nil || h.state == markVoid || g != nil && h != g {
			return nil, since, errGone
		}
		return h, at, nil
	}
	if v.query.Since == "0" && g == nil {
		if g = gens.newest(); g == nil || g.state == markVoid {
			return nil, since, errGone
		}
	}
	if g == nil {
		g = gens.newest()
	}
	if g != nil {
		since = g.start
	}
	return g, since, nil
}

func (v *Viewer) follow(e *entry, g *generation, since hub.Position) *Follow {
	id := ID{namespace: hub.NamespaceOf(e.index), nonce: g.nonce, kind: g.owner.digest[0]}
	if v.query.ID != nil {
		id.key = v.query.ID.key
	} else {
		id.key = v.query.Key
	}
	return &Follow{Channel: id.channel(), Since: since.String(), URL: e.r.prefix + Path + "?id=" + id.String()}
}

// begins claims the next recording for v, unless that is being done for another.
func (e *entry) begins(v *Viewer) bool {
	r := e.r
	switch {
	case e.claim != nil || e.tape != nil || len(e.outbox) > 0:
		return false
	case v.query.Tape == nil:
		v.end(Answer{Err: errNoRecording})
		return true
	case r.running[v.query.Route] >= v.query.Record.MaxConcurrent:
		r.refused.Add(1)
		v.end(Answer{Err: errTooMany})
		return true
	}
	r.running[v.query.Route]++
	number := 1
	if g := e.gens.newest(); g != nil {
		number = g.number + 1
	}
	e.claim = &claim{v: v, since: time.Now(), note: note{Mark: markStart, Nonce: newNonce(), Number: number,
		Owner: v.query.Owner.digest, By: v.query.Owner.by, Instance: r.instance}}
	e.claim.send(e)
	return false // it waits like the others
}

func (c *claim) send(e *entry) {
	r := e.r
	p := hub.Publication{Channel: e.index, Data: c.note.bytes(), Publisher: publisher, IdempotencyKey: "start#" + e.index + "#" + strconv.Itoa(c.note.Number)}
	if c.plain {
		p.IdempotencyKey = "start#" + c.note.Nonce
	}
	r.hub.Publish(p, func(at hub.Position, err error) {
		at, err = firstCame(at, err)
		r.post(func() { c.stored(e, at, err) })
	})
}

func (c *claim) stored(e *entry, at hub.Position, err error) {
	switch {
	case e.claim != c:
		return
	case err != nil:
		e.claim = nil
		e.r.running[c.v.query.Route]--
		e.fail(wire.ErrorOf(err))
	case !c.plain && at.Epoch == e.begin.Epoch && at.Offset <= e.begin.Offset && find(e.gens, c.note.Nonce) == nil:
		// The key is still known, of a start that the log has lost.
		c.plain = true
		c.send(e)
	}
	e.r.changed[e] = true
}

// settleClaim sees whether the start came into the log, and whose.
func (e *entry) settleClaim() {
	c := e.claim
	if c == nil {
		return
	}
	if g := find(e.gens, c.note.Nonce); g == nil {
		if n := e.gens.newest(); n != nil && n.number == c.note.Number && !c.plain { // another node was first
			e.claim = nil
			e.r.running[c.v.query.Route]--
		}
		return
	}
	e.claim = nil
	v := c.v
	t := v.query.Tape
	if v.entry != e { // it left meanwhile
		e.r.running[v.query.Route]--
		e.write(note{Mark: markVoid, Nonce: c.note.Nonce})
		return
	}
	e.waiting = slices.DeleteFunc(e.waiting, func(x *Viewer) bool { return x == v })
	v.attached = true
	e.viewers++
	g := find(e.gens, c.note.Nonce)
	t.entrust(e, v, g)
	e.tape, e.heartbeat, e.empty = t, time.Now(), time.Time{}
	e.r.tapes.Store(t, true)
	e.r.startedCount.Add(1)
	v.answer(Answer{Start: true})
}

// detach takes v out of e.
func (v *Viewer) detach(e *entry) {
	if v.attached {
		v.attached = false
		e.viewers--
		return
	}
	e.waiting = slices.DeleteFunc(e.waiting, func(x *Viewer) bool { return x == v })
}

// tick sees to what comes with time.
func (e *entry) tick(now time.Time) {
	if !e.live {
		for _, v := range slices.Clone(e.waiting) {
			if now.Sub(v.since) > lookTime {
				e.waiting = slices.DeleteFunc(e.waiting, func(x *Viewer) bool { return x == v })
				v.end(Answer{Err: errSlowLog})
			}
		}
	}
	if c := e.claim; c != nil && now.Sub(c.since) > lookTime {
		e.claim = nil
		e.r.running[c.v.query.Route]--
		e.fail(errSlowLog)
	}
	if t := e.tape; t != nil && !e.r.alone && now.Sub(e.heartbeat) >= heartbeatEvery {
		e.heartbeat = now
		e.write(note{Mark: markHeartbeat, Nonce: t.id.nonce})
	}
	e.r.changed[e] = true
}

// write puts a note into the log, after those before it.
func (e *entry) write(n note) {
	e.outbox = append(e.outbox, &outgoing{note: n, until: time.Now().Add(noteTime)})
	e.send()
}

func (e *entry) send() {
	if e.sending || len(e.outbox) == 0 {
		return
	}
	e.sending = true
	r, o := e.r, e.outbox[0]
	p := hub.Publication{Channel: e.index, Data: o.note.bytes()}
	if o.note.Mark != markHeartbeat {
		p.IdempotencyKey = o.note.Nonce + "#" + string(o.note.Mark) + "#index"
	}
	r.writers.Go(func() {
		ctx, cancel := context.WithDeadline(r.ctx, o.until)
		defer cancel()
		_, err := r.publish(ctx, p)
		r.post(func() { e.sent(o, err) })
	})
}

func (e *entry) sent(o *outgoing, err error) {
	e.sending = false
	e.outbox = e.outbox[1:]
	if err != nil {
		e.r.log.Error("write the index of recordings", "channel", e.index, "mark", string(o.note.Mark), "err", err)
	}
	if n := o.note; n.Mark != markHeartbeat && n.Mark != markOpen {
		if t := e.tape; t != nil && t.id.nonce == n.Nonce && err != nil {
			e.tape = nil // it stays without an end, and the next request will find that out
			e.r.done(t)
		}
		if g := find(e.gens, n.Nonce); g != nil && err != nil {
			g.burying = false
		}
	}
	e.send()
	e.r.changed[e] = true
}

// done reports that t needs its place no more.
func (r *Recorder) done(t *Tape) {
	r.tapes.Delete(t)
	if r.running[t.route]--; r.running[t.route] <= 0 {
		delete(r.running, t.route)
	}
}
