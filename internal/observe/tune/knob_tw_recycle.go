package tune

func twRecycle() Check {
	return obsolete("net.ipv4.tcp_tw_recycle", "removed in 4.12",
		"removed from the kernel in 4.12, because it broke clients behind NAT",
		"Documentation/networking/ip-sysctl.rst before 4.12; commit 4396e46187ca")
}
