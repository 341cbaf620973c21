package lab

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/report"
)

// httpMany is rung B5 with as many connections as several processes have.
func httpMany() Experiment {
	arm := func(name, title, server string) Arm { return Arm{Name: name, Title: title, Server: server} }
	return Experiment{
		Name: "many", Title: "B5: 42,000 connections",
		How: "Three server processes, as none may have so many descriptors here, each with 14,000 connections that have made a request and stay open. On those of the " +
			"first 4,000 requests a second (Poisson) go round, each connection having one every few seconds, as at the claim's 100,000; response times are from the intended instant.",
		Arms: []Arm{
			arm("nethttp", "net/http", "b/pooled"), arm("loop", "Event loop (epoll)", "b/loop"),
			arm("uring", "Event loop on io_uring", "b/uring"), arm("weir", "Weir", "weir"),
		},
		Metrics: []Metric{
			{Key: "mean", Name: "Mean", Unit: report.Seconds}, p99, p50, cpuPerRequest, memory, goroutines, {Key: "connections", Name: "Connections", Unit: report.Number, Plain: true},
		},
		Steps: []Step{
			{"loop", "nethttp", "mean", 3.87, "mean 182 → 47 µs at 100,000 connections (3.9×)", "A request waits for the wake-up of a thread, with net/http of a goroutine too, and for whatever else the one processor does meanwhile."},
			{"loop", "nethttp", "p99", 6.54, "P99 890 → 136 µs at 100,000 connections (6.5×)", "Collections of a heap with a goroutine per connection meet some requests."},
			{"loop", "nethttp", "cpu", 0, "", "What it saves is work, and so the rate at which queues begin."},
			{"loop", "nethttp", "rss", 0, "", "Of the one server that is loaded."},
		},
		Measure: among, Cost: 14,
	}
}

// among loads the first of three servers, each of which has 14,000 connections.
func among(ctx context.Context, b *Bench, a Arm) (Values, error) {
	const servers, each = 3, 14_000
	c := &crowd{}
	defer c.stop()
	a.Processes = servers
	if err := c.start(ctx, b, a, servers*each); err != nil {
		return nil, err
	}
	loaded := c.servers[0]
	idle := &crowd{servers: c.servers[1:]}
	err := idle.hold(ctx, b, b.scaled((servers-1)*each), publishRequest)
	c.clients = idle.clients
	if err != nil {
		return nil, err
	}
	spec := httpLoad(each, 1)(b)
	spec.Closed, spec.Concurrency, spec.Rate, spec.ConnectRate = false, 0, float64(b.scaled(4000)), 5000
	v, err := b.load(ctx, loaded, spec, nil)
	if err == nil {
		v["connections"] = float64(b.scaled(each) + b.scaled((servers-1)*each))
	}
	return v, err
}

// publishRequest is a publish request as it is sent.
var publishRequest = "POST /api/publish HTTP/1.1\r\nHost: lab\r\nContent-Type: application/json\r\nX-API-Key: " + apiKey + "\r\nContent-Length: 31\r\n\r\n" +
	`{"channel":"lab","data":"1234"}`

