package tune

func abortOnOverflow() Check {
	return Check{
		Name: "net.ipv4.tcp_abort_on_overflow", Area: Accept,
		Doc: Doc{
			Threshold: "0",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_abort_on_overflow",
			Since:     "2.4",
			Risk:      "with 0 a client waits for a retransmission instead of an immediate reset",
		},
		Worth: Worth{None: "no experiment here overflows the queue with both values"},
		Base:  always("0"),
		evaluate: func(p *probe, now string) verdict {
			p.netstat("TcpExt", "ListenOverflows")
			return exactly(now, "0", "1 resets the clients of a short burst instead of letting them retry", "a burst is absorbed by retransmission")
		},
	}
}
