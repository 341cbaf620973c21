package trial_test

import (
	"testing"

	"github.com/weir-gateway/weir/internal/testkit/trial"
)

func TestAPortIsGivenOnce(t *testing.T) {
	given := map[int]bool{}
	for range 1000 { // of 18,000: some would come again by chance
		port := trial.FreePort(t)
		if given[port] {
			t.Fatalf("port %d was given twice", port)
		}
		given[port] = true
	}
}
