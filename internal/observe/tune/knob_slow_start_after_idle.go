package tune

func slowStartAfterIdle() Check {
	return Check{
		Name: "net.ipv4.tcp_slow_start_after_idle", Area: Transport,
		Doc: Doc{
			Threshold: "0 for connections that are idle between bursts",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_slow_start_after_idle; RFC 2861",
			Since:     "2.6.18",
			Risk:      "the first burst after an idle period is sent with a window that the path may no longer carry",
		},
		Worth: Worth{None: "loopback's round trip is too short for a window to matter"},
		Base:  by(map[Profile]string{Gateway: "0", LowLatency: "0"}),
		evaluate: func(p *probe, now string) verdict {
			if p.profile == Bench {
				return good("a benchmark keeps the kernel's default")
			}
			return exactly(now, "0", "after a second of silence a pushed burst starts with ten segments again", "an idle connection keeps its window")
		},
	}
}
