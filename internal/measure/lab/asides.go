package lab

import (
	"context"
	"fmt"
	"math"

	"github.com/weir-gateway/weir/internal/measure/report"
)

// asides are what the write-ups mention beside their ladders.
func asides() []Ladder {
	return []Ladder{flushTiming(), http2Aside(), readyAside(), ticketsAside(), contextAside(), metricsAside(), kneeAside(), tlsAside(), preemptAside()}
}

func flushTiming() Ladder {
	share := func(key, name string) Metric { return Metric{Key: key, Name: name, Unit: report.Share, Plain: true} }
	return Ladder{
		Name: "flush", Title: "A, aside. How long a flush takes",
		Claim: "62 % of flushes < 5 µs, 33 % 5–50 µs, 5 % above",
		Built: "A watch on every Flush of a net/http stream, and one on a ticker of 10 ms in the same process.",
		Experiments: []Experiment{{
			Name: "flush", Title: "Flushes of one event to {100} subscribers",
			How:  "{100} subscribers, 50 messages a second.",
			Arms: []Arm{{Name: "timed", Title: "net/http, one write per event", Server: "a/timed"}},
			Metrics: []Metric{
				share("under", "< 5 µs"), share("middle", "5–50 µs"), share("over", "> 50 µs"),
				{Key: "jitter", Name: "Ticker: mean distance from its time", Unit: report.Seconds},
			},
			Measure: func(ctx context.Context, b *Bench, a Arm) (Values, error) {
				v, err := loaded(fanOut("sse", 100, 50))(ctx, b, a)
				if n := v["flush_under_5us"] + v["flush_5_to_50us"] + v["flush_over_50us"]; n > 0 {
					v["under"], v["middle"], v["over"] = v["flush_under_5us"]/n, v["flush_5_to_50us"]/n, v["flush_over_50us"]/n
				}
				if n := v["ticks"]; n > 0 {
					v["jitter"] = v["tick_error_seconds"] / n
				}
				return v, err
			},
		}},
		Doubts: []Doubt{{"A, aside", "A flush is a system call that wakes a reader: 62 % of them in under 5 µs is too good.", func(r *Reading) string {
			v := r.Value("flush", "timed", "under")
			if v.N == 0 {
				return ""
			}
			return fmt.Sprintf("%s: %s of flushes are under 5 µs here, claimed 62 %%", outcome(v.Hi < 0.62/tolerance, v.Lo >= 0.62/tolerance), report.Share.Format(v.Point))
		}}},
	}
}

func http2Aside() Ladder {
	return Ladder{
		Name: "http2", Title: "B, aside. HTTP/2 on one connection against a pool",
		Claim: "P95 328 → 142 ms, 196 → 1 connections, TIME_WAIT 842 → 0",
		Built: "A Go client with 196 goroutines, without TLS.",
		Experiments: []Experiment{{
			Name: "versions", Title: "196 requests at a time",
			How:  "A closed loop of 196; server CPU per request, and the sockets that are open and that remain.",
			Arms: []Arm{{Name: "pool", Title: "HTTP/1.1, a connection each", Server: "b/h2c"}, {Name: "one", Title: "HTTP/2 on one connection", Server: "b/h2c"}},
			Metrics: []Metric{
				cpuPerRequest, {Key: "p95", Name: "P95", Unit: report.Seconds}, rate, {Key: "connections", Name: "Connections", Unit: report.Number},
				{Key: "time_wait", Name: "In TIME_WAIT at the end", Unit: report.Number},
			},
			Steps: []Step{
				{"one", "pool", "cpu", 0, "", "HTTP/2 frames, flow control and one writer per connection are work that HTTP/1.1 does not have; what it saves is sockets. That some are in TIME_WAIT after it as well is the client's beginning: many dial at once, and all but one are given up."},
				{"one", "pool", "p95", 2.3, "P95 328 → 142 ms (2.3×)", "On loopback a connection costs nothing to keep, so the pool has nothing to lose; all on one connection wait for one writer."},
				{"one", "pool", "connections", 196, "196 → 1 connections", "That part needs no measuring: it is what the protocol is for."},
			},
			Measure: versions,
		}},
		Whole: &Ref{"versions", "one", "pool", "p95"},
	}
}

