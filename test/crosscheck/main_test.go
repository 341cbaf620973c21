// Package crosscheck holds the load generator against others: at half of a
// server's load it must say what wrk and h2load say.
package crosscheck

import (
	"fmt"
	"os"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		if err := serveForever(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(judge.Main(m))
}
