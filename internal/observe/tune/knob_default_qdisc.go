package tune

import "strings"

func defaultQdisc() Check {
	return Check{
		Name: "net.core.default_qdisc", Area: Transport, HostOnly: true,
		Doc: Doc{
			Threshold: "fq with bbr on a network card, where the kernel has fq",
			Source:    "Documentation/admin-guide/sysctl/net.rst: default_qdisc; tc-fq(8)",
			Since:     "3.12",
			Risk:      "existing devices keep their qdisc until it is replaced (tc qdisc replace)",
		},
		Worth: Worth{None: "loopback has no queue to discipline"},
		evaluate: func(p *probe, now string) verdict {
			cc, _ := p.sysctl("net.ipv4.tcp_congestion_control")
			p.note("net.ipv4.tcp_congestion_control", cc, sysctlPath("net.ipv4.tcp_congestion_control"))
			switch {
			case now == "fq" || now == "fq_codel" && cc != "bbr":
				return good("%s spaces packets per connection", now)
			case cc != "bbr" || p.profile == Bench:
				return good("without bbr nothing has to be paced")
			case !p.hasModule("sch_fq"):
				return good("this kernel has no fq; bbr paces by a timer of its own")
			}
			return change("fq", "bbr paces in the qdisc at less cost than by a timer per connection")
		},
	}
}

// hasModule reports whether the kernel has a module, built in or on disk.
func (p *probe) hasModule(name string) bool {
	for _, file := range []string{"modules.builtin", "modules.dep"} {
		text, err := p.read("/lib/modules/" + p.kernel() + "/" + file)
		if err == nil && strings.Contains(text, "/"+name+".ko") {
			p.note(name, "available", "/lib/modules/"+p.kernel()+"/"+file)
			return true
		}
	}
	return p.exists("/sys/module/" + name)
}
