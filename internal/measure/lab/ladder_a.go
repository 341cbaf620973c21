package lab

import (
	"context"
	"fmt"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/report"
)

// Metrics that several ladders show.
var (
	cpuPerEvent   = Metric{Key: "cpu", Name: "Server CPU per event", Unit: report.Seconds}
	cpuPerRequest = Metric{Key: "cpu", Name: "Server CPU per request", Unit: report.Seconds}
	perCore       = Metric{Key: "per_core", Name: "Events per CPU second", Unit: report.PerSec, More: true}
	rate          = Metric{Key: "rate", Name: "Rate", Unit: report.PerSec, More: true}
	p50           = Metric{Key: "p50", Name: "P50", Unit: report.Seconds}
	p99           = Metric{Key: "p99", Name: "P99", Unit: report.Seconds}
	allocBytes    = Metric{Key: "alloc_bytes", Name: "Allocated per unit", Unit: report.Bytes}
	gcPause       = Metric{Key: "gc_pause", Name: "Mean GC pause", Unit: report.Seconds}
	goroutines    = Metric{Key: "goroutines", Name: "Goroutines", Unit: report.Number}
	memory        = Metric{Key: "rss", Name: "Memory (RSS)", Unit: report.Bytes}
	lost          = Metric{Key: "lost", Name: "Missing at the end", Unit: report.Share, Plain: true}
)

func ladderA() Ladder {
	return Ladder{
		Name: "a", Title: "A. SSE push",
		Claim: "300 → 12,800 events/s (42.7×) on 4 cores",
		Built: "Every rung is a server with one goroutine per subscriber that changes one thing; the last one is Weir. The source's baseline also " +
			"asked a database for every request, which is left out here: what a rung is worth is measured, not what a baseline hides.",
		Experiments: []Experiment{sseFanOut(), sseScheduler(), sseNagle(), sseBuffers(), sseHeartbeat(), sseEnd()},
		Whole:       &Ref{"fanout", "weir", "fields", "per_core"},
		Doubts: []Doubt{
			{"A0", "The baseline did database work per request, so the whole of 42.7× is not the push path's.", settleClaim(Ref{"fanout", "weir", "fields", "per_core"})},
			{"A5", "Go sets TCP_NODELAY by itself: there is nothing to gain by setting it, only to lose by switching it off.",
				func(r *Reading) string {
					v := r.Value("nagle", "reply-nagle", "mean")
					w := r.Value("nagle", "reply", "mean")
					if v.N == 0 || w.N == 0 {
						return ""
					}
					// Upheld: it is on already, which shows as switching it off makes it worse.
					s := Step{Arm: "reply", Base: "reply-nagle", Metric: "mean"}
					verdict := outcome(Evaluate(r.Ratio("nagle", s)) == Worth, Evaluate(r.Ratio("nagle", s)) == Worse)
					return fmt.Sprintf("%s: as Go leaves it, a reply in pieces takes %s; with Nagle switched back on, %s",
						verdict, report.Seconds.Format(w.Point), report.Seconds.Format(v.Point))
				}},
			{"A6", "The kernel clips what is asked for without a word.", func(r *Reading) string {
				v, requested := r.Value("buffers", "16M", "SO_SNDBUF"), r.Value("buffers", "16M", "asked")
				if v.N == 0 || requested.N == 0 {
					return ""
				}
				return fmt.Sprintf("%s: %s asked, %s granted (the kernel doubles what it takes)", outcome(v.Hi < requested.Point, v.Lo >= requested.Point),
					report.Bytes.Format(requested.Point), report.Bytes.Format(v.Point))
			}},
		},
		NotRun: []NotRun{
			{"A3, SSE and its registers", "the text mixes up server-sent events with the SIMD registers of the same name; there is nothing to build"},
			{"A6, TCP keep-alive per socket", "it finds peers that are gone and makes nothing faster; the claim names no number. Weir sets and reads it back (`eventloop.sockets.keep_alive`), and its heartbeats find such peers sooner"},
			{"A6, page cache and tcp_low_latency", "sockets do not use the page cache, and tcp_low_latency has had no effect since Linux 4.14"},
			{"End, the second node", "one machine: it carries the half of the 83,400 that the claim's two nodes have each"},
		},
	}
}

