package tune

import (
	"strconv"
)

var conntrackChecks = []Check{
	{
		Name: "net.netfilter.nf_conntrack_max", Area: Conntrack,
		Gone:      "connection tracking is not loaded, so there is nothing to fill",
		Threshold: "count at most 75 % of the maximum",
		Source:    "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_max",
		Since:     "2.6.20",
		Risk:      "about 320 bytes of memory per entry; leaving the port untracked costs nothing (conntrack.notrack)",
		Worth:     Worth{None: "no experiment here fills the table; a full one drops packets of new connections"},
		evaluate: numeric(func(p *probe, most int64) verdict {
			count, ok := p.number("net.netfilter.nf_conntrack_count")
			switch {
			case !ok:
				return good("the number of entries cannot be read")
			case percent(count, most) > 75:
				return change(strconv.FormatInt(max(2*most, 4*count), 10), "%d of %d entries are in use (%.0f %%): when the table is full, packets of new connections are dropped",
					count, most, percent(count, most))
			}
			return good("%d of %d entries are in use", count, most)
		}),
	},
	{
		Name: "net.netfilter.nf_conntrack_buckets", Area: Conntrack,
		Gone:      "connection tracking is not loaded, so there is nothing to look up",
		Threshold: "at most four entries per bucket",
		Source:    "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_buckets",
		Since:     "2.6.20; writable since 4.8, in the first network namespace only",
		Risk:      "the table is built anew, which briefly takes the 8 bytes per bucket twice",
		Worth:     Worth{None: "no experiment here tracks connections"},
		evaluate: func(p *probe, now string) verdict {
			buckets, err := strconv.ParseInt(now, 10, 64)
			count, _ := p.number("net.netfilter.nf_conntrack_count")
			if err != nil || buckets <= 0 {
				return watch("%q is not a number of buckets", now)
			}
			if count <= 4*buckets {
				return good("%.1f entries per bucket", float64(count)/float64(buckets))
			}
			want := strconv.FormatInt(count/2, 10)
			if p.nested() {
				return watch("%.1f entries per bucket; the host sets it (%s)", float64(count)/float64(buckets), want)
			}
			return change(want, "%.1f entries per bucket: every packet compares that many", float64(count)/float64(buckets))
		},
	},
	{
		Name: "net.netfilter.nf_conntrack_tcp_timeout_established", Area: Conntrack,
		Gone:      "connection tracking is not loaded",
		Threshold: "at most 86400 s where the table is more than a quarter full; at least 600 s",
		Source:    "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_tcp_timeout_established",
		Since:     "2.6.20; 432000 s by default",
		Risk:      "a firewall forgets connections that are silent for longer, and then drops their packets",
		Worth:     Worth{None: "no experiment here tracks connections for days"},
		evaluate: numeric(func(p *probe, n int64) verdict {
			count, _ := p.number("net.netfilter.nf_conntrack_count")
			most, _ := p.number("net.netfilter.nf_conntrack_max")
			switch {
			case n < 600:
				return change("86400", "connections whose heartbeats are minutes apart are forgotten, and their packets dropped")
			case n > 86400 && percent(count, most) > 25:
				return change("86400", "connections that ended without a FIN keep their entry for %d days", n/86400)
			}
			return good("%d of %d entries are in use", count, most)
		}),
	},
	{
		Name: "conntrack.notrack", Area: Conntrack,
		Threshold: "the service's ports are not tracked where connections are tracked at all",
		Source:    "nft(8): NOTRACK statement; Documentation/networking/nf_conntrack-sysctl.rst",
		Since:     "4.10",
		Risk:      "rules that match the state of these ports' connections (ct state) no longer do: accept the ports by number. NAT does not work for them",
		Undo:      "weir tune undo, or: nft delete table inet " + notrackTable,
		Worth:     Worth{None: "no experiment here tracks connections; a test shows that none is tracked with the rule"},
		probe: func(p *probe) verdict {
			count, ok := p.number("net.netfilter.nf_conntrack_count")
			switch {
			case !ok:
				if _, err := p.sysctl("net.netfilter.nf_conntrack_count"); unreadable(err) == Forbidden {
					return verdict{state: Forbidden, why: "nf_conntrack_count cannot be read: " + err.Error()}
				}
				return verdict{state: Absent, why: "connection tracking is not loaded: there is nothing to leave out"}
			case p.Notrack == nil:
				return verdict{state: Unsupported, why: "not supported here: these files are not the running kernel's, and rules are read from the kernel"}
			case len(p.Listen) == 0:
				return verdict{state: OK, why: "no port was named (--port)"}
			}
			now, err := p.Notrack.Load(NotrackTarget)
			switch {
			case err != nil && count == 0:
				return verdict{state: OK, why: "no rule of this machine has connections tracked"}
			case err != nil:
				return verdict{state: unreadable(err), why: "nftables cannot be read: " + err.Error()}
			}
			want := portList(p.Listen)
			p.note("untracked ports", now, "nftables netlink")
			switch {
			case now == want:
				return verdict{state: OK, now: now, why: "connections to the service are not tracked"}
			case count == 0:
				return verdict{state: OK, now: now, why: "no rule of this machine has connections tracked"}
			}
			return verdict{state: Change, now: now, want: want, why: "each connection to the service takes an entry of the table, which fills before the gateway does",
				steps:  []Step{{Target: NotrackTarget, Value: want}},
				config: []File{{Path: "/etc/nftables.d/weir-notrack.nft", Text: NotrackText(p.Listen)}}}
		},
	},
}
