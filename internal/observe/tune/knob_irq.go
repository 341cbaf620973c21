package tune

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

func irqAffinity() Check {
	return Check{
		Name: "nic.irq_affinity", Area: Card,
		Doc: Doc{
			Threshold: "the interrupts of a card's queues go to more than one processor, where it has several",
			Source:    "Documentation/core-api/irq/irq-affinity.rst",
			Since:     "2.4",
			Risk:      "irqbalance moves them again: stop it, or let it do the work",
		},
		Worth: Worth{None: "loopback has no interrupts"},
		probe: func(p *probe) verdict {
			table, err := p.read("/proc/interrupts")
			if err != nil {
				return verdict{state: unreadable(err), why: "/proc/interrupts cannot be read: " + err.Error()}
			}
			return perDevice(p, func(dev string, v *verdict) error {
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
			}, "interrupts are spread, or there is only one queue")
		},
	}
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
