// Package stat holds the statistics of measurements as pure functions: steady state,
// confidence, knees, scalability models and tests between samples.
package stat
