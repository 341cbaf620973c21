package tune

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

var cardChecks = []Check{
	{
		Name: "nic.channels", Area: Card,
		Threshold: "as many queues as processors, or as many as the card has",
		Source:    "Documentation/networking/ethtool-netlink.rst: CHANNELS_GET; scaling.rst: RSS",
		Since:     "ethtool netlink 5.7",
		Risk:      "the link goes down briefly when the number changes",
		Undo:      "ethtool -L DEVICE combined OLD; disable weir-nic.service",
		Worth:     Worth{None: "loopback has no queues"},
		probe: perCard(EthtoolReader.Channels, func(p *probe, dev string, c Channels, v *verdict) error {
			now, most := c.Combined+c.RX, c.MaxCombined+c.MaxRX
			p.note(dev+" receive queues", fmt.Sprintf("%d of %d", now, most), "ethtool netlink")
			v.now = appendTo(v.now, fmt.Sprintf("%s: %d of %d", dev, now, most))
			if want := min(p.cpus(), most); now < want {
				kind := "combined"
				if c.MaxCombined == 0 {
					kind = "rx"
				}
				v.configure(nicFile(dev, "-L %s %s %d", dev, kind, want), fmt.Sprintf("%s: %d", dev, want), "%s has %d queues for %d processors, and could have %d", dev, now, p.cpus(), most)
			}
			return nil
		}, "a queue per processor, or as many as the card has"),
	},
	{
		Name: "nic.rings", Area: Card,
		Threshold: "the largest receive ring if the card has dropped packets (rx_missed_errors, rx_fifo_errors)",
		Source:    "Documentation/networking/ethtool-netlink.rst: RINGS_GET",
		Since:     "ethtool netlink 5.7",
		Risk:      "the link goes down briefly; a longer ring is more delay under overload",
		Undo:      "ethtool -G DEVICE rx OLD; disable weir-nic.service",
		Worth:     Worth{None: "loopback has no rings"},
		probe: perCard(EthtoolReader.Rings, func(p *probe, dev string, r Rings, v *verdict) error {
			var drops int64
			for _, name := range []string{"rx_missed_errors", "rx_fifo_errors"} {
				file := path.Join("/sys/class/net", dev, "statistics", name)
				s, err := p.read(file)
				if err != nil {
					continue
				}
				n, _ := strconv.ParseInt(s, 10, 64)
				drops += n
				p.note(dev+" "+name, s, file)
			}
			p.note(dev+" receive ring", fmt.Sprintf("%d of %d", r.RX, r.MaxRX), "ethtool netlink")
			v.now = appendTo(v.now, fmt.Sprintf("%s: %d of %d", dev, r.RX, r.MaxRX))
			if drops > 0 && r.RX < r.MaxRX {
				v.configure(nicFile(dev, "-G %s rx %d", dev, r.MaxRX), fmt.Sprintf("%s: %d", dev, r.MaxRX), "%s dropped %d packets because its ring was full", dev, drops)
			}
			return nil
		}, "the card has dropped nothing"),
	},
	{
		Name: "nic.coalesce", Area: Card,
		Threshold: "gateway: adaptive, or an interrupt per at least 16 µs; low-latency: not adaptive and at most 8 µs",
		Source:    "Documentation/networking/ethtool-netlink.rst: COALESCE_GET",
		Since:     "ethtool netlink 5.7",
		Risk:      "few microseconds cost interrupts, many cost latency",
		Undo:      "ethtool -C DEVICE rx-usecs OLD adaptive-rx OLD; disable weir-nic.service",
		Worth:     Worth{None: "loopback has no interrupts"},
		probe: perCard(EthtoolReader.Coalesce, func(p *probe, dev string, c Coalesce, v *verdict) error {
			p.note(dev+" coalescing", fmt.Sprintf("rx-usecs %d, adaptive-rx %t", c.RXMicros, c.AdaptiveRX), "ethtool netlink")
			v.now = appendTo(v.now, fmt.Sprintf("%s: %d µs, adaptive %t", dev, c.RXMicros, c.AdaptiveRX))
			switch {
			case p.driver(dev) == "virtio_net" && c.RXMicros == 0:
				return fmt.Errorf("%s: virtio_net coalesces only where the host offers it, which cannot be read: %w", dev, ErrUnsupported)
			case p.profile == LowLatency && (c.AdaptiveRX || c.RXMicros > 8):
				args := "-C %s adaptive-rx off rx-usecs 8"
				v.configure(nicFile(dev, args, dev), dev+": 8 µs, fixed", "%s gathers packets for up to %d µs before it interrupts", dev, c.RXMicros)
			case p.profile == Gateway && !c.AdaptiveRX && c.RXMicros < 16:
				v.configure(nicFile(dev, "-C %s rx-usecs 16", dev), dev+": 16 µs", "%s interrupts for nearly every packet", dev)
			}
			return nil
		}, "interrupts come as often as the profile wants"),
	},
	{
		Name: "nic.offloads", Area: Card,
		Threshold: "checksums, scatter-gather, segmentation (TSO) and GRO are on where the card can do them",
		Source:    "Documentation/networking/ethtool-netlink.rst: FEATURES_GET; segmentation-offloads.rst",
		Since:     "ethtool netlink 5.7",
		Risk:      "some cards and hypervisors have faulty offloads: that is why they were turned off",
		Undo:      "ethtool -K DEVICE FEATURE off; disable weir-nic.service",
		Worth:     Worth{None: "loopback hands buffers over and has nothing to offload"},
		probe: perCard(EthtoolReader.Features, func(p *probe, dev string, features map[string]Feature, v *verdict) error {
			var on, off []string
			for _, f := range []struct{ kernel, ethtool string }{
				{"tx-checksum-ip-generic", "tx"}, {"rx-checksum", "rx"}, {"tx-scatter-gather", "sg"},
				{"tx-tcp-segmentation", "tso"}, {"tx-generic-segmentation", "gso"}, {"rx-gro", "gro"},
			} {
				switch has := features[f.kernel]; {
				case has.Active:
					on = append(on, f.ethtool)
				case has.Possible:
					off = append(off, f.ethtool)
				}
			}
			p.note(dev+" offloads on", joined(on), "ethtool netlink")
			v.now = appendTo(v.now, dev+": "+joined(on))
			if len(off) > 0 {
				v.configure(nicFile(dev, "-K %s %s on", dev, strings.Join(off, " on ")), dev+": "+strings.Join(off, ", ")+" on",
					"%s could do %s and does not: the processor does that per packet", dev, strings.Join(off, ", "))
			}
			return nil
		}, "the card does what it can"),
	},
	{
		Name: "nic.rps", Area: Card,
		Threshold: "every processor in rps_cpus where a card has fewer receive queues than there are processors, and softnet_stat shows packets dropped or polls ended early; empty otherwise",
		Source:    "Documentation/networking/scaling.rst: RPS",
		Since:     "2.6.35",
		Risk:      "an interrupt between processors per batch; worse than nothing with one queue per processor",
		Worth:     Worth{None: "loopback has no receive queues"},
		probe: perDevice(func(p *probe, dev string, v *verdict) error {
			queues := p.queues(dev, "rx-")
			if len(queues) == 0 {
				return fmt.Errorf("%s has no receive queues: %w", dev, ErrUnsupported)
			}
			pressed := p.softnet(1, "packets dropped") > 0 || percent(p.softnet(2, "polls ended early"), p.softnet(0, "packets processed")) > 0.1
			for _, q := range queues {
				file := path.Join(q, "rps_cpus")
				now, err := p.read(file)
				if err != nil {
					return err
				}
				p.note(dev+" "+path.Base(q), now, file)
				on := strings.Trim(now, "0,") != ""
				switch {
				case len(queues) >= p.cpus() && on:
					v.need(Step{Target: file, Value: "0"}, "%s has a queue per processor: steering packets again only adds interrupts", dev)
				case len(queues) < p.cpus() && !on && pressed:
					v.need(Step{Target: file, Value: cpuMask(p.cpus())}, "%s: one processor receives the packets of all, and does not keep up", dev)
				}
			}
			v.now = appendTo(v.now, fmt.Sprintf("%s: %d queues, %d processors", dev, len(queues), p.cpus()))
			return nil
		}, "one processor keeps up with its queue, or there is a queue per processor"),
	},
	{
		Name: "net.core.rps_sock_flow_entries", Area: Card, HostOnly: true,
		Threshold: "0, unless rps_cpus is in use: then 32768",
		Source:    "Documentation/networking/scaling.rst: RFS",
		Since:     "2.6.35",
		Risk:      "a table of 4 bytes per entry, and a lookup per packet",
		Worth:     Worth{None: "loopback has no receive queues"},
		evaluate: func(p *probe, now string) verdict {
			rps := p.usesRPS()
			switch {
			case rps && now == "0":
				return change("32768", "packets are steered by hash; with flow entries they go to the processor that reads them")
			case !rps && now != "0":
				return change("0", "no queue uses rps_cpus, so the table only costs a lookup")
			}
			return good("it goes with rps_cpus")
		},
	},
	{
		Name: "nic.xps", Area: Card,
		Threshold: "a map of processors for every transmit queue, where there is more than one",
		Source:    "Documentation/networking/scaling.rst: XPS",
		Since:     "2.6.38",
		Risk:      "a map that leaves out a processor sends its packets by hash",
		Worth:     Worth{None: "loopback has no transmit queues"},
		probe: perDevice(func(p *probe, dev string, v *verdict) error {
			queues := p.queues(dev, "tx-")
			v.now = appendTo(v.now, fmt.Sprintf("%s: %d transmit queues", dev, len(queues)))
			if len(queues) < 2 {
				return nil
			}
			for i, q := range queues {
				file := path.Join(q, "xps_cpus")
				now, err := p.read(file)
				if err != nil {
					return err
				}
				p.note(dev+" "+path.Base(q), now, file)
				if strings.Trim(now, "0,") == "" && i < p.cpus() {
					v.need(Step{Target: file, Value: singleCPU(i)}, "%s: its transmit queues are chosen by hash, so processors wait for each other's locks", dev)
				}
			}
			return nil
		}, "each processor sends on its own queue, or there is only one"),
	},
	{
		Name: "nic.irq_affinity", Area: Card,
		Threshold: "the interrupts of a card's queues go to more than one processor, where it has several",
		Source:    "Documentation/core-api/irq/irq-affinity.rst",
		Since:     "2.4",
		Risk:      "irqbalance moves them again: stop it, or let it do the work",
		Worth:     Worth{None: "loopback has no interrupts"},
		probe: func(p *probe) verdict {
			table, err := p.read("/proc/interrupts")
			if err != nil {
				return verdict{state: unreadable(err), why: "/proc/interrupts cannot be read: " + err.Error()}
			}
			return perDevice(func(p *probe, dev string, v *verdict) error {
				irqs := p.interrupts(dev, table)
				v.now = appendTo(v.now, fmt.Sprintf("%s: %d interrupts", dev, len(irqs)))
				seen := map[string]bool{}
				for _, irq := range irqs {
					file := path.Join("/proc/irq", irq, "smp_affinity_list")
					now, err := p.read(file)
					if err != nil {
						return err
					}
					p.note(dev+" irq "+irq, now, file)
					seen[now] = true
				}
				if len(irqs) > 1 && p.cpus() > 1 && len(seen) == 1 {
					for one := range seen {
						if countList(one) > 1 {
							return nil // the kernel, or irqbalance, spreads them
						}
					}
					for i, irq := range irqs {
						v.need(Step{Target: path.Join("/proc/irq", irq, "smp_affinity_list"), Value: fmt.Sprint(i % p.cpus())},
							"%s: one processor takes the interrupts of all %d queues", dev, len(irqs))
					}
				}
				return nil
			}, "interrupts are spread, or there is only one queue")(p)
		},
	},
}

