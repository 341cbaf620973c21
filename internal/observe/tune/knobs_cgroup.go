package tune

import (
	"fmt"
	"strconv"
	"strings"
)

var cgroupChecks = []Check{
	{
		Name: "cgroup.memory", Area: Cgroup,
		Threshold: "no process killed and no throttling at memory.high; at most 90 % of memory.max in use",
		Source:    "Documentation/admin-guide/cgroup-v2.rst: memory.max, memory.high, memory.events",
		Since:     "4.5 (v2); 2.6.25 (v1)",
		Risk:      "a higher limit takes memory from other services",
		Undo:      "nothing to undo: the limit is the service manager's",
		Worth:     Worth{None: "a bound: experiment E5 has the garbage collector under a limit"},
		probe: func(p *probe) verdict {
			max, now, events, err := p.memoryLimit()
			if err != nil {
				return verdict{state: unreadable(err), why: "the cgroup's memory cannot be read: " + err.Error()}
			}
			killed, high := keyed(events, "oom_kill"), keyed(events, "high")
			if events != "" {
				p.note("oom_kill", strconv.FormatInt(killed, 10), "memory.events")
				p.note("high", strconv.FormatInt(high, 10), "memory.events")
			}
			limit, err := strconv.ParseInt(max, 10, 64)
			unlimited := err != nil || limit > 1<<60
			v := verdict{state: OK, now: "no limit", why: "the memory of the machine is the limit"}
			if !unlimited {
				v.now, v.why = sizeText(now)+" of "+sizeText(limit), "GOMEMLIMIT follows the limit (governor.memory)"
			}
			switch {
			case killed > 0:
				v.state, v.why = Watch, "processes of this cgroup were killed at its limit: raise MemoryMax=, or bound eventloop.max_conns"
			case high > 0:
				v.state, v.why = Watch, "processes of this cgroup were slowed at memory.high: raise MemoryHigh="
			case !unlimited && percent(now, limit) > 90:
				v.state, v.why = Watch, "more than 90 % of the limit is in use: raise MemoryMax=, or bound eventloop.max_conns"
			}
			return v
		},
	},
	{
		Name: "cgroup.cpu", Area: Cgroup,
		Threshold: "at most 1 % of the periods throttled (cpu.stat)",
		Source:    "Documentation/admin-guide/cgroup-v2.rst: cpu.max; scheduler/sched-bwc.rst",
		Since:     "4.15 (v2); 3.2 (v1)",
		Risk:      "more processor time than other services expect",
		Undo:      "nothing to undo: the limit is the service manager's",
		Worth:     Worth{None: "no experiment here runs under a quota"},
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
	},
	{
		Name: "cgroup.pids", Area: Cgroup,
		Threshold: "at most 80 % of pids.max in use, and at least 512",
		Source:    "Documentation/admin-guide/cgroup-v2.rst: pids.max",
		Since:     "4.3",
		Risk:      "none: threads are few, but Go ends the process when it cannot start one",
		Undo:      "remove the drop-in and restart the service",
		Worth:     Worth{None: "it is a bound: below it there is nothing to gain"},
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
	},
}

// memoryLimit reads the limit as text, what is in use, and events (v2 only).
func (p *probe) memoryLimit() (limit string, now int64, events string, err error) {
	dir, v2, err := p.cgroup("memory", "memory.current")
	if err != nil {
		return "", 0, "", err
	}
	name, used := "memory.limit_in_bytes", "memory.usage_in_bytes"
	if v2 {
		name, used = "memory.max", "memory.current"
	}
	if limit, err = p.read(dir + "/" + name); err != nil {
		return "", 0, "", err
	}
	p.note(name, limit, dir+"/"+name)
	s, err := p.read(dir + "/" + used)
	if err != nil {
		return "", 0, "", err
	}
	now, _ = strconv.ParseInt(s, 10, 64)
	p.note(used, s, dir+"/"+used)
	if v2 {
		events, _ = p.read(dir + "/memory.events")
	}
	return limit, now, events, nil
}

// cgroup finds the directory of the process's cgroup that has a controller: of version 1,
// or of version 2 with the file marker in it. In a container the path that /proc has may
// be the host's: then it is the root of what is mounted.
func (p *probe) cgroup(controller, marker string) (dir string, v2 bool, err error) {
	text, err := p.read(p.process() + "/cgroup")
	if err != nil {
		return "", false, err
	}
	first := func(candidates ...string) string {
		for _, c := range candidates {
			if p.exists(c) {
				return c
			}
		}
		return ""
	}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		at := strings.TrimSuffix(f[2], "/")
		if f[1] == "" {
			for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				if file := first(mount+at+"/"+marker, mount+"/"+marker); file != "" {
					return strings.TrimSuffix(file, "/"+marker), true, nil
				}
			}
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if name == controller {
				if d := first("/sys/fs/cgroup/"+f[1]+at, "/sys/fs/cgroup/"+controller+at, "/sys/fs/cgroup/"+controller); d != "" {
					return d, false, nil
				}
			}
		}
	}
	return "", false, &missingError{"no cgroup of this process has the controller " + controller}
}
