package tune

import (
	"fmt"
	"path"
	"strconv"
)

func nicRings() Check {
	return Check{
		Name: "nic.rings", Area: Card,
		Doc: Doc{
			Threshold: "the largest receive ring if the card has dropped packets (rx_missed_errors, rx_fifo_errors)",
			Source:    "Documentation/networking/ethtool-netlink.rst: RINGS_GET",
			Since:     "ethtool netlink 5.7",
			Risk:      "the link goes down briefly; a longer ring is more delay under overload",
			Undo:      "ethtool -G DEVICE rx OLD; disable weir-nic.service",
		},
		Worth: Worth{None: "loopback has no rings"},
		probe: func(p *probe) verdict {
			return perCard(p, func(dev string, v *verdict) error {
				r, err := p.Card.Rings(dev)
				if err != nil {
					return err
				}
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
			}, "the card has dropped nothing")
		},
	}
}
