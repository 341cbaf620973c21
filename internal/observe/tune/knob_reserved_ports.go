package tune

import (
	"slices"
	"strconv"
	"strings"
)

func reservedPorts() Check {
	return Check{
		Name: "net.ipv4.ip_local_reserved_ports", Area: Ports,
		Doc: Doc{
			Threshold: "every listening port inside net.ipv4.ip_local_port_range is reserved",
			Source:    "Documentation/networking/ip-sysctl.rst: ip_local_reserved_ports",
			Since:     "2.6.35",
			Risk:      "none: explicit bind(2) to a reserved port still works",
		},
		Worth: Worth{None: "it prevents a failed restart, which is not a rate"},
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
	}
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
