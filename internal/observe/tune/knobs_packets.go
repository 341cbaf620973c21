package tune

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

var packetsChecks = []Check{
	{
		Name: "net.core.netdev_max_backlog", Area: Packets, HostOnly: true,
		Threshold: "raise it if packets were dropped (second column of softnet_stat)",
		Source:    "Documentation/admin-guide/sysctl/net.rst: netdev_max_backlog",
		Since:     "2.2",
		Risk:      "a longer queue is more delay under overload",
		Worth:     Worth{None: "loopback delivers to the same processor; no packet was dropped"},
		evaluate: func(p *probe, now string) verdict {
			p.softnet(0, "packets processed")
			if p.softnet(1, "packets dropped") > 0 {
				return atLeast(10_000, "packets were dropped between the card and TCP")(p, now)
			}
			return good("no packet was dropped between the card and TCP")
		},
	},
	{
		Name: "net.core.netdev_budget", Area: Packets, HostOnly: true,
		Threshold: "600 if more than 0.1 % of the polls ended with packets left (third column of softnet_stat)",
		Source:    "Documentation/admin-guide/sysctl/net.rst: netdev_budget",
		Since:     "2.6.19",
		Risk:      "network softirqs take more time at once from the programs of that processor",
		Worth:     Worth{None: "loopback has no polls to end"},
		evaluate: func(p *probe, now string) verdict {
			packets, squeezed := p.softnet(0, "packets processed"), p.softnet(2, "polls ended early")
			if percent(squeezed, packets) > 0.1 {
				return atLeast(600, "polls of the card end while packets are waiting")(p, now)
			}
			return good("%d of %d packets waited for a second poll", squeezed, packets)
		},
	},
	{
		Name: "net.core.netdev_budget_usecs", Area: Packets, HostOnly: true,
		Gone:      "this kernel is older than 4.12",
		Threshold: "at least 2000; 8000 if more than 0.1 % of the polls ended with packets left",
		Source:    "Documentation/admin-guide/sysctl/net.rst: netdev_budget_usecs",
		Since:     "4.12",
		Risk:      "as net.core.netdev_budget",
		Worth:     Worth{None: "loopback has no polls to end"},
		evaluate: func(p *probe, now string) verdict {
			packets, squeezed := p.softnet(0, "packets processed"), p.softnet(2, "polls ended early")
			if percent(squeezed, packets) > 0.1 {
				return atLeast(8000, "polls of the card end while packets are waiting")(p, now)
			}
			return atLeast(2000, "a poll that may take less than 2 ms leaves packets behind under load")(p, now)
		},
	},
	{
		Name: "net.core.busy_poll", Area: Packets, HostOnly: true,
		Gone:      "this kernel is built without busy polling (CONFIG_NET_RX_BUSY_POLL)",
		Threshold: "0: it is set per event loop instead (eventloop.sockets.busy_poll)",
		Source:    "Documentation/networking/napi.rst: busy polling; admin-guide/sysctl/net.rst: busy_poll",
		Since:     "3.11; per epoll since 6.9",
		Risk:      "a processor that polls does nothing else",
		Worth:     Worth{None: "it needs a card that can be polled; loopback has none"},
		Base:      always("0"),
		evaluate: func(p *probe, now string) verdict {
			p.note("network cards", joined(p.devices()), "/sys/class/net")
			return exactly("0", "every poll(2) and select(2) of the machine burns a processor; the loops of one server can be set alone", "only programs that request it poll")(p, now)
		},
	},
	{
		Name: "net.core.busy_read", Area: Packets, HostOnly: true,
		Gone:      "this kernel is built without busy polling (CONFIG_NET_RX_BUSY_POLL)",
		Threshold: "0",
		Source:    "Documentation/networking/napi.rst: busy polling; admin-guide/sysctl/net.rst: busy_read",
		Since:     "3.11",
		Risk:      "a processor that polls does nothing else",
		Worth:     Worth{None: "it needs a card that can be polled; loopback has none"},
		Base:      always("0"),
		evaluate:  exactly("0", "every blocking read of the machine burns a processor, and event loops do not block in reads", "no read polls unless its socket requests it"),
	},
	{
		Name: "qdisc.classes", Area: Packets,
		Threshold: "a link that is named (--link) has a queue for each class of messages, by DSCP",
		Source:    "tc-htb(8), tc-u32(8); RFC 4594",
		Since:     "2.4.20",
		Risk:      "a rate above that of the slowest link on the way has no effect, one below it gives capacity away; one lock for all queues of a card: not for more than some 10 Gbit/s",
		Undo:      "weir tune undo, or: tc qdisc del dev DEVICE root",
		Worth:     Worth{None: "no experiment of docs/lab has a link that is full; bench/priority measures one"},
		probe: func(p *probe) verdict {
			switch {
			case p.Queues == nil:
				return verdict{state: Unsupported, why: "not supported here: these files are not the running kernel's, and queues are read from the kernel"}
			case len(p.Links) == 0:
				return verdict{state: OK, why: "no link was named (--link DEVICE=RATE)"}
			}
			v := verdict{state: OK, why: "the classes have their queues"}
			for i := range p.Links {
				if !p.classQueue(&p.Links[i], &v) {
					break
				}
			}
			return v
		},
	},
	{
		Name: "cpu.scaling_governor", Area: Processor,
		Threshold: "low-latency and bench: performance on every processor",
		Source:    "Documentation/admin-guide/pm/cpufreq.rst",
		Since:     "2.6",
		Risk:      "more power and heat",
		Worth:     Worth{None: "the machine of the experiments cannot scale its frequency"},
		probe: func(p *probe) verdict {
			const dir = "/sys/devices/system/cpu"
			var found []string
			var steps []Step
			for _, cpu := range p.list(dir) {
				if ok, _ := path.Match("cpu[0-9]*", cpu); !ok {
					continue
				}
				file := path.Join(dir, cpu, "cpufreq/scaling_governor")
				s, err := p.read(file)
				switch state := unreadable(err); {
				case state == Absent:
					continue
				case state != OK:
					return verdict{state: state, why: file + " cannot be read: " + err.Error()}
				}
				if !slices.Contains(found, s) {
					found = append(found, s)
				}
				p.note(cpu, s, file)
				if s != "performance" {
					steps = append(steps, Step{Target: file, Value: "performance"})
				}
			}
			switch {
			case found == nil:
				return verdict{state: Unsupported, why: "not supported here: the processors' frequency is not this machine's to set, as in most virtual machines"}
			case p.profile == Gateway || len(steps) == 0:
				return verdict{state: OK, now: strings.Join(found, ", "), why: "a busy server runs at full frequency under every governor"}
			}
			return verdict{state: Change, now: strings.Join(found, ", "), want: "performance", steps: steps,
				why: fmt.Sprintf("%d processors lower their frequency when idle, and wake slowly", len(steps))}
		},
	},
}

