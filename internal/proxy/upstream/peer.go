package upstream

import (
	"sync/atomic"
)

// Health is what active checks say of a peer.
type Health uint8

const (
	HealthUnknown Health = iota // not checked yet, or never: usable
	HealthUp
	HealthDown
)

// String is "unknown", "up" or "down".
func (h Health) String() string { return [...]string{"unknown", "up", "down"}[h] }

// A Peer is one backend at one address. It keeps its state as long as it is
// configured, or resolved, without a pause of more than five minutes.
type Peer struct {
	// Fixed.
	address Address
	hash    uint64

	// Written by Set under its lock, read by any goroutine.
	name      atomic.Pointer[string]
	tls       atomic.Pointer[TLS]    // nil: it is not spoken to over TLS
	shakeErr  atomic.Pointer[string] // why the last TLS handshake failed; nil: it did not
	maxConns  atomic.Int64
	leakAfter atomic.Int64
	draining  atomic.Bool

	// Any goroutine. The words of each line below change together, often.
	_        [64]byte
	inflight atomic.Int64
	conns    atomic.Int64
	latency  average
	breaker  breaker
	_        [64]byte

	health       atomic.Uint32
	ejectedUntil atomic.Int64
	// since is when the peer last came back; what began before says nothing of it.
	since     atomic.Int64
	rampFrom  atomic.Int64 // 0: no ramp
	failures  atomic.Int32 // in a row
	unreached atomic.Int32 // connect errors in a row
	ejections atomic.Int32 // recent ones, which lengthen the next
	traffic   window
	counts    counters
}

type counters struct {
	classes  [6]atomic.Uint64 // by hundreds of the status; 0: no head came
	kinds    [kinds]atomic.Uint64
	bytes    atomic.Uint64
	ejected  atomic.Uint64
	checks   atomic.Uint64
	failed   atomic.Uint64 // of the checks
	attempts atomic.Uint64
	full     atomic.Uint64 // refused by Reserve
	leaked   atomic.Uint64 // reported by Leases
}

func newPeer(a Address, name string) *Peer {
	p := &Peer{address: a, hash: HashString(a.String())}
	p.name.Store(&name)
	return p
}

// Address is where to connect.
func (p *Peer) Address() Address { return p.address }

// Name is the address as configured: the host name, if it was one. https:// and
// the port that goes with it are left out.
func (p *Peer) Name() string { return *p.name.Load() }

// TLS returns how the peer is spoken to over TLS. It is not nil where its Address
// says so, and another one when what it was made from has changed.
func (p *Peer) TLS() *TLS { return p.tls.Load() }

// Host is what a request's Host says when it is to name the peer.
func (p *Peer) Host() string {
	if p.address.IsUnix() {
		return "localhost" // a path is not a host
	}
	return p.Name()
}

// Draining reports that the peer gets no new requests: it was removed, or is
// configured so. Its idle connections may be closed.
func (p *Peer) Draining() bool { return p.draining.Load() }

// InFlight is how many requests it is queried now.
func (p *Peer) InFlight() int { return int(p.inflight.Load()) }

// A bar is why a peer is not asked.
type bar uint8

const (
	barNone bar = iota
	barTried
	barDraining
	barUnhealthy
	barBreaker
	barFull
	bars
)

// barred reports why p is not to be queried now. panicking ignores what checks and
// ejection say.
func (p *Peer) barred(now int64, pol *policy, panicking bool) bar {
	switch {
	case p.draining.Load():
		return barDraining
	case !panicking && p.out(now):
		return barUnhealthy
	case !pol.breaker.disabled && !p.breaker.lets(now, &pol.breaker):
		return barBreaker
	case pol.maxInFlight > 0 && p.inflight.Load() >= pol.maxInFlight:
		return barFull
	}
	return barNone
}

// out reports that p is down or ejected.
func (p *Peer) out(now int64) bool {
	return Health(p.health.Load()) == HealthDown || p.ejectedUntil.Load() > now
}