func readyAside() Ladder {
	shares := []string{"0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "1"}
	var arms []Arm
	for _, s := range shares {
		arms = append(arms, Arm{Name: s, Title: s + " of them active", Job: "ready", Set: map[string]string{"share": s}})
	}
	return Ladder{
		Name: "ready", Title: "B, aside. Ready events by the share of active descriptors",
		Claim: "R ≈ R_max·(1 − 0.35(1 − U)²)",
		Built: "1,000 connections in one epoll; a share of them gets a byte, then the events are fetched and the bytes read. kqueue is another system's.",
		Experiments: []Experiment{{
			Name: "curve", Title: "Events per second of fetching and reading",
			How:  "Only the fetching and reading is counted, in processor time, on one thread.",
			Arms: arms,
			Metrics: []Metric{
				{Key: "events_per_second", Name: "Events per CPU second", Unit: report.PerSec, More: true}, {Key: "formula", Name: "The formula's share of R_max", Unit: report.Share, Plain: true},
			},
			Steps:   []Step{{"1", "0.01", "events_per_second", 1.52, "1/(1 − 0.35·0.99²) = 1.52×", "Epoll never looks at idle descriptors, so there is nothing for them to cost. What changes with the share is how many events one call brings, and how many sockets' memory a round goes through: the first makes many cheaper, the second dearer."}},
			Measure: jobbed, Cost: 0.2,
		}},
		Whole: &Ref{"curve", "1", "0.01", "events_per_second"},
		Doubts: []Doubt{{"B, aside", "Measure the curve, do not assume it.", func(r *Reading) string {
			const fits = 0.05
			worst, where := 0.0, ""
			beyond, within := false, true
			for _, s := range shares {
				// The interval is of rounds: what a share brings, as a part of what all active bring.
				v, f := r.Ratio("curve", Step{Arm: s, Base: "1", Metric: "events_per_second"}), r.Value("curve", s, "formula")
				if v.N < 2 || f.N == 0 {
					return ""
				}
				if d := math.Abs(v.Point - f.Point); d >= worst {
					worst, where = d, s
				}
				beyond = beyond || away(v, f.Point) > fits
				within = within && farthest(v, f.Point) <= fits
			}
			return fmt.Sprintf("%s: the formula is %.0f points off at most, at a share of %s", outcome(beyond, within), 100*worst, where)
		}}},
		NotRun: []NotRun{{"kqueue", "not on Linux"}},
	}
}

func ticketsAside() Ladder {
	arm := func(name, title, key, resume string) Arm {
		return Arm{Name: name, Title: title, Job: "handshake", Set: map[string]string{"key": key, "resume": resume}}
	}
	return Ladder{
		Name: "tickets", Title: "B, aside. TLS session tickets",
		Claim: "tickets −50 ms, stapled OCSP −100 ms",
		Built: "Full and resumed TLS 1.3 handshakes on loopback, so without the network's round trips: what remains is the work.",
		Experiments: []Experiment{{
			Name: "resume", Title: "Full and resumed",
			How:  "One connection after the other; processor time of both sides.",
			Arms: []Arm{arm("full", "P-256, full", "ecdsa", "off"), arm("resumed", "P-256, resumed", "ecdsa", "on"), arm("rsa", "RSA-2048, full", "rsa", "off"), arm("rsa-resumed", "RSA-2048, resumed", "rsa", "on")},
			Metrics: []Metric{
				{Key: "cpu_seconds", Name: "CPU per handshake, both sides", Unit: report.Seconds}, {Key: "seconds", Name: "Time, P50", Unit: report.Seconds},
				{Key: "resumed", Name: "Resumed", Unit: report.Share, Plain: true},
			},
			Steps: []Step{
				{"resumed", "full", "cpu_seconds", 0, "−50 ms", "A ticket saves the certificate, its signature and its verification. In TLS 1.3 it saves no round trip, and the key exchange stays: milliseconds of network are another thing than tickets."},
				{"rsa-resumed", "rsa", "cpu_seconds", 0, "", "The signature that is saved is the dearer, the larger the key."},
			},
			Measure: jobbed, Cost: 0.2,
		}},
		NotRun: []NotRun{{"Stapled OCSP", "it saves the client a request to the issuer, which is a network's time and not a server's; Weir staples where the certificate names a responder"}},
	}
}

func contextAside() Ladder {
	arm := func(name, title string) Arm {
		return Arm{Name: name, Title: title, Job: "context", Set: map[string]string{"kind": name}}
	}
	return Ladder{
		Name: "context", Title: "B, aside. Context objects reused", Claim: "contexts reused across requests",
		Built: "A deadline and a value per request, three ways. Reuse is sound only where no code keeps the context beyond the request, which no type checks.",
		Experiments: []Experiment{{
			Name: "context", Title: "A deadline and a value", How: "One goroutine, again and again.",
			Arms:    []Arm{arm("fresh", "context.WithTimeout and WithValue"), arm("reused", "A pooled object, reset"), arm("argument", "Arguments")},
			Metrics: []Metric{{Key: "seconds", Name: "Per request", Unit: report.Seconds}, {Key: "allocs", Name: "Allocations", Unit: report.Number}},
			Steps: []Step{
				{"reused", "fresh", "seconds", 0, "", "Its allocations and a timer are saved. A microsecond a request is what there is to win."},
				{"argument", "fresh", "seconds", 0, "", "A plain argument costs nothing at all; Weir's hot path takes no context."},
			},
			Measure: jobbed,
		}},
		NotRun: []NotRun{{"A route tree laid out for cache lines", "routes are matched once per request or connection, in less than a microsecond; the claim names no number"}},
	}
}

func metricsAside() Ladder {
	arm := func(name, title string) Arm {
		return Arm{Name: name, Title: title, Job: "counters", Set: map[string]string{"kind": name}}
	}
	return Ladder{
		Name: "counters", Title: "B, aside. Counting on every core", Claim: "metrics through a lock-free ring, flushed in batches",
		Built: "One goroutine per core counts as fast as it can.",
		Experiments: []Experiment{{
			Name: "counters", Title: "One more event", How: "Processor time per event, all cores at once.",
			Arms:    []Arm{arm("mutex", "A mutex"), arm("atomic", "One atomic counter"), arm("batched", "A ring per goroutine, added up every 256")},
			Metrics: []Metric{{Key: "seconds", Name: "Per event", Unit: report.Seconds}},
			Steps: []Step{
				{"atomic", "mutex", "seconds", 0, "", "Either way the cores hand one cache line round; the atomic does it once per event."},
				{"batched", "atomic", "seconds", 0, "", "Counting where no other thread writes is what pays. A plain counter per loop, summed when it is read, is the same without a ring; Weir counts so."},
			},
			Measure: jobbed,
		}},
	}
}

func kneeAside() Ladder {
	var arms []Arm
	for _, s := range []string{"1", "0.5", "0.25", "0.1", "0.05"} {
		arms = append(arms, Arm{Name: s, Title: "Steps of " + s, Job: "knee", Set: map[string]string{"step": s}})
	}
	return Ladder{
		Name: "knee-rule", Title: "D, aside. The knee rule depends on the step",
		Claim: "P99 ≥ 2.5 times the window before, and goroutines ≥ 3 times",
		Built: "A simulated server (M/M/1, other dice in every round) whose load makes one step; the latency half of the rule is applied. weir knee applies both halves to a real one.",
		Experiments: []Experiment{{
			Name: "steps", Title: "Utilisation before the step that fires (simulated)",
			How:  "The least utilisation, in steps of 1 %, from which the step makes P99 grow 2.5 times: P99 of 50,000 arrivals, the median of three.",
			Arms: arms,
			Metrics: []Metric{
				{Key: "rho_before", Name: "Fires from a utilisation of", Unit: report.Share, Plain: true}, {Key: "rho_fires", Name: "to", Unit: report.Share, Plain: true},
				{Key: "formula", Name: "Formula: from", Unit: report.Share, Plain: true},
			},
			Measure: jobbed, Cost: -0.8,
		}},
		Doubts: []Doubt{{"D, aside", "The rule finds another knee with every step.", func(r *Reading) string {
			wide, narrow := r.Value("steps", "1", "rho_before"), r.Value("steps", "0.1", "rho_before")
			if wide.N == 0 || narrow.N == 0 {
				return ""
			}
			verdict := outcome(narrow.Lo-wide.Hi >= 0.1, narrow.Hi-wide.Lo < 0.1)
			return fmt.Sprintf("%s: with steps of 100 %% it fires from a utilisation of %s, with 10 %% from %s", verdict, report.Share.Format(wide.Point), report.Share.Format(narrow.Point))
		}}},
	}
}

func preemptAside() Ladder {
	arm := func(name, title, debug string) Arm {
		return Arm{Name: name, Title: title, Job: "preempt", Env: []string{"GOMAXPROCS=2", "GODEBUG=" + debug}}
	}
	return Ladder{
		Name: "preempt", Title: "D, aside. Asynchronous preemption",
		Claim: "CPU-heavy heartbeats: P99 142 → 27 ms (5.3×)",
		Built: "As many goroutines as processors compute for 100 ms without a function call, every 200 ms; another one wants to run every millisecond. " +
			"GODEBUG=asyncpreemptoff=1 shows what was before Go 1.14.",
		Experiments: []Experiment{{
			Name: "preempt", Title: "How late others run", How: "Two processors (GOMAXPROCS=2).",
			Arms:    []Arm{arm("off", "Preemption off", "asyncpreemptoff=1"), arm("on", "Preemption on (Go's own)", "asyncpreemptoff=0")},
			Metrics: []Metric{{Key: "late_p99", Name: "Late, P99", Unit: report.Seconds}, {Key: "late_p50", Name: "P50", Unit: report.Seconds}, {Key: "late_max", Name: "At most", Unit: report.Seconds}},
			Steps: []Step{
				{"on", "off", "late_p99", 5.3, "P99 142 → 27 ms (5.3×)", "Without it a loop keeps its processor until it is done; with it the scheduler takes it away after 10 ms, which is still far from at once."},
			},
			Measure: jobbed,
		}},
		Whole: &Ref{"preempt", "on", "off", "late_p99"},
	}
}
