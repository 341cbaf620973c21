package tune

func migrateReq() Check {
	return Check{
		Name: "net.ipv4.tcp_migrate_req", Area: Accept,
		Gone: "this kernel is older than 5.14",
		Doc: Doc{
			Threshold: "1 where a server with one listener per core restarts without closing its address",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_migrate_req",
			Since:     "5.14",
			Risk:      "all listeners of an SO_REUSEPORT group must have the same options, or migrated connections get others'",
		},
		Worth: Worth{None: "no experiment measures connections lost when one listener of a group closes"},
		Base:  by(map[Profile]string{Gateway: "1", LowLatency: "1"}),
		evaluate: func(p *probe, now string) verdict {
			p.netstat("TcpExt", "TCPMigrateReqSuccess")
			p.netstat("TcpExt", "TCPMigrateReqFailure")
			if p.profile == Bench {
				return good("a benchmark does not restart its server")
			}
			return exactly(now, "1", "connections that wait in the queue of a listener that closes are reset, not moved to another of its group", "queued connections move to another listener of the group")
		},
	}
}
