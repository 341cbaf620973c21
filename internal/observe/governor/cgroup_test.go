package governor

import (
	"os"
	"path/filepath"
	"testing"
)

// tree makes files below a directory of their own; a name that ends in / is a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTheMemoryLimitIsTheLeastAroundUs(t *testing.T) {
	const v2 = "30 1 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
	const v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n31 30 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	f := func(name string, cfg MemoryConfig, files map[string]string, want uint64, from string) {
		t.Helper()
		root := tree(t, files)
		if got, where := memoryLimit(cfg, findCgroup(root), root); got != want || where != from {
			t.Errorf("%s: %d from %q, want %d from %q", name, got, where, want, from)
		}
	}
	f("nothing known", MemoryConfig{}, nil, 0, "")
	f("a machine", MemoryConfig{}, map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, 4<<20, "machine")
	f("v2, the parent's is less", MemoryConfig{}, map[string]string{
		"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": v2, "proc/meminfo": "MemTotal: 9999999 kB\n",
		"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/memory.max": "2097152\n",
	}, 1<<20, "cgroup v2")
	f("v2, none", MemoryConfig{}, map[string]string{
		"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2, "proc/meminfo": "MemTotal: 4 kB\n", "sys/fs/cgroup/a/memory.max": "max\n",
	}, 4096, "machine")
	f("v2, more than the machine has", MemoryConfig{}, map[string]string{
		"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2, "proc/meminfo": "MemTotal: 4 kB\n", "sys/fs/cgroup/a/memory.max": "99999999\n",
	}, 4096, "machine")
	f("v2 in a container whose path is not to be seen", MemoryConfig{}, map[string]string{
		"proc/self/cgroup": "0::/docker/12ab\n", "proc/self/mountinfo": v2, "sys/fs/cgroup/memory.max": "536870912\n",
	}, 512<<20, "cgroup v2")
	f("v2 mounted at the group itself", MemoryConfig{}, map[string]string{
		"proc/self/cgroup": "0::/pod/x\n", "proc/self/mountinfo": "30 1 0:26 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/x/memory.max": "67108864\n",
	}, 64<<20, "cgroup v2")
	f("v1", MemoryConfig{}, map[string]string{
		"proc/self/cgroup": "4:memory:/p\n1:cpu,cpuacct:/p\n0::/\n", "proc/self/mountinfo": v1,
		"sys/fs/cgroup/memory/p/memory.limit_in_bytes": "33554432\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
	}, 32<<20, "cgroup v1")
	f("v1 without a limit", MemoryConfig{}, map[string]string{
		"proc/self/cgroup": "4:memory:/\n", "proc/self/mountinfo": v1, "proc/meminfo": "MemTotal: 4 kB\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
	}, 4096, "machine")
	f("the configuration wins", MemoryConfig{Limit: 77 << 20}, map[string]string{"proc/meminfo": "MemTotal: 4 kB\n"}, 77<<20, "config")
}

func TestTheQuotaIsInProcessors(t *testing.T) {
	f := func(name string, want float64, files map[string]string) {
		t.Helper()
		if got := findCgroup(tree(t, files)).quota(); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	v2 := func(text string) map[string]string {
		return map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "sys/fs/cgroup/a/cpu.max": text,
		}
	}
	f("v2", 1.5, v2("150000 100000\n"))
	f("v2 without", 0, v2("max 100000\n"))
	f("v2, nonsense", 0, v2("many\n"))
	f("v1", 0.5, map[string]string{
		"proc/self/cgroup": "1:cpu:/a\n", "proc/self/mountinfo": "31 30 0:3 / /cg rw - cgroup cgroup rw,cpu\n",
		"cg/a/cpu.cfs_quota_us": "50000\n", "cg/a/cpu.cfs_period_us": "100000\n",
	})
	f("v1 without", 0, map[string]string{
		"proc/self/cgroup": "1:cpu:/a\n", "proc/self/mountinfo": "31 30 0:3 / /cg rw - cgroup cgroup rw,cpu\n",
		"cg/a/cpu.cfs_quota_us": "-1\n", "cg/a/cpu.cfs_period_us": "100000\n",
	})
}
