package tune

import (
	"fmt"
	"strings"
)

func nicOffloads() Check {
	return Check{
		Name: "nic.offloads", Area: Card,
		Doc: Doc{
			Threshold: "checksums, scatter-gather, segmentation (TSO) and GRO are on where the card can do them",
			Source:    "Documentation/networking/ethtool-netlink.rst: FEATURES_GET; segmentation-offloads.rst",
			Since:     "ethtool netlink 5.7",
			Risk:      "some cards and hypervisors have faulty offloads: that is why they were turned off",
			Undo:      "ethtool -K DEVICE FEATURE off; disable weir-nic.service",
		},
		Worth: Worth{None: "loopback hands buffers over and has nothing to offload"},
		probe: func(p *probe) verdict {
			return perCard(p, func(dev string, v *verdict) error {
				features, err := p.Card.Features(dev)
				if err != nil {
					return err
				}
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
			}, "the card does what it can")
		},
	}
}

// nicFile is a line of the unit that sets a card at boot.
func nicFile(dev, args string, a ...any) File {
	return File{
		Path: "/etc/systemd/system/weir-nic.service",
		Head: "[Unit]\nDescription=Network card settings for weir\nAfter=network-pre.target\nBefore=weir.service\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\n",
		Text: fmt.Sprintf("# %s\nExecStart=/usr/sbin/ethtool "+args+"\n", append([]any{dev}, a...)...),
	}
}
