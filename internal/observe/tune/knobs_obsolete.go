package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

var obsoleteChecks = []Check{
	obsolete("net.ipv4.tcp_tw_recycle", "removed in 4.12",
		"removed from the kernel in 4.12, because it broke clients behind NAT",
		"Documentation/networking/ip-sysctl.rst before 4.12; commit 4396e46187ca"),
	obsolete("net.ipv4.tcp_low_latency", "without effect since 4.14",
		"the file exists and has had no effect since 4.14, which removed the TCP prequeue",
		"Documentation/networking/ip-sysctl.rst: tcp_low_latency"),
	obsolete("net.ipv4.tcp_fack", "without effect since 4.15",
		"without effect since 4.15: RACK replaced it",
		"Documentation/networking/ip-sysctl.rst: tcp_fack"),
	obsolete("net.ipv4.tcp_adv_win_scale", "obsolete since 6.6",
		"obsolete since 6.6: the kernel measures how much memory a segment takes",
		"Documentation/networking/ip-sysctl.rst: tcp_adv_win_scale"),
	obsolete("kernel.sched_min_granularity_ns", "moved to debugfs in 5.13, removed in 6.6",
		"no sysctl since 5.13, and the scheduler that had it is gone since 6.6 (EEVDF)",
		"Documentation/scheduler/sched-eevdf.rst"),
}

// obsolete is a check for a sysctl that no longer has an effect: it finds the files that
// still set it.
func obsolete(name, since, why, source string) Check {
	return Check{
		Name: name, Area: Removed,
		Threshold: "no configuration file sets it",
		Source:    source,
		Since:     since,
		Risk:      "none",
		Undo:      "put the line back",
		Worth:     Worth{None: "it has no effect, so there is nothing to measure"},
		probe: func(p *probe) verdict {
			files, err := p.configured(name)
			switch {
			case err != nil:
				return verdict{state: Forbidden, why: err.Error()}
			case len(files) == 0:
				return verdict{state: OK, why: why + "; no configuration file sets it"}
			}
			for _, f := range files {
				p.note(name, "set", f)
			}
			return verdict{state: Obsolete, now: "set in " + strings.Join(files, ", "), want: "no line", why: why + ": remove the line"}
		},
	}
}

// configured are the files of sysctl.d(5) that set name.
func (p *probe) configured(name string) (files []string, err error) {
	all := []string{"/etc/sysctl.conf"}
	for _, dir := range []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d"} {
		for _, f := range p.list(dir) {
			if strings.HasSuffix(f, ".conf") {
				all = append(all, path.Join(dir, f))
			}
		}
	}
	for _, f := range all {
		text, err := p.read(f)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("%s cannot be read: %w", f, err)
		}
		for line := range strings.Lines(text) {
			key, _, ok := strings.Cut(line, "=")
			key = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(key), "-"), "/", ".")
			if ok && key == name && !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	return files, nil
}
