package tune

func syncookies() Check {
	return Check{
		Name: "net.ipv4.tcp_syncookies", Area: Accept,
		Gone: "this kernel is built without SYN cookies (CONFIG_SYN_COOKIES)",
		Doc: Doc{
			Threshold: "1",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_syncookies",
			Since:     "2.2; on by default since 2.6.37",
			Risk:      "none: cookies are sent only while the queue is full",
		},
		Worth: Worth{None: "it protects from SYN floods, which no experiment here makes"},
		Base:  always("1"),
		evaluate: func(p *probe, now string) verdict {
			p.netstat("TcpExt", "SyncookiesSent")
			return exactly(now, "1", "0 drops connections in a SYN flood, 2 sends cookies always and loses TCP options", "cookies are sent when the queue is full")
		},
	}
}