// acquire counts one more request in flight, or reports why not.
func (p *Peer) acquire(now int64, pol *policy) bar {
	n := p.inflight.Add(1)
	// Draining is looked at after the count: who drained p then sees the request.
	if p.draining.Load() {
		p.inflight.Add(-1)
		return barDraining
	}
	if pol.maxInFlight > 0 && n > pol.maxInFlight {
		p.inflight.Add(-1)
		return barFull
	}
	if !pol.breaker.disabled {
		ok, began := p.breaker.enter(now, &pol.breaker)
		if !ok {
			p.inflight.Add(-1)
			return barBreaker
		}
		if began {
			p.comeBack(now, pol)
		}
	}
	p.counts.attempts.Add(1)
	return barNone
}

// comeBack forgets what p did before now.
func (p *Peer) comeBack(now int64, pol *policy) {
	raise(&p.since, now)
	p.latency.reset()
	p.failures.Store(0)
	p.unreached.Store(0)
	if pol.slowStart > 0 {
		p.rampFrom.Store(max(now, 1))
	}
}

// raise sets a to v unless it is above.
func raise(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if old >= v || a.CompareAndSwap(old, v) {
			return
		}
	}
}

// ramp is the part of its share that p may have now: 1, or less in slow start.
func (p *Peer) ramp(now int64, pol *policy) float64 {
	if pol.slowStart == 0 {
		return 1
	}
	from := p.rampFrom.Load()
	if from == 0 {
		return 1
	}
	return min(max(float64(now-from)/float64(pol.slowStart), 0.1), 1)
}

// record applies the verdict on an attempt to p's state.
func (c *Cluster) record(p *Peer, v verdict, kind Kind, start, now int64) {
	vw := c.view.Load()
	pol := &vw.policy
	recent := start >= p.since.Load()
	if v != neutral && recent {
		p.traffic.add(now, v == bad)
	}
	if !pol.breaker.disabled && p.breaker.record(v, start, now, &pol.breaker, &p.traffic) {
		p.comeBack(now, pol)
	}
	if !recent {
		return
	}
	switch v {
	case good:
		if p.failures.Load() != 0 {
			p.failures.Store(0)
		}
		if p.unreached.Load() != 0 {
			p.unreached.Store(0)
		}
	case bad:
		p.latency.punish(now-start, now, pol.ewmaDecay)
		unreached := int32(0)
		if kind == ConnectError {
			unreached = p.unreached.Add(1)
		} else {
			p.unreached.Store(0)
		}
		c.maybeEject(vw, p, p.failures.Add(1), unreached, now)
	}
}

// maybeEject takes p out if it has failed too often.
func (c *Cluster) maybeEject(v *view, p *Peer, failures, unreached int32, now int64) {
	o := &v.policy.outlier
	if o.disabled || p.ejectedUntil.Load() > now {
		return
	}
	if failures < o.consecutive && unreached < o.connect {
		total, failed := p.traffic.sum(now, o.window, p.since.Load())
		if total < o.min || float64(failed) < o.rate*float64(total) {
			return
		}
	}
	// Who finds another ejecting leaves it to the next failure.
	if !c.ejecting.CompareAndSwap(false, true) {
		return
	}
	defer c.ejecting.Store(false)
	if !v.mayEject(now) {
		return
	}
	last := p.ejectedUntil.Load()
	n := p.ejections.Load()
	if last > 0 {
		n = max(0, n-int32(min((now-last)/max(o.forget, 1), int64(n))))
	}
	until := now + min(o.base*int64(n+1), o.max)
	p.ejections.Store(n + 1)
	p.ejectedUntil.Store(until)
	p.counts.ejected.Add(1)
	p.comeBack(until, &v.policy)
}

// mayEject reports whether one more peer may be out by ejection.
func (v *view) mayEject(now int64) bool {
	if !v.several() {
		return false
	}
	out, all := 1, 0
	for e := range v.all() {
		all++
		if e.peer.ejectedUntil.Load() > now {
			out++
		}
	}
	return out <= max(1, int(v.policy.outlier.share*float64(all)))
}

// checked applies what a check showed: up or down, by streaks kept by the checker.
func (p *Peer) checked(h Health, now int64, pol *policy) (changed bool) {
	old := Health(p.health.Swap(uint32(h)))
	if old == h {
		return false
	}
	if old == HealthDown {
		p.breaker.retry(now)
		p.ejectedUntil.Store(min(p.ejectedUntil.Load(), now))
		p.since.Store(now)
		p.comeBack(now, pol)
	}
	return true
}
