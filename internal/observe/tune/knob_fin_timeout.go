package tune

import "strconv"

func finTimeout() Check {
	return Check{
		Name: "net.ipv4.tcp_fin_timeout", Area: Ports,
		Doc: Doc{
			Threshold: "between 10 and 60 seconds",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_fin_timeout",
			Since:     "2.2",
			Risk:      "a low value ends orphans of slow peers before their last bytes have arrived",
		},
		Worth: Worth{None: "it does not shorten TIME_WAIT, which is fixed at 60 s, so there is no rate to gain"},
		evaluate: func(p *probe, now string) verdict {
			p.sockstat("TCP", "orphan")
			switch n, err := strconv.Atoi(now); {
			case err != nil:
				return watch("%q is not a number", now)
			case n < 10:
				return change("60", "it is for orphans in FIN-WAIT-2 only, does not shorten TIME_WAIT, and cuts off slow peers at this value")
			case n > 60:
				return change("60", "orphans in FIN-WAIT-2 keep memory for longer than the default")
			}
			return good("it concerns orphans in FIN-WAIT-2 only; TIME_WAIT is fixed at 60 s")
		},
	}
}
