package tune

func busyRead() Check {
	return Check{
		Name: "net.core.busy_read", Area: Packets, HostOnly: true,
		Gone: "this kernel is built without busy polling (CONFIG_NET_RX_BUSY_POLL)",
		Doc: Doc{
			Threshold: "0",
			Source:    "Documentation/networking/napi.rst: busy polling; admin-guide/sysctl/net.rst: busy_read",
			Since:     "3.11",
			Risk:      "a processor that polls does nothing else",
		},
		Worth: Worth{None: "it needs a card that can be polled; loopback has none"},
		Base:  always("0"),
		evaluate: func(_ *probe, now string) verdict {
			return exactly(now, "0", "every blocking read of the machine burns a processor, and event loops do not block in reads", "no read polls unless its socket requests it")
		},
	}
}
