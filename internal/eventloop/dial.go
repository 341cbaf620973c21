package eventloop

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/weir-gateway/weir/internal/poller"
	"github.com/weir-gateway/weir/internal/sys"
)

// Why a connection was never made, besides the system's reasons (syscall.Errno:
// ECONNREFUSED, EADDRNOTAVAIL, EMFILE, ...).
var (
	ErrDialTimeout  = errors.New("connecting took too long")
	ErrTooManyConns = errors.New("too many connections")
)

// An Endpoint is where Dial connects: an IP address and port, or a Unix socket.
type Endpoint struct {
	Addr netip.AddrPort
	// Path of a Unix socket; empty means Addr. "@name" is an abstract one.
	Path string
}

// String returns the address or the path.
func (e Endpoint) String() string {
	if e.Path != "" {
		return e.Path
	}
	return e.Addr.String()
}

// DialOptions are how Dial connects. The zero value works.
//
// The socket gets TCP_NODELAY and otherwise what Config asks for the connections
// of listeners.
type DialOptions struct {
	// Local is the IP address to connect from; the zero Addr leaves it to the
	// system. Its port is chosen for the connection, not for the address alone, so
	// that every local address has all of them towards every Endpoint.
	Local netip.Addr
	// Timeout bounds connecting, to 100 ms; 0 means 10s.
	Timeout time.Duration
}

// A Connector is a Handler that is told when its connection stands: before any
// Data, once, if at all.
type Connector interface {
	Handler
	Connected(c *Conn)
}

const (
	dialTimeout = 10 * time.Second
	// dialRetry is how often a Unix listener is tried whose backlog is full; the
	// system does not tell when it no longer is.
	dialRetry = int64(timerTick)
	// noListener is Conn.listener of a connection that no listener accepted.
	noListener = 1<<8 - 1
)

// dialing is the state of a connection that does not stand yet. It is found in
// its queue, which it has as long: what is written waits there.
type dialing struct {
	to       sys.Address
	deadline int64
	timer    int64 // when the handler wants its Timer; 0: not
	retry    int64 // when to try again; 0: the poller will tell
}

// A failure is a connection that could not be begun: its handler is told later,
// never from Dial.
type failure struct {
	c   *Conn
	err error
}

// Dial begins to connect and returns at once. The Conn takes everything that any
// other takes: what is written waits, up to Config.MaxQueue, pauses and timers
// count. h.Connected comes when it stands, h.Closed with the cause when it does
// not; neither before Dial has returned. It counts against Config.MaxConns from
// now on.
//
// A loop that ends dials no more: the Conn is closed then, and h told nothing.
func (l *Loop) Dial(to Endpoint, opt DialOptions, h Connector) *Conn {
	if opt.Timeout <= 0 {
		opt.Timeout = dialTimeout
	}
	d := &dialing{deadline: l.now + int64(opt.Timeout)}
	c := l.outgoing(to.Addr, h, d)
	if c.isClosed() {
		return c
	}
	if err := l.beginDial(c, d, to, opt); err != nil {
		l.fail(c, err)
		return c
	}
	l.connect(c, d)
	return c
}

// outgoing makes a connection that no listener accepted. It has no descriptor yet.
func (l *Loop) outgoing(peer netip.AddrPort, h Handler, d *dialing) *Conn {
	c := &Conn{loop: l, fd: -1, listener: noListener, peerIP: peer.Addr().As16(), peerPort: peer.Port(), accepted: l.now, handler: h}
	c.timer.Owner = c
	if l.ended {
		c.flags |= flagClosed
		return c
	}
	l.shared.open.Add(1)
	c.key = l.take(c)
	c.out = l.newQueue()
	c.out.dial = d
	return c
}

func (l *Loop) beginDial(c *Conn, d *dialing, to Endpoint, opt DialOptions) (err error) {
	if l.shared.open.Load() > l.limits.maxConns {
		l.n.refused++
		return ErrTooManyConns
	}
	if to.Path != "" {
		err = d.to.UnixAddress(to.Path)
	} else {
		err = d.to.TCPAddress(to.Addr)
	}
	if err != nil {
		return err
	}
	fd, err := sys.OpenStream(&d.to, opt.Local, l.dialSettings)
	if err != nil {
		return err
	}
	return l.own(c, fd)
}

