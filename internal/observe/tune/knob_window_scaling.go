package tune

func windowScaling() Check {
	return Check{
		Name: "net.ipv4.tcp_window_scaling", Area: Transport,
		Doc: Doc{
			Threshold: "1",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_window_scaling; RFC 7323",
			Since:     "2.2",
			Risk:      "none",
		},
		Worth: Worth{None: "loopback's round trip is too short for a window to matter"},
		Base:  always("1"),
		evaluate: func(_ *probe, now string) verdict {
			return exactly(now, "1", "windows are bounded to 64 KiB: 640 KB/s at a round trip of 100 ms", "windows may exceed 64 KiB")
		},
	}
}
