// Package e2e follows the real binary with real clients: Go sockets, npm
// libraries and Chromium, through kill -9 and cut connections.
package e2e

import (
	"os"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) {
	dieInAnUpgrade()
	os.Exit(judge.Main(m))
}