// classQueue checks one link; false ends the check.
func (p *probe) classQueue(l *Link, v *verdict) bool {
	target := QdiscTarget + l.Device
	now, err := p.Queues.Load(target)
	if err != nil {
		*v = verdict{state: unreadable(err), why: "the queue of " + l.Device + " cannot be read: " + err.Error()}
		return false
	}
	want := l.String()
	p.note(l.Device+" qdisc", cmp.Or(now, "the kernel's own"), "rtnetlink")
	v.now = appendTo(v.now, l.Device+": "+cmp.Or(now, "the kernel's own"))
	switch {
	case now == want:
	case now != "" && !strings.HasPrefix(now, "htb, incomplete") && !ours(now):
		*v = watch("%s has a queue that something else made (%s): remove it first (tc qdisc del dev %s root), or divide the link there", l.Device, now, l.Device)
		return false
	default:
		v.state, v.why = Change, "orders wait behind prices in one queue when "+l.Device+" is full"
		v.want = appendTo(v.want, l.Device+": "+want)
		v.steps = append(v.steps, Step{Target: target, Value: want})
		v.config = append(v.config,
			File{Path: qdiscBatch(l.Device), Text: l.Batch()},
			File{Path: fmt.Sprintf("/etc/systemd/system/weir-qdisc-%s.service", l.Device), Text: qdiscUnit(l.Device)})
	}
	return true
}

// ours reports whether a value is a Shape's.
func ours(value string) bool {
	_, err := parseShape(value)
	return err == nil
}

func qdiscBatch(dev string) string { return "/etc/weir/qdisc-" + dev + ".tc" }

// qdiscUnit makes the queues at every boot; stopping it gives the kernel's own queue back.
func qdiscUnit(dev string) string {
	return fmt.Sprintf(`[Unit]
Description=Queues by class of messages on %[1]s (weir tune plan qdisc.classes)
BindsTo=sys-subsystem-net-devices-%[2]s.device
After=sys-subsystem-net-devices-%[2]s.device

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/tc -batch %[3]s
ExecStop=/usr/sbin/tc qdisc del dev %[1]s root

[Install]
WantedBy=multi-user.target
`, dev, strings.ReplaceAll(dev, "-", `\x2d`), qdiscBatch(dev))
}
