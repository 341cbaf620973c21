package lab

import "github.com/weir-gateway/weir/internal/measure/loadgen"

// machine describes where the measurement is made.
func machine(version string) loadgen.Machine {
	m := loadgen.LocalMachine()
	m.Weir = version
	return m
}

// watchHost returns a function that says what the machine did in between: the
// share of processor time the hypervisor took, and the share of time in which
// something waited for a processor.
func watchHost() func() (steal, pressure float64) {
	since := loadgen.StartHostSample()
	return func() (steal, pressure float64) {
		h, _ := since()
		return h.Steal, h.Pressure
	}
}
