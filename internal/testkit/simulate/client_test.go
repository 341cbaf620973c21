package simulate

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/push"
	"github.com/weir-gateway/weir/internal/push/hub"
	"github.com/weir-gateway/weir/internal/push/wire"
)

// A socket is what lies between a process and a client: bytes on their way, and how many more
// it accepts. A takeover changes the process behind it.
type socket struct {
	mu     sync.Mutex
	pipe   *pipe // nil once it is closed
	in     []byte
	room   int
	wanted bool // the process waits for room
}

// A pipe is a connection of one process on a socket.
type pipe struct {
	eventloop.Carried
	silent
	sock   *socket
	node   *node
	loop   *eventloop.Loop
	spaces int         // namespaces that its stream follows
	gone   atomic.Bool // closed, or moved to another process
	dead   atomic.Bool // its process was killed: nothing leaves it
}

var (
	_ eventloop.Carrier = (*pipe)(nil)
	_ eventloop.Handler = (*pipe)(nil)
)

// Send implements eventloop.Carrier.
func (p *pipe) Send(b []byte) int {
	if p.dead.Load() {
		return len(b)
	}
	s := p.sock
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(b), s.room)
	s.in = append(s.in, b[:n]...)
	s.room -= n
	s.wanted = n < len(b)
	return n
}

// Close implements eventloop.Carrier.
func (p *pipe) Close(error, bool) {
	p.gone.Store(true)
	p.sock.end(p)
}

// end closes the socket if p is the process behind it.
func (s *socket) end(p *pipe) {
	s.mu.Lock()
	if s.pipe == p {
		s.pipe = nil
	}
	s.mu.Unlock()
}

// behind returns the connection behind the socket, or nil.
func (s *socket) behind() *pipe {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pipe
}

// moveTo puts p behind the socket.
func (s *socket) moveTo(p *pipe) {
	s.mu.Lock()
	s.pipe, s.wanted = p, false
	s.mu.Unlock()
}

// read returns what has arrived, and whether it is the last.
func (s *socket) read() (b []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, s.in = s.in, nil
	return b, s.pipe == nil
}

// A client is an EventSource: it remembers the id of the last block that it read whole.
type client struct {
	w         *world
	name      string
	channels  []string
	sock      *socket // nil: not connected
	eager     bool    // it reads everything at once
	head      bool    // the head of the answer was read
	part      []byte  // of a block
	lastID    string
	requested string // the position that this connection resumes after
	invented  string // the one that does not exist, if doubt
	at        map[string]*place
	opened    map[string]uint64 // ends of the logs when a stream of everything began; nil for others
	doubt     bool              // it requested a position that does not exist
	messages  int
}

// A place is where a client's stream is in one namespace.
type place struct {
	epoch   *epoch
	offset  uint64
	excused uint64 // a gap event covers what is missing up to here
	jump    bool   // the stream continues elsewhere: a gap event must follow
	started bool   // a message was received
}

// connect opens a stream on n. since is the position to resume after, as in the query.
func (c *client) connect(r *rand.Rand, n *node, since string) {
	if c.w.planted(ignoreEpoch) {
		since = c.w.anyEpoch(since)
	}
	s := &socket{room: 1 << 30}
	if c.eager = r.IntN(5) > 1; !c.eager {
		s.room = r.IntN(700)
	}
	c.sock, c.head, c.part, c.requested = s, false, nil, since
	for _, pl := range c.at {
		pl.jump = false
	}
	l := n.group.Loops()[r.IntN(len(n.hosts))]
	p := &pipe{sock: s, node: n, loop: l, spaces: len(c.w.names())}
	s.pipe = p
	n.pipes = append(n.pipes, p)
	on := n.hosts[l.ID()]
	sub := &push.Subscription{Subscription: wire.Subscription{Channels: c.channels, Since: since}}
	c.w.logf("%s connects to %s for %v since %s, room %d", c.name, n.name, c.channels, c.w.place(since), s.room)
	l.Post(func() {
		if !eventloop.Carry(&p.Carried, &on.Conn, p, p, false) {
			p.Close(nil, false)
			return
		}
		if err := n.push.ServeSSE(&p.Conn, sub); err != nil {
			p.Conn.Close(err)
		}
	})
}

// begin makes c a new stream, whatever it had.
func (c *client) begin(r *rand.Rand, n *node) {
	c.at, c.opened, c.doubt, c.invented, c.lastID = map[string]*place{}, nil, false, "", ""
	since := ""
	switch r.IntN(6) {
	case 0, 1:
		since = "0"
		c.opened = map[string]uint64{}
	case 2: // a position that no log has
		c.doubt = true
		e := c.w.ledger.spaces[hub.NamespaceOf(c.channels[0])].now()
		since = []string{"nonsense", e.name + "-" + itoa(e.last()+1000), "zz9-3"}[r.IntN(3)]
		c.invented = since
	}
	c.connect(r, n, since)
}

