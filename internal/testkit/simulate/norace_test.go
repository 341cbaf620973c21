//go:build !race

package simulate

// shortForm is how many schedules run without -schedules.
const shortForm = 2000
