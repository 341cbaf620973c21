package lab

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/report"
)

func laddersE() []Ladder {
	return []Ladder{ladderE1(), ladderE2(), ladderE3(), ladderE4(), ladderE5(), ladderE6(), ladderE8()}
}

func ladderE1() Ladder {
	return Ladder{
		Name: "e1", Title: "E1. Memory of long connections",
		Claim: "50,000 connections: RSS 1,842 → 326 MB (5.7×), goroutines 50,127 → 1,024",
		Built: "50,000 streams, over as many server processes as the limit of descriptors wants and as many of clients. The claim's pool is built on fasthttp, which is an arm; what the claim " +
			"describes, a number of workers that does not follow that of connections, is the rung with epoll and 64 workers in each process.",
		Experiments: []Experiment{{
			Name: "idle", Title: "Idle event streams",
			How: "Streams are opened 64 at a time and stay silent. Compared are the servers' resident memory, all processes together, as it is claimed, and its growth per stream. The kernel's part of a " +
				"socket is not in it and is the same for all. A server that starts with room to spare fills that first: figures below a KiB are rather more.",
			Arms: []Arm{
				{Name: "nethttp", Title: "net/http", Server: "a/onewrite"},
				{Name: "hijacked", Title: "net/http, connection taken over", Server: "a/hijacked"},
				{Name: "fasthttp", Title: "fasthttp, connection taken over", Server: "e1/fasthttp", Program: "fasthttp"},
				{Name: "pool", Title: "Epoll and a pool of 64 workers", Server: "e1/pool"},
				{Name: "weir", Title: "Weir", Server: "weir"},
				{Name: "weir-uring", Title: "Weir, io_uring, one process", Server: "weir", Processes: 1, Set: map[string]string{
					"eventloop.engine": "io_uring", "eventloop.loops": "4",
				}},
			},
			Metrics: []Metric{
				{Key: "rss_per_conn", Name: "Memory per connection", Unit: report.Bytes}, {Key: "streams", Name: "Streams", Unit: report.Number, Plain: true}, memory, goroutines,
				{Key: "connect", Name: "Time per connect", Unit: report.Seconds}, {Key: "processes", Name: "Server processes", Unit: report.Number, Plain: true},
			},
			Steps: []Step{
				{"hijacked", "nethttp", "rss_per_conn", 0, "", "Two goroutines and their stacks remain; what net/http keeps for a response goes back to its pools."},
				{"fasthttp", "nethttp", "rss", 5.65, "1,842 → 326 MB (5.7×)", "fasthttp allocates less per request and reuses more; a connection that stays still has a goroutine that waits for it."},
				{"fasthttp", "nethttp", "goroutines", 49, "50,127 → 1,024 goroutines (49×)", "Its pool of workers is one of goroutines, one per open connection: bounded to 1,024 it would refuse the 1,025th."},
				{"pool", "nethttp", "rss", 5.65, "1,842 → 326 MB (5.7×)", "An idle connection that waits in epoll needs no stack and no buffer, only an entry in a table."},
				{"pool", "nethttp", "rss_per_conn", 0, "", "Without what the processes have from their start."},
				{"pool", "nethttp", "goroutines", 49, "50,127 → 1,024 goroutines (49×)", "The number of workers does not follow the number of connections."},
				{"weir", "nethttp", "rss_per_conn", 0, "", "One small struct for the connection and one for its place in the hub; buffers are leased only while something is partial."},
				{"weir-uring", "weir", "rss", 0, "", "With io_uring a connection is no descriptor of the process, so one process has them all; a ring's memory beside each loop is the price."},
			},
			Measure: held(50_000, 0), Cost: 16,
		}},
		Whole: &Ref{"idle", "pool", "nethttp", "rss"},
	}
}

