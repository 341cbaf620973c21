package judge

import (
	"fmt"
	"os"

	"go.uber.org/goleak"
)

// Main is the TestMain of a package of judges: it runs the tests, ends what they
// left running, and returns the status, which is a failure if goroutines leak.
func Main(m interface{ Run() int }) int {
	code := m.Run()
	CloseIdle()
	Cleanup()
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintf(os.Stderr, "the tests leak: %v\n", err)
		return 1
	}
	return 0
}
