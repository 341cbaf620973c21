// Package accept runs the acceptance indicators of a gateway and reports each with its
// definition, target, method, trials, evidence and verdict.
//
// An Indicator measures and writes Evidence; its Criteria turn evidence into a verdict
// without looking anywhere else (judge.go), so that Verify can do it again later. The load is
// that of loadgen, the knee that of capacity, the processes are those of lab: this package
// puts them together. Indicators are in plain sight in Indicators.
//
// Verdicts are pass, fail, inconclusive and invalid. What was counted and has to be none
// fails however noisy the machine was; what depends on time is inconclusive on a machine
// that others used, that was taken away by its hypervisor, or whose generator was too late.
// Nothing passes on a noisy machine but such counts.
//
// The files of a run are linked by a hash chain (chain.go): one that was changed, removed
// or added later is found by anyone who has the chain's head.
package accept
