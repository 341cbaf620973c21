package tune

func flowEntries() Check {
	return Check{
		Name: "net.core.rps_sock_flow_entries", Area: Card, HostOnly: true,
		Doc: Doc{
			Threshold: "0, unless rps_cpus is in use: then 32768",
			Source:    "Documentation/networking/scaling.rst: RFS",
			Since:     "2.6.35",
			Risk:      "a table of 4 bytes per entry, and a lookup per packet",
		},
		Worth: Worth{None: "loopback has no receive queues"},
		evaluate: func(p *probe, now string) verdict {
			rps := p.usesRPS()
			switch {
			case rps && now == "0":
				return change("32768", "packets are steered by hash; with flow entries they go to the processor that reads them")
			case !rps && now != "0":
				return change("0", "no queue uses rps_cpus, so the table only costs a lookup")
			}
			return good("it goes with rps_cpus")
		},
	}
}
