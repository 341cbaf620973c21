package tune

func maxTwBuckets() Check {
	return Check{
		Name: "net.ipv4.tcp_max_tw_buckets", Area: Ports,
		Doc: Doc{
			Threshold: "only if TIME_WAIT was cut short (TcpExt TCPTimeWaitOverflow): then 262144; never below 32768",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_max_tw_buckets",
			Since:     "2.4",
			Risk:      "about 250 bytes per socket in TIME_WAIT",
		},
		Worth: Worth{None: "no experiment here has that many sockets in TIME_WAIT"},
		evaluate: func(p *probe, now string) verdict {
			p.sockstat("TCP", "tw")
			if p.netstat("TcpExt", "TCPTimeWaitOverflow") > 0 {
				return atLeast(now, 262144, "the bound was reached: sockets were closed without TIME_WAIT, and late segments may reach a new connection")
			}
			return atLeast(now, 32768, "a low bound ends TIME_WAIT early, and late segments may reach a new connection")
		},
	}
}
