package tune

func tcpWmem() Check {
	return Check{
		Name: "net.ipv4.tcp_wmem", Area: Buffers,
		Doc: Doc{
			Threshold: "default (the middle value) at most 1 MiB, maximum at least 4 MiB",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_wmem",
			Since:     "2.4",
			Risk:      "a lower default makes the first burst of a connection wait for acknowledgements",
		},
		Worth:    Worth{Page: "c", Experiment: "settings", Arm: "windows", Against: "stock", Metric: "connections_per_second"},
		evaluate: func(p *probe, now string) verdict { return evaluateBuffer(p, now, 16384, 4<<20) },
	}
}