func ladderE2() Ladder {
	arm := func(n, title string) Arm {
		return Arm{Name: n, Title: title, Job: "handshake", Set: map[string]string{"alpn": n}}
	}
	return Ladder{
		Name: "e2", Title: "E2. ALPN and the handshake",
		Claim: "1 / 3 / 5 entries cost 21 / 32 / 49 µs and move the knee to 15,600 / 12,800 / 9,200 connections",
		Built: "Whole TLS 1.3 handshakes with a P-256 certificate on loopback; each side lists so many protocols, of which only the last is known to both.",
		Experiments: []Experiment{{
			Name: "alpn", Title: "Handshakes by the length of the list",
			How:  "One connection after the other; counted is the processor time of both sides per handshake, and apart from it what comparing the lists takes.",
			Arms: []Arm{arm("0", "No ALPN"), arm("1", "1 entry"), arm("3", "3 entries"), arm("5", "5 entries")},
			Metrics: []Metric{
				{Key: "cpu_seconds", Name: "CPU per handshake, both sides", Unit: report.Seconds}, {Key: "seconds", Name: "Time, P50", Unit: report.Seconds},
				{Key: "match_seconds", Name: "Of it comparing the lists", Unit: report.Seconds},
			},
			Steps: []Step{
				{"5", "1", "cpu_seconds", 0.43, "21 → 49 µs", "Five names against five are at most 25 comparisons of short strings; the curves and the signature are thousands of times that."},
				{"1", "0", "cpu_seconds", 0, "", "An extension of a dozen bytes in two messages that are sent anyway."},
			},
			Measure: jobbed,
		}},
		Whole: &Ref{"alpn", "5", "1", "cpu_seconds"},
		Doubts: []Doubt{{"E2, D aside", "The ALPN share is implausible: matching a few strings takes nanoseconds.", func(r *Reading) string {
			m, h := r.Value("alpn", "5", "match_seconds"), r.Value("alpn", "5", "cpu_seconds")
			if m.N == 0 || h.N == 0 {
				return ""
			}
			verdict := outcome(m.Hi < 0.05*h.Lo, m.Lo >= 0.05*h.Hi)
			return fmt.Sprintf("%s: comparing five entries takes %s of a handshake's %s, %.2g %%", verdict,
				report.Seconds.Format(m.Point), report.Seconds.Format(h.Point), 100*m.Point/h.Point)
		}}},
		NotRun: []NotRun{{"Knee at 8,000 and 16,000 connections by ALPN", "what takes less than a thousandth of a handshake cannot move a knee. What handshakes and TLS do move is ladder tls"}},
	}
}

func ladderE3() Ladder {
	arm := func(idle, title string) Arm {
		return Arm{Name: idle, Title: title, Job: "pool", Set: map[string]string{"idle": idle}}
	}
	return Ladder{
		Name: "e3", Title: "E3. How many connections a pool really has",
		Claim: "effective size = N·hit·idle/(idle + fin_wait)",
		Built: "A real Go client whose idle connections end after a time, with bursts of 40 requests every 200 ms: shortened times, the same shape.",
		Experiments: []Experiment{{
			Name: "decay", Title: "Connections that stand when the next burst comes",
			How: "Counted on the server just before each burst. The model is given the measured share of requests that found a connection, once with a " +
				"fin_wait of 1 ms (loopback) and once with the kernel's 60 s.",
			Arms: []Arm{arm("0.05", "Idle timeout 50 ms"), arm("0.15", "150 ms"), arm("0.25", "250 ms"), arm("1", "1 s")},
			Metrics: []Metric{
				{Key: "standing", Name: "Standing", Unit: report.Number, More: true}, {Key: "hit", Name: "Requests that found one", Unit: report.Share, More: true},
				{Key: "model_at_once", Name: "Model, fin_wait 1 ms", Unit: report.Number, Plain: true}, {Key: "model_60s", Name: "Model, fin_wait 60 s", Unit: report.Number, Plain: true},
			},
			Steps:   []Step{{"1", "0.25", "standing", 0, "", "What counts is whether the timeout outlives the gap between two bursts: shorter, no queue remains; longer, all of it does, however much longer it is. The model has no gap in it."}},
			Measure: jobbed,
		}},
		Doubts: []Doubt{{"E3", "A model to test, not to believe.", func(r *Reading) string {
			const fits = 4
			worst, beyond, within := 0.0, false, true
			for _, a := range []string{"0.05", "0.15", "0.25", "1"} {
				s, m := r.Value("decay", a, "standing"), r.Value("decay", a, "model_at_once")
				if s.N == 0 || m.N == 0 {
					return ""
				}
				worst = max(worst, math.Abs(m.Point-s.Point))
				beyond = beyond || away(s, m.Hi) > fits && away(s, m.Lo) > fits
				within = within && farthest(s, m.Lo) <= fits && farthest(s, m.Hi) <= fits
			}
			return fmt.Sprintf("%s: of 40, the model is wrong by up to %.0f connections", outcome(beyond, within), worst)
		}}},
	}
}

func ladderE4() Ladder {
	return Ladder{
		Name: "e4", Title: "E4. SO_REUSEPORT and the kernel",
		Claim: "24,180 → 33,210 → 41,650/s (+72 %)",
		Built: "The three steps of the source with short connections.",
		Experiments: []Experiment{{
			Name: "listeners", Title: "Stock, listeners per core, and settings", How: kernelHow,
			Arms: []Arm{
				kernelArm("stock", "Stock", "c/stock"), kernelArm("reuseport", "SO_REUSEPORT", "c/reuseport"),
				kernelArm("settings", "SO_REUSEPORT, tw_reuse and somaxconn", "c/reuseport", queues, ports),
			},
			Metrics: kernelTables,
			Steps: []Step{
				{"reuseport", "stock", "connections_per_second", 1.37, "24,180 → 33,210/s (1.37×)", "Each core accepts from a queue of its own. That is worth what the one queue's lock cost, and few cores do not fight for it."},
				{"settings", "reuseport", "connections_per_second", 1.25, "33,210 → 41,650/s (1.25×)", "Neither ports nor the queue were short."},
				{"settings", "stock", "connections_per_second", 1.72, "24,180 → 41,650/s (1.72×)", "The whole of it."},
			},
			Measure: inNamespace, Needs: needsNamespace, Cost: 0.6,
		}},
		Whole: &Ref{"listeners", "settings", "stock", "connections_per_second"},
	}
}

