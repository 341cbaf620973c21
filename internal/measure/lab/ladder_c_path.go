package lab

import (
	"context"
	"maps"
	"time"

	"github.com/weir-gateway/weir/internal/measure/report"
)

// pathArm is the path job with a server and settings.
func pathArm(name, title, server string, settings ...map[string]string) Arm {
	a := kernelArm(name, title, server, settings...)
	a.Job = "path"
	return a
}

// merged is all of the maps in one.
func merged(list ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range list {
		maps.Copy(all, m)
	}
	return all
}

// along runs the path job in a network namespace of its own, for d at least.
func along(d time.Duration) Measure {
	return func(ctx context.Context, b *Bench, a Arm) (Values, error) { return inNamespace(ctx, b.lasting(d), a) }
}

const pathHow = "Client and server each have a network namespace of their own; between them is a line of two TUN devices, whose packets a process carries: "

// kernelPath is late and failed connections where a network is between.
func kernelPath() Experiment {
	line := map[string]string{"rtt": "0.02", "loss": "0.005"}
	slow, failed := Metric{Key: "crowd_slow", Name: "Of 2,000 at once: later than 900 ms", Unit: report.Share}, Metric{Key: "crowd_failed", Name: "Of 2,000 at once: failed", Unit: report.Share}
	return Experiment{
		Name: "path", Title: "C1, C2: the crowd, with delay and loss",
		How: pathHow + "20 ms there and back, and one packet in 200 of what the server sends is lost. First 2,000 clients connect at once, then 64 workers make one request per connection. A " +
			"client gives up after 5 s.",
		Arms: []Arm{
			pathArm("old", "Queues as before Linux 5.4", "c/stock", line, oldQueues), pathArm("stock", "C0: as the kernel is today", "c/stock", line),
			pathArm("all", "C1: queues, ports, windows", "c/stock", line, queues, ports, windows),
			pathArm("timeouts", "C2: server timeouts and limits too", "c/timeouts", line, queues, ports, windows),
		},
		Metrics: []Metric{slow, failed, shareOfErrs, connectRate, p50, p99, {Key: "overflows", Name: "Listen overflows", Unit: report.Number}, {Key: "lost_packets", Name: "Packets lost", Unit: report.Share, Plain: true}},
		Steps: []Step{
			{"stock", "old", "crowd_slow", 0, "", "A connection that finds the queue full is not refused: its last packet is dropped and sent again a second later. That is what 128 cost, and 4,096 have room for the crowd."},
			{"all", "stock", "crowd_slow", 0, "", "What is late now is what the line has lost, and no setting of a queue sends it sooner."},
			{"stock", "old", "crowd_failed", 0, "", "Late is not failed: the kernel tries again for longer than a client waits here."},
			{"all", "stock", "errors", 3, "errors 1.2 → 0.4 % (3×)", "64 at a time fill no queue; what is lost is sent again within the client's patience."},
			{"timeouts", "stock", "errors", 12, "errors 1.2 → 0.1 % (12×)", "Timeouts of the server end clients that hang, and these do not."},
			{"all", "stock", "connections_per_second", 1.285, "12,300 → 15,800/s (1.28×)", "Each worker waits for the line most of the time: no setting here makes it shorter."},
		},
		Measure: along(time.Second), Needs: needsPath, Cost: 4,
	}
}

// kernelPorts is what a client does without ports.
func kernelPorts() Experiment {
	few := map[string]string{"client.net.ipv4.ip_local_port_range": "10000 14999", "crowd": "0"}
	return Experiment{
		Name: "ports", Title: "C1: a client that runs out of ports",
		How: pathHow + "without delay or loss. The client closes first, so its ports stay in TIME_WAIT for a minute; it is given 5,000 of them, " +
			"so that they run out within seconds rather than within the minute that the usual 28,232 last. A failed connection is tried again after a millisecond.",
		Arms: []Arm{
			pathArm("few", "5,000 ports, as the kernel is", "c/stock", few),
			pathArm("reuse", "5,000 ports, tcp_tw_reuse=1", "c/stock", few, map[string]string{"client.net.ipv4.tcp_tw_reuse": "1"}),
			pathArm("many", "64,512 ports, as the kernel is", "c/stock", map[string]string{"client.net.ipv4.ip_local_port_range": "1024 65535", "crowd": "0"}),
		},
		Metrics: []Metric{connectRate, shareOfErrs, p50, p99},
		Steps: []Step{
			{"reuse", "few", "connections_per_second", 0, "", "The kernel's default, 2, reuses such ports on loopback alone. Set to 1 it does so for any peer after a second, by timestamps: of who connects often to few, this is the setting that helps."},
			{"many", "few", "connections_per_second", 0, "", "More ports put the end off; a minute at this rate needs more than there are."},
			{"reuse", "few", "errors", 0, "", "Without a free port connect fails at once, and that is an error that no server sees."},
		},
		Measure: along(3 * time.Second), Needs: needsPath, Cost: 3,
	}
}

