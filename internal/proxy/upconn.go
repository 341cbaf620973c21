package proxy

import (
	"errors"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// upConn is a connection to a peer: idle in its pool, or in use by one exchange.
type upConn struct {
	// Fixed at dial.
	loopState *LoopState
	pool      *pool
	c         *eventloop.Conn

	// secure is how it is spoken over TLS, line the handshakes that its own is one of;
	// nil: plaintext.
	secure *upstream.TLS
	line   *tlsterm.Line
	// link is what carries it besides others; nil: it has a socket of its own.
	link *link

	x     *Exchange // nil when idle, or of no more use
	at    int       // its place in pool.idle
	lease upstream.Lease
	// The reply that is being read.
	left    int64 // of a body whose length is known
	chunked http1.Chunked
	trailer []byte // of a chunked body, as far as it has come
	seen    int    // how much of an incomplete head was looked at
	phase   phase
	keep    bool // the reply lets the connection live on
	paused  bool // the sink takes no more for now
	got     bool // some of the reply has come

	interims      uint8 // 1xx replies to the request under way
	isEstablished bool  // it was connected, and secure
	reached       bool  // it was connected
	closed        bool
	served        int
	// deadline is when Timer acts, armed when it comes at the latest; 0: never.
	deadline, armed int64
	firstByteBy     int64
	unsent          int // of the request when its time to be taken began

	shake   *tlsterm.Shake // nil: there is none under way
	shakeBy int64          // when it has to be over
	early   []byte         // what waits for it
}

type phase uint8

const (
	readingHead phase = iota
	readingLength
	readingChunks
	readingRest // until the connection ends
)

var _ eventloop.Connector = (*upConn)(nil)

// attach makes u the connection of x.
func (u *upConn) attach(x *Exchange) {
	x.up = u
	u.begin(x)
}

// begin sends x on u, as far as it is there.
func (u *upConn) begin(x *Exchange) {
	u.x = x
	u.phase, u.seen, u.got, u.paused, u.interims = readingHead, 0, false, false, 0
	u.served++
	now := u.loopState.loop.Now()
	u.loopState.checkLeases(now)
	u.lease = u.loopState.leases.Checkout(now, u.pool.key.peer)
	if x.complete {
		u.requestSent()
	} else {
		u.noDeadline()
	}
	u.write(x.Head)
}

// noDeadline leaves the exchange's own.
func (u *upConn) noDeadline() {
	u.deadline = 0
	switch x := u.x; {
	case u.shaking():
		u.deadlineIn(u.shakeBy - u.loopState.loop.Now())
	case x != nil && x.deadline > 0:
		u.deadlineIn(x.deadline - u.loopState.loop.Now())
	}
}

// writeIn starts the time in which the peer has to take some of the request.
func (u *upConn) writeIn() {
	u.unsent = u.backlog()
	u.deadlineIn(int64(u.x.Cluster.Config().Timeouts.Write))
}

// requestSent starts the wait for the head.
func (u *upConn) requestSent() {
	if x := u.x; u.phase == readingHead {
		u.firstByteBy = u.loopState.loop.Now() + x.times.firstByte
		u.deadlineIn(x.times.firstByte)
		x.hedgeIn(u)
	}
}

// deadlineIn makes Timer act in d nanoseconds, or at the exchange's deadline if that
// comes before. The wheel is touched only when it would come too late.
func (u *upConn) deadlineIn(d int64) {
	now := u.loopState.loop.Now()
	at := now + d
	if x := u.x; x != nil && x.deadline > 0 {
		at = min(at, x.deadline)
	}
	if u.shaking() {
		at = min(at, u.shakeBy)
	}
	u.deadline = at
	if u.armed == 0 || at < u.armed {
		u.armed = at
		u.c.SetTimer(max(at-now, 1))
	}
}

// Connected implements eventloop.Connector: what was written goes out by itself.
func (u *upConn) Connected(*eventloop.Conn) {
	u.reached = true
	switch {
	case u.link != nil:
		u.isEstablished = true
		if x := u.x; x != nil {
			u.established(x)
		}
		return
	case u.secure != nil:
		u.beginTLS()
		return
	}
	u.isEstablished = true
}

// Data implements eventloop.Handler.
func (u *upConn) Data(c *eventloop.Conn, b []byte) int {
	if u.shake != nil {
		u.shake.Data(b)
		return len(b)
	}
	x := u.x
	if x == nil {
		// No request was sent: what it would answer cannot be known (RFC 9112 §9.2).
		c.Close(nil)
		return len(b)
	}
	u.got = true
	if x.second.up != nil {
		x.settle(u)
	}
	switch u.phase {
	case readingHead:
		return u.head(x, b)
	case readingLength:
		data := b[:min(int64(len(b)), u.left)]
		u.left -= int64(len(data))
		if u.body(x, data) && u.left == 0 {
			u.finish(x, nil, len(b) > len(data))
		}
		return len(data)
	case readingChunks:
		return u.chunks(x, b)
	}
	u.body(x, b)
	return len(b)
}

// head reads the head of a reply.
func (u *upConn) head(x *Exchange, b []byte) int {
	loopState := u.loopState
	limits := loopState.proxy.limits
	if u.seen > 0 && u.seen <= len(b) && http1.HeadPending(b, u.seen, limits) {
		u.seen = len(b)
		return 0
	}
	res := &loopState.res
	n, err := http1.ParseResponse(res, b, limits, x.Method)
	if err != nil {
		loopState.proxy.log.Debug("bad reply", "upstream", u.pool.key.peer.Name(), "err", err)
		x.broken(u, upstream.Reset, BadReply)
		return len(b)
	}
	if n == 0 {
		u.seen = len(b)
		return 0
	}
	u.seen = 0
	if res.Status < 200 {
		return u.interim(x, res, n, len(b) > n)
	}
	x.status, x.firstByte = res.Status, loopState.loop.Now()
	x.grpcHead(res)
	if x.status >= 400 {
		if wait, may := x.pushback(res); may && x.retry(upstream.OK, wait) {
			return len(b)
		}
	}
	x.answered, u.keep = true, res.KeepAlive
	x.forget()
	if !x.GRPC {
		x.tally.codes[min(res.Status/100, 5)].Add(1)
	}
	switch res.Body {
	case http1.BodyLength:
		u.phase, u.left = readingLength, res.ContentLength
	case http1.BodyChunked:
		u.phase, u.chunked, u.trailer = readingChunks, http1.Chunked{}, u.trailer[:0]
	default: // a tunnel would need CONNECT, which is never asked
		u.phase = readingRest
	}
	whole := res.Body == http1.BodyNone || res.Body == http1.BodyLength && int64(len(b)-n) >= res.ContentLength
	if !whole && !x.GRPC { // how a call of gRPC went is known at its end
		x.headed = true
		x.Cluster.Head(x.peer, x.began, x.firstByte, x.status)
	}
	empty := res.Body == http1.BodyNone || res.Body == http1.BodyLength && res.ContentLength == 0
	u.setLength(res)
	x.sink.Head(x, res)
	switch {
	case u.x != x: // the client went
	case empty:
		u.finish(x, nil, len(b) > n)
	case !whole:
		u.deadlineIn(x.times.idle)
	}
	return n
}

// interim takes a 1xx. Another head follows it, but after 101.
func (u *upConn) interim(x *Exchange, res *http1.Response, n int, more bool) int {
	if u.interims++; u.interims > http1.MaxInterim {
		u.loopState.proxy.log.Debug("too many interim replies", "upstream", u.pool.key.peer.Name())
		x.broken(u, upstream.Reset, Interims)
		return n
	}
	switch res.Status {
	case 101:
		if x.Upgrade == "" || !http1.EqualFold(res.Upgrade, x.Upgrade) || !x.complete {
			x.broken(u, upstream.Reset, BadReply)
			return n
		}
		u.upgrade(x, res)
	case 100:
		if x.Expect {
			x.answered = true
			x.sink.Interim(x, res)
		}
	default:
		x.answered = true
		x.sink.Interim(x, res)
	}
	return n
}

// body passes a piece on. It reports whether x continues.
func (u *upConn) body(x *Exchange, b []byte) bool {
	if len(b) == 0 {
		return true
	}
	x.bytes += int64(len(b))
	u.touch(x)
	full := x.sink.Body(x, b)
	if u.x != x {
		return false
	}
	if full && !u.paused && !(u.phase == readingLength && u.left == 0) {
		u.paused = true
		u.c.PauseReading()
	}
	return true
}

// touch notes that the reply makes progress.
func (u *upConn) touch(x *Exchange) {
	u.loopState.leases.Touch(u.loopState.loop.Now(), u.lease)
	if u.phase != readingLength || u.left > 0 {
		u.deadlineIn(x.times.idle)
	}
}

// chunks decodes b piece by piece.
func (u *upConn) chunks(x *Exchange, b []byte) int {
	used := 0
	var trailer *[]byte
	if x.Trailers {
		trailer = &u.trailer
	}
	for used < len(b) && !u.paused {
		data, n, done, err := u.chunked.DecodeTrailer(b[used:], trailer)
		if err != nil {
			x.broken(u, upstream.Reset, BadReply)
			return len(b)
		}
		used += n
		if !u.body(x, data) {
			return len(b)
		}
		if done {
			u.finish(x, u.trailer, len(b) > used)
			return used
		}
		if n == 0 {
			break
		}
	}
	return used
}

// finish ends x, whose reply is complete. more says that something came after it.
func (u *upConn) finish(x *Exchange, trailer []byte, more bool) {
	u.free(x)
	x.grpcEnd(trailer)
	x.done(upstream.OK)
	if u.link == nil && u.keep && !more && x.complete && u.backlog() == 0 && !u.closed {
		u.pool.put(u, x.Cluster.Config())
	} else {
		u.c.Close(nil)
	}
	x.sink.End(x, allowedTrailers(trailer))
	x.loopState.recycle(x)
}

// free parts u and x, whose connection it is.
func (u *upConn) free(x *Exchange) {
	x.up = nil
	u.part()
}

// part ends u's use.
func (u *upConn) part() {
	u.x = nil
	u.loopState.leases.Return(u.lease)
}

// EndOfStream implements eventloop.Handler: the peer is done.
func (u *upConn) EndOfStream(c *eventloop.Conn) bool {
	if u.shake != nil {
		u.shake.End()
		return true
	}
	if x := u.x; x != nil && u.phase == readingRest {
		u.keep = false
		u.finish(x, nil, false)
	} else if x != nil {
		u.lost(x, nil)
	}
	return false
}

// Closed implements eventloop.Handler.
func (u *upConn) Closed(_ *eventloop.Conn, err error) {
	x := u.x
	if x != nil && errors.Is(err, h2.ErrElsewhere) {
		u.closed = true
		u.rehome(x)
		return
	}
	u.endTLS()
	if !u.closed {
		u.gone()
	}
	if x != nil {
		u.lost(x, err)
	}
}

// gone takes u out of the books.
func (u *upConn) gone() {
	u.closed = true
	if u.link != nil {
		return // the link is counted
	}
	if u.x == nil && u.at < len(u.pool.idle) && u.at >= 0 && u.pool.idle[u.at] == u {
		u.pool.remove(u)
	}
	u.pool.gone()
}

// lost ends x's attempt, whose connection ended too early.
func (u *upConn) lost(x *Exchange, err error) {
	switch {
	case u.link != nil && u.lostOnLink(x, err):
	case errors.Is(err, eventloop.ErrStopped):
		x.leave(upstream.Canceled)
		x.fail(failures[Stopped])
	case errors.Is(err, eventloop.ErrDialTimeout):
		x.broken(u, upstream.ConnectError, ConnectTimeout)
	case u.shaking() && u.reached:
		u.shakeFailed(x, err)
	case !u.isEstablished:
		x.broken(u, upstream.ConnectError, ConnectFailed)
	case u.refused(err):
		u.shakeFailed(x, refusal(err))
	case errors.Is(err, eventloop.ErrStalled):
		x.broken(u, upstream.Timeout, WriteTimeout)
	case u.phase != readingHead:
		x.broken(u, upstream.Reset, Truncated)
	case !u.got && u.served > 1:
		x.broken(u, upstream.Stale, Reset)
	default:
		x.broken(u, upstream.Reset, Reset)
	}
}

// Drained implements eventloop.Handler.
func (u *upConn) Drained(*eventloop.Conn) {
	if x := u.x; x != nil {
		x.room()
	}
}

// Timer implements eventloop.Handler.
func (u *upConn) Timer(c *eventloop.Conn, now int64) {
	u.armed = 0
	u.loopState.checkLeases(now)
	x := u.x
	switch {
	case u.deadline == 0:
		return
	case x != nil && u.shaking() && now >= u.shakeBy && u.link != nil:
		x.broken(u, upstream.ConnectError, ConnectTimeout)
	case x != nil && u.shaking() && now >= u.shakeBy:
		u.shakeFailed(x, upstream.ErrHandshakeTimeout)
	case now < u.deadline:
		u.deadlineIn(u.deadline - now)
		return
	case x == nil:
		c.Close(nil) // idle for long enough
	case x.deadline > 0 && now >= x.deadline:
		x.late()
	case u.paused: // it is the client who is slow
		u.noDeadline()
	case u.phase != readingHead && !x.complete && now-x.sentAt < x.times.idle: // the request still moves
		u.deadlineIn(x.sentAt + x.times.idle - now)
	case u.phase != readingHead:
		x.broken(u, upstream.Timeout, IdleTimeout)
	case !x.complete && u.backlog() < u.unsent:
		u.writeIn()
	case !x.complete:
		x.broken(u, upstream.Timeout, WriteTimeout)
	case now < u.firstByteBy:
		u.deadlineIn(u.firstByteBy - now)
		if x.hedgeAt > 0 && now >= x.hedgeAt {
			x.hedge()
		}
	default:
		x.broken(u, upstream.Timeout, FirstByte)
	}
}

const leaseCheck = int64(10e9)

// checkLeases reports connections that are in use and did nothing for long.
func (l *LoopState) checkLeases(now int64) {
	if now-l.checked < leaseCheck {
		return
	}
	l.checked = now
	l.leases.Overdue(now, func(p *upstream.Peer, idle int64) {
		l.gauges.leaks.Add(1)
		l.proxy.log.Warn("connection in use does nothing", "upstream", p.Name(), "seconds", idle/1e9)
	})
}