func ladderE5() Ladder {
	arm := func(name, title string, headroom string, env ...string) Arm {
		a := Arm{Name: name, Title: title, Job: "collector", Env: env}
		if headroom != "" {
			a.Set = map[string]string{"headroom": headroom}
		}
		return a
	}
	return Ladder{
		Name: "e5", Title: "E5. Garbage collection",
		Claim: "fixed GOGC → GOGC by heap state: pauses 18 → 6 → 2.8 ms",
		Built: "Go 1.26's collector, with a fixed GOGC, with a memory limit in its place, and with a GOGC that follows the headroom. Linking into the " +
			"runtime's internals is not rebuilt.",
		Experiments: []Experiment{{
			Name: "pacing", Title: "Requests that allocate 100 KB, on a heap of 32 MB",
			How: "A request is due every 500 µs, so a stall is paid by all that should have started meanwhile.",
			Arms: []Arm{
				arm("100", "GOGC=100 (Go's own)", "", "GOGC=100"), arm("400", "GOGC=400", "", "GOGC=400"),
				arm("limit", "GOMEMLIMIT=256MiB alone", "", "GOGC=off", "GOMEMLIMIT=256MiB"), arm("headroom", "GOGC by headroom in 256 MB", "256"),
			},
			Metrics: []Metric{
				{Key: "pause_max", Name: "Longest pause", Unit: report.Seconds}, {Key: "pause_p99", Name: "Pause P99", Unit: report.Seconds}, {Key: "p99", Name: "Request P99", Unit: report.Seconds},
				{Key: "p999", Name: "Request P99.9", Unit: report.Seconds}, {Key: "cycles", Name: "Collections per second", Unit: report.PerSec}, {Key: "gc_share", Name: "CPU for collecting", Unit: report.Share},
				{Key: "peak", Name: "Heap at most", Unit: report.Bytes}, {Key: "cpu_seconds", Name: "CPU per request", Unit: report.Seconds},
			},
			Steps: []Step{
				{"headroom", "100", "pause_max", 6.4, "pauses 18 → 2.8 ms (6.4×)", "Go stops the program only to begin and to end a collection, which takes the same however often it happens; pauses of 18 ms are of another collector."},
				{"headroom", "100", "cycles", 0, "", "What pacing by headroom does buy: memory that is there anyway is used before anything is collected."},
				{"limit", "headroom", "cycles", 0, "", "The limit alone lets the heap grow to it and collects there, which is rare until there is no room left; then it collects without end. The headroom rule keeps a floor."},
				{"headroom", "100", "cpu_seconds", 0, "", "Fewer collections are less work, in proportion to what survives each."},
			},
			Measure: jobbed, Cost: 2,
		}},
		Whole: &Ref{"pacing", "headroom", "100", "pause_max"},
	}
}

