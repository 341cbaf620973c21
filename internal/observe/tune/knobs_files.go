package tune

import (
	"strconv"
	"strings"
)

var filesChecks = []Check{
	{
		Name: "fs.file-max", Area: Files,
		Threshold: "at most half in use, and at least 1048576",
		Source:    "Documentation/admin-guide/sysctl/fs.rst: file-max & file-nr",
		Since:     "2.2; it follows the memory since 2.6",
		Risk:      "about 1 KiB of memory per open file",
		Worth:     Worth{None: "it is a bound: below it there is nothing to gain"},
		evaluate: func(p *probe, now string) verdict {
			var used int64
			if s, err := p.sysctl("fs.file-nr"); err == nil {
				if v, err := numbers(s, 3); err == nil {
					used = v[0]
					p.note("fs.file-nr", s, sysctlPath("fs.file-nr"))
				}
			}
			return atLeast(max(1048576, 2*used), "the machine may run out of open files; the kernel's own default follows the memory, so look for what lowers it")(p, now)
		},
	},
	{
		Name: "fs.nr_open", Area: Files,
		Threshold: "at least 1048576",
		Source:    "Documentation/admin-guide/sysctl/fs.rst: nr_open",
		Since:     "2.6.25",
		Risk:      "none: it is the upper bound of RLIMIT_NOFILE",
		Worth:     Worth{None: "it is a bound: below it there is nothing to gain"},
		Base:      always("1048576"),
		evaluate:  atLeast(1048576, "no process can be given more descriptors than this, and each connection is one"),
	},
	{
		Name: "limit.nofile", Area: Files,
		Threshold: "hard limit at least 1048576; Go raises the soft limit to it",
		Source:    "getrlimit(2): RLIMIT_NOFILE; systemd.exec(5): LimitNOFILE",
		Since:     "all",
		Risk:      "none for Weir; programs that close every possible descriptor one by one get slow",
		Undo:      "remove the drop-in and restart the service",
		Worth:     Worth{None: "it is a bound: below it there is nothing to gain"},
		probe: func(p *probe) verdict {
			file := p.process() + "/limits"
			text, err := p.read(file)
			if err != nil {
				return verdict{state: unreadable(err), why: file + " cannot be read: " + err.Error()}
			}
			hard, ok := openFiles(text)
			if !ok {
				return watch("%s has no line \"Max open files\"", file)
			}
			p.note("Max open files, hard", hard, file)
			if n, err := strconv.ParseInt(hard, 10, 64); err == nil && n < descriptors {
				want := strconv.Itoa(descriptors)
				return verdict{state: Change, now: hard, want: want,
					why:    "each connection is a descriptor, so this process holds fewer than " + hard + "; it cannot raise its hard limit without CAP_SYS_RESOURCE",
					config: []File{serviceFile("LimitNOFILE=" + want)}}
			}
			return verdict{state: OK, now: hard, why: "each connection is one descriptor"}
		},
	},
	{
		Name: "vm.swappiness", Area: Memory,
		Threshold: "1 to 10 where there is swap",
		Source:    "Documentation/admin-guide/sysctl/vm.rst: swappiness",
		Since:     "2.6",
		Risk:      "0 brings the OOM killer while memory could still be swapped",
		Worth:     Worth{None: "no experiment here runs with swap"},
		Base:      by(map[Profile]string{Gateway: "10", LowLatency: "1"}),
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
	},
	{
		Name: "memory.transparent_hugepage", Area: Memory, path: thpFile,
		Gone:      "this kernel is built without transparent huge pages",
		Threshold: "madvise or never",
		Source:    "Documentation/admin-guide/mm/transhuge.rst",
		Since:     "2.6.38",
		Risk:      "programs that rely on \"always\" without madvise(2) lose huge pages",
		Worth:     Worth{None: "no experiment here compares heaps with and without huge pages"},
		evaluate: func(p *probe, now string) verdict {
			p.note("AnonHugePages", sizeText(1024*p.meminfo("AnonHugePages:")), "/proc/meminfo")
			switch chosen(now) {
			case "always":
				return change("madvise", "a sparse heap of small objects grows by 2 MiB where it touches 4 KiB")
			case "never":
				return good("no huge pages at all: an old blanket rule that costs large heaps some lookups")
			}
			return good("huge pages where a program requests them")
		},
	},
}

// descriptors is the limit of open files that the unit in deploy/systemd has.
const descriptors = 1048576

// openFiles finds the hard limit in /proc/PID/limits.
func openFiles(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			if f := strings.Fields(rest); len(f) >= 2 {
				return f[1], true
			}
		}
	}
	return "", false
}

const thpFile = "/sys/kernel/mm/transparent_hugepage/enabled"

// chosen is the word in brackets, as sysfs shows a choice, or all of s without brackets.
func chosen(s string) string {
	if _, rest, ok := strings.Cut(s, "["); ok {
		word, _, _ := strings.Cut(rest, "]")
		return word
	}
	return s
}

func (p *probe) meminfo(key string) int64 {
	s, _ := p.read("/proc/meminfo")
	return keyed(s, key)
}
