package tune

import (
	"strconv"
	"strings"
)

func swappiness() Check {
	return Check{
		Name: "vm.swappiness", Area: Memory,
		Doc: Doc{
			Threshold: "1 to 10 where there is swap",
			Source:    "Documentation/admin-guide/sysctl/vm.rst: swappiness",
			Since:     "2.6",
			Risk:      "0 brings the OOM killer while memory could still be swapped",
		},
		Worth: Worth{None: "no experiment here runs with swap"},
		Base:  by(map[Profile]string{Gateway: "10", LowLatency: "1"}),
		evaluate: func(p *probe, now string) verdict {
			text, err := p.read("/proc/swaps")
			swaps := max(strings.Count(text, "\n"), 0)
			if err == nil && swaps == 0 {
				return good("there is no swap, so it has no effect")
			}
			p.note("swap areas", strconv.Itoa(swaps), "/proc/swaps")
			want := "10"
			if p.profile == LowLatency {
				want = "1"
			}
			if n, err := strconv.Atoi(now); err != nil || n < 1 || n > 10 {
				return change(want, "the heap of a server is swapped out in favour of file pages, and each page comes back with a disk read")
			}
			return good("programs' memory is swapped last")
		},
	}
}
