package tune

import "fmt"

func nicChannels() Check {
	return Check{
		Name: "nic.channels", Area: Card,
		Doc: Doc{
			Threshold: "as many queues as processors, or as many as the card has",
			Source:    "Documentation/networking/ethtool-netlink.rst: CHANNELS_GET; scaling.rst: RSS",
			Since:     "ethtool netlink 5.7",
			Risk:      "the link goes down briefly when the number changes",
			Undo:      "ethtool -L DEVICE combined OLD; disable weir-nic.service",
		},
		Worth: Worth{None: "loopback has no queues"},
		probe: func(p *probe) verdict {
			return perCard(p, func(dev string, v *verdict) error {
				c, err := p.Card.Channels(dev)
				if err != nil {
					return err
				}
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
			}, "a queue per processor, or as many as the card has")
		},
	}
}
