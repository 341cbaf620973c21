package tune

import (
	"fmt"
	"path"
	"strings"
)

func receiveSteering() Check {
	return Check{
		Name: "nic.rps", Area: Card,
		Doc: Doc{
			Threshold: "every processor in rps_cpus where a card has fewer receive queues than there are processors, and softnet_stat shows packets dropped or polls ended early; empty otherwise",
			Source:    "Documentation/networking/scaling.rst: RPS",
			Since:     "2.6.35",
			Risk:      "an interrupt between processors per batch; worse than nothing with one queue per processor",
		},
		Worth: Worth{None: "loopback has no receive queues"},
		probe: func(p *probe) verdict {
			return perDevice(p, func(dev string, v *verdict) error {
				queues := p.queues(dev, "rx-")
				if len(queues) == 0 {
					return fmt.Errorf("%s has no receive queues: %w", dev, ErrUnsupported)
				}
				pressed := p.softnet(1, "packets dropped") > 0 || percent(p.softnet(2, "polls ended early"), p.softnet(0, "packets processed")) > 0.1
				for _, q := range queues {
					file := path.Join(q, "rps_cpus")
					now, err := p.read(file)
					if err != nil {
						return err
					}
					p.note(dev+" "+path.Base(q), now, file)
					on := strings.Trim(now, "0,") != ""
					switch {
					case len(queues) >= p.cpus() && on:
						v.need(Step{Target: file, Value: "0"}, "%s has a queue per processor: steering packets again only adds interrupts", dev)
					case len(queues) < p.cpus() && !on && pressed:
						v.need(Step{Target: file, Value: cpuMask(p.cpus())}, "%s: one processor receives the packets of all, and does not keep up", dev)
					}
				}
				v.now = appendTo(v.now, fmt.Sprintf("%s: %d queues, %d processors", dev, len(queues), p.cpus()))
				return nil
			}, "one processor keeps up with its queue, or there is a queue per processor")
		},
	}
}

// cpuMask is the mask of the first n processors as sysfs has it.
func cpuMask(n int) string {
	var groups []string
	for ; n > 32; n -= 32 {
		groups = append(groups, "ffffffff")
	}
	return strings.Join(append([]string{fmt.Sprintf("%x", uint64(1)<<n-1)}, groups...), ",")
}
