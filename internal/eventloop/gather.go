package eventloop

import "bytes"

// gathered says where in Loop.gather the bytes of a connection are.
type gathered struct {
	c        *Conn // nil when they were sent or dropped
	from, to int
}

// gather keeps a copy of b until the end of the tick.
func (c *Conn) gather(b []byte) {
	l := c.loop
	last := len(l.gathers) - 1
	if c.flags&flagGathered != 0 && l.gathers[last].c != c {
		// It is not the last one, which alone can grow.
		c.sendGathered()
		if c.mute() || c.out != nil {
			c.Write(b)
			return
		}
		last = len(l.gathers) - 1
	}
	if c.flags&flagGathered == 0 {
		c.flags |= flagGathered
		l.gathers = append(l.gathers, gathered{c: c, from: len(l.gather)})
		last++
	}
	l.gather = append(l.gather, b...)
	l.gathers[last].to = len(l.gather)
	if len(l.gather) >= burstLimit {
		l.flushGather()
	}
}

// flushGather sends what was gathered, in the order in which it was written.
// Handlers that hear of a failure may write meanwhile, and come here again.
func (l *Loop) flushGather() {
	for l.flushed < len(l.gathers) {
		i := l.flushed
		l.flushed++
		if c := l.gathers[i].c; c != nil {
			c.sendGatheredAt(i)
		}
	}
	l.gather, l.gathers, l.flushed = l.gather[:0], l.gathers[:0], 0
}

// sendGathered sends what was gathered for c, if there is any.
func (c *Conn) sendGathered() {
	if c.flags&flagGathered != 0 {
		c.sendGatheredAt(c.gatheredAt())
	}
}

// gatheredAt finds c in loop.gathers, where it is the last one mostly.
func (c *Conn) gatheredAt() int {
	i := len(c.loop.gathers) - 1
	for c.loop.gathers[i].c != c {
		i--
	}
	return i
}

func (c *Conn) sendGatheredAt(i int) {
	l := c.loop
	g := l.gathers[i]
	b := l.gather[g.from:g.to]
	l.gathers[i].c = nil
	c.flags &^= flagGathered
	if f := c.filter(); f != nil {
		c.sendSealed(l.seal(f, b))
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
		}
		c.stall()
	}
}

// dropGathered gives up what was gathered for c.
func (c *Conn) dropGathered() {
	if c.flags&flagGathered != 0 {
		c.loop.gathers[c.gatheredAt()].c = nil
		c.flags &^= flagGathered
	}
}
