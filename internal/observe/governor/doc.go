// Package governor watches the process from within and helps it to stay below its
// limit.
//
//	what is going on?     a sampler at 10 Hz publishes a [Snapshot]: runtime, machine, loops, sockets
//	how does it fare?     windows of 5 s, evaluated by the two-condition rule: steady, alert, inflection, with causes by name
//	what happened?        evidence: on alert the flight recorder is armed, on inflection one bundle is written
//	how much memory?      the limit from the cgroup, GOMEMLIMIT, a policy for GOGC, budgets for admission
//	who is to be alerted?    [Alerts], on the same [Thresholds] as the states
//
// Nothing here stops the world on a timer or takes a lock of the hot path: the
// runtime's own metrics cost microseconds, loops are read through counters that
// they publish, and what can block (files of /proc, sockets, the broker) is asked on
// goroutines of its own. What the process does not know of itself comes through
// [Sources], which the composition root fills in.
package governor
