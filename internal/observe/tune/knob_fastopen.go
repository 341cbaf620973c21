package tune

func fastopen() Check {
	return Check{
		Name: "net.ipv4.tcp_fastopen", Area: Transport,
		Doc: Doc{
			Threshold: "0 or 1: not for listeners without the socket option (bit 0x400)",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_fastopen; RFC 7413",
			Since:     "3.7",
			Risk:      "data of a SYN may be delivered twice: only idempotent first requests may use it",
		},
		Worth: Worth{None: "long-lived connections save nothing; no experiment measures it"},
		evaluate: func(p *probe, now string) verdict {
			p.netstat("TcpExt", "TCPFastOpenPassive")
			p.netstat("TcpExt", "TCPFastOpenBlackhole")
			if now != "0" && now != "1" && now != "3" {
				return change("1", "every listener accepts data in a SYN, which may be replayed")
			}
			return good("no gain for connections that live for hours; middleboxes often drop it")
		},
	}
}