func sseFanOut() Experiment {
	step := func(arm, base, metric string, claim float64, claimed, why string) Step {
		return Step{arm, base, metric, claim, claimed, why}
	}
	return Experiment{
		Name: "fanout", Title: "One event to {500} subscribers",
		How: "{500} subscribers of one channel; messages of 128 bytes are published at 40 a second, Poisson, so every rung carries the same {20,000} " +
			"deliveries a second. Compared is the server's processor time per delivery: at full load it is what the rate comes from.",
		Arms: []Arm{
			{Name: "fields", Title: "A0: Fprintf and Flush per field", Server: "a/fields"},
			{Name: "states", Title: "A1: explicit connection states", Server: "a/states"},
			{Name: "pooled", Title: "A2: pooled buffers", Server: "a/pooled"},
			{Name: "onewrite", Title: "A4: one write per event", Server: "a/onewrite"},
			{Name: "hijacked", Title: "A4: connection taken over", Server: "a/hijacked"},
			{Name: "shared", Title: "Event encoded once for all", Server: "a/shared"},
			{Name: "weir", Title: "Weir", Server: "weir"},
		},
		Metrics: []Metric{cpuPerEvent, perCore, p50, p99, allocBytes, gcPause, goroutines, lost},
		Steps: []Step{
			step("states", "fields", "cpu", 0, "", "States say what a connection does and let a dead peer be left, at the price of a deadline per event. That is correctness; no byte moves sooner for it."),
			step("pooled", "states", "cpu", 0, "", "Formatting and fresh strings cost, but five system calls and five chunk headers per event cost more and are still there."),
			step("pooled", "states", "alloc_bytes", 0, "48 MB/s allocated before", "What is appended to a buffer from a pool is not garbage afterwards."),
			step("pooled", "states", "gc_pause", 15, "GC pauses 1.2 → 0.08 ms on average (15×)", "A pause hardly depends on how much is allocated: Go's collector marks beside the program, and allocating less only makes pauses rarer."),
			step("onewrite", "pooled", "cpu", 7, "5 system calls → 1; 85 → 12 µs (7×)", "A write to a socket is most of what an event costs, and four of five are gone. The claim is the ratio of system calls and more, while one of them does the work of the five: the receiver is woken once."),
			step("hijacked", "onewrite", "cpu", 0, "", "Without net/http between there is no chunk framing and no second buffer; the system call stays."),
			step("shared", "hijacked", "cpu", 0, "", "The same bytes for every subscriber need to be made once. With so small an event the encoding was cheap beside its write."),
			step("weir", "shared", "cpu", 0, "", "No goroutine has to be woken to write: a loop sends the shared frame to its own connections one after the other."),
			step("weir", "fields", "per_core", 42.7, "300 → 12,800 events/s (42.7×)", "This is the push path alone, from the naive rung to the last."),
		},
		Measure: loaded(fanOut("sse", 500, 40)),
	}
}

