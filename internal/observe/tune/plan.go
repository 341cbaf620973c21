package tune

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files of a plan.
const (
	sysctlFile  = "/etc/sysctl.d/90-weir.conf"
	tmpfileFile = "/etc/tmpfiles.d/weir-tune.conf"
	moduleFile  = "/etc/modules-load.d/weir-tune.conf"
	dropInFile  = "/etc/systemd/system/weir.service.d/50-tune.conf"
)

func serviceFile(line string) File {
	return File{Path: dropInFile, Head: "[Service]\n", Text: line + "\n"}
}

// Files are the configuration files that make the changes of the report at every boot:
// sysctl.d(5), tmpfiles.d(5) for what is not a sysctl, drop-ins and units of systemd, and a
// file for nft(8). Each has the reason of every line.
func (r *Report) Files() []File {
	var pieces []File
	for _, f := range r.Findings {
		var why = fmt.Sprintf("# %s (now %s)\n", f.Why, cmp.Or(f.Now, "not set"))
		for _, s := range f.Steps {
			name, isSysctl := sysctlName(s.Target)
			switch {
			case s.Target == NotrackTarget, strings.HasPrefix(s.Target, QdiscTarget): // in Config
				continue
			case isSysctl:
				pieces = append(pieces, File{Path: sysctlFile, Head: fmt.Sprintf("# Written by weir tune plan for the profile %s.\n", r.Profile),
					Text: why + fmt.Sprintf("%s = %s\n", name, s.Value)})
				if strings.HasPrefix(name, "net.netfilter.") {
					// Before the module is loaded there is nothing to set.
					pieces = append(pieces, File{Path: moduleFile, Text: "nf_conntrack\n"})
				}
			default:
				pieces = append(pieces, File{Path: tmpfileFile, Text: why + fmt.Sprintf("w %s - - - - %s\n", s.Target, s.Value)})
			}
			why = ""
		}
		for _, c := range f.Config {
			if !strings.HasSuffix(c.Path, ".nft") && !strings.HasSuffix(c.Path, ".tc") {
				c.Text = why + c.Text
			}
			pieces = append(pieces, c)
		}
	}
	return join(pieces)
}

// join makes one file of the pieces of each path, in the order in which they first occur.
func join(pieces []File) []File {
	var files []File
	for _, p := range pieces {
		i := slices.IndexFunc(files, func(f File) bool { return f.Path == p.Path })
		if i < 0 {
			files = append(files, File{Path: p.Path, Text: p.Head})
			i = len(files) - 1
		}
		if !strings.Contains("\n"+files[i].Text, "\n"+p.Text) {
			files[i].Text += p.Text
		}
	}
	return files
}

// WriteFiles writes the files below dir and returns their names. It replaces files that
// are there.
func WriteFiles(dir string, files []File) ([]string, error) {
	var names []string
	for _, f := range files {
		name := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return names, err
		}
		if err := os.WriteFile(name, []byte(f.Text), 0o644); err != nil {
			return names, err
		}
		names = append(names, name)
	}
	return names, nil
}
