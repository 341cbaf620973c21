package accept

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/process"
	"github.com/weir-gateway/weir/internal/net/poller"
	"github.com/weir-gateway/weir/internal/net/sys"
)

func connections() Indicator {
	return Indicator{
		Name: "connections", Title: "Mixed connections: WebSocket, HTTP/2, SSE",
		Definition: "Established connections, a third each WebSocket subscribers, SSE subscribers and HTTP/2 clients, held while messages are published to the subscribers and requests are sent on the HTTP/2 connections.",
		Target:     "10,000 for 5 minutes (quick), 80,000 for 120 minutes (full); none ends, no error, P99 ≤ 10 ms",
		Method:     "Loopback, with as many source addresses as the ports need. Where a process may not have as many descriptors, the load is made by several, and the gateway has the connections in the tables of io_uring, one for each of its loops. The load of all three kinds begins when all connections are open; it is measured, and the gateway watched, when each HTTP/2 connection has had its first requests. Response times count from the intended instant.",
		criteria: append(append(noTrouble(true),
			criterion{name: "ended", what: "connections that ended or were not there all the time", kind: none},
			criterion{name: "p99 ws", what: "P99 of deliveries over WebSocket", kind: atMost, limit: 0.010, unit: seconds, timed: true},
			criterion{name: "p99 sse", what: "P99 of deliveries over SSE", kind: atMost, limit: 0.010, unit: seconds, timed: true},
			criterion{name: "p99 h2", what: "P99 of requests over HTTP/2", kind: atMost, limit: 0.010, unit: seconds, timed: true},
			connectingTook(),
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
		Headers: []string{"X-API-Key: " + apiKey}, ConnectRate: 1000, Timeout: 30 * time.Second, Publish: url + "/api/publish",
	}
	ws := fan
	ws.Target, ws.Conns = socket+"/ws?channel=ws-{channel}", n-2*third
	h2 := publications(url, "h2", third, 128)
	h2.Version, h2.Rate, h2.ConnectRate, h2.Timeout = "2", rate/3, 1000, fan.Timeout
	return []loadgen.Spec{ws, fan, h2}
}

// idleForLong has the gateway keep connections without a request: a client of HTTP/2 makes one
// every half a minute.
const idleForLong = "downstream: {head_timeout: 1h, keep_alive: 1h}\n"

const (
	// spareDescriptors are what a process needs beside its connections: more than spareConns, for a gateway that
	// is allowed those has to be able to have them.
	spareDescriptors = 2400
	// spareConns is what the gateway is allowed beside the subscribers. It keeps 1,024 of many connections from
	// subscribers, for publishers and health checks: with less to spare the last ones would be refused with 1013.
	spareConns = 1024 + 1000
)

// room is how many connections a process may have by its descriptors.
func room() int { return max(int(min(sys.MaxFiles(), 1<<30))-spareDescriptors, 1) }

// processesFor is how many processes n connections take if each has room for some.
func processesFor(n, room int) int { return (n + room - 1) / room }

// eventloopFor has the gateway take n subscribers. Where that is more than its descriptors allow, each loop
// has a table of its own by io_uring, which the limit bounds; a tenth more loops, as the kernel spreads connections by chance.
func eventloopFor(n, room int) string {
	if n <= room {
		return fmt.Sprintf("eventloop: {max_conns: %d}\n", n+spareConns)
	}
	return fmt.Sprintf("eventloop: {engine: io_uring, loops: %d, max_conns: %d}\n", processesFor(n+n/10, room), n+spareConns)
}

// hold has the gateway of w take n connections: fewer where there are neither descriptors nor io_uring for them.
func hold(w *world, n int) int {
	if n <= room() {
		return n
	}
	w.plan.processes = max(w.plan.processes, processesFor(n, room()))
	if err := poller.ProbeUring(); err != nil {
		w.ev.Reduced = fmt.Sprintf("%d connections of %d: %d descriptors, and no io_uring (%v)", room(), n, sys.MaxFiles(), err)
		return room()
	}
	return n
}

func measureConnections(ctx context.Context, w *world) error {
	w.plan.conns = hold(w, w.plan.conns)
	if w.plan.less != "" {
		w.ev.Reduced = w.plan.less
	}
	s, url, err := w.placed(ctx, plainConfig+idleForLong+eventloopFor(w.plan.conns, room()))
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
		if specs[i], err = specs[i].WithSourceAddresses(w.plan.conns + 2*specs[0].Publishers); err != nil {
			return err
		}
		specs[i].Warmup, specs[i].Duration, specs[i].Window = settling(specs[2]), w.plan.connsFor, max(time.Second, w.plan.connsFor/maxPoints)
	}
	w.progress("connecting %d, then %v", w.plan.conns, w.plan.connsFor)
	all, err := w.loadWatched(ctx, s, w.plan.connsFor, nil, specs...)
	if limit, ok := errors.AsType[*loadgen.LimitError](err); ok {
		return &notRunError{limit.Error()}
	}
	if err != nil {
		return err
	}
	away, err := goaways(ctx, s)
	if err != nil {
		return err
	}
	for i, r := range all {
		addKind(w, []string{"ws", "sse", "h2"}[i], r, away)
	}
	if v := w.ev.Series["rss"].Y; len(v) > 0 {
		w.ev.value("each", (v[len(v)-1]-before)/float64(w.plan.conns))
	}
	return nil
}

// settling is how long the gateway of connections grows still with all of them open: an HTTP/2 connection has its
// buffers from its first request on, and the heap has its size some collections later.
func settling(h2 loadgen.Spec) time.Duration {
	return time.Second + time.Duration(min(2*float64(h2.Conns)/h2.Rate, 300)*float64(time.Second))
}

// connecting is about how long n connections of three kinds take to be made, with a reserve.
func connecting(n int) time.Duration {
	return 3*time.Second + time.Duration(n)*time.Second/3000
}

// goaways are the HTTP/2 connections that the gateway has ended, by why.
func goaways(ctx context.Context, s *process.Server) (list []string, err error) {
	b, err := get(ctx, s.Admin+"/metrics")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "weir_http2_goaways_total{reason="); ok {
			if why, n, _ := strings.Cut(strings.TrimSpace(rest), "} "); n != "0" {
				list = append(list, fmt.Sprintf("GOAWAY %s: %s", why, n))
			}
		}
	}
	return list, nil
}

