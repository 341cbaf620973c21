package tune

func mtuProbing() Check {
	return Check{
		Name: "net.ipv4.tcp_mtu_probing", Area: Transport,
		Doc: Doc{
			Threshold: "1 for clients on the internet",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_mtu_probing; RFC 4821",
			Since:     "2.6.17",
			Risk:      "after several lost retransmissions a connection continues with smaller segments",
		},
		Worth: Worth{None: "loopback has no path whose MTU is hidden"},
		Base:  by(map[Profile]string{Gateway: "1"}),
		evaluate: func(p *probe, now string) verdict {
			p.netstat("TcpExt", "TCPMTUPFail")
			p.netstat("TcpExt", "TCPMTUPSuccess")
			if p.profile != Gateway {
				return good("clients of this profile are in the same network")
			}
			if now == "2" {
				return good("path MTU is probed on every connection")
			}
			return exactly(now, "1", "a client behind a tunnel that drops ICMP gets small frames and never a large one", "a path that swallows large segments is detected")
		},
	}
}
