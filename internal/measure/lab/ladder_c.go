package lab

import (
	"maps"

	"github.com/weir-gateway/weir/internal/measure/report"
)

// Settings of the kernel that the experiments change, all of them a network
// namespace's own.
var (
	queues = map[string]string{"net.core.somaxconn": "65535", "net.ipv4.tcp_max_syn_backlog": "65535"}
	// Before Linux 5.4 a listener held 128 connections that were not accepted yet.
	oldQueues = map[string]string{"net.core.somaxconn": "128", "net.ipv4.tcp_tw_reuse": "0"}
	ports     = map[string]string{"net.ipv4.tcp_tw_reuse": "1", "net.ipv4.ip_local_port_range": "1024 65535"}
	windows   = map[string]string{"net.ipv4.tcp_rmem": "4096 87380 16777216", "net.ipv4.tcp_wmem": "4096 65536 16777216"}
)

// kernelArm is the kernel job with a server and settings.
func kernelArm(name, title, server string, settings ...map[string]string) Arm {
	set := map[string]string{"server": server}
	for _, s := range settings {
		maps.Copy(set, s)
	}
	return Arm{Name: name, Title: title, Job: "kernel", Set: set}
}

var (
	connectRate  = Metric{Key: "connections_per_second", Name: "Connections with a request per second", Unit: report.PerSec, More: true}
	cpuPerShort  = Metric{Key: "cpu_seconds", Name: "Server CPU per connection", Unit: report.Seconds}
	shareOfErrs  = Metric{Key: "errors", Name: "Errors", Unit: report.Share}
	crowdSlow    = Metric{Key: "crowd_slow", Name: "Of 2,000 at once: later than 900 ms", Unit: report.Share}
	crowdFailed  = Metric{Key: "crowd_failed", Name: "Of 2,000 at once: failed", Unit: report.Share}
	kernelTables = []Metric{connectRate, cpuPerShort, p50, p99, shareOfErrs, crowdSlow, crowdFailed, {Key: "overflows", Name: "Listen overflows", Unit: report.Number}}
)

const kernelHow = "Server and load run in a network namespace of the experiment's own, where the settings are made; the machine's own stay as they are. First " +
	"2,000 clients connect at once, then 64 workers make one request per connection, closing first, so that TIME_WAIT is on their side. Loopback has " +
	"no losses and no delay: what settings do about those is the experiment with a line between. Compared is the rate, as it is claimed: here that of server and load on one machine, with the " +
	"server's processor time beside it."

