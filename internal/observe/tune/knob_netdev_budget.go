package tune

func netdevBudget() Check {
	return Check{
		Name: "net.core.netdev_budget", Area: Packets, HostOnly: true,
		Doc: Doc{
			Threshold: "600 if more than 0.1 % of the polls ended with packets left (third column of softnet_stat)",
			Source:    "Documentation/admin-guide/sysctl/net.rst: netdev_budget",
			Since:     "2.6.19",
			Risk:      "network softirqs take more time at once from the programs of that processor",
		},
		Worth: Worth{None: "loopback has no polls to end"},
		evaluate: func(p *probe, now string) verdict {
			packets, squeezed := p.softnet(0, "packets processed"), p.softnet(2, "polls ended early")
			if percent(squeezed, packets) > 0.1 {
				return atLeast(now, 600, "polls of the card end while packets are waiting")
			}
			return good("%d of %d packets waited for a second poll", squeezed, packets)
		},
	}
}
