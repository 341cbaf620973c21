package eventloop

const (
	lingerTime  = int64(2e9)
	lingerBytes = 4 << 20 // so that who sends a body that was too large still reads why
)

// CloseAfterFlush closes once everything written has been taken by the kernel.
// Nothing can be written any more, and no input comes: of the handler's methods
// only Timer, until everything is sent, and Closed are still called.
func (c *Conn) CloseAfterFlush() {
	if c.Closing() {
		return
	}
	c.loop.gather.send(c)
	if c.Closing() {
		return
	}
	c.flags |= flagClosing
	p := &parting{last: c.handler}
	c.handler = p
	c.parked = nil
	if c.out == nil {
		p.linger(c)
		return
	}
	c.pause()
}

// CloseWrite ends the sending side once everything written has been taken by the
// kernel, and reads on. Nothing can be written any more. When the peer's side has
// ended too, and the handler knows, the connection is closed in order.
func (c *Conn) CloseWrite() {
	if c.mute() {
		return
	}
	c.loop.gather.send(c)
	if c.mute() {
		return
	}
	c.flags |= flagHalf
	if c.out == nil {
		c.allTaken()
	}
}

// allTaken does what was to come after the last byte.
func (c *Conn) allTaken() {
	switch {
	case c.flags&(flagClosed|flagShut) != 0:
	case c.flags&flagClosing != 0:
		c.handler.(*parting).linger(c)
	case c.flags&flagHalf == 0 || !c.filtered().end(c):
	case c.flags&flagNotified != 0:
		c.Close(nil)
	default:
		c.shutdown()
		c.flags |= flagShut
	}
}

// parting is the handler of a connection that closes. It discards input; after
// the last byte was sent, until the peer closes, sends too much or takes too long.
type parting struct {
	last  Handler // nil if c closes before it had one
	bytes int
}

// linger ends the sending side and reads on briefly: closing with unread
// input would reset the connection and could take the answer with it
// (RFC 9112 §9.6).
func (h *parting) linger(c *Conn) {
	if !c.filtered().closeFilter(c) {
		return
	}
	if c.flags&flagEOF != 0 {
		c.Close(nil)
		return
	}
	if c.flags&flagShut == 0 {
		c.shutdown()
	}
	if c.fd == carried { // no reset of the socket takes away what was sent
		c.Close(nil)
		return
	}
	if c.flags&flagNoRead != 0 {
		c.flags &^= flagNoRead
		c.setReading(true)
	}
	c.loop.timers.Schedule(&c.timer, c.loop.now+lingerTime)
	c.flags |= flagShut
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
	orderly := err == nil && !reset && c.flags&flagGathered == 0
	l.gather.drop(c)
	c.flags |= flagClosed
	c.filtered().lastWords(c, orderly)
	l.timers.Stop(&c.timer)
	c.close(err, orderly && c.out == nil, reset)
	l.release(c)
	if c.Connecting() {
		l.n.dialFailed++
	} else {
		l.n.closed++
	}
	c.parked = nil
	if c.out != nil {
		c.out.release()
	}
	if c.handler != nil {
		l.guard(nil, func() { c.handler.Closed(c, err) })
	}
}
