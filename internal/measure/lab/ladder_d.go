package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
	"github.com/weir-gateway/weir/internal/measure/report"
)

func ladderD() Ladder {
	return Ladder{
		Name: "d", Title: "D. WebSocket: reader and writer",
		Claim: "one goroutine per connection → reader and writer apart: 720 → 3,100/s (4.3×)",
		Built: "The same codec in every rung; who reads and who writes differs. The source panics on a concurrent close; the connection used here allows it, so " +
			"that is not rebuilt.",
		Experiments: []Experiment{socketEcho(), socketCapacity(), socketFanOut(), socketStalled(), socketQueues(), socketEncoders()},
		Whole:       &Ref{"echo", "writer", "one", "rate"},
		Doubts: []Doubt{
			{"D0", "1,350 connections and 720 messages a second are little for one goroutine each.", func(r *Reading) string {
				v := r.Value("capacity", "one", "errors")
				if v.N == 0 {
					return ""
				}
				return fmt.Sprintf("%s: with 4,200 connections and 3,100/s, which the claim gives to D1, it has %s of errors", outcome(v.Hi <= 0.01, v.Lo > 0.01), report.Share.Format(v.Point))
			}},
			{"D2", "The loss figures of the channel capacities depend on the burst.", func(r *Reading) string {
				small, large := r.Value("queues", "4096", "lost"), r.Value("queues", "4096-small", "lost")
				if small.N == 0 || large.N == 0 {
					return ""
				}
				return fmt.Sprintf("%s: with the same capacity of 4,096, bursts of 20,000 lose %s and bursts of 2,000 lose %s",
					outcome(small.Lo > large.Hi, small.Hi <= large.Lo), report.Share.Format(small.Point), report.Share.Format(large.Point))
			}},
			{"D1", "A second goroutine costs something wherever no client is slow.", func(r *Reading) string {
				s, ok := r.step(Ref{"echo", "writer", "one", "cpu"})
				v := r.Ratio("echo", s)
				switch {
				case !ok || Evaluate(v) == Untold || Evaluate(v) == Uncertain:
					return ""
				case Evaluate(v) == Worse:
					return "upheld: an echo costs more with it, " + measured(v)
				case Evaluate(v) == Worth:
					return "not upheld: " + measured(v)
				default:
					return "not settled: no difference within noise, " + measured(v)
				}
			}},
		},
		NotRun: []NotRun{
			{"A panicking writer, reconnect and local queue", "that is behaviour, not speed: Weir's tests end one connection by a panic and look at its neighbours, and its client's tests reconnect"},
		},
	}
}

func socketArms() []Arm {
	return []Arm{
		{Name: "one", Title: "D0: one goroutine reads and writes", Server: "d/one"},
		{Name: "writer", Title: "D1: a writer behind a channel of 128", Server: "d/writer"},
		{Name: "loops", Title: "D4: event loops", Server: "d/loops"},
		{Name: "weir", Title: "Weir", Server: "weir"},
	}
}

func socketEcho() Experiment {
	return Experiment{
		Name: "echo", Title: "Echo on {200} connections",
		How:     "A closed loop: each of {200} connections sends its next message of 128 bytes when the one before has come back.",
		Arms:    socketArms(),
		Metrics: []Metric{{Key: "cpu", Name: "Server CPU per echo", Unit: report.Seconds}, rate, p50, p99, allocBytes, goroutines},
		Steps: []Step{
			{"writer", "one", "cpu", 0, "", "The second goroutine has to be woken for every answer that the first could have written itself, and the message is copied for it."},
			{"writer", "one", "rate", 4.3, "720 → 3,100/s (4.3×)", "The claim's own quantity. Where every client reads, splitting the work adds some; what it helps is another experiment: one reader that has stopped."},
			{"loops", "one", "cpu", 0, "", "No goroutine is woken: the loop that read the message writes its echo."},
			{"weir", "loops", "cpu", 0, "", "The same loop in a whole gateway."},
		},
		Measure: loaded(func(b *Bench) loadgen.Spec {
			n := b.scaled(200)
			return loadgen.Spec{Kind: loadgen.Echo, Target: "/echo", Conns: n, Closed: true, Concurrency: n}
		}),
	}
}

func socketCapacity() Experiment {
	arms := socketArms()
	for _, a := range socketArms() {
		a.Name, a.Title = a.Name+"-16k", a.Title+", 16,000 connections and 11,800/s"
		arms = append(arms, a)
	}
	return Experiment{
		Name: "capacity", Title: "D0, D1: {4,200} connections and {3,100} echoes a second",
		How: "What the claim gives to D1 as its capacity, at a flat rate (Poisson) over all connections; then nearly four times as much, as many connections as one process may " +
			"have here. Claimed is the capacity at up to 1 % of errors: an arm with fewer carries it.",
		Arms: arms,
		Metrics: []Metric{
			shareOfErrs, {Key: "p99", Name: "P99", Unit: report.Seconds}, p50, {Key: "cpu", Name: "Server CPU per echo", Unit: report.Seconds}, {Key: "cores", Name: "Processors used", Unit: report.Number}, rate, memory, goroutines,
		},
		Steps: []Step{
			{"writer", "one", "p99", 14, "P99 1.8 s → 128 ms (14×)", "Both carry the claimed load with time to spare, so there is nothing for a second goroutine to relieve."},
			{"writer-16k", "one-16k", "p99", 0, "", "Four times as much, and the same."},
			{"loops-16k", "one-16k", "rss", 0, "", "A loop's connection has no stack."},
			{"weir-16k", "one-16k", "cpu", 0, "", "No goroutine to wake for each echo."},
		},
		Measure: func(ctx context.Context, b *Bench, a Arm) (Values, error) {
			return loaded(func(b *Bench) loadgen.Spec {
				n, perSecond := b.scaled(4200), float64(b.scaled(3100))
				if strings.HasSuffix(a.Name, "-16k") {
					n, perSecond = b.scaled(16_000), float64(b.scaled(11_800))
				}
				return loadgen.Spec{Kind: loadgen.Echo, Target: "/echo", Conns: n, Rate: perSecond, ConnectRate: 5000}
			})(ctx, b, a)
		},
		Cost: 5,
	}
}

