package tune

import (
	"strconv"
	"strings"
)

// descriptors is the limit of open files that the unit in deploy/systemd has.
const descriptors = 1048576

func nofile() Check {
	return Check{
		Name: "limit.nofile", Area: Files,
		Doc: Doc{
			Threshold: "hard limit at least 1048576; Go raises the soft limit to it",
			Source:    "getrlimit(2): RLIMIT_NOFILE; systemd.exec(5): LimitNOFILE",
			Since:     "all",
			Risk:      "none for Weir; programs that close every possible descriptor one by one get slow",
			Undo:      "remove the drop-in and restart the service",
		},
		Worth: Worth{None: "it is a bound: below it there is nothing to gain"},
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
	}
}

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