func ladderE6() Ladder {
	return Ladder{
		Name: "e6", Title: "E6. Leak hunt",
		Claim: "a reader that ignores its context: 120,000 goroutines, P99.99 12 ms → 1.8 s",
		Built: "A handler that starts a helper with every request, one that never ends and one that ends with the request, at 4,000 requests a second; an " +
			"operator's view of the goroutines beside it. A third server begins with the 115,000 goroutines that half a minute of the leak leaves.",
		Experiments: []Experiment{{
			Name: "leak", Title: "With and without the leak",
			How: "Goroutines are sampled 20 times a second; found is when their trend (Theil and Sen's slope) is over a tenth of their number a second, with 99 % confidence.",
			Arms: []Arm{
				{Name: "sound", Title: "The helper ends with the request", Server: "e6/sound"},
				{Name: "leaky", Title: "The helper ignores its context", Server: "e6/leaky"},
				{Name: "long", Title: "The same after half a minute", Server: "e6/leaky", Set: map[string]string{"leaked": "115000"}},
			},
			Metrics: []Metric{goroutines, {Key: "detected", Name: "Found after", Unit: report.Seconds, Plain: true}, p99, memory, cpuPerRequest},
			Steps: []Step{
				{"leaky", "sound", "goroutines", 0, "", "Every request leaves a goroutine with its stack and whatever it refers to."},
				{"long", "sound", "p99", 0, "", "A parked goroutine costs memory and time in every collection, not in the scheduler: requests notice only when there are very many. Watch the number, not the latency."},
			},
			Measure: hunted,
		}, {
			Name: "tail", Title: "P99.99 with 120,000 goroutines",
			How: "The sound server, as it begins and with 120,000 goroutines that wait for ever: {10,000} requests a second (Poisson) for 12 seconds, so that ten of them are slower than P99.99.",
			Arms: []Arm{
				{Name: "few", Title: "No leak", Server: "e6/sound"},
				{Name: "many", Title: "120,000 leaked goroutines", Server: "e6/sound", Set: map[string]string{"leaked": "120000"}},
			},
			Metrics: []Metric{{Key: "p9999", Name: "P99.99", Unit: report.Seconds}, p99, p50, cpuPerRequest, goroutines, memory, {Key: "gc_pause", Name: "Mean GC pause", Unit: report.Seconds}, {Key: "gc_cycles", Name: "Collections", Unit: report.Number}},
			Steps: []Step{
				{"many", "few", "p9999", 0.0067, "P99.99 12 ms → 1.8 s at 120,000 goroutines (0.0067×)", "Their stacks are scanned in every collection, beside the requests and not instead of them: that is processor time, and the slowest request is one that meets it."},
				{"many", "few", "cpu", 0, "", "The collections' share."},
			},
			Measure: func(ctx context.Context, b *Bench, a Arm) (Values, error) {
				return loaded(func(b *Bench) loadgen.Spec {
					return loadgen.Spec{Kind: loadgen.HTTP, Target: "/work", Conns: 64, Rate: float64(b.scaled(10_000))}
				})(ctx, b.lasting(12*time.Second), a)
			},
			Cost: 15,
		}},
	}
}

func ladderE8() Ladder {
	arm := func(name, title string, set ...string) Arm {
		a := Arm{Name: name, Title: title, Job: "burst", Set: map[string]string{}}
		for i := 0; i+1 < len(set); i += 2 {
			a.Set[set[i]] = set[i+1]
		}
		return a
	}
	return Ladder{
		Name: "e8", Title: "E8. A burst of three times the load",
		Claim: "indicator 7: P95 ≤ 15 ms (13.2 ± 0.8) by a token bucket that follows P95",
		Built: "A simulation, with other dice in every round: two workers that carry 10,000 requests a second, 6,000 a second before and after, 18,000 for ten seconds; one in ten is an order.",
		Experiments: []Experiment{{
			Name: "burst", Title: "Admission under the burst (simulated)",
			How: "P95 is of what was admitted during the burst.",
			Arms: []Arm{
				arm("none", "No limit", "policy", "none"), arm("low", "Token bucket at 0.9 of capacity", "policy", "bucket", "rate", "0.9"),
				arm("high", "Token bucket at 1.1 of capacity", "policy", "bucket", "rate", "1.1"),
				arm("big", "Token bucket at 0.9, of size 9,000", "policy", "bucket", "rate", "0.9", "burst", "9000"),
				arm("budget", "Delay budget and priority", "policy", "budget"),
			},
			Metrics: []Metric{
				{Key: "p95", Name: "P95", Unit: report.Seconds}, {Key: "p95_orders", Name: "P95 of orders", Unit: report.Seconds},
				{Key: "orders_admitted", Name: "Orders admitted", Unit: report.Share, More: true}, {Key: "goodput", Name: "Served per second", Unit: report.PerSec, More: true},
			},
			Steps: []Step{
				{"low", "none", "p95", 0, "", "A bucket below capacity keeps the queue short, and refuses orders and the rest alike."},
				{"high", "low", "p95", 0, "", "A tenth too much is a queue that grows for as long as the burst lasts: the bucket is as good as the guess of the capacity."},
				{"budget", "low", "orders_admitted", 0, "", "Admission by expected wait needs no guess of the capacity, and orders that go first fit as long as they alone are below it."},
			},
			Measure: jobbed, Cost: -0.8,
		}},
		Doubts: []Doubt{{"E8", "A token bucket alone is fragile.", func(r *Reading) string {
			low, high, budget := r.Value("burst", "low", "p95"), r.Value("burst", "high", "p95"), r.Value("burst", "budget", "p95")
			if low.N == 0 || high.N == 0 || budget.N == 0 {
				return ""
			}
			verdict := outcome(high.Lo >= 0.015, high.Hi < 0.015)
			return fmt.Sprintf("%s: P95 is %s at 0.9 of capacity and %s at 1.1; a delay budget gives %s", verdict,
				report.Seconds.Format(low.Point), report.Seconds.Format(high.Point), report.Seconds.Format(budget.Point))
		}}},
		NotRun: []NotRun{{"A bucket that follows P95 in the real gateway", "admission belongs to the gateway's governor and is tried there"}},
	}
}
