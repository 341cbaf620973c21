package tune

import (
	"fmt"
	"strings"
)

func cgroupCPU() Check {
	return Check{
		Name: "cgroup.cpu", Area: Cgroup,
		Doc: Doc{
			Threshold: "at most 1 % of the periods throttled (cpu.stat)",
			Source:    "Documentation/admin-guide/cgroup-v2.rst: cpu.max; scheduler/sched-bwc.rst",
			Since:     "4.15 (v2); 3.2 (v1)",
			Risk:      "more processor time than other services expect",
			Undo:      "nothing to undo: the limit is the service manager's",
		},
		Worth: Worth{None: "no experiment here runs under a quota"},
		probe: func(p *probe) verdict {
			dir, v2, err := p.cgroup("cpu", "cpu.stat")
			if err != nil {
				return verdict{state: unreadable(err), why: "the cgroup's processor time cannot be read: " + err.Error()}
			}
			name := "cpu.cfs_quota_us"
			if v2 {
				name = "cpu.max"
			}
			quota, err := p.read(dir + "/" + name)
			if unreadable(err) == Forbidden {
				return verdict{state: Forbidden, why: dir + "/" + name + " cannot be read: " + err.Error()}
			}
			if err != nil || quota == "-1" || strings.HasPrefix(quota, "max") {
				return verdict{state: OK, now: "no quota", why: "no quota stops the event loops"}
			}
			p.note(name, quota, dir+"/"+name)
			text, err := p.read(dir + "/cpu.stat")
			if err != nil {
				return verdict{state: unreadable(err), why: dir + "/cpu.stat cannot be read: " + err.Error()}
			}
			periods, throttled := keyed(text, "nr_periods"), keyed(text, "nr_throttled")
			p.note("nr_throttled", fmt.Sprintf("%d of %d periods", throttled, periods), dir+"/cpu.stat")
			if percent(throttled, periods) > 1 {
				return verdict{state: Watch, now: quota, why: fmt.Sprintf("%.0f %% of the periods were throttled: all event loops stop for tens of milliseconds. Raise CPUQuota=, or run as many loops as it has processors (eventloop.loops)",
					percent(throttled, periods))}
			}
			return verdict{state: OK, now: quota, why: "the quota is hardly ever reached"}
		},
	}
}
