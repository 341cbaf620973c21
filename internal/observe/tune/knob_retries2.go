package tune

import "strconv"

func retries2() Check {
	return Check{
		Name: "net.ipv4.tcp_retries2", Area: Transport,
		Doc: Doc{
			Threshold: "at least 8 (RFC 1122 requires 100 s)",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_retries2; RFC 1122 §4.2.3.5",
			Since:     "2.2",
			Risk:      "connections that end while a route changes",
		},
		Worth: Worth{None: "Weir sets TCP_USER_TIMEOUT (eventloop.user_timeout, 30s), which takes precedence"},
		evaluate: func(p *probe, now string) verdict {
			p.netstat("TcpExt", "TCPTimeouts")
			n, err := strconv.Atoi(now)
			switch {
			case err != nil:
				return watch("%q is not a number", now)
			case n < 8:
				return change("15", "other programs' connections end after some seconds without an acknowledgement")
			}
			return good("Weir's connections end by TCP_USER_TIMEOUT, not by this")
		},
	}
}