// httpSends is rung B7: what sends a frame.
func httpSends() Experiment {
	arm := func(kind, bytes, title string) Arm {
		name := kind
		if bytes != "128" {
			name += "-16K"
		}
		return Arm{Name: name, Title: title, Job: "uring", Set: map[string]string{"kind": kind, "bytes": bytes}}
	}
	return Experiment{
		Name: "sends", Title: "B7: registered buffers, sends without a copy, a polling thread",
		How: "One thread sends a frame of 128 bytes, or of 16 KiB, to each of 256 connections of loopback, 64 at a time, and the receivers take it outside of what is counted. Counted is the " +
			"processor time of the whole process, the kernel's thread among it, until every send is done.",
		Arms: []Arm{
			arm("sendto", "128", "sendto, a system call each"), arm("send", "128", "io_uring, 64 per system call"), arm("fixed", "128", "the same from a registered buffer"),
			arm("zerocopy", "128", "without a copy (SEND_ZC)"), arm("zerocopy-fixed", "128", "SEND_ZC from a registered buffer"), arm("sqpoll", "128", "io_uring with a polling thread (SQPOLL)"),
			arm("sendto", "16384", "16 KiB: sendto"), arm("zerocopy-fixed", "16384", "16 KiB: SEND_ZC from a registered buffer"),
		},
		Metrics: []Metric{{Key: "cpu", Name: "CPU per send", Unit: report.Seconds}, {Key: "seconds", Name: "Time per send", Unit: report.Seconds}},
		Steps: []Step{
			{"send", "sendto", "cpu", 0, "", "The entry into the kernel is saved, a small part of a send; the way through TCP and the receiver's wake-up stay."},
			{"fixed", "send", "cpu", 0, "", "A registered buffer saves looking up its pages, and a copied frame of 128 bytes has a line or two of one."},
			{"zerocopy", "send", "cpu", 0, "", "A send without a copy takes hold of pages and has a second result for when they are free. To copy 128 bytes costs nothing beside either."},
			{"zerocopy-fixed", "zerocopy", "cpu", 0, "", "Registered, the pages are held already; the second result is still to come."},
			{"sqpoll", "send", "cpu", 0, "", "The thread that saves the system calls is one more thread that works, and that spins when there is nothing to do. Where a processor has nothing else to do it may buy latency."},
			{"zerocopy-fixed-16K", "sendto-16K", "cpu", 0, "", "To a receiver on the same machine the kernel copies anyway, only later. What a large frame gains on the way to a network card cannot be seen without one."},
		},
		Measure: jobbed,
	}
}

// httpKept is a connection kept against one for each request.
func httpKept() Experiment {
	arm := func(name, title, server string, encrypted bool) Arm {
		return Arm{Name: name, Title: title, Server: server, TLS: encrypted}
	}
	return Experiment{
		Name: "kept", Title: "B2, C2: keep-alive",
		How: "32 goroutines make requests through Go's client in a closed loop, on connections that are kept, or each on one of its own; counted is the server's processor " +
			"time per request, and what the client waits.",
		Arms: []Arm{
			arm("nethttp-fresh", "net/http, a connection per request", "b/timeouts", false), arm("nethttp-kept", "net/http, kept", "b/timeouts", false),
			arm("weir-fresh", "Weir, a connection per request", "weir", false), arm("weir-kept", "Weir, kept", "weir", false),
			arm("tls-fresh", "Weir with TLS, a connection per request", "weir", true), arm("tls-kept", "Weir with TLS, kept", "weir", true),
		},
		Metrics: []Metric{
			cpuPerRequest, {Key: "p95", Name: "P95", Unit: report.Seconds}, rate, {Key: "time_wait", Name: "In TIME_WAIT at the end", Unit: report.Number},
		},
		Steps: []Step{
			{"nethttp-kept", "nethttp-fresh", "cpu", 0, "", "A connection costs its handshake, an accept, a goroutine, its buffers and a close: several requests' worth."},
			{"weir-kept", "weir-fresh", "cpu", 0, "", "Without the goroutine and its buffers; the kernel's part is the same."},
			{"tls-kept", "tls-fresh", "cpu", 0, "", "A signature and a key exchange are worth many requests. This, not the encryption of what is sent, is what TLS costs."},
			{"nethttp-kept", "nethttp-fresh", "time_wait", 0, "", "A kept connection leaves none behind."},
		},
		Measure: kept,
	}
}

// kept measures an arm by Go's client, which keeps its connections unless the arm is called fresh.
func kept(ctx context.Context, b *Bench, a Arm) (Values, error) {
	s, err := b.Start(ctx, a)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	const workers = 32
	return b.requests(ctx, s, workers, &http.Transport{
		MaxIdleConnsPerHost: workers, DisableKeepAlives: strings.HasSuffix(a.Name, "-fresh"), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its certificate is of today
	})
}