func ladderC() Ladder {
	return Ladder{
		Name: "c", Title: "C. Kernel and HTTP together",
		Claim: "12,300 → 17,200 requests/s (+40 %), errors 1.2 → 0.1 %",
		Built: "Short connections, because long ones meet hardly any of these settings. One arm sets what kernels before 5.4 had, since the advice is from that time.",
		Experiments: []Experiment{{
			Name: "settings", Title: "C0–C3: settings, timeouts, listeners", How: kernelHow,
			Arms: []Arm{
				kernelArm("old", "Queues as before Linux 5.4", "c/stock", oldQueues),
				kernelArm("stock", "C0: as the kernel is today", "c/stock"),
				kernelArm("queues", "C1: longer queues", "c/stock", queues),
				kernelArm("ports", "C1: more ports, TIME_WAIT reused", "c/stock", ports),
				kernelArm("windows", "C1: larger tcp_rmem and tcp_wmem", "c/stock", windows),
				kernelArm("all", "C1: all of them", "c/stock", queues, ports, windows),
				kernelArm("timeouts", "C2: server timeouts and limits too", "c/timeouts", queues, ports, windows),
				kernelArm("reuseport", "C3: a listener per core too", "c/reuseport", queues, ports, windows),
			},
			Metrics: kernelTables,
			Steps: []Step{
				{"stock", "old", "connections_per_second", 0, "", "Only a crowd that arrives at once meets the old bound of 128; see the share of late ones. A closed loop of 64 never fills even that."},
				{"queues", "stock", "connections_per_second", 0, "", "Since 5.4 the queue holds 4,096; making it longer changes nothing for who does not fill it."},
				{"ports", "stock", "connections_per_second", 0, "", "TIME_WAIT and ports bound who connects, not who is connected to, and on loopback the kernel reuses such ports by itself (tcp_tw_reuse is 2)."},
				{"windows", "stock", "connections_per_second", 0, "", "A request and its answer fit into one segment each; no window is ever full."},
				{"all", "stock", "connections_per_second", 1.285, "12,300 → 15,800/s (1.28×)", "Together they do what they do one by one."},
				{"timeouts", "all", "connections_per_second", 1.089, "15,800 → 17,200/s (1.09×)", "Timeouts are for clients that hang, and the clients here do not."},
				{"reuseport", "all", "connections_per_second", 3.25, "80,000 → 260,000/s (3.25×)", "Listeners of their own spare cores one lock and one queue; that shows where many cores accept, and a loopback connection costs far more elsewhere."},
				{"timeouts", "stock", "connections_per_second", 1.4, "12,300 → 17,200/s (1.4×)", "The whole ladder, on loopback."},
				{"stock", "old", "crowd_slow", 0, "", "The crowd finds room in 4,096 and does not in 128: who is dropped comes a second later."},
				{"stock", "old", "crowd_failed", 0, "", "Late is not failed: the client's kernel sends again."},
				{"timeouts", "stock", "errors", 12, "errors 1.2 → 0.1 % (12×)", "Nothing is lost on loopback, so there is nothing to have fewer errors of."},
			},
			Measure: inNamespace, Needs: needsNamespace, Cost: 0.6,
		}, kernelPath(), kernelPorts(), kernelLoss(), kernelTracking(), {
			Name: "batches", Title: "C5: small requests gathered",
			How: "Messages are published to Weir one per request, or 16 in one (POST /api/broadcast), by 32 connections in a closed loop. All values are per message.",
			Arms: []Arm{
				{Name: "single", Title: "One message per request", Server: "weir"},
				{Name: "batch", Title: "16 messages per request", Server: "weir"},
			},
			Metrics: []Metric{{Key: "cpu", Name: "Server CPU per message", Unit: report.Seconds}, {Key: "rate", Name: "Messages per second", Unit: report.PerSec, More: true}, p50, p99},
			Steps: []Step{
				{"batch", "single", "cpu", 0, "", "The request is paid once for all messages in it: its system calls, its head, its key."},
				{"batch", "single", "rate", 1.77, "8,200 → 14,500/s (1.77×)", "What the messages have in common was most of what each cost."},
			},
			Measure: batches,
		}},
		Whole: &Ref{"settings", "timeouts", "stock", "connections_per_second"},
		Doubts: []Doubt{
			{"C1", "somaxconn is 4,096 by default since Linux 5.4, so raising it does nothing for most.", settleWorth(Ref{"settings", "queues", "stock", "connections_per_second"})},
			{"C1", "tcp_tw_recycle is gone since Linux 4.12.", func(r *Reading) string {
				v := r.Value("settings", "stock", "tw_recycle")
				if v.N == 0 {
					return ""
				}
				return outcome(v.Hi == 0, v.Lo == 1) + ": whether this kernel has the setting was looked up in /proc/sys; it broke clients behind NAT, and it is not run"
			}},
			{"C4", "Conntrack matters only on real network cards.", settleWorth(Ref{"conntrack", "notrack", "tracked", "connections_per_second"})},
		},
		NotRun: []NotRun{
			{"C1, tcp_tw_recycle", "removed from Linux in 4.12"},
			{"C4, interrupt coalescing, queues, IRQ affinity", "loopback and TUN have no interrupts and no queues of a card: a card with several queues is what is missing. weir tune check advises for one"},
			{"C4, a table of conntrack that is full", "nf_conntrack_max is the whole machine's and not a namespace's: an experiment would drop others' connections"},
			{"Two days of random delay and node loss", "that is a soak test of several nodes: weir accept has the failover of three, with its times (docs/howto/accept.md), in minutes rather than days"},
		},
	}
}