// nicFile is a line of the unit that sets a card at boot.
func nicFile(dev, args string, a ...any) File {
	return File{
		Path: "/etc/systemd/system/weir-nic.service",
		Head: "[Unit]\nDescription=Network card settings for weir\nAfter=network-pre.target\nBefore=weir.service\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\n",
		Text: fmt.Sprintf("# %s\nExecStart=/usr/sbin/ethtool "+args+"\n", append([]any{dev}, a...)...),
	}
}

// cpuMask is the mask of the first n processors as sysfs has it.
func cpuMask(n int) string {
	var groups []string
	for ; n > 32; n -= 32 {
		groups = append(groups, "ffffffff")
	}
	return strings.Join(append([]string{fmt.Sprintf("%x", uint64(1)<<n-1)}, groups...), ",")
}

func singleCPU(i int) string {
	s := fmt.Sprintf("%x", uint64(1)<<(i%32))
	return s + strings.Repeat(",00000000", i/32)
}

// interrupts are the numbers of a card's interrupts that carry packets: those of its
// device (MSI), which for virtio is the PCI device above.
func (p *probe) interrupts(dev, table string) []string {
	data := map[string]bool{}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasSuffix(f[0], ":") {
			continue
		}
		name := f[len(f)-1]
		if strings.Contains(name, dev) || strings.Contains(name, "-input.") || strings.Contains(name, "-output.") {
			data[strings.TrimSuffix(f[0], ":")] = true
		}
	}
	var irqs []string
	for at := p.devicePath(dev); len(at) > len("/sys/"); at = path.Dir(at) {
		if all := p.list(path.Join(at, "msi_irqs")); len(all) > 0 {
			for _, irq := range all {
				if data[irq] {
					irqs = append(irqs, irq)
				}
			}
			break
		}
	}
	return irqs
}

// devicePath is where a device is below /sys/devices, without links.
func (m *Machine) devicePath(dev string) string {
	class := "/sys/class/net"
	link, err := fs.ReadLink(m.FS, strings.TrimPrefix(path.Join(class, dev), "/"))
	if err != nil {
		return path.Join(class, dev, "device")
	}
	return path.Join(class, link)
}

// driver is the name of a device's driver, "" if unknown.
func (m *Machine) driver(dev string) string {
	link, err := fs.ReadLink(m.FS, strings.TrimPrefix(path.Join("/sys/class/net", dev, "device/driver"), "/"))
	if err != nil {
		return ""
	}
	return path.Base(link)
}
