package lab

import (
	"github.com/weir-gateway/weir/internal/measure/report"
)

var requestsPerCore = Metric{Key: "per_core", Name: "Requests per CPU second", Unit: report.PerSec, More: true}

func ladderB() Ladder {
	return Ladder{
		Name: "b", Title: "B. HTTP message gateway",
		Claim: "800 → 123,600 requests/s (154×), P99 142 → 1.8 ms, on 4 cores",
		Built: "All rungs answer the same request, a publish on a channel without subscribers, with the same words. Weir also checks the key, " +
			"finds the namespace and numbers the message in its log.",
		Experiments: []Experiment{httpReplies(), httpMany(), httpPipelined(), httpSends(), httpSlow(), httpClients(), httpKept()},
		Whole:       &Ref{"replies", "weir", "stock", "per_core"},
		Doubts: []Doubt{
			{"B0", "800 requests/s is far too low for net/http: a handicap is hidden in the baseline.", func(r *Reading) string {
				v := r.Value("replies", "stock", "rate")
				if v.N == 0 {
					return ""
				}
				return outcome(v.Lo >= 1600, v.Hi < 1600) + ": the same stock server answers " + report.PerSec.Format(v.Point) + " here"
			}},
			{"B5–B7", "From net/http to event loops and io_uring, 154×.", settleClaim(Ref{"replies", "weir", "stock", "per_core"})},
			{"B7", "Zero-copy sends do not pay for small frames.", settleWorth(Ref{"sends", "zerocopy", "send", "cpu"})},
		},
		NotRun: []NotRun{
			{"B7, zero-copy send of large frames", "it saves a copy on the way to a network card; to a receiver on the same machine the kernel makes that copy after all. A card and a second machine are missing"},
			{"B5 at 100,000 connections", "42,000 are measured: with twice as many descriptors per process (RLIMIT_NOFILE is 20,000 here and may not be raised) it would be more"},
		},
	}
}

func httpReplies() Experiment {
	return Experiment{
		Name: "replies", Title: "One request at a time on {64} connections",
		How: "A closed loop: each of {64} connections sends its next request when it has the answer. Server CPU per request is compared; the rate is that " +
			"of server and load together on one machine.",
		Arms: []Arm{
			{Name: "stock", Title: "B0: net/http and json.Marshal", Server: "b/stock"},
			{Name: "append", Title: "B1: answer appended, not marshalled", Server: "b/append"},
			{Name: "pooled", Title: "B4: pooled buffers too", Server: "b/pooled"},
			{Name: "timeouts", Title: "B3: timeouts everywhere", Server: "b/timeouts"},
			{Name: "loop", Title: "B5: event loop per core (epoll)", Server: "b/loop"},
			{Name: "uring", Title: "B7: event loop on io_uring", Server: "b/uring"},
			{Name: "weir", Title: "Weir", Server: "weir"},
		},
		Metrics: []Metric{cpuPerRequest, requestsPerCore, rate, p50, p99, allocBytes, gcPause},
		Steps: []Step{
			{"append", "stock", "cpu", 0, "", "Marshalling a small answer is a few microseconds at most, beside a request that net/http reads, routes and answers."},
			{"pooled", "append", "cpu", 0, "", "Pools save allocations; most of what net/http allocates per request is its own and stays."},
			{"pooled", "stock", "alloc_bytes", 2.7, "GC pressure −63 % (2.7×)", "The handler's share of the garbage goes, net/http's stays."},
			{"pooled", "stock", "rate", 35.6, "800 → 28,500/s (36×)", "The claim needs a baseline of 800 a second, which net/http is not."},
			{"timeouts", "pooled", "cpu", 0, "", "A deadline is a timer that is moved, twice per request. What they are for is the experiment with slow clients."},
			{"loop", "timeouts", "cpu", 0, "", "No goroutine is woken, no bufio filled, no header map built: a read, a parse in place, a write."},
			{"uring", "loop", "cpu", 0, "", "One system call submits many sends and returns many receives; with few connections ready at a time there is little to gather."},
			{"weir", "timeouts", "cpu", 0, "", "The same loop with what a gateway does besides: key, namespace, log and limits."},
			{"weir", "stock", "per_core", 154, "800 → 123,600/s (154×)", "From the first rung to the last, in requests per second of the server's processors: the rate itself is also the load's, which runs beside it."},
		},
		Measure: loaded(httpLoad(64, 1)),
	}
}

