package push

import "time"

// LimitSubscribers bounds the subscribers of all loops, so that connections are left for
// publishers and health checks. 0 means no bound. Before the loops run only.
func (p *Push) LimitSubscribers(n int) { p.maxSubscribers = int64(n) }

// fullLogEvery is how often it is logged that there is no room for subscribers.
const fullLogEvery = 10 // seconds

// full reports whether there is no room for a subscriber more, besides counted of those
// in the counters.
func (p *Push) full(counted int64) bool {
	if p.maxSubscribers == 0 {
		return false
	}
	n := p.counters.sse.Load() + p.counters.ws.Load() - counted
	if n < p.maxSubscribers {
		return false
	}
	if now, last := time.Now().Unix(), p.fullLogged.Load(); now-last >= fullLogEvery && p.fullLogged.CompareAndSwap(last, now) {
		p.log.Warn("new subscribers are refused: the connections left are for publishers and health checks",
			"subscribers", n, "bound", p.maxSubscribers, "hint", "raise the descriptor limit (ulimit -n, LimitNOFILE=) or eventloop.max_conns")
	}
	return true
}
