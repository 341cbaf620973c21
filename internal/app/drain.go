package app

import (
	"context"
	"time"

	"github.com/weir-gateway/weir/internal/observe/admin"
	"github.com/weir-gateway/weir/internal/push/wire"
)

const (
	// closesPerSecond is the rate at which streams are closed when no other node has to
	// take their clients: a matter of this process alone.
	closesPerSecond = 20_000
	// refusalsPerSecond bounds the connections that are accepted during a drain: nearly
	// all of them only to be refused.
	refusalsPerSecond = 1000
	// stopTime is for what follows the last client's end: the loops and the broker stop.
	stopTime = 200 * time.Millisecond
)

// departure is how this node's clients leave.
type departure struct {
	*App
	limit time.Duration
}

// plan is how they leave. alone: no other node takes them, so that
// they come back to the next process of this one.
func (a *departure) plan() (plan wire.DrainPlan, alone bool) {
	n := float64(a.streams())
	seconds := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	if rate := othersRate(a.protocol.Cluster); rate > 0 {
		return wire.DrainPlan{Over: min(seconds(n/rate), a.limit), Spread: 100 * time.Millisecond}, false
	}
	plan = wire.DrainPlan{Over: min(seconds(n/closesPerSecond), a.limit/2), Spread: max(300*time.Millisecond, seconds(n/a.room.rate(1)))}
	if !a.keepsListener(n) {
		plan.Away = plan.Over + stopTime + max(200*time.Millisecond, time.Duration(a.startTook.Load())*3/2)
	}
	return plan, true
}

// keepsListener reports whether n clients can wait in the kernel for the next process:
// the service manager keeps the listening sockets, and their backlogs are large enough.
func (a *departure) keepsListener(n float64) bool {
	return n < float64(a.listeners.kept*a.loops.Backlog())/2
}

// streams are the connections that a drain ends.
func (a *departure) streams() int64 {
	p := a.push.Stats()
	return p.SSE + p.WebSocket + a.wing.proxy.Stats().Tunnels + a.front.Streams()
}

// drained is how far the drain has come; nil before the first close. Any goroutine.
func (a *App) drained() *admin.Drain {
	plan := a.drain.Load()
	if plan == nil {
		return nil
	}
	d := *plan
	d.Left = (&departure{App: a}).streams()
	d.Planned = plannedLeft(&d, time.Now())
	return &d
}

// plannedLeft is how many streams the plan of d has left at now.
func plannedLeft(d *admin.Drain, now time.Time) int64 {
	past := now.Sub(d.Began).Seconds()
	if past >= d.Over {
		return 0
	}
	return int64(float64(d.Streams) * (1 - max(past, 0)/d.Over))
}

// unfinished are the requests under way that were there when the drain began.
func (a *departure) unfinished() int64 {
	return a.front.Unfinished()
}

// run ends the clients' connections and returns when the process can end.
//
// With other nodes the clients leave at the rate that those can take, while requests
// under way are finished. On the only node the requests are finished first, while
// everything is served as before: streams are interrupted last, for the time of a
// restart alone.
func (a *departure) run(hard context.Context) {
	end := time.Now().Add(a.limit)
	a.leaving.Store(true)
	a.service.notified(a.opt.Service.Stopping("draining"))
	a.push.Leave()
	a.front.MarkRequests(a.loops.Loops())
	plan, alone := a.plan()
	a.log.Info("draining", "limit", a.limit, "connections", a.loops.Open(), "streams", a.streams(), "other_nodes", !alone,
		"others_rate", othersRate(a.protocol.Cluster), "over", plan.Over, "away", plan.Away, "spread", plan.Spread, "listener_kept", a.listeners.kept > 0)
	if alone {
		await(hard, time.Until(end)-plan.Over, func() bool { return a.unfinished() == 0 })
	}
	a.drain.Store(&admin.Drain{Began: time.Now(), Over: plan.Over.Seconds(), Streams: a.streams()})
	a.start(plan, alone)
	await(hard, plan.Over+drainGrace, func() bool { return a.streams() == 0 })
	await(hard, time.Until(end), func() bool { return a.unfinished() == 0 })
	// What comes now waits in the kernel: for the next process if one keeps the
	// socket, and for its reset otherwise.
	a.loops.StopAccepting()
	a.push.EndRefused()
	await(hard, drainGrace, func() bool { return a.front.Waiting() == 0 && a.streams() == 0 && a.http3.Stats().Open == 0 })
}

func (a *departure) start(plan wire.DrainPlan, alone bool) {
	if alone && a.keepsListener(float64(a.streams())) {
		a.loops.StopAccepting()
	} else {
		a.loops.LimitAcceptRate(refusalsPerSecond)
	}
	a.drainCarriers() // first, so that no client puts its next request on a connection that ends
	a.push.Drain(plan)
	a.front.Drain(a.loops.Loops(), plan)
	a.wing.proxy.Drain(plan.Over)
}

// drainCarriers sends the connections of HTTP/2 and HTTP/3 a GOAWAY.
func (a *App) drainCarriers() {
	if a.http2 != nil {
		a.http2.Drain(a.loops.Loops())
	}
	if a.http3 != nil {
		a.http3.Drain()
	}
}

// drainGrace is for last words that are still being sent.
const drainGrace = 3 * time.Second

// await returns when done holds, within has passed or hard is done.
func await(hard context.Context, within time.Duration, done func() bool) {
	deadline := time.NewTimer(max(within, 0))
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return
		case <-hard.Done():
			return
		}
	}
}
