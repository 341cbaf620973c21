package proxy

import (
	"sync/atomic"

	"github.com/weir-gateway/weir/internal/front/h2"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
	"github.com/weir-gateway/weir/internal/proxy/upstream"
)

// tally counts what one loop does for one cluster. The loop adds, anyone reads.
type tally struct {
	cluster                                         string
	codes                                           [6]atomic.Uint64 // by class: codes[2] is 2xx
	failed                                          [causes]atomic.Uint64
	retries, hedges, hits, misses, waited, canceled atomic.Uint64

	http2 h2.CallCounters

	line *tlsterm.Line // of TLS handshakes; the loop's, nil before the first
}

// lineOf returns the line of t's handshakes.
func (t *tally) lineOf(p *Proxy) *tlsterm.Line {
	if t.line == nil {
		t.line = p.tls.Line()
	}
	return t.line
}

// gauges are of one loop.
type gauges struct {
	open, idle atomic.Int64
	leaks      atomic.Uint64
}

func (l *LoopState) tallyOf(c *upstream.Cluster) *tally {
	if l.lastCluster == c {
		return l.lastTally
	}
	t := l.tallies[c]
	if t == nil {
		t = l.proxy.tallyNamed(l, c.Name())
		l.tallies[c] = t
	}
	l.lastCluster, l.lastTally = c, t
	return t
}

// tallyNamed returns l's tally of a cluster's name: one that was removed and comes
// back counts on.
func (p *Proxy) tallyNamed(l *LoopState, name string) *tally {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, t := range l.tallies {
		if t.cluster == name {
			delete(l.tallies, c)
			return t
		}
	}
	t := &tally{cluster: name}
	p.tallies = append(p.tallies, t)
	return t
}

// ClusterStats are totals of one cluster since New.
type ClusterStats struct {
	Requests map[string]uint64 // replies by class of code: "2xx"; "1xx" are tunnels
	Failed   map[string]uint64 // exchanges without a whole reply, by cause
	Retries  uint64            // attempts after the first
	Hedges   uint64            // attempts beside a slow first one
	PoolHits uint64            // attempts on a connection that was there
	PoolMiss uint64            // attempts that dialed
	Waited   uint64            // attempts that waited for a connection
	Canceled uint64            // exchanges whose client left
	HTTP2    h2.CallStats      // of connections that speak HTTP/2
}

// Stats are totals since New, and what is there now.
type Stats struct {
	Clusters map[string]ClusterStats
	Open     int64  // upstream connections
	Idle     int64  // of these, in pools
	Tunnels  int64  // connections that switched protocols
	Leaks    uint64 // connections reported for doing nothing while in use
}

var classes = [6]string{"", "1xx", "2xx", "3xx", "4xx", "5xx"}

// Stats may be called from any goroutine.
func (p *Proxy) Stats() Stats {
	s := Stats{Clusters: map[string]ClusterStats{}, Tunnels: p.upgraded.Load()}
	for _, l := range p.loopStates {
		s.Open += l.gauges.open.Load()
		s.Idle += l.gauges.idle.Load()
		s.Leaks += l.gauges.leaks.Load()
	}
	p.mu.Lock()
	tallies := p.tallies
	p.mu.Unlock()
	for _, t := range tallies {
		c, ok := s.Clusters[t.cluster]
		if !ok {
			c.Requests, c.Failed = map[string]uint64{}, map[string]uint64{}
		}
		for i := 1; i < len(classes); i++ {
			if n := t.codes[i].Load(); n > 0 {
				c.Requests[classes[i]] += n
			}
		}
		for i := range t.failed {
			if n := t.failed[i].Load(); n > 0 {
				c.Failed[Cause(i).String()] += n
			}
		}
		c.Retries += t.retries.Load()
		c.Hedges += t.hedges.Load()
		c.PoolHits += t.hits.Load()
		c.PoolMiss += t.misses.Load()
		c.Waited += t.waited.Load()
		c.Canceled += t.canceled.Load()
		t.http2.Add(&c.HTTP2)
		s.Clusters[t.cluster] = c
	}
	return s
}
