package tune

func rmemMax() Check {
	return Check{
		Name: "net.core.rmem_max", Area: Buffers,
		Doc: Doc{
			Threshold: "at least 212992, the kernel's old default",
			Source:    "Documentation/admin-guide/sysctl/net.rst: rmem_max; socket(7): SO_RCVBUF",
			Since:     "2.2",
			Risk:      "it bounds explicit SO_RCVBUF only, not TCP's autotuning",
		},
		Worth: Worth{None: "experiment A6 shows that it clips what is set explicitly, and that nothing else depends on it"},
		evaluate: func(_ *probe, now string) verdict {
			return atLeast(now, 212992, "explicit buffers (eventloop.sockets.receive_buffer) are clipped below the kernel's old default")
		},
	}
}
