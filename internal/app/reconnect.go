package app

import (
	"context"
	"encoding/json"
	"runtime"
	"sync"
	"time"

	"github.com/weir-gateway/weir/internal/sys"
)

// A nodeRoom is what a node tells the others about what it can take on.
type nodeRoom struct {
	// Rate is in reconnections per second: what a half of the node's idle processor time
	// is enough for, at the cost that its own connections were measured to have.
	Rate float64 `json:"rate"`
	// Free is the number of connections that it has room for.
	Free int `json:"free"`
	// Draining nodes take nothing on.
	Draining bool `json:"draining,omitempty"`
}

const (
	// assumedPlain and assumedTLS are the processor time of a reconnection until enough
	// were measured: with caution, several times what the machines of the tests need.
	assumedPlain, assumedTLS = 250 * time.Microsecond, time.Millisecond
	// leastCost and mostCost bound what is believed of a measurement.
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
	begun    bool
	quiet    float64 // seconds of processor time per second without new connections, smoothed
	cost     float64 // seconds of processor time per connection, over about the last costMemory
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
	first := !r.begun
	r.cpu, r.accepted, r.begun = cpu, accepted, true
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
		r.cost = (r.cost*r.weight + each*n) / (r.weight + n)
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
	return min(max(time.Duration(r.cost*float64(time.Second)), leastCost), mostCost), true
}

// measureReconnects observes every second until ctx is done.
func (a *App) measureReconnects(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := time.Now()
	for {
		now := time.Now()
		a.reconnects.observe(now.Sub(last), sys.CPUTime(), a.accepted())
		last = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (a *App) accepted() (n uint64) {
	for _, l := range a.loops.Loops() {
		n += l.Stats().Accepted
	}
	return n
}

// reconnectCost is the processor time of one, measured or assumed.
func (a *App) reconnectCost() (cost time.Duration, measured bool) {
	if a.tls != nil {
		return a.reconnects.value(assumedTLS)
	}
	return a.reconnects.value(assumedPlain)
}

// reconnectRate is how many per second this node takes on if idle is the share of its
// processor time that is not used.
func (a *App) reconnectRate(idle float64) float64 {
	cost, _ := a.reconnectCost()
	return float64(runtime.GOMAXPROCS(0)) * max(idle, leastIdle) * reconnectShare / cost.Seconds()
}

// idle is the share of the machine's processor time that is not used, by this process or
// another.
func (a *App) idle() float64 {
	if s := a.governor.Snapshot(); s != nil {
		return 1 - max(s.CPU.Share, s.Host.Busy)
	}
	return leastIdle // not measured yet
}

// describeRoom is what the other nodes are told.
func (a *App) describeRoom() []byte {
	b, err := json.Marshal(nodeRoom{Rate: a.reconnectRate(a.idle()), Free: max(a.loops.MaxConns()-a.loops.Open(), 0), Draining: a.leaving.Load()})
	if err != nil {
		return nil
	}
	return b
}

// othersRate is how many clients per second the other nodes take on, 0 if there is none.
func (a *App) othersRate() (rate float64) {
	if a.protocol.cluster == nil {
		return 0
	}
	for _, n := range a.protocol.cluster.Nodes() {
		room := nodeRoom{Rate: unknownRate, Free: 1}
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
