package tune

func nrOpen() Check {
	return Check{
		Name: "fs.nr_open", Area: Files,
		Doc: Doc{
			Threshold: "at least 1048576",
			Source:    "Documentation/admin-guide/sysctl/fs.rst: nr_open",
			Since:     "2.6.25",
			Risk:      "none: it is the upper bound of RLIMIT_NOFILE",
		},
		Worth: Worth{None: "it is a bound: below it there is nothing to gain"},
		Base:  always("1048576"),
		evaluate: func(_ *probe, now string) verdict {
			return atLeast(now, 1048576, "no process can be given more descriptors than this, and each connection is one")
		},
	}
}