// resume opens the stream again where it was, as an EventSource does.
func (c *client) resume(r *rand.Rand, n *node) {
	if c.lastID == "" {
		c.begin(r, n)
		return
	}
	c.goBack()
	c.connect(r, n, c.lastID)
}

// goBack has c be where its last id says: gap events without one may have come since.
func (c *client) goBack() {
	ps, _ := hub.ParsePositions(c.lastID)
	for _, p := range ps {
		e := c.w.ledger.epochs[p.Epoch]
		if e == nil {
			continue
		}
		if pl := c.at[e.space.name]; pl == nil || pl.epoch != e || pl.offset != p.Offset {
			c.at[e.space.name] = &place{epoch: e, offset: p.Offset}
		}
	}
}

// disconnect closes the client's side. What it has not read is lost.
func (c *client) disconnect() {
	if c.sock == nil {
		return
	}
	c.w.logf("%s disconnects", c.name)
	p := c.sock.behind()
	c.sock = nil
	if p != nil {
		p.loop.Post(func() {
			if !p.gone.Load() {
				p.Conn.Close(nil)
			}
		})
	}
}

// allow lets n more bytes through. It reports whether the process waited for that.
func (c *client) allow(n int) (used bool) {
	s := c.sock
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = min(s.room+n, 1<<30)
	if p := s.pipe; p != nil && s.wanted && s.room > 0 {
		s.wanted = false
		return p.loop.Post(func() {
			if !p.gone.Load() {
				p.Writable()
			}
		})
	}
	return false
}

// receive reads what has arrived.
func (c *client) receive() {
	s := c.sock
	if s == nil {
		return
	}
	b, last := s.read()
	c.part = append(c.part, b...)
	if last {
		c.w.logf("%s is disconnected", c.name)
		c.sock = nil
	}
	if !c.head {
		_, rest, ok := bytes.Cut(c.part, []byte("\r\n\r\n"))
		if !ok {
			return
		}
		c.head, c.part = true, rest
	}
	for {
		block, rest, ok := bytes.Cut(c.part, []byte("\n\n"))
		if !ok {
			return
		}
		c.part = rest
		c.block(string(block))
	}
}

// block is one of the stream, which ends with an empty line.
func (c *client) block(text string) {
	var kind, data, id string
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "event":
			kind = value
		case "data":
			data = value
		case "id":
			id = value
		}
	}
	if c.w.planted(hideGap) && kind == "gap" {
		return
	}
	if id != "" {
		c.lastID = id
	}
	switch {
	case kind == "gap":
		c.gap(data, id)
	case kind == "end":
		c.w.logf("%s reads an end: %s", c.name, data)
	case data != "":
		c.message(data, id)
	case id != "":
		c.started(id)
	}
}

// started is where the stream starts.
func (c *client) started(id string) {
	ps, err := hub.ParsePositions(id)
	if err != nil {
		c.fail("the stream starts at %q: %v", id, err)
		return
	}
	for _, p := range ps {
		e := c.w.ledger.epochs[p.Epoch]
		if e == nil && id == c.requested {
			continue // a gap event follows
		}
		if e == nil {
			c.fail("the stream starts in an epoch that does not exist: %q", id)
			return
		}
		switch pl := c.at[e.space.name]; {
		case pl == nil:
			if c.opened != nil {
				c.opened[e.space.name] = e.last()
			}
			c.at[e.space.name] = &place{epoch: e, offset: p.Offset, jump: c.doubt && e.space.name == hub.NamespaceOf(c.channels[0])}
		case pl.epoch == e && pl.offset <= p.Offset && c.lacks(pl, p.Offset) == nil:
			pl.offset = p.Offset // there was nothing for it in between
		default:
			pl.jump = true
		}
		if id == c.invented { // a gap event follows
			c.at[e.space.name].jump = true
		}
	}
	c.w.logf("%s starts at %s", c.name, c.w.place(id))
}

