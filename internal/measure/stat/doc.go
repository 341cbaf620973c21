// Package stat holds the statistics of measurements as pure functions: steady state,
// confidence, knees, scalability models and tests between samples.
//
// Nothing here reads a clock, a file or a global: the same input and seed give the
// same answer. Each function names the paper or section it comes from.
//
//	is the window usable?     MSER, Backlog, LittlesLaw, EnoughSamples, Classify
//	how sure is a number?     QuantileRanks, LogStudentInterval, TheilSen
//	where does it turn?       Plateau, InflationCrossing, FitHinge, Kneedle, Rule
//	what would it scale to?   FitUSL, FitHardCap, FitScaling
//	do two samples differ?    WelchT, FisherExact, KolmogorovSmirnov
package stat