// kernelLoss is congestion control where there is something to control.
func kernelLoss() Experiment {
	line := func(control, loss string) map[string]string {
		return map[string]string{"mode": "bulk", "rtt": "0.04", "rate": "100000000", "loss": loss, "serve.control": control}
	}
	return Experiment{
		Name: "loss", Title: "C1: BBR against CUBIC",
		How: pathHow + "100 Mbit/s, 40 ms there and back, a queue of one bandwidth-delay product, and random loss of what the server sends. Four " +
			"connections download what they can for five seconds; the first second is not counted.",
		Arms: []Arm{
			pathArm("cubic", "CUBIC, no loss", "c/bulk", line("cubic", "0")), pathArm("bbr", "BBR, no loss", "c/bulk", line("bbr", "0")),
			pathArm("cubic-loss", "CUBIC, 1 % lost", "c/bulk", line("cubic", "0.01")), pathArm("bbr-loss", "BBR, 1 % lost", "c/bulk", line("bbr", "0.01")),
		},
		Metrics: []Metric{
			{Key: "goodput", Name: "Bytes received per second", Unit: report.Bytes, More: true}, {Key: "lost_packets", Name: "Packets lost on the line", Unit: report.Share, Plain: true},
			{Key: "dropped_packets", Name: "Packets dropped by its queue", Unit: report.Share, Plain: true},
		},
		Steps: []Step{
			{"bbr", "cubic", "goodput", 0, "", "Without random loss both fill the line; what differs is how much waits in its queue for it."},
			{"bbr-loss", "cubic-loss", "goodput", 0, "", "CUBIC takes a lost packet for a full queue and slows down; BBR measures what arrives and does not. It is a setting for lines that lose, not for a faster server."},
		},
		Measure: along(5 * time.Second), Needs: needsPath, Cost: 5,
	}
}

// kernelTracking is what a firewall that looks at states costs.
func kernelTracking() Experiment {
	arm := func(name, title, how string) Arm {
		return kernelArm(name, title, "c/stock", merged(ports, map[string]string{"crowd": "0", "conntrack": how}))
	}
	return Experiment{
		Name: "conntrack", Title: "C4: connection tracking, and NOTRACK",
		How: "On loopback in a network namespace of the experiment's own, where a rule has connections tracked, as a firewall's rule of states does; NOTRACK is the " +
			"rule of weir tune apply conntrack.notrack. Packets of loopback pass the same hooks as a card's. The client has all ports, so that they are not what ends first.",
		Arms:    []Arm{arm("none", "Nothing tracked", ""), arm("tracked", "All tracked", "tracked"), arm("notrack", "All but the server's (NOTRACK)", "notrack")},
		Metrics: []Metric{connectRate, cpuPerShort, p50, p99, shareOfErrs, {Key: "tracked", Name: "Entries at the end", Unit: report.Number}},
		Steps: []Step{
			{"tracked", "none", "connections_per_second", 0, "", "Each connection is looked up with every packet, and costs an entry that stays for two minutes after its end."},
			{"notrack", "tracked", "connections_per_second", 0, "", "The rule is looked at instead; what it saves for certain is the table, which fills at its maximum and then drops what is new."},
			{"notrack", "tracked", "tracked", 0, "", "Nothing of the service is in the table."},
		},
		Measure: inNamespace, Needs: needsNamespace, Cost: 0.3,
	}
}
