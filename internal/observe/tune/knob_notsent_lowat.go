package tune

import "strconv"

func notsentLowat() Check {
	return Check{
		Name: "net.ipv4.tcp_notsent_lowat", Area: Buffers,
		Doc: Doc{
			Threshold: "at least 4096: Weir sets its own bound per connection (eventloop.notsent_lowat, 128 KiB)",
			Source:    "Documentation/networking/ip-sysctl.rst: tcp_notsent_lowat; tcp(7): TCP_NOTSENT_LOWAT",
			Since:     "3.12",
			Risk:      "as a sysctl it applies to every program of the namespace; small values cost bulk transfers throughput",
		},
		Worth: Worth{None: "no experiment here measures the age of frames behind a full send buffer"},
		evaluate: func(_ *probe, now string) verdict {
			n, err := strconv.ParseUint(now, 10, 32)
			switch {
			case err != nil:
				return watch("%q is not a number", now)
			case n < 4096:
				return change("131072", "below one page every send of any program waits for an acknowledgement")
			}
			return good("Weir bounds unsent bytes per connection by itself; the sysctl is for other programs")
		},
	}
}