func sseNagle() Experiment {
	return Experiment{
		Name: "nagle", Title: "A5: TCP_NODELAY off and on",
		How: "Go switches Nagle's algorithm off; the arms called Nagle switch it on again. For a reply in pieces, four connections ask and wait, and the mean " +
			"is from the request to the reply's end. For events, 20 subscribers get 20 messages a second, and the mean is from the publish's intended instant to the arrival.",
		Arms: []Arm{
			{Name: "reply-nagle", Title: "Reply in pieces with Nagle", Server: "a/reply", Set: map[string]string{"nodelay": "off"}},
			{Name: "reply", Title: "Reply in pieces as Go leaves it", Server: "a/reply"},
			{Name: "fields-nagle", Title: "A0 with Nagle", Server: "a/fields", Set: map[string]string{"nodelay": "off"}},
			{Name: "fields", Title: "A0 as Go leaves it", Server: "a/fields"},
			{Name: "onewrite-nagle", Title: "A4 with Nagle", Server: "a/onewrite", Set: map[string]string{"nodelay": "off"}},
			{Name: "onewrite", Title: "A4 as Go leaves it", Server: "a/onewrite"},
		},
		Metrics: []Metric{{Key: "mean", Name: "Mean time", Unit: report.Seconds}, p50, cpuPerEvent},
		Steps: []Step{
			{"reply", "reply-nagle", "mean", 3.26, "RTT 3.82 → 1.17 ms (3.3×)", "Nagle holds a small write back while an earlier one is unacknowledged, and who has just asked something acknowledges late, in the hope of having more to send: a reply in pieces meets both, up to 40 ms at a time."},
			{"fields", "fields-nagle", "mean", 0, "", "A subscriber only reads, and acknowledges as it reads: what Nagle holds back is free again after a round trip, which is nothing on loopback."},
			{"onewrite", "onewrite-nagle", "mean", 0, "", "An event in one write finds nothing unacknowledged before it at this rate, so there is nothing to hold back."},
		},
		Measure: func(ctx context.Context, b *Bench, a Arm) (Values, error) {
			if a.Server == "a/reply" {
				return loaded(func(*Bench) loadgen.Spec {
					spec := httpLoad(4, 1)(b)
					spec.Conns, spec.Concurrency = 4, 4
					return spec
				})(ctx, b, a)
			}
			return loaded(func(*Bench) loadgen.Spec {
				return loadgen.Spec{Kind: loadgen.PubSub, Target: "/sse?channel=lab", Transport: "sse", Conns: 20, Rate: 20, Publishers: 1}
			})(ctx, b, a)
		},
	}
}

func sseBuffers() Experiment {
	arm := func(name, title, bytes string) Arm {
		return Arm{Name: name, Title: title, Job: "buffers", Set: map[string]string{"bytes": bytes}}
	}
	return Experiment{
		Name: "buffers", Title: "A6: socket buffers, asked and granted",
		How: "SO_SNDBUF and SO_RCVBUF are set and read back; then one end stops reading, and what the kernel still takes from the other is counted.",
		Arms: []Arm{
			arm("auto", "Left to the kernel", "0"), arm("4K", "4 KiB", "4096"), arm("64K", "64 KiB", "65536"), arm("1M", "1 MiB", "1048576"), arm("16M", "16 MiB", "16777216"),
		},
		Metrics: []Metric{
			{Key: "unseen", Name: "Taken from a stalled reader's sender", Unit: report.Bytes}, {Key: "asked", Name: "Asked", Unit: report.Bytes, Plain: true},
			{Key: "SO_SNDBUF", Name: "SO_SNDBUF granted", Unit: report.Bytes, Plain: true}, {Key: "SO_RCVBUF", Name: "SO_RCVBUF granted", Unit: report.Bytes, Plain: true},
		},
		Steps: []Step{
			{"64K", "auto", "unseen", 0, "", "A small buffer bounds what a slow client holds in the kernel, unseen by the program. It also bounds what a fast one far away can be sent per round trip, which is why Weir leaves it to the kernel and bounds the unsent part instead (TCP_NOTSENT_LOWAT)."},
		},
		Measure: jobbed, Cost: -0.9,
	}
}

func sseHeartbeat() Experiment {
	arm := func(name, title, key, value string) Arm {
		return Arm{Name: name, Title: title, Job: "heartbeat", Set: map[string]string{key: value}}
	}
	return Experiment{
		Name: "heartbeat", Title: "A7: heartbeats against boxes that forget (simulated)",
		How: "A simulation, no measurement, with other dice in every round: 2,000 streams for a day through boxes that forget a silent connection after 30 s to 15 " +
			"minutes, or never; a message comes every ten minutes on average.",
		Arms: []Arm{
			arm("none", "No heartbeat", "interval", "0"), arm("60s", "Every 60 s", "interval", "60"), arm("25s", "Every 25 s (Weir)", "interval", "25"),
			arm("backoff", "0.8 × the client's longest backoff", "backoff", "0.8"),
		},
		Metrics: []Metric{
			{Key: "life_seconds", Name: "Mean life of a stream (longer than a day: hardly ever cut)", Unit: report.Seconds, More: true}, {Key: "cuts_per_day", Name: "Cuts per stream and day", Unit: report.Number},
			{Key: "blind_share", Name: "Time cut without knowing", Unit: report.Share}, {Key: "beats_per_hour", Name: "Heartbeats per hour", Unit: report.Number, Plain: true},
		},
		Steps: []Step{
			{"backoff", "none", "life_seconds", 143, "connection life 47 min → 112 h (143×)", "A heartbeat helps exactly as far as it is more frequent than the box forgets. A client's backoff says nothing about the box between."},
			{"25s", "backoff", "life_seconds", 0, "", "The shortest timeout in use decides, so a fixed interval below it serves every client; deriving it from the backoff makes patient clients the ones that are cut."},
		},
		Measure: jobbed, Cost: -0.8,
	}
}

