package tune

import "fmt"

func nicCoalesce() Check {
	return Check{
		Name: "nic.coalesce", Area: Card,
		Doc: Doc{
			Threshold: "gateway: adaptive, or an interrupt per at least 16 µs; low-latency: not adaptive and at most 8 µs",
			Source:    "Documentation/networking/ethtool-netlink.rst: COALESCE_GET",
			Since:     "ethtool netlink 5.7",
			Risk:      "few microseconds cost interrupts, many cost latency",
			Undo:      "ethtool -C DEVICE rx-usecs OLD adaptive-rx OLD; disable weir-nic.service",
		},
		Worth: Worth{None: "loopback has no interrupts"},
		probe: func(p *probe) verdict {
			return perCard(p, func(dev string, v *verdict) error {
				c, err := p.Card.Coalesce(dev)
				if err != nil {
					return err
				}
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
			}, "interrupts come as often as the profile wants")
		},
	}
}
