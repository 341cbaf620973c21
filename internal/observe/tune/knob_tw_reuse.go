package tune

func twReuse() Check {
	return Check{
		Name: "net.ipv4.tcp_tw_reuse", Area: Ports,
		Doc: Doc{
			Threshold: "1 if sockets in TIME_WAIT hold more than half of the local ports, or for bench; otherwise 2",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_tw_reuse",
			Since:     "2.4; 2 (loopback only) by default since 4.19",
			Risk:      "needs TCP timestamps on both sides; it concerns outgoing connections only, never accepted ones",
		},
		Worth: Worth{Page: "c", Experiment: "settings", Arm: "ports", Against: "stock", Metric: "connections_per_second"},
		Base:  by(map[Profile]string{Bench: "1"}),
		evaluate: func(p *probe, now string) verdict {
			tw := p.sockstat("TCP", "tw")
			size := int64(28232)
			if s, err := p.sysctl("net.ipv4.ip_local_port_range"); err == nil {
				if r, err := numbers(s, 2); err == nil {
					size = r[1] - r[0] + 1
				}
			}
			switch {
			case now == "1":
				return good("ports in TIME_WAIT are reused for outgoing connections")
			case p.profile == Bench:
				return change("1", "a load generator that closes first leaves a port in TIME_WAIT for a minute per connection")
			case 2*tw > size:
				return change("1", "%d sockets in TIME_WAIT hold %.0f %% of the local ports", tw, percent(tw, size))
			case now == "0":
				return change("2", "0 keeps even loopback ports in TIME_WAIT from reuse; 2 is the kernel's default")
			}
			return good("TIME_WAIT holds %.1f %% of the local ports", percent(tw, size))
		},
	}
}