func (c *client) message(data, id string) {
	at := strings.LastIndex(data, `"m`)
	if at < 0 {
		c.fail("unknown data %q", data)
		return
	}
	text := strings.TrimRight(data[at:], "}")
	x := c.w.named(id, text)
	if x == nil {
		c.fail("received %s with the id %s, which is not its position", text, c.w.place(id))
		return
	}
	c.messages++
	c.w.logf("%s reads %v", c.name, x)
	pl := c.at[x.epoch.space.name]
	switch {
	case !slices.Contains(c.channels, x.channel):
		c.fail("received %v of a channel that it does not follow", x)
	case pl == nil:
		c.fail("received %v before the stream has a position", x)
	case pl.jump:
		c.fail("false resume: the stream continues elsewhere without a gap event, with %v", x)
	case pl.epoch != x.epoch:
		c.fail("received %v while in epoch %s, without a gap event", x, pl.epoch.label())
	case x.offset <= pl.offset:
		c.fail("repeated or reordered: received %v after %d", x, pl.offset)
	default:
		if c.opened != nil && !pl.started { // what was retained is read now
			c.opened[x.epoch.space.name] = x.epoch.last()
		}
		c.missing(pl, x.offset-1, "before "+x.String())
		pl.offset, pl.started = x.offset, true
	}
}

// lacks returns what should have come up to an offset, or nil.
func (c *client) lacks(pl *place, upto uint64) *entry {
	for _, x := range pl.epoch.after(max(pl.offset, pl.excused)) {
		if x.offset > upto {
			return nil
		}
		if !slices.Contains(c.channels, x.channel) || c.opened != nil && x.offset <= c.opened[x.epoch.space.name] && x.mayBeGone() {
			continue
		}
		return x
	}
	return nil
}

// missing reports what lacks finds.
func (c *client) missing(pl *place, upto uint64, when string) {
	if x := c.lacks(pl, upto); x != nil {
		c.fail("lost without a gap event: %v, %s; it was at %d", x, when, pl.offset)
	}
}

// gap checks a gap event and continues after it.
func (c *client) gap(data, id string) {
	var g struct{ Namespace, From, To, Reason string }
	if err := json.Unmarshal([]byte(data), &g); err != nil {
		c.fail("gap event %q: %v", data, err)
		return
	}
	to, err := hub.ParsePosition(g.To)
	e := c.w.ledger.epochs[to.Epoch]
	pl := c.at[g.Namespace]
	if pl == nil && c.doubt && e != nil {
		pl = &place{epoch: e, jump: true}
		c.at[g.Namespace] = pl
	}
	if err != nil || e == nil || pl == nil || e.space.name != g.Namespace {
		c.fail("gap event %q", data)
		return
	}
	at := to
	if id == "" { // the position follows, as there may be gaps of other namespaces
		if at.Offset = 0; e == pl.epoch {
			at.Offset = min(pl.offset, to.Offset)
		}
	}
	if ps, err := hub.ParsePositions(id); err == nil {
		if i := slices.IndexFunc(ps, func(p hub.Position) bool { return p.Epoch == to.Epoch }); i >= 0 {
			at = ps[i]
		}
	}
	c.w.gaps[g.Reason]++
	c.w.logf("%s reads a gap of %s: to %s, at %d, %s", c.name, g.Namespace, c.w.place(g.To), at.Offset, g.Reason)
	c.justified(pl, g.Reason, to.Offset)
	switch {
	case e.number < pl.epoch.number && !pl.jump:
		c.fail("a gap event leads back to epoch %s", e.label())
	case e == pl.epoch && at.Offset < pl.offset && !pl.jump:
		c.fail("a gap event leads back to %d from %d", at.Offset, pl.offset)
	}
	*pl = place{epoch: e, offset: at.Offset, excused: max(to.Offset, at.Offset)}
}

// justified checks that there was a reason for a gap event.
func (c *client) justified(pl *place, reason string, to uint64) {
	ok := false
	switch hub.GapReason(reason) {
	case hub.GapEpoch:
		ok = c.doubt || pl.epoch != pl.epoch.space.now()
	case hub.GapOverflow:
		ok = c.w.setup.policy(pl.epoch.space.name) == hub.DropOldest
	case hub.GapUnknown:
		ok = c.doubt || c.w.missed
	case hub.GapRetention:
		for _, x := range pl.epoch.after(pl.offset) {
			ok = ok || x.offset <= to && slices.Contains(c.channels, x.channel) && x.mayBeGone()
		}
	}
	if !ok {
		c.fail("a gap event without a cause: %s, at %d of %s, to %d", reason, pl.offset, pl.epoch.label(), to)
	}
}

// settled checks that nothing is missing when everything has arrived.
func (c *client) settled() {
	if c.sock == nil {
		c.fail("is not connected in the end")
		return
	}
	for _, ch := range c.channels {
		pl := c.at[hub.NamespaceOf(ch)]
		switch {
		case pl == nil || pl.jump:
			c.fail("has no position in %s in the end", hub.NamespaceOf(ch))
		case pl.epoch != pl.epoch.space.now():
			c.fail("is in epoch %s in the end", pl.epoch.label())
		default:
			c.missing(pl, 1<<62, "in the end")
		}
	}
}

func (c *client) fail(format string, args ...any) { c.w.fail(c.name+": "+format, args...) }
