package tune

func maxOrphans() Check {
	return Check{
		Name: "net.ipv4.tcp_max_orphans", Area: Buffers, HostOnly: true,
		Doc: Doc{
			Threshold: "at least four times the orphans there are, and 16384",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_max_orphans",
			Since:     "2.4",
			Risk:      "an orphan may hold 64 KiB of memory that cannot be swapped",
		},
		Worth: Worth{None: "no experiment here closes that many connections with unsent data"},
		evaluate: func(p *probe, now string) verdict {
			orphans := p.sockstat("TCP", "orphan")
			p.netstat("TcpExt", "TCPAbortOnMemory")
			return atLeast(now, max(16384, 4*orphans), "beyond it the kernel resets connections that are closed with data unsent: their last words are lost")
		},
	}
}
