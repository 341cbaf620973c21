package tune

import (
	"fmt"
	"os"
)

var buffersChecks = []Check{
	{
		Name: "net.ipv4.tcp_rmem", Area: Buffers,
		Threshold: "default (the middle value) at most 1 MiB, maximum at least 4 MiB",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_rmem",
		Since:     "2.4",
		Risk:      "a lower default starts new connections with a smaller window, which autotuning then raises",
		Worth:     Worth{Page: "c", Experiment: "settings", Arm: "windows", Against: "stock", Metric: "connections_per_second"},
		shows:     []string{"TcpExt PruneCalled", "TcpExt TCPRcvCollapsed"},
		evaluate:  buffer(131072, 6<<20),
	},
	{
		Name: "net.ipv4.tcp_wmem", Area: Buffers,
		Threshold: "default (the middle value) at most 1 MiB, maximum at least 4 MiB",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_wmem",
		Since:     "2.4",
		Risk:      "a lower default makes the first burst of a connection wait for acknowledgements",
		Worth:     Worth{Page: "c", Experiment: "settings", Arm: "windows", Against: "stock", Metric: "connections_per_second"},
		evaluate:  buffer(16384, 4<<20),
	},
	{
		Name: "net.ipv4.tcp_mem", Area: Buffers, HostOnly: true,
		Threshold: "pressure (the middle value) between 3 % and 50 % of the memory; in use below 80 % of it",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_mem",
		Since:     "2.4",
		Risk:      "in pages, not bytes: values copied from another machine allow TCP more memory than there is",
		Worth:     Worth{None: "no experiment here buffers gigabytes in the kernel"},
		evaluate: func(p *probe, now string) verdict {
			v, err := numbers(now, 3)
			if err != nil {
				return watch("%v", err)
			}
			page, ram, used := int64(os.Getpagesize()), p.memory(), p.count("TCP mem")
			p.count("TcpExt TCPMemoryPressures")
			if ram == 0 {
				return watch("the memory of the machine is unknown: /proc/meminfo cannot be read")
			}
			// The kernel's own rule (tcp_init_mem): an eighth of the free memory at boot,
			// and 3/4 and 3/2 of that.
			limit := ram / 16 / page
			usual := fmt.Sprintf("%d %d %d", limit/4*3, limit, limit/4*3*2)
			switch share := percent(v[1]*page, ram); {
			case share > 50:
				return change(usual, "TCP may buffer %s, %.0f %% of the memory, before it saves any", sizeText(v[1]*page), share)
			case share < 3:
				return change(usual, "TCP saves memory from %s on, %.1f %% of the memory: it drops segments while memory is free", sizeText(v[1]*page), share)
			case percent(used, v[1]) > 80:
				return watch("TCP holds %s, %.0f %% of where it starts to drop: bound what each connection may hold unsent (eventloop.max_queue), or raise all three values", sizeText(used*page), percent(used, v[1]))
			}
			return good("TCP holds %s of %s", sizeText(used*page), sizeText(v[1]*page))
		},
	},
	{
		Name: "net.core.rmem_max", Area: Buffers,
		Threshold: "at least 212992, the kernel's old default",
		Source:    "Documentation/admin-guide/sysctl/net.rst: rmem_max; socket(7): SO_RCVBUF",
		Since:     "2.2",
		Risk:      "it bounds explicit SO_RCVBUF only, not TCP's autotuning",
		Worth:     Worth{None: "experiment A6 shows that it clips what is set explicitly, and that nothing else depends on it"},
		evaluate:  atLeast(212992, "explicit buffers (eventloop.sockets.receive_buffer) are clipped below the kernel's old default"),
	},
	{
		Name: "net.core.wmem_max", Area: Buffers,
		Threshold: "at least 212992, the kernel's old default",
		Source:    "Documentation/admin-guide/sysctl/net.rst: wmem_max; socket(7): SO_SNDBUF",
		Since:     "2.2",
		Risk:      "it bounds explicit SO_SNDBUF only, not TCP's autotuning",
		Worth:     Worth{None: "experiment A6 shows that it clips what is set explicitly, and that nothing else depends on it"},
		evaluate:  atLeast(212992, "explicit buffers (eventloop.sockets.send_buffer) are clipped below the kernel's old default"),
	},
	{
		Name: "net.ipv4.tcp_moderate_rcvbuf", Area: Buffers,
		Threshold: "1",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_moderate_rcvbuf",
		Since:     "2.6.7",
		Risk:      "none: it is the kernel's default",
		Worth:     Worth{None: "no experiment here turns autotuning off"},
		Base:      always("1"),
		evaluate:  exactly("1", "without autotuning every connection keeps the default window, too large for idle and too small for fast ones", "buffers follow each connection's need"),
	},
	{
		Name: "net.ipv4.tcp_notsent_lowat", Area: Buffers,
		Threshold: "at least 4096: Weir sets its own bound per connection (eventloop.notsent_lowat, 128 KiB)",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_notsent_lowat; tcp(7): TCP_NOTSENT_LOWAT",
		Since:     "3.12",
		Risk:      "as a sysctl it applies to every program of the namespace; small values cost bulk transfers throughput",
		Worth:     Worth{None: "no experiment here measures the age of frames behind a full send buffer"},
		evaluate: numeric(func(_ *probe, n int64) verdict {
			if n < 4096 {
				return change("131072", "below one page every send of any program waits for an acknowledgement")
			}
			return good("Weir bounds unsent bytes per connection by itself; the sysctl is for other programs")
		}),
	},
	{
		Name: "net.ipv4.tcp_max_orphans", Area: Buffers, HostOnly: true,
		Threshold: "at least four times the orphans there are, and 16384",
		Source:    "Documentation/networking/ip-sysctl.rst: tcp_max_orphans",
		Since:     "2.4",
		Risk:      "an orphan may hold 64 KiB of memory that cannot be swapped",
		Worth:     Worth{None: "no experiment here closes that many connections with unsent data"},
		evaluate: func(p *probe, now string) verdict {
			orphans := p.count("TCP orphan")
			p.count("TcpExt TCPAbortOnMemory")
			return atLeast(max(16384, 4*orphans), "beyond it the kernel resets connections that are closed with data unsent: their last words are lost")(p, now)
		},
	},
}

// buffer evaluates tcp_rmem or tcp_wmem: usual is the kernel's default for the middle
// value, most for the maximum.
func buffer(usual, most int64) func(*probe, string) verdict {
	return func(p *probe, now string) verdict {
		v, err := numbers(now, 3)
		if err != nil {
			return watch("%v", err)
		}
		p.count("TCP mem")
		switch {
		case v[1] > 1<<20:
			return change(fmt.Sprintf("%d %d %d", v[0], usual, v[2]), "the middle value is what each connection may hold before autotuning: at %s, a stalled crowd of 10,000 holds %s",
				sizeText(v[1]), sizeText(10_000*v[1]))
		case v[2] < 4<<20:
			return change(fmt.Sprintf("%d %d %d", v[0], v[1], most), "the maximum of %s bounds one connection to %s per round trip", sizeText(v[2]), sizeText(v[2]))
		}
		return good("autotuning starts at %s and may reach %s; idle connections hold nothing", sizeText(v[1]), sizeText(v[2]))
	}
}
