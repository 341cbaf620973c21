package app

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/weir-gateway/weir/broker/nats"
	"github.com/weir-gateway/weir/internal/app/config"
	"github.com/weir-gateway/weir/internal/net/sys"
	"github.com/weir-gateway/weir/internal/observe/admin"
)

// A node that knows nothing but its own processor time and connections finds out what
// a connection costs.
func TestTheCostOfAReconnectionIsMeasured(t *testing.T) {
	const assumed = time.Millisecond
	f := func(name string, background float64, each time.Duration, perSecond []uint64, want time.Duration) {
		t.Helper()
		var r reconnectCost
		var cpu time.Duration
		var accepted uint64
		r.observe(0, cpu, accepted)
		for _, n := range perSecond {
			cpu += time.Duration(background*float64(time.Second)) + time.Duration(n)*each
			accepted += n
			r.observe(time.Second, cpu, accepted)
		}
		got, measured := r.value(assumed)
		if measured != (want != assumed) || math.Abs(float64(got-want)) > 0.02*float64(want) {
			t.Errorf("%s: %v (measured: %v), want %v", name, got, measured, want)
		}
	}
	f("nothing yet", 0.1, 100*time.Microsecond, []uint64{0, 5, 1}, assumed)
	f("too few", 0.1, 100*time.Microsecond, []uint64{0, 50, 49, 2}, assumed)
	f("on an idle node", 0, 100*time.Microsecond, []uint64{0, 0, 200}, 100*time.Microsecond)
	f("beside other work", 0.7, 300*time.Microsecond, []uint64{0, 0, 0, 200, 0, 400}, 300*time.Microsecond)
	f("too cheap to be true", 0.1, time.Microsecond, []uint64{0, 500}, leastCost)
	f("too dear to be true", 0.1, time.Second, []uint64{0, 500}, mostCost)

	// What it costs today replaces what it cost before.
	changed := []uint64{0}
	for range 40 {
		changed = append(changed, 500)
	}
	var r reconnectCost
	r.observe(0, 0, 0)
	var cpu time.Duration
	for i, n := range changed {
		each := 100 * time.Microsecond
		if i > 20 {
			each = 400 * time.Microsecond
		}
		cpu += time.Duration(n) * each
		r.observe(time.Second, cpu, r.accepted+n)
	}
	if got, _ := r.value(assumed); got < 390*time.Microsecond {
		t.Errorf("after 10,000 connections of 400µs: %v", got)
	}
}

// What a node sends the others follows from what was measured.
func TestTheRateOfReconnectionsFollowsTheCost(t *testing.T) {
	g := start(t, func(*config.Config) {})
	procs := float64(sys.Processors())
	f := func(idle, want float64) {
		t.Helper()
		if got := g.room.rate(idle); math.Abs(got-want) > want/100 {
			t.Errorf("%v of the processors are idle: %v per second, want %v", idle, got, want)
		}
	}
	f(1, procs*2000) // as assumed: 250µs each, on half of the time
	f(0.5, procs*1000)
	f(0, procs*200)
	g.room.mu.Lock()
	g.room.each, g.room.weight = 0.001, 500
	g.room.mu.Unlock()
	f(1, procs*500)
	var room admin.NodeState
	if err := json.Unmarshal(g.room.describe(), &room); err != nil || room.Rate < procs*50*0.99 || room.Rate > procs*500*1.01 || room.Free <= 0 || room.Draining {
		t.Errorf("%+v, %v", room, err)
	}
}

func TestOnlyABrokerOfSeveralNodesIsShared(t *testing.T) {
	f := func(b config.Broker, want bool) {
		t.Helper()
		if got := sharesBroker(b); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	f(config.Broker{Kind: config.BrokerMemory}, false)
	f(config.Broker{Kind: config.BrokerNATS, NATS: nats.Config{Dir: "x"}}, false)
	f(config.Broker{Kind: config.BrokerNATS, NATS: nats.Config{URL: "nats://x"}}, true)
	f(config.Broker{Kind: config.BrokerNATS, NATS: nats.Config{Cluster: nats.Cluster{Name: "weir"}}}, true)
}