func httpPipelined() Experiment {
	return Experiment{
		Name: "pipelined", Title: "B6: pipelined, 16 requests outstanding on each of {16} connections",
		How: "The same requests, but a connection sends on without waiting. The arms differ in whether the answers to what one read brought leave together.",
		Arms: []Arm{
			{Name: "nethttp", Title: "net/http", Server: "b/timeouts"},
			{Name: "loop", Title: "Loop, a write per answer", Server: "b/loop"},
			{Name: "batched", Title: "Loop, a write per read", Server: "b/batched"},
			{Name: "weir", Title: "Weir", Server: "weir"},
		},
		Metrics: []Metric{cpuPerRequest, requestsPerCore, rate, p50, p99},
		Steps: []Step{
			{"loop", "nethttp", "cpu", 0, "", "net/http takes one request after the other and gives each its own cycle of reading, handling and flushing."},
			{"batched", "loop", "cpu", 1.7, "CPU 91 → 53 % (1.7×)", "Sixteen answers in one system call instead of sixteen, and the client is woken once."},
			{"batched", "loop", "p50", 3.8, "mean 42 → 11 ms (3.8×)", "With a fixed number outstanding, latency is that number over the rate."},
		},
		Measure: loaded(httpLoad(16, 16)),
	}
}

func httpSlow() Experiment {
	return Experiment{
		Name: "slow", Title: "B3: {1,000} clients that never finish a request",
		How: "{1,000} connections send a field of a request's head byte by byte, for ever. After three seconds the server's goroutines are counted, and the " +
			"connections that it still serves.",
		Arms: []Arm{
			{Name: "without", Title: "net/http without timeouts", Server: "b/pooled"},
			{Name: "with", Title: "net/http with timeouts", Server: "b/timeouts"},
			{Name: "weir", Title: "Weir", Server: "weir"},
		},
		Metrics: []Metric{goroutines, {Key: "open", Name: "Connections still open", Unit: report.Number}, memory},
		Steps: []Step{
			{"with", "without", "goroutines", 27.6, "387 → 14 goroutines", "Without a timeout a slow client keeps its goroutine and its buffers for as long as it likes; with one they are gone when it is over."},
			{"weir", "with", "goroutines", 0, "", "A connection of a loop has no goroutine to keep; what is unfinished is cut off by a deadline of its own, later than this experiment looks."},
		},
		Measure: slowClients(1000), Cost: 2,
	}
}

func httpClients() Experiment {
	arm := func(name, title, keep string) Arm {
		return Arm{Name: name, Title: title, Job: "clients", Set: map[string]string{"keep": keep}}
	}
	return Experiment{
		Name: "clients", Title: "B2: the client's pool of idle connections",
		How:  "100 goroutines make requests to one host, each taking a millisecond there; counted is the processor time of both sides and the connections opened.",
		Arms: []Arm{arm("2", "2 idle per host (net/http's own)", "2"), arm("20", "20 idle per host", "20"), arm("200", "200 idle per host", "200")},
		Metrics: []Metric{
			{Key: "cpu_seconds", Name: "CPU per request, both sides", Unit: report.Seconds}, {Key: "requests_per_second", Name: "Rate", Unit: report.PerSec, More: true},
			{Key: "connections_per_1k", Name: "Connections opened per 1,000 requests", Unit: report.Number},
		},
		Steps: []Step{
			{"200", "2", "cpu_seconds", 0, "", "A pool smaller than the concurrency throws most connections away after one request and opens new ones; as large as the concurrency it opens each once."},
			{"200", "20", "cpu_seconds", 0, "", "What decides is whether the pool holds as many as are used at once; beyond that nothing is to be had."},
		},
		Measure: jobbed,
	}
}
