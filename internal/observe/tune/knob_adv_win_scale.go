package tune

func advWinScale() Check {
	return obsolete("net.ipv4.tcp_adv_win_scale", "obsolete since 6.6",
		"obsolete since 6.6: the kernel measures how much memory a segment takes",
		"Documentation/networking/ip-sysctl.rst: tcp_adv_win_scale")
}
