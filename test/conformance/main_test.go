// Package conformance has others judge the real binary: protocol suites, hostile
// input, budgets.
package conformance

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) {
	code := m.Run()
	judge.CloseIdle()
	judge.Cleanup()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "the tests leak: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}
