package tune

func somaxconn() Check {
	return Check{
		Name: "net.core.somaxconn", Area: Accept,
		Doc: Doc{
			Threshold: "at least 4096; 16384 once the accept queue has overflowed (TcpExt ListenOverflows)",
			Source:    "Documentation/networking/ip-sysctl.rst: somaxconn; listen(2)",
			Since:     "2.4; 4096 by default since 5.4, 128 before",
			Risk:      "none: a longer queue holds more connections that are not accepted yet. A listener reads it when it starts to listen: restart the server",
		},
		Worth: Worth{Page: "c", Experiment: "settings", Arm: "queues", Against: "stock", Metric: "connections_per_second",
			Seen: Seen{Arm: "old", Metric: "crowd_slow", Text: "with 128, the default before 5.4, %.0f %% of 2,000 clients that connected at once waited for a second"}},
		Base: by(map[Profile]string{Gateway: "4096", LowLatency: "4096", Bench: "16384"}),
		evaluate: func(p *probe, now string) verdict {
			overflows := p.netstat("TcpExt", "ListenOverflows")
			p.netstat("TcpExt", "ListenDrops")
			want := int64(4096)
			if p.profile == Bench {
				want = 16384
			}
			if overflows > 0 {
				return atLeast(now, 16384, "the accept queue has overflowed: connections were dropped that a longer queue holds")
			}
			return atLeast(now, want, "a crowd that connects at once overflows a short accept queue")
		},
	}
}
