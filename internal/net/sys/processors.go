package sys

import (
	"os"
	"runtime"
)

var processors = runtime.GOMAXPROCS(0)

// Processors is how many processors Go was to use when the process started: GOMAXPROCS of
// the environment, the quota of the control group or the processors of the machine. What
// [SpareP] adds does not count. At least 1.
func Processors() int { return processors }

// SpareP has Go's scheduler use a P more than there are processors if there are as many
// loops. A loop that waits in the kernel keeps its P until the runtime's monitor takes it
// away, up to 10 ms later; if all Ps are the loops', whatever else became ready (the answer
// of a broker, a timer) waits for that. GOMAXPROCS in the environment is left as it is. It
// stops the world the first time, so it is called at the start.
func SpareP(loops int) {
	if os.Getenv("GOMAXPROCS") == "" && loops >= processors && runtime.GOMAXPROCS(0) <= processors {
		runtime.GOMAXPROCS(processors + 1)
	}
}
