package tune

import "strconv"

func keepalive() Check {
	return Check{
		Name: "net.ipv4.tcp_keepalive_time", Area: Transport,
		Doc: Doc{
			Threshold: "at least 60 seconds",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_keepalive_time; tcp(7): SO_KEEPALIVE",
			Since:     "2.2",
			Risk:      "it applies only to sockets with SO_KEEPALIVE",
		},
		Worth: Worth{None: "Weir's heartbeats find dead peers, through proxies too; experiment A7 is about their interval"},
		evaluate: func(_ *probe, now string) verdict {
			n, err := strconv.Atoi(now)
			switch {
			case err != nil:
				return watch("%q is not a number", now)
			case n < 60:
				return change("7200", "at %d s, a million connections are %d probes a second; a protocol's heartbeat does the same work once", n, 1_000_000/max(n, 1))
			}
			return good("Weir's connections have heartbeats and TCP_USER_TIMEOUT instead")
		},
	}
}
