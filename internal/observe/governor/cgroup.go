package governor

import (
	"bytes"
	"os"
	"path"
	"strings"
)

// A cgroup is where the kernel's limits for this process stand, in both versions of
// the interface. The zero value has none.
type cgroup struct {
	// memory are the directories from the process's own group to the root, cpu the same
	// for the processor controller.
	memory, cpu []string
	v2Memory    bool
	v2CPU       bool
}

// findCgroup reads /proc/self/cgroup and mountinfo below root ("" outside tests).
func findCgroup(root string) cgroup {
	groups, err := os.ReadFile(root + "/proc/self/cgroup")
	if err != nil {
		return cgroup{}
	}
	mounts, err := os.ReadFile(root + "/proc/self/mountinfo")
	if err != nil {
		return cgroup{}
	}
	unified, v1 := parseCgroup(groups)
	where := parseMounts(mounts)
	has := func(dirs []string, names ...string) bool {
		for _, d := range dirs {
			for _, n := range names {
				if _, err := os.Stat(d + "/" + n); err == nil {
					return true
				}
			}
		}
		return false
	}
	var c cgroup
	if m, ok := where["cgroup2"]; ok {
		dirs := m.chain(root, unified)
		if has(dirs, "memory.max", "memory.current") {
			c.memory, c.v2Memory = dirs, true
		}
		if has(dirs, "cpu.max", "cpu.stat") && has(dirs, "cpu.max") {
			c.cpu, c.v2CPU = dirs, true
		}
	}
	if m, ok := where["memory"]; ok && c.memory == nil {
		c.memory = m.chain(root, v1["memory"])
	}
	if m, ok := where["cpu"]; ok && c.cpu == nil {
		c.cpu = m.chain(root, v1["cpu"])
	}
	return c
}

// parseCgroup reads /proc/self/cgroup: the path in the unified hierarchy, and by
// controller those of version 1 (cgroups(7)).
func parseCgroup(b []byte) (unified string, v1 map[string]string) {
	v1 = map[string]string{}
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			unified = parts[2]
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			v1[controller] = parts[2]
		}
	}
	return unified, v1
}

// A cgroupMount is a hierarchy: where it is mounted and which of its groups is there.
type cgroupMount struct{ root, point string }

// parseMounts reads the mounts of cgroups from mountinfo, by controller or "cgroup2"
// (proc_pid_mountinfo(5)).
func parseMounts(b []byte) map[string]cgroupMount {
	out := map[string]cgroupMount{}
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(kind) < 3 {
			continue
		}
		m := cgroupMount{root: unescape(f[3]), point: unescape(f[4])}
		switch kind[0] {
		case "cgroup2":
			out["cgroup2"] = m
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				if option == "memory" || option == "cpu" {
					out[option] = m
				}
			}
		}
	}
	return out
}

// unescape undoes mountinfo's octal escapes of blanks.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// chain is the directories from the group to the top of the mount. Within a container
// the mount may start at the group itself, or show none of the group's path: then the
// mount point is all there is.
func (m cgroupMount) chain(root, group string) []string {
	rel := group
	if m.root != "/" {
		if rest, ok := strings.CutPrefix(group, m.root); ok && (rest == "" || rest[0] == '/') {
			rel = rest
		}
	}
	rel = path.Clean("/" + rel)
	var dirs []string
	for range maxDepth {
		dir := root + path.Join(m.point, rel)
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
		if rel == "/" {
			return dirs
		}
		rel = path.Dir(rel)
	}
	return dirs
}

// maxDepth bounds how many groups around ours are looked at.
const maxDepth = 64

// unlimited is what version 1 says for no limit, about 2⁶³; a limit above an exbibyte
// is none.
const unlimited = 1 << 60

// memoryLimit is the least limit of the group and those around it; 0 is none.
func (c cgroup) memoryLimit() uint64 {
	name := "memory.limit_in_bytes"
	if c.v2Memory {
		name = "memory.max"
	}
	var least uint64
	for _, dir := range c.memory {
		b, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			continue
		}
		if n, _, ok := number(b); ok && n > 0 && n < unlimited && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// quota is how many processors the group may use; 0 is no limit.
func (c cgroup) quota() float64 {
	least := 0.0
	for _, dir := range c.cpu {
		if q, ok := c.quotaOf(dir); ok && (least == 0 || q < least) {
			least = q
		}
	}
	return least
}

func (c cgroup) quotaOf(dir string) (float64, bool) {
	var quota, period []byte
	if c.v2CPU {
		b, err := os.ReadFile(dir + "/cpu.max")
		if err != nil {
			return 0, false
		}
		quota, period, _ = bytes.Cut(b, []byte(" "))
	} else {
		quota, _ = os.ReadFile(dir + "/cpu.cfs_quota_us") // missing reads as no number
		period, _ = os.ReadFile(dir + "/cpu.cfs_period_us")
	}
	q, _, ok := number(quota) // "max" and "-1" are no numbers
	p, _, okp := number(period)
	if !ok || !okp || q == 0 || p == 0 {
		return 0, false
	}
	return float64(q) / float64(p), true
}

// own is the innermost directory, "" when there is none.
func own(dirs []string) string {
	if len(dirs) == 0 {
		return ""
	}
	return dirs[0]
}

// parseThrottled is how long the quota kept the group off, in nanoseconds, from
// cpu.stat of either version.
func parseThrottled(b []byte) (uint64, bool) {
	if n, ok := field(b, "throttled_usec"); ok {
		return min(n, 1<<54) * 1000, true
	}
	return field(b, "throttled_time")
}

// parseInactive is the page cache that the kernel takes back first, from memory.stat
// of either version: it counts as used, but is not.
func parseInactive(b []byte) uint64 {
	if n, ok := field(b, "total_inactive_file"); ok {
		return n
	}
	n, _ := field(b, "inactive_file")
	return n
}
