package tune

import "strconv"

func conntrackEstablished() Check {
	return Check{
		Name: "net.netfilter.nf_conntrack_tcp_timeout_established", Area: Conntrack,
		Gone: "connection tracking is not loaded",
		Doc: Doc{
			Threshold: "at most 86400 s where the table is more than a quarter full; at least 600 s",
			Source:    "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_tcp_timeout_established",
			Since:     "2.6.20; 432000 s by default",
			Risk:      "a firewall forgets connections that are silent for longer, and then drops their packets",
		},
		Worth: Worth{None: "no experiment here tracks connections for days"},
		evaluate: func(p *probe, now string) verdict {
			n, err := strconv.ParseInt(now, 10, 64)
			count, _ := p.number("net.netfilter.nf_conntrack_count")
			most, _ := p.number("net.netfilter.nf_conntrack_max")
			switch {
			case err != nil:
				return watch("%q is not a number", now)
			case n < 600:
				return change("86400", "connections whose heartbeats are minutes apart are forgotten, and their packets dropped")
			case n > 86400 && percent(count, most) > 25:
				return change("86400", "connections that ended without a FIN keep their entry for %d days", n/86400)
			}
			return good("%d of %d entries are in use", count, most)
		},
	}
}
