package tune

import "strconv"

func cgroupPids() Check {
	return Check{
		Name: "cgroup.pids", Area: Cgroup,
		Doc: Doc{
			Threshold: "at most 80 % of pids.max in use, and at least 512",
			Source:    "Documentation/admin-guide/cgroup-v2.rst: pids.max",
			Since:     "4.3",
			Risk:      "none: threads are few, but Go ends the process when it cannot start one",
			Undo:      "remove the drop-in and restart the service",
		},
		Worth: Worth{None: "it is a bound: below it there is nothing to gain"},
		probe: func(p *probe) verdict {
			dir, _, err := p.cgroup("pids", "pids.current")
			if err != nil {
				return verdict{state: unreadable(err), why: "the cgroup's threads cannot be counted: " + err.Error()}
			}
			most, err := p.read(dir + "/pids.max")
			switch state := unreadable(err); state {
			case OK:
			case Absent:
				return verdict{state: OK, now: "no limit", why: "the root of the hierarchy has no limit"}
			default:
				return verdict{state: state, why: dir + "/pids.max cannot be read: " + err.Error()}
			}
			p.note("pids.max", most, dir+"/pids.max")
			n, err := strconv.ParseInt(most, 10, 64)
			if err != nil {
				return verdict{state: OK, now: "no limit", why: "threads are not limited"}
			}
			s, _ := p.read(dir + "/pids.current")
			now, _ := strconv.ParseInt(s, 10, 64)
			p.note("pids.current", s, dir+"/pids.current")
			if n < 512 || percent(now, n) > 80 {
				return verdict{state: Change, now: s + " of " + most, want: "4096", why: "a thread that cannot be started ends a Go process",
					config: []File{serviceFile("TasksMax=4096")}}
			}
			return verdict{state: OK, now: s + " of " + most, why: "there is room for threads"}
		},
	}
}
