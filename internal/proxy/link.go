package proxy

import (
	"errors"
	"io"
	"time"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/front/http1"
	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// link is a connection to a peer that speaks HTTP/2, or is about to: many exchanges share
// it, each with an upConn on a stream of its own. Until it is open it is the handler of its
// socket, after that h2.Session is.
type link struct {
	// Fixed at dial.
	loopState *LoopState
	pool      *pool
	cluster   *upstream.Cluster
	c         *eventloop.Conn
	secure    *upstream.TLS // nil: plaintext
	line      *tlsterm.Line

	session   *h2.Session
	shake     *tlsterm.Shake // nil: there is none under way
	readyBy   int64          // when the backend has to have shown that it speaks HTTP/2
	served    int
	uncounted bool // it is not counted in the pool any more
}

var (
	_ eventloop.Connector = (*link)(nil)
	_ h2.Owner            = (*link)(nil)
)

// A linkError is why no exchange could use a link.
type linkError struct{ cause Cause }

// Error implements error.
func (e *linkError) Error() string { return failures[e.cause].Message }

// errNoHTTP2 reports that a peer of a cluster with protocol http2 has not agreed on it.
var errNoHTTP2 = errors.New("the peer does not agree on HTTP/2")

// http1Memory is how long it is remembered that a peer chose HTTP/1.1.
const http1Memory = int64(5 * time.Minute)

// shares reports whether x goes over HTTP/2 to p's peer, as far as is known. What switches
// protocols does not: it has a connection of its own.
func (p *pool) shares(x *Exchange) bool {
	switch x.Cluster.Config().Protocol {
	case upstream.HTTP2:
		return x.Upgrade == ""
	case upstream.AutoProtocol:
		return x.Upgrade == "" && p.key.peer.Address().TLS && (p.http1At == 0 || p.loopState.loop.Now()-p.http1At >= http1Memory)
	}
	return false
}

// stream returns an upConn for x on a link that is there or is being dialled; nil if there is
// neither. Links are filled one after the other, so that there are few.
func (p *pool) stream(x *Exchange) *upConn {
	if u := p.onLink(x); u != nil {
		x.tally.hits.Add(1)
		return u
	}
	if p.waiting() > 0 || !p.mayLink() || !p.key.peer.Reserve() {
		return nil
	}
	return p.dialLink(x)
}

// mayLink reports whether another link may help: not when a peer allows no streams at all.
func (p *pool) mayLink() bool {
	for _, l := range p.links {
		if l.session.Ready() && l.session.Allows() == 0 {
			return false
		}
	}
	return true
}

// onLink returns an upConn for x on a link that has room, or nil.
func (p *pool) onLink(x *Exchange) *upConn {
	for _, l := range p.links {
		if l.hasRoom() {
			if u := l.carry(&upConn{loopState: p.loopState, pool: p}, x); u != nil {
				return u
			}
		}
	}
	return nil
}

// hasRoom reports whether one more exchange may use l.
func (l *link) hasRoom() bool {
	most := l.cluster.Config().Pool.MaxRequests
	return l.session.Free() > 0 && (most == 0 || l.served < most) && (l.secure == nil || l.secure == l.pool.key.peer.TLS())
}

// carry gives u a stream of l's.
func (l *link) carry(u *upConn, x *Exchange) *upConn {
	c := l.session.Open(u)
	if c == nil {
		return nil
	}
	l.served++
	u.c, u.link, u.armed = c, l, 0
	u.isEstablished, u.reached = l.session.Ready(), l.session.Ready()
	u.shakeBy = l.loopState.loop.Now() + x.times.connect
	return u
}

// dialLink opens a link and returns an upConn for x on it. The connection is reserved.
func (p *pool) dialLink(x *Exchange) *upConn {
	loopState := p.loopState
	x.tally.misses.Add(1)
	l := &link{loopState: loopState, pool: p, cluster: x.Cluster, readyBy: loopState.loop.Now() + x.times.connect}
	p.open++
	loopState.gauges.open.Add(1)
	a := p.key.peer.Address()
	if a.TLS {
		l.secure, l.line = p.key.peer.TLS(), x.tally.lineOf(loopState.proxy)
	}
	l.c = loopState.loop.Dial(eventloop.Endpoint{Addr: a.IP, Path: a.Unix}, eventloop.DialOptions{Timeout: time.Duration(x.times.connect)}, l)
	if l.c.Closing() {
		p.gone()
		return nil
	}
	switch x.Cluster.Config().ProxyProtocol {
	case 1:
		l.c.Write(limit.AppendProxyV1(nil, x.Client, x.Local))
	case 2:
		l.c.Write(limit.AppendProxyV2(nil, x.Client, x.Local))
	}
	l.c.SetTimer(max(x.times.connect, 1))
	l.session = loopState.caller.Begin(l.c, l, &x.tally.http2)
	p.links = append(p.links, l)
	u := l.carry(&upConn{loopState: loopState, pool: p}, x)
	if u == nil {
		l.c.Close(nil)
	}
	return u
}

// Connected implements eventloop.Connector.
func (l *link) Connected(c *eventloop.Conn) {
	if l.secure == nil {
		l.start()
		return
	}
	a := l.pool.key.peer.Address()
	protocols := []string{"h2"}
	if l.cluster.Config().Protocol == upstream.AutoProtocol {
		protocols = []string{"h2", "http/1.1"}
	}
	if cfg := l.secure.GM(a, protocols...); cfg != nil {
		l.shake = l.loopState.proxy.tls.ShakeGM(c, l.line, cfg, l.shook)
		return
	}
	cfg := l.secure.Config(a)
	cfg.NextProtos = protocols
	l.shake = l.loopState.proxy.tls.Shake(c, l.line, cfg, a.String(), l.shook)
}

func (l *link) start() {
	l.session.Start(max(l.readyBy-l.loopState.loop.Now(), 1), int64(l.cluster.Config().Pool.IdleTimeout))
}

// shook takes the outcome of the handshake.
func (l *link) shook(err error) {
	s := l.shake
	l.shake = nil
	if err == nil && s.Protocol() != "h2" && l.cluster.Config().Protocol == upstream.HTTP2 {
		err = errNoHTTP2
	}
	if err != nil {
		l.shakeFailed(err)
		return
	}
	l.cluster.Shook(l.pool.key.peer, s.Resumed())
	if s.Protocol() == "h2" {
		l.start()
		s.Install()
		return
	}
	l.handOver(s)
}

// handOver gives the socket to the first that waits: the peer has chosen HTTP/1.1. The others
// get connections of their own.
func (l *link) handOver(s *tlsterm.Shake) {
	l.uncounted = true // u is counted in its place
	l.pool.http1At = l.loopState.loop.Now()
	u := &upConn{loopState: l.loopState, pool: l.pool, c: l.c, secure: l.secure, line: l.line, isEstablished: true, reached: true, shakeBy: l.readyBy, at: -1}
	l.c.SetHandler(u)
	l.c.SetTimer(0)
	s.Install()
	if l.c.Closing() {
		l.session.Fail(&linkError{ConnectFailed})
		return
	}
	l.pool.keep(u, int64(l.cluster.Config().Pool.IdleTimeout))
	l.session.Fail(h2.ErrElsewhere)
}

func (l *link) shakeFailed(err error) {
	cause, err := shakeFailure(err)
	l.cluster.ShakeFailed(l.pool.key.peer, err, l.loopState.loop.Now())
	l.session.Fail(&linkError{cause})
	l.c.Close(nil)
}

// Data implements eventloop.Handler.
func (l *link) Data(_ *eventloop.Conn, b []byte) int {
	if l.shake != nil {
		l.shake.Data(b)
	}
	return len(b)
}

// EndOfStream implements eventloop.Handler.
func (l *link) EndOfStream(*eventloop.Conn) bool {
	if l.shake != nil {
		l.shake.End()
		return true
	}
	return false
}

// Drained implements eventloop.Handler.
func (l *link) Drained(*eventloop.Conn) {}

// Timer implements eventloop.Handler: it does not appear in time.
func (l *link) Timer(c *eventloop.Conn, _ int64) {
	if l.secure != nil && l.shake != nil {
		l.shakeFailed(upstream.ErrHandshakeTimeout)
		return
	}
	l.session.Fail(&linkError{ConnectTimeout})
	c.Close(nil)
}

// Closed implements eventloop.Handler: it was never established.
func (l *link) Closed(_ *eventloop.Conn, err error) {
	s := l.shake
	if l.shake = nil; s != nil {
		s.Cancel()
	}
	cause := ConnectFailed
	switch {
	case errors.Is(err, eventloop.ErrStopped):
		l.session.Fail(err)
	case errors.Is(err, eventloop.ErrDialTimeout):
		cause = ConnectTimeout
	case s != nil:
		l.cluster.ShakeFailed(l.pool.key.peer, orEOF(err), l.loopState.loop.Now())
		cause = TLSFailed
	}
	l.session.Fail(&linkError{cause})
	l.Ended(l.session, err)
}

func orEOF(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// Room implements h2.Owner.
func (l *link) Room(*h2.Session) {
	if l.pool.waiting() > 0 {
		l.loopState.postWaiting()
	}
	if p := l.pool; p.key.peer.Draining() || !l.hasRoom() && l.session.Free() > 0 {
		l.session.Leave()
	}
}

// Leaving implements h2.Owner.
func (l *link) Leaving(*h2.Session) {
	p := l.pool
	for i, other := range p.links {
		if other == l {
			p.links = append(p.links[:i:i], p.links[i+1:]...)
			break
		}
	}
	if p.waiting() > 0 {
		l.loopState.postWaiting()
	}
}

// Ended implements h2.Owner.
func (l *link) Ended(*h2.Session, error) {
	if !l.uncounted {
		l.uncounted = true
		l.pool.gone()
	}
}

// setLength puts the length of a body into its head that a stream shows in chunks.
func (u *upConn) setLength(res *http1.Response) {
	if u.link == nil || res.Body != http1.BodyChunked {
		return
	}
	if c, ok := u.c.CarriedBy().(interface{ Length() (int64, bool) }); ok {
		if n, said := c.Length(); said {
			res.Body, res.ContentLength = http1.BodyLength, n
		}
	}
}

// rehome gives x another connection than u, whose link had no room for it after all. Nothing
// was sent on it.
func (u *upConn) rehome(x *Exchange) {
	if x.second.up != nil {
		x.abandon(u, upstream.Canceled)
		return
	}
	p, early := u.pool, u.early
	u.early = nil
	u.free(x)
	next := p.connection(x)
	switch {
	case next != nil:
		next.attach(x)
		if x.up == next && x.lost {
			next.write(early) // Head has not all of it any more
		}
		if x.up == next {
			x.room()
		}
	case x.lost:
		x.leave(upstream.Canceled)
		x.fail(failures[PendingFull])
	default:
		p.wait(x)
	}
}

// lostOnLink ends x's attempt, whose stream ended too early. It reports whether err is about
// HTTP/2.
func (u *upConn) lostOnLink(x *Exchange, err error) bool {
	if e, ok := errors.AsType[*linkError](err); ok {
		x.broken(u, upstream.ConnectError, e.cause)
		return true
	}
	e, ok := errors.AsType[*h2.PeerError](err)
	switch {
	case !ok:
		return false
	case e.Unprocessed:
		x.broken(u, upstream.Refused, Reset)
	case !u.isEstablished && e.Code == h2.SettingsTimeout:
		x.broken(u, upstream.ConnectError, ConnectTimeout)
	case !u.isEstablished && e.Malformed:
		x.broken(u, upstream.ConnectError, BadReply)
	case !u.isEstablished:
		x.broken(u, upstream.ConnectError, ConnectFailed)
	case e.Malformed:
		x.broken(u, upstream.Reset, BadReply)
	case u.phase != readingHead:
		x.broken(u, upstream.Reset, Truncated)
	case e.Lost && !u.got && u.link.served > 1:
		x.broken(u, upstream.Stale, Reset)
	default:
		x.broken(u, upstream.Reset, Reset)
	}
	return true
}
