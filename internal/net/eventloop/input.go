package eventloop

import "slices"

// parkedInput is what a handler did not consume. It is given up as soon as it is.
type parkedInput struct{ b []byte }

// keep keeps b, which is the end of p's buffer unless p is nil. Input that comes a byte at a time
// is then not copied each time.
func (p *parkedInput) keep(b []byte) *parkedInput {
	if p == nil || cap(p.b) > 4*len(b)+4096 {
		p = &parkedInput{b: make([]byte, 0, max(256, len(b)+len(b)/2))}
	}
	if len(b) < len(p.b) {
		p.b = p.b[:copy(p.b, b)]
	} else if len(p.b) == 0 {
		p.b = append(p.b, b...)
	}
	return p
}

// Redeliver shows the handler once more what it left unconsumed.
func (c *Conn) Redeliver() {
	if c.flags&(flagNoRead|flagClosed|flagClosing) == 0 && c.parked != nil && !c.dispatching() {
		c.received(nil)
	}
}

// PauseReading stops Data calls until ResumeReading; the peer is throttled by
// the socket's window. The end of its stream is not seen meanwhile.
func (c *Conn) PauseReading() {
	if !c.Closing() {
		c.pause()
	}
}

func (c *Conn) pause() {
	if c.flags&flagNoRead == 0 && c.flags&flagEOF == 0 {
		c.flags |= flagNoRead
		if !c.Connecting() {
			c.setReading(false)
		}
	}
}

// ResumeReading undoes PauseReading. What was left unconsumed is shown again at once.
func (c *Conn) ResumeReading() {
	if c.Closing() || c.flags&flagNoRead == 0 {
		return
	}
	c.flags &^= flagNoRead
	if c.flags&flagEOF == 0 && !c.Connecting() {
		c.setReading(true)
	}
	if c.dispatching() {
		return // received continues from here
	}
	if c.parked != nil {
		c.received(nil)
		return
	}
	c.notifyEndOfStream()
}

// received shows b, after what is parked, to the handler until it stops
// consuming, and parks the rest.
func (c *Conn) received(b []byte) {
	if c.flags&flagClosing != 0 {
		c.handler.Data(c, b)
		return
	}
	p := c.parked
	if p != nil {
		c.parked = nil
		p.b = append(p.b, b...)
		b = p.b
	}
	b = c.dispatch(b)
	if len(b) > 0 && !c.Closing() {
		if len(b) > c.loop.limits.maxParked && !c.loop.arriving {
			c.Close(ErrParked)
		} else {
			c.parked = p.keep(b)
		}
	}
	c.notifyEndOfStream()
}

// dispatch makes the Data calls and returns what was not consumed. A handler
// that panics, or claims to have consumed more than there is, loses its
// connection.
func (c *Conn) dispatch(b []byte) []byte {
	l := c.loop
	defer func() {
		l.dispatching = l.dispatching[:len(l.dispatching)-1]
		if r := recover(); r != nil {
			l.panicked(c, r)
		}
	}()
	l.dispatching = append(l.dispatching, c)
	for len(b) > 0 && c.flags&(flagNoRead|flagClosed|flagClosing) == 0 {
		n := c.handler.Data(c, b)
		b = b[n:]
		if n == 0 {
			break
		}
	}
	return b
}

// dispatching reports whether a Data call for c is running. Another may run
// within it, for a connection that its handler resumed.
func (c *Conn) dispatching() bool { return slices.Contains(c.loop.dispatching, c) }

// endOfStream is called when the peer's stream has ended. A second time means
// that the connection is gone altogether.
func (c *Conn) endOfStream() {
	if c.flags&flagEOF != 0 {
		c.Close(nil)
		return
	}
	c.flags |= flagEOF
	c.setReading(false)
	c.notifyEndOfStream()
}

// notifyEndOfStream notifies the handler once, when all input before it was shown.
func (c *Conn) notifyEndOfStream() {
	if c.flags&(flagEOF|flagNotified|flagNoRead|flagClosed) != flagEOF || c.dispatching() {
		return
	}
	c.flags |= flagNotified
	stay := false
	c.loop.guard(c, func() { stay = c.handler.EndOfStream(c) })
	switch {
	case c.isClosed(), stay && c.flags&flagHalf == 0:
		return
	case c.flags&(flagHalf|flagClosing) == flagHalf && c.out != nil:
		return // allTaken follows
	}
	c.loop.gather.send(c)
	if c.flags&flagClosing == 0 || c.flags&flagShut != 0 {
		c.Close(nil)
	}
}
