package tune

import (
	"fmt"
	"os"
)

func tcpMem() Check {
	return Check{
		Name: "net.ipv4.tcp_mem", Area: Buffers, HostOnly: true,
		Doc: Doc{
			Threshold: "pressure (the middle value) between 3 % and 50 % of the memory; in use below 80 % of it",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_mem",
			Since:     "2.4",
			Risk:      "in pages, not bytes: values copied from another machine allow TCP more memory than there is",
		},
		Worth: Worth{None: "no experiment here buffers gigabytes in the kernel"},
		evaluate: func(p *probe, now string) verdict {
			v, err := numbers(now, 3)
			if err != nil {
				return watch("%v", err)
			}
			page, ram, used := int64(os.Getpagesize()), p.memory(), p.sockstat("TCP", "mem")
			p.netstat("TcpExt", "TCPMemoryPressures")
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
	}
}
