package tune

func synBacklog() Check {
	return Check{
		Name: "net.ipv4.tcp_max_syn_backlog", Area: Accept,
		Doc: Doc{
			Threshold: "only if requests were dropped with a full queue (TcpExt TCPReqQFullDrop): then at least 8192",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_max_syn_backlog",
			Since:     "2.2",
			Risk:      "some hundred bytes per half-open connection during a flood",
		},
		Worth: Worth{Page: "c", Experiment: "settings", Arm: "queues", Against: "stock", Metric: "connections_per_second"},
		evaluate: func(p *probe, now string) verdict {
			drops := p.netstat("TcpExt", "TCPReqQFullDrop")
			p.netstat("TcpExt", "TCPReqQFullDoCookies")
			if drops > 0 {
				return atLeast(now, 8192, "connection requests were dropped because the queue of half-open ones was full")
			}
			return good("no request was dropped; with SYN cookies the listen backlog bounds the queue, not this")
		},
	}
}
