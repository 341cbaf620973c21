package tune

func fileMax() Check {
	return Check{
		Name: "fs.file-max", Area: Files,
		Doc: Doc{
			Threshold: "at most half in use, and at least 1048576",
			Source:    "Documentation/admin-guide/sysctl/fs.rst: file-max & file-nr",
			Since:     "2.2; it follows the memory since 2.6",
			Risk:      "about 1 KiB of memory per open file",
		},
		Worth: Worth{None: "it is a bound: below it there is nothing to gain"},
		evaluate: func(p *probe, now string) verdict {
			var used int64
			if s, err := p.sysctl("fs.file-nr"); err == nil {
				if v, err := numbers(s, 3); err == nil {
					used = v[0]
					p.note("fs.file-nr", s, sysctlPath("fs.file-nr"))
				}
			}
			return atLeast(now, max(1048576, 2*used), "the machine may run out of open files; the kernel's own default follows the memory, so look for what lowers it")
		},
	}
}