func socketFanOut() Experiment {
	return Experiment{
		Name: "fanout", Title: "D4: one message to {500} subscribers",
		How:     "{500} subscribers of one channel, 40 messages a second: {20,000} deliveries a second for every rung.",
		Arms:    socketArms(),
		Metrics: []Metric{{Key: "cpu", Name: "Server CPU per delivery", Unit: report.Seconds}, p50, p99, allocBytes, goroutines, lost},
		Steps: []Step{
			{"writer", "one", "cpu", 0, "", "The publisher only queues; a goroutine for each is woken to write one small frame each."},
			{"loops", "writer", "cpu", 0, "", "One frame is shared by all and sent by the loops that own the connections: no copy, no wake-up per subscriber."},
			{"weir", "loops", "cpu", 0, "", "Weir adds a log, numbering and bounds per subscriber to the same path."},
		},
		Measure: loaded(fanOut("ws", 500, 40)),
	}
}

func socketStalled() Experiment {
	return Experiment{
		Name: "stalled", Title: "D1: one reader that has stopped",
		How: "{100} subscribers get 100 messages a second, while a subscriber of another channel has stopped reading and is sent 16 MB. Compared is the age of " +
			"the others' messages on arrival.",
		Arms:    socketArms(),
		Metrics: []Metric{{Key: "mean", Name: "Mean age on arrival", Unit: report.Seconds}, p50, p99, cpuPerEvent, goroutines, lost},
		Steps: []Step{
			{"writer", "one", "mean", 0, "", "The mean can be freed of what the load was late itself, so it is there on a busy machine too."},
			{"writer", "one", "p99", 14, "P99 1.8 s → 128 ms (14×)", "Where the publisher writes to each socket itself, one that takes nothing holds up everybody until its deadline; behind a channel only its own writer waits."},
			{"loops", "writer", "mean", 0, "", "A send that does not block delays no other client either; it pays with memory for what waits."},
			{"weir", "writer", "mean", 0, "", "Weir bounds what waits for a subscriber in bytes and then goes by the namespace's policy, here: leave it."},
		},
		Measure: stalled,
	}
}

func socketQueues() Experiment {
	arm := func(name, title, capacity, burst string) Arm {
		return Arm{Name: name, Title: title, Job: "queue", Set: map[string]string{"capacity": capacity, "burst": burst}}
	}
	return Experiment{
		Name: "queues", Title: "D2: capacity of the channel",
		How: "Bursts of 20,000 messages go into the channel as fast as one goroutine can; its writer writes each to a socket that is read. What finds the " +
			"channel full is lost.",
		Arms: []Arm{
			arm("128", "128", "128", "20000"), arm("1024", "1,024", "1024", "20000"), arm("4096", "4,096", "4096", "20000"),
			arm("4096-small", "4,096, bursts of 2,000", "4096", "2000"),
		},
		Metrics: []Metric{
			{Key: "delay_p50", Name: "Wait in the channel, P50", Unit: report.Seconds}, {Key: "delay_p99", Name: "P99", Unit: report.Seconds},
			{Key: "lost", Name: "Lost", Unit: report.Share}, {Key: "first_refused", Name: "First refused", Unit: report.Number, Plain: true},
		},
		Steps: []Step{
			{"4096", "128", "delay_p50", 0, "write delay 3.2 → 62.1 µs, lost 92 → 0.02 %", "A longer channel loses later and delays longer: full, each message waits for all before it. It moves the problem to where the burst ends, it does not solve it."},
		},
		Measure: jobbed, Cost: 0.1,
	}
}

func socketEncoders() Experiment {
	arm := func(name, title string) Arm {
		return Arm{Name: name, Title: title, Job: "encode", Set: map[string]string{"kind": name}}
	}
	return Experiment{
		Name: "encoders", Title: "D3: encoders",
		How:  "One goroutine turns a message of six fields into JSON again and again.",
		Arms: []Arm{arm("fresh", "New buffer and encoder each time"), arm("pooled", "Pooled, pre-sized buffer"), arm("append", "Appended by hand")},
		Metrics: []Metric{
			{Key: "seconds", Name: "Per message", Unit: report.Seconds}, {Key: "allocs", Name: "Allocations per message", Unit: report.Number},
			{Key: "gc_per_100k", Name: "Collections per 100,000", Unit: report.Number},
		},
		Steps: []Step{
			{"pooled", "fresh", "seconds", 4.4, "18,420 → 4,160 ns (4.4×)", "What is saved is the buffer's memory; finding out how a struct is encoded costs the same in both."},
			{"append", "fresh", "seconds", 0, "", "Nothing is found out at run time and nothing is allocated."},
			{"pooled", "fresh", "gc_per_100k", 42, "127 → 3 collections per 100,000 (42×)", "The rarer garbage is made, the rarer it is collected."},
		},
		Measure: jobbed,
	}
}
