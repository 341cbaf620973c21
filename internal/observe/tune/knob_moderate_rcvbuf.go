package tune

func moderateRcvbuf() Check {
	return Check{
		Name: "net.ipv4.tcp_moderate_rcvbuf", Area: Buffers,
		Doc: Doc{
			Threshold: "1",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_moderate_rcvbuf",
			Since:     "2.6.7",
			Risk:      "none: it is the kernel's default",
		},
		Worth: Worth{None: "no experiment here turns autotuning off"},
		Base:  always("1"),
		evaluate: func(_ *probe, now string) verdict {
			return exactly(now, "1", "without autotuning every connection keeps the default window, too large for idle and too small for fast ones", "buffers follow each connection's need")
		},
	}
}
