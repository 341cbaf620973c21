package tune

func notrack() Check {
	return Check{
		Name: "conntrack.notrack", Area: Conntrack,
		Doc: Doc{
			Threshold: "the service's ports are not tracked where connections are tracked at all",
			Source:    "nft(8): NOTRACK statement; Documentation/networking/nf_conntrack-sysctl.rst",
			Since:     "4.10",
			Risk:      "rules that match the state of these ports' connections (ct state) no longer do: accept the ports by number. NAT does not work for them",
			Undo:      "weir tune undo, or: nft delete table inet " + notrackTable,
		},
		Worth: Worth{None: "no experiment here tracks connections; a test shows that none is tracked with the rule"},
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
	}
}
