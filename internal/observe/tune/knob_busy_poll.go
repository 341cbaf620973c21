package tune

func busyPoll() Check {
	return Check{
		Name: "net.core.busy_poll", Area: Packets, HostOnly: true,
		Gone: "this kernel is built without busy polling (CONFIG_NET_RX_BUSY_POLL)",
		Doc: Doc{
			Threshold: "0: it is set per event loop instead (eventloop.sockets.busy_poll)",
			Source:    "Documentation/networking/napi.rst: busy polling; admin-guide/sysctl/net.rst: busy_poll",
			Since:     "3.11; per epoll since 6.9",
			Risk:      "a processor that polls does nothing else",
		},
		Worth: Worth{None: "it needs a card that can be polled; loopback has none"},
		Base:  always("0"),
		evaluate: func(p *probe, now string) verdict {
			p.note("network cards", joined(p.devices()), "/sys/class/net")
			return exactly(now, "0", "every poll(2) and select(2) of the machine burns a processor; the loops of one server can be set alone", "only programs that request it poll")
		},
	}
}