// addKind adds what one kind of connections gave. away are the HTTP/2 connections that the gateway ended.
func addKind(w *world, name string, r *loadgen.Result, away []string) {
	w.trouble(r)
	t := &r.Total
	if t.Response != nil && t.Response.TotalCount() > 0 {
		w.ev.value("p99 "+name, float64(t.Response.ValueAtPercentile(99))/1e6)
	}
	if t.Connect != nil && t.Connect.TotalCount() > 0 {
		w.ev.value("connect", float64(t.Connect.ValueAtPercentile(95))/1e6)
	}
	ended, reasons := t.Reconnects, []string(nil)
	if name == "h2" {
		reasons = away
	}
	if d := t.Delivery; d != nil {
		for why, n := range d.Closes {
			ended += n
			reasons = append(reasons, fmt.Sprintf("%s: %d ended: %s", name, n, why))
		}
	}
	// Conns is a mean over the windows, whose ends are early or late by what the machine makes of it.
	unsure := 0.5 + float64(r.Spec.Conns)*min(1, 0.3/t.Length.Seconds())
	if missing := float64(r.Spec.Conns) - t.Conns; missing > unsure {
		ended += uint64(missing + 0.5)
		reasons = append(reasons, fmt.Sprintf("%s: %.0f were not there", name, missing))
	}
	w.ev.count("ended", ended, uint64(r.Spec.Conns), reasons...)
	w.tail(name, r.Windows)
}
