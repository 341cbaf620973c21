package accept

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

func connections() Indicator {
	return Indicator{
		Name: "connections", Title: "Mixed connections: WebSocket, HTTP/2, SSE",
		Definition: "Established connections, a third each WebSocket subscribers, SSE subscribers and HTTP/2 clients, held while messages are published to the subscribers and requests are sent on the HTTP/2 connections.",
		Target:     "10,000 for 5 minutes (quick), 80,000 for 120 minutes (full); none ends, no error, P99 ≤ 10 ms",
		Method:     "Loopback, with as many source addresses as the ports need; in the full form the load is made by several processes. Response times count from the intended instant, over all three kinds.",
		criteria: append(append(noTrouble(true),
			criterion{name: "ended", what: "connections that ended or were not there all the time", kind: none},
			criterion{name: "p99 ws", what: "P99 of deliveries over WebSocket", kind: atMost, limit: 0.010, unit: seconds, timed: true},
			criterion{name: "p99 sse", what: "P99 of deliveries over SSE", kind: atMost, limit: 0.010, unit: seconds, timed: true},
			criterion{name: "p99 h2", what: "P99 of requests over HTTP/2", kind: atMost, limit: 0.010, unit: seconds, timed: true},
			criterion{name: "connect", what: "P95 of connecting", kind: info, unit: seconds},
			criterion{name: "each", what: "resident memory of the gateway for each connection", kind: info, unit: bytesUnit},
		), steady()...),
		plots:   []plot{{"Response, P99", []string{"ws", "sse", "h2"}, seconds}, {"Memory", []string{"rss"}, bytesUnit}},
		measure: measureConnections,
	}
}

// kindsOf are the three kinds of connections, n in all, at a rate in all: of deliveries and
// of requests. A channel has ten subscribers.
func kindsOf(url, socket string, n int, rate float64) []loadgen.Spec {
	third := max(n/3, 1)
	fan := loadgen.Spec{
		Kind: loadgen.PubSub, Target: url + "/sse?channel=sse-{channel}", Adapter: "weir", Conns: third, Channels: max(third/10, 1), Publishers: 8, Rate: rate / 3 / 10,
		Headers: []string{"X-API-Key: " + apiKey}, ConnectRate: 3000, Publish: url + "/api/publish",
	}
	ws := fan
	ws.Target, ws.Conns = socket+"/ws?channel=ws-{channel}", n-2*third
	h2 := publications(url, "h2", third, 128)
	h2.Version, h2.Rate, h2.ConnectRate = "2", rate/3, 3000
	return []loadgen.Spec{ws, fan, h2}
}

// idleForLong has the gateway keep connections without a request: a client of HTTP/2 makes one
// every half a minute.
const idleForLong = "downstream: {head_timeout: 1h, keep_alive: 1h}\n"

func measureConnections(ctx context.Context, w *world) error {
	s, url, err := w.placed(ctx, plainConfig+fmt.Sprintf(idleForLong+"eventloop: {max_conns: %d}\n", w.plan.conns+spareDescriptors))
	if err != nil {
		return err
	}
	defer s.Stop()
	before, err := s.RSS()
	if err != nil {
		return err
	}
	specs := kindsOf(url, "ws"+url[len("http"):], w.plan.conns, w.plan.connsRate)
	for i := range specs {
		specs[i].Warmup, specs[i].Duration, specs[i].Window = connecting(w.plan.conns), w.plan.connsFor, max(time.Second, w.plan.connsFor/maxPoints)
	}
	w.progress("%d connections for %v", w.plan.conns, w.plan.connsFor)
	stop := w.watch(ctx, s, connecting(w.plan.conns), w.plan.connsFor)
	all, err := w.load(ctx, "load", specs...)
	stop()
	if limit, ok := errors.AsType[*loadgen.LimitError](err); ok {
		return &notRunError{limit.Error()}
	}
	if err != nil {
		return err
	}
	for i, r := range all {
		w.kind([]string{"ws", "sse", "h2"}[i], r)
	}
	if v := w.ev.Series["rss"].Y; len(v) > 0 {
		w.ev.value("each", (v[len(v)-1]-before)/float64(w.plan.conns))
	}
	return nil
}

// connecting is about how long n connections of three kinds take to be made, with a reserve.
func connecting(n int) time.Duration {
	return 3*time.Second + time.Duration(n)*time.Second/3000
}

// kind adds what one kind of connections gave.
func (w *world) kind(name string, r *loadgen.Result) {
	w.trouble(r)
	t := &r.Total
	if t.Response != nil && t.Response.TotalCount() > 0 {
		w.ev.value("p99 "+name, float64(t.Response.ValueAtPercentile(99))/1e6)
	}
	if t.Connect != nil && t.Connect.TotalCount() > 0 {
		w.ev.value("connect", float64(t.Connect.ValueAtPercentile(95))/1e6)
	}
	ended := t.Reconnects
	if d := t.Delivery; d != nil {
		for _, n := range d.Closes {
			ended += n
		}
	}
	// Conns is a mean over the windows, whose ends are some milliseconds early or late.
	unsure := 0.5 + float64(r.Spec.Conns)*min(1, 0.1/t.Length.Seconds())
	if missing := float64(r.Spec.Conns) - t.Conns; missing > unsure {
		ended += uint64(missing + 0.5)
	}
	w.ev.count("ended", ended, uint64(r.Spec.Conns))
	w.tail(name, r.Windows)
}
