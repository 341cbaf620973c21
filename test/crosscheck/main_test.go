// Package crosscheck holds the load generator against others: at half of a
// server's load it must say what wrk and h2load say.
package crosscheck

import (
	"os"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }
