package tune

import (
	"slices"
	"strings"
)

var tcpChecks = []Check{
	{
		Name: "net.ipv4.tcp_congestion_control", Area: Transport,
		Threshold: "gateway: bbr where the kernel has it; bench: cubic, so that results compare; low-latency: as it is",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_congestion_control",
		Since:     "2.6.13; bbr since 4.9",
		Risk:      "bbr paces by a timer per connection without the fq qdisc, and takes more than its share beside cubic in a shallow buffer",
		Worth:     Worth{None: "loopback has neither loss nor delay, which is what it answers"},
		Base:      by(map[Profile]string{Gateway: "bbr", Bench: "cubic"}),
		evaluate: func(p *probe, now string) verdict {
			const available = "net.ipv4.tcp_available_congestion_control"
			have, _ := p.sysctl(available)
			p.note(available, have, sysctlPath(available))
			p.count("Tcp RetransSegs")
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
	},
	{
		Name: "net.core.default_qdisc", Area: Transport, HostOnly: true,
		Threshold: "fq with bbr on a network card, where the kernel has fq",
		Source:    "Documentation/admin-guide/sysctl/net.rst: default_qdisc; tc-fq(8)",
		Since:     "3.12",
		Risk:      "existing devices keep their qdisc until it is replaced (tc qdisc replace)",
		Worth:     Worth{None: "loopback has no queue to discipline"},
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
	},
	{
		Name: "net.ipv4.tcp_slow_start_after_idle", Area: Transport,
		Threshold: "0 for connections that are idle between bursts",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_slow_start_after_idle; RFC 2861",
		Since:     "2.6.18",
		Risk:      "the first burst after an idle period is sent with a window that the path may no longer carry",
		Worth:     Worth{None: "loopback's round trip is too short for a window to matter"},
		Base:      by(map[Profile]string{Gateway: "0", LowLatency: "0"}),
		evaluate: func(p *probe, now string) verdict {
			if p.profile == Bench {
				return good("a benchmark keeps the kernel's default")
			}
			return exactly("0", "after a second of silence a pushed burst starts with ten segments again", "an idle connection keeps its window")(p, now)
		},
	},
	{
		Name: "net.ipv4.tcp_timestamps", Area: Transport,
		Threshold: "1",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_timestamps; RFC 7323",
		Since:     "2.2",
		Risk:      "12 bytes per segment",
		Worth:     Worth{None: "the advice to turn it off is older than RFC 7323; no experiment here repeats it"},
		Base:      always("1"),
		evaluate:  exactly("1", "without timestamps there is no protection from old segments, a worse round-trip estimate, and no reuse of TIME_WAIT", "round trips are measured on every segment"),
	},
	{
		Name: "net.ipv4.tcp_sack", Area: Transport,
		Threshold: "1",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_sack; RFC 2018",
		Since:     "2.2",
		Risk:      "none on kernels that are patched for CVE-2019-11477",
		Worth:     Worth{None: "loopback loses nothing"},
		Base:      always("1"),
		evaluate:  exactly("1", "one lost segment makes the sender repeat everything after it", "only what was lost is sent again"),
	},
	{
		Name: "net.ipv4.tcp_window_scaling", Area: Transport,
		Threshold: "1",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_window_scaling; RFC 7323",
		Since:     "2.2",
		Risk:      "none",
		Worth:     Worth{None: "loopback's round trip is too short for a window to matter"},
		Base:      always("1"),
		evaluate:  exactly("1", "windows are bounded to 64 KiB: 640 KB/s at a round trip of 100 ms", "windows may exceed 64 KiB"),
	},
	{
		Name: "net.ipv4.tcp_keepalive_time", Area: Transport,
		Threshold: "at least 60 seconds",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_keepalive_time; tcp(7): SO_KEEPALIVE",
		Since:     "2.2",
		Risk:      "it applies only to sockets with SO_KEEPALIVE",
		Worth:     Worth{None: "Weir's heartbeats find dead peers, through proxies too; experiment A7 is about their interval"},
		evaluate: numeric(func(_ *probe, n int64) verdict {
			if n < 60 {
				return change("7200", "at %d s, a million connections are %d probes a second; a protocol's heartbeat does the same work once", n, 1_000_000/max(n, 1))
			}
			return good("Weir's connections have heartbeats and TCP_USER_TIMEOUT instead")
		}),
	},
	{
		Name: "net.ipv4.tcp_retries2", Area: Transport,
		Threshold: "at least 8 (RFC 1122 requires 100 s)",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_retries2; RFC 1122 §4.2.3.5",
		Since:     "2.2",
		Risk:      "connections that end while a route changes",
		Worth:     Worth{None: "Weir sets TCP_USER_TIMEOUT (eventloop.user_timeout, 30s), which takes precedence"},
		shows:     []string{"TcpExt TCPTimeouts"},
		evaluate: numeric(func(_ *probe, n int64) verdict {
			if n < 8 {
				return change("15", "other programs' connections end after some seconds without an acknowledgement")
			}
			return good("Weir's connections end by TCP_USER_TIMEOUT, not by this")
		}),
	},
	{
		Name: "net.ipv4.tcp_fastopen", Area: Transport,
		Threshold: "0 or 1: not for listeners without the socket option (bit 0x400)",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_fastopen; RFC 7413",
		Since:     "3.7",
		Risk:      "data of a SYN may be delivered twice: only idempotent first requests may use it",
		Worth:     Worth{None: "long-lived connections save nothing; no experiment measures it"},
		shows:     []string{"TcpExt TCPFastOpenPassive", "TcpExt TCPFastOpenBlackhole"},
		evaluate: func(p *probe, now string) verdict {
			if now != "0" && now != "1" && now != "3" {
				return change("1", "every listener accepts data in a SYN, which may be replayed")
			}
			return good("no gain for connections that live for hours; middleboxes often drop it")
		},
	},
	{
		Name: "net.ipv4.tcp_mtu_probing", Area: Transport,
		Threshold: "1 for clients on the internet",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_mtu_probing; RFC 4821",
		Since:     "2.6.17",
		Risk:      "after several lost retransmissions a connection continues with smaller segments",
		Worth:     Worth{None: "loopback has no path whose MTU is hidden"},
		Base:      by(map[Profile]string{Gateway: "1"}),
		shows:     []string{"TcpExt TCPMTUPFail", "TcpExt TCPMTUPSuccess"},
		evaluate: func(p *probe, now string) verdict {
			if p.profile != Gateway {
				return good("clients of this profile are in the same network")
			}
			if now == "2" {
				return good("path MTU is probed on every connection")
			}
			return exactly("1", "a client behind a tunnel that drops ICMP gets small frames and never a large one", "a path that swallows large segments is detected")(p, now)
		},
	},
}

const allowedCongestion = "net.ipv4.tcp_allowed_congestion_control"

// allowed are the algorithms that programs without privileges, and other network
// namespaces than the first, may use.
func (p *probe) allowed() string {
	s, _ := p.sysctl(allowedCongestion)
	return s
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
