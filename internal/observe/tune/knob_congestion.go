package tune

import (
	"slices"
	"strings"
)

func congestion() Check {
	return Check{
		Name: "net.ipv4.tcp_congestion_control", Area: Transport,
		Doc: Doc{
			Threshold: "gateway: bbr where the kernel has it; bench: cubic, so that results compare; low-latency: as it is",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_congestion_control",
			Since:     "2.6.13; bbr since 4.9",
			Risk:      "bbr paces by a timer per connection without the fq qdisc, and takes more than its share beside cubic in a shallow buffer",
		},
		Worth: Worth{None: "loopback has neither loss nor delay, which is what it answers"},
		Base:  by(map[Profile]string{Gateway: "bbr", Bench: "cubic"}),
		evaluate: func(p *probe, now string) verdict {
			const available = "net.ipv4.tcp_available_congestion_control"
			have, _ := p.sysctl(available)
			p.note(available, have, sysctlPath(available))
			p.netstat("Tcp", "RetransSegs")
			want := map[Profile]string{Gateway: "bbr", Bench: "cubic"}[p.profile]
			switch {
			case want == "" || now == want:
				return good("%s is in use", now)
			case !slices.Contains(strings.Fields(have), want):
				return good("%s is in use, and this kernel has no %s loaded", now, want)
			case p.nested() && !slices.Contains(strings.Fields(p.allowed()), want):
				return good("%s is in use; a network namespace may only use %s, which the host allows", now, p.allowed())
			}
			v := change(want, "%s", map[Profile]string{
				Gateway: "a loss-based algorithm takes every lost packet of a mobile path for congestion",
				Bench:   "results compare with those of others only under the same algorithm, and cubic is the kernel's default",
			}[p.profile])
			// To become the default makes an algorithm available to unprivileged programs.
			v.steps = []Step{{Target: sysctlPath("net.ipv4.tcp_congestion_control"), Value: want,
				Also: []string{sysctlPath(allowedCongestion)}}}
			return v
		},
	}
}

const allowedCongestion = "net.ipv4.tcp_allowed_congestion_control"

// allowed are the algorithms that programs without privileges, and other network
// namespaces than the first, may use.
func (p *probe) allowed() string {
	s, _ := p.sysctl(allowedCongestion)
	return s
}
