package centrifuge_test

import (
	"testing"

	"github.com/weir-gateway/weir/internal/protocol/centrifuge/protocol/fossiltest"
)

// checkDelta wants patch to make target out of source.
func checkDelta(t *testing.T, source, patch, target string) {
	t.Helper()
	got, err := fossiltest.Apply([]byte(source), []byte(patch), 1<<20)
	if err != nil || string(got) != target {
		t.Errorf("%q, %v; want %q", got, err, target)
	}
	if len(patch) >= len(target) {
		t.Errorf("a patch of %d bytes for %d", len(patch), len(target))
	}
}
