package tune

func sack() Check {
	return Check{
		Name: "net.ipv4.tcp_sack", Area: Transport,
		Doc: Doc{
			Threshold: "1",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_sack; RFC 2018",
			Since:     "2.2",
			Risk:      "none on kernels that are patched for CVE-2019-11477",
		},
		Worth: Worth{None: "loopback loses nothing"},
		Base:  always("1"),
		evaluate: func(_ *probe, now string) verdict {
			return exactly(now, "1", "one lost segment makes the sender repeat everything after it", "only what was lost is sent again")
		},
	}
}
