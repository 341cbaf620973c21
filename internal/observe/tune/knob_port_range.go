package tune

func portRange() Check {
	return Check{
		Name: "net.ipv4.ip_local_port_range", Area: Ports,
		Doc: Doc{
			Threshold: "more than twice the sockets in TIME_WAIT and in use; bench: 10240 to 65535",
			Source:    "Documentation/networking/ip-sysctl.rst: ip_local_port_range",
			Since:     "2.2",
			Risk:      "a server that listens inside the range may find its port taken: reserve it (net.ipv4.ip_local_reserved_ports)",
		},
		Worth: Worth{Page: "c", Experiment: "settings", Arm: "ports", Against: "stock", Metric: "connections_per_second"},
		Base:  by(map[Profile]string{Bench: "10240 65535"}),
		evaluate: func(p *probe, now string) verdict {
			r, err := numbers(now, 2)
			if err != nil {
				return watch("%v", err)
			}
			used := p.sockstat("TCP", "tw") + p.sockstat("TCP:", "inuse")
			size := r[1] - r[0] + 1
			switch {
			case p.profile == Bench && size < 55296:
				return change("10240 65535", "a load generator needs a port for each connection to one address, and one more for each in TIME_WAIT")
			case 2*used > size && size < 55296:
				return change("10240 65535", "%d of %d ports are in use or in TIME_WAIT; connections to one backend address run out of ports", used, size)
			case 2*used > size:
				return watch("%d of %d ports are in use or in TIME_WAIT: reuse connections to backends, or add source addresses", used, size)
			}
			return good("it bounds outgoing connections only, and %d of %d ports are in use", used, size)
		},
	}
}
