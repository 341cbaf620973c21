// Package certificates has weir obtain and renew certificates from Pebble, the ACME server that
// Let's Encrypt offers for tests of clients: it rejects nonces at random, validates both
// challenges for real, and is strict.
package certificates

import (
	"os"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }
