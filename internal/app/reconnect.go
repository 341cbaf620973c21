package app

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-gateway/weir/internal/cluster"
	"github.com/weir-gateway/weir/internal/net/eventloop"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

const (
	// assumedPlain and assumedTLS are the processor time of a reconnection until enough
	// were measured: with caution, several times what the machines of the tests need.
	assumedPlain, assumedTLS = 250 * time.Microsecond, time.Millisecond
	// leastCost and mostCost bound what is trusted of a measurement.
	leastCost, mostCost = 20 * time.Microsecond, 20 * time.Millisecond
	// reconnectShare is the share of the idle processor time that reconnections may take:
	// the rest is for what the clients then receive.
	reconnectShare = 0.5
	// leastIdle is the share of the processors that counts as idle on a node that has
	// less: clients need some node.
	leastIdle = 0.1
	// unknownRate is of a node that does not report one.
	unknownRate = 500
)

// A reconnectCost measures what processor time a new connection costs this node: accept,
// handshake, authentication, subscription and replay. It compares the time of seconds in
// which many connections came with that of seconds in which few did.
type reconnectCost struct {
	mu       sync.Mutex
	cpu      time.Duration // at the last observation, of the process
	accepted uint64        // at the last observation
	started  bool
	quiet    float64 // seconds of processor time per second without new connections, smoothed
	each     float64 // seconds of processor time per connection, over about the last costMemory
	weight   float64 // connections in cost
}

const (
	// manyConnections in a second make it one to measure from.
	manyConnections = 20
	// costMemory is the number of connections that the cost is averaged over, enoughMeasured
	// how many it takes for it to be used.
	costMemory, enoughMeasured = 2000, 100
	// quietMemory is the weight of the newest quiet second.
	quietMemory = 0.2
)

// observe takes the counters of the process after another span of time.
func (r *reconnectCost) observe(span, cpu time.Duration, accepted uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used, n := (cpu - r.cpu).Seconds(), float64(accepted-r.accepted)
	first := !r.started
	r.cpu, r.accepted, r.started = cpu, accepted, true
	switch {
	case first || span <= 0:
	case n < manyConnections:
		rate := used / span.Seconds()
		if r.quiet == 0 {
			r.quiet = rate
		}
		r.quiet += quietMemory * (rate - r.quiet)
	default:
		each := max(used-r.quiet*span.Seconds(), 0) / n
		r.each = (r.each*r.weight + each*n) / (r.weight + n)
		r.weight = min(r.weight+n, costMemory)
	}
}

// value returns the cost and whether it was measured; assumed is what it is otherwise.
func (r *reconnectCost) value(assumed time.Duration) (cost time.Duration, measured bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.weight < enoughMeasured {
		return assumed, false
	}
	return min(max(time.Duration(r.each*float64(time.Second)), leastCost), mostCost), true
}

// A room is what this node can take on from others that drain, and they from it.
type room struct {
	reconnectCost
	assumed time.Duration // the cost of a reconnection until it is measured
	loops   *eventloop.Group
	idle    func() float64 // the share of the machine's processor time that is not used
	state   func() admin.NodeState
	leaving *atomic.Bool // a drain has started
}

// measure observes every second until ctx is done.
func (r *room) measure(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := time.Now()
	for {
		now, accepted := time.Now(), uint64(0)
		for _, l := range r.loops.Loops() {
			accepted += l.Stats().Accepted
		}
		r.observe(now.Sub(last), sys.CPUTime(), accepted)
		last = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// cost is the processor time of a reconnection, measured or assumed.
func (r *room) cost() (cost time.Duration, measured bool) { return r.value(r.assumed) }

// rate is how many per second this node takes on if idle is the share of its processor
// time that is not used; rateNow that with what is idle now.
func (r *room) rate(idle float64) float64 {
	cost, _ := r.cost()
	return float64(sys.Processors()) * max(idle, leastIdle) * reconnectShare / cost.Seconds()
}

func (r *room) rateNow() float64 { return r.rate(r.idle()) }

// describe is what the other nodes get to know.
func (r *room) describe() []byte {
	s := r.state()
	s.Rate, s.Free, s.Draining = r.rateNow(), max(r.loops.MaxConns()-r.loops.Open(), 0), r.leaving.Load()
	b, err := json.Marshal(s)
	if err != nil {
		return nil
	}
	return b
}

// othersRate is how many clients per second the other nodes of c take on, 0 if there is none.
func othersRate(c *cluster.Cluster) (rate float64) {
	if c == nil {
		return 0
	}
	for _, n := range c.Nodes() {
		room := admin.NodeState{Rate: unknownRate, Free: 1}
		switch {
		case n.Self:
			continue
		case len(n.Stats) > 0 && json.Unmarshal(n.Stats, &room) != nil, room.Draining, room.Free <= 0:
			continue
		}
		rate += room.Rate
	}
	return rate
}
