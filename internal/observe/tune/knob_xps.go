package tune

import (
	"fmt"
	"path"
	"strings"
)

func transmitSteering() Check {
	return Check{
		Name: "nic.xps", Area: Card,
		Doc: Doc{
			Threshold: "a map of processors for every transmit queue, where there is more than one",
			Source:    "Documentation/networking/scaling.rst: XPS",
			Since:     "2.6.38",
			Risk:      "a map that leaves out a processor sends its packets by hash",
		},
		Worth: Worth{None: "loopback has no transmit queues"},
		probe: func(p *probe) verdict {
			return perDevice(p, func(dev string, v *verdict) error {
				queues := p.queues(dev, "tx-")
				v.now = appendTo(v.now, fmt.Sprintf("%s: %d transmit queues", dev, len(queues)))
				if len(queues) < 2 {
					return nil
				}
				for i, q := range queues {
					file := path.Join(q, "xps_cpus")
					now, err := p.read(file)
					if err != nil {
						return err
					}
					p.note(dev+" "+path.Base(q), now, file)
					if strings.Trim(now, "0,") == "" && i < p.cpus() {
						v.need(Step{Target: file, Value: singleCPU(i)}, "%s: its transmit queues are chosen by hash, so processors wait for each other's locks", dev)
					}
				}
				return nil
			}, "each processor sends on its own queue, or there is only one")
		},
	}
}

func singleCPU(i int) string {
	s := fmt.Sprintf("%x", uint64(1)<<(i%32))
	return s + strings.Repeat(",00000000", i/32)
}
