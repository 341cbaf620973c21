// Package e2e follows the real binary with real clients: Go sockets, npm
// libraries and Chromium, through kill -9 and cut connections.
package e2e

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
