package tune

import (
	"slices"
	"strconv"
	"strings"
)

var portsChecks = []Check{
	{
		Name: "net.ipv4.ip_local_port_range", Area: Ports,
		Threshold: "more than twice the sockets in TIME_WAIT; bench: 10240 to 65535",
		Source:    "Documentation/networking/ip-sysctl.rst: ip_local_port_range",
		Since:     "2.2",
		Risk:      "a server that listens inside the range may find its port taken: reserve it (net.ipv4.ip_local_reserved_ports)",
		Worth:     Worth{Page: "c", Experiment: "settings", Arm: "ports", Against: "stock", Metric: "connections_per_second"},
		Base:      by(map[Profile]string{Bench: "10240 65535"}),
		evaluate: func(p *probe, now string) verdict {
			r, err := numbers(now, 2)
			if err != nil {
				return watch("%v", err)
			}
			used := p.count("TCP tw")
			size := r[1] - r[0] + 1
			switch {
			case p.profile == Bench && size < 55296:
				return change("10240 65535", "a load generator needs a port for each connection to one address, and one more for each in TIME_WAIT")
			case 2*used > size && size < 55296:
				return change("10240 65535", "%d of %d ports are in TIME_WAIT; connections to one backend address run out of ports", used, size)
			case 2*used > size:
				return watch("%d of %d ports are in TIME_WAIT: reuse connections to backends, or add source addresses", used, size)
			}
			return good("it bounds outgoing connections only, and %d of %d ports are in TIME_WAIT", used, size)
		},
	},
	{
		Name: "net.ipv4.ip_local_reserved_ports", Area: Ports,
		Threshold: "every listening port inside net.ipv4.ip_local_port_range is reserved",
		Source:    "Documentation/networking/ip-sysctl.rst: ip_local_reserved_ports",
		Since:     "2.6.35",
		Risk:      "none: explicit bind(2) to a reserved port still works",
		Worth:     Worth{None: "it prevents a failed restart, which is not a rate"},
		evaluate: func(p *probe, now string) verdict {
			s, err := p.sysctl("net.ipv4.ip_local_port_range")
			if err != nil {
				return watch("net.ipv4.ip_local_port_range cannot be read: %v", err)
			}
			r, err := numbers(s, 2)
			if err != nil {
				return watch("%v", err)
			}
			p.note("net.ipv4.ip_local_port_range", strings.Join(strings.Fields(s), " "), sysctlPath("net.ipv4.ip_local_port_range"))
			var missing []string
			for _, port := range p.listening() {
				if int64(port) >= r[0] && int64(port) <= r[1] && !inList(now, port) {
					missing = append(missing, strconv.Itoa(port))
				}
			}
			if len(missing) == 0 {
				return good("no listening port can be taken by an outgoing connection")
			}
			list := missing
			if now != "" {
				list = append(strings.Split(now, ","), missing...)
			}
			return change(strings.Join(list, ","), "a restart fails with \"address already in use\" if an outgoing connection was given port %s meanwhile", strings.Join(missing, ", "))
		},
	},
	{
		Name: "net.ipv4.tcp_tw_reuse", Area: Ports,
		Threshold: "1 if sockets in TIME_WAIT hold more than half of the local ports, or for bench; otherwise 2",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_tw_reuse",
		Since:     "2.4; 2 (loopback only) by default since 4.19",
		Risk:      "needs TCP timestamps on both sides; it concerns outgoing connections only, never accepted ones",
		Worth:     Worth{Page: "c", Experiment: "settings", Arm: "ports", Against: "stock", Metric: "connections_per_second"},
		Base:      by(map[Profile]string{Bench: "1"}),
		evaluate: func(p *probe, now string) verdict {
			tw := p.count("TCP tw")
			size := int64(28232)
			if s, err := p.sysctl("net.ipv4.ip_local_port_range"); err == nil {
				if r, err := numbers(s, 2); err == nil {
					size = r[1] - r[0] + 1
				}
			}
			switch {
			case now == "1":
				return good("ports in TIME_WAIT are reused for outgoing connections")
			case p.profile == Bench:
				return change("1", "a load generator that closes first leaves a port in TIME_WAIT for a minute per connection")
			case 2*tw > size:
				return change("1", "%d sockets in TIME_WAIT hold %.0f %% of the local ports", tw, percent(tw, size))
			case now == "0":
				return change("2", "0 keeps even loopback ports in TIME_WAIT from reuse; 2 is the kernel's default")
			}
			return good("TIME_WAIT holds %.1f %% of the local ports", percent(tw, size))
		},
	},
	{
		Name: "net.ipv4.tcp_fin_timeout", Area: Ports,
		Threshold: "between 10 and 60 seconds",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_fin_timeout",
		Since:     "2.2",
		Risk:      "a low value ends orphans of slow peers before their last bytes have arrived",
		Worth:     Worth{None: "it does not shorten TIME_WAIT, which is fixed at 60 s, so there is no rate to gain"},
		shows:     []string{"TCP orphan"},
		evaluate: numeric(func(_ *probe, n int64) verdict {
			switch {
			case n < 10:
				return change("60", "it is for orphans in FIN-WAIT-2 only, does not shorten TIME_WAIT, and cuts off slow peers at this value")
			case n > 60:
				return change("60", "orphans in FIN-WAIT-2 keep memory for longer than the default")
			}
			return good("it concerns orphans in FIN-WAIT-2 only; TIME_WAIT is fixed at 60 s")
		}),
	},
	{
		Name: "net.ipv4.tcp_max_tw_buckets", Area: Ports,
		Threshold: "only if TIME_WAIT was cut short (TcpExt TCPTimeWaitOverflow): then 262144; never below 32768",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_max_tw_buckets",
		Since:     "2.4",
		Risk:      "about 250 bytes per socket in TIME_WAIT",
		Worth:     Worth{None: "no experiment here has that many sockets in TIME_WAIT"},
		shows:     []string{"TCP tw"},
		evaluate: func(p *probe, now string) verdict {
			if p.count("TcpExt TCPTimeWaitOverflow") > 0 {
				return atLeast(262144, "the bound was reached: sockets were closed without TIME_WAIT, and late segments may reach a new connection")(p, now)
			}
			return atLeast(32768, "a low bound ends TIME_WAIT early, and late segments may reach a new connection")(p, now)
		},
	},
}

// listening are the ports of TCP listeners in the network namespace, without those on
// loopback, and those of Machine.Listen, in order. At most 64 of them.
func (p *probe) listening() []int {
	ports := slices.Clone(p.Listen)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := p.read(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) < 4 || f[3] != "0A" { // TCP_LISTEN
				continue
			}
			address, port, _ := strings.Cut(f[1], ":")
			if address == "0100007F" || strings.HasSuffix(address, "00000001000000") {
				continue // loopback: chosen by the kernel for the most part
			}
			if n, err := strconv.ParseUint(port, 16, 16); err == nil {
				ports = append(ports, int(n))
			}
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	return ports[:min(len(ports), 64)]
}

// inList reports whether a list such as 80,8000-8010 has port.
func inList(list string, port int) bool {
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if err1 == nil && err2 == nil && a <= port && port <= b {
			return true
		}
	}
	return false
}
