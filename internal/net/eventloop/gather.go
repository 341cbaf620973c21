package eventloop

import "bytes"

// A gatherer keeps what connections write in a tick until its end: all of one
// connection's leaves in one system call. What one has here follows one place in list;
// only the last can grow.
type gatherer struct {
	b       []byte
	list    []gathered
	flushed int // of list
}

// gathered reports where in gatherer.b the bytes of a connection are.
type gathered struct {
	c        *Conn // nil when they were sent or dropped
	from, to int
}

// add keeps a copy of b, for c.
func (g *gatherer) add(c *Conn, b []byte) {
	last := len(g.list) - 1
	if c.flags&flagGathered != 0 && g.list[last].c != c {
		// It is not the last one, which alone can grow.
		g.send(c)
		if c.mute() || c.out != nil {
			c.Write(b)
			return
		}
		last = len(g.list) - 1
	}
	if c.flags&flagGathered == 0 {
		c.flags |= flagGathered
		g.list = append(g.list, gathered{c: c, from: len(g.b)})
		last++
	}
	g.b = append(g.b, b...)
	g.list[last].to = len(g.b)
	if len(g.b) >= burstLimit {
		g.flush()
	}
}

// flush sends what was gathered, in the order in which it was written.
// Handlers that are notified of a failure may write meanwhile, and come here again.
func (g *gatherer) flush() {
	for g.flushed < len(g.list) {
		i := g.flushed
		g.flushed++
		if g.list[i].c != nil {
			g.sendAt(i)
		}
	}
	g.b, g.list, g.flushed = g.b[:0], g.list[:0], 0
}

// send sends what was gathered for c, if there is any.
func (g *gatherer) send(c *Conn) {
	if c.flags&flagGathered != 0 {
		g.sendAt(g.find(c))
	}
}

// drop gives up what was gathered for c.
func (g *gatherer) drop(c *Conn) {
	if c.flags&flagGathered != 0 {
		g.list[g.find(c)].c = nil
		c.flags &^= flagGathered
	}
}

// find returns the place of c, which is the last one mostly.
func (g *gatherer) find(c *Conn) int {
	i := len(g.list) - 1
	for g.list[i].c != c {
		i--
	}
	return i
}

func (g *gatherer) sendAt(i int) {
	at := g.list[i]
	c, b := at.c, g.b[at.from:at.to]
	g.list[i].c = nil
	c.flags &^= flagGathered
	if f := c.filtered(); f != nil {
		c.sendSealed(c.loop.seal(f.filter, b))
		return
	}
	n, err := c.send(b, false)
	var rest []byte
	if err == 0 && n < len(b) {
		rest = bytes.Clone(b[n:]) // before any handler writes
	}
	if c.sent(n, err) && rest != nil {
		c.enqueue(rest)
		if c.out != nil {
			c.out.private = true
			c.out.stall()
		}
	}
}
