package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// obsolete is a check for a sysctl that no longer has an effect: it finds the files that
// still set it.
func obsolete(name, since, why, source string) Check {
	return Check{
		Name: name, Area: Removed,
		Doc: Doc{
			Threshold: "no configuration file sets it",
			Source:    source,
			Since:     since,
			Risk:      "none",
			Undo:      "put the line back",
		},
		Worth: Worth{None: "it has no effect, so there is nothing to measure"},
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
