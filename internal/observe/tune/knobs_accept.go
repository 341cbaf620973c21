package tune

var acceptChecks = []Check{
	{
		Name: "net.core.somaxconn", Area: Accept,
		Threshold: "at least 4096; 16384 once the accept queue has overflowed (TcpExt ListenOverflows)",
		Source:    "Documentation/networking/ip-sysctl.rst: somaxconn; listen(2)",
		Since:     "2.4; 4096 by default since 5.4, 128 before",
		Risk:      "none: a longer queue holds more connections that are not accepted yet. A listener reads it when it starts to listen: restart the server",
		Worth: Worth{Page: "c", Experiment: "settings", Arm: "queues", Against: "stock", Metric: "connections_per_second",
			Seen: Seen{Arm: "old", Metric: "crowd_slow", Text: "with 128, the default before 5.4, %.0f %% of 2,000 clients that connected at once waited for a second"}},
		Base: by(map[Profile]string{Gateway: "4096", LowLatency: "4096", Bench: "16384"}),
		evaluate: func(p *probe, now string) verdict {
			overflows := p.count("TcpExt ListenOverflows")
			p.count("TcpExt ListenDrops")
			want := int64(4096)
			if p.profile == Bench {
				want = 16384
			}
			if overflows > 0 {
				return atLeast(16384, "the accept queue has overflowed: connections were dropped that a longer queue holds")(p, now)
			}
			return atLeast(want, "a crowd that connects at once overflows a short accept queue")(p, now)
		},
	},
	{
		Name: "net.ipv4.tcp_max_syn_backlog", Area: Accept,
		Threshold: "only if requests were dropped with a full queue (TcpExt TCPReqQFullDrop): then at least 8192",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_max_syn_backlog",
		Since:     "2.2",
		Risk:      "some hundred bytes per half-open connection during a flood",
		Worth:     Worth{Page: "c", Experiment: "settings", Arm: "queues", Against: "stock", Metric: "connections_per_second"},
		evaluate: func(p *probe, now string) verdict {
			drops := p.count("TcpExt TCPReqQFullDrop")
			p.count("TcpExt TCPReqQFullDoCookies")
			if drops > 0 {
				return atLeast(8192, "connection requests were dropped because the queue of half-open ones was full")(p, now)
			}
			return good("no request was dropped; with SYN cookies the listen backlog bounds the queue, not this")
		},
	},
	{
		Name: "net.ipv4.tcp_syncookies", Area: Accept,
		Gone:      "this kernel is built without SYN cookies (CONFIG_SYN_COOKIES)",
		Threshold: "1",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_syncookies",
		Since:     "2.2; on by default since 2.6.37",
		Risk:      "none: cookies are sent only while the queue is full",
		Worth:     Worth{None: "it protects from SYN floods, which no experiment here makes"},
		Base:      always("1"),
		shows:     []string{"TcpExt SyncookiesSent"},
		evaluate:  exactly("1", "0 drops connections in a SYN flood, 2 sends cookies always and loses TCP options", "cookies are sent when the queue is full"),
	},
	{
		Name: "net.ipv4.tcp_abort_on_overflow", Area: Accept,
		Threshold: "0",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_abort_on_overflow",
		Since:     "2.4",
		Risk:      "with 0 a client waits for a retransmission instead of an immediate reset",
		Worth:     Worth{None: "no experiment here overflows the queue with both values"},
		Base:      always("0"),
		shows:     []string{"TcpExt ListenOverflows"},
		evaluate:  exactly("0", "1 resets the clients of a short burst instead of letting them retry", "a burst is absorbed by retransmission"),
	},
	{
		Name: "net.ipv4.tcp_migrate_req", Area: Accept,
		Gone:      "this kernel is older than 5.14",
		Threshold: "1 where a server with one listener per core restarts without closing its address",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_migrate_req",
		Since:     "5.14",
		Risk:      "all listeners of an SO_REUSEPORT group must have the same options, or migrated connections get others'",
		Worth:     Worth{None: "no experiment measures connections lost when one listener of a group closes"},
		Base:      by(map[Profile]string{Gateway: "1", LowLatency: "1"}),
		shows:     []string{"TcpExt TCPMigrateReqSuccess", "TcpExt TCPMigrateReqFailure"},
		evaluate: func(p *probe, now string) verdict {
			if p.profile == Bench {
				return good("a benchmark does not restart its server")
			}
			return exactly("1", "connections that wait in the queue of a listener that closes are reset, not moved to another of its group", "queued connections move to another listener of the group")(p, now)
		},
	},
}
