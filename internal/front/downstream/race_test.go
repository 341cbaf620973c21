//go:build race

package downstream_test

const raceEnabled = true
