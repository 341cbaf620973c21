package tune

func tcpLowLatency() Check {
	return obsolete("net.ipv4.tcp_low_latency", "without effect since 4.14",
		"the file exists and has had no effect since 4.14, which removed the TCP prequeue",
		"Documentation/networking/ip-sysctl.rst: tcp_low_latency")
}
