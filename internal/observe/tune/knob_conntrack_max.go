package tune

import "strconv"

func conntrackMax() Check {
	return Check{
		Name: "net.netfilter.nf_conntrack_max", Area: Conntrack,
		Gone: "connection tracking is not loaded, so there is nothing to fill",
		Doc: Doc{
			Threshold: "count at most 75 % of the maximum",
			Source:    "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_max",
			Since:     "2.6.20",
			Risk:      "about 320 bytes of memory per entry; leaving the port untracked costs nothing (conntrack.notrack)",
		},
		Worth: Worth{None: "no experiment here fills the table; a full one drops packets of new connections"},
		evaluate: func(p *probe, now string) verdict {
			most, err := strconv.ParseInt(now, 10, 64)
			count, ok := p.number("net.netfilter.nf_conntrack_count")
			switch {
			case err != nil:
				return watch("%q is not a number", now)
			case !ok:
				return good("the number of entries cannot be read")
			case percent(count, most) > 75:
				return change(strconv.FormatInt(max(2*most, 4*count), 10), "%d of %d entries are in use (%.0f %%): when the table is full, packets of new connections are dropped",
					count, most, percent(count, most))
			}
			return good("%d of %d entries are in use", count, most)
		},
	}
}
