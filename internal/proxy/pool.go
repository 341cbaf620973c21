package proxy

import (
	"net/netip"
	"slices"
	"time"

	"github.com/weir-gateway/weir/internal/front/limit"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// A poolKey is whose connections are kept together. client is set where the peer
// received it in a PROXY header: such a connection carries no one else's requests.
type poolKey struct {
	peer   *upstream.Peer
	client netip.AddrPort
}

// A pool is a loop's connections to one peer. It is gone with its last one.
type pool struct {
	loopState *LoopState
	key       poolKey
	idle      []*upConn // the one used last is used first
	open      int
	// links carry many exchanges each: HTTP/2. The first with room is used.
	links []*link
	// http1At is when the peer chose HTTP/1.1 where HTTP/2 was offered; 0: it did not.
	http1At int64
	// queue waits for a connection, first come first served; head is the first.
	queue []*Exchange
	head  int
}

// poolFor returns the pool that serves x at peer.
func (l *LoopState) poolFor(x *Exchange, peer *upstream.Peer) *pool {
	key := poolKey{peer: peer}
	if x.Cluster.Config().ProxyProtocol != 0 {
		key.client = x.Client
	}
	if p := l.last; p != nil && p.key == key {
		return p
	}
	return l.poolOf(key)
}

// poolOf returns the pool of key.
func (l *LoopState) poolOf(key poolKey) *pool {
	p := l.pools[key]
	if p == nil {
		p = &pool{loopState: l, key: key}
		l.pools[key] = p
	}
	l.last = p
	return p
}

// serve gives x a connection, or makes it wait for one.
func (p *pool) serve(x *Exchange) {
	if u := p.connection(x); u != nil {
		u.attach(x)
		return
	}
	p.wait(x)
}

// connection returns a connection for x: one that is there, or one that is being
// made; nil if neither may be had now.
func (p *pool) connection(x *Exchange) *upConn {
	if p.shares(x) {
		return p.stream(x)
	}
	for n := len(p.idle); n > 0; n = len(p.idle) {
		u := p.idle[n-1]
		if !u.current() {
			p.open++ // so that the pool stays
			u.c.Close(nil)
			p.open--
			continue
		}
		p.remove(u)
		x.tally.hits.Add(1)
		return u
	}
	if p.waiting() > 0 || !p.key.peer.Reserve() {
		return nil
	}
	return p.dial(x)
}

// dial opens a connection for x. It has been reserved.
func (p *pool) dial(x *Exchange) *upConn {
	l := p.loopState
	x.tally.misses.Add(1)
	u := &upConn{loopState: l, pool: p}
	p.open++
	l.gauges.open.Add(1)
	cfg := x.Cluster.Config()
	a := p.key.peer.Address()
	if a.TLS {
		u.secure = p.key.peer.TLS()
		u.line = x.tally.lineOf(l.proxy)
		u.shakeBy = l.loop.Now() + x.times.connect
	}
	u.c = l.loop.Dial(eventloop.Endpoint{Addr: a.IP, Path: a.Unix}, eventloop.DialOptions{Timeout: time.Duration(x.times.connect)}, u)
	if u.c.Closing() { // the loop ends: no exchange will wait for this
		u.gone()
		return nil
	}
	switch cfg.ProxyProtocol {
	case 1:
		u.c.Write(limit.AppendProxyV1(nil, x.Client, x.Local))
	case 2:
		u.c.Write(limit.AppendProxyV2(nil, x.Client, x.Local))
	}
	return u
}

// put takes back a connection after an exchange, or gives it to anyone who waits.
func (p *pool) put(u *upConn, cfg *upstream.Config) {
	pc := &cfg.Pool
	if pc.MaxRequests > 0 && u.served >= pc.MaxRequests || p.key.peer.Draining() || !u.current() {
		u.c.Close(nil)
		return
	}
	if x := p.next(); x != nil {
		x.tally.hits.Add(1)
		u.attach(x)
		x.room()
		return
	}
	idle := int64(pc.IdleTimeout)
	if len(p.idle) >= pc.MaxIdle {
		if pc.MaxIdle <= 0 {
			u.c.Close(nil)
			return
		}
		idle = min(idle, excessIdle)
	}
	p.keep(u, idle)
}

// keep makes u idle for that long at most.
func (p *pool) keep(u *upConn, idle int64) {
	u.at = len(p.idle)
	p.idle = append(p.idle, u)
	p.loopState.gauges.idle.Add(1)
	u.deadlineIn(idle)
}

// excessIdle is how long a connection beyond MaxIdle is kept. Under load the number
// of idle ones swings with every batch of replies: who closes at the bound at once
// dials anew for every other request.
const excessIdle = int64(time.Second)

// remove takes u out of idle.
func (p *pool) remove(u *upConn) {
	last := len(p.idle) - 1
	if u.at != last {
		p.idle = slices.Delete(p.idle, u.at, u.at+1)
		for i := u.at; i < last; i++ {
			p.idle[i].at = i
		}
	} else {
		p.idle[last] = nil
		p.idle = p.idle[:last]
	}
	u.at = -1
	p.loopState.gauges.idle.Add(-1)
}

func (p *pool) waiting() int { return len(p.queue) - p.head }

// wait makes x wait until a connection is free or may be opened.
func (p *pool) wait(x *Exchange) {
	l := p.loopState
	if !x.Cluster.EnterPending() {
		x.leave(upstream.Canceled)
		x.fail(failures[PendingFull])
		return
	}
	x.tally.waited.Add(1)
	x.pool = p
	x.waitUntil = l.loop.Now() + int64(x.Cluster.Config().Pool.PendingTimeout)
	if p.waiting() == 0 {
		l.waiting = append(l.waiting, p)
	}
	p.queue = append(p.queue, x)
	l.tickWaiting()
}

// next takes the first that waits, or nil.
func (p *pool) next() *Exchange {
	if p.waiting() == 0 {
		return nil
	}
	x := p.queue[p.head]
	p.queue[p.head] = nil
	p.head++
	p.settle()
	x.pool = nil
	x.Cluster.LeavePending()
	return x
}

// forget takes x out of the queue.
func (p *pool) forget(x *Exchange) {
	if i := slices.Index(p.queue[p.head:], x); i >= 0 {
		p.queue = slices.Delete(p.queue, p.head+i, p.head+i+1)
		p.settle()
	}
	x.pool = nil
	x.Cluster.LeavePending()
}

// settle tidies the queue after one left it.
func (p *pool) settle() {
	switch {
	case p.waiting() == 0:
		p.queue, p.head = p.queue[:0], 0
		l := p.loopState
		l.waiting = slices.DeleteFunc(l.waiting, func(q *pool) bool { return q == p })
		p.release()
	case p.head > 32 && p.head > len(p.queue)/2:
		n := copy(p.queue, p.queue[p.head:])
		clear(p.queue[n:])
		p.queue, p.head = p.queue[:n], 0
	}
}

// release forgets a pool that holds nothing.
func (p *pool) release() {
	if p.open > 0 || p.waiting() > 0 {
		return
	}
	delete(p.loopState.pools, p.key)
	if p.loopState.last == p {
		p.loopState.last = nil
	}
}

// gone counts a connection that has closed.
func (p *pool) gone() {
	p.open--
	p.loopState.gauges.open.Add(-1)
	p.key.peer.Release()
	if p.waiting() > 0 {
		p.loopState.postWaiting() // not from here: who closed it may be in the middle of something
	}
	p.release()
}

// postWaiting makes the loop look after who waits, in its next tick.
func (l *LoopState) postWaiting() {
	if !l.posted {
		l.posted = l.loop.Post(l.serve)
	}
}

const waitTick = 50 * time.Millisecond

// tickWaiting serves the waiting shortly: for timeouts, and because
// connections of other loops may have been closed.
func (l *LoopState) tickWaiting() {
	if l.ticking {
		return
	}
	l.ticking = true
	time.AfterFunc(waitTick, func() { l.loop.Post(func() { l.ticking = false; l.serveWaiting() }) })
}

// serveWaiting opens connections for those that wait, and fails those that wait for
// too long. A pool may leave the list meanwhile.
func (l *LoopState) serveWaiting() {
	l.posted = false
	for i := len(l.waiting) - 1; i >= 0; i-- {
		if i < len(l.waiting) {
			l.waiting[i].serveQueue()
		}
	}
	if len(l.waiting) > 0 {
		l.tickWaiting()
	}
}

func (p *pool) serveQueue() {
	now := p.loopState.loop.Now()
	for p.waiting() > 0 {
		shared := p.shares(p.queue[p.head])
		var u *upConn
		if shared {
			u = p.onLink(p.queue[p.head])
		}
		if u == nil && (shared && !p.mayLink() || !p.key.peer.Reserve()) {
			break
		}
		p.open++ // so that the pool stays while its queue empties
		x := p.next()
		p.open--
		switch {
		case u != nil:
		case shared:
			u = p.dialLink(x)
		default:
			u = p.dial(x)
		}
		if u == nil {
			x.leave(upstream.Canceled)
			x.fail(failures[Stopped])
			return
		}
		u.attach(x)
		x.room()
	}
	for p.waiting() > 0 {
		x := p.queue[p.head]
		if now < x.waitUntil {
			return // those behind it came later
		}
		x.leave(upstream.Canceled)
		x.fail(failures[PendingTimeout])
	}
}

// Forget closes the connections that are kept for client, which is gone, to peers
// that received it. l's loop only.
func (l *LoopState) Forget(client netip.AddrPort) {
	for key, p := range l.pools { // few have such clusters, and those have few
		if key.client == client && client.IsValid() {
			for len(p.idle) > 0 {
				p.idle[len(p.idle)-1].c.Close(nil)
			}
			for _, link := range slices.Clone(p.links) {
				link.session.Leave()
			}
		}
	}
}
