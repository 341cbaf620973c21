//go:build race

package simulate

// shortForm is how many schedules run without -schedules: the race detector takes twelve times
// as long.
const shortForm = 100
