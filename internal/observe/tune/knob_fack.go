package tune

func tcpFack() Check {
	return obsolete("net.ipv4.tcp_fack", "without effect since 4.15",
		"without effect since 4.15: RACK replaced it",
		"Documentation/networking/ip-sysctl.rst: tcp_fack")
}
