package lab

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weir-gateway/weir/internal/measure/loadgen"
)

// machine describes where the measurement is made.
func machine(version string) loadgen.Machine {
	m := loadgen.ThisMachine()
	m.Weir = version
	return m
}

// watchHost returns a function that says what the machine did in between: the
// share of processor time the hypervisor took, and the share of time in which
// something waited for a processor.
func watchHost() func() (steal, pressure float64) {
	began := time.Now()
	all, stolen := processorTimes()
	waited := pressureTotal()
	return func() (steal, pressure float64) {
		all2, stolen2 := processorTimes()
		if all2 > all {
			steal = (stolen2 - stolen) / (all2 - all)
		}
		if took := time.Since(began).Seconds(); took > 0 {
			pressure = min((pressureTotal()-waited)/took, 1)
		}
		return steal, pressure
	}
}

// processorTimes are all ticks of all processors, and those stolen.
func processorTimes() (all, stolen float64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil || i > 8 { // guest times are in user's already
			continue
		}
		all += n
		if i == 8 {
			stolen = n
		}
	}
	return all, stolen
}

// pressureTotal is the seconds in which something waited for a processor, since
// the start of the machine; 0 where the kernel does not report it.
func pressureTotal() float64 {
	b, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(b), "total=")
	if !ok {
		return 0
	}
	us, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	return us / 1e6
}