// own gives c its descriptor.
func (l *Loop) own(c *Conn, fd int) error {
	fd, err := l.poller.Adopt(fd)
	if err == nil {
		c.fd = int32(fd)
	}
	return err
}

// connect makes the poller connect c.
func (l *Loop) connect(c *Conn, d *dialing) {
	d.retry = 0
	switch e := l.poller.Connect(c.key, int(c.fd), &d.to); {
	case e == sys.EAGAIN && d.to.Unix():
		d.retry = l.now + dialRetry
	case e != 0:
		l.fail(c, e)
		return
	}
	c.waitForDial(d)
}

// fail closes c with err in this tick or the next.
func (l *Loop) fail(c *Conn, err error) { l.failures = append(l.failures, failure{c, err}) }

// tellFailures closes what could not be begun. What its handlers begin anew and
// fails at once is for the next tick.
func (l *Loop) tellFailures() {
	n := len(l.failures)
	for i := range n {
		l.failures[i].c.Close(l.failures[i].err)
	}
	k := copy(l.failures, l.failures[n:])
	clear(l.failures[k:])
	if l.failures = l.failures[:k]; k == 0 && cap(l.failures) > keepInbox {
		l.failures = nil
	}
}

// dialing returns what c is as long as it does not stand, or nil.
func (c *Conn) dialing() *dialing {
	if c.out == nil {
		return nil
	}
	return c.out.dial
}

// Connecting reports whether c was dialed and does not stand yet.
func (c *Conn) Connecting() bool { return c.dialing() != nil }

// waitForDial sets c's timer to what comes next while it is connecting.
func (c *Conn) waitForDial(d *dialing) {
	at := d.deadline
	if d.timer != 0 {
		at = min(at, d.timer)
	}
	if d.retry != 0 {
		at = min(at, d.retry)
	}
	c.loop.timers.Schedule(&c.timer, at)
}

func (c *Conn) dialTimer(d *dialing) {
	l := c.loop
	switch {
	case l.now >= d.deadline:
		c.Close(ErrDialTimeout)
		return
	case d.retry != 0 && l.now >= d.retry:
		l.connect(c, d)
		return
	case d.timer != 0 && l.now >= d.timer:
		d.timer = 0
		l.guard(c, func() { c.handler.Timer(c, l.now) })
	}
	if c.dialing() == d {
		c.waitForDial(d)
	}
}

// Connected implements poller.Handler.
func (l *Loop) Connected(k poller.Key, err syscall.Errno) {
	c := l.conn(k)
	if c == nil {
		return
	}
	if d := c.dialing(); err == sys.EAGAIN && d != nil && d.to.Unix() {
		d.retry = l.now + dialRetry // the listener's backlog is full
		c.waitForDial(d)
		return
	}
	if err != 0 {
		c.Close(err)
		return
	}
	c.stand(&l.n.dialed)
}

// stand makes an ordinary connection of c, whose socket is connected, and counts
// it.
func (c *Conn) stand(count *uint64) {
	l, q := c.loop, c.out
	if err := l.poller.Add(c.key, int(c.fd)); err != nil {
		c.Close(err)
		return
	}
	*count++
	timer := q.dial.timer
	q.dial = nil
	l.timers.Stop(&c.timer)
	if timer != 0 {
		l.timers.Schedule(&c.timer, timer)
	}
	c.accepted = l.now
	if c.flags&flagNoRead != 0 {
		l.poller.SetReading(c.key, int(c.fd), false)
	}
	if q.bytes == 0 {
		c.out = nil // not kept for the next use: thousands may be dialed at once, and once
	}
	if h, ok := c.Handler().(Connector); ok {
		l.guard(c, func() { h.Connected(c) })
	}
	if c.out == nil {
		c.allTaken() // which the handler may have waited for
	} else if c.out == q {
		c.markDirty()
	}
}
