package eventloop

import (
	"errors"
	"net/netip"
	"time"

	"github.com/weir-gateway/weir/internal/net/sys"
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
// The socket gets TCP_NODELAY and otherwise what Config sets for the connections
// of listeners.
type DialOptions struct {
	// Local is the IP address to connect from; the zero Addr leaves it to the
	// system. Its port is chosen for the connection, not for the address alone, so
	// that every local address has all of them towards every Endpoint.
	Local netip.Addr
	// Timeout bounds connecting, to 100 ms; 0 means 10s.
	Timeout time.Duration
}

// A Connector is a Handler that is notified when its connection is open: before any
// Data, once, if at all.
type Connector interface {
	Handler
	Connected(c *Conn)
}

const (
	dialTimeout = 10 * time.Second
	// dialRetry is how often a Unix listener is tried whose backlog is full; the
	// system does not report when it no longer is.
	dialRetry = int64(timerTick)
	// noListener is Conn.listener of a connection that no listener accepted.
	noListener = 1<<8 - 1
)

// dialing is the state of a connection that does not appear yet. It is found in
// its queue, which it has as long: what is written waits there.
type dialing struct {
	c        *Conn
	to       sys.Address
	deadline int64
	timer    int64 // when the handler wants its Timer; 0: not
	retry    int64 // when to try again; 0: the poller will report
}

// A failure is a connection that could not be started: its handler is notified later,
// never from Dial.
type failure struct {
	c   *Conn
	err error
}

// Dial starts to connect and returns at once. The Conn accepts everything that any
// other takes: what is written waits, up to Config.MaxQueue, pauses and timers
// count. h.Connected comes when it is open, h.Closed with the cause when it does
// not; neither before Dial has returned. It counts against Config.MaxConns from
// now on.
//
// A loop that ends dials no more: the Conn is closed then, and h is not called.
func (l *Loop) Dial(to Endpoint, opt DialOptions, h Connector) *Conn {
	if opt.Timeout <= 0 {
		opt.Timeout = dialTimeout
	}
	d := &dialing{deadline: l.now + int64(opt.Timeout)}
	c := l.outgoing(to.Addr, h, d)
	if c.isClosed() {
		return c
	}
	if err := d.open(to, opt); err != nil {
		l.failures.add(c, err)
		return c
	}
	d.connect()
	return c
}

// outgoing makes a connection that no listener accepted. It has no descriptor yet.
func (l *Loop) outgoing(peer netip.AddrPort, h Handler, d *dialing) *Conn {
	c := &Conn{
		socket:   socket{loop: l, fd: -1, listener: noListener, peerIP: peer.Addr().As16(), peerPort: peer.Port()},
		accepted: l.now, handler: h,
	}
	c.timer.Owner = c
	if l.ended {
		c.flags |= flagClosed
		return c
	}
	l.shared.open.Add(1)
	c.key = l.table.add(c)
	c.out = l.queues.get(c)
	c.out.dial, d.c = d, c
	return c
}

// open opens the socket that is to connect.
func (d *dialing) open(to Endpoint, opt DialOptions) (err error) {
	l := d.c.loop
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
	return d.own(fd)
}

// own gives the connection its descriptor.
func (d *dialing) own(fd int) error {
	fds := d.c.loop.one[:]
	fds[0] = int32(fd)
	n, err := d.c.loop.poller.Adopt(fds)
	if n == 1 {
		d.c.fd = fds[0]
	}
	return err
}

// connect makes the poller connect it.
func (d *dialing) connect() {
	c, l := d.c, d.c.loop
	d.retry = 0
	switch e := l.poller.Connect(c.key, int(c.fd), &d.to); {
	case e == sys.EAGAIN && d.to.Unix():
		d.retry = l.now + dialRetry
	case e != 0:
		l.failures.add(c, e)
		return
	}
	d.schedule()
}

// failureList is a loop's connections that could not be started and whose handlers do not
// know it yet.
type failureList []failure

// add has c closed with err in this tick or the next.
func (f *failureList) add(c *Conn, err error) { *f = append(*f, failure{c, err}) }

// report closes what could not be started. What its handlers start anew and fails at once
// is for the next tick.
func (f *failureList) report() {
	n := len(*f)
	for i := range n {
		x := (*f)[i]
		x.c.Close(x.err)
	}
	k := copy(*f, (*f)[n:])
	clear((*f)[k:])
	if *f = (*f)[:k]; k == 0 && cap(*f) > keepInbox {
		*f = nil
	}
}

// dialing returns the dial of a connection that is not open yet, or nil. q may be nil.
func (q *outQueue) dialing() *dialing {
	if q == nil {
		return nil
	}
	return q.dial
}

// Connecting reports whether c was dialed and does not appear yet.
func (c *Conn) Connecting() bool { return c.out.dialing() != nil }

// schedule sets the timer to what comes next while it is connecting.
func (d *dialing) schedule() {
	at := d.deadline
	if d.timer != 0 {
		at = min(at, d.timer)
	}
	if d.retry != 0 {
		at = min(at, d.retry)
	}
	d.c.loop.timers.Schedule(&d.c.timer, at)
}

// due does what the timer was set for.
func (d *dialing) due() {
	c, l := d.c, d.c.loop
	switch {
	case l.now >= d.deadline:
		c.Close(ErrDialTimeout)
		return
	case d.retry != 0 && l.now >= d.retry:
		d.connect()
		return
	case d.timer != 0 && l.now >= d.timer:
		d.timer = 0
		l.guard(c, func() { c.handler.Timer(c, l.now) })
	}
	if c.out.dialing() == d {
		d.schedule()
	}
}

// established makes an ordinary connection of one whose socket is connected, and counts
// it.
func (d *dialing) established(count *uint64) {
	c, l, q := d.c, d.c.loop, d.c.out
	if err := l.poller.Add(c.key, int(c.fd)); err != nil {
		c.Close(err)
		return
	}
	*count++
	q.dial = nil
	l.timers.Stop(&c.timer)
	if d.timer != 0 {
		l.timers.Schedule(&c.timer, d.timer)
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
		q.markDirty()
	}
}
