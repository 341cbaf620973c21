package tune

import "strconv"

func netdevBacklog() Check {
	return Check{
		Name: "net.core.netdev_max_backlog", Area: Packets, HostOnly: true,
		Doc: Doc{
			Threshold: "raise it if packets were dropped (second column of softnet_stat)",
			Source:    "Documentation/admin-guide/sysctl/net.rst: netdev_max_backlog",
			Since:     "2.2",
			Risk:      "a longer queue is more delay under overload",
		},
		Worth: Worth{None: "loopback delivers to the same processor; no packet was dropped"},
		evaluate: func(p *probe, now string) verdict {
			p.softnet(0, "packets processed")
			if drops := p.softnet(1, "packets dropped"); drops > 0 {
				n, _ := strconv.ParseInt(now, 10, 64)
				return atLeast(now, max(10_000, min(n, 10_000)), "packets were dropped between the card and TCP")
			}
			return good("no packet was dropped between the card and TCP")
		},
	}
}
