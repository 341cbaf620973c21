package tune

func timestamps() Check {
	return Check{
		Name: "net.ipv4.tcp_timestamps", Area: Transport,
		Doc: Doc{
			Threshold: "1",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_timestamps; RFC 7323",
			Since:     "2.2",
			Risk:      "12 bytes per segment",
		},
		Worth: Worth{None: "the advice to turn it off is older than RFC 7323; no experiment here repeats it"},
		Base:  always("1"),
		evaluate: func(_ *probe, now string) verdict {
			return exactly(now, "1", "without timestamps there is no protection from old segments, a worse round-trip estimate, and no reuse of TIME_WAIT", "round trips are measured on every segment")
		},
	}
}
