package proxy

import "github.com/weir-gateway/weir/internal/proxy/upstream"

// second is the attempt that runs beside a slow first one. Whichever peer says a
// byte first serves the request; the other one's connection is closed. It starts
// only after the whole request was sent, and as late as the loop's timers allow,
// which are exact to 100 ms.
type second struct {
	up    *upConn // nil: there is none
	peer  *upstream.Peer
	began int64
}

// hedgeIn plans a second attempt, if the cluster has such.
func (x *Exchange) hedgeIn(u *upConn) {
	after := int64(x.Cluster.HedgeAfter())
	if after <= 0 || x.made != 1 || x.lost || x.answered || x.Upgrade != "" || !idempotent(x.Method) || after >= x.times.firstByte {
		return
	}
	x.hedgeAt = x.loopState.loop.Now() + after
	u.deadlineIn(after)
}

// hedge makes the second attempt, if it may be made and there is a connection for it
// at once: it does not wait for one.
func (x *Exchange) hedge() {
	now := x.loopState.loop.Now()
	x.hedgeAt = 0
	if !x.Cluster.MayHedge(now, upstream.Attempt{Made: x.made, Idempotent: true, Replayable: !x.lost, Started: x.answered}) {
		return
	}
	peer, err := x.Cluster.Pick(now, x.Key, &x.tried)
	if err != nil {
		return
	}
	p := x.loopState.poolFor(x, peer)
	u := p.connection(x)
	if u == nil {
		x.Cluster.Done(peer, upstream.Outcome{Kind: upstream.Canceled, Start: now, End: now})
		p.release()
		return
	}
	x.tally.hedges.Add(1)
	x.second = second{up: u, peer: peer, began: now}
	if x.PeerHost {
		x.setHost(peer)
	}
	u.begin(x)
}

// settle makes u, which has started to answer, the one that serves x.
func (x *Exchange) settle(u *upConn) {
	loser := x.second.up
	if u == loser {
		loser = x.up
		x.swap()
	}
	x.abandon(loser, upstream.Canceled)
}

// swap makes the second attempt the first.
func (x *Exchange) swap() {
	s := x.second
	x.second = second{up: x.up, peer: x.peer, began: x.began}
	x.up, x.peer, x.requested, x.began = s.up, s.peer, s.peer, s.began
}

// abandon ends the attempt on u while there is another one.
func (x *Exchange) abandon(u *upConn, kind upstream.Kind) {
	if u == x.up {
		x.swap()
	}
	s := x.second
	x.second = second{}
	u.part()
	u.c.Close(nil)
	x.Cluster.Done(s.peer, upstream.Outcome{Kind: kind, Start: s.began, End: x.loopState.loop.Now(), Split: x.Split, Arm: x.Arm})
}
