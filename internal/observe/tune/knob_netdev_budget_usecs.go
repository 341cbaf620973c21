package tune

func netdevBudgetUsecs() Check {
	return Check{
		Name: "net.core.netdev_budget_usecs", Area: Packets, HostOnly: true,
		Gone: "this kernel is older than 4.12",
		Doc: Doc{
			Threshold: "at least 2000; 8000 if more than 0.1 % of the polls ended with packets left",
			Source:    "Documentation/admin-guide/sysctl/net.rst: netdev_budget_usecs",
			Since:     "4.12",
			Risk:      "as net.core.netdev_budget",
		},
		Worth: Worth{None: "loopback has no polls to end"},
		evaluate: func(p *probe, now string) verdict {
			packets, squeezed := p.softnet(0, "packets processed"), p.softnet(2, "polls ended early")
			if percent(squeezed, packets) > 0.1 {
				return atLeast(now, 8000, "polls of the card end while packets are waiting")
			}
			return atLeast(now, 2000, "a poll that may take less than 2 ms leaves packets behind under load")
		},
	}
}
