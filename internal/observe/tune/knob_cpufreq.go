package tune

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

func cpuGovernor() Check {
	return Check{
		Name: "cpu.scaling_governor", Area: Processor,
		Doc: Doc{
			Threshold: "low-latency and bench: performance on every processor",
			Source:    "Documentation/admin-guide/pm/cpufreq.rst",
			Since:     "2.6",
			Risk:      "more power and heat",
		},
		Worth: Worth{None: "the machine of the experiments cannot scale its frequency"},
		probe: func(p *probe) verdict {
			const dir = "/sys/devices/system/cpu"
			var found []string
			var steps []Step
			for _, cpu := range p.list(dir) {
				if ok, _ := path.Match("cpu[0-9]*", cpu); !ok {
					continue
				}
				file := path.Join(dir, cpu, "cpufreq/scaling_governor")
				s, err := p.read(file)
				switch state := unreadable(err); {
				case state == Absent:
					continue
				case state != OK:
					return verdict{state: state, why: file + " cannot be read: " + err.Error()}
				}
				if !slices.Contains(found, s) {
					found = append(found, s)
				}
				p.note(cpu, s, file)
				if s != "performance" {
					steps = append(steps, Step{Target: file, Value: "performance"})
				}
			}
			switch {
			case found == nil:
				return verdict{state: Unsupported, why: "not supported here: the processors' frequency is not this machine's to set, as in most virtual machines"}
			case p.profile == Gateway || len(steps) == 0:
				return verdict{state: OK, now: strings.Join(found, ", "), why: "a busy server runs at full frequency under every governor"}
			}
			return verdict{state: Change, now: strings.Join(found, ", "), want: "performance", steps: steps,
				why: fmt.Sprintf("%d processors lower their frequency when idle, and wake slowly", len(steps))}
		},
	}
}
