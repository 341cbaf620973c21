// Package capacity finds how much a server carries: the knee, honestly, with what is not known.
//
// Find puts load on a Target in six phases and returns a Report:
//
//	qualify   is the machine quiet, can the generator do more than twice what is asked, what is the latency at low load
//	bracket   double the rate until it hurts
//	stairs    levels 1.25 apart, each repeated, the baseline measured between them; then down again
//	refine    noisy bisection between the highest level that passes and the lowest that fails
//	confirm   hold 0.9 of the knee; 1.1 of it must break
//	model     plateau, crossing, the two-condition rule, scalability; do they agree?
//
// Three numbers come out: λ_max, the rate that is completed when more is offered; λ_slo,
// the greatest rate at which the objective is met; and λ_knee.
//
// What the knee is. λ_knee is the arrival rate at which the P99 of the response time is
// κ = 2.5 times its value at the baseline rate λ0, on the server's true curve of P99
// against rate; λ0 is a few per cent of capacity and is in the report. It is a
// property of the server and of λ0 alone: no ramp, step or range enters. (For M/M/1 it is
// λ_κ = μ − (μ−λ0)/κ, a utilisation of about 0.62.) Where P99 cannot be estimated for want of
// samples a lower quantile takes its place, which the report names. Everything the search
// does is an estimate of this number, and where it cannot be found within the noise the
// verdict is "inconclusive" and no number is the headline.
//
// A window is discarded for what the machine did while it ran (time stolen, waiting for a
// processor), never for what was measured in it; too many discards are inconclusive too.
package capacity
