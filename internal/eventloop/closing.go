package eventloop

const (
	lingerTime  = int64(2e9)
	lingerBytes = 256 << 10
)

// CloseAfterFlush closes once everything written has been taken by the kernel.
// Nothing can be written any more, and no input comes: of the handler's methods
// only Timer, until everything is sent, and Closed are still called.
func (c *Conn) CloseAfterFlush() {
	if c.Closing() {
		return
	}
	c.loop.flushGatherOf(c)
	if c.Closing() {
		return
	}
	c.flags |= flagClosing
	c.handler = &parting{last: c.handler}
	c.parked = nil
	if c.out == nil {
		c.linger()
		return
	}
	c.pause()
}

// linger ends the sending side and reads on for a moment: closing with unread
// input would reset the connection and could take the answer with it
// (RFC 9112 §9.6).
func (c *Conn) linger() {
	if !c.goodbye() {
		return
	}
	if c.flags&flagEOF != 0 {
		c.Close(nil)
		return
	}
	c.loop.poller.Shutdown(c.key, int(c.fd))
	if c.flags&flagNoRead != 0 {
		c.flags &^= flagNoRead
		c.loop.poller.SetReading(c.key, int(c.fd), true)
	}
	c.SetTimer(lingerTime)
	c.flags |= flagShut
}

// parting is the handler of a connection that closes. It discards input; after
// the last byte was sent, until the peer closes, sends too much or takes too long.
type parting struct {
	last  Handler // nil if c closes before it had one
	bytes int
}

func (h *parting) Data(c *Conn, b []byte) int {
	if h.bytes += len(b); h.bytes > lingerBytes && c.flags&flagShut != 0 {
		c.Close(nil)
	}
	return len(b)
}

// EndOfStream keeps a connection that has something to send.
func (h *parting) EndOfStream(c *Conn) bool { return c.flags&flagShut == 0 }

func (h *parting) Drained(*Conn) {}

func (h *parting) Timer(c *Conn, now int64) {
	if c.flags&flagShut != 0 {
		c.Close(nil)
	} else if h.last != nil {
		h.last.Timer(c, now)
	}
}

func (h *parting) Closed(c *Conn, err error) {
	if h.last != nil {
		h.last.Closed(c, err)
	}
}

// Close closes at once. What was not sent is lost. err is what Handler.Closed gets.
func (c *Conn) Close(err error) { c.end(err, false) }

// Abort closes with a reset, so that the peer cannot take what it got for whole.
func (c *Conn) Abort(err error) { c.end(err, true) }

func (c *Conn) end(err error, reset bool) {
	if c.isClosed() {
		return
	}
	l := c.loop
	orderly := err == nil && !reset && l.gathering != c
	if l.gathering == c {
		l.gather, l.gathering = l.gather[:0], nil
	}
	c.flags |= flagClosed
	c.lastWords(orderly)
	l.timers.Stop(&c.timer)
	if reset {
		l.poller.Abort(c.key, int(c.fd))
	} else {
		l.poller.Close(c.key, int(c.fd))
	}
	l.release(c)
	c.parked = nil
	c.dropOut()
	l.n.closed++
	if c.handler != nil {
		l.guard(nil, func() { c.handler.Closed(c, err) })
	}
}
