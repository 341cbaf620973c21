package push

import (
	"testing"

	"github.com/weir-gateway/weir/internal/push/wire"
)

// A client that is cut off between the first block and a gap event resumes where it was, and
// receives the gap event then.
func TestAStreamWithGapsStartsAtItsClientsPosition(t *testing.T) {
	f := func(since, at, want string, wantLossy bool) {
		t.Helper()
		opt, begins := wire.Options(nil, since), wire.Options(nil, at).Since
		o := opening{requested: opt.Since, unknown: opt.Unknown != ""}
		first, lossy := o.resumes(begins)
		if got := string(first.AppendTo(nil)); got != want || lossy != wantLossy {
			t.Errorf("asked %q of a stream that starts at %q: %q, %v; want %q, %v", since, at, got, lossy, want, wantLossy)
		}
	}
	f("", "ab-7", "ab-7", false)
	f("0", "ab-0", "ab-0", false)
	f("ab-7", "ab-7", "ab-7", false)
	f("ab-7~cd-1", "ab-7~cd-1", "ab-7~cd-1", false)
	f("ab-7", "ab-9", "ab-7", true)                // retention
	f("ab-7", "xy-1", "ab-7", true)                // another epoch
	f("ab-7~cd-1", "ab-7~xy-3", "ab-7~cd-1", true) // of one of two
	f("nonsense", "ab-9", "", true)
}
