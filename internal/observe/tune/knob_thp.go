package tune

import "strings"

const thpFile = "/sys/kernel/mm/transparent_hugepage/enabled"

func hugePages() Check {
	return Check{
		Name: "memory.transparent_hugepage", Area: Memory, path: thpFile,
		Gone: "this kernel is built without transparent huge pages",
		Doc: Doc{
			Threshold: "madvise or never",
			Source:    "Documentation/admin-guide/mm/transhuge.rst",
			Since:     "2.6.38",
			Risk:      "programs that rely on \"always\" without madvise(2) lose huge pages",
		},
		Worth: Worth{None: "no experiment here compares heaps with and without huge pages"},
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
	}
}

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