func sseScheduler() Experiment {
	arm := func(name, title, procs, pinned string) Arm {
		return Arm{Name: name, Title: title, Server: "a/onewrite", Env: []string{"GOMAXPROCS=" + procs}, Set: map[string]string{"pinned": pinned}}
	}
	return Experiment{
		Name: "scheduler", Title: "A3: GOMAXPROCS and pinned threads",
		How: "Rung A4 (one write per event) with {500} subscribers and 40 messages a second. Pinned, each subscriber's goroutine has a thread of its own " +
			"(runtime.LockOSThread).",
		Arms: []Arm{
			arm("1", "GOMAXPROCS=1", "1", "off"), arm("2", "GOMAXPROCS=2", "2", "off"), arm("8", "GOMAXPROCS=8", "8", "off"),
			arm("pinned", "GOMAXPROCS=1, pinned threads", "1", "on"),
		},
		Metrics: []Metric{cpuPerEvent, perCore, p50, p99, memory, lost},
		Steps: []Step{
			{"2", "1", "cpu", 0, "", "With one processor readers, writers and the poller take turns; with more they run beside each other and steal from each other. The processors here are the load's as well."},
			{"8", "2", "cpu", 0, "", "Beyond the processors there are, more of Go's only make the kernel choose."},
			{"pinned", "1", "cpu", 0, "", "A pinned goroutine is woken by waking its thread, through the kernel, where any other is a pointer in a queue. Pinning is for what belongs to a thread, as a ring of io_uring does."},
		},
		Measure: loaded(fanOut("sse", 500, 40)),
	}
}

func sseEnd() Experiment {
	return Experiment{
		Name: "end", Title: "End: 41,700 connections, connect P95 and egress",
		How: "Half of the claim's 83,400, which is what each of its two nodes has. Servers and clients are several processes, as no process here may have " +
			"so many descriptors; streams are opened 64 at a time, and the time is from connect to the answer's first bytes. Then five events of 96 bytes " +
			"are published to all, and what arrives is counted: payload of TCP, without headers of packets.",
		Arms: []Arm{{Name: "fields", Title: "A0: Fprintf and Flush per field", Server: "a/fields"}, {Name: "weir", Title: "Weir", Server: "weir"}},
		Metrics: []Metric{
			{Key: "connect_p95", Name: "Connect, P95", Unit: report.Seconds}, {Key: "egress", Name: "Bytes sent per event and stream", Unit: report.Bytes},
			{Key: "streams", Name: "Streams", Unit: report.Number, Plain: true}, {Key: "rss_per_conn", Name: "Memory per stream", Unit: report.Bytes}, memory,
			{Key: "processes", Name: "Server processes", Unit: report.Number, Plain: true},
		},
		Steps: []Step{
			{"weir", "fields", "connect_p95", 17.1, "connect P95 142 → 8.3 ms (17×)", "64 at a time, each waits for the 63 before it on one processor: the time is that of 64 connects, the kernel's and the client's among it."},
			{"weir", "fields", "egress", 2.78, "egress −64 % (2.8×)", "What is sent is the event: five chunks around its fields are a few dozen bytes. Weir's event has no type and no retry, which the rung repeats each time."},
			{"weir", "fields", "rss_per_conn", 0, "83,400 live connections on two nodes, 12,000 before", "Both carry them here; what differs is the memory."},
		},
		Measure: held(41_700, 5), Cost: 14,
	}
}
