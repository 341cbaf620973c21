// Package conformance has others judge the real binary: protocol suites, hostile
// input, budgets.
package conformance

import (
	"os"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }
