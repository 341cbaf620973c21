package tune

func schedGranularity() Check {
	return obsolete("kernel.sched_min_granularity_ns", "moved to debugfs in 5.13, removed in 6.6",
		"no sysctl since 5.13, and the scheduler that had it is gone since 6.6 (EEVDF)",
		"Documentation/scheduler/sched-eevdf.rst")
}
