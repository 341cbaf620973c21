package tune

import "fmt"

func tcpRmem() Check {
	return Check{
		Name: "net.ipv4.tcp_rmem", Area: Buffers,
		Doc: Doc{
			Threshold: "default (the middle value) at most 1 MiB, maximum at least 4 MiB",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_rmem",
			Since:     "2.4",
			Risk:      "a lower default starts new connections with a smaller window, which autotuning then raises",
		},
		Worth: Worth{Page: "c", Experiment: "settings", Arm: "windows", Against: "stock", Metric: "connections_per_second"},
		evaluate: func(p *probe, now string) verdict {
			p.netstat("TcpExt", "PruneCalled")
			p.netstat("TcpExt", "TCPRcvCollapsed")
			return evaluateBuffer(p, now, 131072, 6<<20)
		},
	}
}

// evaluateBuffer compares tcp_rmem or tcp_wmem: usual is the kernel's default for the
// middle value, most for the maximum.
func evaluateBuffer(p *probe, now string, usual, most int64) verdict {
	v, err := numbers(now, 3)
	if err != nil {
		return watch("%v", err)
	}
	p.sockstat("TCP", "mem")
	switch {
	case v[1] > 1<<20:
		return change(fmt.Sprintf("%d %d %d", v[0], usual, v[2]), "the middle value is what each connection may hold before autotuning: at %s, a stalled crowd of 10,000 holds %s",
			sizeText(v[1]), sizeText(10_000*v[1]))
	case v[2] < 4<<20:
		return change(fmt.Sprintf("%d %d %d", v[0], v[1], most), "the maximum of %s bounds one connection to %s per round trip", sizeText(v[2]), sizeText(v[2]))
	}
	return good("autotuning starts at %s and may reach %s; idle connections hold nothing", sizeText(v[1]), sizeText(v[2]))
}
